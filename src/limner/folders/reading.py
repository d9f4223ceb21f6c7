"""Reading of an image file for the index: its digest, its thumbnail and the input of the backbone, decoded once."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

import xxhash
from PIL import Image

from limner.errors import MediaError, system_reason
from limner.features.encoders.base import Backbone, EncoderInput
from limner.files import open_file
from limner.media.image import open_image

THUMBNAIL_SIDE = 256
"""Longer side of a thumbnail in pixels."""
THUMBNAIL_QUALITY = 75
UNSETTLED_NS = 2_000_000_000
"""Age in nanoseconds below which a file may change again without another time of its last change."""
UNSETTLED = -1
"""Time of the last change of a file that is read again by the next update."""
_BLOCK = 1 << 20


class ReadFile(NamedTuple):
    """An image file that has been read."""

    path: str
    """Path relative to the folder."""
    size: int
    modified: int
    """Time of the last change in nanoseconds; `UNSETTLED` if the file may still be changing."""
    digest: bytes
    """XXH3 of the contents, 128 bits; empty for a file that cannot be read."""
    pixels: EncoderInput | None = None
    """Input of the backbone; None for known contents, which are not decoded."""
    thumbnail: bytes = b""
    """JPEG file of at most `THUMBNAIL_SIDE` pixels a side."""
    error: str = ""
    """Why the file cannot be read; empty if it can."""


def read_image_file(folder: Path, path: str, backbone: Backbone, known: Container[bytes]) -> ReadFile | None:
    """Read an image file; a file that cannot be read has a digest and an error.

    Args:
        folder: folder that the path is relative to.
        path: file to read.
        backbone: network that preprocesses the image.
        known: digests of contents that need not be decoded.

    Returns:
        None for a file that no longer exists.
    """
    file, digest, size, modified = folder / path, b"", 0, UNSETTLED
    try:
        with open_file(file) as stream:
            facts = os.fstat(stream.fileno())
            size = facts.st_size
            if time.time_ns() - facts.st_mtime_ns > UNSETTLED_NS:
                modified = facts.st_mtime_ns
            hashed = xxhash.xxh3_128()
            while block := stream.read(_BLOCK):
                hashed.update(block)
            digest = hashed.digest()
        if digest in known:
            return ReadFile(path, size, modified, digest)
        pixels, thumbnail = _decode(file, backbone)
    except FileNotFoundError:
        return None
    except OSError as error:
        return ReadFile(path, size, modified, digest, error=f"{file}: cannot be read ({system_reason(error)})")
    except MediaError as error:
        return ReadFile(path, size, modified, digest, error=str(error)) if file.exists() else None
    return ReadFile(path, size, modified, digest, pixels, thumbnail)


def _decode(file: Path, backbone: Backbone) -> tuple[EncoderInput, bytes]:
    """Decode an image once, for the backbone and the thumbnail; the pixels are those of `backbone.read(file)`."""
    side = backbone.specs[0].preprocessing.get("short")
    if not isinstance(side, int):
        return backbone.read(file), make_thumbnail(open_image(file, min_side=THUMBNAIL_SIDE))
    image = open_image(file, min_side=side)
    return backbone.read(image), make_thumbnail(image)


def make_thumbnail(image: Image.Image) -> bytes:
    """Encode a small copy of an RGB image as a JPEG file."""
    small = image.copy()
    small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BICUBIC)
    encoded = io.BytesIO()
    small.save(encoded, "JPEG", quality=THUMBNAIL_QUALITY)
    return encoded.getvalue()
