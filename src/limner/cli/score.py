"""The command that scores sentences given an image: score."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limner.cli.app import USE, app
from limner.cli.options import BackboneOption, DeviceOption, JsonOption, ModelOption, require_one_model
from limner.cli.terminal import print_json


@app.command(rich_help_panel=USE)
def score(
    image: Annotated[Path, typer.Argument(help="Image file; an audio file for an audio model.")],
    sentences: Annotated[list[str], typer.Argument(metavar="SENTENCE...", help="Sentences to score.")],
    model: ModelOption = None,
    backbone: BackboneOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Compute the log-probability and the perplexity of sentences given an image.

    Example: `limner score photo.jpg "A dog runs ." "A cat sleeps ." --model runs/mrnn`
    """
    run = require_one_model(model, "score")
    from limner.inference.scorer import Scorer

    scorer = Scorer.load(run, backbone=backbone, device=device)
    scores = scorer.score([image] * len(sentences), sentences)
    if as_json:
        print_json([{"sentence": text, **one._asdict()} for text, one in zip(sentences, scores, strict=True)])
        return
    from limner.metrics.base import format_value

    typer.echo("log-prob\tperplexity\tsentence")
    for text, one in zip(sentences, scores, strict=True):
        typer.echo(f"{one.log_prob:.2f}\t{format_value(one.perplexity)}\t{text}")
