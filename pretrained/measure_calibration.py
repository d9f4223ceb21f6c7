"""Measure a calibration: captions with and without tags, and the confidence, on a split and on generated images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibration_data import CalibrationData, auc
from fit_confidence import confidences_of, main_things_right
from limner.runs.calibration import StoredCalibration
from logistic import expected_calibration_error
from non_photographs import KINDS

SEEDS = range(100, 112)
"""Seeds of the generated images of each kind, which are none of those that the confidence was fitted on."""


def measure(data: CalibrationData, calibration: StoredCalibration, split: str) -> dict[str, Any]:
    """Measure a calibration on a split and on generated images.

    Args:
        data: captioner with the background and the statistics of the calibration.
        calibration: calibration of tags and confidence.
        split: split of the collection.
    """
    settings = calibration.settings.confidence
    assert settings is not None, "a calibration without confidence"
    items = data.items(split)
    plain = data.texts(data.decode(items))
    captions = data.describe_items(items, calibration.settings.tags)
    texts = [data.model.tokenizer.decode(one.tokens) for one in captions]
    found = confidences_of(data, captions, data.take(items), calibration)
    right = np.array(main_things_right(data, items, captions))
    withheld = np.array(found) < settings.min_confidence
    return {
        "split": split,
        "CIDEr": {"without tags": data.cider(plain, items).mean(), "with tags": data.cider(texts, items).mean()},
        "captions changed by tags": sum(a != b for a, b in zip(plain, texts, strict=True)),
        "event": float(right.mean()),
        "mean confidence": float(np.mean(found)),
        "ECE": expected_calibration_error(found, right),
        "AUC": auc(found, right),
        "reliability": reliability(found, right),
        "min_confidence": settings.min_confidence,
        "photographs withheld": float(withheld.mean()),
        "event among withheld and others": [
            float(right[withheld].mean()) if withheld.any() else None,
            float(right[~withheld].mean()),
        ],
        "generated withheld": {
            kind: share_withheld(data, kind, calibration, settings.min_confidence) for kind in KINDS
        },
    }


def share_withheld(data: CalibrationData, kind: str, calibration: StoredCalibration, min_confidence: float) -> float:
    """Compute the share of the generated images of a kind whose captions are withheld."""
    images = data.features_of_generated(kind, SEEDS)
    captions = data.describe_images(images, calibration.settings.tags)
    return float(np.mean(confidences_of(data, captions, images, calibration) < min_confidence))


def reliability(scores: np.ndarray, events: Sequence[bool] | np.ndarray) -> list[list[float]]:
    """Return mean confidence, frequency and number in each tenth of the observations."""
    order = np.argsort(scores)
    parts = zip(np.array_split(scores[order], 10), np.array_split(np.asarray(events)[order], 10), strict=True)
    return [[round(float(a.mean()), 3), round(float(b.mean()), 3), len(a)] for a, b in parts]
