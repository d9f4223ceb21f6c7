"""Captions written to images: as XMP sidecars beside them, or into the files."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from limner.errors import MetadataError, system_reason
from limner.files import atomic_write, read_bytes
from limner.folders.containers import write_packet
from limner.folders.metadata import is_caption, read_metadata
from limner.folders.xmp import add_caption, find_captions

SidecarName = Literal["full", "stem"]
"""Name of a sidecar: `full` is photo.jpg.xmp, as of digiKam and darktable; `stem` is photo.xmp, as of Adobe."""


def sidecar_path(image: Path, name: SidecarName = "full") -> Path:
    """Return the path of the sidecar of an image; an existing one may have its suffix in capitals."""
    return existing_path(image.with_name(f"{image.name}.xmp") if name == "full" else image.with_suffix(".xmp"))


def existing_path(path: Path) -> Path:
    """Return the path of an existing file whose suffix may be in capitals; `path` if there is none."""
    suffixes = (path.suffix, path.suffix.upper(), path.suffix.title())
    variants = (path.with_suffix(suffix) for suffix in suffixes)
    return next((variant for variant in variants if variant.exists()), path)


def caption_of_sidecar(image: Path, name: SidecarName = "full") -> str:
    """Return the caption in the sidecar of an image; empty if there is none.

    Raises:
        MetadataError: the sidecar cannot be read.
    """
    sidecar = sidecar_path(image, name)
    if not sidecar.exists():
        return ""
    with _named(sidecar):
        return next(filter(is_caption, find_captions(read_bytes(sidecar))), "")


def caption_in_file(image: Path) -> str:
    """Return the caption in the metadata of an image file; empty if there is none, or the file cannot be read."""
    return read_metadata(image).caption


def require_embeddable(image: Path) -> None:
    """Check before an image is described that its file can hold a caption; MetadataError if it cannot."""
    with _named(image):
        _with_caption(read_bytes(image), "", "")


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
        if existing is not None and not replace and any(map(is_caption, find_captions(existing))):
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
        if not replace and read_metadata(data).caption:
            return False
        if not os.access(target, os.W_OK):
            raise MetadataError("is protected from writing; allow it, or write a sidecar with --write xmp")
        written = _with_caption(data, text, lang)
    with atomic_write(target) as temporary:
        temporary.write_bytes(written)
        with contextlib.suppress(OSError):  # only the administrator may give files to others
            os.chown(temporary, facts.st_uid, facts.st_gid)
        shutil.copystat(target, temporary)
        now = os.stat(target)
        if (now.st_size, now.st_mtime_ns, now.st_ino) != (facts.st_size, facts.st_mtime_ns, facts.st_ino):
            raise MetadataError(f"{image}: was changed by another program meanwhile; repeat the command")
    return True


def _with_caption(data: bytes, text: str, lang: str) -> bytes:
    """Return an image file with a caption."""
    before = read_metadata(data).packet
    try:
        packet = add_caption(before, text, lang)
    except MetadataError as error:
        raise MetadataError(f"its XMP packet: {error}; write a sidecar with --write xmp") from None
    return write_packet(data, packet, before)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name a file in the errors of its metadata."""
    try:
        yield
    except MetadataError as error:
        remedy = "; correct or remove it" if path.suffix.lower() == ".xmp" else ""
        raise MetadataError(f"{path}: {error}{remedy}") from None
    except OSError as error:
        raise MetadataError(f"{path}: cannot be read ({system_reason(error)}); check the file") from None
