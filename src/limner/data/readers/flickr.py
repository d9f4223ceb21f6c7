"""Flickr8k (Hodosh et al., 2013) and Flickr30k (Young et al., 2014): five English sentences per image."""

from __future__ import annotations

from pathlib import Path

from limner.data.readers.corpus_files import ImageFolder, ReaderOptions, SplitLists, find_files, read_lines
from limner.data.readers.item_builder import ItemBuilder, SourceLocation
from limner.errors import CollectionError

TOKEN_FILES = ("*.token.txt", "*.token", "*/*.token.txt", "*/*.token")


def read_flickr(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read lines `name.jpg#number<TAB>sentence`, lists of splits and an image folder.

    The sentences of an image were written independently: each has a group of its own.

    Args:
        source: folder of the corpus, or the file of sentences.
        options: `images` and `splits`, if not in the usual folders; `lang`, by default English.
        builder: receives the items in the order of the lists.

    Raises:
        CollectionError: a file is missing, ambiguous or malformed.
    """
    path, *others = find_files(source, TOKEN_FILES, "file of sentences")
    if others:
        names = f"{path.name}, {others[0].name}"
        raise CollectionError(f"{source}: several files of sentences ({names}); specify one of them as the source")
    images, splits = ImageFolder.of(source, options), SplitLists.of(source, options, builder)
    for key, (name, split, location) in splits.entries.items():
        if image := images.find(name):
            builder.add_item(key, location, split=split, image=image)
        else:
            builder.skip("images of a split that are missing", key, location)
    described = set()
    for number, line in enumerate(read_lines(path), start=1):
        location = SourceLocation(path, number)
        name, group, text = _parse_line(line, location)
        key = builder.key(name, location)
        if key in builder:
            builder.add_sentence(key, location, options.lang or "en", text, group)
            described.add(key)
        else:
            reason = "in no split" if images.find(name) else "missing"
            builder.skip(f"sentences whose image is {reason}", name, location)
    for key, (_, _, location) in splits.entries.items():
        if key in builder and key not in described:
            builder.skip("images without sentences (the images are kept)", key, location)


def _parse_line(line: str, location: SourceLocation) -> tuple[str, int, str]:
    name, tab, text = line.partition("\t")
    name, separator, index = name.rpartition("#")
    if not (tab and separator and index.strip().isdecimal()):
        raise CollectionError(f"{location}: expected 'name.jpg#0<TAB>sentence', found {line[:60]!r}")
    return name, int(index), text
