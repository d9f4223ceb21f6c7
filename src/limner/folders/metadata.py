"""Captions in the metadata of image files: XMP, EXIF, IPTC and the texts of PNG, in every format that Pillow reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from warnings import catch_warnings

from PIL import ExifTags, Image, IptcImagePlugin
from PIL.ImageFile import ImageFile
from PIL.PngImagePlugin import PngImageFile, iTXt

from limner.folders.caption_text import decode_text, decode_utf16, is_caption
from limner.folders.xmp import find_captions
from limner.media.image import opened_image

_IPTC_CAPTION = (2, 120)
_RAW_XMP = "Raw profile type xmp"
"""Keyword under which ImageMagick stores a packet in PNG, as hexadecimal digits after three lines."""
_BEGIN, _END = b"<x:xmpmeta", re.compile(rb"</x:xmpmeta\s*>")
_NAMES = (ExifTags.Base.Make, ExifTags.Base.Model, ExifTags.Base.Software)
_XP_TEXTS = (ExifTags.Base.XPTitle, ExifTags.Base.XPComment, ExifTags.Base.XPSubject)
_UTF8_ENTRIES = ((b"\x0e\x01\x81\0", b"\x0e\x01\2\0"), (b"\x01\x0e\0\x81", b"\x01\x0e\0\2"))
"""Beginning of an ImageDescription of type 129 (UTF-8, EXIF 3.0), which Pillow skips, and of type 2."""


class Metadata(NamedTuple):
    """Metadata of an image that captions are about."""

    caption: str = ""
    """The first caption; empty if there is none."""
    packet: bytes | None = None
    """XMP packet; None if there is none."""


def read_metadata(source: Path | bytes) -> Metadata:
    """Read the caption and the XMP packet of an image; damaged metadata and damaged files have none.

    Args:
        source: image file, or its contents.
    """
    packet = None
    # Pillow raises almost any exception for a damaged file, and warns of damaged metadata.
    with suppress(Exception), catch_warnings(action="ignore"), opened_image(source) as image:
        packet, exif = _read_packet(image), _read_exif(image)
        names = [str(exif.get(tag, "")).strip("\0 ").casefold() for tag in _NAMES]
        for texts in (_xmp_texts(packet), _exif_texts(exif), _iptc_texts(image), _png_texts(image)):
            with suppress(Exception):
                for text in texts:
                    if is_caption(text := text.strip("\0 \t\r\n"), names):
                        return Metadata(text, packet)
    return Metadata("", packet)


def _read_packet(image: ImageFile) -> bytes | None:
    if isinstance(image, PngImageFile):
        image.load()  # chunks after the image data are read with it
    packet: bytes | None = image.info.get("xmp")
    if packet is None and (profile := image.info.get(_RAW_XMP)):
        return bytes.fromhex("".join(profile.split("\n")[3:]))
    if packet is None and image.format in ("GIF", "JPEG2000") and image.fp is not None:  # Pillow skips it
        image.fp.seek(0)
        _, begin, rest = image.fp.read().partition(_BEGIN)
        return begin + rest[: end.end()] if (end := _END.search(rest)) else None
    return packet


def _read_exif(image: ImageFile) -> Image.Exif:
    exif = Image.Exif()
    with suppress(Exception):
        if not isinstance(block := image.info.get("exif"), bytes):
            return image.getexif()
        for skipped, read in _UTF8_ENTRIES:
            block = block.replace(skipped, read)
        exif.load(block)
    return exif


def _xmp_texts(packet: bytes | None) -> Iterator[str]:
    if packet is not None:
        yield from find_captions(packet, is_damaged=True)


def _exif_texts(exif: Image.Exif) -> Iterator[str]:
    description = exif.get(ExifTags.Base.ImageDescription)
    if isinstance(description, str):  # Pillow decodes text as Latin-1
        description = description.encode("latin-1")
    if isinstance(description, bytes):
        yield decode_text(description)
    for tag in _XP_TEXTS:
        if isinstance(value := exif.get(tag), bytes):
            yield value.decode("utf-16-le", errors="ignore").partition("\0")[0]
    comment = exif.get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.UserComment)
    if isinstance(comment, bytes):
        charset, text = comment[:8].rstrip(b"\0 ").upper(), comment[8:]
        if charset == b"UNICODE":
            yield decode_utf16(text)
        elif charset == b"JIS":
            yield text.decode("iso2022_jp")
        else:
            yield decode_text(text if charset in (b"ASCII", b"") else comment)


def _iptc_texts(image: ImageFile) -> Iterator[str]:
    caption = (IptcImagePlugin.getiptcinfo(image) or {}).get(_IPTC_CAPTION, [])
    for text in [caption] if isinstance(caption, bytes) else caption:
        yield decode_text(text)


def _png_texts(image: ImageFile) -> Iterator[str]:
    for keyword, text in image.text.items() if isinstance(image, PngImageFile) else ():
        if keyword.casefold() == "description":
            yield text if isinstance(text, iTXt) else decode_text(text.encode("latin-1"))
