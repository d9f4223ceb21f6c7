"""The command that scores sentences given an image: score."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limner.cli.app import USE, app
from limner.cli.options import (
    BackboneOption,
    CaptionerOption,
    DeviceOption,
    JsonOption,
    LangOption,
    model_or_pretrained,
)
from limner.cli.preflight import check_runs
from limner.cli.terminal import activity, echo, print_json, progress_bar, tab_separated


@app.command(rich_help_panel=USE)
def score(
    image: Annotated[Path, typer.Argument(help="Image file; an audio file for an audio model.")],
    sentences: Annotated[list[str], typer.Argument(metavar="SENTENCE...", help="Sentences to score.")],
    model: CaptionerOption = None,
    lang: LangOption = None,
    backbone: BackboneOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Compute the log-probability and the perplexity of sentences given an image.

    Example: `limner score photo.jpg "A dog runs ." "A cat sleeps ."`
    """
    run = model_or_pretrained(model, lang, "score")
    from limner.inference.scorer import Scorer
    from limner.media.modality import modality_of

    check_runs([run], device, backbone=backbone)
    modality_of(image).open(image)  # an unreadable image is found before the model is loaded
    with activity("loading the model"):
        scorer = Scorer.load(run, backbone=backbone, device=device)
    with progress_bar("scoring") as bar:
        scores = scorer.score([image] * len(sentences), sentences, on_progress=bar)
    if as_json:
        print_json([{"sentence": text, **one._asdict()} for text, one in zip(sentences, scores, strict=True)])
        return
    from limner.metrics.base import format_value

    echo(tab_separated("log-prob", "perplexity", "sentence"))
    for text, one in zip(sentences, scores, strict=True):
        echo(tab_separated(f"{one.log_prob:.2f}", format_value(one.perplexity), text))
