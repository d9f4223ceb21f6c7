"""IAPR TC-12 (Grubinger et al., 2006): travel photographs with descriptions of several sentences."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

from limner.data.readers.corpus_files import ReaderOptions, SplitLists, find_files
from limner.data.readers.item_builder import ItemBuilder, SourceLocation
from limner.errors import CollectionError
from limner.files import is_file, read_bytes

ANNOTATIONS = {"en": ("eng", "annotations_complete_eng"), "de": ("ger", "annotations_complete_ger")}
TAG = re.compile(r"<(DOCNO|DESCRIPTION|IMAGE)>(.*?)</\1>", re.DOTALL)
ENCODING = re.compile(rb"<\?xml[^>]*encoding=[\"']([\w-]+)[\"']")


def read_iapr(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read `annotations_complete_LANG/NN/NNNN.LANG`: XML with <DOCNO>, <DESCRIPTION> and <IMAGE>.

    The parts of a description end with ';'. By default each is a sentence, the form of Mao et al. (2015), section 7.1,
    with 1.7 sentences an image. With `descriptions: whole` a description is one sentence, and ';' one of its tokens,
    as in the samples and retrieved descriptions that Kiros et al. (2014) print (Figures 3 to 7).

    If the English and the German description have the same number of sentences, the n-th sentences are translations of
    each other; otherwise each sentence has a group of its own. Whole descriptions translate each other. The files are
    ISO-8859-1 and not always well-formed XML ('&' is not escaped), so tags are matched by a regular expression.

    Source: folder of the corpus, with the annotations, `images/` and lists of splits (`iaprtc12_train_list.txt`,
    `splits/train.txt`, ...). Options: `images`, the folder of `00/25.jpg`, ...; `splits`; `descriptions`.
    """
    if not source.is_dir():
        raise CollectionError(f"{source}: expected the folder of the corpus, got a file")
    splits = SplitLists.of(source, options, builder)
    for path in find_files(source, [f"{ANNOTATIONS['en'][1]}/**/*.eng"], "English annotations"):
        location = SourceLocation(path)
        tags = _read_tags(path)
        key = builder.key(tags["IMAGE"], location)
        # `images/00/25.jpg` is below the image folder whatever the tag says
        name = os.path.normpath(f"/{tags['IMAGE']}").lstrip("/")
        image = options.images / name.removeprefix("images/") if options.images else source / name
        split = splits.split_of(key)
        if split is None:
            builder.skip("images in none of the lists of splits", key, location)
        elif not is_file(image):
            builder.skip("images that are missing", str(image), location)
        else:
            builder.add_item(key, location, split=split, image=image)
            _add_sentences(key, source, path, options.descriptions == "whole", builder)


def _add_sentences(key: str, source: Path, english: Path, whole: bool, builder: ItemBuilder) -> None:
    ending, folder = ANNOTATIONS["de"]
    german = source / folder / english.parent.name / f"{english.stem}.{ending}"
    sentences = _sentences(_read_tags(english)["DESCRIPTION"], whole)
    translations = _sentences(_read_tags(german)["DESCRIPTION"], whole) if german.is_file() else []
    first_group = 0 if len(translations) == len(sentences) else len(sentences)
    for lang, path, texts, first in (("en", english, sentences, 0), ("de", german, translations, first_group)):
        for group, text in enumerate(texts, start=first):
            builder.add_sentence(key, SourceLocation(path), lang, text, group)


def _sentences(description: str, whole: bool) -> list[str]:
    """Split a description; as a whole, it is one sentence whose ';' are tokens for every tokenisation."""
    if whole:
        text = " ".join(description.replace(";", " ; ").split())
        return [text] if text.strip("; ") else []
    return [text.strip() for text in description.split(";") if text.strip()]


def _read_tags(path: Path) -> dict[str, str]:
    data = read_bytes(path)
    declared = ENCODING.match(data)
    try:
        text = data.decode(declared[1].decode() if declared else "iso-8859-1")
    except (LookupError, UnicodeDecodeError) as error:
        raise CollectionError(
            f"{path}: cannot be read in the encoding it declares ({error}); save it as ISO-8859-1"
        ) from None
    tags = {tag: html.unescape(value).strip() for tag, value in TAG.findall(text)}
    if lacking := {"DESCRIPTION", "IMAGE"} - tags.keys():
        raise CollectionError(f"{path}: no <{min(lacking)}> found; expected an annotation of IAPR TC-12")
    return tags
