"""How the rows of a published table are trained and measured one after another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from limner.data.collection import Collection
from limner.errors import SettingsError
from limner.evaluation.evaluate import evaluate
from limner.reproduce.plan import Chain, Job, Plan, Progress, Training, all_kept, as_of_now, folder_of, plan
from limner.reproduce.preflight import check, initialised_from
from limner.reproduce.render import write_table
from limner.reproduce.tables import Outcome, Reproduction, Row, Table
from limner.runs.recipe import recipe_names
from limner.runs.records import RunConfig
from limner.runs.trained_model import load_trained_model
from limner.training.loop import train


def reproduce(
    table: Table,
    collection: Collection,
    out: Path,
    *,
    recipes: str | None = None,
    changes: Sequence[str] = (),
    rows: Sequence[str] = (),
    seeds: int = 1,
    init: Path | None = None,
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
        out: gets `runs/`, `rows/`, `table.md`, `table.json`, `significance.json` where rows are compared, and drawings
            of the curves.
        recipes: another folder of recipes than the table's; rows it has none for take the table's own.
        changes: KEY=VALUE, made to every row's recipe, and to those it begins with.
        rows: only these; none for all that have a recipe.
        seeds: how many times each row is trained and measured: with the seed of its recipe and those that follow it.
            A choice that a row makes is made with the first.
        init: a run whose vocabularies and, where name and shape agree, weights every row begins with.
        budget: share of the epochs and samples, above 0 and at most 1: a smaller one is sooner done and worth less.
        command: how this was called, for the records.
        progress: told the part of the work, what is done of it and how much it is.

    Raises:
        SettingsError: there is no such row, the budget or the seeds are none, or a recipe asks for what the data do
            not have.
        FeatureError: the collection lacks features that a recipe names.
        RunError: `out` holds a row made from another collection, or one of these rows made with other settings,
            features or weights to begin with; or `init` is no run.
    """
    chosen = _chosen(table, rows)
    if recipes is not None and not any(name.startswith(f"{recipes}/") for name in recipe_names()):
        raise SettingsError(f"no recipes '{recipes}'; there are: {', '.join(recipe_names())}")
    if not 0 < budget <= 1:
        raise SettingsError(f"budget {budget:g}: expected a share above 0 and at most 1, such as 0.1")
    if seeds < 1:
        raise SettingsError(f"seeds {seeds}: expected how many times each row is trained, 1 or more")
    note = progress or _quietly
    job = Job(table, collection, out, recipes or table.recipes, tuple(changes), budget, seeds, init, command, note)
    check(chosen, job)
    made = None
    for done, row in enumerate(chosen):
        note("rows", done, len(chosen))
        for repeat in range(seeds):
            wanted = plan(row, job, repeat)
            if not wanted.kept.exists():
                _bring_about(wanted, job)
        made = write_table(table, [Outcome.load(kept) for kept in all_kept(table, out)], out, note)
    note("rows", len(chosen), len(chosen))
    assert made is not None, "a table has rows"
    return made


def _quietly(part: str, done: int, total: int) -> None:
    """Nobody wants to know."""


def _chosen(table: Table, names: Sequence[str]) -> list[Row]:
    """The rows of these names, or all; SettingsError where one is unknown, or is only printed."""
    ours = [row for row in table.rows if row.recipe is not None]
    known = ", ".join(row.name for row in ours)
    if printed := {row.name for row in table.rows if row.recipe is None} & set(names):
        raise SettingsError(f"row '{min(printed)}' of {table.name} is shown as printed, it has no recipe; {known} have")
    if unknown := set(names) - {row.name for row in ours}:
        raise SettingsError(f"no row '{min(unknown)}' in {table.name}; there are: {known}")
    return [row for row in ours if not names or row.name in names]


def _bring_about(wanted: Plan, job: Job) -> None:
    """Train the row (or go on training it), measure it, and keep what came out."""
    row, out = wanted.row, job.out
    choices = _remaining(wanted, job)
    trainings = {training.run: training for chain in choices for training in chain}
    for training in trainings.values():
        _train(training, job)
    best = _best(choices)[-1]
    model = load_trained_model(best.run)
    evaluation = evaluate(
        [model],
        job.collection,
        settings=best.recipe.decoding,  # the run's own may be older: neither decides how it was trained
        measure=best.recipe.evaluation,
        metrics=job.table.metrics,
        pictures=row.pictures,
        retrieval=row.pictures == "right",
        marginal=0,
        command=job.command,
        progress=lambda part, done, total: job.note(f"{part} {row.name}", done, total),
    )
    outcome = Outcome(
        row=row.name,
        recipe=best.recipe.model_dump(mode="json"),
        recipes=folder_of(row, job),
        changes=job.changes,
        stages=tuple(stage.model_dump(mode="json") for stage in wanted.stages),
        begun=initialised_from(job.init),
        features=tuple(spec.fingerprint for spec in model.config.features),
        run=str(best.run.relative_to(out)),
        pictures=row.pictures,
        budget=job.budget,
        seconds=round(sum(_fact(run, "seconds") for run in trainings), 1),
        evaluation=evaluation,
    )
    wanted.kept.parent.mkdir(parents=True, exist_ok=True)
    outcome.save(wanted.kept)


def _train(training: Training, job: Job) -> None:
    """Train a run, or go on training it."""
    train(
        training.recipe,
        job.collection,
        training.run,
        resume=training.run.exists(),
        init=training.init,
        command=job.command,
        progress=lambda at: job.note(f"training {training.run.name}", at.place.step, at.steps),
    )


def _remaining(wanted: Plan, job: Job) -> tuple[Chain, ...]:
    """What there is to choose from: for a further seed only what was chosen with the first."""
    first = plan(wanted.row, job)
    if len(wanted.choices) == 1 or wanted.kept == first.kept:
        return wanted.choices
    best = as_of_now(Outcome.load(first.kept).recipe)
    return tuple(chain for chain, recipe in zip(wanted.choices, first.recipes, strict=True) if recipe == best)


def _best(choices: Sequence[Chain]) -> Chain:
    """The choice that fits the validation split best."""
    if len(choices) == 1:
        return choices[0]
    return min(choices, key=lambda chain: _fact(chain[-1].run, "validation_perplexity"))


def _fact(run: Path, name: str) -> float:
    return float(RunConfig.load(run / "config.json").provenance[name])
