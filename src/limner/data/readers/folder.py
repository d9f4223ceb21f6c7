"""Folders of images, videos or audio files with text files of sentences, and folders of texts with a label."""

from __future__ import annotations

import os
from pathlib import Path

from limner.data.readers.corpus_files import (
    SPLIT_ALIASES,
    ReaderOptions,
    assign_split,
    list_media_files,
    read_lines,
    read_text,
)
from limner.data.readers.item_builder import ItemBuilder, SourceLocation
from limner.errors import CollectionError
from limner.files import read_bytes
from limner.media.modality import AUDIO, IMAGE, VIDEO, Modality, find_modality

TEXT_SUFFIX = ".txt"
"""Suffix of the files of sentences, in lower or upper case."""
SPLIT_FOLDERS = ("train", "val", "dev", "test")


def read_image_folder(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read all images and videos below a folder; see `read_media_folder`."""
    read_media_folder(source, options, builder, (IMAGE, VIDEO))


def read_audio_folder(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read all audio files below a folder; see `read_media_folder`."""
    read_media_folder(source, options, builder, (AUDIO,))


def read_media_folder(
    source: Path, options: ReaderOptions, builder: ItemBuilder, modalities: tuple[Modality, ...]
) -> None:
    """Read all files of some modalities below a folder; a `.txt` file of the same name has its sentences, one per line.

    The item id is the path relative to `source`, without suffix. Media files are not opened.

    Args:
        source: folder. Files below its subfolders `train`, `val` and `test` belong to these splits.
        options: `split` of other files, by default `train`; `lang` of the sentences, by default English.
        builder: receives the items in the order of their paths.
        modalities: modalities of the files.

    Raises:
        CollectionError: there are no files, or two files differ in the suffix only.
    """
    paths: dict[str, Path] = {}
    plural = " or ".join(modality.plural for modality in modalities)
    files = list_media_files(source, modalities, f"specify a folder of {plural}", builder)
    texts = _texts(files.others)
    for path in files.media:
        relative = path.relative_to(source)
        id = relative.with_suffix("").as_posix()
        if (other := paths.setdefault(id, path)) != path:
            raise CollectionError(f"{path}: has the item id '{id}', like {other}; rename one of them")
        top = relative.parts[0] if len(relative.parts) > 1 else ""
        split = SPLIT_ALIASES.get(top, top) if top in SPLIT_FOLDERS else assign_split(id, options)
        builder.add_item(id, SourceLocation(path), split=split, image=path)
        text_file = texts.pop(_without_suffix(path), None)
        if text_file is not None and not read_bytes(text_file).strip():
            kept = (find_modality(path) or modalities[0]).plural
            builder.skip(f"empty text files (the {kept} are kept)", id, SourceLocation(text_file))
        elif text_file is not None:
            for number, line in enumerate(read_lines(text_file), start=1):
                builder.add_sentence(id, SourceLocation(text_file, number), options.lang or "en", line, number - 1)
    kinds = " or ".join(modality.noun for modality in modalities)
    for path in texts.values():
        builder.skip(f"text files without an {kinds} of the same name", str(path), SourceLocation(path))
    for path in files.others:
        if path.suffix.lower() != TEXT_SUFFIX:
            builder.tally.note("files of other kinds, which are not read", str(path))


def _texts(files: list[Path]) -> dict[str, Path]:
    """Return the files of sentences by their path without suffix."""
    texts: dict[str, Path] = {}
    for path in files:
        if path.suffix.lower() == TEXT_SUFFIX and (other := texts.setdefault(_without_suffix(path), path)) != path:
            raise CollectionError(f"{path}: has the same name as {other}; join the two files of sentences")
    return texts


def _without_suffix(path: Path) -> str:
    return os.fspath(path.with_suffix(""))


UNLABELLED = ("unsup",)
"""Folders of texts without a label, which are skipped."""


def read_imdb(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read one text per file from the folders `SPLIT/LABEL/*.txt`, or `LABEL/*.txt` (Maas et al., 2011).

    The label is the name of the folder. HTML line breaks are removed.

    Options: `lang`, by default English; `split` of the texts outside folders of splits, by default `train`.

    Raises:
        CollectionError: there are no such files.
    """
    found = False
    for path in sorted(source.glob("*/*.txt")) + sorted(source.glob("*/*/*.txt")):
        parts = path.relative_to(source).parts
        split = SPLIT_ALIASES.get(parts[0], parts[0]) if parts[0] in SPLIT_FOLDERS else None
        if (len(parts) == 3) != (split is not None):
            continue
        found, label = True, parts[-2]
        id, location = "/".join([*parts[:-1], path.stem]), SourceLocation(path)
        if label in UNLABELLED:
            builder.skip("texts without a label", id, location)
            continue
        builder.add_item(id, location, split=split or assign_split(id, options), label=label)
        builder.add_sentence(id, location, options.lang or "en", read_text(path).replace("<br />", " "), 0)
    if not found:
        raise CollectionError(f"{source}: no texts found; expected files SPLIT/LABEL/*.txt or LABEL/*.txt")


def read_rt_polarity(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read one text per line from files `NAME.LABEL`, as `rt-polarity.pos` and `rt-polarity.neg` (Pang and Lee, 2005).

    The label is the suffix of the file. Empty lines are skipped.

    Source: folder with two or more such files of one name. Options: `lang`, by default English; `split`, by default
    `train`.

    Raises:
        CollectionError: there are no such files, or files of several names.
    """
    paths = [
        path for path in sorted(source.glob("*.*")) if path.is_file() and path.suffix not in (".md", ".txt", ".gz")
    ]
    names = {path.stem for path in paths}
    if len(paths) < 2 or len(names) > 1:
        found = ", ".join(path.name for path in paths) or "none"
        raise CollectionError(
            f"{source}: expected files NAME.LABEL of one name, such as rt-polarity.pos; found {found}"
        )
    for path in paths:
        label = path.suffix[1:]
        for number, line in enumerate(read_lines(path), start=1):
            id, location = f"{label}-{number:05d}", SourceLocation(path, number)
            if not line.strip():
                builder.skip("empty lines", id, location)
                continue
            builder.add_item(id, location, split=assign_split(id, options), label=label)
            builder.add_sentence(id, location, options.lang or "en", line, 0)
