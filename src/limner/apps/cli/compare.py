"""The command that compares runs: compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from limner.apps.cli.app import MEASURE
from limner.apps.cli.options import command, given, refuse
from limner.apps.cli.terminal import activity, echo, print_json, print_table, progress_bars
from limner.bounds import BootstrapSamples, Count, Level, Seed
from limner.storage.outputs import claim_file, save_output

if TYPE_CHECKING:
    from limner.evaluation.comparison import Comparison


@command(MEASURE)
def compare(
    runs: list[str],
    *,
    split: str | None = None,
    metric: list[str] | None = None,
    lang: str | None = None,
    trials: Count | None = None,
    seed: Seed | None = None,
    samples: BootstrapSamples | None = None,
    level: Level | None = None,
    out_file: Path | None = None,
    force: bool = False,
    as_json: bool = False,
) -> None:
    """Compare systems on the same sentences: scores, differences and their significance.

    The first system is the baseline. † marks systems significantly better than the first, ‡ than the second. Systems
    with several seeds are compared over seeds and sentences, others over sentences alone.

    Example: `limner compare runs/nmt1,runs/nmt2 runs/src-img1,runs/src-img2 --metric bleu4 --metric ter --level 0.01`

    Options:
        runs (RUN RUN...): Run folders with results of 'limner evaluate'; join the training seeds of one system by
            commas.
        split: Split to compare on; default: test.
        metric: Metric to compare; default: bleu4, meteor, ter and chrf3, or all of labels. Repeatable.
        lang: Language code of the sentences; default: that of the first run.
        trials: Number of trials of approximate randomisation, the test of systems with one seed; default: 10000.
        seed: Random seed of trials and samples; default: 1.
        samples: Number of bootstrap samples of the sentences, for intervals and for tests of systems with several
            seeds; default: 1000.
        level: Significance level; default: 0.05.
        out_file (--out FILE): HTML page to write: scores, curves, captions side by side, settings that differ.
    """
    from limner.evaluation.compare import compare as compare_systems
    from limner.evaluation.comparison import ComparisonSettings

    refuse({"--force": force and out_file is None}, "has an effect only with --out; leave it out")
    if out_file is not None:
        claim_file(out_file, "--out", force=force)
    options = given(metrics=metric, trials=trials, samples=samples, seed=seed, level=level)
    settings = ComparisonSettings.parse(options, "compare")
    systems = [[Path(run) for run in system.split(",") if run] for system in runs]
    with progress_bars() as progress:
        comparison = compare_systems(systems, settings=settings, lang=lang, on_progress=progress, **given(split=split))
    saved = None
    if out_file is not None:
        from limner.apps.report.comparison_page import write_comparison

        with activity("writing the page"):
            saved = save_output(out_file, lambda file: write_comparison(comparison, file))
    if as_json:
        page = {} if saved is None else {"page": str(saved.path)}
        print_json({**comparison.model_dump(mode="json"), "signature": comparison.signature, **page})
    else:
        for table in (_scores(comparison), _differences(comparison)):
            print_table(table)
            echo()
        for line in (*comparison.explanation, *(f"{metric.name}: {metric.signature}" for metric in comparison.metrics)):
            echo(line)
        if saved is not None:
            echo(str(saved.path))
    if saved is not None:
        saved.require()


def _scores(comparison: Comparison) -> list[list[str]]:
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


def _differences(comparison: Comparison) -> list[list[str]]:
    """Return the table of differences, header first: one row per pair of systems and metric."""
    percent = f"{100 * (1 - comparison.settings.level):g} %"
    rows = [
        ["difference", "metric", "value", f"{percent} interval", "p", *(["p (Holm)"] if comparison.pairs > 1 else [])]
    ]
    for contrast in comparison.contrasts:
        interval = "[{:+.2f}, {:+.2f}]".format(*contrast.interval)
        adjusted = [f"{contrast.adjusted_p:.3g}"] if comparison.pairs > 1 else []
        cells = [contrast.metric, f"{contrast.difference:+.2f}", interval, f"{contrast.p:.3g}", *adjusted]
        rows.append([f"{contrast.system} - {contrast.baseline}", *cells])
    return rows
