"""Calibration of a captioner: calibration.json in its run directory, written by `pretrained/calibrate.py`.

It says which tags become part of the captions, and how the confidence of captions and words is computed.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from limner.bounds import Measured, Probability
from limner.errors import RunError, SettingsError
from limner.files import write_text
from limner.files.structured import StructureError, read_json_file
from limner.runs.trained_model import sha256
from limner.settings import Settings
from limner.storage.json_text import to_json
from limner.storage.tensors import read_tensors, save_tensors

FILE = "calibration.json"
"""Name of the file in a run directory."""
STATISTICS = "calibration.safetensors"
"""Name of the file with the statistics of the features, beside it."""

logger = logging.getLogger(__name__)


class TagCalibration(Settings):
    """Tags that become part of the captions."""

    threshold: Probability
    """Probability from which a tag must be named by the caption of its image."""
    max_loss: Measured
    """Largest log-probability per token that a caption may lose by naming the tag; the caption is kept otherwise."""
    certain: Probability
    """Probability of a tag from which any loss is accepted."""
    left_out: tuple[str, ...] = ()
    """Usual words of the nouns that are never required."""
    subject_loss: Measured | None = None
    """Largest log-probability per token that a caption may lose by starting with the tag instead of naming it where the
    search does; null for captions that never start with it."""
    denied: dict[str, Probability] = Field(default_factory=dict)
    """For words the probability of what they name below which captions do not have them."""
    min_people_probability: Probability = 0.0
    """Probability of people below which captions have none if a thing that is usually a subject is likely."""
    no_repeats: bool = False
    """Whether captions have each noun once at most, and no word that follows itself."""


class ConfidenceCalibration(Settings):
    """Logistic regressions of the confidence on evidence; see `limner.inference.confidence`."""

    event: str
    """The event whose probability is the confidence of a caption."""
    photograph: dict[str, Measured]
    """Coefficient of each kind of evidence that an image is a photograph, and of `constant`."""
    caption: dict[str, Measured]
    """Coefficient of each kind of evidence about a caption of a photograph, and of `constant`."""
    word: dict[str, Measured]
    """Coefficient of each kind of evidence about a word, and of `constant`."""
    min_confidence: Probability
    """Confidence below which captions are withheld by default."""


class Calibration(Settings):
    """Content of calibration.json."""

    weights_sha256: str
    """SHA-256 of the weights that the calibration was made for."""
    background: Probability = 0.0
    """Probability of every class in every image, which is subtracted."""
    tags: TagCalibration | None = None
    """Tags in captions; null for none."""
    confidence: ConfidenceCalibration | None = None
    """Confidence of captions; null for none."""


class FeatureStatistics(NamedTuple):
    """Statistics of the pooled features of training images."""

    mean: NDArray[np.float32]  # (D,)
    deviation: NDArray[np.float32]  # (D,): standard deviation
    directions: NDArray[np.float32]  # (K, D): first principal directions of the standardised features
    people: NDArray[np.float32]  # (D + 1,): logistic regression of people on the standardised features, constant last

    @classmethod
    def of(cls, vectors: NDArray[np.float32], directions: int = 64) -> Self:
        """Compute the statistics of vectors (N, D), without a regression of people."""
        mean, deviation = vectors.mean(0), vectors.std(0) + 1e-3
        _, _, rows = np.linalg.svd((vectors - mean) / deviation, full_matrices=False)
        return cls(mean, deviation, rows[:directions], np.zeros(vectors.shape[1] + 1, np.float32))

    def people_probability(self, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """Compute the probability (B,) that a person would mention people, of vectors (B, D)."""
        values = (vectors - self.mean) / self.deviation @ self.people[:-1] + self.people[-1]
        probabilities: NDArray[np.float64] = 1 / (1 + np.exp(-np.clip(values.astype(float), -30, 30)))
        return probabilities

    def outside(self, vector: NDArray[np.float32]) -> float:
        """Compute the share of the squared norm of a standardised vector (D,) outside of the principal directions."""
        standardised = (vector - self.mean) / self.deviation
        whole = float(standardised @ standardised)
        return 1 - float(np.square(self.directions @ standardised).sum()) / max(whole, 1e-9)


class StoredCalibration(NamedTuple):
    """A calibration with the statistics of the features that it needs."""

    settings: Calibration
    statistics: FeatureStatistics


def save_calibration(folder: Path, calibration: StoredCalibration) -> None:
    """Write a calibration into a run directory.

    Raises:
        RunError: a file cannot be written.
    """
    tensors = {
        name: torch.from_numpy(values).half().contiguous() for name, values in calibration.statistics._asdict().items()
    }
    save_tensors(folder / STATISTICS, tensors)
    write_text(folder / FILE, to_json(calibration.settings.model_dump(mode="json"), indent=1) + "\n")


def load_calibration(folder: Path) -> StoredCalibration | None:
    """Read the calibration of a run; None where it has none, or one of other weights, which is logged.

    Raises:
        RunError: a file is damaged.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        settings = Calibration.parse(read_json_file(path), str(path))
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); restore the file, or remove it") from None
    except (SettingsError, StructureError) as error:
        raise RunError(f"{path}: {error}; restore the file, or remove it") from None
    if settings.weights_sha256 != sha256(folder / "model.safetensors"):
        logger.warning("%s: made for other weights and not used; run pretrained/calibrate.py again", path)
        return None
    stored = read_tensors(folder / STATISTICS).tensors
    if set(stored) != set(FeatureStatistics._fields):
        raise RunError(f"{folder / STATISTICS}: expected the statistics of features; restore the file")
    return StoredCalibration(settings, FeatureStatistics(**{name: one.float().numpy() for name, one in stored.items()}))
