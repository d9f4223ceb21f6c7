"""The command that exports a model for use without torch: export."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from limner.apps.cli.app import USE
from limner.apps.cli.options import CaptionerOption, command, models_or_pretrained, require_one_model
from limner.apps.cli.terminal import activity, echo, print_json, tab_separated
from limner.errors import SettingsError


@command(USE)
def export(
    out: Path,
    *,
    model: CaptionerOption = None,
    lang: str | None = None,
    format_: Literal["onnx", "arpa"] = "onnx",
    backbone: str | None = None,
    as_json: bool = False,
) -> None:
    """Export a captioner or translator as ONNX graphs, which run without torch and start in a fraction of the time.

    `limner describe` and `limner translate` take the folder as --model. Python programs load it by `limner.load`. With
    `--format arpa`, write the n-gram language model of a phrase-based model to a file, which KenLM and Moses read.

    Example: `limner export captioner --model runs/mrnn`

    Options:
        out (OUT): Folder to write; an exported model in it is replaced. With --format arpa, a new file.
        lang: Language of the built-in captioner: en, de or zh; default: en.
        format_: onnx: the model as graphs; arpa: the language model of a phrase-based model.
    """
    run = require_one_model(models_or_pretrained(model, lang), "export")
    if format_ == "arpa":
        _export_arpa(run, out, backbone=backbone, as_json=as_json)
        return
    with activity("exporting the model"):
        from limner.apps.export.folder import export as export_model

        result = export_model(run, out, backbone=backbone)
    if as_json:
        return print_json({"folder": str(result.folder), "files": result.files, "difference": result.difference})
    for name, size in result.files.items():
        echo(tab_separated(result.folder / name, f"{size / 1e3:,.1f} kB"))
    if result.no_backbone:
        echo(f"without a backbone ({result.no_backbone}): it describes features, not files")


def _export_arpa(run: Path, out: Path, *, backbone: str | None, as_json: bool) -> None:
    if backbone is not None:
        raise SettingsError("--backbone: a language model has none; leave it out, or choose --format onnx")
    with activity("writing the language model"):
        from limner.apps.export.folder import export_language_model

        ngrams = export_language_model(run, out)
    if as_json:
        print_json({"file": str(out), "ngrams": ngrams})
    else:
        echo(tab_separated(out, f"{ngrams:,} n-grams"))
