"""Explanations of captions and translations: trees of beam searches, and film strips of the attention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from limner.apps.cli.options import check_runs
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


def require_beam_file(out: Path, inputs: Sequence[str | Path], force: bool) -> None:
    """Check the file of --explain-beam, and that there is one input, before anything is decoded."""
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
    """Print that the concepts choose another caption than the best one of the beam, if they do."""
    (described,) = captioner.describe([image], log_cut_off=False, **decoding)
    if described[0].text != best.text:
        err.print(
            "note: the tree ends with the most probable caption; the concepts of the model choose "
            f"'{described[0].text}'",
            soft_wrap=True,
        )


def claim_plots(folder: Path, force: bool) -> None:
    """Check that plots of attention may be written to a folder; SettingsError if not."""
    claim_folder(folder, "--attention", force=force, suffixes=(".png", ".html"))


class StripPlotter:
    """Plots the attention of a captioner, and of models that are compared with it, for its captions."""

    def __init__(
        self,
        captioner: Captioner,
        runs: Sequence[Path],
        folder: Path,
        compared: Sequence[Path],
        *,
        backbone: str | None,
        device: str,
    ) -> None:
        """Load the compared models, and check all models before anything is described.

        `runs` are the directories of the captioner, the first of which is explained; the compared models have the same
        vocabulary.
        """
        from limner.apps.report.attention import require_attention
        from limner.inference.captioner import Captioner

        self.folder = folder
        self.captions: list[tuple[Path, Sentence]] = []
        paths = [runs[0], *compared]
        require_attention(captioner.models[0], runs[0])
        self.captioners = [captioner]
        for path in compared:
            captioner = Captioner.load(path, backbone=backbone, device=device)
            if captioner.models[0].config.tokenizer_sha256 != self.captioners[0].models[0].config.tokenizer_sha256:
                raise RunError(
                    f"--compare {path}: expected the vocabulary of {runs[0]}, got another; train both models on the "
                    "same collection with the same text settings"
                )
            require_attention(captioner.models[0], path)
            self.captioners.append(captioner)
        names = [path.resolve().name for path in paths]
        self.names = names if len(set(names)) == len(names) else [str(path) for path in paths]
        if not compared:
            self.names = [""]

    def add(self, image: Path, caption: Sentence) -> None:
        """Add a caption to be plotted."""
        self.captions.append((image, caption))

    def save(self) -> None:
        """Write the plots and the page of the added captions."""
        from limner.apps.report.attention import AttendedSentence, ModelAttention, save_attention

        if not self.captions:
            return
        images, captions = zip(*self.captions, strict=True)
        explained = [captioner.explain(images, captions) for captioner in self.captioners]
        features = [captioner.models[0].config.features for captioner in self.captioners]
        attended = [
            AttendedSentence(image.name, image, list(map(ModelAttention, explanations, features, self.names)))
            for image, *explanations in zip(images, *explained, strict=True)
        ]
        with progress_bar("plotting attention") as bar:
            page = save_attention(attended, self.folder, "captions", on_progress=bar)
        err.print(f"plots: {page}", soft_wrap=True)
