"""How the rows of a published table are trained and measured one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from limner.checkpoint import Checkpoint, Config, load_checkpoint
from limner.data.batching import Pictures, split_examples
from limner.data.collection import Collection
from limner.errors import CheckpointError, SettingsError
from limner.evaluation import evaluate, open_pictures, shown_pictures
from limner.published.printed import write_table
from limner.published.tables import Outcome, Reproduction, Row, Table
from limner.recipe import Recipe, load_recipe, recipe_names
from limner.records import RunConfig
from limner.shortlist import require_shortlist
from limner.training.loop import prepare, require_counted_words, train

Progress = Callable[[str, int, int], None]


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

    Stopped and called again, it goes on where it was: rows that are done are read, not done again. The table has all
    rows that `out` holds; what was not as the table's own recipe says stands beside a row's name. Whatever of the data
    and the settings can be refused is refused before the first training.

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
        SettingsError: there is no such row, the budget is none, or a recipe asks for what the data do not have.
        FeatureError: the collection lacks features that a recipe names.
        CheckpointError: `out` holds a row made from another collection, or one of these rows made with other settings
            or features.
    """
    if recipes is not None and not any(name.startswith(f"{recipes}/") for name in recipe_names()):
        raise SettingsError(f"no recipes '{recipes}'; there are: {', '.join(recipe_names())}")
    known = [row.name for row in table.rows]
    if unknown := set(rows) - set(known):
        raise SettingsError(f"no row '{min(unknown)}' in {table.name}; there are: {', '.join(known)}")
    if not 0 < budget <= 1:
        raise SettingsError(f"budget {budget:g}: expected a share above 0 and at most 1, such as 0.1")
    job = _Job(table, collection, out, recipes or table.recipes, tuple(changes), budget, command, progress or _quietly)
    chosen = [row for row in table.rows if not rows or row.name in rows]
    _check(chosen, job)
    made = None
    for done, row in enumerate(chosen):
        job.note("rows", done, len(chosen))
        if not _kept(row, out).exists():
            _bring_about(row, job)
        made = write_table(table, [Outcome.load(kept) for kept in _all_kept(table, out)], out)
    job.note("rows", len(chosen), len(chosen))
    assert made is not None, "a table has rows"
    return made


class _Job(NamedTuple):
    """What all rows of one call share."""

    table: Table
    collection: Collection
    out: Path
    recipes: str
    changes: tuple[str, ...]
    budget: float
    command: str
    note: Progress


def _quietly(part: str, done: int, total: int) -> None:
    """Nobody wants to know."""


def _check(rows: Sequence[Row], job: _Job) -> None:
    """Refuse before the first training what would be refused after one.

    Raises:
        LimnerError: whatever training or measuring would raise for the data and the settings.
    """
    for kept in _all_kept(job.table, job.out):
        if Outcome.load(kept).evaluation.fingerprint != job.collection.fingerprint():
            raise CheckpointError(f"{kept}: made from another collection; name another --out")
    missing = []
    for row in rows:
        wanted = _wanted(row, job)
        missing += [] if _take_over(row, wanted, job) else [(row, recipe) for recipe in wanted]
    learners: list[Checkpoint] = []
    for done, (row, recipe) in enumerate(missing):
        job.note("checking", done, len(missing))
        learner = next((one for one in learners if one.recipe == recipe), None)
        if learner is None:
            learner = prepare(recipe, job.collection, job.command)[0]
            learners.append(learner)
        _require_evaluable(learner, row, job.collection)


def _wanted(row: Row, job: _Job) -> list[Recipe]:
    """The row's recipe, once for each of its choices."""
    name = _recipe_name(row, job.recipes, job.table)
    return [_shrunk(load_recipe(name, [*choice, *job.changes]), job.budget) for choice in row.choices]


def _take_over(row: Row, wanted: Sequence[Recipe], job: _Job) -> bool:
    """Whether the row is there already; CheckpointError where it is another one."""
    kept = _kept(row, job.out)
    if not kept.exists():
        return False
    outcome = Outcome.load(kept)
    if outcome.recipe not in [recipe.model_dump(mode="json") for recipe in wanted]:
        raise CheckpointError(f"{kept}: made with other settings; name another --out, or remove this file")
    visual = wanted[0].visual
    tables = Pictures.open(job.collection, visual.features, visual.cache_mib).tables
    mine, theirs = tuple(table.spec.fingerprint for table in tables), outcome.features
    if theirs is None:
        config = job.out / outcome.run / "config.json"
        theirs = tuple(spec.fingerprint for spec in Config.load(config).features) if config.exists() else mine
    if mine != theirs:
        raise CheckpointError(
            f"{kept}: made from other features ({', '.join(theirs) or 'none'}; the collection's "
            f"{', '.join(visual.features)} are {', '.join(mine)}); name another --out, or restore those features"
        )
    if outcome.recipes is None:  # a record that does not say it, of the same settings
        known = {"recipes": _folder(row, job), "changes": job.changes, "features": theirs}
        outcome.model_copy(update=known).save(kept)
    return True


def _require_evaluable(learner: Checkpoint, row: Row, collection: Collection) -> None:
    """Refuse what measuring the row would refuse, once it is trained."""
    data, measure = learner.recipe.data, learner.recipe.evaluation
    leave_out = learner.recipe.visual.missing == "leave_out"
    features = open_pictures(learner, collection)
    examples = split_examples(collection, data.test, learner.tokenizer, data.lang, features, 1 << 30, leave_out)
    if row.pictures == "right" and features is not None:
        require_shortlist(measure.shortlist, examples.items)
    shown_pictures(learner, collection, features, row.pictures, examples.items, 1)
    require_counted_words(examples, data.test, measure.skip_words)
    longest = max(len(learner.tokenizer.words(text)) for text in examples.texts)
    if measure.samples and longest <= measure.given_words:
        raise SettingsError(
            f"evaluation.given_words: {measure.given_words}, and no sentence of split '{data.test}' has more than "
            f"{longest}; take fewer: evaluation.given_words={max(0, longest - 1)}"
        )


def _bring_about(row: Row, job: _Job) -> None:
    """Train the row (or go on training it), measure it, and keep what came out."""
    out, note, wanted = job.out, job.note, _wanted(row, job)
    runs = []
    for number, recipe in enumerate(wanted):
        run = out / "runs" / (row.recipe + (f"-{number + 1}" if len(wanted) > 1 else ""))
        train(recipe, job.collection, run, resume=run.exists(), command=job.command,
              progress=lambda news: note(f"training {row.recipe}", news.place.step, news.steps))  # fmt: skip
        runs.append(run)
    facts = [RunConfig.load(run / "config.json").provenance for run in runs]
    best = min(range(len(runs)), key=lambda run: float(facts[run]["validation_perplexity"])) if len(runs) > 1 else 0
    model, recipe = load_checkpoint(runs[best]), wanted[best]
    evaluation = evaluate(
        [model],
        job.collection,
        settings=recipe.search,  # the run's own may be older: neither decides how it was trained
        measure=recipe.evaluation,
        metrics=(),
        pictures=row.pictures,
        retrieval=row.pictures == "right",
        marginal=0,
        command=job.command,
        progress=lambda part, done, total: note(f"{part} {row.name}", done, total),
    )
    outcome = Outcome(
        row=row.name,
        recipe=recipe.model_dump(mode="json"),
        recipes=_folder(row, job),
        changes=job.changes,
        features=tuple(spec.fingerprint for spec in model.config.features),
        run=str(runs[best].relative_to(out)),
        pictures=row.pictures,
        budget=job.budget,
        seconds=round(sum(float(one["seconds"]) for one in facts), 1),
        evaluation=evaluation,
    )
    kept = _kept(row, out)
    kept.parent.mkdir(parents=True, exist_ok=True)
    outcome.save(kept)


def _all_kept(table: Table, out: Path) -> list[Path]:
    """The rows that are there, of this call or an earlier one."""
    return [kept for kept in (_kept(row, out) for row in table.rows) if kept.exists()]


def _kept(row: Row, out: Path) -> Path:
    return out / "rows" / f"{row.name.lower().replace(' ', '-')}.json"


def _recipe_name(row: Row, folder: str, table: Table) -> str:
    """The row's recipe in a folder, or the table's own where that folder has none for this row."""
    name = f"{folder}/{row.recipe}"
    return name if name in recipe_names() else f"{table.recipes}/{row.recipe}"


def _folder(row: Row, job: _Job) -> str:
    """The folder that the row's recipe is from."""
    return _recipe_name(row, job.recipes, job.table).removesuffix(f"/{row.recipe}")


def _shrunk(recipe: Recipe, budget: float) -> Recipe:
    """Fewer epochs and fewer samples; the same recipe for a budget of 1."""
    if budget == 1:
        return recipe
    training, measure = recipe.training, recipe.evaluation
    fewer = {
        "epochs": max(1, round(budget * training.epochs)),
        "fuse": max(min(1, training.fuse), round(budget * training.fuse)),  # a second stage shrinks, it does not go
    }
    samples = max(min(2, measure.samples), round(budget * measure.samples))
    return recipe.model_copy(
        update={
            "training": training.model_copy(update=fewer),
            "evaluation": measure.model_copy(update={"samples": samples}),
        }
    )
