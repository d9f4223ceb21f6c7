"""The command that measures models on a split of a collection: evaluate."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from limner.apps.cli import options, terminal
from limner.apps.cli.app import MEASURE, command_line
from limner.bounds import CountOrNone, Mebibytes
from limner.decoding.settings import DecodingSettings
from limner.errors import SettingsError, counted
from limner.runs.pretrained import model_type, results_folder
from limner.storage.outputs import name_or_default, require_writable, save_output

if TYPE_CHECKING:
    from limner.runs.evaluations import Evaluation
    from limner.runs.recipe import Recipe


@options.command(MEASURE)
def evaluate(
    changes: list[str] | None = None,
    *,
    model: options.ModelsOption = None,
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
    hub: options.HubOptions,
    lang: str | None = None,
    source_lang: str | None = None,
    to: str | None = None,
    from_: str | None = None,
    device: str = "cpu",
    ray: str | None = None,
    print_all: bool = False,
    as_json: bool = False,
) -> None:
    """Measure a model or an ensemble on a split: caption or translation metrics, perplexity, retrieval.

    The results are saved in the folder of the first run (of a built-in model, or a model of the hub: in the working
    directory), where `limner report` and `limner compare` read them. Of a model of the hub, the metrics of its captions
    or translations are computed, or the retrieval of a joint space, which only `limner compare` reads.

    Example: `limner evaluate evaluation.samples=10 --model runs/mrnn --collection collections/flickr8k --beam-size 5`

    Options:
        changes ([KEY=VALUE]...): Settings of evaluation.* and decoding.* to change.
        split: Split to evaluate; default: the recipe's test split.
        metric: Metric to compute; default: all available. Repeatable.
        retrieval (--retrieval/--no-retrieval): Also measure image-text retrieval in both directions.
        marginal: Training images sampled to estimate P(sentence) for retrieval; 0: the images of the split; default:
            1000.
        memory: Working memory of retrieval in MiB; default: 128.
        exact: Compute retrieval in float32, also where bfloat16 is faster.
        region_baseline: Sentences for the boxes that a dense captioner detects, in place of its own: the most frequent
            description, the description of the nearest training region, or the caption of the whole image.
        region_captioner (RUN): Captioner of --region-baseline caption.
        lang: Of a model of the hub: language of the captions or translations in the collection, and of the default
            prompt; default: en, or as the translator names it.
        source_lang: Of a translator of the hub: language of the source sentences in the collection; default: as the
            model names it.
        to (LANG): Language that a translator of the hub translates to, as its tokenizer names it, such as deu_Latn.
        from_ (LANG): Language that it translates from; default: of its tokenizer.
        print_all (--all): Print all scores and their signatures, not only the main scores.
    """
    runs = options.require_models(model)
    of_hub = next((run for run in runs if model_type(run) is not None), None)
    if of_hub is not None and len(runs) > 1:
        raise SettingsError(f"--model {of_hub}: a model of the hub is no part of an ensemble; name it alone")
    of_retrieval = {"marginal": marginal, "memory": memory, "exact": exact}
    languages = options.without_none(lang=lang, source_lang=source_lang)
    if region_baseline != "caption":
        options.refuse({"region_captioner": region_captioner}, "has an effect only with --region-baseline caption")
    if model and of_hub is not None:
        of_run = {**of_retrieval, "no_retrieval": not retrieval, "ray": ray, "skip_missing": skip_missing}
        of_run |= {"image_control": image_control != "right", "region_baseline": region_baseline}
        options.refuse(of_run, f"needs a run, and {of_hub} is a model of the hub; leave it out")
        changes = [*(changes or []), *(f"decoding.{key}={value}" for key, value in decoding.items())]
        hub |= options.without_none(to=to, source=from_, device=device)
        evaluation = evaluate_hub_model(model, collection, split, metric or [], changes, hub, languages)
        return _save_and_print(evaluation, model[0], None, print_all or bool(metric), as_json)
    options.refuse({**hub, **languages, "to": to, "from": from_}, options.HUB_ONLY.format(runs[0]))
    if not retrieval:
        options.refuse(of_retrieval, "have an effect only on retrieval; leave them out")
    recipe = _check(runs, device, decoding, changes or [], metric or [])
    from limner.data.collection import Collection
    from limner.evaluation.evaluate import EvaluationOptions
    from limner.evaluation.evaluate import evaluate as evaluate_models
    from limner.evaluation.regions import RegionOptions

    if recipe.data.source_lang is not None or not recipe.features.tables:  # no captioner of images
        options.refuse(of_retrieval, "have an effect only on retrieval; leave them out")
    opened = Collection.open(collection)
    opened.require_split(name_or_default(split, recipe.data.test, "--split"))
    models = options.load_runs(runs, device)
    if models[0].recipe.model.describes_regions or image_control != "right":
        options.refuse({"--ray": ray}, "captions and translations of the right images only; leave it out")
    scope = EvaluationOptions(
        **options.without_none(marginal_images=marginal, budget=None if memory is None else memory << 20),
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
    decoded_on = options.generator(ray, runs, collection, results_folder(runs[0]) / ".evaluation.units", device)
    with terminal.progress_bars() as progress, decoded_on as generate:
        evaluation = evaluate_models(
            models, opened, options=scope, command=command_line(), generate=generate, on_progress=progress
        )
    _save_and_print(evaluation, runs[0], models[0].recipe, print_all or bool(metric), as_json)


def evaluate_hub_model(
    models: list[Path],
    collection: Path,
    split: str | None,
    metrics: Sequence[str],
    changes: list[str],
    hub: dict[str, Any],
    languages: dict[str, Any],
) -> Evaluation:
    """Evaluate a model of the hub, whose results are stored in the working directory under its name."""
    folder = options.require_one_model(models, "evaluate")
    if others := [change for change in changes if not change.startswith("decoding.")]:
        raise SettingsError(f"'{others[0]}': expected decoding.KEY=VALUE, the settings of a model of the hub")
    require_writable(results_folder(models[0]) / "evaluation", str(models[0]))
    from limner.data.collection import Collection
    from limner.evaluation.hub import evaluate_hub
    from limner.hub.families import family_of
    from limner.inference.load import load_hub
    from limner.metrics import CAPTION_SCORES, require_metrics
    from limner.runs.evaluations import hub_model, read_evaluations, require_model
    from limner.settings import override

    decoding = override({"decoding": {}}, changes)["decoding"]
    for stored in read_evaluations(models[0]):
        require_model(stored, models[0])
    require_metrics(name for name in metrics if name not in CAPTION_SCORES)
    opened, split = Collection.open(collection), name_or_default(split, "test", "--split")
    opened.require_split(split)
    if family_of(folder).task == "describe":
        options.refuse({"source_lang": languages.pop("source_lang", None)}, "is of translators; leave it out")
        hub = {**hub, **languages}
    with terminal.activity("loading the model"):
        loaded = load_hub(folder, tasks=("describe", "translate", "match"), **hub)
    with terminal.progress_bars() as bars:
        result = evaluate_hub(loaded, opened, split, metrics, decoding, **languages, on_progress=bars)
    return result.model_copy(update={"model": hub_model(models[0]), "command": command_line()})


def _save_and_print(evaluation: Evaluation, run: Path, recipe: Recipe | None, print_all: bool, as_json: bool) -> None:
    """Save and print an evaluation, of a run with its recipe; SettingsError if it has no scores."""
    from limner.runs.evaluations import evaluation_path

    saved, shown = save_output(evaluation_path(evaluation, run), evaluation.save), evaluation.scores
    if not shown:  # the decoded sentences are kept
        raise SettingsError("none of the metrics can be computed on this machine; the warnings say why, and the remedy")
    if not print_all:
        shown = tuple(terminal.main_scores(shown, translates=bool(recipe and recipe.data.source_lang)))
    next_command = shlex.join(["limner", "report", "--model", str(run)]) if recipe else ""
    if as_json:
        scores = [score._asdict() for score in evaluation.scores]
        summary = {"seconds": evaluation.seconds, "left_out": evaluation.left_out, "notes": evaluation.notes}
        terminal.print_json({"file": str(saved.path), **summary, "scores": scores, "next": next_command})
        return saved.require()
    more, published = len(evaluation.scores) - len(shown), recipe and recipe.published
    row, values = (published.row, published.values) if published else ("", {})
    terminal.print_scores(shown, values, row, signatures=not more)
    if more:
        terminal.echo(f"--all prints {counted(more, 'more score')} and the settings of each; the file has them too")
    for line in (*evaluation.notes, f"{saved.path} ({evaluation.seconds:.1f} s)"):
        terminal.echo(line)
    if next_command:
        terminal.print_next(next_command)
    saved.require()


def _check(runs: list[Path], device: str, decoding: dict[str, Any], changes: list[str], metrics: list[str]) -> Recipe:
    """Check the options without reading weights; return the changed recipe of the first run."""
    config = options.check_runs(runs, device, decoding)
    from limner.metrics import IMAGE_METRICS, require_metrics
    from limner.runs.recipe import Recipe
    from limner.settings import override

    require_metrics(name for name in metrics if name not in IMAGE_METRICS)
    require_writable(results_folder(runs[0]) / "evaluation", str(runs[0]))
    for change in changes:
        if not change.startswith(("evaluation.", "decoding.")):
            raise SettingsError(
                f"'{change}': expected evaluation.KEY=VALUE or decoding.KEY=VALUE, the settings that can change after "
                "training; models are named by --model"
            )
    changes = [*changes, *(f"decoding.{key}={value}" for key, value in decoding.items())]
    return Recipe.parse(override(Recipe.parse(config.recipe).model_dump(mode="json"), changes))
