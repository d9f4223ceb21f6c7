"""Audio files: supported suffixes and the optional soundfile library."""

from __future__ import annotations

from typing import Any

from limner.errors import MissingExtraError

AUDIO_SUFFIXES = frozenset({".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".aifc", ".au", ".caf"})
"""File suffixes of audio files, in lower case."""


def soundfile_module(purpose: str) -> Any:  # noqa: ANN401 (soundfile is optional)
    """Import soundfile.

    Args:
        purpose: operation that needs soundfile, named in the error.

    Raises:
        MissingExtraError: soundfile or the library libsndfile is not installed.
    """
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: soundfile is installed, libsndfile is not
        raise MissingExtraError(purpose, "audio") from None
    return soundfile
