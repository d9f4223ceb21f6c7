"""A published table as it came out: Markdown, JSON, and drawings of its curves."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

from limner.evaluation.compare import DAGGERS
from limner.files import atomic_write, write_text
from limner.report import plots
from limner.reproduce.plan import Progress
from limner.reproduce.significance import ComparedTable, compare_rows, contrasts, marks
from limner.reproduce.tables import Column, Outcome, Reproduction, Row, Table, by_row, pooled
from limner.runs.records import Point

SHOWN = 16
"""Longest value of a change that is printed beside a row's name."""


def write_table(table: Table, outcomes: Sequence[Outcome], out: Path, note: Progress) -> Reproduction:
    """Compare the rows with their baselines, and write the table, the same as JSON, and the curves."""
    markdown, plain = out / "table.md", out / "table.json"
    compared = compare_rows(table, outcomes, out, note)
    write_text(markdown, to_markdown(table, outcomes, compared))
    write_text(plain, json.dumps(_plain(table, outcomes, compared), indent=1, ensure_ascii=False))
    return Reproduction(table, tuple(outcomes), markdown, plain, tuple(_draw(outcomes, out)))


def to_markdown(table: Table, outcomes: Sequence[Outcome], compared: ComparedTable) -> str:
    """The table as Markdown: our figures, then the paper's for each of its data sets."""
    data, there = Path(outcomes[0].evaluation.collection).name, by_row(outcomes)
    printed = [column for column in table.columns if any(_published(row, column.score) for row in table.rows)]
    head = [column.label for column in table.columns]
    head += [f"{column.label}, {where}" for where in table.published for column in printed]
    lines = [f"| {data} | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for row in _shown(table, there):
        seeds = there.get(row.name, [])
        cells = [_ours(row, seeds, column, compared) for column in table.columns]
        cells += [_theirs(row, where, column) for where in table.published for column in printed]
        lines.append(f"| {_named(row, seeds, table)} | {' | '.join(cells)} |")
    how = [*_legend(table, compared), *_signatures(table, outcomes)]
    return "\n".join([f"# {table.title}", "", *lines, "", table.notes, "", *how, *([""] if how else [])])


def _shown(table: Table, there: Container[str]) -> list[Row]:
    """The rows that are there, and those that are only printed."""
    return [row for row in table.rows if row.recipe is None or row.name in there]


def _named(row: Row, seeds: Sequence[Outcome], table: Table) -> str:
    """A row's name, and behind it what was not as the table's own recipe says."""
    if not seeds:
        return row.name
    first = seeds[0]
    said = [] if first.recipes in (None, table.recipes) else [str(first.recipes)]
    for change in first.changes:
        key, _, value = change.partition("=")
        said.append(f"{key}={value if len(value) <= SHOWN else '…'}".replace("|", "\\|"))
    if first.begun is not None:
        said.append(f"begun with {first.begun.run}")
    if first.budget != 1:
        said.append(f"budget {first.budget:g}")
    if len(seeds) > 1:
        said.append(f"{len(seeds)} seeds")
    return row.name + (f" ({'; '.join(said)})" if said else "")


def _published(row: Row, score: str) -> bool:
    return any(score in values for values in row.published.values())


def _number(value: float | None, column: Column) -> str:
    return "–" if value is None else f"{value * column.scale:.{column.digits}f}"


def _ours(row: Row, seeds: Sequence[Outcome], column: Column, compared: ComparedTable) -> str:
    found = pooled(seeds, column.score)
    if found is None:
        return "–"
    spread = "" if found.spread is None else f" ± {_number(found.spread, column)}"
    return f"{_number(found.value, column)}{spread} {marks(row, column.score, compared)}".rstrip()


def _theirs(row: Row, where: str, column: Column) -> str:
    value = _number(row.published.get(where, {}).get(column.score), column)
    return f"{value} {row.published_marks.get(where, {}).get(column.score, '')}".rstrip()


def _legend(table: Table, compared: ComparedTable) -> list[str]:
    """What the marks behind our figures mean: a line for all rows that have the same baselines."""
    told: dict[str, list[str]] = {}
    for row in table.rows:
        there = contrasts(row, compared)
        better = [
            f"{mark} better than {name}" for mark, name in zip(DAGGERS, row.against, strict=False) if name in there
        ]
        if better:
            told.setdefault(f"{', '.join(better)}, p < {row.level:g}", []).append(row.name)
    how = dict.fromkeys(f"- test: `{pair.signature}`" for pair in compared.pairs)
    return [*(f"- marks of {' / '.join(rows)}: {better}" for better, rows in told.items()), *how]


def _signatures(table: Table, outcomes: Sequence[Outcome]) -> list[str]:
    """How the metrics of sentences were measured; twice where rows differ in that."""
    found = [(name, one.scores[name].signature) for name in table.metrics for one in outcomes if name in one.scores]
    return [f"- {name}: `{signature}`" for name, signature in dict.fromkeys(found)]


def _plain(table: Table, outcomes: Sequence[Outcome], compared: ComparedTable) -> dict[str, Any]:
    there, first = by_row(outcomes), outcomes[0].evaluation
    return {
        "table": table.name,
        "collection": Path(first.collection).name,
        "fingerprint": first.fingerprint,
        "rows": [
            {
                "row": row.name,
                **(_measured(row, there[row.name], compared) if row.name in there else {}),
                "published": {data: dict(values) for data, values in row.published.items()},
                "published_marks": {data: dict(values) for data, values in row.published_marks.items()},
            }
            for row in _shown(table, there)
        ],
    }


def _measured(row: Row, seeds: Sequence[Outcome], compared: ComparedTable) -> dict[str, Any]:
    first = seeds[0]
    return {
        "run": first.run,
        "recipes": first.recipes,
        "changes": first.changes,
        "pictures": first.pictures,
        "budget": first.budget,
        "begun": None if first.begun is None else first.begun.model_dump(),
        "training_seconds": round(sum(one.seconds for one in seeds), 1),
        "scores": [
            {"name": score.name, "value": found.value, "spread": found.spread, "signature": score.signature}
            for score in first.evaluation.scores
            if (found := pooled(seeds, score.name)) is not None
        ],
        "seeds": [
            {"seed": one.seed, "run": one.run, "scores": {name: score.value for name, score in one.scores.items()}}
            for one in seeds
        ],
        "contrasts": [
            {**one.model_dump(exclude={"system"}), "level": row.level}
            for beside in contrasts(row, compared).values()
            for one in beside
        ],
    }


def _draw(outcomes: Iterable[Outcome], out: Path) -> list[Path]:
    """The curves of all rows, of their first seeds, in one drawing for each direction of search."""
    paths = []
    for direction, title in (("text_to_image", "Sentence → pictures"), ("image_to_text", "Picture → sentences")):
        curves: dict[str, tuple[Point, ...]] = {}
        chance: tuple[Point, ...] = ((0.0, 0.0), (1.0, 1.0))
        for row, seeds in by_row(outcomes).items():
            found = seeds[0].evaluation.retrieval
            if found is not None and found.match_curves is not None:
                curves[row] = getattr(found.match_curves, direction)
                chance = getattr(found.chance_curves, direction, chance)
        if curves:
            paths.append(out / f"{direction}.png")
            with atomic_write(paths[-1]) as beside:
                plots.recall_curves(title, curves, chance).savefig(beside, format="png", dpi=160, facecolor="white")
    return paths
