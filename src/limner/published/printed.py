"""A published table as it came out: Markdown, JSON, and drawings of its curves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from limner import plots
from limner.files import write_whole, written_beside
from limner.metrics import Score
from limner.published.tables import Column, Outcome, Reproduction, Row, Table
from limner.records import Point

SHOWN = 16
"""Longest value of a change that is printed beside a row's name."""


def write_table(table: Table, outcomes: Sequence[Outcome], out: Path) -> Reproduction:
    """Write the table, the same as JSON, and the curves."""
    markdown, plain = out / "table.md", out / "table.json"
    write_whole(markdown, to_markdown(table, outcomes))
    write_whole(plain, json.dumps(_plain(table, outcomes), indent=1, ensure_ascii=False))
    return Reproduction(table, tuple(outcomes), markdown, plain, tuple(_draw(outcomes, out)))


def to_markdown(table: Table, outcomes: Sequence[Outcome]) -> str:
    """The table as Markdown: our figures, then the paper's for each of its data sets."""
    data = Path(outcomes[0].evaluation.collection).name
    printed = [column for column in table.columns if any(_published(row, column.score) for row in table.rows)]
    head = [column.label for column in table.columns]
    head += [f"{column.label}, {where}" for where in table.published for column in printed]
    lines = [f"| {data} | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    rows = {row.name: row for row in table.rows}
    for outcome in outcomes:
        cells = [_shown(outcome.scores, column) for column in table.columns]
        for where in table.published:
            theirs = rows[outcome.row].published.get(where, {})
            cells += [_number(theirs.get(column.score), column) for column in printed]
        lines.append(f"| {_named(outcome, table)} | {' | '.join(cells)} |")
    return "\n".join([f"# {table.title}", "", *lines, "", table.notes, ""])


def _named(outcome: Outcome, table: Table) -> str:
    """A row's name, and behind it what was not as the table's own recipe says."""
    said = [] if outcome.recipes in (None, table.recipes) else [str(outcome.recipes)]
    for change in outcome.changes:
        key, _, value = change.partition("=")
        said.append(f"{key}={value if len(value) <= SHOWN else '…'}".replace("|", "\\|"))
    if outcome.budget != 1:
        said.append(f"budget {outcome.budget:g}")
    return outcome.row + (f" ({'; '.join(said)})" if said else "")


def _published(row: Row, score: str) -> bool:
    return any(score in values for values in row.published.values())


def _number(value: float | None, column: Column) -> str:
    return "–" if value is None else f"{value * column.scale:.{column.digits}f}"


def _shown(scores: dict[str, Score], column: Column) -> str:
    if column.score not in scores:
        return "–"
    spread = scores.get(f"{column.score}_std")
    return _number(scores[column.score].value, column) + (f" ± {_number(spread.value, column)}" if spread else "")


def _plain(table: Table, outcomes: Sequence[Outcome]) -> dict[str, object]:
    rows = {row.name: row for row in table.rows}
    return {
        "table": table.name,
        "collection": Path(outcomes[0].evaluation.collection).name,
        "fingerprint": outcomes[0].evaluation.fingerprint,
        "rows": [
            {
                "row": outcome.row,
                "run": outcome.run,
                "recipes": outcome.recipes,
                "changes": outcome.changes,
                "pictures": outcome.pictures,
                "budget": outcome.budget,
                "training_seconds": outcome.seconds,
                "scores": [score._asdict() for score in outcome.evaluation.scores],
                "published": {data: dict(values) for data, values in rows[outcome.row].published.items()},
            }
            for outcome in outcomes
        ],
    }


def _draw(outcomes: Iterable[Outcome], out: Path) -> list[Path]:
    """The curves of all rows in one drawing for each direction of search."""
    paths = []
    for direction, title in (("text_to_image", "Sentence → pictures"), ("image_to_text", "Picture → sentences")):
        curves: dict[str, tuple[Point, ...]] = {}
        chance: tuple[Point, ...] = ((0.0, 0.0), (1.0, 1.0))
        for outcome in outcomes:
            found = outcome.evaluation.retrieval
            if found is not None and found.match_curves is not None:
                curves[outcome.row] = getattr(found.match_curves, direction)
                chance = getattr(found.chance_curves, direction, chance)
        if curves:
            paths.append(out / f"{direction}.png")
            with written_beside(paths[-1]) as beside:
                plots.recall_curves(title, curves, chance).savefig(beside, format="png", dpi=160, facecolor="white")
    return paths
