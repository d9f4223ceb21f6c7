"""Media files of imported items: references relative to the collection, copies, and files that it has already."""

from __future__ import annotations

import os
from pathlib import Path

from limner.data.collection import ITEMS, Collection
from limner.data.examples import Item
from limner.data.tally import Tally
from limner.errors import CollectionError
from limner.storage.places import is_remote

NO_MEDIA = "items whose file is no image, video or audio file, which is not copied"
OWN_FILES = "files that belong to an item of the collection already"


def without_own_files(items: list[Item], source: Path, target: Path, tally: Tally) -> list[Item]:
    """Leave out files of the collection itself, which a reader finds where one of the two folders contains the other.

    Otherwise each import of a folder into itself would add the copies of the previous one.
    """
    if is_remote(target):
        return items
    real_source, real_target = os.path.realpath(source), os.path.realpath(target)
    if os.path.commonpath([real_source, real_target]) not in (real_source, real_target):
        return items
    if not (target / ITEMS).is_dir():
        return items
    owners: dict[str, set[str]] = {}
    for known in Collection.open(target).items():
        if known.media_path is not None:
            owners.setdefault(os.path.realpath(target / known.media_path), set()).add(known.id)
    kept = []
    for item in items:
        own = owners.get(os.path.realpath(item.media_path)) if item.media_path else None
        if own and item.id not in own:
            tally.skip(OWN_FILES, item.id)
        else:
            kept.append(item)
    return kept


def with_relative_paths(items: list[Item], target: Path) -> list[Item]:
    """Replace media paths by paths relative to the collection, with links resolved so that '..' is correct."""
    root = os.path.realpath(target)
    relative_folders: dict[str, str] = {}
    result = []
    for item in items:
        if item.media_path is not None:
            folder, name = os.path.split(item.media_path)
            if folder not in relative_folders:
                relative_folders[folder] = Path(os.path.relpath(os.path.realpath(folder), root)).as_posix()
            item = _with_path(item, f"{relative_folders[folder]}/{name}")
        result.append(item)
    return result


def with_copied_files(items: list[Item], tally: Tally, *, strict: bool) -> tuple[list[Item], dict[str, Path]]:
    """Replace media paths by paths of copies in the collection; return the files to copy by these paths as well.

    Copies keep their folders below the common folder of all files. Items whose file is of no modality are skipped: a
    source may name any file of the machine.

    Raises:
        CollectionError: `strict`, and a file is of no modality.
    """
    kept = []
    for item in items:
        modality = item.modality
        if item.media_path is None or modality is None or modality.is_in(Path(item.media_path)):
            kept.append(item)
        elif strict:
            raise CollectionError(
                f"{item.media_path}: begins like no {modality.noun}, so it is not copied; correct the source, or leave "
                "--strict out to skip it"
            )
        else:
            tally.skip(NO_MEDIA, str(item.media_path))
    paths = [os.path.abspath(item.media_path) for item in kept if item.media_path is not None]
    root = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
    files: dict[str, Path] = {}
    result = []
    for item in kept:
        if item.media_path is not None and item.modality is not None:
            name = Path(item.modality.folder, os.path.relpath(item.media_path, root)).as_posix()
            files[name] = Path(item.media_path)
            item = _with_path(item, name)
        result.append(item)
    return result, files


def _with_path(item: Item, path: str) -> Item:
    return item if item.modality is None else item.with_media(item.modality, path)
