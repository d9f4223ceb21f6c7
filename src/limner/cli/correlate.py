"""The command that correlates a score with human judgements: correlate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limner.bounds import BootstrapSamples, Count, Seed
from limner.cli.app import MEASURE, app
from limner.cli.options import DeviceOption, JsonOption, Number, given, refuse
from limner.cli.preflight import check_runs
from limner.cli.terminal import activity, echo, print_json, progress_bars
from limner.errors import SettingsError, counted

if TYPE_CHECKING:
    from limner.evaluation.correlate import JudgedCorrelation

JudgementsArgument = Annotated[
    Path,
    typer.Argument(
        metavar="JUDGEMENTS",
        help="File in the form of Flickr8k-Expert (image, caption, three ratings) or Flickr8k-CF (image, caption, "
        "share of yes, numbers of yes and no), separated by tabs.",
    ),
]
ScoresOption = Annotated[
    Path | None,
    typer.Option(
        "--scores", metavar="FILE", help="Scores of any metric, lines of image, caption and score, separated by tabs."
    ),
]
ModelOption = Annotated[
    Path | None,
    typer.Option("--model", metavar="RUN", help="Captioning model that scores the pairs by log P(w|I) - log P(w)."),
]
CollectionOption = Annotated[
    Path | None,
    typer.Option("--collection", metavar="DIR", help="Collection with the images, captions and features for --model."),
]
MarginalOption = Annotated[
    int | None,
    typer.Option("--marginal", help="Training images sampled to estimate P(w); default: 1000.", parser=Number(Count)),
]
SamplesOption = Annotated[
    int | None,
    typer.Option(
        "--samples",
        help="Number of bootstrap samples of the images; default: 1000.",
        parser=Number(BootstrapSamples),
    ),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", help="Random seed of the bootstrap; default: 1.", parser=Number(Seed))
]


@app.command(rich_help_panel=MEASURE)
def correlate(
    judgements: JudgementsArgument,
    scores: ScoresOption = None,
    model: ModelOption = None,
    collection: CollectionOption = None,
    marginal: MarginalOption = None,
    samples: SamplesOption = None,
    seed: SeedOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Correlate a score with human judgements of captions: Kendall's tau-b and tau-c.

    The score is that of a captioning model, which needs no references, or any other, from a file.

    Example: `limner correlate ExpertAnnotations.txt --model runs/mrnn --collection collections/flickr8k`
    """
    if scores is not None:
        options = {"--model": model, "--collection": collection, "--marginal": marginal}
        refuse(options, "not possible with --scores; leave out one or the other")
    elif model is None or collection is None:
        raise SettingsError("expected --scores FILE, or --model RUN and --collection DIR; give one of them")
    from limner.evaluation.correlate import correlate_with_judgements
    from limner.evaluation.judgements import read_judgements, read_scores

    judged = read_judgements(judgements)
    missing, signature = 0, ""
    with progress_bars() as progress:
        if scores is not None:
            values = read_scores(scores, judged)
        else:
            assert model is not None and collection is not None
            from limner.data.collection import Collection
            from limner.evaluation.correlate import score_judged_pairs
            from limner.runs.trained_model import load_trained_model

            check_runs([model], device)
            opened = Collection.open(collection)
            with activity("loading the model"):
                trained = load_trained_model(model, device)
            scored = score_judged_pairs(trained, opened, judged, on_progress=progress, **given(marginal=marginal))
            values, missing, signature = scored.scores, len(scored.missing), scored.signature
        result = correlate_with_judgements(judged, values, on_progress=progress, **given(samples=samples, seed=seed))
    _print(result, missing, signature, as_json)


def _print(result: JudgedCorrelation, missing: int, signature: str, as_json: bool) -> None:
    """Print the correlations with their intervals, the numbers of pairs and the signatures."""
    if as_json:
        rows = [one._asdict() for one in result.correlations]
        counts = {"pairs": result.pairs, "images": result.images, "own_captions": result.own_captions}
        signatures = {"signature": result.signature, "score": signature or None}
        print_json({"correlations": rows, **counts, "missing": missing, "notes": result.notes, **signatures})
        return
    for one in result.correlations:
        interval = "" if one.interval is None else "  95 % interval [{:.4f}, {:.4f}]".format(*one.interval)
        echo(f"{one.name} = {one.value:.4f}{interval}")
    for note in result.notes:
        echo(f"note: {note}")
    echo(f"{counted(result.pairs, 'pair')} of {counted(result.images, 'image')}")
    if result.own_captions:
        echo(f"left out: {counted(result.own_captions, 'pair')} whose caption was written for the image")
    if missing:
        echo(f"left out: {counted(missing, 'pair')} whose caption or image with features is not in the collection")
    echo(f"[{result.signature}]")
    if signature:
        echo(f"score: [{signature}]")
