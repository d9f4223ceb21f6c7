"""Corpora in JSON: COCO, Karpathy's splits and Visual Genome.

COCO captions (Chen et al., 2015); Karpathy and Li's (2015) splits of COCO, Flickr8k and Flickr30k; Visual Genome
(Krishna et al., 2017), images with described regions.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from limner.data.examples import Region
from limner.data.readers.corpus_files import (
    ImageFolder,
    ReaderOptions,
    SplitLists,
    assign_split,
    find_files,
    read_json,
    require_field,
)
from limner.data.readers.item_builder import ItemBuilder, SourceLocation
from limner.data.readers.values import ImageScale, fit_box, sentences_in
from limner.errors import CollectionError, MediaError
from limner.files import is_file
from limner.media.image import image_size

CAPTION_FILES = ("annotations/captions_*.json", "captions_*.json")
KARPATHY_FILES = ("dataset_*.json", "dataset.json")
SPLIT_OF_FILE = re.compile(r"captions_(train|val|test)?")
SPLIT_NAMES = {"restval": "train"}  # images of COCO's validation set that these splits use for training


def read_coco(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read `captions_*.json`: `images` (`id`, `file_name`) and `annotations` (`image_id`, `caption`).

    Item ids are image names, as in Karpathy's files, and each caption has a group of its own.

    Options: `images`, if not below `source`; `split`, if it is not part of the file name; `lang`, by default English.
    """
    image_folder = ImageFolder.from_corpus(source, options, builder)
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
                    f"{location}: the id {image_id} of '{name}' is also the id of '{keys[image_id]}'; give every "
                    "image of the file an id of its own, as captions name their image by it"
                )
            if path_of_image := image_folder.find(name):
                split = assign_split(key, options) if options.split else file_split
                builder.add_item(key, location, split=split, image=path_of_image)
            else:
                builder.skip("images that are missing", name, location)
        for number, annotation in enumerate(require_field(contents, "annotations", list, SourceLocation(path))):
            location = SourceLocation(path, f"annotations[{number}]")
            image_id = require_field(annotation, "image_id", int, location)
            if not isinstance(annotation, dict) or "caption" not in annotation:
                raise CollectionError(f"{location}: 'caption' is missing; expected a text")
            texts = sentences_in(annotation["caption"], "caption", location)
            key_of_image = keys.get(image_id)
            if key_of_image is None:
                builder.skip("captions of images that the file does not list", str(image_id), location)
            elif key_of_image in builder:
                builder.add_sentences(key_of_image, location, options.lang or "en", texts or [""])
            else:
                builder.skip("sentences whose image is missing", key_of_image, location)


def read_karpathy(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read `dataset_*.json`: `images` with `filename`, `split` and the `raw` text of `sentences`.

    The split `restval` becomes `train`. Files of COCO have the folder of each image as well, `filepath`.

    Options: `images`, if not below `source`; `lang`, by default English.
    """
    image_folder = ImageFolder.from_corpus(source, options, builder)
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


REGION_FILES = ("region_descriptions.json", "*regions.json", "*region_descriptions*.json")
IMAGE_DATA = "image_data.json"


def read_visual_genome(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read `region_descriptions.json`: a list of images with `id` and `regions`.

    A region has `x`, `y`, `width`, `height` and `phrase`. A file with the object of a single image is read as well.
    Images are named by their ids (`1.jpg`). Boxes are in pixels of the original image, whose size is read from
    `image_data.json` beside the file of regions if it exists; without it, the images must have their original size.

    Options: `images`, if not below `source`; `splits`, lists of images; images in none of them are skipped; `split`
    without lists, by default `train`.
    """
    images = ImageFolder.from_corpus(source, options, builder)
    splits = SplitLists.from_corpus(source, options, builder) if options.splits else None
    for path in find_files(source, REGION_FILES, "file of regions"):
        sizes = _original_sizes(path.with_name(IMAGE_DATA))
        contents = read_json(path)
        entries = [contents] if isinstance(contents, dict) else contents
        if not isinstance(entries, list):
            raise CollectionError(f"{path}: expected a list of images with 'id' and 'regions'")
        for number, entry in enumerate(entries):
            location = SourceLocation(path, f"[{number}]")
            name = str(require_field(entry, "id", int, location))
            split = splits.split_of(name) if splits else assign_split(name, options)
            image = images.find(name)
            if split is None:
                builder.skip("images in none of the lists of splits", name, location)
            elif image is None:
                builder.skip("images that are missing (with their regions)", name, location)
            else:
                _add_image(builder.key(name, location), split, image, sizes.get(name), entry, location, builder)


def _add_image(
    key: str,
    split: str,
    image: Path,
    original: tuple[int, int] | None,
    entry: Any,  # noqa: ANN401 (any JSON value)
    location: SourceLocation,
    builder: ItemBuilder,
) -> None:
    try:
        stored = image_size(image)
    except MediaError as error:
        builder.skip("images that cannot be read (with their regions)", str(error), location)
        return
    builder.add_item(key, location, split=split, image=image)
    scale = ImageScale(original or stored, stored)
    for number, region in enumerate(require_field(entry, "regions", list, location)):
        where = SourceLocation(location.path, f"{location.position}.regions[{number}]")
        left, top, width, height = (require_number(region, name, where) for name in ("x", "y", "width", "height"))
        text = " ".join(" ".join(sentences_in(region.get("phrase"), "phrase", where)).split())
        name = f"{key}: {text}"
        if not text:
            builder.skip("regions without a description", name, where)
        elif box := fit_box((left, top, width, height), scale, name, where, builder):
            builder.add_region(key, Region(box, text))


def require_number(entry: Any, key: str, location: SourceLocation) -> float:  # noqa: ANN401 (any JSON value)
    """Return a number of a JSON object; CollectionError if it is missing or of another type."""
    value = entry.get(key) if isinstance(entry, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CollectionError(f"{location}: '{key}' is {value!r}; expected a number")
    return float(value)


def _original_sizes(path: Path) -> dict[str, tuple[int, int]]:
    """Width and height of the original images by id, from `image_data.json` if it exists."""
    if not is_file(path):
        return {}
    sizes = {}
    for number, entry in enumerate(read_json(path)):
        location = SourceLocation(path, f"[{number}]")
        key = "image_id" if isinstance(entry, dict) and "image_id" in entry else "id"
        width, height = (require_field(entry, name, int, location) for name in ("width", "height"))
        sizes[str(require_field(entry, key, int, location))] = (width, height)
    return sizes
