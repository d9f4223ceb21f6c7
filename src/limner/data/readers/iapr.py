"""IAPR TC-12 (Grubinger et al., 2006): travel pictures, each with a description of several sentences."""

from __future__ import annotations

import html
import re
from pathlib import Path

from limner.data.readers.corpus_files import Options, Splits, find_files
from limner.data.readers.item_builder import Gathering, SourceLocation
from limner.errors import CollectionError

ANNOTATIONS = {"en": ("eng", "annotations_complete_eng"), "de": ("ger", "annotations_complete_ger")}
TAG = re.compile(r"<(DOCNO|DESCRIPTION|IMAGE)>(.*?)</\1>", re.DOTALL)
ENCODING = re.compile(rb"<\?xml[^>]*encoding=[\"']([\w-]+)[\"']")


def read_iapr(source: Path, options: Options, gathering: Gathering) -> None:
    """Read `annotations_complete_LANG/NN/NNNN.LANG`: XML with <DOCNO>, <DESCRIPTION> and <IMAGE>.

    A description's sentences end with ';'. Where English and German have equally many, the n-th ones
    translate each other; otherwise none are said to. The files are ISO-8859-1 and not always well-formed XML
    ('&' stands bare), so the tags are looked for as text.

    Args:
        source: the corpus's folder, with the annotations, `images/` and lists of splits
            (`iaprtc12_train_list.txt`, `splits/train.txt`, ...).
        options: `images`, the folder that holds `00/25.jpg`, ...; `splits`.
        gathering: gets the items, in the order of the annotations' files.
    """
    if not source.is_dir():
        raise CollectionError(f"{source}: expected the folder of the corpus, found a file")
    splits = Splits.of(source, options, gathering)
    for path in find_files(source, [f"{ANNOTATIONS['en'][1]}/**/*.eng"], "English annotations"):
        place = SourceLocation(path)
        tags = _read_tags(path)
        key = gathering.key(tags["IMAGE"], place)
        image = _picture(source, options, tags["IMAGE"])
        split = splits.split_of(key)
        if split is None:
            gathering.skip("pictures in none of the lists of splits", key, place)
        elif not image.is_file():
            gathering.skip("pictures that are not there", str(image), place)
        else:
            gathering.item(key, place, split=split, image=image)
            _add_sentences(key, source, path, tags["DESCRIPTION"], gathering)


def _add_sentences(key: str, source: Path, english: Path, description: str, gathering: Gathering) -> None:
    told = _sentences(description)
    for group, text in enumerate(told):
        gathering.sentence(key, SourceLocation(english), "en", text, group)
    ending, folder = ANNOTATIONS["de"]
    german = source / folder / english.parent.name / f"{english.stem}.{ending}"
    if german.is_file():
        translated = _sentences(_read_tags(german)["DESCRIPTION"])
        first = 0 if len(translated) == len(told) else len(told)
        for group, text in enumerate(translated, start=first):
            gathering.sentence(key, SourceLocation(german), "de", text, group)


def _sentences(description: str) -> list[str]:
    return [text.strip() for text in description.split(";") if text.strip()]


def _picture(source: Path, options: Options, image: str) -> Path:
    """The file of <IMAGE>`images/00/25.jpg`</IMAGE>."""
    return options.images / image.removeprefix("images/") if options.images else source / image


def _read_tags(path: Path) -> dict[str, str]:
    data = path.read_bytes()
    declared = ENCODING.match(data)
    try:
        text = data.decode(declared[1].decode() if declared else "iso-8859-1")
    except (LookupError, UnicodeDecodeError) as error:
        raise CollectionError(f"{path}: cannot be read in the encoding it declares: {error}") from None
    tags = {tag: html.unescape(value).strip() for tag, value in TAG.findall(text)}
    if lacking := {"DESCRIPTION", "IMAGE"} - tags.keys():
        raise CollectionError(f"{path}: no <{min(lacking)}> found; expected an annotation of IAPR TC-12")
    return tags
