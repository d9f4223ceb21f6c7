"""Log-mel spectrograms of audio files: statistics over time as pooled features, or the frames as a grid.

Bands and windows are given in Hz and seconds, and power is a density per window, so that a recording has nearly the
same features at every sampling rate that covers its frequencies, without resampling.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from limner.bounds import Bounds, Frequency, PositiveShare, Window
from limner.errors import MediaError, extra_module
from limner.features.encoders.base import EncoderInput
from limner.features.spec import FeatureArray, FeatureKind, FeatureSpec
from limner.media.audio import AudioFile, Samples
from limner.media.image import ImageInput, describe_input
from limner.media.modality import AUDIO
from limner.settings import Settings

_BLOCK_SECONDS = 5
_STATISTICS = 4


class LogMelSettings(Settings):
    """Settings of the log-mel features; part of a feature table's fingerprint."""

    bands: Annotated[int, Bounds(4, 128)] = 40
    """Number of mel bands."""
    lowest: Frequency = 50.0
    """Lower edge of the lowest band, in Hz."""
    highest: Frequency = 8000.0
    """Upper edge of the highest band, in Hz; bands above half the sampling rate have zero power."""
    window: Window = 0.032
    """Length of a frame (a Hann window), in seconds."""
    hop: Annotated[float, Bounds(0.001, 1, whole=False)] = 0.01
    """Distance between frames, in seconds."""
    floor: PositiveShare = 1e-8
    """Power per band below which the level is near zero; a full-scale sine has a total power of 0.5."""
    frames: Annotated[int, Bounds(1, 10_000)] | None = None
    """Number of frames L of a grid, the most that a recording may have; None for statistics over all frames."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError(f"expected lowest below highest, got {self.lowest} Hz and {self.highest} Hz")
        if self.hop > self.window:
            raise ValueError(f"expected hop of at most window, got {self.hop} s and {self.window} s")
        return self


def frame_settings(count: str) -> LogMelSettings:
    """Return the settings of a grid of `count` frames that do not overlap; SettingsError if out of range."""
    values: dict[str, Any] = {"frames": count, "hop": LogMelSettings().window}
    return LogMelSettings.parse(values, f"logmel:{count}")


class LogMelBackbone:
    """Features of an audio file: statistics of its log-mel spectrogram over time, or a grid of its frames.

    With b bands there are 4 b + 1 statistics. For the level of each band: mean, standard deviation, slope of the linear
    regression on time, and mean absolute difference between consecutive frames. The last value is the natural
    logarithm of the duration in seconds. A grid has the levels of each frame and a constant 1, (L, b + 1); recordings
    of fewer frames are padded with rows of zeros.

    Args:
        settings: settings of the features.

    Raises:
        MissingExtraError: soundfile is not installed.
    """

    modality = AUDIO

    def __init__(self, settings: LogMelSettings | None = None) -> None:
        extra_module("soundfile", "reading audio files", "audio")
        self.settings = settings or LogMelSettings()
        bands, frames = self.settings.bands, self.settings.frames
        spec = FeatureSpec(
            name="logmel" if frames is None else "logmel_frames",
            kind="pooled" if frames is None else "grid",
            shape=(_STATISTICS * bands + 1,) if frames is None else (frames, bands + 1),
            backbone="logmel",
            modality="audio",
            preprocessing=self.settings.model_dump(mode="json", exclude_none=True),
            weights_sha256="",
            source="logmel",
        )
        self.specs: tuple[FeatureSpec, ...] = (spec,)

    def read(self, source: ImageInput) -> EncoderInput:
        """Compute the features of one file in float32, as recordings of different lengths cannot be stacked.

        Raises:
            MediaError: the file cannot be read, is shorter than one window or too long, or has too many frames.
        """
        if not isinstance(source, Path | str):
            raise MediaError(f"{describe_input(source)}: not an audio file; expected the path of one")
        with AudioFile(source) as file:
            blocks = [log_mel(block, file.rate, self.settings) for block in _blocks_of_frames(file, self.settings)]
            levels, rate = np.concatenate(blocks), file.rate
        if self.settings.frames is not None:
            return _pad_frames(levels, self.settings.frames, source)
        window, hop = frame_sizes(rate, self.settings)
        return np.append(statistics(levels), np.float32(math.log((window + (len(levels) - 1) * hop) / rate)))

    def __call__(self, inputs: EncoderInput) -> dict[FeatureKind, FeatureArray]:
        return {self.specs[0].kind: inputs.astype(np.float16)}


def _pad_frames(levels: NDArray[np.float32], frames: int, source: Path | str) -> NDArray[np.float32]:
    """Append a constant 1 to the levels (N, bands) of each frame, and rows of zeros up to `frames`."""
    if len(levels) > frames:
        raise MediaError(
            f"{source}: expected at most {frames} frames, found {len(levels)}; split the recording, or compute "
            f"features with --backbone logmel:{len(levels)}"
        )
    return np.pad(np.pad(levels, ((0, 0), (0, 1)), constant_values=1), ((0, frames - len(levels)), (0, 0)))


def log_mel(samples: Samples, rate: int, settings: LogMelSettings) -> NDArray[np.float32]:
    """Compute the log-mel spectrogram, (frames, bands), of samples (N,) with full scale at 1: log10(1 + power / floor).

    A level of 0 is silence; above the floor, it increases by 1 for each 10 dB. Samples behind the last whole frame are
    dropped.
    """
    window, hop = frame_sizes(rate, settings)
    frames = np.lib.stride_tricks.sliding_window_view(samples, window)[::hop]
    taper, bands = _window_and_bands(rate, settings)
    spectrum = np.fft.rfft(frames * taper, n=2 * window)
    power = spectrum.real**2 + spectrum.imag**2
    levels: NDArray[np.float32] = np.log10(1 + power @ bands / settings.floor).astype(np.float32)
    return levels


def statistics(levels: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute mean, standard deviation, slope and mean absolute difference over time of levels (frames, bands).

    All but the mean are 0 for a single frame. Returns (4 * bands,), one statistic after the other.
    """
    mean = levels.mean(0)
    time = np.linspace(-1, 1, len(levels), dtype=np.float32) if len(levels) > 1 else np.zeros(1, np.float32)
    slope = time @ (levels - mean) / max(float(time @ time), 1.0)
    difference = np.abs(np.diff(levels, axis=0)).sum(0) / max(len(levels) - 1, 1)
    return np.concatenate([mean, levels.std(0), slope, difference])


def frame_sizes(rate: int, settings: LogMelSettings) -> tuple[int, int]:
    """Convert window and hop to samples."""
    return max(2, round(settings.window * rate)), max(1, round(settings.hop * rate))


@lru_cache(maxsize=16)
def _window_and_bands(rate: int, settings: LogMelSettings) -> tuple[Samples, Samples]:
    """Make the Hann window (N,) and the mel filters (N + 1, bands) for spectra of frames padded to 2 N samples.

    Filters are scaled so that the bands of a sine that fills the window sum to half its squared amplitude at any rate.
    """
    from transformers.audio_utils import mel_filter_bank, window_function

    window, _ = frame_sizes(rate, settings)
    taper = window_function(window, "hann", periodic=True)
    # `mel_filter_bank` rounds half the sampling rate down and warns of filters above it. Filters of an even multiple of
    # the rate that reaches the highest band avoid both; their first N + 1 frequencies are the spectrum's.
    multiple = 2 * math.ceil(settings.highest / rate)
    bands: Samples = mel_filter_bank(
        num_frequency_bins=multiple * window + 1,
        num_mel_filters=settings.bands,
        min_frequency=settings.lowest,
        max_frequency=settings.highest,
        sampling_rate=multiple * rate,
        mel_scale="htk",
    )[: window + 1]
    return taper, bands / (window * np.square(taper).sum())


def _blocks_of_frames(file: AudioFile, settings: LogMelSettings) -> Iterator[Samples]:
    """Split a recording into overlapping blocks of whole frames; MediaError if it is damaged or too short."""
    window, hop = frame_sizes(file.rate, settings)
    count, rest = 0, np.zeros(0)
    for block in file.blocks(_BLOCK_SECONDS):
        count += len(block)
        rest = np.concatenate([rest, block])
        if (frames := (len(rest) - window) // hop + 1) > 0:
            yield rest[: (frames - 1) * hop + window]
            rest = rest[frames * hop :]
    if count < window:
        raise MediaError(
            f"{file.path}: lasts {count / file.rate:.4f} seconds ({count} samples), shorter than one window of "
            f"{settings.window} seconds; remove it or join it to a longer recording"
        )
