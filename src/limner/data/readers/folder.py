"""A folder of pictures, with or without words beside them."""

from __future__ import annotations

from pathlib import Path

from limner.data.readers.corpus_files import SPLIT_ALIASES, Options, chosen_split, list_pictures, read_lines
from limner.data.readers.item_builder import Gathering, SourceLocation
from limner.errors import CollectionError

SPLIT_FOLDERS = ("train", "val", "dev", "test")


def read_folder(source: Path, options: Options, gathering: Gathering) -> None:
    """Read every picture below a folder; its sentences stand, one a line, in a `.txt` of the same name.

    Items are named by their path below `source`, without the ending.

    Args:
        source: the folder. ImageFolder below its subfolders `train`, `val` and `test` belong to these splits.
        options: `split` of all other pictures (`auto` deals them out), `train` otherwise; `lang` of the sentences,
            English otherwise.
        gathering: gets the items, in the order of their paths.

    Raises:
        CollectionError: there are no pictures, or two have one name, but for the ending.
    """
    named: dict[str, Path] = {}
    for picture in list_pictures(source, "name the folder that the pictures are in"):
        inner = picture.relative_to(source)
        id = inner.with_suffix("").as_posix()
        if (other := named.setdefault(id, picture)) != picture:
            raise CollectionError(f"{picture}: is called '{id}' like {other}; rename one of them")
        top = inner.parts[0] if len(inner.parts) > 1 else ""
        split = SPLIT_ALIASES.get(top, top) if top in SPLIT_FOLDERS else chosen_split(id, options)
        gathering.item(id, SourceLocation(picture), split=split, image=picture)
        words = picture.with_suffix(".txt")
        if words.is_file() and not words.read_bytes().strip():
            gathering.skip("empty files of sentences (the pictures are kept)", id, SourceLocation(words))
        elif words.is_file():
            for number, line in enumerate(read_lines(words), start=1):
                gathering.sentence(id, SourceLocation(words, number), options.lang or "en", line, number - 1)
