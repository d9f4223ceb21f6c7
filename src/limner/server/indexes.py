"""Indexed folders and collections that requests search, by the names of the folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from limner.errors import FolderError
from limner.server.errors import NotFoundError, NotSupportedError
from limner.server.models import Models
from limner.server.settings import ServerSettings
from limner.storage.places import is_collection, place

if TYPE_CHECKING:
    from limner.folders.index import FolderIndex
    from limner.inference.retrieval_results import ImageSearch
    from limner.server.collections import ServedCollection


class FoundImage(NamedTuple):
    """An image that a search has found."""

    name: str
    """Path relative to the indexed folder, or the id of an item of a collection."""
    score: float
    caption: str
    confidence: float | None = None
    tags: tuple[str, ...] = ()
    abstained: bool = False


class FoundImages(NamedTuple):
    """Result of a search."""

    name: str
    """Name of the index."""
    images: Sequence[FoundImage]
    """The images, best first."""
    how: ImageSearch | None = None
    """How the images of a collection were found."""


class ServedIndexes:
    """Indexes by name."""

    def __init__(self, by_name: dict[str, FolderIndex | ServedCollection]) -> None:
        self.by_name = by_name

    def __iter__(self) -> Iterator[tuple[str, FolderIndex | ServedCollection]]:
        return iter(self.by_name.items())

    def get(self, name: str | None) -> tuple[str, FolderIndex | ServedCollection]:
        """Return an index by its name; None for the first.

        Raises:
            NotFoundError: there is no such index.
            NotSupportedError: no index is served.
        """
        if not self.by_name:
            raise NotSupportedError("no folder is indexed; run limner index FOLDER, and limner serve --index FOLDER")
        if name is None:
            name = next(iter(self.by_name))
        if name not in self.by_name:
            raise NotFoundError(f"index '{name}': not served; served are {', '.join(self.by_name)}", "index")
        return name, self.by_name[name]

    def search(self, name: str, query: str | bytes, count: int) -> FoundImages:
        """Search an index by a sentence, or a folder by the encoded bytes of an image.

        Raises:
            NotSupportedError: a collection is searched by an image.
            SettingsError: the query has no word that the model knows.
            MediaError: the image cannot be decoded.
        """
        from limner.folders.index import FolderIndex

        index = self.by_name[name]
        if isinstance(index, FolderIndex):
            matches = index.similar(query, count) if isinstance(query, bytes) else index.search(query, count)
            images = [
                FoundImage(
                    one.path.relative_to(index.folder).as_posix(),
                    one.score,
                    one.caption,
                    one.confidence,
                    tuple(one.tags),
                    not one.is_sure,
                )
                for one in matches
            ]
            return FoundImages(name, images)
        if isinstance(query, bytes):
            raise NotSupportedError(f"index '{name}' is a collection, which is searched by a query; send one", "image")
        found = index.search(query, count)
        return FoundImages(name, [FoundImage(one.id, one.score, one.text) for one in found.results], found)


def open_indexes(settings: ServerSettings, models: Models) -> ServedIndexes:
    """Open the indexes of the settings; a served captioner that made an index also searches it.

    Raises:
        FolderError: a folder has no index, or a damaged one.
        LimnerError: a collection cannot be opened, or searched by a served captioner.
    """
    return ServedIndexes({place(folder).resolve().name: _open(folder, models) for folder in settings.indexes})


def _open(folder: str, models: Models) -> FolderIndex | ServedCollection:
    if is_collection(folder):
        from limner.server.collections import ServedCollection

        return ServedCollection(folder, models)
    from limner.folders.index import FolderIndex
    from limner.inference.captioner import Captioner

    captioners: Sequence[object] = [one for model in models for one in model.by_lang.values()]
    for captioner in captioners:
        if isinstance(captioner, Captioner):
            with suppress(FolderError):  # made by another model; the last line reports other errors
                return FolderIndex.open(folder, captioner=captioner)
    return FolderIndex.open(folder)
