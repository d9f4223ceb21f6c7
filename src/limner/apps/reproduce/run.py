"""Training and evaluation of the rows of a published table, after all of them were checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from limner.apps.reproduce import derived
from limner.apps.reproduce.plan import (
    ReproductionJob,
    ReproductionSettings,
    RowPlan,
    TrainingRun,
    TrainingSequence,
    plan_row,
    recipe_folder_of,
    select_rows,
    table_of_collection,
    translator_of,
)
from limner.apps.reproduce.render import write_table
from limner.apps.reproduce.results import CorpusRecord, InitialRun, Reproduction, RowResult, read_results, result_paths
from limner.apps.reproduce.tables import PublishedRow, PublishedTable
from limner.data.collection import Collection
from limner.data.dataset import Examples
from limner.errors import RunError, SettingsError
from limner.evaluation.evaluate import EvaluationOptions, evaluate
from limner.evaluation.gradients import measure_gradients
from limner.evaluation.retrieval import require_shortlist
from limner.features.store import FeatureStore
from limner.inference.features import control_features, open_features
from limner.models.phrase_based import PhraseBasedSettings
from limner.progress import StageProgress
from limner.retrieval.marginal import MARGINAL_IMAGES
from limner.runs.evaluations import save_evaluation
from limner.runs.recipe import EvaluationSettings, Recipe
from limner.runs.records import RunConfig
from limner.runs.trained_model import WEIGHTS, TrainedModel, load_trained_model, require_trained, sha256
from limner.training.context import TrainProgress
from limner.training.loop import train
from limner.training.setup import prepare, require_counted_words


def check(rows: Sequence[PublishedRow], job: ReproductionJob) -> None:
    """Validate stored results, data and settings of all rows, so that no error occurs after hours of training."""
    for run in (job.settings.init, job.settings.back_translator):
        if run is not None:
            require_trained(run)
    fingerprint = job.collection.fingerprint()
    for path in [path for row in job.table.rows for path in result_paths(row, job.out)]:
        result = RowResult.load(path)
        if result.table != job.table.name:
            raise RunError(f"{path}: is a row of {result.table}; choose another --out")
        if result.evaluation.fingerprint != fingerprint:
            raise RunError(f"{path}: made from another collection; choose another --out")
    stages: list[TrainingRun] = []
    pending: list[tuple[Path, PublishedRow, EvaluationSettings]] = []
    for row in rows:
        for path in result_paths(row, job.out):
            _check_result(path, row, job)
        first = plan_row(row, job)
        repetitions = range(job.settings.seeds)
        if any(not plan_row(row, job, repetition).result_path.exists() for repetition in repetitions):
            stages += [stage for sequence in first.alternatives for stage in sequence]
            pairs = zip(first.alternatives, first.recipes, strict=True)
            pending += [(sequence[-1].run, row, recipe.evaluation) for sequence, recipe in pairs]
    trainings = list({training.run: training for training in stages}.values())
    for done, training in enumerate(trainings):
        job.on_progress("checking", done, len(trainings))
        # Runs of the table that initialise others do not exist yet.
        init = training.init if training.init == job.settings.init else None
        collection = job.collection if training.corpus is None else derived.with_corpus(training, job)
        model = prepare(_checked_recipe(training, job), collection, job.command, init)[0]
        for row, measures in [(row, measures) for run, row, measures in pending if run == training.run]:
            retrieval = job.table.retrieval and row.image_control == "right"
            _require_evaluable(model, row, measures, job.collection, retrieval)


def _checked_recipe(training: TrainingRun, job: ReproductionJob) -> Recipe:
    """Return the recipe of a training, without generated source sentences that are still to be generated."""
    data, model = training.recipe.data, training.recipe.model
    if training.corpus is None and isinstance(model, PhraseBasedSettings) and model.language_model == "all":
        derived.require_descriptions(data, job)  # without them, the row would equal the row of the pairs
    if training.corpus is not None or not derived.needs_back_translation(data, job.collection):
        return training.recipe
    derived.check_back_translation(data, job)
    if isinstance(translator := translator_of(job), TrainingRun):
        prepare(translator.recipe, job.collection, job.command, translator.init)
    return training.recipe.model_copy(update={"data": data.model_copy(update={"synthetic": 0.0})})


def initial_run(init: Path | None) -> InitialRun | None:
    """The record of the run that initialises a row."""
    if init is None:
        return None
    trained = {name: RunConfig.load(init / "config.json").provenance.get(name) for name in ("command", "seconds")}
    return InitialRun(run=init.resolve().name, weights_sha256=sha256(init / WEIGHTS), **trained)


def _check_result(path: Path, row: PublishedRow, job: ReproductionJob) -> None:
    """Check that a stored result has the settings of this reproduction."""
    result, first = RowResult.load(path), plan_row(row, job)
    plan = plan_row(row, job, max(0, result.seed - first.recipes[0].training.seed))
    same_recipe = path == plan.result_path and parse_stored_recipe(result.recipe) in plan.recipes
    if not same_recipe or [parse_stored_recipe(stage) for stage in result.pretraining] != plan.pretraining:
        raise RunError(f"{path}: made with other settings; choose another --out, or remove this file")
    if row.corpus is not None:
        derived.require_same_corpus(path, result.corpus, job)
    stored, expected = result.initialised_from, initial_run(job.settings.init)
    if (stored and stored.weights_sha256) != (expected and expected.weights_sha256):
        raise RunError(
            f"{path}: was initialised from {stored or 'random weights'}, expected {expected or 'random weights'}; use "
            "the same --init, or another --out"
        )
    settings = plan.recipes[0].features
    tables = FeatureStore.open(job.collection, settings.tables, settings.cache_mib).tables
    fingerprints = tuple(table.spec.fingerprint for table in tables)
    if fingerprints != result.features:
        raise RunError(
            f"{path}: made from other features ({', '.join(result.features) or 'none'}; the collection has "
            f"{', '.join(settings.tables)}: {', '.join(fingerprints)}); choose another --out, or restore the features"
        )


def parse_stored_recipe(settings: dict[str, Any]) -> Recipe | None:
    """Parse a stored recipe, with defaults for settings added since; None if it does not fit the present version."""
    try:
        return Recipe.parse(settings)
    except SettingsError:
        return None


def _require_evaluable(
    model: TrainedModel, row: PublishedRow, evaluation: EvaluationSettings, collection: Collection, retrieval: bool
) -> None:
    """Raise the errors that the evaluation of the row would raise after training."""
    split, features = model.recipe.data.test, open_features(model, collection)
    leave_out = model.recipe.features.missing == "leave_out"
    examples = Examples.of_split(collection, split, model.target, features, source=model.source, leave_out=leave_out)
    if retrieval and features is not None and model.source is None:
        require_shortlist(evaluation.shortlist, examples.items)
    control_features(model, collection, features, row.image_control, examples.items, 1)
    require_counted_words(examples, split, evaluation.skip_words)


def reproduce_table(
    table: PublishedTable,
    collection: Collection,
    out: Path,
    *,
    settings: ReproductionSettings | None = None,
    command: str = "limner.reproduce_table",
    on_progress: StageProgress | None = None,
) -> Reproduction:
    """Train and evaluate the rows of a table, and write the results beside the published scores.

    An interrupted reproduction is resumed by the same call: finished rows are read from `out`. The table shows every
    row in `out`, with its differences from the table's own recipe. Data and settings are validated before the first
    training run.

    Args:
        table: the published table.
        collection: collection with the features that the recipes use.
        out: folder for `runs/`, `rows/`, `table.md`, `table.json`, `significance.json` and plots of the recall curves.
        settings: rows, seeds, recipe changes and a corpus; default: every row that needs no corpus, with one seed and
            an unchanged recipe.
        command: the command line, for the records.
        on_progress: called with the stage, the units done and their total.

    Raises:
        LimnerError: the collection, a row, a corpus or a recipe does not fit, or the collection lacks features; or
            `out` has other results, or these rows with other settings, features, initial weights or corpus.
    """
    settings = settings or ReproductionSettings()
    table = table_of_collection(table, collection, settings.dataset)
    rows = select_rows(table, settings)
    report = on_progress or (lambda stage, done, total: None)
    corpus = Collection.open(settings.corpus) if settings.corpus and any(row.corpus for row in rows) else None
    job = ReproductionJob(table, collection, out, settings, command, report, corpus)
    check(rows, job)
    reproduction = None
    for done, row in enumerate(rows):
        job.on_progress("rows", done, len(rows))
        for repetition in range(settings.seeds):
            plan = plan_row(row, job, repetition)
            if not plan.result_path.exists():
                _train_and_evaluate(plan, job)
        reproduction = write_table(table, read_results(table, out), out, job.on_progress)
    job.on_progress("rows", len(rows), len(rows))
    assert reproduction is not None, "a table has rows"
    return reproduction


def _train_and_evaluate(plan: RowPlan, job: ReproductionJob) -> None:
    """Train or resume the runs of a row, evaluate the best alternative, and store the result."""
    row = plan.row
    alternatives = _remaining_alternatives(plan, job)
    trainings = {training.run: training for sequence in alternatives for training in sequence}
    for training in trainings.values():
        _train(training, job)
    best = alternatives[0][-1]
    if len(alternatives) > 1:
        trained = (sequence[-1] for sequence in alternatives)
        best = min(trained, key=lambda training: _recorded_value(training.run, "validation_perplexity"))
    model, runs = load_trained_model(best.run), [sequence[-1].run for sequence in plan.alternatives]
    recipe = plan.recipes[runs.index(best.run)]
    options = EvaluationOptions(
        decoding=recipe.decoding,  # the run may have been trained with other decoding and evaluation settings
        measures=recipe.evaluation,
        metrics=tuple(job.table.metrics),
        image_control=row.image_control,
        retrieval=job.table.retrieval and row.image_control == "right",
        marginal_images=MARGINAL_IMAGES if job.table.has_normalised_retrieval else 0,
    )

    def show(stage: str, done: int, total: int) -> None:
        job.on_progress(f"{stage} {row.name}", done, total)

    evaluation = evaluate([model], job.collection, options=options, command=job.command, on_progress=show)
    gradients = None
    if job.table.gradients:
        gradients = measure_gradients(model, job.collection, command=job.command, on_progress=job.on_progress)
        gradients.save_in(best.run)
    back_translated_by, translators = _back_translation(trainings.values(), job)
    runs = [*trainings, *translators]
    result = RowResult(
        table=job.table.name,
        row=row.name,
        recipe=recipe.model_dump(mode="json"),
        recipe_folder=recipe_folder_of(str(row.recipe), job),
        overrides=job.settings.overrides,
        pretraining=tuple(recipe.model_dump(mode="json") for recipe in plan.pretraining),
        initialised_from=initial_run(job.settings.init),
        back_translated_by=back_translated_by,
        corpus=None if row.corpus is None or job.corpus is None else CorpusRecord.from_collection(job.corpus),
        features=tuple(spec.fingerprint for spec in model.config.features),
        run=str(best.run.relative_to(job.out)),
        image_control=row.image_control,
        budget=job.settings.budget,
        seconds=round(sum(_recorded_value(run, "seconds") for run in runs), 1),
        processor_seconds=round(sum(_recorded_value(run, "processor_seconds") for run in runs), 1),
        evaluation=evaluation,
        gradients=gradients,
    )
    plan.result_path.parent.mkdir(parents=True, exist_ok=True)
    result.save(plan.result_path)
    if evaluation.items:  # for `limner compare` and `limner report`, which read hypotheses
        save_evaluation(evaluation, best.run)


def _train(training: TrainingRun, job: ReproductionJob) -> None:
    """Train a run, or resume it if it exists, on the collection or on a derived collection."""
    collection, run = _collection_of(training, job), training.run

    def show(progress: TrainProgress) -> None:
        part = progress.part and f", {progress.part}"
        job.on_progress(f"training {run.name}{part}", progress.steps, progress.total_steps)

    options: dict[str, Any] = {"resume": run.exists(), "init": training.init, "command": job.command}
    train(training.recipe, collection, run, **options, on_progress=show)


def _collection_of(training: TrainingRun, job: ReproductionJob) -> Collection:
    """Return the collection of a training, derived if the training needs a corpus or missing generated sentences."""
    data = training.recipe.data
    if training.corpus is not None:
        return derived.with_corpus(training, job)
    if not derived.needs_back_translation(data, job.collection):
        return job.collection
    translator = translator_of(job)
    if isinstance(translator, TrainingRun):
        _train(translator, job)
        translator = translator.run
    return derived.back_translated(data, translator, job)


def _back_translation(trainings: Iterable[TrainingRun], job: ReproductionJob) -> tuple[str | None, list[Path]]:
    """Return the name of the run that generated source sentences for a training, and its folder if trained here."""
    if not any(derived.needs_back_translation(training.recipe.data, job.collection) for training in trainings):
        return None, []
    translator = translator_of(job)
    trained = [translator.run] if isinstance(translator, TrainingRun) else []
    return derived.BackTranslatedRecord.load(job.out / derived.BACK_TRANSLATED / derived.RECORD).generated_by, trained


def _remaining_alternatives(plan: RowPlan, job: ReproductionJob) -> tuple[TrainingSequence, ...]:
    """The alternatives to train: all with the first seed, later the alternative that the first seed selected."""
    first = plan_row(plan.row, job)
    if len(plan.alternatives) == 1 or plan.result_path == first.result_path:
        return plan.alternatives
    selected = parse_stored_recipe(RowResult.load(first.result_path).recipe)
    pairs = zip(plan.alternatives, first.recipes, strict=True)
    return tuple(sequence for sequence, recipe in pairs if recipe == selected)


def _recorded_value(run: Path, name: str) -> float:
    return float(RunConfig.load(run / "config.json").provenance[name])
