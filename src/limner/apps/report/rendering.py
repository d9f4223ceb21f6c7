"""HTML pages of one file from templates, and the facts about runs that they list."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from statistics import median
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from limner.progress import duration
from limner.runs.records import LogLine, RunConfig

STYLES = ("look.css", "report.css")
"""Style sheets of a report; the page of the service has the first one as well."""
SCRIPTS = ("attention.js", "report.js")
"""Parts of the script of a report, in their order; the page of the service has the first one as well."""
FACT_LABELS = {"epochs": "kept epoch", "seed": "random seed", "step_seconds": "seconds in training steps"}
"""Labels of facts by their key in the provenance."""


def render_page(
    template: str, *, styles: tuple[str, ...] = STYLES, scripts: tuple[str, ...] = SCRIPTS, **values: object
) -> str:
    """Render a template with its styles, its script and its content security policy inlined.

    The policy allows the inline script alone: nothing else runs, nothing is loaded.
    """
    loader = ChoiceLoader([PackageLoader(__package__), PackageLoader("limner.plots", "web")])
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    style, script = (
        Markup("\n".join(loader.get_source(pages, name)[0] for name in names)) for names in (styles, scripts)
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return pages.get_template(template).render(style=style, script=script, policy=policy, **values)


def run_facts(config: RunConfig, log: Sequence[LogLine]) -> list[tuple[str, str]]:
    """List the provenance of a run, and the size of its training; each figure once."""
    provenance = dict(config.provenance)
    if log and log[-1].seconds is not None:  # a fact about the whole training replaces that about the kept weights
        provenance.pop("seconds", None)
    facts = [(FACT_LABELS.get(key, key), without_folders(value)) for key, value in flatten(provenance)]
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


def long_date(day: date) -> str:
    """Write a date with the name of its month."""
    return f"{day.day} {day:%B %Y}"


def frame_shape(shapes: Sequence[float]) -> float:
    """Return the shape of the frames of the images, width by height: that of most images, but neither long nor high."""
    return round(min(1.8, max(1.0, median(shapes))), 3) if shapes else 4 / 3
