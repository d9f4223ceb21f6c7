"""The commands that compare and report the results of evaluations: compare, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from limner.apps.cli import options, terminal
from limner.apps.cli.app import MEASURE, command_line
from limner.bounds import BootstrapSamples, Count, Level, Seed
from limner.errors import SettingsError
from limner.runs.pretrained import local_folder, model_type, results_folder
from limner.storage.outputs import claim_file, save_output

if TYPE_CHECKING:
    from limner.evaluation.comparison import Comparison
    from limner.evaluation.cost import Cost


@options.command(MEASURE)
def compare(
    runs: list[str],
    *,
    collection: Path | None = None,
    split: str | None = None,
    metric: list[str] | None = None,
    lang: str | None = None,
    trials: Count | None = None,
    seed: Seed | None = None,
    samples: BootstrapSamples | None = None,
    level: Level | None = None,
    as_json: bool = False,
) -> None:
    """Compare systems on the same sentences: scores, differences and their significance.

    The first system is the baseline. † marks systems significantly better than the first, ‡ than the second. Systems
    with several seeds are compared over seeds and sentences, others over sentences alone.

    Example: `limner compare runs/nmt1,runs/nmt2 runs/src-img1,runs/src-img2 --metric bleu4 --metric ter --level 0.01`

    Options:
        runs (RUN RUN...): Run folders, or models of the hub, with results of 'limner evaluate'; join the training seeds
            of one system by commas.
        collection (DIR): Evaluate what has no results on this collection; of captioners, measure parameters, and the
            time and memory of captions from the image file on.
        split: Split to compare on; default: test.
        metric: Metric to compare; default: bleu4, meteor, ter and chrf3, or all of labels. Repeatable.
        lang: Language code of the sentences; default: the language of the first run.
        trials: Number of trials of approximate randomisation, the test of systems with one seed; default: 10000.
        seed: Random seed of trials and samples; default: 1.
        samples: Number of bootstrap samples of the sentences, for intervals and for tests of systems with several
            seeds; default: 1000.
        level: Significance level; default: 0.05.
    """
    from limner.evaluation.compare import compare as compare_systems
    from limner.evaluation.comparison import ComparisonSettings

    values = options.without_none(metrics=metric, trials=trials, samples=samples, seed=seed, level=level)
    settings = ComparisonSettings.parse(values, "compare")
    systems = [[Path(run) for run in system.split(",") if run] for system in runs]
    each = [run for system in systems for run in system]
    if collection is not None:
        _evaluate_missing(each, collection, split or "test")
    with terminal.progress_bars() as progress:
        comparison = compare_systems(
            systems, settings=settings, lang=lang, on_progress=progress, **options.without_none(split=split)
        )
    costs = {} if collection is None else _measure(each, collection, split or "test")
    if as_json:
        measured = {"costs": {run: cost._asdict() for run, cost in costs.items()}} if costs else {}
        return terminal.print_json(
            {**comparison.model_dump(mode="json"), "signature": comparison.signature, **measured}
        )
    for table in (_score_table(comparison), _difference_table(comparison), *([_costs(costs)] if costs else [])):
        terminal.print_table(table)
        terminal.echo()
    for line in (*comparison.explanation, *(f"{metric.name}: {metric.signature}" for metric in comparison.metrics)):
        terminal.echo(line)


def _evaluate_missing(runs: Sequence[Path], folder: Path, split: str) -> None:
    """Evaluate the run folders and models of the hub that have no results on a split of a collection."""
    from limner.apps.cli.evaluate import evaluate_hub_model
    from limner.data.collection import Collection
    from limner.evaluation.evaluate import EvaluationOptions
    from limner.evaluation.evaluate import evaluate as evaluate_models
    from limner.runs.evaluations import load_evaluation, save_evaluation, stored_evaluations

    opened = Collection.open(folder)
    for run in runs:
        if stored_evaluations(run, split):
            if load_evaluation(run, split).fingerprint == opened.fingerprint():
                continue
            raise SettingsError(
                f"{run}: its results of split '{split}' are of another collection than {folder}; run 'limner evaluate' "
                "on it, or leave out --collection"
            )
        if model_type(Path(local_folder(run))) is not None:
            result = evaluate_hub_model([run], folder, split, [], [], {}, {})
        else:
            scope, models = EvaluationOptions(split=split, retrieval=False), options.load_runs([run], "cpu")
            with terminal.progress_bars() as bars:
                result = evaluate_models(models, opened, options=scope, command=command_line(), on_progress=bars)
        save_evaluation(result, run)


def _measure(runs: Sequence[Path], folder: Path, split: str) -> dict[str, Cost]:
    """Return the cost of each run that describes images."""
    from limner.data.collection import Collection
    from limner.evaluation.cost import measure_cost
    from limner.runs.evaluations import load_evaluation

    items = {run: load_evaluation(run, split).items for run in runs}
    with terminal.activity("measuring time and memory"):
        opened = Collection.open(folder)
        costs = {run: measure_cost(run, opened, split) for run in runs if items[run] and not items[run][0].source}
    return {str(run): cost for run, cost in costs.items() if cost is not None}


def _costs(costs: dict[str, Cost]) -> list[list[str]]:
    """Return the table of costs, header first: one row per run."""
    rows = [["model", "parameters", "s an image", "MiB"]]
    for run, cost in costs.items():
        memory = "" if cost.memory is None else f"{cost.memory / (1 << 20):,.0f}"
        rows.append([results_folder(Path(run)).name, f"{cost.parameters:,}", f"{cost.seconds:.3f}", memory])
    return rows


def _score_table(comparison: Comparison) -> list[list[str]]:
    """Return the table of scores, header first: one row per system, one column per metric."""
    arrows = {metric.name: "↑" if metric.higher_is_better else "↓" for metric in comparison.metrics}
    rows = [[comparison.split, *(f"{name} {arrow}" for name, arrow in arrows.items())]]
    for system in comparison.systems:
        cells = []
        for score in (comparison.score(system.name, metric) for metric in arrows):
            spread = "" if score.spread is None else f" ± {score.spread:.2f}"
            cells.append(f"{score.value:.2f}{spread} {score.marks}".rstrip())
        rows.append([system.name, *cells])
    return rows


def _difference_table(comparison: Comparison) -> list[list[str]]:
    """Return the table of differences, header first: one row per pair of systems and metric."""
    percent, holm = f"{100 * (1 - comparison.settings.level):g} %", ["p (Holm)"] if comparison.pairs > 1 else []
    rows = [["difference", "metric", "value", f"{percent} interval", "p", *holm]]
    for contrast in comparison.contrasts:
        interval = "[{:+.2f}, {:+.2f}]".format(*contrast.interval)
        adjusted = [f"{contrast.adjusted_p:.3g}"] if comparison.pairs > 1 else []
        cells = [contrast.metric, f"{contrast.difference:+.2f}", interval, f"{contrast.p:.3g}", *adjusted]
        rows.append([f"{contrast.system} - {contrast.baseline}", *cells])
    return rows


@options.command(MEASURE)
def report(
    *, model: options.ModelOption = None, out: Path | None = None, force: bool = False, as_json: bool = False
) -> None:
    """Write a report of a run as one self-contained HTML file: curves, metrics, captions, retrieval results.

    Run `limner evaluate` first: the report shows its results.

    Example: `limner report --model runs/mrnn --out report.html`

    Options:
        out (FILE): HTML file to write; default: report.html in the run folder.
    """
    run = options.require_one_model(model, "report")
    default = results_folder(run) / "report.html"
    path = claim_file(out or default, "--out", force=force, default=default)
    from limner.apps.report.page import write_report

    with terminal.activity("writing the report"):
        saved = save_output(path, lambda file: write_report(run, file))
    terminal.print_json({"report": str(saved.path)}) if as_json else terminal.echo(str(saved.path))
    saved.require()
