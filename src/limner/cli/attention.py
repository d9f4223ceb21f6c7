"""Film strips of the attention of captions, for the command that captions images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from limner.cli.terminal import err, progress_bar
from limner.errors import RunError, SettingsError
from limner.storage.outputs import claim_folder

if TYPE_CHECKING:
    from limner.inference.captioner import Captioner
    from limner.inference.sentences import Caption


class AttentionOptions(NamedTuple):
    """Options of the attention plots; the names of the attributes are those of the options."""

    attention: Path
    compare: Sequence[Path] = ()


def attention_options(attention: Path | None, compare: Sequence[Path] | None, force: bool) -> AttentionOptions | None:
    """Check the options of the attention plots before a model is loaded; None without --attention.

    Raises:
        SettingsError: --compare has no effect, or the folder must not be written to.
    """
    if attention is None:
        if compare:
            raise SettingsError("--compare adds models to the plots of --attention DIR; give both")
        return None
    claim_plots(attention, force)
    return AttentionOptions(attention, tuple(compare or ()))


def claim_plots(folder: Path, force: bool) -> None:
    """Check that plots of attention may be written to a folder; SettingsError if not."""
    claim_folder(folder, "--attention", force=force, suffixes=(".png", ".html"))


class StripPlotter:
    """Plots the attention of a captioner, and of models that are compared with it, for its captions."""

    def __init__(
        self,
        captioner: Captioner,
        runs: Sequence[Path],
        options: AttentionOptions,
        *,
        backbone: str | None,
        device: str,
    ) -> None:
        """Load the compared models, and check all models before anything is described.

        Args:
            captioner: model that describes the images.
            runs: its run directories, the first of which is explained.
            options: folder of the plots, and run directories to compare.
            backbone: where the network is that computed the features, if it has moved since the training.
            device: device of the compared models.

        Raises:
            SettingsError: a model has no attention over image locations or frames.
            RunError: a compared model has another vocabulary, or cannot be loaded.
        """
        from limner.inference.captioner import Captioner
        from limner.report.attention_page import require_attention

        self.folder = options.attention
        self.images: list[Path] = []
        self.captions: list[Caption] = []
        paths = [runs[0], *options.compare]
        require_attention(captioner.models[0], paths[0])
        self.captioners = [captioner]
        for path in options.compare:
            other = Captioner.load(path, backbone=backbone, device=device)
            if other.models[0].config.tokenizer_sha256 != captioner.models[0].config.tokenizer_sha256:
                raise RunError(
                    f"--compare {path}: expected the vocabulary of {runs[0]}, got another; train both models on the "
                    "same collection with the same text settings"
                )
            require_attention(other.models[0], path)
            self.captioners.append(other)
        names = [path.resolve().name for path in paths]
        self.names = names if len(set(names)) == len(names) else [str(path) for path in paths]
        if not options.compare:
            self.names = [""]

    def add(self, image: Path, caption: Caption) -> None:
        """Add a caption to be plotted."""
        self.images.append(image)
        self.captions.append(caption)

    def save(self) -> None:
        """Write the plots and the page of the added captions."""
        from limner.report.attention_page import AttendedSentence, ModelAttention, save_attention

        if not self.captions:
            return
        explained = [captioner.explain(self.images, self.captions) for captioner in self.captioners]
        features = [captioner.models[0].config.features for captioner in self.captioners]
        captions = [
            AttendedSentence(image.name, image, list(map(ModelAttention, explanations, features, self.names)))
            for image, *explanations in zip(self.images, *explained, strict=True)
        ]
        with progress_bar("plotting attention") as bar:
            page = save_attention(captions, self.folder, "captions", on_progress=bar)
        err.print(f"plots: {page}", soft_wrap=True)
