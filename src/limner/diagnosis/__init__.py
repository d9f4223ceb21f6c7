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
from limner.diagnosis.records import (
    AmbiguityResult,
    ConditionResult,
    ConditionScore,
    ContrastiveResult,
    Diagnosis,
    Grounding,
    GroundingExample,
    GroundingGroup,
    GroundingScore,
    MaskingResult,
)

__all__ = [
    "AmbiguityResult",
    "ConditionResult",
    "ConditionScore",
    "ContrastiveResult",
    "Diagnosis",
    "DiagnosisSettings",
    "Grounding",
    "GroundingExample",
    "GroundingGroup",
    "GroundingScore",
    "GroundingSettings",
    "MaskingResult",
    "diagnose",
    "diagnosis_path",
    "grounding_path",
    "grounding_verdict",
    "measure_grounding",
    "save_diagnosis",
    "save_grounding",
    "verdict",
]
