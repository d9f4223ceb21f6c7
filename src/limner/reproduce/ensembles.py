"""Ensembles: the runs of all seeds of a row decode together, and their result is a row below it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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


def check_ensembles(job: ReproductionJob) -> None:
    """Check that the rows of a table can be ensembles.

    Raises:
        SettingsError: there is a single seed, or the table has no metric of decoded sentences.
    """
    if job.settings.seeds < 2:
        raise SettingsError(
            f"--ensemble with {job.settings.seeds} seed: expected --seeds 2 or more, the runs to combine"
        )
    if not job.table.metrics:
        raise SettingsError(f"--ensemble: {job.table.name} has no metric of decoded sentences; leave it out")


def evaluate_ensemble(row: PublishedRow, job: ReproductionJob) -> None:
    """Decode with the runs of all seeds of a row, and store the scores; a result of the same weights is kept.

    The result has the metrics of sentences alone: perplexity and retrieval are those of single models.
    """
    members = [RowResult.load(plan_row(row, job, repetition).result_path) for repetition in range(job.settings.seeds)]
    ensemble = _ensemble_of(row, len(members))
    path, runs = result_path(ensemble, job.out), tuple(initial_run(job.out / member.run) for member in members)
    if path.exists() and RowResult.load(path).ensemble == runs:
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
    scores = tuple(score for score in evaluation.scores if score.name in job.table.metrics)
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
