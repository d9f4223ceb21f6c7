"""Diagnosis of how a model uses the image: controls, masking, ambiguous words, grounding."""

from __future__ import annotations

from limner.apps.diagnosis.conditions import DiagnosisSettings
from limner.apps.diagnosis.diagnose import diagnose, verdict
from limner.apps.diagnosis.grounding import GroundingSettings, grounding_verdict, measure_grounding

__all__ = ["DiagnosisSettings", "GroundingSettings", "diagnose", "grounding_verdict", "measure_grounding", "verdict"]
