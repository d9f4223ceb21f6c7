"""Collections that requests search by a sentence: by the index of a served captioner, where there is one."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from pathlib import Path

from limner.data.collection import ITEMS, Collection
from limner.errors import FeatureError
from limner.folders.reading import make_thumbnail
from limner.inference.captioner import Captioner
from limner.inference.retrieval_results import ImageSearch
from limner.inference.retriever import Retriever
from limner.media.image import open_image
from limner.server.errors import NotSupportedError
from limner.server.models import Models
from limner.storage.ids import RowsById
from limner.storage.lance_tables import state_of
from limner.storage.places import place


class ServedCollection:
    """A collection and the captioner that its images are searched with."""

    def __init__(self, path: Path | str, models: Models) -> None:
        """Choose the first served captioner with an index of the collection, or else the first that can search it.

        Raises:
            CollectionError: there is no collection, or it is damaged.
            NotSupportedError: no captioner is served.
            FeatureError: the collection lacks the features of all captioners.
        """
        self._opened = _OpenCollection(path)
        captioners = [one for model in models for one in model.by_lang.values() if isinstance(one, Captioner)]
        if not captioners:
            raise NotSupportedError(f"{path}: no captioner is served that searches it; add --model and its run")
        retrievers = [Retriever(one.models[0], run=one.models[0].folder) for one in captioners]
        collection = self._opened.collection
        self._retriever = next((one for one in retrievers if one.existing_index(collection) is not None), None) or (
            _first_able(retrievers, collection)
        )

    def __len__(self) -> int:
        return len(self._current.collection)

    def search(self, sentence: str, count: int) -> ImageSearch:
        """Rank the images for a sentence; arguments and errors are those of `Retriever.search_images`."""
        return self._retriever.search_images(sentence, self._current.collection, count=count)

    def thumbnail(self, item_id: str) -> bytes | None:
        """Return a small copy of the image of an item, a JPEG file; None if there is no such item or image.

        Raises:
            MediaError: the image cannot be read.
        """
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
        """Whether the collection is as it was opened."""
        return state_of(self.collection.path / ITEMS) == self._state

    @cached_property
    def rows(self) -> RowsById:
        """Row of each item."""
        return RowsById(self.collection.id_batches())


def _first_able(retrievers: list[Retriever], collection: Collection) -> Retriever:
    """Return the first retriever whose features the collection has; raise the error of the first if there is none."""
    for retriever in retrievers:
        with suppress(FeatureError):
            retriever.require_features(collection)
            return retriever
    retrievers[0].require_features(collection)
    return retrievers[0]
