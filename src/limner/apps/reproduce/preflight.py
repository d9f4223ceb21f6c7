"""Validation of a reproduction before its first training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limner.apps.reproduce.derived import (
    check_back_translation,
    needs_back_translation,
    require_descriptions,
    require_same_corpus,
    with_corpus,
)
from limner.apps.reproduce.plan import ReproductionJob, TrainingRun, plan_row, translator_of
from limner.apps.reproduce.results import InitialRun, RowResult, result_paths
from limner.apps.reproduce.tables import PublishedRow
from limner.data.collection import Collection
from limner.data.dataset import Examples
from limner.errors import RunError, SettingsError
from limner.features.store import FeatureStore
from limner.inference.collection_features import control_features, open_features
from limner.models.phrase_based import PhraseBasedSettings
from limner.retrieval.shortlist import require_shortlist
from limner.runs.recipe import EvaluationSettings, Recipe
from limner.runs.records import RunConfig
from limner.runs.trained_model import WEIGHTS, TrainedModel, require_trained, sha256
from limner.training.setup import prepare, require_counted_words


def check(rows: Sequence[PublishedRow], job: ReproductionJob) -> None:
    """Validate stored results, data and settings of all rows, so that no error occurs after hours of training.

    Raises:
        LimnerError: any error that training or evaluation would raise for the data and settings.
    """
    _check_named_runs(rows, job)
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
            pending += [
                (sequence[-1].run, row, recipe.evaluation)
                for sequence, recipe in zip(first.alternatives, first.recipes, strict=True)
            ]
    trainings = list({training.run: training for training in stages}.values())
    for done, training in enumerate(trainings):
        job.on_progress("checking", done, len(trainings))
        # Runs of the table that initialise others do not exist yet.
        init = training.init if training.init == job.settings.init else None
        collection = job.collection if training.corpus is None else with_corpus(training, job)
        model = prepare(_checked_recipe(training, job), collection, job.command, init)[0]
        for row, measures in [(row, measures) for run, row, measures in pending if run == training.run]:
            retrieval = job.table.retrieval and row.image_control == "right"
            _require_evaluable(model, row, measures, job.collection, retrieval)


def _checked_recipe(training: TrainingRun, job: ReproductionJob) -> Recipe:
    """The recipe of a training, without generated source sentences if these do not exist yet, but can be generated."""
    data, model = training.recipe.data, training.recipe.model
    if training.corpus is None and isinstance(model, PhraseBasedSettings) and model.language_model == "all":
        require_descriptions(data, job)  # without them, the row would be that of the pairs
    if training.corpus is not None or not needs_back_translation(data, job.collection):
        return training.recipe
    check_back_translation(data, job)
    if isinstance(translator := translator_of(job), TrainingRun):
        prepare(translator.recipe, job.collection, job.command, translator.init)
    return training.recipe.model_copy(update={"data": data.model_copy(update={"synthetic": 0.0})})


def initial_run(init: Path | None) -> InitialRun | None:
    """The record of the run that initialises a row."""
    if init is None:
        return None
    trained = {name: RunConfig.load(init / "config.json").provenance.get(name) for name in ("command", "seconds")}
    return InitialRun(run=init.resolve().name, weights_sha256=sha256(init / WEIGHTS), **trained)


def _check_named_runs(rows: Sequence[PublishedRow], job: ReproductionJob) -> None:
    """Check the runs that are named by options."""
    init, translator = job.settings.init, job.settings.back_translator
    if init is not None:
        require_trained(init)
    if translator is None:
        return
    stages = (stage for row in rows for sequence in plan_row(row, job).alternatives for stage in sequence)
    if not any(needs_back_translation(stage.recipe.data, job.collection) for stage in stages):
        raise SettingsError(
            f"--back-translator {translator}: has no effect, as no selected row trains with generated source sentences "
            f"that {job.collection.path} lacks; leave it out, or select such a row with --row"
        )
    require_trained(translator)


def _check_result(path: Path, row: PublishedRow, job: ReproductionJob) -> None:
    """Check that a stored result has the settings of this reproduction."""
    result, first = RowResult.load(path), plan_row(row, job)
    plan = plan_row(row, job, max(0, result.seed - first.recipes[0].training.seed))
    same_recipe = path == plan.result_path and parse_stored_recipe(result.recipe) in plan.recipes
    if not same_recipe or [parse_stored_recipe(stage) for stage in result.pretraining] != plan.pretraining:
        raise RunError(f"{path}: made with other settings; choose another --out, or remove this file")
    if row.corpus is not None:
        require_same_corpus(path, result.corpus, job)
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
            f"{path}: made from other features ({', '.join(result.features) or 'none'}; those of the collection are "
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
    data = model.recipe.data
    leave_out = model.recipe.features.missing == "leave_out"
    features = open_features(model, collection)
    examples = Examples.of_split(
        collection, data.test, model.target, features, source=model.source, leave_out=leave_out
    )
    if retrieval and features is not None and model.source is None:
        require_shortlist(evaluation.shortlist, examples.items)
    control_features(model, collection, features, row.image_control, examples.items, 1)
    require_counted_words(examples, data.test, evaluation.skip_words)
    if not evaluation.samples:
        return
    if model.source is not None:
        raise SettingsError(
            f"evaluation.samples: {evaluation.samples}, but translations are not sampled; use evaluation.samples=0"
        )
    longest = max(len(model.tokenizer.words(text)) for text in examples.texts)
    if longest <= evaluation.prefix_words:
        raise SettingsError(
            f"evaluation.prefix_words: {evaluation.prefix_words}, but no sentence of split '{data.test}' has more than "
            f"{longest} words; use at most evaluation.prefix_words={max(0, longest - 1)}"
        )
