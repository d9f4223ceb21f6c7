"""COCO captions (Chen et al., 2015); Karpathy and Li's (2015) splits of COCO, Flickr8k and Flickr30k."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from limner.data.readers.corpus_files import (
    ImageFolder,
    ReaderOptions,
    assign_split,
    find_files,
    read_json,
    require_field,
)
from limner.data.readers.item_builder import ItemBuilder, SourceLocation
from limner.data.readers.values import sentences_in
from limner.errors import CollectionError

CAPTION_FILES = ("annotations/captions_*.json", "captions_*.json")
KARPATHY_FILES = ("dataset_*.json", "dataset.json")
SPLIT_OF_FILE = re.compile(r"captions_(train|val|test)?")
SPLIT_NAMES = {"restval": "train"}  # images of COCO's validation set that these splits use for training


def read_coco(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read `captions_*.json`: `images` (`id`, `file_name`) and `annotations` (`image_id`, `caption`).

    Item ids are image names, as in Karpathy's files, and each caption has a group of its own.

    Options: `images`, if not below `source`; `split`, if it is not part of the file name; `lang`, by default English.
    """
    image_folder = ImageFolder.of(source, options, builder)
    for path in find_files(source, CAPTION_FILES, "captions"):
        match = SPLIT_OF_FILE.match(path.name)
        file_split = (match and match[1]) or "train"
        contents = read_json(path)
        keys: dict[int, str] = {}
        for number, image in enumerate(require_field(contents, "images", list, SourceLocation(path))):
            location = SourceLocation(path, f"images[{number}]")
            name = require_field(image, "file_name", str, location)
            image_id = require_field(image, "id", int, location)
            key = builder.key(name, location)
            if keys.setdefault(image_id, key) != key:
                raise CollectionError(
                    f"{location}: the id {image_id} of '{name}' is that of '{keys[image_id]}' as well; give every "
                    "image of the file an id of its own, as captions name their image by it"
                )
            if path_of_image := image_folder.find(name):
                split = assign_split(key, options) if options.split else file_split
                builder.add_item(key, location, split=split, image=path_of_image)
            else:
                builder.skip("images that are missing", name, location)
        captions: dict[int | str, tuple[int, str]] = {}  # image and text by id
        for number, annotation in enumerate(require_field(contents, "annotations", list, SourceLocation(path))):
            location = SourceLocation(path, f"annotations[{number}]")
            image_id = require_field(annotation, "image_id", int, location)
            if not isinstance(annotation, dict) or "caption" not in annotation:
                raise CollectionError(f"{location}: 'caption' is missing; expected a text")
            texts = sentences_in(annotation["caption"], "caption", location)
            text = " ".join(texts)
            key_of_image = keys.get(image_id)
            if annotation.get("id") is not None and _is_repeated(
                annotation["id"], (image_id, text), captions, location
            ):
                builder.skip("captions that are in the file twice, with the same id", text, location)
            elif key_of_image is None:
                builder.skip("captions of images that the file does not list", str(annotation["image_id"]), location)
            elif key_of_image in builder:
                builder.add_sentences(key_of_image, location, options.lang or "en", texts or [""])
            else:
                builder.skip("sentences whose image is missing", key_of_image, location)


def _is_repeated(
    id: Any,  # noqa: ANN401 (any JSON value)
    contents: tuple[int, str],
    known: dict[int | str, tuple[int, str]],
    location: SourceLocation,
) -> bool:
    """Whether an annotation occurred before; CollectionError if its id has another caption or image there."""
    if not isinstance(id, int | str):
        raise CollectionError(f"{location}: 'id' is {id!r}; expected a number or a text")
    if id not in known:
        known[id] = contents
        return False
    if known[id] != contents:
        raise CollectionError(
            f"{location}: the id {id} of the caption '{contents[1]}' is that of '{known[id][1]}' as well; give every "
            "caption of the file an id of its own"
        )
    return True


def read_karpathy(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read `dataset_*.json`: `images` with `filename`, `split` and `sentences`, of which `raw` is read.

    The split `restval` becomes `train`. Files of COCO have the folder of each image as well, `filepath`.

    Options: `images`, if not below `source`; `lang`, by default English.
    """
    image_folder = ImageFolder.of(source, options, builder)
    for path in find_files(source, KARPATHY_FILES, "Karpathy splits"):
        for number, image in enumerate(require_field(read_json(path), "images", list, SourceLocation(path))):
            location = SourceLocation(path, f"images[{number}]")
            name, split = require_field(image, "filename", str, location), require_field(image, "split", str, location)
            sentences = require_field(image, "sentences", list, location)
            if image.get("filepath"):
                name = f"{require_field(image, 'filepath', str, location)}/{name}"
            key, path_of_image = builder.key(name, location), image_folder.find(name)
            if path_of_image is None:
                builder.skip("images that are missing", name, location)
                continue
            builder.add_item(key, location, split=SPLIT_NAMES.get(split, split), image=path_of_image)
            texts = sentences_in(sentences, "sentences", location)
            builder.add_sentences(key, location, options.lang or "en", texts)
