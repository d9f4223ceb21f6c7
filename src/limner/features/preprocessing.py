"""Image preprocessing: resizing and cropping to a backbone's input size."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from limner.bounds import ImageSide, Measured, PositiveWeight, Resampling
from limner.errors import SettingsError
from limner.media.image import ImageInput, Pixels, open_image
from limner.settings import Settings

Resize = Literal["crop", "squash"]
MAX_ASPECT_RATIO = 16
"""Largest ratio of an image's sides; the ends of a longer strip are cut off, as its enlargement could fill memory."""


class Preprocessing(Settings):
    """Transform from an image of any size to a backbone's input; part of a feature table's fingerprint."""

    resize: Resize
    """`crop` keeps the aspect ratio and cuts off the ends of the longer side; `squash` ignores the aspect ratio."""
    size: ImageSide
    """Side of the backbone's square input, in pixels."""
    short: ImageSide
    """Side to which the image is resized before cropping, in pixels (the shorter side under `crop`)."""
    resample: Resampling = int(Image.Resampling.BILINEAR)
    """Resampling filter, by Pillow's number."""
    views: Literal[1, 2, 10] = 1
    """Number of views averaged: 1 (the image), 2 (and its mirror image), 10 (centre, corners and mirror images)."""
    scale: PositiveWeight = 1 / 255
    """Factor on pixel values before normalisation."""
    mean: tuple[Measured, Measured, Measured] = (0.485, 0.456, 0.406)
    """Mean of each channel: a pixel value p becomes (p * scale - mean) / std."""
    std: tuple[PositiveWeight, PositiveWeight, PositiveWeight] = (0.229, 0.224, 0.225)
    """Standard deviation of each channel."""
    bgr: bool = False
    """Whether the channel order is blue, green, red."""

    @property
    def crops(self) -> int:
        """Number of crops of an image, without mirror images."""
        return 5 if self.views == 10 else 1


def raw_pixels(size: int, resize: Resize = "squash") -> Preprocessing:
    """Preprocessing to a square of `size` pixels without normalisation."""
    return Preprocessing(resize=resize, size=size, short=size, scale=1, mean=(0, 0, 0), std=(1, 1, 1))


def parse_processor_config(config: dict[str, Any]) -> Preprocessing:
    """Read a `preprocessor_config.json` of transformers.

    Missing keys take the usual values: side 256, centre crop 224.

    Raises:
        SettingsError: the input is not square, or a value is out of range.
    """
    size = _side(config.get("size", 224 if config else 256))
    cropped = config.get("do_center_crop", not config)
    resize: Resize = "crop" if cropped else "squash"
    short, side = size, _side(config.get("crop_size", 224)) if cropped else size
    if "crop_pct" in config and size < 384:  # the image processor of ConvNeXt, which ResNets use as well
        resize, short = "crop", int(size / (config["crop_pct"] or 0.875))
    values: dict[str, Any] = {"resize": resize, "size": side, "short": short}
    if "resample" in config:
        values["resample"] = config["resample"]
    if not config.get("do_rescale", True):
        values["scale"] = 1.0
    elif "rescale_factor" in config:
        values["scale"] = config["rescale_factor"]
    if not config.get("do_normalize", True):
        values |= {"mean": (0, 0, 0), "std": (1, 1, 1)}
    elif "image_mean" in config:
        values |= {"mean": config["image_mean"], "std": config["image_std"]}
    return Preprocessing.parse(values | {"bgr": config.get("do_flip_channel_order", False)}, "preprocessor_config.json")


def _side(size: int | dict[str, int]) -> int:
    if isinstance(size, int):
        return size
    side = size.get("shortest_edge", size.get("height"))
    if side is None or size.get("width", side) != side:
        raise SettingsError(f"preprocessor_config.json: expected a square input size, got {size}")
    return side


def adapt_preprocessing(default: Preprocessing, size: int | None, resize: str | None, views: int) -> Preprocessing:
    """Change size, resizing mode (None for the default) or views; crop margins keep their proportion."""
    mode = default.resize if resize is None else resize
    side = default.size if size is None else size
    margin = max(default.short / default.size, 8 / 7) if views == 10 else default.short / default.size
    short = round(side * margin) if mode == "crop" or views == 10 else side
    values = default.model_dump() | {"resize": mode, "size": side, "short": short, "views": views}
    return Preprocessing.parse(values, "preprocessing")


def read_image(source: ImageInput, preprocessing: Preprocessing) -> Pixels:
    """Open and preprocess an image, (crops, H, W, 3), values 0 to 255; MediaError if it cannot be decoded."""
    return preprocess(open_image(source, min_side=preprocessing.short), preprocessing)


def preprocess(image: Image.Image, preprocessing: Preprocessing) -> Pixels:
    """Resize and crop an image, (crops, size, size, 3); normalisation and mirror images are left to the encoder."""
    resample = Image.Resampling(preprocessing.resample)
    cropped = preprocessing.resize == "crop" or preprocessing.crops > 1
    side = preprocessing.short if cropped else preprocessing.size
    keeps_ratio = preprocessing.resize == "crop"
    resized = resize_shorter_side(image, side, resample) if keeps_ratio else image.resize((side, side), resample)
    crops = [centre_crop(resized, size := preprocessing.size)]
    if preprocessing.crops > 1:  # and the corners: top left, top right, bottom left, bottom right
        right, bottom = resized.width - size, resized.height - size
        crops += [resized.crop((x, y, x + size, y + size)) for y in (0, bottom) for x in (0, right)]
    return np.stack([np.asarray(crop) for crop in crops])


def encoded_box(size: tuple[int, int], preprocessing: Preprocessing) -> tuple[float, float, float, float]:
    """Compute the part of an image that `preprocess` keeps in its centre crop.

    Returns:
        Left, top, right and bottom in pixels of the image; outside the image where the crop is padded.
    """
    width, height = size
    cropped = preprocessing.resize == "crop" or preprocessing.crops > 1
    fraction = preprocessing.size / preprocessing.short if cropped else 1.0
    across, down = (min(size), min(size)) if preprocessing.resize == "crop" else size
    left, top = (width - fraction * across) / 2, (height - fraction * down) / 2
    return left, top, width - left, height - top


def location_cells(size: tuple[int, int], preprocessing: Preprocessing, grid: tuple[int, int]) -> NDArray[np.float64]:
    """Compute the part of an image that each location of a grid covers.

    The encoded part of the image (`encoded_box`) is divided evenly: location (r, c) covers the part in the r-th of
    `rows` strips and in the c-th of `columns` strips. Receptive fields are larger and overlap; a cell is the part that
    is nearest to its location.

    Args:
        size: width and height of the upright image in pixels.
        preprocessing: how the image was resized and cropped.
        grid: rows and columns of the grid.

    Returns:
        Left, top, right and bottom of each cell in pixels of the image, (L, 4), row by row of the grid; outside the
        image where the crop is padded.
    """
    rows, columns = grid
    left, top, right, bottom = encoded_box(size, preprocessing)
    across, down = np.linspace(left, right, columns + 1), np.linspace(top, bottom, rows + 1)
    row, column = (indices.ravel() for indices in np.indices(grid))
    return np.stack([across[column], down[row], across[column + 1], down[row + 1]], axis=1)


def resize_shorter_side(
    image: Image.Image, short: int, resample: Image.Resampling = Image.Resampling.BILINEAR
) -> Image.Image:
    """Resize so that the shorter side has `short` pixels, keeping the aspect ratio (the longer side is rounded down).

    Of an image with an aspect ratio above `MAX_ASPECT_RATIO` only the middle is kept.
    """
    width, height = image.size
    longest = MAX_ASPECT_RATIO * min(width, height)
    if max(width, height) > longest:
        left, top = max(0, (width - longest) // 2), max(0, (height - longest) // 2)
        image = image.crop((left, top, width - left, height - top))
        width, height = image.size
    if width <= height:
        return image.resize((short, short * height // width), resample)
    return image.resize((short * width // height, short), resample)


def centre_crop(image: Image.Image, side: int) -> Image.Image:
    """Crop the central square of `side` pixels; pixels outside the image are black."""
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))
