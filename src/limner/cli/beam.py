"""Output of an explained beam search, for several commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from limner.cli.terminal import echo, err
from limner.errors import SettingsError
from limner.files import write_text
from limner.storage.json_text import to_json
from limner.storage.outputs import SavedOutput, claim_file, save_output

if TYPE_CHECKING:
    from limner.inference.explain_beam import BeamExplanation

STANDARD_OUTPUT = Path("-")
_SUFFIXES = (".png", ".svg", ".json", ".txt")


def require_beam_file(out: Path | None, inputs: int, force: bool) -> None:
    """Check the file of --explain-beam, if it was given, before anything is decoded.

    Raises:
        SettingsError: its suffix is unknown, it must not be written, or there is not exactly one input.
    """
    if out is None:
        return
    if out != STANDARD_OUTPUT and out.suffix.lower() not in _SUFFIXES:
        raise SettingsError(f"--explain-beam {out}: expected - or a file that ends in {', '.join(_SUFFIXES)}")
    if inputs != 1:
        raise SettingsError(f"--explain-beam explains the search of one input, got {inputs}")
    if out != STANDARD_OUTPUT:
        claim_file(out, "--explain-beam", force=force)


def write_beam(explanation: BeamExplanation, out: Path) -> SavedOutput:
    """Write the tree of a beam search in the form that the suffix of the file names."""
    from limner.report.beam_plot import beam_text

    if out == STANDARD_OUTPUT:
        echo(beam_text(explanation))
        return SavedOutput(out)
    saved = save_output(out, lambda file: _write(explanation, file))
    err.print(f"tree: {saved.path}", soft_wrap=True)
    return saved


def _write(explanation: BeamExplanation, file: Path) -> None:
    """Write the tree to a file."""
    from limner.report.beam_plot import beam_text, beam_tree
    from limner.report.plots import save_plot

    suffix = file.suffix.lower()
    if suffix == ".json":
        write_text(file, to_json(explanation.to_json(), indent=1) + "\n")
    elif suffix == ".txt":
        write_text(file, beam_text(explanation) + "\n")
    else:
        save_plot(beam_tree(explanation), file)
