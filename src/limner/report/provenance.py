"""Facts about a run and an evaluation at the end of the report: provenance, settings, signatures and fingerprints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from limner.runs.records import LogLine, RunConfig

LABELS = {"epochs": "kept epoch", "seed": "random seed", "step_seconds": "seconds in training steps"}
"""Labels of facts by their key in the provenance."""


def run_facts(config: RunConfig, log: Sequence[LogLine]) -> list[tuple[str, str]]:
    """List the provenance of a run, and the size of its training; each figure once."""
    provenance = dict(config.provenance)
    if log and log[-1].seconds is not None:  # "training time" replaces it
        provenance.pop("seconds", None)
    facts = [(LABELS.get(key, key), without_folders(value)) for key, value in flatten(provenance)]
    if log:
        facts.append(("updates", f"{log[-1].step:,}"))
        if "epochs" not in provenance or float(provenance["epochs"]) != log[-1].epoch:
            facts.append(("epochs trained", f"{log[-1].epoch:g}"))
        if log[-1].seconds is not None:
            facts.append(("training time", duration(log[-1].seconds)))
    speeds = [line.tokens_per_second for line in log if line.tokens_per_second]
    if speeds:
        facts.append(("tokens per second", f"{sorted(speeds)[len(speeds) // 2]:,.0f} (median)"))
    return facts


def without_folders(text: str) -> str:
    """Replace absolute paths by their last part, because the folder names of a machine are private."""
    return re.sub(r"(?<![\w.~])/(?:[^/\s]+/)+", "", text)


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested settings as pairs of a dotted key and a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{key}", ", ".join(str(part) for part in value) or "none"
        else:
            yield f"{prefix}{key}", "none" if value is None else str(value)


def duration(seconds: float) -> str:
    """Write a duration in hours, minutes and seconds."""
    minutes, rest = divmod(seconds, 60)
    if minutes < 1:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest:.0f} s"
