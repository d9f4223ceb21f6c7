"""Commands that measure and show: evaluate, report, demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from limner.cli.app import AsJson, BeamSize, Data, Device, Ensemble, LengthPenalty, app, command_line, given
from limner.cli.terminal import (
    print_json,
    print_scores,
    progress_bars,
)
from limner.errors import SettingsError

if TYPE_CHECKING:
    from limner.features.sources import ImageControl
    from limner.runs.recipe import Recipe


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="A trained model.")],
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings of evaluation.* and decoding.* to change."),
    ] = None,
    data: Data = ...,  # type: ignore[assignment]
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
    pictures: Annotated[
        str, typer.Option(help="What the model is shown: right, or as a control shuffled, mean or zero pictures.")
    ] = "right",
    memory: Annotated[int, typer.Option(help="Working memory of the search in MiB.", min=1)] = 128,
    leave_out: Annotated[bool, typer.Option(help="Go on without pictures that have no features.")] = False,
    ensemble: Ensemble = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure a model on a split: sentences, perplexity, search. The report reads what this writes.

    Example: `limner evaluate runs/mrnn evaluation.samples=10 --data collections/flickr8k --beam-size 5`
    """
    from limner.data.collection import Collection
    from limner.evaluation.evaluate import DEFAULT_METRICS, save_evaluation
    from limner.evaluation.evaluate import evaluate as evaluate_models
    from limner.runs.trained_model import load_trained_model

    models = [load_trained_model(folder, device) for folder in (model, *(ensemble or []))]
    options = given(beam_size=beam_size, length_penalty=length_penalty)
    recipe = _changed(
        models[0].recipe, [*(changes or []), *(f"decoding.{key}={value}" for key, value in options.items())]
    )
    with progress_bars() as progress:
        found = evaluate_models(
            models,
            Collection.open(data),
            split=split,
            settings=recipe.decoding,
            measure=recipe.evaluation,
            pictures=_control(pictures),
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


def _changed(recipe: Recipe, changes: list[str]) -> Recipe:
    """The recipe with other settings of what can still be chosen once the model is trained."""
    from limner.runs.recipe import Recipe
    from limner.settings import override

    for change in changes:
        if not change.startswith(("evaluation.", "decoding.")):
            raise SettingsError(f"'{change}': only evaluation.* and decoding.* can be changed once a model is trained")
    return Recipe.parse(override(recipe.model_dump(mode="json"), changes))


def _control(name: str) -> ImageControl:
    from limner.features.sources import ImageControl

    names = get_args(ImageControl)
    if name not in names:
        raise SettingsError(f"--pictures: '{name}' is none of {', '.join(names)}")
    return cast("ImageControl", name)


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
    """Draw a collection, learn to describe and to translate it with its pixels, measure, and write reports.

    Example: `limner demo --out demo`
    """
    from limner.cli.demo import run_demo

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
                "translation": str(result.translation),
                "translation_report": str(result.translation_report),
                "translation_scores": [score._asdict() for score in result.translations.scores],
                "diagnosis": result.diagnosis.model_dump(),
            }
        )
        return
    print_scores(result.evaluation.scores, {}, "")
    for item in result.evaluation.items[:5]:
        typer.echo(f"  {Path(str(item.image)).name}: {item.hypothesis}")
    print_scores(result.translations.scores, {}, "")
    for item in {item.id: item for item in result.translations.items[:25]}.values():  # one sentence a picture
        typer.echo(f"  {Path(str(item.image)).name}: {item.source} -> {item.hypothesis}")
    typer.echo(result.diagnosis.verdict)
    if (ambiguity := result.diagnosis.ambiguity) is not None:
        names = {"right": "the right image", "swapped": "an image of the other sense", "none": "no image"}
        accuracies = [f"{one.scores[0].value:.0f} % with {names[one.name]}" for one in ambiguity.conditions]
        typer.echo(f"ambiguous words translated correctly: {', '.join(accuracies)} (chance: {ambiguity.chance:.0f} %)")
    typer.echo(f"{result.seconds:.0f} s of work; the reports: {result.report}, {result.translation_report}")


@app.command()
def reproduce(
    table: Annotated[
        str,
        typer.Argument(
            help="A published table: kiros2014/table1, calixto2016/table1, calixto2017/table1 or calixto2017/table2."
        ),
    ],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change in every row's recipe.")
    ] = None,
    data: Data = ...,  # type: ignore[assignment]
    to: Annotated[Path, typer.Option("--out", help="Folder for the runs, the rows and the table.")] = ...,  # type: ignore[assignment]
    recipes: Annotated[
        str | None, typer.Option(help="Another folder of recipes than the table's: calixto2017/small.")
    ] = None,
    row: Annotated[list[str] | None, typer.Option(help="Only this row. Repeatable.")] = None,
    seeds: Annotated[int, typer.Option(help="How many times each row is trained; its figures are means.", min=1)] = 1,
    init: Annotated[
        Path | None, typer.Option(help="Every row begins with this run's weights and vocabularies.")
    ] = None,
    budget: Annotated[float, typer.Option(help="Share of the epochs and samples; 1 is all the recipes say.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Train and measure the rows of a published table, and print them beside the published ones.

    Of translations, marks tell which rows are significantly better than the baselines. Stopped, the same command goes
    on where it was.

    Example: `limner reproduce kiros2014/table1 --data collections/flickr8k --out runs/table1 --budget 0.1`
    """
    from limner.data.collection import Collection
    from limner.reproduce import find_table
    from limner.reproduce import reproduce as bring_about

    with progress_bars() as progress:
        made = bring_about(
            find_table(table),
            Collection.open(data),
            to,
            recipes=recipes,
            changes=changes or [],
            rows=row or [],
            seeds=seeds,
            init=init,
            budget=budget,
            command=command_line(),
            progress=progress,
        )
    if as_json:
        typer.echo(made.json.read_text(encoding="utf-8"))
        return
    typer.echo(made.markdown.read_text(encoding="utf-8"))
    typer.echo(", ".join(str(path) for path in (made.markdown, made.json, *made.figures)))
