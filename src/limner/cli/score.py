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

TrainingCollectionOption = Annotated[
    Path | None,
    typer.Option(
        "--collection",
        metavar="DIR",
        help="Collection whose training images give log P(w), for the score log P(w|I) - log P(w).",
    ),
]


@app.command(rich_help_panel=USE)
def score(
    image: Annotated[Path, typer.Argument(help="Image file; an audio file for an audio model.")],
    sentences: Annotated[list[str], typer.Argument(metavar="SENTENCE...", help="Sentences to score.")],
    model: CaptionerOption = None,
    lang: LangOption = None,
    backbone: BackboneOption = None,
    collection: TrainingCollectionOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Compute the log-probability and the perplexity of sentences given an image.

    With --collection, the score without references log P(w|I) - log P(w) too: how much more probable the image makes
    the sentence.

    Example: `limner score photo.jpg "A dog runs ." "A cat sleeps ."`
    """
    run = model_or_pretrained(model, lang, "score")
    from limner.data.collection import Collection
    from limner.inference.scorer import Scorer
    from limner.media.modality import modality_of

    check_runs([run], device, backbone=backbone)
    opened = None if collection is None else Collection.open(collection)
    modality_of(image).open(image)  # an unreadable image is found before the model is loaded
    with activity("loading the model"):
        scorer = Scorer.load(run, backbone=backbone, device=device)
    with progress_bar("scoring") as bar:
        scores = scorer.score([image] * len(sentences), sentences, on_progress=bar)
    ratios = None
    if opened is not None:
        with progress_bar("estimating log P(w)") as bar:
            ratios = scorer.log_ratios(scores, sentences, opened, on_progress=bar)
    rows = list(zip(sentences, scores, [None] * len(scores) if ratios is None else ratios.values, strict=True))
    if as_json:
        extra = [{} if ratios is None else {"log_ratio": value, "signature": ratios.signature} for *_, value in rows]
        print_json(
            [{"sentence": text, **one._asdict(), **own} for (text, one, _), own in zip(rows, extra, strict=True)]
        )
        return
    from limner.metrics.base import format_value

    echo(tab_separated("log-prob", "perplexity", *([] if ratios is None else ["log-ratio"]), "sentence"))
    for text, one, value in rows:
        ratio = [] if value is None else [f"{value:.2f}"]
        echo(tab_separated(f"{one.log_prob:.2f}", format_value(one.perplexity), *ratio, text))
    if ratios is not None:
        echo(f"log-ratio: [{ratios.signature}]")
