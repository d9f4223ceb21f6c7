"""The command that measures models on a split: evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from limner.bounds import CountOrNone, Mebibytes
from limner.cli.app import MEASURE, app, command_line
from limner.cli.next_steps import after_evaluate
from limner.cli.options import (
    BeamSizeOption,
    CollectionOption,
    DeviceOption,
    EvaluatedSplitOption,
    ImageControlOption,
    JsonOption,
    LengthPenaltyOption,
    MetricsOption,
    ModelsOption,
    Number,
    RayOption,
    SkipMissingOption,
    given,
    refuse,
    require_models,
)
from limner.cli.preflight import check_runs
from limner.cli.terminal import activity, echo, err, main_scores, print_json, print_next, print_scores, progress_bars
from limner.errors import SettingsError, counted
from limner.storage.names import name_or_default
from limner.storage.outputs import SavedOutput, require_writable, save_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limner.evaluation.regions import RegionOptions
    from limner.metrics import Score
    from limner.runs.recipe import Published, Recipe
    from limner.runs.records import Evaluation


# Arguments and options of this command.
ChangesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings of evaluation.* and decoding.* to change."),
]
RetrievalOption = Annotated[
    bool, typer.Option("--retrieval/--no-retrieval", help="Also measure image-text retrieval in both directions.")
]
MarginalOption = Annotated[
    int | None,
    typer.Option(
        "--marginal",
        help="Training images sampled to estimate P(sentence) for retrieval; 0: the images of the split; default: "
        "1000.",
        parser=Number(CountOrNone),
    ),
]
RegionBaselineOption = Annotated[
    Literal["frequent", "nearest", "caption"] | None,
    typer.Option(
        "--region-baseline",
        help="Sentences for the boxes that a dense captioner detects, in place of its own: the most frequent "
        "description, that of the nearest training region, or the caption of the whole image.",
    ),
]
RegionCaptionerOption = Annotated[
    Path | None, typer.Option("--region-captioner", metavar="RUN", help="Captioner of --region-baseline caption.")
]
MemoryOption = Annotated[
    int | None,
    typer.Option("--memory", help="Working memory of retrieval in MiB; default: 128.", parser=Number(Mebibytes)),
]
ExactOption = Annotated[
    bool,
    typer.Option("--exact", help="Compute retrieval in float32 without estimates; takes several times as long."),
]
AllOption = Annotated[
    bool, typer.Option("--all", help="Print all scores and their signatures, not only the main ones.")
]


@app.command(rich_help_panel=MEASURE)
def evaluate(
    changes: ChangesArgument = None,
    model: ModelsOption = None,
    *,
    collection: CollectionOption,
    split: EvaluatedSplitOption = None,
    metric: MetricsOption = None,
    beam_size: BeamSizeOption = None,
    length_penalty: LengthPenaltyOption = None,
    retrieval: RetrievalOption = True,
    marginal: MarginalOption = None,
    image_control: ImageControlOption = "right",
    memory: MemoryOption = None,
    exact: ExactOption = False,
    region_baseline: RegionBaselineOption = None,
    region_captioner: RegionCaptionerOption = None,
    skip_missing: SkipMissingOption = False,
    device: DeviceOption = "cpu",
    ray: RayOption = None,
    print_all: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure a model or an ensemble on a split: caption or translation metrics, perplexity, retrieval.

    The results are saved in the folder of the first run, where `limner report` and `limner compare` read them.

    Example: `limner evaluate evaluation.samples=10 --model runs/mrnn --collection collections/flickr8k --beam-size 5`
    """
    runs = require_models(model)
    from limner.data.collection import Collection
    from limner.distributed.generation import generator_on
    from limner.evaluation.evaluate import evaluate as evaluate_models
    from limner.evaluation.options import EvaluationOptions
    from limner.runs.trained_model import load_trained_model

    decoding = given(beam_size=beam_size, length_penalty=length_penalty)
    recipe = _check(runs, device, decoding, changes or [], metric or [])
    if not (retrieval and _can_retrieve(recipe)):
        refuse(
            {"--marginal": marginal, "--memory": memory, "--exact": exact},
            "have an effect only on retrieval; leave them out",
        )
    opened = Collection.open(collection)
    opened.require_split(name_or_default(split, recipe.data.test, "--split"))
    with activity("loading the model"):
        models = [load_trained_model(run, device) for run in runs]
    if models[0].recipe.model.describes_regions or image_control != "right":
        refuse({"--ray": ray}, "captions and translations of the right images only; leave it out")
    decoded_on = generator_on(ray, runs, collection, runs[0] / ".evaluation.units", device)
    with progress_bars() as progress, decoded_on as generate:
        evaluation = evaluate_models(
            models,
            opened,
            options=EvaluationOptions(
                **given(marginal_images=marginal, budget=None if memory is None else memory << 20),
                split=split,
                decoding=recipe.decoding,
                measures=recipe.evaluation,
                metrics=tuple(metric) if metric else None,
                retrieval=retrieval,
                exact=exact,
                image_control=image_control,
                skip_missing=skip_missing,
                regions=_region_options(region_baseline, region_captioner),
            ),
            command=command_line(),
            generate=generate,
            on_progress=progress,
            on_message=lambda line: err.print(f"{line}; --no-retrieval leaves it out", highlight=False, soft_wrap=True),
        )
    saved = _save(evaluation, runs[0])
    if not evaluation.scores:  # the decoded sentences are kept
        raise SettingsError("none of the metrics can be computed on this machine; the warnings say why, and the remedy")
    shown = evaluation.scores
    if not (print_all or metric):
        shown = tuple(main_scores(shown, translates=recipe.data.source_lang is not None))
    _print(evaluation, shown, models[0].recipe.published, saved.path, after_evaluate(runs[0]), as_json)
    saved.require()


def _save(evaluation: Evaluation, run: Path) -> SavedOutput:
    """Write an evaluation to its file in the run directory, or to a fallback."""
    from limner.evaluation.stored_evaluation import evaluation_path

    return save_output(evaluation_path(evaluation, run), evaluation.save)


def _print(
    evaluation: Evaluation,
    shown: Sequence[Score],
    published: Published | None,
    path: Path,
    next_command: str,
    as_json: bool,
) -> None:
    """Print scores beside the published values of the recipe, the path of the evaluation, and the next command."""
    if as_json:
        scores = [score._asdict() for score in evaluation.scores]
        summary = {"seconds": evaluation.seconds, "left_out": evaluation.left_out, "notes": evaluation.notes}
        print_json({"file": str(path), **summary, "scores": scores, "next": next_command})
        return
    more = len(evaluation.scores) - len(shown)
    print_scores(shown, published.values if published else {}, published.row if published else "", signatures=not more)
    if more:
        echo(f"--all prints {counted(more, 'more score')} and the settings of each; the file has them too")
    for line in evaluation.notes:
        echo(line)
    echo(f"{path} ({evaluation.seconds:.1f} s)")
    print_next(next_command)


def _check(runs: list[Path], device: str, decoding: dict[str, Any], changes: list[str], metrics: list[str]) -> Recipe:
    """Return the changed recipe of the first run, after a check of the options that need no weights."""
    from limner.metrics import REGION_METRICS, require_metrics
    from limner.runs.recipe import Recipe

    require_metrics(name for name in metrics if name not in REGION_METRICS)
    config = check_runs(runs, device, decoding)
    require_writable(runs[0] / "evaluation", str(runs[0]))
    return _change(Recipe.parse(config.recipe), [*changes, *(f"decoding.{k}={v}" for k, v in decoding.items())])


def _region_options(
    baseline: Literal["frequent", "nearest", "caption"] | None, captioner: Path | None
) -> RegionOptions:
    """Return the options of regions."""
    from limner.evaluation.regions import RegionOptions

    if baseline != "caption":
        refuse({"--region-captioner": captioner}, "has an effect only with --region-baseline caption")
    return RegionOptions(baseline=baseline, captioner=captioner)


def _can_retrieve(recipe: Recipe) -> bool:
    """Whether a model of images captions them, so that retrieval can be evaluated."""
    return recipe.data.source_lang is None and bool(recipe.features.tables)


def _change(recipe: Recipe, changes: list[str]) -> Recipe:
    """Return the recipe with other settings of evaluation and decoding."""
    from limner.runs.recipe import Recipe
    from limner.settings import override

    for change in changes:
        if not change.startswith(("evaluation.", "decoding.")):
            raise SettingsError(
                f"'{change}': expected evaluation.KEY=VALUE or decoding.KEY=VALUE, the settings that can change after "
                "training; models are named by --model"
            )
    return Recipe.parse(override(recipe.model_dump(mode="json"), changes))
