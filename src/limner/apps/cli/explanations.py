"""Explanations of captions and translations: trees of beam searches, and film strips of the attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limner.apps.cli.options import check_runs, refuse
from limner.apps.cli.terminal import echo, err, progress_bar, tab_separated
from limner.errors import RunError, SettingsError
from limner.files import write_text
from limner.storage.json_text import to_json
from limner.storage.outputs import SavedOutput, claim_file, claim_folder, save_output

if TYPE_CHECKING:
    from limner.decoding.sentence import Sentence
    from limner.inference.captioner import Captioner
    from limner.inference.explain_beam import BeamExplanation

STANDARD_OUTPUT = Path("-")
_SUFFIXES = (".png", ".svg", ".json", ".txt")


def require_beam_file(
    out: Path, inputs: Sequence[str | Path], force: bool, unused: Mapping[str, object] | None = None
) -> None:
    """Check the file of --explain-beam and that there is one input, and refuse `unused` options, before decoding."""
    reason = "has no effect on --explain-beam, which explains one search; leave one of them out"
    refuse(unused or {}, reason)
    if out != STANDARD_OUTPUT and out.suffix.lower() not in _SUFFIXES:
        raise SettingsError(f"--explain-beam {out}: expected - or a file that ends in {', '.join(_SUFFIXES)}")
    if len(inputs) != 1:
        raise SettingsError(f"--explain-beam explains the search of one input, got {len(inputs)}")
    if isinstance(inputs[0], Path) and inputs[0].is_dir():
        raise SettingsError(
            f"--explain-beam explains the search of one file, got the folder {inputs[0]}; name a file in it"
        )
    if out != STANDARD_OUTPUT:
        claim_file(out, "--explain-beam", force=force)


def write_beam(explanation: BeamExplanation, out: Path) -> SavedOutput:
    """Write the tree of a beam search in the form that the suffix of the file names, or print it."""
    from limner.apps.report.beam_plot import beam_text, beam_tree

    if out == STANDARD_OUTPUT:
        echo(beam_text(explanation))
        return SavedOutput(out)

    def write(file: Path) -> None:
        if file.suffix.lower() in (".json", ".txt"):
            is_json = file.suffix.lower() == ".json"
            write_text(file, (to_json(explanation.to_json(), indent=1) if is_json else beam_text(explanation)) + "\n")
        else:
            from limner.plots.figures import save_plot

            save_plot(beam_tree(explanation), file)

    saved = save_output(out, write)
    err.print(f"tree: {saved.path}", soft_wrap=True)
    return saved


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
    from limner.inference.captioner import Captioner

    check_runs(runs, device, decoding, backbone)
    captioner = Captioner.load(*runs, backbone=backbone, device=device)
    explanation = captioner.explain_beam(image, prefix=prefix, must_include=must_include, **decoding)
    saved = write_beam(explanation, out)
    if out != STANDARD_OUTPUT:
        for caption in explanation.hypotheses:
            echo(tab_separated(image, caption.text, f"{caption.log_prob:.2f}"))
    if not prefix and not must_include and captioner.rules.concepts is not None:
        _note_of_concepts(captioner, image, explanation.hypotheses[0], decoding)
    saved.require()


def _note_of_concepts(captioner: Captioner, image: Path, best: Sentence, decoding: dict[str, Any]) -> None:
    """Print a note if the concepts choose another caption than the best of the beam."""
    ((chosen, *_),) = captioner.describe([image], log_cut_off=False, **decoding)
    if chosen.text != best.text:
        note = "the tree ends with the most probable caption; the concepts of the model choose"
        err.print(f"note: {note} '{chosen.text}'", soft_wrap=True)


def claim_plots(folder: Path, force: bool) -> None:
    """Check that plots of attention may be written to a folder; SettingsError if not."""
    claim_folder(folder, "--attention", force=force, suffixes=(".png", ".html"))


def load_compared(
    captioner: Captioner, run: Path, compared: Sequence[Path], backbone: str | None, device: str
) -> list[Captioner]:
    """Return a captioner and the loaded captioners of the runs that are compared with it.

    RunError for a model of another vocabulary, SettingsError for one without attention that can be plotted.
    """
    from limner.apps.report.attention import require_attention
    from limner.inference.captioner import Captioner

    require_attention(captioner.models[0], run)
    captioners, vocabulary = [captioner], captioner.models[0].config.tokenizer_sha256
    for path in compared:
        captioners.append(Captioner.load(path, backbone=backbone, device=device))
        if captioners[-1].models[0].config.tokenizer_sha256 != vocabulary:
            raise RunError(
                f"--compare {path}: expected the vocabulary of {run}, got another; train both models on the same "
                "collection with the same text settings"
            )
        require_attention(captioners[-1].models[0], path)
    return captioners


def plot_captions(
    captioners: Sequence[Captioner], runs: Sequence[Path], captions: Sequence[tuple[Path, Sentence]], folder: Path
) -> None:
    """Write plots of the attention of captioners for captions of the first captioner, and a page."""
    from limner.apps.report.attention import AttendedSentence, ModelAttention, save_attention

    names = [run.resolve().name for run in runs]
    names = names if len(set(names)) == len(names) else list(map(str, runs))
    images, hypotheses = zip(*captions, strict=True)
    explained = [captioner.explain(images, hypotheses) for captioner in captioners]
    features = [captioner.models[0].config.features for captioner in captioners]
    attended = [
        AttendedSentence(
            image.name, image, [*map(ModelAttention, explanations, features, names if names[1:] else [""])]
        )
        for image, *explanations in zip(images, *explained, strict=True)
    ]
    with progress_bar("plotting attention") as bar:
        page = save_attention(attended, folder, "captions", on_progress=bar)
    err.print(f"plots: {page}", soft_wrap=True)
