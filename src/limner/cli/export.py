"""The command that exports a model for use without torch: export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from limner.cli.app import USE, app
from limner.cli.options import BackboneOption, CaptionerOption, JsonOption, LangOption, model_or_pretrained
from limner.cli.terminal import activity, echo, print_json, tab_separated


@app.command(rich_help_panel=USE)
def export(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; an exported model in it is replaced.")],
    model: CaptionerOption = None,
    lang: LangOption = None,
    format_: Annotated[Literal["onnx"], typer.Option("--format", help="Format of the graphs.")] = "onnx",
    backbone: BackboneOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export a captioner or translator as ONNX graphs, which run without torch and start in a fraction of the time.

    `limner describe` and `limner translate` take the folder as --model. Other programs use `limner.runtime`.

    Example: `limner export captioner --model runs/mrnn`
    """
    run = model_or_pretrained(model, lang, "export")
    with activity("exporting the model"):
        from limner.export.folder import export as export_model

        result = export_model(run, out, backbone=backbone)
    if as_json:
        values = {"folder": str(result.folder), "files": result.files, "difference": result.difference}
        print_json(values | {"left_out": result.left_out})
        return
    for name, size in result.files.items():
        echo(tab_separated(result.folder / name, f"{size / 1e6:.2f} MB"))
    if result.no_backbone:
        echo(f"without a backbone ({result.no_backbone}): limner.runtime describes features, not files")
    if result.left_out:
        echo(f"without {', '.join(result.left_out)}, which need the run; captions of the run can differ")
