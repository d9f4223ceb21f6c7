"""Sounds: opening audio files, and log-mel statistics as the vector that a model is given instead of a picture's.

Bands and windows are measured in Hz and seconds, and power is a density per window, so that a sound has nearly the
same vector at every sampling rate that can hold it, without resampling.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from limner.errors import MediaError
from limner.features.store import FeatureSpec, Kind, Prepared, Values
from limner.media.audio import AudioFile, Samples, soundfile_module
from limner.media.image import ImageInput, describe_input
from limner.media.modality import AUDIO
from limner.settings import Settings

_BLOCK_SECONDS = 5
_STATISTICS = 4


class LogMelSettings(Settings):
    """From a sound to its vector; part of the features' fingerprint."""

    bands: int = Field(default=40, ge=4, le=128)
    lowest: float = Field(default=50.0, ge=0)
    """Lower edge of the lowest band, in Hz."""
    highest: float = Field(default=8000.0, le=24000)
    """Upper edge of the highest band, in Hz; bands that the sampling rate cannot hold are as in silence."""
    window: float = Field(default=0.032, ge=0.005, le=1)
    """Seconds of a frame, weighted by a Hann window."""
    hop: float = Field(default=0.01, ge=0.001, le=1)
    """Seconds from one frame to the next."""
    floor: float = Field(default=1e-8, gt=0)
    """Power in a band that is counted as 1, and as much below it as silence; a full-scale sine has 0.5 in all."""

    @model_validator(mode="after")
    def _bands_are_there(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError(f"lowest ({self.lowest} Hz) must be below highest ({self.highest} Hz)")
        if self.hop > self.window:
            raise ValueError(f"hop ({self.hop} s) must not exceed window ({self.window} s), or samples go unheard")
        return self


class LogMelBackbone:
    """Listens to sounds without any network: a `Backbone` whose one form is a vector of log-mel statistics.

    With b bands the vector has 4 b + 1 values. Of each band's logarithmic power they are: the mean over time; the
    standard deviation; the slope of the regression line over the sound's whole length, which tells what rises from
    what falls; and the mean absolute change from frame to frame, which tells what beats from what lasts. The last
    value is the natural logarithm of the sound's seconds.
    """

    modality = AUDIO

    def __init__(self, settings: LogMelSettings | None = None) -> None:
        """Prepare to listen.

        Raises:
            MissingExtraError: soundfile is not installed.
        """
        soundfile_module("reading audio files")
        self.settings = settings or LogMelSettings()
        spec = FeatureSpec(
            name="logmel",
            kind="pooled",
            shape=(_STATISTICS * self.settings.bands + 1,),
            backbone="logmel",
            modality="audio",
            preprocessing=self.settings.model_dump(mode="json"),
            weights_sha256="",
            source="logmel",
        )
        self.specs: tuple[FeatureSpec, ...] = (spec,)

    def read(self, source: ImageInput) -> Prepared:
        """Listen to one file from end to end: its vector (D,), as sounds of all lengths are to be stacked.

        Raises:
            MediaError: it is missing, empty, damaged, no sound, shorter than one window or too long.
        """
        if not isinstance(source, Path | str):
            raise MediaError(f"{describe_input(source)}: not an audio file; expected the path of one")
        with AudioFile(source) as file:
            blocks = [log_mel(block, file.rate, self.settings) for block in _blocks(file, self.settings)]
            levels, rate = np.concatenate(blocks), file.rate
        window, hop = frame_sizes(rate, self.settings)
        return np.append(statistics(levels), np.float32(math.log((window + (len(levels) - 1) * hop) / rate)))

    def __call__(self, prepared: Prepared) -> dict[Kind, Values]:
        """Vectors (B, D) as they are stored; a logarithm has no value that float16 cannot hold."""
        return {"pooled": prepared.astype(np.float16)}


def log_mel(samples: Samples, rate: int, settings: LogMelSettings) -> NDArray[np.float32]:
    """Level of each mel band, frame by frame: log10(1 + power / floor), 0 for silence, 1 more for every 10 dB.

    Args:
        samples: of one channel, (N,), full scale at 1.
        rate: samples a second.
        settings: what the bands and frames are.

    Returns:
        (frames, bands), without what is left after the last whole frame.
    """
    window, hop = frame_sizes(rate, settings)
    frames = np.lib.stride_tricks.sliding_window_view(samples, window)[::hop]
    taper, bands = _analysis(rate, settings)
    spectrum = np.fft.rfft(frames * taper, n=2 * window)
    power = spectrum.real**2 + spectrum.imag**2
    levels: NDArray[np.float32] = np.log10(1 + power @ bands / settings.floor).astype(np.float32)
    return levels


def statistics(levels: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean, standard deviation, slope and mean absolute change over time of each band, (4 bands,).

    Args:
        levels: (frames, bands). A single frame has no deviation, slope or change: they are 0.
    """
    mean = levels.mean(0)
    time = np.linspace(-1, 1, len(levels), dtype=np.float32) if len(levels) > 1 else np.zeros(1, np.float32)
    slope = time @ (levels - mean) / max(float(time @ time), 1.0)
    change = np.abs(np.diff(levels, axis=0)).sum(0) / max(len(levels) - 1, 1)
    return np.concatenate([mean, levels.std(0), slope, change])


def frame_sizes(rate: int, settings: LogMelSettings) -> tuple[int, int]:
    """Samples of a frame, and from one frame to the next."""
    return max(2, round(settings.window * rate)), max(1, round(settings.hop * rate))


@lru_cache(maxsize=16)
def _analysis(rate: int, settings: LogMelSettings) -> tuple[Samples, Samples]:
    """The Hann window (N,) and the triangular bands (N + 1, bands) that sum a padded spectrum's power.

    Scaled so that the bands of a sine that fills the window sum to half its amplitude squared, at any rate.
    """
    window, _ = frame_sizes(rate, settings)
    taper = np.hanning(window + 1)[:-1]
    hertz = np.arange(window + 1) * rate / (2 * window)
    edges = _hertz(np.linspace(_mel(settings.lowest), _mel(settings.highest), settings.bands + 2))
    rising = (hertz[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - hertz[:, None]) / (edges[2:] - edges[1:-1])
    bands = np.clip(np.minimum(rising, falling), 0, None)
    return taper, bands / (window * np.square(taper).sum())


def _mel(hertz: float) -> float:
    """O'Shaughnessy's scale of pitch."""
    return 2595 * math.log10(1 + hertz / 700)


def _hertz(mels: Samples) -> Samples:
    return np.asarray(700 * (10 ** (mels / 2595) - 1))


def _blocks(file: AudioFile, settings: LogMelSettings) -> Iterator[Samples]:
    """Cut a recording into overlapping blocks of whole frames.

    Raises:
        MediaError: the file cannot be read to its end, or is shorter than one window.
    """
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
