"""The command that writes the HTML report of a run: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limner.apps.cli.app import MEASURE, app
from limner.apps.cli.options import ForceOption, JsonOption, ModelOption, require_one_model
from limner.apps.cli.terminal import activity, echo, print_json
from limner.storage.outputs import claim_file, save_output

REPORT = "report.html"
"""Name of the report in a run folder."""


@app.command(rich_help_panel=MEASURE)
def report(
    model: ModelOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="HTML file to write; default: report.html in the run folder."),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a report of a run as one self-contained HTML file: curves, metrics, captions, retrieval results.

    Run `limner evaluate` first: the report shows its results.

    Example: `limner report --model runs/mrnn --out report.html`
    """
    run = require_one_model(model, "report")
    default = run / REPORT
    path = claim_file(out or default, "--out", force=force, default=default)
    from limner.apps.report import write_report

    with activity("writing the report"):
        saved = save_output(path, lambda file: write_report(run, file))
    print_json({"report": str(saved.path)}) if as_json else echo(str(saved.path))
    saved.require()
