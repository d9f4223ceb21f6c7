"""Images from files, bytes, Pillow images and arrays, decoded to upright RGB."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.ExifTags import Base
from PIL.ImageFile import ImageFile

from limner.errors import ImageTooLargeError, MediaError, SettingsError
from limner.files import open_file

MAX_PIXELS = 89_478_485
"""Largest number of pixels that is decoded: 256 MiB at three bytes per pixel, Pillow's own limit."""
MAX_SIDE = 1 << 18
"""Longest side that is decoded: every row of an image takes memory, however short it is."""

IN_MEMORY = "sha256:"
"""Prefix of the names of images in memory."""
THUMBNAIL_SIDE = 256
"""Longer side of a thumbnail in pixels."""
THUMBNAIL_QUALITY = 75

# Raster formats only: decoding EPS, for example, would start an external program.
_FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "MPO": (".mpo",),
    "PNG": (".png",),
    "GIF": (".gif",),
    "WEBP": (".webp",),
    "AVIF": (".avif",),
    "HEIF": (".heic", ".heif", ".hif"),
    "TIFF": (".tif", ".tiff"),
    "BMP": (".bmp",),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "JPEG2000": (".jp2", ".j2k"),
    "ICO": (".ico",),
    "TGA": (".tga",),
    "PCX": (".pcx",),
}
_PLUGINS = ("Jpeg", "Mpo", "Png", "Gif", "WebP", "Avif", "Tiff", "Bmp", "Ppm", "Jpeg2K", "Ico", "Tga", "Pcx")
IMAGE_SUFFIXES = frozenset(suffix for suffixes in _FORMATS.values() for suffix in suffixes)
"""Lowercase suffixes of image files."""

Pixels = NDArray[np.uint8]
ImageInput = Path | str | bytes | Image.Image | NDArray[Any]
"""An image: the path or the bytes of an image file, a Pillow image, or an array of uint8, (H, W, 3) or (H, W)."""
ImageInputs = ImageInput | Sequence[ImageInput]
"""One image for several sentences, or an image for each."""


def is_image(value: object) -> bool:
    """Whether a value is one image, rather than a list of images."""
    return isinstance(value, Path | str | bytes | Image.Image) or (isinstance(value, np.ndarray) and value.ndim < 4)


def require_list(values: object, noun: str) -> None:
    """Check that the inputs are a list; SettingsError for a single image or sentence, which has a length as well."""
    if is_image(values):
        raise SettingsError(f"{noun}s: expected a list of {noun}s, got one {noun}; put it into a list, [{noun}]")


def open_image(source: ImageInput, *, min_side: int | None = None) -> Image.Image:
    """Decode an image to upright RGB.

    EXIF orientation is applied, transparency is composited on white, 16-bit values are scaled to 8 bits, and the first
    frame of an animation is returned.

    Args:
        source: a file, encoded bytes, a Pillow image, or an array of uint8 of shape (H, W, 3) or (H, W).
        min_side: shorter side that the caller needs, in pixels. A JPEG much larger than this is decoded at 1/2, 1/4 or
            1/8 of its size, which is several times faster.

    Raises:
        MediaError: the file is missing, empty, damaged, not an image, or too large to be decoded safely; a pixel is NaN
            or infinite; an array has another type or shape.
    """
    name = describe_input(source)
    try:
        if isinstance(source, np.ndarray):
            return _from_array(source, name)
        if isinstance(source, Image.Image):
            return _decode(source, name, None)
        with opened_image(source) as image:
            return _decode(image, name, min_side)
    except MediaError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large(name, "too many pixels") from None
    except UnidentifiedImageError:
        raise MediaError(_not_an_image(source, name)) from None
    except Exception as error:  # the decoders raise almost any exception for a damaged file
        reason = " ".join(str(error).split())
        raise MediaError(f"{name}: damaged image ({reason}); copy it again from its source or remove it") from None


def image_size(source: Path | str | bytes) -> tuple[int, int]:
    """Width and height of the image that `open_image` decodes, mostly by its header; MediaError if it is no image."""
    try:
        with opened_image(source) as image:
            tags = getattr(image, "tag_v2", None)  # of a TIFF, whose `size` Pillow may have turned already
            width, height = image.size if tags is None else (tags[Base.ImageWidth], tags[Base.ImageLength])
            return (height, width) if image.getexif().get(Base.Orientation) in (5, 6, 7, 8) else (width, height)
    except MediaError:
        raise
    except Exception:  # the decoders raise almost any exception for a damaged file
        return open_image(source).size


def require_pixels(source: Path | str | bytes, most: int) -> None:
    """Check the number of pixels of an image by its header alone; MediaError if it has more, or is no image."""
    name = describe_input(source)
    try:
        with opened_image(source) as image:
            width, height = image.size
    except MediaError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large(name, "too many pixels") from None
    except Exception:  # the decoders raise almost any exception for a damaged file
        raise MediaError(_not_an_image(source, name)) from None
    if width * height > most or max(width, height) > MAX_SIDE:
        raise ImageTooLargeError(
            f"{name}: too large: {width:,} x {height:,} pixels, expected at most {most:,}; send a smaller copy"
        )


@contextlib.contextmanager
def opened_media(path: Path | str, kind: str) -> Iterator[BinaryIO]:
    """Open a file of a kind such as 'image', unchecked; MediaError if it is no regular file or cannot be read."""
    try:
        stream = open_file(path)
    except FileNotFoundError:
        raise MediaError(f"{path}: no such {kind} file; check the path") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = (isinstance(error, OSError) and error.strerror) or error
        article = "a" if kind == "video" else "an"
        raise MediaError(f"{path}: cannot be read ({reason}); expected {article} {kind} file") from None
    with stream:
        yield stream


@contextlib.contextmanager
def opened_image(source: Path | str | bytes) -> Iterator[ImageFile]:
    """Open an image for its metadata; pixels are not decoded.

    Raises:
        MediaError: the file is missing, cannot be read, or is not a regular file.
        Exception: of any type, from the decoder: the file is damaged or of another format.
    """
    opened = contextlib.nullcontext(io.BytesIO(source)) if isinstance(source, bytes) else opened_media(source, "image")
    with opened as stream, Image.open(stream, formats=_formats()) as image:
        yield image


def describe_input(source: ImageInput) -> str:
    """Name an image in messages: its path, or its kind and size in memory; MediaError for another type."""
    if isinstance(source, Path | str):
        return str(source)
    if isinstance(source, bytes):
        return f"image of {len(source):,} bytes"
    if isinstance(source, Image.Image):
        return f"Pillow image of {source.width} x {source.height} pixels"
    if not isinstance(source, np.ndarray):
        raise MediaError(f"expected a path, bytes, a Pillow image or an array, got {type(source).__name__}")
    return f"image array of shape {source.shape}"


@functools.cache
def _formats() -> tuple[str, ...]:
    for plugin in _PLUGINS:  # Image.init() would import all plugins of Pillow
        with contextlib.suppress(ImportError):
            import_module(f"PIL.{plugin}ImagePlugin")
    with contextlib.suppress(ImportError):
        import_module("pillow_heif").register_heif_opener()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _decode(image: Image.Image, name: str, min_side: int | None) -> Image.Image:
    if image.width * image.height > MAX_PIXELS or max(image.size) > MAX_SIDE:
        raise _too_large(name, f"{image.width} x {image.height} pixels")
    if min_side is not None:
        image.draft(None, (min_side, min_side))
    image.load()
    with contextlib.suppress(Exception):  # unreadable EXIF data does not affect the pixels
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_8_bits(image, name)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _from_array(values: NDArray[Any], name: str) -> Image.Image:
    three_channels = values.ndim == 3 and values.shape[2] == 3
    if values.dtype != np.uint8 or not (three_channels or values.ndim == 2) or not values.size:
        raise MediaError(
            f"{name} and type {values.dtype}: expected uint8 values of shape (H, W, 3) or (H, W); convert the array"
        )
    return Image.fromarray(np.ascontiguousarray(values)).convert("RGB")


def _too_large(name: str, size: str) -> MediaError:
    return ImageTooLargeError(
        f"{name}: too large to decode safely: {size}; at most {MAX_PIXELS:,} pixels, and {MAX_SIDE:,} on a "
        "side, are decoded; store a smaller copy"
    )


def _not_an_image(source: ImageInput, name: str) -> str:
    with io.BytesIO(source) if isinstance(source, bytes) else open_file(str(source)) as stream:
        head = stream.read(12)
    if not head:
        return f"{name}: the file is empty (0 bytes); copy it again from its source or remove it"
    is_heic = head[4:10] in (b"ftyphe", b"ftypmi") and "HEIF" not in _formats()
    extra = "; HEIC needs the extra 'heic': pip install 'limner[heic]'" if is_heic else ""
    return f"{name}: not an image that can be read{extra}; convert it to JPEG or PNG, or leave it out"


def _to_8_bits(image: Image.Image, name: str) -> Pixels:
    """Scale 16-bit grey values by their full range, and 32-bit or float values by the range within the image."""
    values = np.asarray(image).astype(np.float32)
    if infinite := int((~np.isfinite(values)).sum()):
        raise MediaError(
            f"{name}: {infinite:,} of {values.size:,} pixels are not finite (NaN or infinity); replace their values or "
            "remove the image"
        )
    low, high = (0.0, 65535.0) if image.mode.startswith("I;16") else (float(values.min()), float(values.max()))
    scaled = (values - low) * (255 / max(high - low, 1e-12))
    eight_bits: Pixels = scaled.round().clip(0, 255).astype(np.uint8)
    return eight_bits


def make_thumbnail(image: Image.Image) -> bytes:
    """Encode a small copy of an RGB image as a JPEG file."""
    small = image.copy()
    small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BICUBIC)
    encoded = io.BytesIO()
    small.save(encoded, "JPEG", quality=THUMBNAIL_QUALITY)
    return encoded.getvalue()


def image_name(image: ImageInput) -> str:
    """Return the path of an image file, or a name derived from the content of an image in memory."""
    if isinstance(image, Path | str):
        return str(image)
    if isinstance(image, bytes):
        content = image
    elif isinstance(image, Image.Image):
        content = repr((image.mode, image.size)).encode() + image.tobytes()
    else:
        describe_input(image)  # MediaError for another type
        content = repr((image.dtype, image.shape)).encode() + image.tobytes()
    return f"{IN_MEMORY}{hashlib.sha256(content).hexdigest()}"
