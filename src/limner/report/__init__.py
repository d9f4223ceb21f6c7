"""The report of a run: one HTML file with everything in it, for a desk, a phone or a printer."""

from __future__ import annotations

from limner.report.page import write_report

__all__ = ["write_report"]
