"""Is the picture used? What a model says with the right picture, with others, with none, and with hidden words."""

from __future__ import annotations

from limner.diagnosis.diagnose import DEFAULT_METRICS, diagnose, save_diagnosis, verdict
from limner.diagnosis.records import Condition, Contrast, Diagnosis, Figure, Masked, Senses

__all__ = [
    "DEFAULT_METRICS",
    "Condition",
    "Contrast",
    "Diagnosis",
    "Figure",
    "Masked",
    "Senses",
    "diagnose",
    "save_diagnosis",
    "verdict",
]
