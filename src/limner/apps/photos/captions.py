"""Captions written to images: as XMP sidecars beside them, or into the files.

JPEG files hold a packet in APP1, PNG files in iTXt, WebP files in a chunk XMP. The compressed image data and all other
metadata are copied byte by byte. A file whose structure is damaged, or that a new packet could break, is refused.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from limner.apps.photos.metadata import add_caption, find_captions, is_caption, read_metadata
from limner.errors import MetadataError, system_reason
from limner.files import atomic_write, read_bytes
from limner.media.image import image_size, opened_image


def sidecar_path(image: Path) -> Path:
    """Return the path of the sidecar of an image: photo.jpg.xmp, or an existing photo.jpg.XMP."""
    return existing_path(image.with_name(f"{image.name}.xmp"))


def existing_path(path: Path) -> Path:
    """Return the path of an existing file whose suffix may be in capitals; `path` if there is none."""
    suffixes = (path.suffix, path.suffix.upper(), path.suffix.title())
    variants = (path.with_suffix(suffix) for suffix in suffixes)
    return next((variant for variant in variants if variant.exists()), path)


def caption_of_sidecar(image: Path) -> str:
    """Return the caption in a sidecar, or photo.xmp as Adobe's programs write, or empty; MetadataError if damaged."""
    caption = ""
    if (sidecar := sidecar_path(image)).exists():
        with _errors_named(sidecar):
            caption = next(filter(is_caption, find_captions(read_bytes(sidecar))), "")
    if not caption and (short_path := existing_path(image.with_suffix(".xmp"))).exists():
        with suppress(MetadataError, OSError):  # nothing is written to it
            caption = next(filter(is_caption, find_captions(read_bytes(short_path))), "")
    return caption


def caption_in_file(image: Path) -> str:
    """Return the caption in the metadata of an image file; empty if there is none, or the file cannot be read."""
    return read_metadata(image).caption


def require_caption_support(image: Path) -> None:
    """Check before an image is described that its file can hold a caption; MetadataError if not, or MediaError."""
    with _errors_named(image):
        data = read_bytes(image)
        if not data.startswith((b"\xff\xd8\xff", _PNG_SIGNATURE, b"RIFF")):
            image_size(image)  # MediaError for a file that is no image of any format
        _with_caption(data, "", "")


def write_sidecar(image: Path, text: str, lang: str, *, replace: bool = False) -> bool:
    """Write a caption in a language to the sidecar of an image; other properties of an existing sidecar are kept.

    False where the sidecar has a caption and `replace` is false: the sidecar is unchanged. MetadataError if the
    existing sidecar cannot be read, WriteError if it cannot be written.
    """
    sidecar = sidecar_path(image)
    with _errors_named(sidecar):
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
    """Write a caption in a language into an image file: JPEG, PNG or WebP.

    The image data, other metadata, permissions and times of the file stay as they are. The file is replaced at once, so
    that an interrupted write leaves the old file. False where the file has a caption and `replace` is false: the file
    is unchanged.

    Raises:
        LimnerError: the format is another, the file is damaged or protected, it has changed meanwhile, or it cannot
            be written; it is unchanged.
    """
    target = image.resolve()
    with _errors_named(image):
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
    """Return the bytes of an image file with a caption in its XMP packet."""
    before = read_metadata(data).packet
    try:
        packet = add_caption(before, text, lang)
    except MetadataError as error:
        raise MetadataError(f"its XMP packet: {error}; write a sidecar with --write xmp") from None
    return write_packet(data, packet, before)


@contextlib.contextmanager
def _errors_named(path: Path) -> Iterator[None]:
    """Add the path of a file to the errors of its metadata."""
    try:
        yield
    except MetadataError as error:
        remedy = "; correct or remove it" if path.suffix.lower() == ".xmp" else ""
        raise MetadataError(f"{path}: {error}{remedy}") from None
    except OSError as error:
        raise MetadataError(f"{path}: cannot be read ({system_reason(error)}); check the file") from None


_JPEG_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_JPEG_EXTENDED_XMP = b"http://ns.adobe.com/xmp/extension/\0"
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_XMP = b"XML:com.adobe.xmp\0"
_PNG_PROFILES = (b"Raw profile type xmp", b"Raw profile type APP1")
_MAX_JPEG_PACKET = 65535 - 2 - len(_JPEG_XMP)
_WEBP_XMP_FLAG, _WEBP_ALPHA_FLAG = 0x04, 0x10
_SIDECAR = "write a sidecar with --write xmp"


class Part(NamedTuple):
    """A segment or chunk of a file, with its header and padding."""

    name: bytes  # marker of a segment, or type of a chunk
    data: bytes  # all bytes
    payload: bytes  # bytes without header, checksum and padding


def write_packet(data: bytes, packet: bytes, before: bytes | None = None) -> bytes:
    """Return an image file with a new XMP packet in place of its old packet, if it has one.

    MetadataError for another format, a damaged file, a packet that is too large, or a file with parts that refer to
    positions in it or a packet in another form.
    """
    if data.startswith(b"\xff\xd8\xff"):
        written = _write_jpeg(data, packet, before)
    elif data.startswith(_PNG_SIGNATURE):
        written = _write_png(data, packet, before)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        written = _write_webp(data, packet, before)
    else:
        raise MetadataError(f"expected JPEG, PNG or WebP, found another format; {_SIDECAR}")
    with suppress(Exception), opened_image(written) as image:  # Pillow raises almost any exception for a damaged file
        if image.info.get("xmp") == packet:
            return written
    raise MetadataError(f"damaged file (an image with the packet cannot be read); {_SIDECAR}")


def _damaged(reason: str) -> MetadataError:
    return MetadataError(f"damaged file ({reason}); copy it again from its source")


def _replace(parts: Sequence[Part], packets: Sequence[Part], before: bytes | None, new: bytes, position: int) -> bytes:
    """Join the parts of a file, with a new packet in place of the packet before."""
    if len(packets) != (before is not None):
        raise MetadataError(f"expected one XMP packet that can be read, found {len(packets)}; {_SIDECAR}")
    remaining = [part.data for part in parts if part not in packets]
    return b"".join([*remaining[:position], new, *remaining[position:]])


def _write_jpeg(data: bytes, packet: bytes, before: bytes | None) -> bytes:
    if len(packet) > _MAX_JPEG_PACKET:
        raise MetadataError(
            f"expected a packet of at most {_MAX_JPEG_PACKET:,} bytes in a JPEG file, got {len(packet):,}; {_SIDECAR}"
        )
    parts = list(_segments(data))
    if any(part.name == b"\xe1" and part.payload.startswith(_JPEG_EXTENDED_XMP) for part in parts):
        raise MetadataError(f"has an extended XMP packet, which is not changed; {_SIDECAR}")
    if any(part.name == b"\xe2" and part.payload.startswith(b"MPF\0") for part in parts):
        raise MetadataError(f"contains several images (MPF), whose positions a new packet would change; {_SIDECAR}")
    packets = [part for part in parts if part.name == b"\xe1" and part.payload.startswith(_JPEG_XMP)]
    first = 0  # after the segments that have to be the first: JFIF and Exif
    while parts[first].name == b"\xe0" or parts[first].payload.startswith(b"Exif\0"):
        first += 1
    payload = _JPEG_XMP + packet
    new = b"\xff\xe1" + struct.pack(">H", len(payload) + 2) + payload
    return data[:2] + _replace(parts, packets, before, new, first)


def _segments(data: bytes) -> Iterator[Part]:
    """Yield the segments of a JPEG file up to the image data, which is the last part."""
    position = 2
    while True:
        start = position
        if data[position : position + 1] != b"\xff":
            raise _damaged(f"no marker at byte {position:,}")
        while data[position : position + 1] == b"\xff":  # fill bytes
            position += 1
        marker = data[position : position + 1]
        if marker == b"\xda":  # start of the image data
            if data.rfind(b"\xff\xd9") < position:
                raise _damaged("its end is missing")
            yield Part(marker, data[start:], b"")
            return
        header = data[position + 1 : position + 3]
        size = int.from_bytes(header, "big")
        if marker in (b"", b"\xd9", b"\x00") or len(header) < 2 or size < 2 or position + 1 + size > len(data):
            raise _damaged("a segment is cut off")
        yield Part(marker, data[start : position + 1 + size], data[position + 3 : position + 1 + size])
        position += 1 + size


def _write_png(data: bytes, packet: bytes, before: bytes | None) -> bytes:
    parts = list(_png_chunks(data))
    if any(part.name in (b"tEXt", b"zTXt", b"iTXt") and part.payload.startswith(_PNG_PROFILES) for part in parts):
        raise MetadataError(f"has XMP in a form that is not changed (raw profile); {_SIDECAR}")
    packets = [part for part in parts if part.name == b"iTXt" and part.payload.startswith(_PNG_XMP)]
    chunk = b"iTXt" + _PNG_XMP + b"\0\0\0\0" + packet
    new = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return _PNG_SIGNATURE + _replace(parts, packets, before, new, 1)  # after the header


def _png_chunks(data: bytes) -> Iterator[Part]:
    """Yield the chunks of a PNG file; bytes after the last chunk are a part without a name."""
    position = len(_PNG_SIGNATURE)
    first = True
    while True:
        header = data[position : position + 8]
        size = int.from_bytes(header[:4], "big")
        end = position + 12 + size
        if len(header) < 8 or end > len(data):
            raise _damaged("a chunk is cut off")
        name, payload = header[4:], data[position + 8 : end - 4]
        if zlib.crc32(name + payload) != int.from_bytes(data[end - 4 : end], "big"):
            raise _damaged("a chunk does not have its checksum")
        if first != (name == b"IHDR"):
            raise _damaged("its header is not where it should be")
        yield Part(name, data[position:end], payload)
        first, position = False, end
        if name == b"IEND":
            yield Part(b"", data[position:], b"")
            return


def _write_webp(data: bytes, packet: bytes, before: bytes | None) -> bytes:
    parts = _webp_chunks(data)
    try:
        header = _webp_header(data, parts[0])
    except Exception:  # Pillow raises almost any exception for a damaged file
        raise _damaged("its header cannot be read") from None
    rest = parts[1:] if parts[0].name == b"VP8X" else parts
    packets = [part for part in rest if part.name == b"XMP "]
    body = b"WEBP" + header + _replace(rest, packets, before, _webp_chunk(b"XMP ", packet), len(rest))
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _webp_chunks(data: bytes) -> list[Part]:
    if int.from_bytes(data[4:8], "little") + 8 != len(data):
        raise _damaged("its size differs from the size in its header")
    parts, position = [], 12
    while position < len(data):
        size = int.from_bytes(data[position + 4 : position + 8], "little")
        end = position + 8 + size + size % 2
        if position + 8 > len(data) or end > len(data):
            raise _damaged("a chunk is cut off")
        payload = data[position + 8 : position + 8 + size]
        parts.append(Part(data[position : position + 4], data[position:end], payload))
        position = end
    if not parts or parts[0].name not in (b"VP8X", b"VP8 ", b"VP8L"):
        raise _damaged("its first chunk is not an image chunk")
    return parts


def _webp_chunk(name: bytes, payload: bytes) -> bytes:
    return name + len(payload).to_bytes(4, "little") + payload + b"\0" * (len(payload) % 2)


def _webp_header(data: bytes, first: Part) -> bytes:
    """Return the extended header of a file with XMP; simple files have none."""
    if first.name == b"VP8X":
        return _webp_chunk(b"VP8X", bytes([first.payload[0] | _WEBP_XMP_FLAG]) + first.payload[1:])
    with opened_image(data) as image:
        flags = _WEBP_XMP_FLAG | (_WEBP_ALPHA_FLAG if image.mode == "RGBA" else 0)
        width, height = (side - 1 for side in image.size)
    return _webp_chunk(b"VP8X", bytes([flags, 0, 0, 0]) + width.to_bytes(3, "little") + height.to_bytes(3, "little"))
