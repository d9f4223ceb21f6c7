"""Audio files, decoded block by block with soundfile (the optional extra `audio`)."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from limner.errors import MediaError, extra_module
from limner.media.image import opened_media

AUDIO_SUFFIXES = frozenset({".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf"})
"""Lowercase suffixes of audio files."""

MAX_SECONDS = 3600
"""Longest duration that is read, in seconds: frames of a longer recording would not fit in memory."""

Samples = NDArray[np.float64]
"""Samples of one channel, (N,), full scale at 1."""


class AudioFile:
    """An open audio file; a context manager that closes it.

    Attributes:
        path: the file.
        rate: sampling rate in Hz.
    """

    def __init__(self, path: Path | str) -> None:
        """Open a file and check its header; MissingExtraError without soundfile, MediaError for unusable files."""
        self.path = Path(path)
        self._soundfile = extra_module("soundfile", "reading audio files", "audio")
        _check_header(self.path)
        try:
            self._file: Any = self._soundfile.SoundFile(self.path)
        except (self._soundfile.SoundFileError, RuntimeError, TypeError) as error:  # TypeError: headerless '.raw'
            raise self._not_readable(error) from None
        self.rate = int(self._file.samplerate)
        if self._file.frames > MAX_SECONDS * self.rate:
            self.close()
            raise MediaError(
                f"{path}: lasts {self._file.frames / self.rate:,.0f} seconds, at most {MAX_SECONDS:,} are read; "
                "split the recording"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def blocks(self, seconds: float) -> Iterator[Samples]:
        """Decode the file in blocks of some seconds, (N,), the mean of the channels; MediaError if it is damaged."""
        count, size = 0, max(1, round(seconds * self.rate))
        try:
            while len(block := self._file.read(size, dtype="float32", always_2d=True)):
                count += len(block)
                if not np.isfinite(block).all():
                    raise MediaError(f"{self.path}: holds samples that are not finite numbers; export the file again")
                yield block.mean(1, dtype=np.float64)
        except (self._soundfile.SoundFileError, RuntimeError) as error:
            raise self._not_readable(error) from None
        if count < self._file.frames and self._file.format != "MP3":  # the duration of an MP3 is an estimate
            raise MediaError(
                f"{self.path}: ends after {count / self.rate:.2f} of {self._file.frames / self.rate:.2f} seconds, so "
                "it is truncated; copy or export it again"
            )

    def _not_readable(self, error: Exception) -> MediaError:
        return MediaError(f"{self.path}: not a readable audio file ({error}); save it as WAV or FLAC")


def _check_header(path: Path) -> None:
    """Raise an error for empty and truncated files, which libsndfile would read without one."""
    with opened_media(path, "audio") as stream:
        size, head = os.fstat(stream.fileno()).st_size, stream.read(8)
    if not size:
        raise MediaError(f"{path}: the file is empty (0 bytes); expected an audio file")
    # RIFF stores the number of bytes that follow. In a stream it is 0 or all ones; some programs wrongly count these
    # first eight bytes as well.
    declared = struct.unpack("<I", head[4:])[0] if head[:4] == b"RIFF" and len(head) == 8 else 0
    if size < declared < 2**32 - 1:
        raise MediaError(f"{path}: truncated: has {size:,} of {declared + 8:,} bytes; copy it again from its source")
