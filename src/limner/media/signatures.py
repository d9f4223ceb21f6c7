"""First bytes of media files, by which a file is known before it is decoded or copied, whatever its name is."""

from __future__ import annotations

import re
from pathlib import Path

from limner.errors import MediaError
from limner.files import open_file
from limner.media.image import image_size

_HEAD_BYTES = 200
_VIDEO = re.compile(
    rb"....(ftyp|moov|mdat|free|skip|wide)|\x1aE\xdf\xa3|RIFF....AVI |\x00\x00\x01[\xba\xb3]|OggS|FLV|0&\xb2u"
    rb"|G.{187}G|.{4}G.{191}G",
    re.DOTALL,
)
"""MP4 and QuickTime, Matroska and WebM, AVI, MPEG, Ogg, Flash, Windows Media, MPEG transport streams, whose packets of
188 or 192 bytes each begin with G, or have it after a time of 4 bytes."""
_AUDIO = re.compile(
    rb"(RIFF|RF64)....WAVE|fLaC|OggS|ID3|\xff[\xe0-\xff]|FORM....AIF[FC]|\.snd|caff",
    re.DOTALL,
)
"""WAV, FLAC, Ogg, MP3, AIFF, AU, CAF."""


def is_image(path: Path) -> bool:
    """Whether the header of a file is that of an image that can be decoded."""
    try:
        image_size(path)
    except MediaError:
        return False
    return True


def is_video(path: Path) -> bool:
    """Whether a file begins like a video file."""
    return _VIDEO.match(_head(path)) is not None


def is_audio(path: Path) -> bool:
    """Whether a file begins like an audio file."""
    return _AUDIO.match(_head(path)) is not None


def _head(path: Path) -> bytes:
    """First bytes of a regular file; none of other files."""
    try:
        with open_file(path) as stream:
            return stream.read(_HEAD_BYTES)
    except OSError:
        return b""
