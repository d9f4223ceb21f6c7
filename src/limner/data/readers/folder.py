"""Folders of images, videos or audio files with text files of sentences, folders of texts with a label, and IAPR TC-12.

IAPR TC-12 (Grubinger et al., 2006): travel photographs with descriptions of several sentences.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

from limner.data.readers.corpus_files import (
    SPLIT_ALIASES,
    ReaderOptions,
    SplitLists,
    assign_split,
    find_files,
    list_media_files,
    read_lines,
    read_text,
)
from limner.data.readers.item_builder import ItemBuilder, SourceLocation
from limner.errors import CollectionError
from limner.files import is_file, read_bytes
from limner.media.modality import Modality, find_modality

TEXT_SUFFIX = ".txt"
"""Suffix of the files of sentences, in lower or upper case."""
SPLIT_FOLDERS = ("train", "val", "dev", "test")


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
    media, others = list_media_files(source, modalities, f"specify a folder of {plural}", builder)
    texts = _texts(others)
    for path in media:
        relative = path.relative_to(source)
        id = relative.with_suffix("").as_posix()
        if (first_path := paths.setdefault(id, path)) != path:
            raise CollectionError(f"{path}: has the item id '{id}', like {first_path}; rename one of them")
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
    for path in others:
        if path.suffix.lower() != TEXT_SUFFIX:
            builder.tally.note("files of other kinds, which are not read", str(path))


def _texts(files: list[Path]) -> dict[str, Path]:
    """Return the files of sentences by their path without suffix."""
    texts: dict[str, Path] = {}
    for path in files:
        if path.suffix.lower() == TEXT_SUFFIX and (first_path := texts.setdefault(_without_suffix(path), path)) != path:
            raise CollectionError(f"{path}: has the same name as {first_path}; join the two files of sentences")
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
    any_text = False
    for path in sorted(source.glob("*/*.txt")) + sorted(source.glob("*/*/*.txt")):
        parts = path.relative_to(source).parts
        split = SPLIT_ALIASES.get(parts[0], parts[0]) if parts[0] in SPLIT_FOLDERS else None
        if (len(parts) == 3) != (split is not None):
            continue
        any_text, label = True, parts[-2]
        id, location = "/".join([*parts[:-1], path.stem]), SourceLocation(path)
        if label in UNLABELLED:
            builder.skip("texts without a label", id, location)
            continue
        builder.add_item(id, location, split=split or assign_split(id, options), label=label)
        builder.add_sentence(id, location, options.lang or "en", read_text(path).replace("<br />", " "), 0)
    if not any_text:
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
        names_found = ", ".join(path.name for path in paths) or "none"
        raise CollectionError(
            f"{source}: expected files NAME.LABEL of one name, such as rt-polarity.pos; found {names_found}"
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
    splits = SplitLists.from_corpus(source, options, builder)
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
