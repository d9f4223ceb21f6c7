"""What a published table is, and how its rows are trained and measured one after another."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from limner import plots
from limner.checkpoint import load_checkpoint
from limner.data.batching import Control
from limner.data.collection import Collection
from limner.errors import CheckpointError, SettingsError
from limner.evaluation import evaluate
from limner.files import write_whole, written_beside
from limner.metrics import Score
from limner.recipe import Recipe, load_recipe, recipe_names
from limner.records import Evaluation, Point, Record, RunConfig
from limner.training.loop import train

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]


class Column(NamedTuple):
    """A figure of a table."""

    score: str
    """Its name among our scores."""
    label: str
    digits: int
    scale: float = 1.0
    """Ours times this is as the paper prints it."""


class Row(NamedTuple):
    """A row of a published table."""

    name: str
    """As it is printed."""
    recipe: str
    """In the table's folder of recipes."""
    pictures: Control = "right"
    choices: tuple[tuple[str, ...], ...] = ((),)
    """Changes of the recipe, of which the best on the validation split counts."""
    published: Mapping[str, Mapping[str, float]] = MappingProxyType({})
    """By data set: scores by our names and on our scale."""


class Table(NamedTuple):
    """A published table."""

    name: str
    title: str
    recipes: str
    """Folder of its recipes."""
    columns: tuple[Column, ...]
    published: tuple[str, ...]
    """The data sets the paper has figures for."""
    rows: tuple[Row, ...]
    notes: str


class Outcome(Record):
    """A row as it came out; the file it is kept in spares doing it again."""

    row: str
    recipe: dict[str, object]
    """All settings, as they were trained with."""
    run: str
    """Folder of the model, below that of the table."""
    pictures: str
    budget: float = 1.0
    """Share of the recipe's epochs and samples that were spent."""
    seconds: float
    """Of training steps."""
    evaluation: Evaluation

    @property
    def scores(self) -> dict[str, Score]:
        """The scores by name."""
        return {score.name: score for score in self.evaluation.scores}


class Reproduction(NamedTuple):
    """A table as it came out."""

    table: Table
    outcomes: tuple[Outcome, ...]
    markdown: Path
    json: Path
    figures: tuple[Path, ...]


def reproduce(
    table: Table,
    collection: Collection,
    out: Path,
    *,
    recipes: str | None = None,
    changes: Sequence[str] = (),
    rows: Sequence[str] = (),
    budget: float = 1.0,
    command: str = "limner.reproduce",
    progress: Progress | None = None,
) -> Reproduction:
    """Train and measure the rows of a table, and write it beside the published figures.

    Stopped and called again, it goes on where it was: rows that are done are read, not done again.

    Args:
        table: which one.
        collection: what to learn from and measure on, with the features that the recipes name.
        out: gets `runs/`, `rows/`, `table.md`, `table.json` and drawings of the curves.
        recipes: another folder of recipes than the table's; rows it has none for take the table's own.
        changes: KEY=VALUE, made to every row's recipe.
        rows: only these; none for all.
        budget: share of the epochs and samples, above 0 and at most 1: a smaller one is sooner done and worth less.
        command: how this was called, for the records.
        progress: told the part of the work, what is done of it and how much it is.

    Raises:
        SettingsError: there is no such row, or the budget is none.
        CheckpointError: `out` holds a row made with other settings or from other data.
    """
    if recipes is not None and not any(name.startswith(f"{recipes}/") for name in recipe_names()):
        raise SettingsError(f"no recipes '{recipes}'; there are: {', '.join(recipe_names())}")
    known = [row.name for row in table.rows]
    if unknown := set(rows) - set(known):
        raise SettingsError(f"no row '{min(unknown)}' in {table.name}; there are: {', '.join(known)}")
    if not 0 < budget <= 1:
        raise SettingsError(f"budget {budget:g}: expected a share above 0 and at most 1, such as 0.1")
    job = _Job(table, collection, out, recipes or table.recipes, changes, budget, command, progress or _quietly)
    chosen = [row for row in table.rows if not rows or row.name in rows]
    made = None
    for done, row in enumerate(chosen):
        job.note("rows", done, len(chosen))
        _bring_about(row, job)
        made = _write(table, out)
    job.note("rows", len(chosen), len(chosen))
    assert made is not None, "a table has rows"
    return made


class _Job(NamedTuple):
    """What all rows of one call share."""

    table: Table
    collection: Collection
    out: Path
    recipes: str
    changes: Sequence[str]
    budget: float
    command: str
    note: Progress


def _quietly(part: str, done: int, total: int) -> None:
    """Nobody wants to know."""


def _bring_about(row: Row, job: _Job) -> None:
    """See that the row is there as it is wanted, otherwise train (or go on training) and measure it."""
    name, out, note = _recipe_name(row, job.recipes, job.table), job.out, job.note
    wanted = [_shrunk(load_recipe(name, [*choice, *job.changes]), job.budget) for choice in row.choices]
    kept = _kept(row, out)
    if kept.exists():
        _require_same(Outcome.load(kept), wanted, job.collection, kept)
        return
    runs = []
    for number, recipe in enumerate(wanted):
        run = out / "runs" / (row.recipe + (f"-{number + 1}" if len(wanted) > 1 else ""))
        train(recipe, job.collection, run, resume=run.exists(), command=job.command,
              progress=lambda news: note(f"training {row.name}", news.place.step, news.steps))  # fmt: skip
        runs.append(run)
    best = min(runs, key=_validation_perplexity) if len(runs) > 1 else runs[0]
    model = load_checkpoint(best)
    evaluation = evaluate(
        [model],
        job.collection,
        metrics=(),
        pictures=row.pictures,
        retrieval=row.pictures == "right",
        marginal=0,
        command=job.command,
        progress=lambda part, done, total: note(f"{part} {row.name}", done, total),
    )
    outcome = Outcome(
        row=row.name,
        recipe=model.config.recipe,
        run=str(best.relative_to(out)),
        pictures=row.pictures,
        budget=job.budget,
        seconds=model.config.provenance["seconds"],
        evaluation=evaluation,
    )
    kept.parent.mkdir(parents=True, exist_ok=True)
    outcome.save(kept)


def _kept(row: Row, out: Path) -> Path:
    return out / "rows" / f"{row.name.lower().replace(' ', '-')}.json"


def _recipe_name(row: Row, folder: str, table: Table) -> str:
    """The row's recipe in a folder, or the table's own where that folder has none for this row."""
    name = f"{folder}/{row.recipe}"
    return name if name in recipe_names() else f"{table.recipes}/{row.recipe}"


def _validation_perplexity(run: Path) -> float:
    return float(RunConfig.load(run / "config.json").provenance["validation_perplexity"])


def _shrunk(recipe: Recipe, budget: float) -> Recipe:
    """Fewer epochs and fewer samples; the same recipe for a budget of 1."""
    if budget == 1:
        return recipe
    training, measure = recipe.training, recipe.evaluation
    fewer = {"epochs": max(1, round(budget * training.epochs)), "fuse": round(budget * training.fuse)}
    samples = max(min(2, measure.samples), round(budget * measure.samples))
    return recipe.model_copy(
        update={
            "training": training.model_copy(update=fewer),
            "evaluation": measure.model_copy(update={"samples": samples}),
        }
    )


def _require_same(outcome: Outcome, wanted: Sequence[Recipe], collection: Collection, kept: Path) -> None:
    if outcome.recipe not in [recipe.model_dump(mode="json") for recipe in wanted]:
        raise CheckpointError(f"{kept}: made with other settings; name another --out, or remove this file")
    if outcome.evaluation.fingerprint != collection.fingerprint():
        raise CheckpointError(f"{kept}: made from another collection; name another --out")


def _write(table: Table, out: Path) -> Reproduction:
    """Write the table of all rows that are there, of this call or an earlier one."""
    outcomes = [Outcome.load(kept) for kept in (_kept(row, out) for row in table.rows) if kept.exists()]
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
        spent = "" if outcome.budget == 1 else f" (budget {outcome.budget:g})"
        lines.append(f"| {outcome.row}{spent} | {' | '.join(cells)} |")
    return "\n".join([f"# {table.title}", "", *lines, "", table.notes, ""])


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
        for outcome in outcomes:
            found = outcome.evaluation.retrieval
            if found is not None and found.match_curves is not None:
                curves[outcome.row] = getattr(found.match_curves, direction)
        if curves:
            paths.append(out / f"{direction}.png")
            with written_beside(paths[-1]) as beside:
                plots.recall_curves(title, curves).savefig(beside, format="png", dpi=160, facecolor="white")
    return paths
