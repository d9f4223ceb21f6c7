"""Ensembles: the runs of all seeds of a row decode together, and their result is a row below it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from limner.errors import SettingsError
from limner.evaluation.evaluate import evaluate
from limner.evaluation.options import EvaluationOptions
from limner.reproduce.plan import ReproductionJob, plan_row, result_path
from limner.reproduce.preflight import initial_run
from limner.reproduce.tables import PublishedRow, PublishedTable, RowResult, total
from limner.runs.recipe import Recipe
from limner.runs.trained_model import load_trained_model

NAME = re.compile(r"(.+), ensemble of (\d+)")


def is_ensemble(row: str) -> bool:
    """Whether a row of this name is an ensemble."""
    return NAME.fullmatch(row) is not None


def with_ensembles(table: PublishedTable, names: Iterable[str]) -> PublishedTable:
    """Return a table with the ensembles among the names as rows, each below the row of its runs."""
    matches = [match for name in names if (match := NAME.fullmatch(name))]
    found = sorted({(match[1], int(match[2])) for match in matches})

    def rows() -> Iterator[PublishedRow]:
        for row in table.rows:
            yield row
            yield from (_ensemble_of(row, number) for name, number in found if name == row.name)

    return table._replace(rows=tuple(rows()))


def with_stored_ensembles(table: PublishedTable, out: Path) -> PublishedTable:
    """Return a table with the ensembles that have a result in the folder."""
    return with_ensembles(table, [RowResult.load(path).row for path in (out / "rows").glob("*-ensemble-of-*.json")])


def rows_to_combine(rows: Sequence[PublishedRow], job: ReproductionJob) -> list[PublishedRow]:
    """Return the rows whose runs decode together; models without probabilities of words are left out.

    Raises:
        SettingsError: there is a single seed, the table has no metric of decoded sentences, or no row is left.
    """
    if job.settings.seeds < 2:
        raise SettingsError(
            f"--ensemble with {job.settings.seeds} seed: expected --seeds 2 or more, the runs to combine"
        )
    if not job.table.metrics:
        raise SettingsError(f"--ensemble: {job.table.name} has no metric of decoded sentences; leave it out")
    combined = [row for row in rows if plan_row(row, job).recipes[0].model.scores_sentences]
    if not combined:
        raise SettingsError(
            "--ensemble: the models of these rows have no probabilities that could be combined; leave it out"
        )
    return combined


def evaluate_ensemble(row: PublishedRow, job: ReproductionJob) -> None:
    """Decode with the runs of all seeds of a row, and store the scores; one of the same weights and recipe is kept.

    The result has no scores of retrieval: these are of single models.
    """
    members = [RowResult.load(plan_row(row, job, repetition).result_path) for repetition in range(job.settings.seeds)]
    ensemble = _ensemble_of(row, len(members))
    path, runs = result_path(ensemble, job.out), tuple(initial_run(job.out / member.run) for member in members)
    if path.exists():
        stored = RowResult.load(path)
        if (stored.ensemble, stored.recipe) == (runs, members[0].recipe):
            return
    recipe = Recipe.parse(members[0].recipe)
    evaluation = evaluate(
        [load_trained_model(job.out / member.run) for member in members],
        job.collection,
        options=EvaluationOptions(
            decoding=recipe.decoding,
            measures=recipe.evaluation,
            metrics=tuple(job.table.metrics),
            image_control=row.image_control,
            retrieval=False,
        ),
        command=job.command,
        on_progress=lambda stage, done, total: job.on_progress(f"{stage} {ensemble.name}", done, total),
    )
    columns = {column.score for column in job.table.columns}
    scores = tuple(score for score in evaluation.scores if score.name in columns)
    seconds = round(sum(member.seconds for member in members), 1)
    processor = total(member.processor_seconds for member in members)
    changes = {"row": ensemble.name, "ensemble": runs, "seconds": seconds, "gradients": None}
    changes |= {"processor_seconds": processor}
    changes |= {"evaluation": evaluation.model_copy(update={"scores": scores})}
    members[0].model_copy(update=changes).save(path)


def _ensemble_of(row: PublishedRow, number: int) -> PublishedRow:
    """The row of an ensemble; it has no published scores, and its baseline is the row of its runs."""
    name = f"{row.name}, ensemble of {number}"
    return row._replace(name=name, published={}, published_marks={}, baselines=(row.name,))
