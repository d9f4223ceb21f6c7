"""The scores of a reproduced table in Markdown, published and ours, with marks of significant differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from limner.evaluation.comparison import DAGGERS
from limner.report.provenance import duration
from limner.reproduce.book.record import RowRecord, TableRecord
from limner.reproduce.book.verdicts import Effect, mean_of, values_of
from limner.reproduce.ensembles import is_ensemble
from limner.reproduce.tables import PublishedRow, PublishedTable, TableColumn


def score_table(table: PublishedTable, rows: Sequence[RowRecord], found: Sequence[Effect]) -> Iterator[str]:
    """The table: for each row a line of published scores for each data set, and one of ours."""
    columns = [column for column in table.columns if column.score != "training_minutes"]
    yield f"| row | scores of | {' | '.join(column.label for column in columns)} | seeds | time of a seed |"
    yield "|---" * (len(columns) + 4) + "|"
    ours = {row.row: row for row in rows}
    for row in table.rows:
        notes = ["other authors"] * row.other_authors + ["published only"] * (row.recipe is None)
        name = f"{row.name} ({', '.join(notes)})" if notes else row.name
        for dataset in (one for one in table.datasets if row.published.get(one)):
            cells = [row.published_cell(dataset, column) for column in columns]
            yield f"| {name} | the paper, {dataset} | {' | '.join(cells)} | | |"
            name = ""
        if row.name in ours:
            made = ours[row.name]
            cells = [_ours(made, column) + _daggers(row, column, table, found) for column in columns]
            seeds = "together" if is_ensemble(row.name) else ", ".join(str(seed.seed) for seed in made.seeds)
            time = _time([seed.seconds for seed in made.seeds], [seed.processor_seconds for seed in made.seeds])
            yield f"| {name} | **Limner** | {' | '.join(cells)} | {seeds} | {time} |"
        elif row.recipe is not None:
            yield f"| {name} | Limner | {' | '.join('–' for _ in columns)} | none | |"


def _time(seconds: Sequence[float], processor_seconds: Sequence[float | None]) -> str:
    """Mean duration of the trainings, and mean processor time if it is known of all of them."""
    known = [one for one in processor_seconds if one is not None]
    processor = f" ({duration(float(np.mean(known)))})" if len(known) == len(processor_seconds) else ""
    return f"{duration(float(np.mean(seconds)))}{processor}"


def _ours(row: RowRecord, column: TableColumn) -> str:
    values, mean = values_of(row, column.score), mean_of(row, column.score)
    if mean is None:
        return "–"
    spread = f" ± {column.format(float(np.std(values, ddof=1)))}" if len(values) > 1 else ""
    return f"**{column.format(mean)}**{spread}"


def _daggers(row: PublishedRow, column: TableColumn, table: PublishedTable, found: Sequence[Effect]) -> str:
    """Marks of one of our scores, in a table whose paper marks significant differences."""
    own = [one.dagger for one in found if (one.row, one.column) == (row.name, column)]
    own += [one.reversed_dagger for one in found if (one.baseline, one.column) == (row.name, column)]
    return "".join(dagger for dagger in DAGGERS if _has_marks(table) and dagger in own)


def _has_marks(table: PublishedTable) -> bool:
    return any(row.published_marks for row in table.rows)


def legend(table: PublishedTable, record: TableRecord) -> Iterator[str]:
    """What the marks of our scores mean, and which of those of the paper could not be tested."""
    if not _has_marks(table):
        return
    names = {row.row for row in record.rows}
    rows: dict[tuple[str, ...], list[str]] = {}
    for row in table.rows:
        if row.name in names and row.baselines:
            rows.setdefault(row.baselines, []).append(row.name)
    yield from ("† and ‡ of our scores: significantly better than the first and the second baseline of the row.", "")
    for baselines, of in rows.items():
        yield f"- Baselines of {', '.join(of)}: {' and '.join(baselines)}."
    if missing := [name for name in dict.fromkeys(name for one in rows for name in one) if name not in names]:
        yield f"- Not tested, because these rows were not reproduced on this collection: {', '.join(missing)}."
    yield ""
