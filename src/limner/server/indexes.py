"""Indexed folders that requests search, by the names of the folders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from limner.errors import FolderError
from limner.server.errors import NotFoundError, NotSupportedError
from limner.server.models import Models
from limner.server.settings import ServerSettings

if TYPE_CHECKING:
    from limner.folders.index import FolderIndex


class ServedIndexes:
    """Indexes by name."""

    def __init__(self, by_name: dict[str, FolderIndex]) -> None:
        self.by_name = by_name

    def __iter__(self) -> Iterator[tuple[str, FolderIndex]]:
        return iter(self.by_name.items())

    def get(self, name: str | None) -> tuple[str, FolderIndex]:
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


def open_indexes(settings: ServerSettings, models: Models) -> ServedIndexes:
    """Open the indexes of the settings; a served captioner that made an index also searches it.

    Raises:
        FolderError: a folder has no index, or a damaged one.
    """
    return ServedIndexes({Path(folder).resolve().name: _open(folder, models) for folder in settings.indexes})


def _open(folder: str, models: Models) -> FolderIndex:
    from limner.folders.index import FolderIndex
    from limner.inference.captioner import Captioner

    captioners: Sequence[object] = [one for model in models for one in model.by_lang.values()]
    for captioner in captioners:
        if isinstance(captioner, Captioner):
            with suppress(FolderError):  # made by another model; the last line reports other errors
                return FolderIndex.open(folder, captioner=captioner)
    return FolderIndex.open(folder)
