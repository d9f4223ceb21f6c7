"""Diagnosis of how a model uses the image: controls, masking, ambiguous words, contrastive sets, grounding."""

from __future__ import annotations

from limner.diagnosis.diagnose import DiagnosisSettings, diagnose, diagnosis_path, save_diagnosis, verdict
from limner.diagnosis.grounding import (
    GroundingSettings,
    grounding_path,
    grounding_verdict,
    measure_grounding,
    save_grounding,
)

__all__ = [
    "DiagnosisSettings",
    "GroundingSettings",
    "diagnose",
    "diagnosis_path",
    "grounding_path",
    "grounding_verdict",
    "measure_grounding",
    "save_diagnosis",
    "save_grounding",
    "verdict",
]
