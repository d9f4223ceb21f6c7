"""Training and evaluation of the rows of a published table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from limner.apps.reproduce.derived import (
    BACK_TRANSLATED,
    RECORD,
    BackTranslatedRecord,
    back_translated,
    needs_back_translation,
    with_corpus,
)
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
from limner.apps.reproduce.preflight import check, initial_run, parse_stored_recipe
from limner.apps.reproduce.render import write_table
from limner.apps.reproduce.results import CorpusRecord, Reproduction, RowResult, read_results
from limner.apps.reproduce.tables import PublishedTable
from limner.data.collection import Collection
from limner.evaluation.evaluate import evaluate
from limner.evaluation.gradients import measure_gradients
from limner.evaluation.options import EvaluationOptions
from limner.evaluation.stored_evaluation import save_evaluation
from limner.progress import StageProgress
from limner.retrieval.marginal import MARGINAL_IMAGES
from limner.runs.records import RunConfig
from limner.runs.trained_model import load_trained_model
from limner.training.loop import train


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
        SettingsError: the collection is of another data set than the table; a row is unknown, has no recipe, or needs
            a corpus that is not given; or a recipe does not fit the data.
        FeatureError: the collection lacks features that a recipe uses.
        RunError: `out` contains a row of another table or collection, or one of these rows with other settings,
            features, initial weights or corpus; or `init` is not a run directory.
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
    model, recipe = load_trained_model(best.run), plan.recipe_of(best.run)
    evaluation = evaluate(
        [model],
        job.collection,
        options=EvaluationOptions(
            decoding=recipe.decoding,  # the run may have been trained with other decoding and evaluation settings
            measures=recipe.evaluation,
            metrics=tuple(job.table.metrics),
            image_control=row.image_control,
            retrieval=job.table.retrieval and row.image_control == "right",
            marginal_images=MARGINAL_IMAGES if job.table.has_normalised_retrieval else 0,
        ),
        command=job.command,
        on_progress=lambda stage, done, total: job.on_progress(f"{stage} {row.name}", done, total),
    )
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
    """Train a run, or resume it if it exists, on the collection or on one that is derived from it."""
    train(
        training.recipe,
        _collection_of(training, job),
        training.run,
        resume=training.run.exists(),
        init=training.init,
        command=job.command,
        on_progress=lambda news: job.on_progress(
            f"training {training.run.name}{news.part and f', {news.part}'}", news.steps, news.total_steps
        ),
    )


def _collection_of(training: TrainingRun, job: ReproductionJob) -> Collection:
    """The collection of a training: derived if it needs a corpus, or generated sentences that the table's lacks."""
    data = training.recipe.data
    if training.corpus is not None:
        return with_corpus(training, job)
    if not needs_back_translation(data, job.collection):
        return job.collection
    translator = translator_of(job)
    if isinstance(translator, TrainingRun):
        _train(translator, job)
        translator = translator.run
    return back_translated(data, translator, job)


def _back_translation(trainings: Iterable[TrainingRun], job: ReproductionJob) -> tuple[str | None, list[Path]]:
    """Name of the run that generated source sentences for a training, if one did; and its folder, if trained here."""
    if not any(needs_back_translation(training.recipe.data, job.collection) for training in trainings):
        return None, []
    translator = translator_of(job)
    trained = [translator.run] if isinstance(translator, TrainingRun) else []
    return BackTranslatedRecord.load(job.out / BACK_TRANSLATED / RECORD).generated_by, trained


def _remaining_alternatives(plan: RowPlan, job: ReproductionJob) -> tuple[TrainingSequence, ...]:
    """The alternatives to train: all with the first seed, with later seeds the one selected with the first."""
    first = plan_row(plan.row, job)
    if len(plan.alternatives) == 1 or plan.result_path == first.result_path:
        return plan.alternatives
    selected = parse_stored_recipe(RowResult.load(first.result_path).recipe)
    pairs = zip(plan.alternatives, first.recipes, strict=True)
    return tuple(sequence for sequence, recipe in pairs if recipe == selected)


def _recorded_value(run: Path, name: str) -> float:
    return float(RunConfig.load(run / "config.json").provenance[name])
