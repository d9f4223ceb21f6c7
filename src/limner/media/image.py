"""Opening pictures from anywhere, and the recipes that make them the size a network reads."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from limner.errors import MediaError, SettingsError
from limner.settings import Settings

MAX_PIXELS = 89_478_485
"""More pixels than this are not decoded: 256 MiB at three bytes a pixel, Pillow's own line."""

# Formats that hold pictures and nothing else: EPS, for one, would start another program.
_FORMATS = {
    "JPEG": (".jpg", ".jpeg"),
    "MPO": (".mpo",),
    "PNG": (".png",),
    "GIF": (".gif",),
    "WEBP": (".webp",),
    "AVIF": (".avif",),
    "TIFF": (".tif", ".tiff"),
    "BMP": (".bmp",),
    "PPM": (".ppm", ".pgm", ".pbm"),
    "JPEG2000": (".jp2",),
    "ICO": (".ico",),
    "TGA": (".tga",),
    "PCX": (".pcx",),
}
IMAGE_SUFFIXES = frozenset(suffix for suffixes in _FORMATS.values() for suffix in suffixes)
"""By these a file is taken for a picture where nothing else says so."""

Pixels = NDArray[np.uint8]


class Preprocessing(Settings):
    """From a picture of any size to what a network reads; part of the features' fingerprint."""

    resize: Literal["crop", "squash"]
    """`crop` keeps proportions and loses the ends of the longer side; `squash` keeps the whole picture."""
    size: int
    """Side of the square that the network reads, in pixels."""
    short: int
    """Side to which the picture is resized before crops are cut out of it (its shorter one under `crop`)."""
    resample: int = int(Image.Resampling.BILINEAR)
    """Pillow's number of the resampling filter."""
    views: Literal[1, 2, 10] = 1
    """1: the picture; 2: its mirror image too; 10: middle, corners and their mirror images. Averaged."""
    scale: float = 1 / 255
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """A pixel value p becomes (p * scale - mean) / std, channel by channel."""
    bgr: bool = False
    """Channels in the order blue, green, red."""

    @property
    def crops(self) -> int:
        return 5 if self.views == 10 else 1


def read_recipe(config: dict[str, Any]) -> Preprocessing:
    """Read a preprocessor_config.json; what it leaves open is ImageNet's usual recipe (256, centre 224)."""
    size = _side(config.get("size", 224 if config else 256))
    cropped = config.get("do_center_crop", not config)
    resize: Literal["crop", "squash"] = "crop" if cropped else "squash"
    short, side = size, _side(config.get("crop_size", 224)) if cropped else size
    if "crop_pct" in config and size < 384:  # ConvNeXt's processor, which ResNets use too
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
        raise SettingsError(f"preprocessor_config.json: size {size} is not a square, which is all that is supported")
    return side


def adapt(recipe: Preprocessing, size: int | None, resize: str | None, views: int) -> Preprocessing:
    """Apply the user's wishes to what a network was trained with; margins keep their proportion."""
    chosen = recipe.resize if resize is None else resize
    side = recipe.size if size is None else size
    margin = max(recipe.short / recipe.size, 8 / 7) if views == 10 else recipe.short / recipe.size
    short = round(side * margin) if chosen == "crop" or views == 10 else side
    values = recipe.model_dump() | {"resize": chosen, "size": side, "short": short, "views": views}
    return Preprocessing.parse(values, "preprocessing")


def open_image(path: Path, *, at_least: int | None = None) -> Image.Image:
    """Read a picture as upright RGB, whatever it is stored as.

    EXIF rotation is applied, transparent parts become white, 16-bit values are scaled to 8 bits, and an
    animation gives its first frame.

    Args:
        path: the file.
        at_least: the shorter side that is needed, in pixels. A much larger JPEG is decoded at a half,
            a quarter or an eighth of its size, which is several times faster.

    Raises:
        MediaError: the file is missing, empty, damaged, not a picture, or too large to be decoded safely.
    """
    try:
        with Image.open(path, formats=_formats()) as image:
            if image.width * image.height > MAX_PIXELS:
                raise _too_large(path, f"{image.width} x {image.height} pixels")
            if at_least is not None:
                image.draft(None, (at_least, at_least))
            image.load()
            return _to_rgb(_upright(image))
    except MediaError:
        raise
    except FileNotFoundError:
        raise MediaError(f"{path}: no such picture; put the file there or leave it out") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(path, str(error)) from None
    except UnidentifiedImageError:
        raise MediaError(_not_a_picture(path)) from None
    except Exception as error:  # a damaged file can raise almost anything in the decoders
        raise MediaError(f"{path}: damaged picture ({error}); copy it again from its source or leave it out") from None


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _too_large(path: Path, size: str) -> MediaError:
    return MediaError(
        f"{path}: too large to decode safely: {size}, at most {MAX_PIXELS} are opened; store a smaller copy"
    )


def _not_a_picture(path: Path) -> str:
    if path.stat().st_size == 0:
        return f"{path}: the file is empty (0 bytes); copy it again from its source or leave it out"
    return f"{path}: not a picture ({', '.join(_formats())} are read); convert it or leave it out"


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # unreadable EXIF data says nothing about the pixels
        return image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_8_bits(image)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _to_8_bits(image: Image.Image) -> Pixels:
    """Scale grey values of 16 bits by their range, and values of no known range by the picture's own."""
    values = np.asarray(image).astype(np.float32)
    low, high = (0.0, 65535.0) if image.mode.startswith("I;16") else (float(values.min()), float(values.max()))
    scaled = (values - low) * (255 / max(high - low, 1e-12))
    eight: Pixels = np.nan_to_num(scaled).round().clip(0, 255).astype(np.uint8)
    return eight


def prepare(image: Image.Image, recipe: Preprocessing) -> Pixels:
    """Follow a recipe up to the network's input: resized, cut and still 0..255.

    Mirror images are not made here: the network's side flips the batch.

    Returns:
        Pixels (crops, size, size, 3).
    """
    resample = Image.Resampling(recipe.resample)
    side = recipe.short if recipe.resize == "crop" or recipe.crops > 1 else recipe.size
    resized = resize_shortest(image, side, resample) if recipe.resize == "crop" else squash(image, side, resample)
    cuts = [centre_crop(resized, recipe.size)]
    if recipe.crops > 1:
        cuts += corner_crops(resized, recipe.size)
    return np.stack([np.asarray(cut) for cut in cuts])


def seen_box(size: tuple[int, int], recipe: Preprocessing) -> tuple[float, float, float, float]:
    """The part of a picture that `prepare` cuts out of its middle, which the places of a grid are parts of.

    Args:
        size: width and height of the picture.
        recipe: how it is made ready.

    Returns:
        Left, top, right and bottom in the picture's pixels; outside the picture where the cut reaches beyond it.
    """
    width, height = size
    cut = recipe.size / recipe.short if recipe.resize == "crop" or recipe.crops > 1 else 1.0
    across, down = (min(size), min(size)) if recipe.resize == "crop" else size
    left, top = (width - cut * across) / 2, (height - cut * down) / 2
    return left, top, width - left, height - top


def resize_shortest(
    image: Image.Image, short: int, resample: Image.Resampling = Image.Resampling.BILINEAR
) -> Image.Image:
    """Make the shorter side `short` pixels and keep proportions (the longer side is rounded down).

    Of a strip longer than 16 times its width only the middle is kept: enlarged, it could fill the memory.
    """
    width, height = image.size
    longest = 16 * min(width, height)
    if max(width, height) > longest:
        left, top = max(0, (width - longest) // 2), max(0, (height - longest) // 2)
        image = image.crop((left, top, width - left, height - top))
        width, height = image.size
    if width <= height:
        return image.resize((short, short * height // width), resample)
    return image.resize((short * width // height, short), resample)


def squash(image: Image.Image, side: int, resample: Image.Resampling = Image.Resampling.BILINEAR) -> Image.Image:
    """Make the picture a square of `side` pixels, whatever its proportions."""
    return image.resize((side, side), resample)


def centre_crop(image: Image.Image, side: int) -> Image.Image:
    """Cut the middle square of `side` pixels; what lies outside the picture is black."""
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def corner_crops(image: Image.Image, side: int) -> list[Image.Image]:
    """Cut the four corner squares of `side` pixels: top left, top right, bottom left, bottom right."""
    right, bottom = image.width - side, image.height - side
    return [image.crop((x, y, x + side, y + side)) for y in (0, bottom) for x in (0, right)]
