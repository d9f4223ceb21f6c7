"""Compact record of a reproduced table, collected from the results of its rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat

from limner.errors import RunError
from limner.evaluation.compare import adjust
from limner.evaluation.comparison import Contrast
from limner.reproduce import TABLES, find_table
from limner.reproduce.datasets import evaluated_data_set
from limner.reproduce.ensembles import with_ensembles, with_stored_ensembles
from limner.reproduce.plan import result_paths
from limner.reproduce.significance import FILE, TableComparison, contrasts
from limner.reproduce.tables import PublishedRow, PublishedTable, RowResult, by_row
from limner.runs.recipe import load_recipe
from limner.runs.records import Record, RunConfig

MEASURED = Path(__file__).parent / "measured"
"""Folder of the records that were measured with Limner, part of the package."""
NO_DIFFERENCES = ("description", "published", "training.seed")
"""Keys of a recipe that are no settings of its scores, or differ between the seeds."""
SOFTWARE = ("limner", "torch", "transformers", "sacrebleu", "numpy")
"""Programs whose versions are part of a record."""


Seconds = Annotated[FiniteFloat, Field(ge=0)]


class SeedRecord(Record):
    """Scores of a row with one seed."""

    seed: int
    scores: dict[str, float]
    """Scores by name, on our scale."""
    seconds: Seconds
    """Time of the training steps, preceding stages included."""
    processor_seconds: Seconds | None = None
    """Processor time of the same, summed over threads; None in records of older versions."""
    run: str | None = None
    """Run directory; rows that differ in their evaluation alone share one. None in records of older versions."""


class RowRecord(Record):
    """One reproduced row."""

    row: str
    seeds: Annotated[tuple[SeedRecord, ...], Field(min_length=1)]
    recipe: str
    """Name of the recipe."""
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
    rows: Annotated[tuple[RowRecord, ...], Field(min_length=1)]

    @property
    def name(self) -> str:
        """File name without suffix: the table, and the collection."""
        return re.sub(r"[^a-z0-9_]+", "-", f"{self.table}-{self.collection}".lower())


def collect(folder: Path) -> TableRecord:
    """Collect the record of a table from the folder of `limner reproduce`.

    Raises:
        RunError: the folder has no finished row.
    """
    table, results = _results(folder)
    rows, first = by_row(results), results[0].evaluation
    comparison = TableComparison.load(folder / FILE) if (folder / FILE).exists() else TableComparison()
    runs = [RunConfig.load(folder / result.run / "config.json").provenance for result in results]
    return TableRecord(
        table=table.name,
        collection=Path(first.collection).name,
        dataset=evaluated_data_set([item.id for item in first.items]),
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

    A row of both is the new one. It keeps the older seeds that it lacks if the settings are the same and no difference
    was tested over sentences, because such a test is about the runs of one folder. Differences of an older row from a
    baseline are kept only if the scores of the baseline are the same in both. The p-values are adjusted for all pairs
    of the rows together.

    Raises:
        RunError: the records are of different data, so that their rows are not comparable.
    """
    if (old.fingerprint, old.split) != (new.fingerprint, new.split):
        raise RunError(
            f"{new.name}: the stored record is about split '{old.split}' of fingerprint {old.fingerprint[:12]}, the "
            f"new one about split '{new.split}' of {new.fingerprint[:12]}; remove it, or name another --records folder"
        )
    before, after = ({row.row: row for row in record.rows} for record in (old, new))

    def is_same(baseline: str) -> bool:
        stored, made = before.get(baseline), after.get(baseline)
        return not (stored and made) or [one.scores for one in stored.seeds] == [one.scores for one in made.seeds]

    def of_both(row: RowRecord) -> RowRecord:
        if row.row in after:
            return _with_seeds_of(row, after[row.row])
        return row.model_copy(update={"contrasts": tuple(one for one in row.contrasts if is_same(one.baseline))})

    rows = {**after, **{name: of_both(row) for name, row in before.items()}}
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
            "rows": _adjusted(sorted(rows.values(), key=lambda row: order.get(row.row, len(order)))),
        }
    )


def _with_seeds_of(old: RowRecord, new: RowRecord) -> RowRecord:
    """Add the seeds of an older row that a new one of the same settings lacks."""
    settings = ("recipe", "differences", "features", "training_sentences", "signatures")
    if old.contrasts or new.contrasts or any(getattr(old, name) != getattr(new, name) for name in settings):
        return new
    seeds = {one.seed: one for one in (*old.seeds, *new.seeds)}
    return new.model_copy(update={"seeds": tuple(seeds[seed] for seed in sorted(seeds))})


def _adjusted(rows: Sequence[RowRecord]) -> tuple[RowRecord, ...]:
    """Adjust the p-values of all pairs of rows again; the two directions of a pair are one test."""
    pairs = {_pair(one): one for row in rows for one in row.contrasts}
    adjusted = dict(zip(pairs, adjust(list(pairs.values())), strict=True))

    def renewed(one: Contrast) -> Contrast:
        return one.model_copy(update={"adjusted_p": adjusted[_pair(one)].adjusted_p})

    return tuple(row.model_copy(update={"contrasts": tuple(map(renewed, row.contrasts))}) for row in rows)


def _pair(one: Contrast) -> tuple[str, frozenset[str]]:
    return one.metric, frozenset((one.system, one.baseline))


def read_records(folder: Path) -> list[TableRecord]:
    """Read all records of a folder, in the order of their names.

    Raises:
        RunError: the folder does not exist, or a file is no record of a published table.
    """
    if not folder.is_dir():
        raise RunError(f"{folder}: expected a folder of records; 'limner book TABLE --records {folder}' makes it")
    records = []
    for path in sorted(folder.glob("*.json")):
        records.append(TableRecord.load(path))
        if problem := next(_problems(records[-1]), None):
            raise RunError(
                f"{path}: {problem}; remove it and add its tables again: limner book TABLE --records {folder}"
            )
    return records


def _problems(record: TableRecord) -> Iterator[str]:
    """Describe what is wrong with a record whose form is right."""
    if record.table not in TABLES:
        yield f"unknown table '{record.table}', expected one of 'limner reproduce --list'"
        return
    names = [row.row for row in record.rows]
    known = {row.name for row in with_ensembles(TABLES[record.table], names).rows}
    yield from (f"row '{name}' is not in {record.table}" for name in names if name not in known)
    yield from (f"row '{name}' is there twice" for number, name in enumerate(names) if name in names[:number])
    for row in record.rows:
        scores = {(name, value) for seed in row.seeds for name, value in seed.scores.items()}
        yield from (f"row '{row.row}' has no signature of {name}" for name, _ in scores if name not in row.signatures)
        yield from (f"row '{row.row}': {name} is not a number" for name, value in scores if math.isnan(value))


def _results(folder: Path) -> tuple[PublishedTable, list[RowResult]]:
    """The table of a folder, and the results of its rows in the order of the table."""
    paths = sorted((folder / "rows").glob("*.json"))
    names = {RowResult.load(path).table for path in paths}
    if len(names) != 1 or (name := names.pop()) is None:
        found = f"rows of {' and '.join(sorted(map(str, names)))}" if names else "none"
        raise RunError(
            f"{folder}: expected the folder of 'limner reproduce' with finished rows of a table, found {found}"
        )
    table = find_table(name)
    table = with_stored_ensembles(table, folder)
    results = [RowResult.load(path) for path in result_paths(table, folder)]
    return table, results


def _row_record(
    row: PublishedRow, seeds: Sequence[RowResult], table: PublishedTable, comparison: TableComparison, folder: Path
) -> RowRecord:
    first = seeds[0]
    provenance = RunConfig.load(folder / first.run / "config.json").provenance
    scores = [column.score for column in table.columns if column.score in first.scores]
    return RowRecord(
        row=row.name,
        seeds=tuple(
            SeedRecord(
                seed=result.seed,
                scores={name: result.scores[name].value for name in scores if name in result.scores},
                seconds=result.seconds,
                processor_seconds=result.processor_seconds,
                run=result.run,
            )
            for result in seeds
        ),
        recipe=f"{first.recipe_folder or table.recipes}/{_recipe_key(row, first, table)}",
        differences=tuple(_differences(row, first, table)),
        features=tuple(first.recipe.get("features", {}).get("tables", ())),
        training_sentences=provenance.get("training_sentences"),
        signatures={name: first.scores[name].signature for name in scores},
        contrasts=tuple(one for of_baseline in contrasts(row, comparison).values() for one in of_baseline),
    )


def _recipe_key(row: PublishedRow, result: RowResult, table: PublishedTable) -> str:
    """The row's recipe; the key of the data set is that with which the name of its run starts."""
    run = Path(result.run).name
    keys = [dataset.key for dataset in table.trained_on if run.startswith(dataset.key)]
    return str(row.recipe).format(dataset=max(keys, key=len, default=""))


def _differences(row: PublishedRow, result: RowResult, table: PublishedTable) -> Iterator[str]:
    """Settings of a result that differ from the recipe of its row in the table's own folder."""
    printed = load_recipe(f"{table.recipes}/{_recipe_key(row, result, table)}", list(row.changes)).model_dump(
        mode="json"
    )
    expected, actual = dict(_flat(printed)), dict(_flat(result.recipe))
    for key in sorted(expected.keys() & actual.keys()):
        if expected[key] != actual[key] and not any(key == one or key.startswith(f"{one}.") for one in NO_DIFFERENCES):
            yield f"{key}={_short(actual[key])}"
    if result.initialised_from is not None:
        yield f"initialised from {result.initialised_from}"
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


def _short(value: object) -> str:
    return ",".join(map(str, value)) or "[]" if isinstance(value, list) else str(value)
