"""COCO captions (Chen et al., 2015); Karpathy and Li's (2015) splits of COCO, Flickr8k and Flickr30k."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from limner.data.readers.corpus_files import ImageFolder, Options, chosen_split, field, find_files, read_json
from limner.data.readers.item_builder import Gathering, SourceLocation

CAPTION_FILES = ("annotations/captions_*.json", "captions_*.json")
KARPATHY_FILES = ("dataset_*.json", "dataset.json")
SPLIT_OF_FILE = re.compile(r"captions_(train|val|test)?")
SPLIT_NAMES = {"restval": "train"}  # the rest of COCO's validation images: all who use these splits train on it


def read_coco(source: Path, options: Options, gathering: Gathering) -> None:
    """Read `captions_*.json`: `images` (`id`, `file_name`) and `annotations` (`image_id`, `caption`).

    Items are named by their pictures, as in Karpathy's files, and each caption is a group of its own.

    Args:
        source: the folder of the corpus, or one file of it.
        options: `images`, where they are not below `source`; `split`, where the file's name does not tell it;
            `lang`, English otherwise.
        gathering: gets the items, in the order of the files.
    """
    pictures = ImageFolder.of(source, options)
    for path in find_files(source, CAPTION_FILES, "captions"):
        match = SPLIT_OF_FILE.match(path.name)
        told_split = (match and match[1]) or "train"
        contents = read_json(path)
        keys: dict[int, str] = {}
        for number, image in enumerate(field(contents, "images", list, SourceLocation(path))):
            place = SourceLocation(path, f"images[{number}]")
            name = field(image, "file_name", str, place)
            key = keys[field(image, "id", int, place)] = gathering.key(name, place)
            if picture := pictures.find(name):
                split = chosen_split(key, options) if options.split else told_split
                gathering.item(key, place, split=split, image=picture)
            else:
                gathering.skip("pictures that are not there", name, place)
        groups: Counter[str] = Counter()
        for number, annotation in enumerate(field(contents, "annotations", list, SourceLocation(path))):
            place = SourceLocation(path, f"annotations[{number}]")
            told = keys.get(field(annotation, "image_id", int, place))
            text = field(annotation, "caption", str, place)
            if told is None:
                gathering.skip("captions of images the file does not list", str(annotation["image_id"]), place)
            elif told in gathering:
                gathering.sentence(told, place, options.lang or "en", text, groups[told])
                groups[told] += 1
            else:
                gathering.skip("sentences whose picture is not there", told, place)


def read_karpathy(source: Path, options: Options, gathering: Gathering) -> None:
    """Read `dataset_*.json`: `images` with `filename`, `split` and `sentences`, of which `raw` is kept.

    `restval` becomes `train`. COCO's files also tell the folder, `filepath`.

    Args:
        source: the folder of the corpus, or the file.
        options: `images`, where they are not below `source`; `lang`, English otherwise.
        gathering: gets the items, in the order of the file.
    """
    pictures = ImageFolder.of(source, options)
    for path in find_files(source, KARPATHY_FILES, "Karpathy splits"):
        for number, image in enumerate(field(read_json(path), "images", list, SourceLocation(path))):
            place = SourceLocation(path, f"images[{number}]")
            name, split = field(image, "filename", str, place), field(image, "split", str, place)
            sentences = field(image, "sentences", list, place)
            if folder := image.get("filepath"):
                name = f"{folder}/{name}"
            key, picture = gathering.key(name, place), pictures.find(name)
            if picture is None:
                gathering.skip("pictures that are not there", name, place)
                continue
            gathering.item(key, place, split=SPLIT_NAMES.get(split, split), image=picture)
            for group, sentence in enumerate(sentences):
                text = field(sentence, "raw", str, place)
                gathering.sentence(key, place, options.lang or "en", text, group)
