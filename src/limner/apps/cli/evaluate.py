"""The commands that measure models on a split, and write reports of the results: evaluate, report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from limner.apps.cli.app import MEASURE, command_line
from limner.apps.cli.next_steps import after_evaluate
from limner.apps.cli.options import (
    ModelOption,
    ModelsOption,
    check_runs,
    command,
    given,
    load_runs,
    refuse,
    require_models,
    require_one_model,
)
from limner.apps.cli.terminal import (
    activity,
    echo,
    err,
    main_scores,
    print_json,
    print_next,
    print_scores,
    progress_bars,
)
from limner.bounds import CountOrNone, Mebibytes
from limner.decoding.settings import DecodingSettings
from limner.errors import SettingsError, counted
from limner.storage.outputs import claim_file, name_or_default, require_writable, save_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limner.metrics import Score
    from limner.runs.recipe import Published, Recipe
    from limner.runs.records import Evaluation

REPORT = "report.html"
"""Name of the report in a run folder."""


@command(MEASURE)
def evaluate(
    changes: list[str] | None = None,
    *,
    model: ModelsOption = None,
    collection: Path,
    split: str | None = None,
    metric: list[str] | None = None,
    decoding: Annotated[dict[str, Any], DecodingSettings, "beam_size", "length_penalty"],
    retrieval: bool = True,
    marginal: CountOrNone | None = None,
    image_control: Literal["right", "shuffled", "mean", "zero"] = "right",
    memory: Mebibytes | None = None,
    exact: bool = False,
    region_baseline: Literal["frequent", "nearest", "caption"] | None = None,
    region_captioner: Path | None = None,
    skip_missing: bool = False,
    device: str = "cpu",
    ray: str | None = None,
    print_all: bool = False,
    as_json: bool = False,
) -> None:
    """Measure a model or an ensemble on a split: caption or translation metrics, perplexity, retrieval.

    The results are saved in the folder of the first run, where `limner report` and `limner compare` read them.

    Example: `limner evaluate evaluation.samples=10 --model runs/mrnn --collection collections/flickr8k --beam-size 5`

    Options:
        changes ([KEY=VALUE]...): Settings of evaluation.* and decoding.* to change.
        split: Split to evaluate; default: the recipe's test split.
        metric: Metric to compute; default: all available. Repeatable.
        retrieval (--retrieval/--no-retrieval): Also measure image-text retrieval in both directions.
        marginal: Training images sampled to estimate P(sentence) for retrieval; 0: the images of the split; default:
            1000.
        memory: Working memory of retrieval in MiB; default: 128.
        exact: Compute retrieval in float32 without estimates; takes several times as long.
        region_baseline: Sentences for the boxes that a dense captioner detects, in place of its own: the most frequent
            description, that of the nearest training region, or the caption of the whole image.
        region_captioner (RUN): Captioner of --region-baseline caption.
        print_all (--all): Print all scores and their signatures, not only the main ones.
    """
    runs = require_models(model)
    of_retrieval = {"marginal": marginal, "memory": memory, "exact": exact}
    if not retrieval:
        refuse(of_retrieval, "have an effect only on retrieval; leave them out")
    if region_baseline != "caption":
        refuse({"region_captioner": region_captioner}, "has an effect only with --region-baseline caption")
    recipe = _check(runs, device, decoding, changes or [], metric or [])
    from limner.apps.distributed.sentences import generator_on
    from limner.data.collection import Collection
    from limner.evaluation.evaluate import evaluate as evaluate_models
    from limner.evaluation.options import EvaluationOptions
    from limner.evaluation.regions import RegionOptions
    from limner.evaluation.stored_evaluation import evaluation_path

    if recipe.data.source_lang is not None or not recipe.features.tables:  # no captioner of images
        refuse(of_retrieval, "have an effect only on retrieval; leave them out")
    opened = Collection.open(collection)
    opened.require_split(name_or_default(split, recipe.data.test, "--split"))
    models = load_runs(runs, device)
    if models[0].recipe.model.describes_regions or image_control != "right":
        refuse({"--ray": ray}, "captions and translations of the right images only; leave it out")
    options = EvaluationOptions(
        **given(marginal_images=marginal, budget=None if memory is None else memory << 20),
        split=split,
        decoding=recipe.decoding,
        measures=recipe.evaluation,
        metrics=tuple(metric) if metric else None,
        retrieval=retrieval,
        exact=exact,
        image_control=image_control,
        skip_missing=skip_missing,
        regions=RegionOptions(baseline=region_baseline, captioner=region_captioner),
    )
    decoded_on = generator_on(ray, runs, collection, runs[0] / ".evaluation.units", device)
    with progress_bars() as progress, decoded_on as generate:
        evaluation = evaluate_models(
            models,
            opened,
            options=options,
            command=command_line(),
            generate=generate,
            on_progress=progress,
            on_message=lambda line: err.print(f"{line}; --no-retrieval leaves it out", highlight=False, soft_wrap=True),
        )
    saved = save_output(evaluation_path(evaluation, runs[0]), evaluation.save)
    if not evaluation.scores:  # the decoded sentences are kept
        raise SettingsError("none of the metrics can be computed on this machine; the warnings say why, and the remedy")
    shown = evaluation.scores
    if not (print_all or metric):
        shown = tuple(main_scores(shown, translates=recipe.data.source_lang is not None))
    _print(evaluation, shown, models[0].recipe.published, saved.path, after_evaluate(runs[0]), as_json)
    saved.require()


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
    config = check_runs(runs, device, decoding)
    from limner.metrics import REGION_METRICS, require_metrics
    from limner.runs.recipe import Recipe
    from limner.settings import override

    require_metrics(name for name in metrics if name not in REGION_METRICS)
    require_writable(runs[0] / "evaluation", str(runs[0]))
    for change in changes:
        if not change.startswith(("evaluation.", "decoding.")):
            raise SettingsError(
                f"'{change}': expected evaluation.KEY=VALUE or decoding.KEY=VALUE, the settings that can change after "
                "training; models are named by --model"
            )
    changes = [*changes, *(f"decoding.{key}={value}" for key, value in decoding.items())]
    return Recipe.parse(override(Recipe.parse(config.recipe).model_dump(mode="json"), changes))


@command(MEASURE)
def report(*, model: ModelOption = None, out: Path | None = None, force: bool = False, as_json: bool = False) -> None:
    """Write a report of a run as one self-contained HTML file: curves, metrics, captions, retrieval results.

    Run `limner evaluate` first: the report shows its results.

    Example: `limner report --model runs/mrnn --out report.html`

    Options:
        out (FILE): HTML file to write; default: report.html in the run folder.
    """
    run = require_one_model(model, "report")
    default = run / REPORT
    path = claim_file(out or default, "--out", force=force, default=default)
    from limner.apps.report import write_report

    with activity("writing the report"):
        saved = save_output(path, lambda file: write_report(run, file))
    print_json({"report": str(saved.path)}) if as_json else echo(str(saved.path))
    saved.require()
