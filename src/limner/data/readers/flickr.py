"""Flickr8k (Hodosh et al., 2013), Flickr30k (Young et al., 2014), Flickr30k Entities (Plummer et al., 2015), Multi30k.

Flickr30k Entities has phrases that name entities, and boxes of the entities. Corpora that describe the same images in
other languages in the form of Flickr8k are read too, such as Flickr8k-CN (Li et al., 2016). Multi30k (Elliott et al.,
2016) has images of Flickr30k with sentences in English, German, French and Czech.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from limner.data.examples import Phrase, Region
from limner.data.readers.corpus_files import (
    ImageFolder,
    ReaderOptions,
    SplitLists,
    assign_split,
    find_files,
    parse_json_line,
    read_lines,
    require_field,
)
from limner.data.readers.item_builder import ItemBuilder, SourceLocation, image_key
from limner.data.readers.values import Box, ImageScale, fit_box, group_in, name_in
from limner.errors import CollectionError, MediaError
from limner.files import read_bytes
from limner.media.image import image_size

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

    Options: `images` and `splits`, if not in the usual folders; `lang`, by default the language that a line is tagged
    with, or English.

    Raises:
        CollectionError: a file is missing, ambiguous or malformed.
    """
    path, *further = find_files(source, TOKEN_FILES, "file of sentences")
    if further:
        names = f"{path.name}, {further[0].name}"
        raise CollectionError(f"{source}: several files of sentences ({names}); specify one of them as the source")
    images, splits = ImageFolder.from_corpus(source, options, builder), SplitLists.from_corpus(source, options, builder)
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
    number = group_in(match["index"], "number of the sentence", location)
    return match["name"], match["tag"] or "en", number, match["text"]


ANNOTATION_FILES = ("Annotations/*.xml", "*.xml")
SENTENCE_FOLDERS = ("../Sentences", ".")
"""Folders of the sentences, relative to the folder of the annotations."""
JSON_SUFFIXES = (".jsonl", ".jsonl.gz")
TAGGED_PHRASE = re.compile(r"\[/EN#(\d+)((?:/[^\s/\]]+)*)\s+([^\]]+)\]")
"""Phrase in a sentence: `[/EN#entity/type/type words]`."""


class _AnnotatedSentence(NamedTuple):
    text: str
    phrases: tuple[Phrase, ...]


class _AnnotatedImage(NamedTuple):
    """One image of the corpus, with boxes in pixels of `size`."""

    name: str
    split: str | None
    size: tuple[int, int]
    boxes: dict[str, list[Box]]
    sentences: list[_AnnotatedSentence]
    location: SourceLocation


def read_flickr30k_entities(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read Flickr30k Entities in its original form or as JSON lines.

    The original form has `Annotations/NAME.xml` (boxes by entity) and `Sentences/NAME.txt` (one sentence a line, with
    phrases marked as `[/EN#entity/type words]`), or both in one folder. In the form of JSON lines, each line is an
    image with `image`, `split`, `width`, `height`, `boxes` (lists of left, top, width, height by entity) and
    `sentences` (`text`, and `phrases` with `entity`, `types`, `first`, `text`).

    Boxes are scaled to the stored image. Every box makes one region for each distinct phrase that names its entity.
    The item id is the name of the image file without suffix. Every sentence has a group of its own.

    Source: folder of the corpus, or a file that ends in `.jsonl` or `.jsonl.gz`. Options: `images`, if not below
    `source`; `splits`, lists of images, where images in no list are skipped; `split` without lists. By default the
    split is named in the JSON line, or in lists in the source.
    """
    as_json = source.name.endswith(JSON_SUFFIXES)
    images = ImageFolder.from_corpus(source, options, builder)
    from_lists = options.splits is not None or not (as_json or options.split)
    splits = SplitLists.from_corpus(source, options, builder) if from_lists else None
    for annotated in _read_json_lines(source) if as_json else _read_original(source):
        name, location = annotated.name, annotated.location
        image = images.find_flickr(name)
        if image is None:
            builder.skip("images that are missing (with their sentences and boxes)", name, location)
            continue
        key = builder.key(image.name, location)
        if splits:
            split = splits.split_of(key) or splits.split_of(image_key(name))
        else:
            split = assign_split(key, options) if options.split else annotated.split
        if split is None:
            builder.skip("images in none of the lists of splits", name, location)
            continue
        _add_image(key, split, image, annotated, builder)


def _add_image(key: str, split: str, image: Path, annotated: _AnnotatedImage, builder: ItemBuilder) -> None:
    location = annotated.location
    try:
        scale = ImageScale(annotated.size, image_size(image))
    except MediaError as error:
        builder.skip("images that cannot be read (with their sentences and boxes)", str(error), location)
        return
    builder.add_item(key, location, split=split, image=image)
    phrases: dict[str, list[Phrase]] = {}
    for group, sentence in enumerate(annotated.sentences):
        builder.add_sentence(key, location, "en", sentence.text, group, sentence.phrases)
        for phrase in sentence.phrases:
            phrases.setdefault(phrase.entity, []).append(phrase)
    for entity, boxes in annotated.boxes.items():
        for box in boxes:
            name = f"{key}: entity {entity}"
            if entity not in phrases:
                builder.skip("boxes of entities that no phrase names", name, location)
            elif fitted := fit_box(box, scale, name, location, builder):
                for phrase in phrases[entity]:
                    builder.add_region(key, Region(fitted, phrase.text, entity, phrase.types))


def _read_json_lines(path: Path) -> Iterator[_AnnotatedImage]:
    for number, line in enumerate(read_lines(path), start=1):
        location = SourceLocation(path, number)
        entry = parse_json_line(line, location)
        boxes = require_field(entry, "boxes", dict, location)
        sentences = require_field(entry, "sentences", list, location)
        yield _AnnotatedImage(
            require_field(entry, "image", str, location),
            require_field(entry, "split", str, location),
            (_positive(entry, "width", location), _positive(entry, "height", location)),
            {
                entity: [_box_of_list(box, location) for box in require_field(boxes, entity, list, location)]
                for entity in boxes
            },
            [_sentence_of_json(sentence, location) for sentence in sentences],
            location,
        )


def _positive(entry: Any, key: str, location: SourceLocation) -> int:  # noqa: ANN401 (any JSON value)
    value: int = require_field(entry, key, int, location)
    if value < 1:
        raise CollectionError(f"{location}: '{key}' is {value}; expected a positive number of pixels")
    return value


def _box_of_list(values: Any, location: SourceLocation) -> Box:  # noqa: ANN401 (any JSON value)
    try:
        left, top, width, height = (float(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        left = top = width = height = math.nan
    if not all(map(math.isfinite, (left, top, width, height))):
        raise CollectionError(f"{location}: box {values!r}; expected [left, top, width, height]")
    return left, top, width, height


def _sentence_of_json(entry: Any, location: SourceLocation) -> _AnnotatedSentence:  # noqa: ANN401 (any JSON value)
    phrases = [
        Phrase(
            require_field(phrase, "first", int, location),
            " ".join(require_field(phrase, "text", str, location).split()),
            require_field(phrase, "entity", str, location),
            tuple(name_in(value, "types", location) for value in require_field(phrase, "types", list, location)),
        )
        for phrase in require_field(entry, "phrases", list, location)
    ]
    return _AnnotatedSentence(require_field(entry, "text", str, location), tuple(phrases))


def _read_original(source: Path) -> Iterator[_AnnotatedImage]:
    for path in find_files(source, ANNOTATION_FILES, "annotations"):
        candidates = [path.parent / folder / f"{path.stem}.txt" for folder in SENTENCE_FOLDERS]
        sentences = next((candidate for candidate in candidates if candidate.is_file()), None)
        if sentences is None:
            raise CollectionError(f"{candidates[0]}: does not exist; expected the sentences of {path}")
        try:
            root = ElementTree.fromstring(read_bytes(path))
        except ElementTree.ParseError as error:
            raise CollectionError(f"{path}: not valid XML: {error}; restore the file from the corpus") from None
        location = SourceLocation(path)
        boxes: dict[str, list[Box]] = {}
        for annotated in root.iter("object"):
            if (corners := annotated.find("bndbox")) is not None:
                left, top, right, bottom = (_number(corners, name, path) for name in ("xmin", "ymin", "xmax", "ymax"))
                for entity in annotated.findall("name"):
                    boxes.setdefault((entity.text or "").strip(), []).append((left, top, right - left, bottom - top))
        size = (int(_number(root, "size/width", path, 1)), int(_number(root, "size/height", path, 1)))
        lines = [parse_tagged_sentence(line) for line in read_lines(sentences) if line.strip()]
        yield _AnnotatedImage(root.findtext("filename") or path.stem, None, size, boxes, lines, location)


def _number(element: ElementTree.Element, name: str, path: Path, least: float = -math.inf) -> float:
    text = (element.findtext(name) or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        what = "a number" if least < 0 else "a positive number of pixels"
        raise CollectionError(f"{path}: <{name}> is '{text}'; expected {what}")
    return value


def parse_tagged_sentence(line: str) -> _AnnotatedSentence:
    """Parse a sentence with phrases marked as `[/EN#entity/type/type words]`.

    Example: `[/EN#1/people A man] rides .` is 'A man rides .' with the phrase 'A man' at token 0.
    """
    text, end = "", 0
    phrases = []
    for match in TAGGED_PHRASE.finditer(line):
        text += line[end : match.start()]
        words = " ".join(match[3].split())
        types = tuple(match[2].split("/")[1:])
        phrases.append(Phrase(len(text.split()), words, match[1], types))
        text, end = text + words, match.end()
    return _AnnotatedSentence(" ".join((text + line[end:]).split()), tuple(phrases))


LANGUAGES = ("en", "de", "fr", "cs")
TEXT_NAME = re.compile(rf"(?P<split>\w+?)(?:\.(?P<number>[1-9]))?\.(?P<lang>{'|'.join(LANGUAGES)})(?:\.gz)?")
IMAGE_LISTS = ("{split}.images.txt", "image_splits/{split}.txt", "../image_splits/{split}.txt")
SPLIT_NAMES = {"test_2016": "test", "test_2016_flickr": "test"}  # names of the same test set in task 2 and task 1


class _TaskSplit(NamedTuple):
    """Files of one split of one task."""

    split: str
    images: Path
    texts: list[tuple[Path, str, int | None]]  # file, language, number of the description (task 2)


def read_multi30k(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read task 1 (`SPLIT.LANG`, translations) and task 2 (`SPLIT.K.LANG`, independent descriptions).

    The sentences of one line of task 1 share a group; each description of task 2 has a group of its own. Item ids are
    image names, so that both tasks have the same items.

    Source: folder with the files of a task (plain or `.gz`) and its image lists, or with `task1` and `task2`. Options:
    `images`, a folder of images of Flickr30k or Flickr8k; without it, and for images that are missing there, items have
    sentences only. `splits`, lists that replace the splits of Multi30k; images in none of them are skipped.

    Raises:
        CollectionError: a file is missing or malformed, or files of one split differ in length.
    """
    images = ImageFolder(options.images, builder) if options.images else None
    splits = SplitLists.from_corpus(source, options, builder) if options.splits else None
    added: set[tuple[str, str]] = set()  # both tasks list the same images; missing images are counted once
    for part in _find_files(source):
        names = [name.strip().partition("#")[0] for name in read_lines(part.images)]
        keys = [builder.key(name, SourceLocation(part.images, number)) for number, name in enumerate(names, start=1)]
        for number, (name, key) in enumerate(zip(names, keys, strict=True), start=1):
            if (key, part.split) not in added:
                added.add((key, part.split))
                _add_item(name, part.split, SourceLocation(part.images, number), images, splits, builder)
        for path, lang, description in part.texts:
            lines = read_lines(path)
            _require_same_length(path, len(lines), part.images, len(names))
            counts: Counter[str] = Counter()  # number of lines of each image; each line is a group of its own
            for number, (key, text) in enumerate(zip(keys, lines, strict=True), start=1):
                if key in builder:
                    group = counts[key] if description is None else 10 * description + LANGUAGES.index(lang)
                    builder.add_sentence(key, SourceLocation(path, number), lang, text, group)
                    counts[key] += 1


def _add_item(
    name: str,
    split: str,
    location: SourceLocation,
    images: ImageFolder | None,
    splits: SplitLists | None,
    builder: ItemBuilder,
) -> None:
    image = images.find_flickr(name) if images else None
    if splits:
        listed = splits.split_of(image_key(name)) or (splits.split_of(image_key(image.name)) if image else None)
        if listed is None:
            builder.skip("images in none of the lists of splits", name, location)
            return
        split = listed
    if images and image is None:
        builder.skip("images that are missing (their sentences are kept as text)", name, location)
    builder.add_item(image_key(name), location, split=split, image=image)


def _find_files(source: Path) -> list[_TaskSplit]:
    """Splits in a folder, or in its subfolders `task1` and `task2`, training split first."""
    folders = [source, *(source / name for name in ("raw", "task1", "task1/raw", "task2", "task2/raw"))]
    parts: dict[tuple[Path, str], _TaskSplit] = {}
    for folder in folders:
        for path in sorted(folder.glob("*")):
            if match := TEXT_NAME.fullmatch(path.name):
                name = match["split"]
                if (folder, name) not in parts:
                    images = _image_list(folder, name)
                    parts[folder, name] = _TaskSplit(SPLIT_NAMES.get(name, name), images, [])
                number = int(match["number"]) if match["number"] else None
                parts[folder, name].texts.append((path, match["lang"], number))
    if not parts:
        raise CollectionError(f"{source}: no files like train.en.gz (task 1) or train.1.en.gz (task 2)")
    return sorted(parts.values(), key=lambda part: ("train", "val", part.split).index(part.split))


def _image_list(folder: Path, split: str) -> Path:
    candidates = [folder / pattern.format(split=split) for pattern in IMAGE_LISTS]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise CollectionError(
            f"{candidates[0]}: does not exist; expected the image name of each line; import sentence pairs without "
            "images as a table, with 'limner import csv'"
        )
    return path


def _require_same_length(path: Path, lines: int, other_path: Path, other_lines: int) -> None:
    if lines != other_lines:
        (short, end), (long, last) = sorted([(path, lines), (other_path, other_lines)], key=lambda pair: pair[1])
        raise CollectionError(
            f"{SourceLocation(short, end)}: this file ends here, but {long} goes on to line {last}; "
            "expected files with the same number of lines"
        )
