"""What is refused before the first training of a table: what training or measuring would refuse, or mix up, later."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from limner.data.collection import Collection
from limner.data.dataset import Examples
from limner.errors import RunError, SettingsError
from limner.features.sources import FeatureStore
from limner.inference.collection_features import control_features, open_features
from limner.reproduce.plan import Job, Plan, Training, all_kept, as_of_now, folder_of, kept_of, plan
from limner.reproduce.tables import Begun, Outcome, Row
from limner.retrieval.shortlist import require_shortlist
from limner.runs.recipe import Recipe
from limner.runs.trained_model import Config, TrainedModel, sha256
from limner.training.setup import prepare, require_counted_words


def check(rows: Sequence[Row], job: Job) -> None:
    """Refuse before the first training what would be refused after one.

    Raises:
        LimnerError: whatever training or measuring would raise for the data and the settings.
    """
    fingerprint = job.collection.fingerprint()
    for kept in all_kept(job.table, job.out):
        if Outcome.load(kept).evaluation.fingerprint != fingerprint:
            raise RunError(f"{kept}: made from another collection; name another --out")
    missing: list[tuple[Training, Row | None]] = []
    for row in rows:
        for kept in kept_of(row, job.out):
            _take_over(kept, row, job)
        first = plan(row, job)
        if any(not plan(row, job, repeat).kept.exists() for repeat in range(job.seeds)):
            _require_one_pair_of_languages(first)
            missing += [(stage, None) for stage in first.choices[0][:-1]]
            missing += [(chain[-1], row) for chain in first.choices]
    trainings = list({training.run: training for training, _ in missing}.values())
    for done, training in enumerate(trainings):
        job.note("checking", done, len(trainings))
        # What it begins with is not there yet, unless it is no part of the table.
        init = training.init if training.init == job.init else None
        learner = prepare(training.recipe, job.collection, job.command, init)[0]
        for row in (row for one, row in missing if row is not None and one.run == training.run):
            _require_evaluable(learner, row, job.collection)


def initialised_from(init: Path | None) -> Begun | None:
    """What is kept of a run that rows begin with."""
    return None if init is None else Begun(run=init.resolve().name, weights_sha256=sha256(init / "model.safetensors"))


def _take_over(kept: Path, row: Row, job: Job) -> None:
    """Refuse a row that is there already and is another one; complete its record where it is an older one.

    Raises:
        RunError: it was made with other settings, features or weights to begin with.
    """
    outcome, first = Outcome.load(kept), plan(row, job)
    wanted = plan(row, job, max(0, outcome.seed - first.recipes[0].training.seed))
    known = kept == wanted.kept and as_of_now(outcome.recipe) in wanted.recipes
    if not known or [as_of_now(stage) for stage in outcome.stages] != wanted.stages:
        raise RunError(f"{kept}: made with other settings; name another --out, or remove this file")
    if _weights(outcome.begun) != _weights(initialised_from(job.init)):
        raise RunError(
            f"{kept}: began with {_named(outcome.begun)}, and would now begin with {_named(initialised_from(job.init))}; "
            "name the same --init, or another --out"
        )
    features = _require_features(kept, outcome, wanted.recipes[0], job)
    if outcome.recipes is None:  # a record that does not say it, of the same settings
        told = {"recipes": folder_of(row, job), "changes": job.changes, "features": features}
        outcome.model_copy(update=told).save(kept)


def _weights(begun: Begun | None) -> str | None:
    return None if begun is None else begun.weights_sha256


def _named(begun: Begun | None) -> str:
    return "fresh weights" if begun is None else f"run '{begun.run}' (weights {begun.weights_sha256[:12]})"


def _require_features(kept: Path, outcome: Outcome, recipe: Recipe, job: Job) -> tuple[str, ...]:
    """The fingerprints of the features that a row was made from, which must be those of the collection."""
    features = recipe.features
    tables = FeatureStore.open(job.collection, features.tables, features.cache_mib).tables
    mine, theirs = tuple(table.spec.fingerprint for table in tables), outcome.features
    if theirs is None:
        config = job.out / outcome.run / "config.json"
        theirs = tuple(spec.fingerprint for spec in Config.load(config).features) if config.exists() else mine
    if mine != theirs:
        raise RunError(
            f"{kept}: made from other features ({', '.join(theirs) or 'none'}; the collection's "
            f"{', '.join(features.tables)} are {', '.join(mine)}); name another --out, or restore those features"
        )
    return theirs


def _require_one_pair_of_languages(first: Plan) -> None:
    """A training takes over the vocabularies of the one it begins with."""
    chain = first.choices[0]
    for before, training in pairwise(chain):
        theirs, ours = ((of.recipe.data.source_lang, of.recipe.data.lang) for of in (before, training))
        if theirs != ours:
            raise SettingsError(
                f"row '{first.row.name}': {training.run.name} learns from {ours[0]} to {ours[1]}, and "
                f"{before.run.name}, which it begins with, from {theirs[0]} to {theirs[1]}"
            )


def _require_evaluable(learner: TrainedModel, row: Row, collection: Collection) -> None:
    """Refuse what measuring the row would refuse, once it is trained."""
    data, measure = learner.recipe.data, learner.recipe.evaluation
    leave_out = learner.recipe.features.missing == "leave_out"
    features = open_features(learner, collection)
    examples = Examples.of_split(
        collection, data.test, learner.target, features, source=learner.source, leave_out=leave_out
    )
    if row.pictures == "right" and features is not None and learner.source is None:
        require_shortlist(measure.shortlist, examples.items)
    control_features(learner, collection, features, row.pictures, examples.items, 1)
    require_counted_words(examples, data.test, measure.skip_words)
    if not measure.samples:
        return
    if learner.source is not None:
        raise SettingsError(f"evaluation.samples: {measure.samples}, and of translations nothing is sampled; make it 0")
    longest = max(len(learner.tokenizer.words(text)) for text in examples.texts)
    if longest <= measure.prefix_words:
        raise SettingsError(
            f"evaluation.prefix_words: {measure.prefix_words}, and no sentence of split '{data.test}' has more than "
            f"{longest}; take fewer: evaluation.prefix_words={max(0, longest - 1)}"
        )
