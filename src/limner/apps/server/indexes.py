"""Indexed folders and collections for search requests, by the names of the folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from limner.apps.server.errors import NotFoundError, NotSupportedError
from limner.apps.server.models import Models, trained_models
from limner.apps.server.schemas import SearchFacts, SearchHit, SearchResponse
from limner.apps.server.settings import ServerSettings
from limner.data.collection import ITEMS, Collection
from limner.errors import FeatureError
from limner.media.image import make_thumbnail, open_image
from limner.storage.hashes import RowsById
from limner.storage.places import is_collection, place, state_of

if TYPE_CHECKING:
    from limner.inference.retriever import ImageSearch, Retriever


class SearchableFolder(Protocol):
    """Index of a folder of images; `limner.apps.photos.FolderIndex` is the implementation."""

    folder: Path

    def __len__(self) -> int: ...

    def search(self, query: str, count: int) -> Sequence[Any]: ...  # of `limner.apps.photos.index.FolderMatch`

    def similar(self, image: bytes, count: int) -> Sequence[Any]: ...

    def thumbnail(self, path: str) -> bytes | None: ...


FolderOpener = Callable[[str], SearchableFolder]
"""Function that opens the index of a folder."""


class ServedCollection:
    """A collection with the captioner that searches its images."""

    def __init__(self, path: Path | str, models: Models) -> None:
        """Choose the first served captioner with an index of the collection, or else the first with its features.

        CollectionError if it is damaged or missing, NotSupportedError without captioners, FeatureError
        without features.
        """
        self._opened = _OpenCollection(path)
        trained = [trained_models(captioner)[0] for captioner in models.captioners]
        from limner.inference.retriever import Retriever  # torch, which `trained_models` asks for

        retrievers = [Retriever(model, run=model.folder) for model in trained]
        if not retrievers:
            raise NotSupportedError(f"{path}: no captioner is served that searches it; add --model and its run")
        collection = self._opened.collection
        indexed = [retriever for retriever in retrievers if retriever.existing_index(collection) is not None]
        self._retriever = indexed[0] if indexed else _first_with_features(retrievers, collection)

    def __len__(self) -> int:
        return len(self._current.collection)

    def search(self, sentence: str, count: int) -> ImageSearch:
        """Rank the images for a sentence; see `Retriever.search_images`."""
        return self._retriever.search_images(sentence, self._current.collection, count=count)

    def thumbnail(self, item_id: str) -> bytes | None:
        """Return a small copy of the image of an item, a JPEG file; None for no image, MediaError for a damaged one."""
        opened = self._current
        row = int(opened.rows.find([item_id])[0])
        if row < 0:
            return None
        (item,) = opened.collection.take(range(row, row + 1))
        if item.id != item_id or item.image is None:
            return None
        return make_thumbnail(open_image(opened.collection.media_source(item)))

    @property
    def _current(self) -> _OpenCollection:
        """The collection, opened again if it has changed."""
        if not self._opened.is_current:
            self._opened = _OpenCollection(self._opened.collection.path)
        return self._opened


class _OpenCollection:
    """A snapshot of a collection."""

    def __init__(self, path: Path | str) -> None:
        self._state = state_of(place(path) / ITEMS)  # first: later changes are seen by `is_current`
        self.collection = Collection.open(path)

    @property
    def is_current(self) -> bool:
        """Whether the collection is unchanged since it was opened."""
        return state_of(self.collection.path / ITEMS) == self._state

    @cached_property
    def rows(self) -> RowsById:
        """Row of each item."""
        return RowsById(self.collection.id_batches())


def _first_with_features(retrievers: list[Retriever], collection: Collection) -> Retriever:
    """Return the first retriever whose features the collection has, or raise the error of the first retriever."""
    for retriever in retrievers:
        with suppress(FeatureError):
            retriever.require_features(collection)
            return retriever
    retrievers[0].require_features(collection)
    return retrievers[0]


class ServedIndexes:
    """Indexes that the service searches, by name."""

    def __init__(self, by_name: dict[str, SearchableFolder | ServedCollection]) -> None:
        self.by_name = by_name

    def __iter__(self) -> Iterator[tuple[str, SearchableFolder | ServedCollection]]:
        return iter(self.by_name.items())

    def get(self, name: str | None) -> tuple[str, SearchableFolder | ServedCollection]:
        """Return an index by name, or the first; NotFoundError if unknown, NotSupportedError without indexes."""
        if not self.by_name:
            raise NotSupportedError("no folder is indexed; run limner index FOLDER, and limner serve --index FOLDER")
        if name is None:
            name = next(iter(self.by_name))
        if name not in self.by_name:
            raise NotFoundError(f"index '{name}': not served; served are {', '.join(self.by_name)}", "index")
        return name, self.by_name[name]

    def search(self, name: str, query: str | bytes, count: int) -> SearchResponse:
        """Search an index by a sentence, or a folder by the encoded bytes of an image.

        NotSupportedError for an image and a collection, SettingsError for unknown words, MediaError for a damaged one.
        """
        index = self.by_name[name]

        def hit(item: str, score: float, caption: str, **fields: Any) -> SearchHit:  # noqa: ANN401
            thumbnail = f"v1/thumbnail?index={quote(name, safe='')}&name={quote(item, safe='')}"
            return SearchHit(name=item, score=score, caption=caption, thumbnail=thumbnail, **fields)

        if isinstance(index, ServedCollection):
            if isinstance(query, bytes):
                raise NotSupportedError(
                    f"index '{name}' is a collection, which is searched by a query; send one", "image"
                )
            results = index.search(query, count)
            hits = [hit(result.id, result.score, result.text) for result in results.results]
            return SearchResponse(index=name, hits=hits, search=SearchFacts.model_validate(results.facts()))
        matches = index.similar(query, count) if isinstance(query, bytes) else index.search(query, count)
        hits = []
        for match in matches:
            path = match.path.relative_to(index.folder).as_posix()
            fields = {"confidence": match.confidence, "tags": [*match.tags], "abstained": not match.is_sure}
            hits.append(hit(path, match.score, match.caption, **fields))
        return SearchResponse(index=name, hits=hits)


def open_indexes(settings: ServerSettings, models: Models, open_folder: FolderOpener) -> ServedIndexes:
    """Open the indexes of the settings; LimnerError for a folder without one, or a collection without features."""
    indexes: dict[str, SearchableFolder | ServedCollection] = {}
    for folder in settings.indexes:
        index = ServedCollection(folder, models) if is_collection(folder) else open_folder(folder)
        indexes[place(folder).resolve().name] = index
    return ServedIndexes(indexes)
