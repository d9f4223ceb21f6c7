"""Records of reproduced tables in `book/measured`, from which the pages of the book are rendered.

A record holds what a page shows of one table on one collection: the scores of every row and seed, their differences
from the baselines, the settings that differ from the recipe, the time and the machine.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from limner.apps.reproduce import PublishedRow, PublishedTable, RowResult, find_table
from limner.apps.reproduce.results import SIGNIFICANCE, TableComparison, by_row, contrasts, read_results
from limner.apps.reproduce.tables import recognise_ids
from limner.errors import RunError
from limner.evaluation.comparison import Contrast
from limner.progress import duration
from limner.runs.recipe import load_recipe, recipe_names
from limner.runs.records import Record, RunConfig

MEASURED = Path(__file__).parent / "measured"
"""Folder of the records that were measured with Limner."""
NO_SETTINGS = {"description", "published"}
"""Keys of a recipe that are no settings."""
NO_DIFFERENCES = (*NO_SETTINGS, "training.seed")
"""Keys of a recipe that are no settings of its scores, or differ between the seeds."""
SETTINGS_OF_ROW = {"alternatives", "changes", "corpus", "evaluation", "image_control"}
"""Fields of a row in its table that determine its scores."""
SOFTWARE = ("limner", "torch", "transformers", "sacrebleu", "numpy")
"""Programs whose versions are part of a record."""
MULTI30K_TEST = "3561ef20c1ce29ad8138e655ad5a6239d8c6bf191c41b495786d9b3a46d895aa"
"""SHA-256 of the sorted ids of the images of test 2016 of Multi30k, one a line: other splits have the same form of
ids."""


class SeedRecord(Record):
    """Scores of a row with one seed."""

    seed: int
    scores: dict[str, float]
    """Scores by name, on our scale."""
    seconds: float
    """Time of the training steps, preceding stages included."""
    processor_seconds: float | None = None
    """Processor time of the same, summed over threads; None in records of older versions."""
    evaluation_seconds: float | None = None
    """Time of the evaluation, with decoding and ranking; None in records of older versions."""
    run: str | None = None
    """Run directory; rows that differ in their evaluation alone share one. None in records of older versions."""


class RowRecord(Record):
    """One reproduced row."""

    row: str
    seeds: tuple[SeedRecord, ...]
    recipe: str
    """Name of the recipe."""
    recipe_sha256: str | None = None
    """Digest of the recipe that the row was recorded with, see `recipe_digest`; None in records of older versions."""
    differences: tuple[str, ...]
    """Settings KEY=VALUE that differ from the table's own recipe for this row, and what initialised it."""
    features: tuple[str, ...] = ()
    """Feature tables that the model reads."""
    training_sentences: int | None
    signatures: dict[str, str]
    """Signature of each score."""
    contrasts: tuple[Contrast, ...]
    """Differences from the baselines by metrics of sentences."""


class TableRecord(Record):
    """A published table, reproduced on one collection."""

    table: str
    collection: str
    """Name of the folder of the collection."""
    dataset: str | None
    """Data set of a published table with the same form of ids, if it is one."""
    fingerprint: str
    items: int
    """Number of items of the evaluated split."""
    split: str
    commands: tuple[str, ...]
    machines: tuple[str, ...]
    """Processor, cores and threads of the runs; different ones once."""
    versions: dict[str, str]
    test: str | None
    """Signature of the significance test of metrics of sentences."""
    rows: tuple[RowRecord, ...]

    @property
    def name(self) -> str:
        """File name without suffix: the table, and the collection."""
        return re.sub(r"[^a-z0-9_]+", "-", f"{self.table}-{self.collection}".lower())


def read_records() -> list[TableRecord]:
    """Read all records, in the order of their names."""
    return [TableRecord.load(path) for path in sorted(MEASURED.glob("*.json"))]


def add_record(folder: Path) -> None:
    """Store the rows of a folder of `limner reproduce`, and rows that only an older record of the table has.

    Raises:
        RunError: the folder has no finished row, or the older record is about other data.
    """
    record = collect(folder)
    path = MEASURED / f"{record.name}.json"
    (merged(TableRecord.load(path), record) if path.exists() else record).save(path)


def collect(folder: Path) -> TableRecord:
    """Collect the record of a table from the folder of `limner reproduce`.

    Raises:
        RunError: the folder has no finished row.
    """
    stored = next(iter(sorted((folder / "rows").glob("*.json"))), None)
    if stored is None:
        raise RunError(f"{folder}: expected the folder of 'limner reproduce' with finished rows of a table, found none")
    table = find_table(RowResult.load(stored).table)
    results = read_results(table, folder)
    rows, first = by_row(results), results[0].evaluation
    comparison = TableComparison.load(folder / SIGNIFICANCE) if (folder / SIGNIFICANCE).exists() else TableComparison()
    runs = [RunConfig.load(folder / result.run / "config.json").provenance for result in results]
    return TableRecord(
        table=table.name,
        collection=Path(first.collection).name,
        dataset=_data_set([item.id for item in first.items]),
        fingerprint=first.fingerprint,
        items=len(first.items),
        split=first.split,
        commands=tuple(dict.fromkeys(result.evaluation.command for result in results)),
        machines=tuple(dict.fromkeys(str(run.get("machine", "unknown")) for run in runs)),
        versions={name: str(runs[0][name]) for name in SOFTWARE if name in runs[0]},
        test=next((pair.signature for pair in comparison.pairs), None),
        rows=tuple(
            _row_record(row, rows[row.name], table, comparison, folder) for row in table.rows if row.name in rows
        ),
    )


def merged(old: TableRecord, new: TableRecord) -> TableRecord:
    """Add the rows of an older record of the same table that a new one does not have.

    A row of both is the new one. Differences of an older row from a baseline that was measured again are left out.

    Raises:
        RunError: the records are of different data, so that their rows are not comparable.
    """
    if (old.fingerprint, old.split) != (new.fingerprint, new.split):
        raise RunError(f"{new.name}: the stored record is about other data; remove it, or rename the collection")
    again = {row.row for row in new.rows}
    kept = [
        row.model_copy(update={"contrasts": tuple(each for each in row.contrasts if each.baseline not in again)})
        for row in old.rows
        if row.row not in again
    ]
    order = {row.name: number for number, row in enumerate(find_table(new.table).rows)}
    return new.model_copy(
        update={
            "commands": tuple(dict.fromkeys((*old.commands, *new.commands))),
            "machines": tuple(dict.fromkeys((*old.machines, *new.machines))),
            "versions": {
                name: ", ".join(dict.fromkeys((old.versions.get(name, value), value)))
                for name, value in new.versions.items()
            },
            "test": new.test or old.test,
            "rows": tuple(sorted((*kept, *new.rows), key=lambda row: order[row.row])),
        }
    )


def recipe_of(table: PublishedTable, row: PublishedRow, run: str) -> str:
    """Return the recipe of a row for the data set of a run, whose name starts with the name of the recipe."""
    recipes = [str(row.recipe).format(dataset=dataset.key) for dataset in table.trained_on] or [str(row.recipe)]
    return max((recipe for recipe in recipes if run.startswith(recipe)), key=len)


def recipe_digest(table: PublishedTable, row: PublishedRow, recipe: str) -> str | None:
    """Compute the SHA-256 of the settings that determine a row; None if there is no such recipe.

    The recipe of the row, the paper's recipe that its differences refer to, the recipes of its preceding stages, and
    the row in its table state them. Comments, descriptions, published scores and defaults
    of the program are not part of them.

    Args:
        table: the published table.
        row: row of the table.
        recipe: name of the row's recipe, in the table's folder of recipes or in an alternative folder.
    """
    folder, _, name = recipe.rpartition("/")
    wanted = {f"{place}/{stage}" for place in (folder, table.recipes) for stage in (name, *row.pretraining)}
    recipes = {path: load_recipe(path, []) for path in sorted(wanted & {*recipe_names()})}
    if recipe not in recipes:
        return None
    dump = {"mode": "json", "exclude_unset": True, "exclude": NO_SETTINGS}
    settings = {path: content.model_dump(**dump) for path, content in recipes.items()}
    of_row = row.model_dump(mode="json", include=SETTINGS_OF_ROW)
    return hashlib.sha256(json.dumps([settings, of_row], sort_keys=True).encode()).hexdigest()


def _data_set(ids: Sequence[str]) -> str | None:
    """Name of the data set whose test items have these ids; None if it is not known, as of ids that are numbers."""
    if hashlib.sha256("\n".join(sorted(set(ids))).encode()).hexdigest() == MULTI30K_TEST:
        return "Multi30k"
    recognised = recognise_ids(ids, have_images=False)
    return None if recognised is None else recognised.name


def _row_record(
    row: PublishedRow, seeds: Sequence[RowResult], table: PublishedTable, comparison: TableComparison, folder: Path
) -> RowRecord:
    first = seeds[0]
    provenance = RunConfig.load(folder / first.run / "config.json").provenance
    scores = [column.score for column in table.columns if column.score in first.scores]
    recipe = recipe_of(table, row, Path(first.run).name)
    name = f"{first.recipe_folder}/{recipe}"
    return RowRecord(
        row=row.name,
        seeds=tuple(
            SeedRecord(
                seed=result.seed,
                scores={name: result.scores[name].value for name in scores if name in result.scores},
                seconds=result.seconds,
                processor_seconds=result.processor_seconds,
                evaluation_seconds=result.evaluation.seconds,
                run=result.run,
            )
            for result in seeds
        ),
        recipe=name,
        recipe_sha256=recipe_digest(table, row, name),
        differences=tuple(_differences(row, first, f"{table.recipes}/{recipe}")),
        features=tuple(first.recipe.get("features", {}).get("tables", ())),
        training_sentences=provenance.get("training_sentences"),
        signatures={name: first.scores[name].signature for name in scores},
        contrasts=tuple(each for of_baseline in contrasts(row, comparison).values() for each in of_baseline),
    )


def _differences(row: PublishedRow, result: RowResult, recipe: str) -> Iterator[str]:
    """Settings of a result that differ from the recipe of its row in the table's own folder."""
    printed = load_recipe(recipe, list(row.changes)).model_dump(mode="json")
    expected, actual = dict(_flat(printed)), dict(_flat(result.recipe))
    for key in sorted(expected.keys() & actual.keys()):
        if expected[key] != actual[key] and not any(
            key == name or key.startswith(f"{name}.") for name in NO_DIFFERENCES
        ):
            value = actual[key]
            yield f"{key}={(','.join(map(str, value)) or '[]') if isinstance(value, list) else value}"
    if (run := result.initialised_from) is not None:
        trained = [] if run.command is None else [run.command]
        trained += [] if run.seconds is None else [duration(run.seconds)]
        yield f"initialised from run '{run.run}'" + (f" ({'; '.join(trained)})" if trained else "")
    if result.back_translated_by is not None:
        yield f"source sentences generated by run '{result.back_translated_by.partition(':')[0]}'"
    if result.corpus is not None:
        yield f"sentence pairs of corpus '{result.corpus.name}'"
    if result.budget != 1:
        yield f"budget {result.budget:g}"


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by dotted keys; patterns of parameters are one value."""
    for key, value in settings.items():
        if isinstance(value, dict) and not any("*" in str(name) for name in value):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
