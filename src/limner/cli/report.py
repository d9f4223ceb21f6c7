"""The command that writes the HTML report of a run: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limner.cli.app import MEASURE, app
from limner.cli.options import JsonOption, ModelOption, require_one_model
from limner.cli.terminal import activity, print_json


@app.command(rich_help_panel=MEASURE)
def report(
    model: ModelOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="HTML file to write; default: report.html in the run folder."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a report of a run as one self-contained HTML file: curves, metrics, captions, retrieval results.

    Run `limner evaluate` first: the report shows its results.

    Example: `limner report --model runs/mrnn --out report.html`
    """
    run = require_one_model(model, "report")
    from limner.report import write_report

    with activity("writing the report"):
        path = write_report(run, out or run / "report.html")
    print_json({"report": str(path)}) if as_json else typer.echo(str(path))
