"""Reports, plots and contact sheets."""

from __future__ import annotations

from limner.apps.report.page import write_report

__all__ = ["write_report"]
