"""Commands that measure and show: evaluate, report, demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from limner.cli.app import AsJson, BeamSize, Data, Device, Ensemble, LengthPenalty, app, command_line, given
from limner.terminal import (
    print_json,
    print_scores,
    progress_bars,
)


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="A trained model.")],
    data: Data,
    split: Annotated[str | None, typer.Option(help="Default: the recipe's test split.")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Sentence metrics; default: all. Repeatable.")] = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    retrieval: Annotated[bool, typer.Option(help="Search both ways as well.")] = True,
    marginal: Annotated[
        int,
        typer.Option(
            help="Training pictures sampled for the normalised probability; 0: the split's own pictures.", min=0
        ),
    ] = 1000,
    memory: Annotated[int, typer.Option(help="Working memory of the search in MiB.", min=1)] = 128,
    leave_out: Annotated[bool, typer.Option(help="Go on without pictures that have no features.")] = False,
    ensemble: Ensemble = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure a model on a split: sentences, perplexity, search. The report reads what this writes.

    Example: `limner evaluate runs/mrnn --data collections/flickr8k --beam-size 5`
    """
    from limner.checkpoint import load_checkpoint
    from limner.data.collection import Collection
    from limner.evaluation import DEFAULT_METRICS, save_evaluation
    from limner.evaluation import evaluate as evaluate_models
    from limner.search import SearchSettings

    models = [load_checkpoint(folder, device) for folder in (model, *(ensemble or []))]
    changed = given(beam_size=beam_size, length_penalty=length_penalty)
    settings = SearchSettings.parse({**models[0].recipe.search.model_dump(), **changed}, where="search")
    with progress_bars() as progress:
        found = evaluate_models(
            models,
            Collection.open(data),
            split=split,
            settings=settings,
            metrics=metric or DEFAULT_METRICS,
            retrieval=retrieval,
            marginal=marginal,
            leave_out=leave_out,
            budget=memory << 20,
            command=command_line(),
            progress=progress,
        )
    path = save_evaluation(found, model)
    if as_json:
        print_json(
            {
                "file": str(path),
                "seconds": found.seconds,
                "left_out": found.left_out,
                "scores": [score._asdict() for score in found.scores],
            }
        )
        return
    published = models[0].recipe.published
    print_scores(found.scores, published.values if published else {}, published.row if published else "")
    without = f", without {found.left_out:,} items whose picture has no features" if found.left_out else ""
    typer.echo(f"{path} ({found.seconds:.1f} s{without})")


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run folder, best after 'limner evaluate'.")],
    to: Annotated[Path | None, typer.Option("--out", help="Default: report.html in the run folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a report, one self-contained HTML file: curves, metrics, pictures with sentences, searches.

    Example: `limner report runs/mrnn --out report.html`
    """
    from limner.report import write_report

    path = write_report(run, to or run / "report.html")
    print_json({"report": str(path)}) if as_json else typer.echo(str(path))


@app.command()
def demo(
    to: Annotated[Path, typer.Option("--out", help="Folder for the collection and the run.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Of the drawings and of the training.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Draw a collection, learn to describe it from its pixels, measure, and write a report: three minutes.

    Example: `limner demo --out demo`
    """
    from limner.demo import run_demo

    with progress_bars() as progress:
        result = run_demo(to, seed=seed, command=command_line(), progress=progress)
    if as_json:
        scores = [score._asdict() for score in result.evaluation.scores]
        print_json(
            {
                "report": str(result.report),
                "run": str(result.run),
                "seconds": result.seconds,
                "scores": scores,
            }
        )
        return
    print_scores(result.evaluation.scores, {}, "")
    for item in result.evaluation.items[:5]:
        typer.echo(f"  {Path(str(item.image)).name}: {item.hypothesis}")
    typer.echo(f"{result.seconds:.0f} s of work; the report: {result.report}")
