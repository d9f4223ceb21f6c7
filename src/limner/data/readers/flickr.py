"""Flickr8k (Hodosh et al., 2013) and Flickr30k (Young et al., 2014): five English sentences a picture."""

from __future__ import annotations

from pathlib import Path

from limner.data.readers.corpus_files import ImageFolder, Options, Splits, find_files, read_lines
from limner.data.readers.item_builder import Gathering, SourceLocation
from limner.errors import CollectionError

TOKEN_FILES = ("*.token.txt", "*.token", "*/*.token.txt", "*/*.token")


def read_flickr(source: Path, options: Options, gathering: Gathering) -> None:
    """Read a file of lines `name.jpg#number<TAB>sentence`, with lists of splits and a folder of pictures.

    The five sentences of a picture were written independently: each is a group of its own.

    Args:
        source: the folder that holds all, or the file of sentences.
        options: `images` and `splits`, where they are not in the usual places; `lang`, English otherwise.
        gathering: gets the items, in the order of the lists.
    """
    path, *others = find_files(source, TOKEN_FILES, "file of sentences")
    if others:
        both = f"{path.name}, {others[0].name}"
        raise CollectionError(f"{source}: several files of sentences ({both}); name the one to read")
    pictures, splits = ImageFolder.of(source, options), Splits.of(source, options, gathering)
    for key, (name, split, place) in splits.listed.items():
        if picture := pictures.find(name):
            gathering.item(key, place, split=split, image=picture)
        else:
            gathering.skip("pictures of a split that are not there", key, place)
    told = set()
    for number, line in enumerate(read_lines(path), start=1):
        place = SourceLocation(path, number)
        name, group, text = _parse(line, place)
        key = gathering.key(name, place)
        if key in gathering:
            gathering.sentence(key, place, options.lang or "en", text, group)
            told.add(key)
        else:
            reason = "in no split" if pictures.find(name) else "not there"
            gathering.skip(f"sentences whose picture is {reason}", name, place)
    for key, (_, _, place) in splits.listed.items():
        if key in gathering and key not in told:
            gathering.skip("pictures without sentences (the pictures are kept)", key, place)


def _parse(line: str, place: SourceLocation) -> tuple[str, int, str]:
    name, tab, text = line.partition("\t")
    name, sign, index = name.rpartition("#")
    if not (tab and sign and index.strip().isdecimal()):
        raise CollectionError(f"{place}: expected 'name.jpg#0<TAB>sentence', found {line[:60]!r}")
    return name, int(index), text
