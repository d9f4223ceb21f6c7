"""Texts with a label: the folders of the IMDB reviews, and files with one text a line as those of rt-polarity."""

from __future__ import annotations

from pathlib import Path

from limner.data.readers.corpus_files import SPLIT_ALIASES, ReaderOptions, assign_split, read_lines, read_text
from limner.data.readers.item_builder import ItemBuilder, SourceLocation
from limner.errors import CollectionError

SPLITS = ("train", "val", "dev", "test")
UNLABELLED = ("unsup",)
"""Folders of texts without a label, which are skipped."""


def read_imdb(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read one text per file from the folders `SPLIT/LABEL/*.txt`, or `LABEL/*.txt` (Maas et al., 2011).

    The label is the name of the folder. HTML line breaks are removed.

    Args:
        source: folder.
        options: `lang`, by default English; `split` of the texts outside folders of splits, by default `train`.
        builder: receives the items in the order of their paths.

    Raises:
        CollectionError: there are no such files.
    """
    found = False
    for path in sorted(source.glob("*/*.txt")) + sorted(source.glob("*/*/*.txt")):
        parts = path.relative_to(source).parts
        split = SPLIT_ALIASES.get(parts[0], parts[0]) if parts[0] in SPLITS else None
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

    Args:
        source: folder with two or more such files of one name.
        options: `lang`, by default English; `split`, by default `train`.
        builder: receives the items in the order of the files and lines.

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
