"""Captions written to images: as XMP sidecars beside them, or into the files."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from pathlib import Path
from typing import Literal

from PIL import ExifTags, Image, IptcImagePlugin

from limner.errors import LimnerError, MetadataError, system_reason
from limner.files import atomic_write, read_bytes
from limner.folders.containers import read_packet, write_packet
from limner.folders.xmp import add_caption, find_captions

SidecarName = Literal["full", "stem"]
"""Name of a sidecar: `full` is photo.jpg.xmp, as of digiKam and darktable; `stem` is photo.xmp, as of Adobe."""
_IPTC_CAPTION = (2, 120)


def sidecar_path(image: Path, name: SidecarName = "full") -> Path:
    """Return the path of the sidecar of an image."""
    return image.with_name(f"{image.name}.xmp") if name == "full" else image.with_suffix(".xmp")


def caption_of_sidecar(image: Path, name: SidecarName = "full") -> str:
    """Return the caption in the sidecar of an image; empty if there is none.

    Raises:
        MetadataError: the sidecar cannot be read.
    """
    sidecar = sidecar_path(image, name)
    if not sidecar.exists():
        return ""
    with _named(sidecar):
        return next(iter(find_captions(read_bytes(sidecar))), "")


def caption_in_file(image: Path) -> str:
    """Return the caption in an image file, as XMP, IPTC or EXIF; empty if there is none.

    Raises:
        MetadataError: the file or its XMP packet cannot be read.
    """
    with _named(image):
        data = read_bytes(image)
        packet = None
        with contextlib.suppress(MetadataError):  # of another format, or damaged: then nothing is written to it
            packet = read_packet(data)
        texts = find_captions(packet) if packet is not None else []
        return next(iter(texts), "") or _older_caption(data)


def require_embeddable(image: Path) -> None:
    """Check before an image is described that its file can hold a caption; MetadataError if it cannot."""
    with _named(image):
        write_packet(read_bytes(image), b"<x/>")


def write_sidecar(image: Path, text: str, lang: str, *, name: SidecarName = "full", replace: bool = False) -> bool:
    """Write a caption to the sidecar of an image; other properties of an existing sidecar are kept.

    Args:
        image: image file.
        text: caption.
        lang: language code of the caption.
        name: name of the sidecar.
        replace: replace a caption in the sidecar.

    Returns:
        False where the sidecar has a caption and `replace` is false: it is unchanged.

    Raises:
        MetadataError: the existing sidecar cannot be read; it is unchanged.
        WriteError: the sidecar cannot be written.
    """
    sidecar = sidecar_path(image, name)
    with _named(sidecar):
        existing = read_bytes(sidecar) if sidecar.exists() else None
        if existing is not None and not replace and find_captions(existing):
            return False
        packet = add_caption(existing, text, lang)
    target = sidecar.resolve()
    with atomic_write(target) as temporary:
        temporary.write_bytes(packet)
        if existing is not None:
            shutil.copymode(target, temporary)
    return True


def embed_caption(image: Path, text: str, lang: str, *, replace: bool = False) -> bool:
    """Write a caption into an image file: JPEG, PNG or WebP.

    The image data, other metadata, permissions and times of the file stay as they are. The file is replaced at once, so
    that an interrupted write leaves the old one.

    Args:
        image: image file.
        text: caption.
        lang: language code of the caption.
        replace: replace a caption in the file.

    Returns:
        False where the file has a caption and `replace` is false: it is unchanged.

    Raises:
        MetadataError: the format is another one, the file is damaged or protected, or it has changed meanwhile; it is
            unchanged.
        WriteError: the file cannot be written; it is unchanged.
    """
    target = image.resolve()
    with _named(image):
        facts = os.stat(target)
        data = read_bytes(target)
        packet = read_packet(data)
        if not replace and (_older_caption(data) or (packet is not None and find_captions(packet))):
            return False
        if not os.access(target, os.W_OK):
            raise MetadataError("is protected from writing; allow it, or write a sidecar with --write xmp")
        written = write_packet(data, add_caption(packet, text, lang))
    with atomic_write(target) as temporary:
        temporary.write_bytes(written)
        with contextlib.suppress(OSError):  # only the administrator may give files to others
            os.chown(temporary, facts.st_uid, facts.st_gid)
        shutil.copystat(target, temporary)
        now = os.stat(target)
        if (now.st_size, now.st_mtime_ns, now.st_ino) != (facts.st_size, facts.st_mtime_ns, facts.st_ino):
            raise MetadataError(f"{image}: was changed by another program meanwhile; repeat the command")
    return True


def _older_caption(data: bytes) -> str:
    """Return the caption in the EXIF or IPTC data of an image file; empty if there is none."""
    with contextlib.suppress(Exception), Image.open(io.BytesIO(data)) as image:  # damaged metadata hold no caption
        described = str(image.getexif().get(ExifTags.Base.ImageDescription, "")).strip("\0 \t\r\n")
        iptc = IptcImagePlugin.getiptcinfo(image) or {}
        caption = iptc.get(_IPTC_CAPTION, b"")
        return (
            described or (caption if isinstance(caption, bytes) else b"".join(caption)).decode(errors="replace").strip()
        )
    return ""


class _named:
    """Name a file in the errors of its metadata."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, error_type: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, MetadataError):
            raise MetadataError(f"{self._path}: {error}") from None
        if isinstance(error, OSError) and not isinstance(error, LimnerError):
            raise MetadataError(f"{self._path}: cannot be read ({system_reason(error)}); check the file") from None
