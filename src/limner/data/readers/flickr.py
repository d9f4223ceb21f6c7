"""Flickr8k (Hodosh et al., 2013) and Flickr30k (Young et al., 2014): five English sentences per image.

Corpora that describe the same images in other languages in this form are read too, such as Flickr8k-CN (Li et al.,
2016).
"""

from __future__ import annotations

import re
from pathlib import Path

from limner.bounds import Group, bounds_of
from limner.data.readers.corpus_files import ImageFolder, ReaderOptions, SplitLists, find_files, read_lines
from limner.data.readers.item_builder import ItemBuilder, SourceLocation
from limner.errors import CollectionError

TOKEN_FILES = (
    "*.token.txt",
    "*.token",
    "*/*.token.txt",
    "*/*.token",
    *(f"*.{stem}.txt{suffix}" for stem in ("caption", "captions") for suffix in ("", ".gz")),
)
_LINE = re.compile(r"(?P<name>[^\t]+?)#(?:(?P<tag>[a-z]{2})[a-z]*#)?\s*(?P<index>\d+)\s*(?(tag)\s|\t)(?P<text>.*)")
"""Name, number and sentence; with a tag, as in `name.jpg#zhc#0 sentence`, its first two letters are the language."""


def read_flickr(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read lines `name.jpg#number<TAB>sentence` or `name.jpg#zhc#number sentence`, lists of splits and an image folder.

    The sentences of an image were written independently: each has a group of its own.

    Args:
        source: folder of the corpus, or the file of sentences.
        options: `images` and `splits`, if not in the usual folders; `lang`, by default that of the tag of a line, or
            English.
        builder: receives the items in the order of the lists.

    Raises:
        CollectionError: a file is missing, ambiguous or malformed.
    """
    path, *others = find_files(source, TOKEN_FILES, "file of sentences")
    if others:
        names = f"{path.name}, {others[0].name}"
        raise CollectionError(f"{source}: several files of sentences ({names}); specify one of them as the source")
    images, splits = ImageFolder.of(source, options, builder), SplitLists.of(source, options, builder)
    for key, (name, split, location) in splits.entries.items():
        if image := images.find(name):
            builder.add_item(key, location, split=split, image=image)
        else:
            builder.skip("images of a split that are missing", key, location)
    for number, line in enumerate(read_lines(path), start=1):
        location = SourceLocation(path, number)
        name, lang, group, text = _parse_line(line, location)
        key = builder.key(name, location)
        if key in builder:
            builder.add_sentence(key, location, options.lang or lang, text, group)
        else:
            reason = "in no split" if images.find(name) else "missing"
            builder.skip(f"sentences whose image is {reason}", name, location)


def _parse_line(line: str, location: SourceLocation) -> tuple[str, str, int, str]:
    """Return the name of the image, the language, the number of the sentence and its text."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise CollectionError(
            f"{location}: expected 'name.jpg#0<TAB>sentence' or 'name.jpg#zhc#0 sentence', found {line[:60]!r}"
        )
    try:
        number = int(bounds_of(Group).parse(match["index"]))
    except ValueError as error:
        raise CollectionError(f"{location}: number of the sentence: {error}") from None
    return match["name"], match["tag"] or "en", number, match["text"]
