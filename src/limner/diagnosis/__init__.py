"""Diagnosis of how much a model uses the image: image controls, source masking, ambiguous words, contrastive sets."""

from __future__ import annotations

from limner.diagnosis.diagnose import DiagnosisSettings, diagnose, save_diagnosis, verdict
from limner.diagnosis.records import (
    AmbiguityResult,
    ConditionResult,
    ConditionScore,
    ContrastiveResult,
    Diagnosis,
    MaskingResult,
)

__all__ = [
    "AmbiguityResult",
    "ConditionResult",
    "ConditionScore",
    "ContrastiveResult",
    "Diagnosis",
    "DiagnosisSettings",
    "MaskingResult",
    "diagnose",
    "save_diagnosis",
    "verdict",
]
