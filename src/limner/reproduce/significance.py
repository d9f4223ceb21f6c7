"""Which rows of a table are better than its baselines by more than chance: approximate randomisation, kept on disk."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from limner.errors import RunError
from limner.evaluation.compare import DAGGERS, ComparisonSettings, Contrast, compare_evaluations
from limner.metrics import higher_is_better
from limner.reproduce.plan import Progress
from limner.reproduce.tables import Outcome, Row, Table, by_row
from limner.runs.records import Record

FILE = "significance.json"

logger = logging.getLogger(__name__)


class ComparedRows(Record):
    """Two rows side by side; each is the other's baseline."""

    rows: tuple[str, str]
    """In the table's order."""
    of: str
    """SHA-256 of all that was compared, and how."""
    contrasts: tuple[Contrast, ...]
    """The second row less the first, one for each metric."""
    signature: str
    """Of the test."""

    def seen_from(self, row: str) -> tuple[Contrast, ...]:
        """What the row is beside the other one, by every metric."""
        first, second = self.rows
        if row == second:
            return self.contrasts
        turned = {"system": first, "baseline": second}
        return tuple(one.model_copy(update={**turned, "difference": -one.difference}) for one in self.contrasts)


class ComparedTable(Record):
    """All rows that were compared."""

    pairs: tuple[ComparedRows, ...] = ()


def compare_rows(table: Table, outcomes: Sequence[Outcome], out: Path, note: Progress) -> ComparedTable:
    """Compare every row with its baselines, as far as they are there; what was compared before is read.

    A pair that cannot be compared (its rows were measured on different sentences, say) is left out with a line in the
    log.

    Args:
        table: it names the baselines and the metrics.
        outcomes: the rows that are there.
        out: gets significance.json.
        note: told the part of the work, what is done of it and how much it is.
    """
    path, there = out / FILE, by_row(outcomes)
    before = {one.of: one for one in ComparedTable.load(path).pairs} if path.exists() else {}
    found = []
    for first, second in _pairs(table):
        if first in there and second in there:
            found.append(_compare(there[first], there[second], table.metrics, before, note))
    compared = ComparedTable(pairs=tuple(pair for pair in found if pair is not None))
    if {pair.of for pair in compared.pairs} != set(before):
        compared.save(path)
    return compared


def contrasts(row: Row, compared: ComparedTable) -> dict[str, tuple[Contrast, ...]]:
    """What a row is beside each of its baselines, by their names."""
    found = {frozenset(pair.rows): pair for pair in compared.pairs}
    wanted = {baseline: frozenset({row.name, baseline}) for baseline in row.against}
    return {baseline: found[pair].seen_from(row.name) for baseline, pair in wanted.items() if pair in found}


def marks(row: Row, score: str, compared: ComparedTable) -> str:
    """† where a row is significantly better than its first baseline, ‡ where it is than the second."""
    sign = 1 if higher_is_better(score) else -1
    better = {
        one.baseline
        for beside in contrasts(row, compared).values()
        for one in beside
        if one.metric == score and one.p < row.level and sign * one.difference > 0
    }
    return "".join(dagger for dagger, baseline in zip(DAGGERS, row.against, strict=False) if baseline in better)


def _pairs(table: Table) -> list[tuple[str, str]]:
    """Rows that are compared, each pair once and in the table's order."""
    order = {row.name: place for place, row in enumerate(table.rows)}
    places = {
        (min(order[row.name], order[baseline]), max(order[row.name], order[baseline]))
        for row in table.rows
        for baseline in row.against
        if baseline != row.name
    }
    return [(table.rows[first].name, table.rows[second].name) for first, second in sorted(places)]


def _compare(
    baseline: Sequence[Outcome],
    row: Sequence[Outcome],
    metrics: Sequence[str],
    before: Mapping[str, ComparedRows],
    note: Progress,
) -> ComparedRows | None:
    """One comparison, or what it was when all was the same; None where it is impossible.

    A trial exchanges whole systems, so of the one that has more seeds only the first are compared.
    """
    number = min(len(baseline), len(row))
    baseline, row = baseline[:number], row[:number]
    everything, names = [*baseline, *row], (baseline[0].row, row[0].row)
    measured = tuple(metric for metric in metrics if all(metric in outcome.scores for outcome in everything))
    if not measured:
        return None
    settings = ComparisonSettings(metrics=measured)
    of = _seal(everything, settings)
    if of in before:
        return before[of]
    try:
        found = compare_evaluations(
            {
                name: {one.run: one.evaluation for one in seeds}
                for name, seeds in zip(names, (baseline, row), strict=True)
            },
            str(row[0].recipe["data"]["lang"]),
            settings=settings,
            progress=lambda part, done, total: note(f"{part} {names[1]}", done, total),
        )
    except RunError as error:
        logger.warning("'%s' is not tested against '%s': %s", *reversed(names), error)
        return None
    return ComparedRows(rows=names, of=of, contrasts=found.contrasts, signature=f"{found.signature}|runs:{number}")


def _seal(everything: Sequence[Outcome], settings: ComparisonSettings) -> str:
    digest = hashlib.sha256(settings.model_dump_json().encode())
    for outcome in everything:
        digest.update(f"\n{outcome.row} {outcome.run} {outcome.evaluation.model_dump_json()}".encode())
    return digest.hexdigest()
