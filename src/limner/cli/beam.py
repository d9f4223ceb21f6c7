"""Output of an explained beam search, for several commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from limner.cli.terminal import err
from limner.errors import SettingsError
from limner.files import write_text
from limner.storage.json_text import to_json

if TYPE_CHECKING:
    from limner.inference.explain_beam import BeamExplanation

STANDARD_OUTPUT = Path("-")
_SUFFIXES = (".png", ".svg", ".json", ".txt")


def require_beam_file(out: Path | None, inputs: int) -> None:
    """Check the file of --explain-beam, if it was given, before anything is decoded.

    Raises:
        SettingsError: its suffix is unknown, or there is not exactly one input.
    """
    if out is None:
        return
    if out != STANDARD_OUTPUT and out.suffix.lower() not in _SUFFIXES:
        raise SettingsError(f"--explain-beam {out}: expected - or a file that ends in {', '.join(_SUFFIXES)}")
    if inputs != 1:
        raise SettingsError(f"--explain-beam explains the search of one input, got {inputs}")


def write_beam(explanation: BeamExplanation, out: Path) -> None:
    """Write the tree of a beam search in the form that the suffix of the file names."""
    from limner.report.beam_plot import beam_text, beam_tree
    from limner.report.plots import save_plot

    suffix = out.suffix.lower()
    if out == STANDARD_OUTPUT:
        typer.echo(beam_text(explanation))
        return
    if suffix == ".json":
        write_text(out, to_json(explanation.to_json(), indent=1) + "\n")
    elif suffix == ".txt":
        write_text(out, beam_text(explanation) + "\n")
    else:
        save_plot(beam_tree(explanation), out)
    err.print(f"tree: {out}", soft_wrap=True)
