"""Features of image regions: pooled vectors of a few boxes and of the whole image, as one grid.

After Huang et al. (2016), "Attention-based Multimodal Neural Machine Translation": four detected regions in ascending
order of size, followed by the whole image, each one a visual prefix token of the source sentence.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.data.readers.corpus_files import read_json, require_field
from limner.data.readers.item_builder import SourceLocation, image_key, may_be_same_image
from limner.errors import CollectionError, FeatureError, MediaError, shortened
from limner.features.encoders.base import Backbone, EncoderInput
from limner.features.preprocessing import Preprocessing, preprocess
from limner.features.spec import FeatureArray, FeatureKind, FeatureSpec, RegionRows
from limner.media.image import ImageInput, open_image
from limner.media.modality import IMAGE

if TYPE_CHECKING:
    from limner.data.collection import Collection

logger = logging.getLogger(__name__)

DEFAULT_REGIONS = 4
"""Number of regions in Huang et al. (2016)."""
OF_COLLECTION = "collection"
"""Argument in place of a file of boxes: the regions stored with the collection's items."""


class Box(NamedTuple):
    """A part of an image, in pixels of the upright image, possibly with the confidence of a detector as its score."""

    left: float
    top: float
    width: float
    height: float
    score: float | None = None

    def __str__(self) -> str:
        return f"[{self.left:g}, {self.top:g}, {self.width:g}, {self.height:g}]"


class Crop(NamedTuple):
    """A box in whole pixels within the image, as `PIL.Image.crop` takes it: right and bottom are outside."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def area(self) -> int:
        """Number of pixels."""
        return (self.right - self.left) * (self.bottom - self.top)


Boxes = Mapping[str, Sequence[Box]]
"""Boxes by the id of an item or the name of its image."""


def with_regions(
    backbone: Backbone, collection: Collection, boxes: Path | str, *, count: int = DEFAULT_REGIONS, strict: bool = False
) -> RegionBackbone:
    """Make a backbone of the regions of each image and the whole image.

    Args:
        backbone: encoder of one pooled vector per image.
        collection: collection of the images. Items with the same image share its boxes.
        boxes: file in a format of `read_boxes`, or 'collection' for the regions stored with the items.
        count: maximum number of regions per image, see `select_regions`.
        strict: refuse boxes without width or height instead of skipping them.

    Raises:
        FeatureError: the backbone computes other features than one pooled vector per image, or no image has a box.
        CollectionError: the file cannot be read, or a name in it is ambiguous.
        SettingsError: `count` is out of range.
    """
    of_collection = boxes == OF_COLLECTION
    where = str(collection.path if of_collection else boxes)
    boxes_by_name = _boxes_of_items(collection) if of_collection else read_boxes(Path(boxes))
    valid = _drop_empty(boxes_by_name, where, strict)
    rows = RegionRows.parse({"count": count, "boxes_sha256": _digest(valid)}, "regions")
    return RegionBackbone(backbone, rows, _boxes_by_image(collection, valid, where))


class RegionBackbone:
    """Pooled features of regions and of the whole image, as a grid (count + 1, D).

    The rows are the regions in ascending order of size, then the whole image. An image with fewer regions has zero
    rows between the two: **a zero row is not a region**, and a model has to mask it. The whole image is preprocessed
    as by the backbone itself, so that the last row equals the backbone's own features. A region is resized to a
    square whatever its aspect ratio, following Girshick et al. (2014), section 2.1, since a centre crop would change
    the box.
    """

    modality = IMAGE

    def __init__(self, backbone: Backbone, rows: RegionRows, boxes: Mapping[Path, Sequence[Box]]) -> None:
        """Combine an encoder of pooled vectors with boxes by the path of the image; FeatureError for other encoders."""
        spec = _pooled_spec(backbone)
        self._backbone, self._boxes, self._count = backbone, boxes, rows.count
        self._preprocessing = Preprocessing.parse(spec.preprocessing, f"features '{spec.name}'").model_copy(
            update={"resize": "squash"}
        )
        self.specs: tuple[FeatureSpec, ...] = (_region_spec(spec, rows),)

    def read(self, source: ImageInput) -> NDArray[np.void]:
        """Open an image and crop its regions.

        Returns:
            One record: `pixels` (count + 1, crops, H, W, 3), and `present` (count + 1,), false for a zero row.

        Raises:
            MediaError: the image cannot be read, or a box lies outside it.
        """
        whole = self._backbone.read(source)
        shape = (self._count + 1, *whole.shape)
        record = np.zeros((), dtype=[("pixels", whole.dtype, shape), ("present", np.bool_, shape[:1])])
        record["pixels"][-1], record["present"][-1] = whole, True
        if isinstance(source, Path) and (boxes := self._boxes.get(source)):
            image = open_image(source)
            try:
                crops = select_regions(boxes, image.size, self._count)
            except MediaError as error:
                raise MediaError(f"{source}: {error}") from None
            for row, crop in enumerate(crops):
                record["pixels"][row] = preprocess(image.crop(crop), self._preprocessing)
                record["present"][row] = True
        return record

    def __call__(self, inputs: NDArray[np.void]) -> dict[FeatureKind, FeatureArray]:
        """Compute the grids (B, count + 1, D) of records of `read`, (B,)."""
        present = inputs["present"]  # (B, count + 1)
        pixels, batch_size = inputs["pixels"][present], len(inputs)
        # Padding to whole batches keeps the batch size constant, whatever the number of regions.
        padded = np.concatenate([pixels, np.repeat(pixels[-1:], -len(pixels) % batch_size, axis=0)])
        batches = (padded[start : start + batch_size] for start in range(0, len(padded), batch_size))
        vectors = np.concatenate([self._backbone(batch)["pooled"] for batch in batches])
        grid = np.zeros((*present.shape, vectors.shape[1]), dtype=vectors.dtype)
        grid[present] = vectors[: len(pixels)]
        return {"grid": grid}


class WholeImageBackbone:
    """Features of new images for a model trained on regions: only the row of the whole image, as boxes are unknown.

    Images are preprocessed as by the backbone itself, so that it can be combined with others.
    """

    modality = IMAGE

    def __init__(self, backbone: Backbone, rows: RegionRows) -> None:
        """Combine an encoder of pooled vectors with the layout of the regions; FeatureError for other encoders."""
        self._backbone, self._count = backbone, rows.count
        self.specs: tuple[FeatureSpec, ...] = (_region_spec(_pooled_spec(backbone), rows),)

    def read(self, source: ImageInput) -> EncoderInput:
        return self._backbone.read(source)

    def __call__(self, inputs: EncoderInput) -> dict[FeatureKind, FeatureArray]:
        vectors = self._backbone(inputs)["pooled"]
        return {"grid": np.pad(vectors[:, None], ((0, 0), (self._count, 0), (0, 0)))}


def whole_image_spec(spec: FeatureSpec) -> FeatureSpec:
    """Specification of the last row of region features: pooled features of the whole image."""
    return spec.model_copy(update={"kind": "pooled", "shape": spec.shape[1:], "regions": None})


def _region_spec(whole: FeatureSpec, rows: RegionRows) -> FeatureSpec:
    shape = (rows.count + 1, *whole.shape)
    return whole.model_copy(update={"name": f"{whole.name}.regions", "kind": "grid", "shape": shape, "regions": rows})


def _pooled_spec(backbone: Backbone) -> FeatureSpec:
    spec = backbone.specs[0]
    if len(backbone.specs) > 1 or spec.kind != "pooled" or backbone.modality != IMAGE:
        kinds = " and ".join(f"'{spec.kind}'" for spec in backbone.specs)
        raise FeatureError(
            f"{spec.backbone}: expected a backbone with one pooled vector per image for features of regions, got "
            f"{kinds} of {backbone.modality.plural}; choose a network with kind 'pooled'"
        )
    return spec


def select_regions(boxes: Sequence[Box], size: tuple[int, int], count: int) -> list[Crop]:
    """Select regions by descending score, or by descending size where the boxes of an image have no scores.

    Parts outside the image are cut off; boxes that cover the same pixels count once.

    Returns:
        Regions in ascending order of size (Huang et al., 2016), regions of equal size from left to right.

    Raises:
        MediaError: a box lies outside the image.
    """
    scores: dict[Crop, float] = {}
    for box in boxes:
        crop = _clip(box, size)
        score = 0.0 if box.score is None else box.score
        scores[crop] = max(score, scores.get(crop, score))
    best = sorted(scores, key=lambda crop: (-scores[crop], -crop.area, crop))[:count]
    return sorted(best, key=lambda crop: (crop.area, crop))


def _clip(box: Box, size: tuple[int, int]) -> Crop:
    """Round a box outwards to whole pixels and cut it off at the edges of the image."""
    width, height = size
    left, top = max(0, math.floor(box.left)), max(0, math.floor(box.top))
    right, bottom = min(width, math.ceil(box.left + box.width)), min(height, math.ceil(box.top + box.height))
    if left >= right or top >= bottom:
        raise MediaError(
            f"the box {box} lies outside the image of {width} x {height} pixels; expected left, top, width and height "
            "in pixels of this file: scale the boxes to it, or remove the box"
        )
    return Crop(left, top, right, bottom)


def read_boxes(path: Path) -> dict[str, list[Box]]:
    """Read boxes by the id of an item or the name of its image.

    The file holds JSON, compressed with gzip if its name ends in `.gz`: an object, or a list of objects, which are
    either `{"image or id": [[left, top, width, height, score], ...], ...}`, where scores are optional, or objects of
    Visual Genome, `{"id": 1, "regions": [{"x": ..., "y": ..., "width": ..., "height": ...}, ...]}`.

    Raises:
        CollectionError: the file cannot be read, or an entry has another form.
    """
    boxes: dict[str, list[Box]] = {}
    contents = read_json(path)
    for number, entry in enumerate(contents if isinstance(contents, list) else [contents]):
        location = SourceLocation(path, f"[{number}]" if isinstance(contents, list) else "")
        if isinstance(entry, dict) and "id" in entry and "regions" in entry:
            entry = {str(entry["id"]): require_field(entry, "regions", list, location)}
        if not isinstance(entry, dict):
            got = shortened(json.dumps(entry))
            raise CollectionError(f"{location}: expected an object of images and their boxes, got {got}")
        for name in entry:
            values = require_field(entry, name, list, location)
            boxes.setdefault(name, []).extend(
                _box(value, name, number, location) for number, value in enumerate(values)
            )
    return boxes


def _box(values: Any, name: str, number: int, location: SourceLocation) -> Box:  # noqa: ANN401 (any JSON value)
    numbers: Any = [values.get(key) for key in ("x", "y", "width", "height")] if isinstance(values, dict) else values
    valid = isinstance(numbers, list) and len(numbers) in (4, 5)
    if not valid or not all(type(value) in (int, float) and math.isfinite(value) for value in numbers):
        raise CollectionError(
            f"{location}: box {number} of '{name}' is {shortened(json.dumps(values))}; expected [left, top, width, "
            "height] or [left, top, width, height, score] in pixels, or an object with x, y, width and height"
        )
    return Box(*map(float, numbers))


def _drop_empty(boxes: Boxes, where: str, strict: bool) -> dict[str, list[Box]]:
    """Drop boxes without width or height, which occur in the output of detectors and in annotations."""
    empty = [
        (name, box) for name, item_boxes in boxes.items() for box in item_boxes if box.width <= 0 or box.height <= 0
    ]
    if empty:
        name, box = empty[0]
        message = f"{where}: {len(empty)} boxes have no width or no height, the first {box} of '{name}'"
        if strict:
            raise CollectionError(f"{message}; correct them, or skip them by leaving out --strict")
        logger.warning("%s; they are skipped", message)
    return {name: [box for box in item_boxes if box.width > 0 and box.height > 0] for name, item_boxes in boxes.items()}


def _digest(boxes: Boxes) -> str:
    """Compute the SHA-256 of boxes, independent of their order and of the file format."""
    content = {name: sorted(json.dumps(box) for box in item_boxes) for name, item_boxes in boxes.items() if item_boxes}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _boxes_of_items(collection: Collection) -> Boxes:
    """Distinct boxes of each item: a box that several phrases describe is one region."""
    return {
        item.id: [Box(*box) for box in dict.fromkeys(region.box for region in item.regions)]
        for item in collection.items()
        if item.image
    }


def _boxes_by_image(collection: Collection, boxes: Boxes, where: str) -> dict[Path, list[Box]]:
    """Assign boxes to images; CollectionError for ambiguous names or partial scores, FeatureError for no image."""
    images = {item.id: item.image for item in collection.items() if item.image is not None}
    by_key: defaultdict[str, set[str]] = defaultdict(set)
    for image in images.values():
        by_key[image_key(image)].add(image)
    assigned: defaultdict[Path, list[Box]] = defaultdict(list)
    unknown = []
    for name, named_boxes in boxes.items():
        matches = (
            [images[name]]
            if name in images
            else sorted(i for i in by_key[image_key(name)] if may_be_same_image(i, name))
        )
        if len(matches) > 1:
            raise CollectionError(f"{where}: '{name}' matches both '{matches[0]}' and '{matches[1]}'; use item ids")
        if not matches:
            unknown.append(name)
        elif named_boxes:
            assigned[collection.path / matches[0]] += named_boxes
    if not assigned:
        expected, actual = (f" (such as '{next(iter(names))}')" if names else "" for names in (images, unknown))
        raise FeatureError(
            f"{where}: no box of an image in {collection.path}; expected the ids of items{expected} or the names of "
            f"their images, got other names{actual}"
        )
    for path, named_boxes in assigned.items():
        if len({box.score is None for box in named_boxes}) > 1:
            raise CollectionError(f"{where}: only some boxes of {path} have a score; give all of them a score, or none")
    if unknown:
        count = f"{len(unknown)} of {len(boxes)} names match no image in {collection.path}"
        logger.warning("%s: %s; the first: '%s'", where, count, unknown[0])
    return assigned
