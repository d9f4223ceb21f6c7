"""Features of regions: pooled vectors of a few boxes cut from a picture, then of the whole picture, in one table.

After Huang et al. (2016), "Attention-based Multimodal Neural Machine Translation": four regions of a detector in
ascending order of size and the whole picture last, each one a token of the source sentence for the translation model.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.data.collection import Collection
from limner.data.readers.corpus_files import field, read_json, read_lines
from limner.data.readers.image_names import key_of, may_be_one
from limner.data.readers.item_builder import SourceLocation
from limner.errors import CollectionError, FeatureError, MediaError
from limner.features.encoders.base import Backbone
from limner.features.preprocessing import Preprocessing, preprocess
from limner.features.store import FeatureSpec, Kind, RegionRows, Values
from limner.media.image import ImageInput, open_image
from limner.media.modality import IMAGE

logger = logging.getLogger(__name__)

REGIONS = 4
"""As many as Huang et al. (2016) take."""
OF_COLLECTION = "collection"
"""In place of a file of boxes: the regions of the collection's own items."""


class Box(NamedTuple):
    """A part of a picture, in pixels of the picture as it is seen upright."""

    left: float
    top: float
    width: float
    height: float
    score: float | None = None
    """How sure a detector is of it."""

    def __str__(self) -> str:
        return f"[{self.left:g}, {self.top:g}, {self.width:g}, {self.height:g}]"


class Crop(NamedTuple):
    """The pixels of a box that lie in its picture, as Pillow cuts them."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def area(self) -> int:
        return (self.right - self.left) * (self.bottom - self.top)


Boxes = Mapping[str, Sequence[Box]]
"""By the id of an item or the name of its picture."""


def with_regions(
    backbone: Backbone, collection: Collection, boxes: Path | str, *, count: int = REGIONS, strict: bool = False
) -> RegionBackbone:
    """Let a network look at regions of each picture and at the whole, for `extract` to store.

    Args:
        backbone: gives one vector a picture.
        collection: whose pictures will be looked at. Items that share a picture share its boxes.
        boxes: a file, see `read_boxes`, or 'collection' for the regions of the collection's own items.
        count: regions of a picture at most, see `choose`.
        strict: refuse a box of no size instead of leaving it out.

    Raises:
        FeatureError: the backbone gives something else than one vector a picture; no picture has a box.
        CollectionError: the file cannot be read, or does not say which picture is meant.
        SettingsError: `count` is out of range.
    """
    own = boxes == OF_COLLECTION
    where = str(collection.path if own else boxes)
    found = _own_boxes(collection) if own else read_boxes(Path(boxes))
    sized = _with_size(found, where, strict)
    rows = RegionRows.parse({"count": count, "boxes_sha256": _digest(sized)}, "regions")
    return RegionBackbone(backbone, rows, _by_picture(collection, sized, where))


class RegionBackbone:
    """Looks at regions of a picture and then at the whole: a grid (count + 1, D) of the backbone's pooled vectors.

    The rows are the regions by size, the smallest first, and the whole picture last. A picture with fewer regions
    has zero rows between the two: **a zero row is no region**, and whoever reads the grid has to leave it out. The
    whole picture is prepared as the backbone prepares any, so the last row is the backbone's own vector. A region is
    squashed to the network's square whatever its proportions, as Girshick et al. (2014), section 2.1, warp them: to
    cut the middle out of a region would undo the box.
    """

    modality = IMAGE

    def __init__(self, backbone: Backbone, rows: RegionRows, boxes: Mapping[Path, Sequence[Box]]) -> None:
        """Prepare to look.

        Args:
            backbone: gives one vector a picture.
            rows: how many regions, and of which boxes.
            boxes: by the path of the picture; a picture that is not there has no regions.

        Raises:
            FeatureError: the backbone gives something else than one vector a picture.
        """
        spec = _vector_of(backbone)
        self._backbone, self._boxes, self._count = backbone, boxes, rows.count
        self._recipe = Preprocessing.parse(spec.preprocessing, f"features '{spec.name}'").model_copy(
            update={"resize": "squash"}
        )
        self.specs: tuple[FeatureSpec, ...] = (_region_spec(spec, rows),)

    def read(self, source: ImageInput) -> NDArray[np.void]:
        """Open a picture and cut its regions out.

        Returns:
            One record of `pixels` (count + 1, crops, H, W, 3), and `there` (count + 1,): false for a zero row.

        Raises:
            MediaError: the picture cannot be read, or one of its boxes has nothing of it.
        """
        whole = self._backbone.read(source)
        shape = (self._count + 1, *whole.shape)
        prepared = np.zeros((), dtype=[("pixels", whole.dtype, shape), ("there", np.bool_, shape[:1])])
        prepared["pixels"][-1], prepared["there"][-1] = whole, True
        if isinstance(source, Path) and (boxes := self._boxes.get(source)):
            picture = open_image(source)
            try:
                crops = choose(boxes, picture.size, self._count)
            except MediaError as error:
                raise MediaError(f"{source}: {error}") from None
            for row, crop in enumerate(crops):
                prepared["pixels"][row], prepared["there"][row] = preprocess(picture.crop(crop), self._recipe), True
        return prepared

    def __call__(self, prepared: NDArray[np.void]) -> dict[Kind, Values]:
        """Look at what `read` gave, stacked (B,): the grid (B, count + 1, D)."""
        there = prepared["there"]  # (B, count + 1)
        pixels, at_once = prepared["pixels"][there], len(prepared)
        # Filled up to whole batches: the same kernels run however many regions there are.
        filled = np.concatenate([pixels, np.repeat(pixels[-1:], -len(pixels) % at_once, axis=0)])
        batches = (filled[start : start + at_once] for start in range(0, len(filled), at_once))
        vectors = np.concatenate([self._backbone(batch)["pooled"] for batch in batches])
        grid = np.zeros((*there.shape, vectors.shape[1]), dtype=vectors.dtype)
        grid[there] = vectors[: len(pixels)]
        return {"grid": grid}


class WholeBackbone:
    """Looks at new pictures for a model that learned from regions: their boxes are unknown, so only the last row is.

    It reads pictures as the backbone does, and so may be joined with others that prepare them alike.
    """

    modality = IMAGE

    def __init__(self, backbone: Backbone, rows: RegionRows) -> None:
        """Prepare to look.

        Args:
            backbone: gives one vector a picture.
            rows: of the features the model learned from.
        """
        self._backbone, self._count = backbone, rows.count
        self.specs: tuple[FeatureSpec, ...] = (_region_spec(_vector_of(backbone), rows),)

    def read(self, source: ImageInput) -> NDArray[Any]:
        return self._backbone.read(source)

    def __call__(self, prepared: NDArray[Any]) -> dict[Kind, Values]:
        vectors = self._backbone(prepared)["pooled"]
        return {"grid": np.pad(vectors[:, None], ((0, 0), (self._count, 0), (0, 0)))}


def whole_spec(spec: FeatureSpec) -> FeatureSpec:
    """The features of the whole picture alone that the last row of features of regions is."""
    return spec.model_copy(update={"kind": "pooled", "shape": spec.shape[1:], "regions": None})


def _region_spec(whole: FeatureSpec, rows: RegionRows) -> FeatureSpec:
    shape = (rows.count + 1, *whole.shape)
    return whole.model_copy(update={"name": f"{whole.name}.regions", "kind": "grid", "shape": shape, "regions": rows})


def _vector_of(backbone: Backbone) -> FeatureSpec:
    spec = backbone.specs[0]
    if len(backbone.specs) > 1 or spec.kind != "pooled" or backbone.modality != IMAGE:
        gives = " and ".join(f"'{each.kind}'" for each in backbone.specs)
        raise FeatureError(
            f"{spec.backbone}: gives {gives} of {backbone.modality.plural}, and region features need one vector per "
            "region; choose a network that encodes images, with kind 'pooled'"
        )
    return spec


def choose(boxes: Sequence[Box], size: tuple[int, int], count: int) -> list[Crop]:
    """Choose regions: the ones of the highest score where boxes have scores, otherwise the largest.

    Args:
        boxes: of one picture, all with a score or none. What lies outside the picture is cut off.
        size: width and height of the picture in pixels.
        count: how many at most; of boxes that cover the same pixels one counts.

    Returns:
        The regions by size, the smallest first, as Huang et al. (2016) put them; equal ones from left to right.

    Raises:
        MediaError: a box has nothing of the picture.
    """
    scores: dict[Crop, float] = {}
    for box in boxes:
        crop = _clip(box, size)
        score = 0.0 if box.score is None else box.score
        scores[crop] = max(score, scores.get(crop, score))
    best = sorted(scores, key=lambda crop: (-scores[crop], -crop.area, crop))[:count]
    return sorted(best, key=lambda crop: (crop.area, crop))


def _clip(box: Box, size: tuple[int, int]) -> Crop:
    """Whole pixels that a box touches, within the picture."""
    width, height = size
    left, top = max(0, math.floor(box.left)), max(0, math.floor(box.top))
    right, bottom = min(width, math.ceil(box.left + box.width)), min(height, math.ceil(box.top + box.height))
    if left >= right or top >= bottom:
        raise MediaError(
            f"the box {box} lies outside this picture of {width} x {height} pixels; boxes are left, top, width and "
            "height in pixels of this very file: scale them to it, or take the box out"
        )
    return Crop(left, top, right, bottom)


def read_boxes(path: Path) -> dict[str, list[Box]]:
    """Read the boxes of many pictures.

    The file holds JSON, or one JSON object a line, with gzip where its name ends in `.gz`: objects
    `{"picture or id": [[left, top, width, height, score], …], …}`, whose scores may be left out, or ImageFeatures Genome's
    `{"id": 1, "regions": [{"x": …, "y": …, "width": …, "height": …}, …]}`, one or a list of them.

    Raises:
        CollectionError: it cannot be read, or an entry is something else; names the place.
    """
    boxes: dict[str, list[Box]] = {}
    for place, entry in _entries(path):
        if isinstance(entry, dict) and "id" in entry and "regions" in entry:
            entry = {str(entry["id"]): field(entry, "regions", list, place)}
        if not isinstance(entry, dict):
            raise CollectionError(f"{place}: expected an object of pictures and their boxes, found {_shown(entry)}")
        for name in entry:
            given = field(entry, name, list, place)
            boxes.setdefault(name, []).extend(_box(values, name, number, place) for number, values in enumerate(given))
    return boxes


def _entries(path: Path) -> Iterator[tuple[SourceLocation, Any]]:
    """The objects of a file that is one, is a list of some, or has one a line."""
    lines = [(number, line) for number, line in enumerate(read_lines(path), start=1) if line.strip()]
    try:
        one_a_line = len(lines) > 1 and isinstance(json.loads(lines[0][1]), dict)
    except json.JSONDecodeError:
        one_a_line = False
    if one_a_line:
        for number, line in lines:
            try:
                yield SourceLocation(path, number), json.loads(line)
            except json.JSONDecodeError as error:
                raise CollectionError(f"{SourceLocation(path, number)}: not valid JSON: {error.msg}") from None
        return
    contents = read_json(path)
    if isinstance(contents, list):
        yield from ((SourceLocation(path, f"[{number}]"), entry) for number, entry in enumerate(contents))
    else:
        yield SourceLocation(path), contents


def _box(values: Any, name: str, number: int, place: SourceLocation) -> Box:  # noqa: ANN401 (whatever JSON holds)
    numbers: Any = [values.get(key) for key in ("x", "y", "width", "height")] if isinstance(values, dict) else values
    fits = isinstance(numbers, list) and len(numbers) in (4, 5)
    if not fits or not all(type(each) in (int, float) and math.isfinite(each) for each in numbers):
        raise CollectionError(
            f"{place}: box {number} of '{name}' is {_shown(values)}; expected [left, top, width, height] or "
            "[left, top, width, height, score] in pixels, or an object with x, y, width and height"
        )
    return Box(*map(float, numbers))


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]} …"


def _with_size(boxes: Boxes, where: str, strict: bool) -> dict[str, list[Box]]:
    """Leave out boxes of no width or height, which detectors and annotators both make, and tell how many."""
    empty = [(name, box) for name, found in boxes.items() for box in found if box.width <= 0 or box.height <= 0]
    if empty:
        name, box = empty[0]
        told = f"{where}: {len(empty)} boxes have no width or no height, the first {box} of '{name}'"
        if strict:
            raise CollectionError(f"{told}; mend them, or go without --strict to leave them out")
        logger.warning("%s; they are left out", told)
    return {name: [box for box in found if box.width > 0 and box.height > 0] for name, found in boxes.items()}


def _digest(boxes: Boxes) -> str:
    """SHA-256 of what was read, not of how it was written: their order makes no difference."""
    content = {name: sorted(json.dumps(box) for box in found) for name, found in boxes.items() if found}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _own_boxes(collection: Collection) -> Boxes:
    return {item.id: [Box(*region.box) for region in item.regions] for item in collection.items() if item.image}


def _by_picture(collection: Collection, boxes: Boxes, where: str) -> dict[Path, list[Box]]:
    """The boxes of each picture of the collection that has some."""
    pictures = {item.id: item.image for item in collection.items() if item.image is not None}
    names: defaultdict[str, set[str]] = defaultdict(set)
    for image in pictures.values():
        names[key_of(image)].add(image)
    found: defaultdict[Path, list[Box]] = defaultdict(list)
    unknown = []
    for name, given in boxes.items():
        fits = [pictures[name]] if name in pictures else sorted(i for i in names[key_of(name)] if may_be_one(i, name))
        if len(fits) > 1:
            raise CollectionError(f"{where}: '{name}' may be '{fits[0]}' or '{fits[1]}'; name the items' ids instead")
        if not fits:
            unknown.append(name)
        elif given:
            found[collection.path / fits[0]] += given
    if not found:
        expected, told = (f" ('{next(iter(some))}', for example)" if some else "" for some in (pictures, unknown))
        raise FeatureError(
            f"{where}: no box{told} is of a picture in {collection.path}; boxes are named by the items' ids{expected} "
            "or their pictures' names"
        )
    for path, given in found.items():
        if len({box.score is None for box in given}) > 1:
            raise CollectionError(f"{where}: some boxes of {path} have a score and some have none; score all or none")
    if unknown:
        told = f"{len(unknown)} of {len(boxes)} names are of no picture in {collection.path}"
        logger.warning("%s: %s; the first: '%s'", where, told, unknown[0])
    return found
