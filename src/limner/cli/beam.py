"""Output of an explained beam search, for several commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limner.cli.preflight import check_runs
from limner.cli.terminal import echo, err, tab_separated
from limner.errors import SettingsError
from limner.files import write_text
from limner.storage.json_text import to_json
from limner.storage.outputs import SavedOutput, claim_file, save_output

if TYPE_CHECKING:
    from limner.decoding.ranking import Hypothesis
    from limner.inference.captioner import Captioner
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


def explain_caption(
    image: Path,
    runs: Sequence[Path],
    prefix: str | None,
    must_include: Sequence[str] | None,
    decoding: dict[str, Any],
    backbone: str | None,
    device: str,
    out: Path,
) -> None:
    """Write the tree of the beam of one image, and print its captions unless the tree is printed."""
    from limner.decoding.settings import change_decoding
    from limner.inference.captioner import Captioner

    check_runs(runs, device, decoding, backbone)
    captioner = Captioner.load(*runs, backbone=backbone, device=device)
    explanation = captioner.explain_beam(image, prefix=prefix, must_include=must_include, **decoding)
    saved = write_beam(explanation, out)
    if out != STANDARD_OUTPUT:
        for one in explanation.hypotheses:
            caption = captioner.tokenizer.decode(one.tokens, detokenise=True)
            echo(tab_separated(image, caption, f"{one.log_prob:.2f}"))
    settings = change_decoding(captioner.decoding, decoding)
    if not prefix and not must_include and captioner.rules.named_tags(settings) is not None:
        _note_of_tags(captioner, image, explanation.hypotheses[0], decoding)
    saved.require()


def _note_of_tags(captioner: Captioner, image: Path, best: Hypothesis, decoding: dict[str, Any]) -> None:
    """Print that the caption of an image is another one than the best of its beam, if the tags change it."""
    (described,) = captioner.describe([image], log_cut_off=False, **decoding)
    if described[0].ids != best.tokens:
        err.print(
            "note: the tree is of the search without the rules of tags, denied and repeated words; with them the "
            f"caption is '{described[0].text}'",
            soft_wrap=True,
        )
