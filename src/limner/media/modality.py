"""The table of modalities: all differences between images, videos and audio files outside their encoders.

A new modality is one entry here, a module of `limner.media` that opens its files, an encoder in
`limner.features.encoders`, and a field of `limner.data.examples.Item`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from limner.errors import MediaError
from limner.files import open_file
from limner.media.audio import AUDIO_SUFFIXES, AudioFile
from limner.media.image import IMAGE_SUFFIXES, ImageInput, image_size, open_image
from limner.media.video import VIDEO_SUFFIXES, check_video

ModalityName = Literal["image", "video", "audio"]

_HEAD_BYTES = 200
_VIDEO = re.compile(
    rb"....(ftyp|moov|mdat|free|skip|wide)|\x1aE\xdf\xa3|RIFF....AVI |\x00\x00\x01[\xba\xb3]|OggS|FLV|0&\xb2u"
    rb"|G.{187}G|.{4}G.{191}G",
    re.DOTALL,
)
"""Headers of MP4 and QuickTime, Matroska and WebM, AVI, MPEG, Ogg, Flash, Windows Media, and MPEG transport streams
(packets of 188 bytes that begin with G, or of 192 bytes with G after a time of 4 bytes)."""
_AUDIO = re.compile(rb"(RIFF|RF64)....WAVE|fLaC|OggS|ID3|\xff[\xe0-\xff]|FORM....AIF[FC]|\.snd|caff", re.DOTALL)
"""Headers of WAV, FLAC, Ogg, MP3, AIFF, AU and CAF."""


class Modality(NamedTuple):
    """A kind of media that sentences describe."""

    name: ModalityName
    """Key of the table, and the field of `Item` that holds the path."""
    suffixes: frozenset[str]
    """Lowercase suffixes of the files."""
    open: Callable[[Any], Any]
    """Opens a file (images also from memory); raises MediaError if it cannot be read."""
    default_backbone: str
    """Argument of `load_backbone` that needs no download."""
    noun: str
    """Singular, for messages."""
    plural: str
    """Plural, for messages."""
    folder: str
    """Folder of copied files in a collection."""
    is_in: Callable[[Path], bool]
    """Whether a file has a header of this modality, whatever its name is."""

    def matches(self, name: str | os.PathLike[str]) -> bool:
        """Whether a file name has one of the modality's suffixes."""
        return os.path.splitext(os.fspath(name))[1].lower() in self.suffixes


def is_image(path: Path) -> bool:
    """Whether a file has the header of an image that can be decoded."""
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
    """First bytes of a regular file; empty for other files."""
    try:
        with open_file(path) as stream:
            return stream.read(_HEAD_BYTES)
    except OSError:
        return b""


IMAGE = Modality("image", IMAGE_SUFFIXES, open_image, "pixels:64", "image", "images", "images", is_image)
VIDEO = Modality("video", VIDEO_SUFFIXES, check_video, "pixels:32", "video", "videos", "videos", is_video)
AUDIO = Modality("audio", AUDIO_SUFFIXES, AudioFile, "logmel", "audio file", "audio files", "sounds", is_audio)

MODALITIES: dict[str, Modality] = {modality.name: modality for modality in (IMAGE, VIDEO, AUDIO)}
"""All modalities by name; an item that has files of several is represented by the first."""


def find_modality(name: str | os.PathLike[str]) -> Modality | None:
    """The modality of a file by its suffix; None for any other file."""
    return next((modality for modality in MODALITIES.values() if modality.matches(name)), None)


def names_file(text: str) -> bool:
    """Whether a text is an existing file, or ends in the suffix of a modality, rather than a sentence."""
    return find_modality(text) is not None or os.path.isfile(text)


def modality_of(source: ImageInput) -> Modality:
    """The modality of an input; an image where it is not a file or the suffix is unknown."""
    return (find_modality(source) if isinstance(source, Path | str) else None) or IMAGE
