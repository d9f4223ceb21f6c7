"""The command that compares runs: compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limner.bounds import Level, Seed, Trials
from limner.cli.app import MEASURE, app
from limner.cli.options import ForceOption, JsonOption, Number, given, refuse
from limner.cli.terminal import activity, echo, out, print_json, progress_bars
from limner.storage.outputs import SavedOutput, claim_file, save_output

if TYPE_CHECKING:
    from limner.evaluation.compare import Comparison, SystemScore


# Arguments and options of this command.
RunsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN RUN...",
        help="Run folders with results of 'limner evaluate'; join the training seeds of one system by commas.",
    ),
]
SplitOption = Annotated[str | None, typer.Option("--split", help="Split to compare on; default: test.")]
MetricOption = Annotated[
    list[str] | None,
    typer.Option(
        "--metric", help="Metric to compare; default: bleu4, meteor, ter and chrf3, or all of labels. Repeatable."
    ),
]
LangOption = Annotated[
    str | None, typer.Option("--lang", help="Language code of the sentences; default: that of the first run.")
]
TrialsOption = Annotated[
    int | None,
    typer.Option(
        "--trials", help="Number of trials of approximate randomisation; default: 10000.", parser=Number(Trials)
    ),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", help="Random seed of the trials; default: 1.", parser=Number(Seed))
]
ExchangeOption = Annotated[
    str | None,
    typer.Option(
        "--exchange",
        help="With several seeds, the unit a trial exchanges: systems (all outputs of a sentence together) or "
        "outputs (one by one, as MultEval does, which treats seeds as independent); default: systems.",
    ),
]
LevelOption = Annotated[
    float | None, typer.Option("--level", help="Significance level; default: 0.05.", parser=Number(Level))
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="HTML page to write: scores, curves, captions side by side, settings that differ."
    ),
]
MarkdownOption = Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")]


@app.command(rich_help_panel=MEASURE)
def compare(
    runs: RunsArgument,
    split: SplitOption = None,
    metric: MetricOption = None,
    lang: LangOption = None,
    trials: TrialsOption = None,
    seed: SeedOption = None,
    exchange: ExchangeOption = None,
    level: LevelOption = None,
    markdown: MarkdownOption = False,
    out_file: OutOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare systems on the same sentences: scores, differences and their significance.

    The first system is the baseline. † marks systems significantly better than the first, ‡ than the second.

    Example: `limner compare runs/nmt1,runs/nmt2 runs/src-img1,runs/src-img2 --metric bleu4 --metric ter --level 0.01`
    """
    from limner.evaluation.compare import ComparisonSettings
    from limner.evaluation.compare import compare as compare_systems

    refuse({"--markdown": markdown and as_json}, "--json prints JSON instead; leave one of them out")
    if not any("," in system for system in runs):
        refuse({"--exchange": exchange}, "has an effect only on systems of several runs (RUN1,RUN2); leave it out")
    refuse({"--force": force and out_file is None}, "has an effect only with --out; leave it out")
    if out_file is not None:
        claim_file(out_file, "--out", force=force)
    options = given(metrics=metric, trials=trials, seed=seed, exchange=exchange, level=level)
    with progress_bars() as progress:
        comparison = compare_systems(
            [[Path(run) for run in system.split(",") if run] for system in runs],
            settings=ComparisonSettings.parse(options, "compare"),
            lang=lang,
            on_progress=progress,
            **given(split=split),
        )
    saved = None if out_file is None else _save_page(comparison, out_file)
    if as_json:
        page = {} if saved is None else {"page": str(saved.path)}
        print_json({**comparison.model_dump(mode="json"), **page})
    elif markdown:
        echo(_markdown(comparison), nl=False)
    else:
        _print_comparison(comparison)
        if saved is not None:
            echo(str(saved.path))
    if saved is not None:
        saved.require()


def _save_page(comparison: Comparison, path: Path) -> SavedOutput:
    from limner.report.comparison_page import write_comparison

    with activity("writing the page"):
        return save_output(path, lambda file: write_comparison(comparison, file))


def _print_comparison(comparison: Comparison) -> None:
    for table in (_scores(comparison), _differences(comparison)):
        _print_table(table)
        echo()
    echo(_legend(comparison))
    for one in comparison.metrics:
        echo(f"{one.name}: {one.signature}")


def _scores(comparison: Comparison) -> list[list[str]]:
    """Return the table of scores, header first: one row per system, one column per metric."""
    arrows = {metric.name: "↑" if metric.higher_is_better else "↓" for metric in comparison.metrics}
    rows = [[comparison.split, *(f"{name} {arrow}" for name, arrow in arrows.items())]]
    for system in comparison.systems:
        scores = [comparison.score(system.name, metric) for metric in arrows]
        rows.append([system.name, *(_format(score) for score in scores)])
    return rows


def _format(score: SystemScore) -> str:
    spread = "" if score.spread is None else f" ± {score.spread:.2f}"
    return f"{score.value:.2f}{spread} {score.marks}".rstrip()


def _differences(comparison: Comparison) -> list[list[str]]:
    """Return the table of differences, header first: one row per pair of systems, one column per metric."""
    metrics = [metric.name for metric in comparison.metrics]
    pairs = dict.fromkeys((one.system, one.baseline) for one in comparison.contrasts)
    rows = [["difference (p)", *metrics]]
    for system, baseline in pairs:
        tests = [comparison.contrast(system, baseline, metric) for metric in metrics]
        rows.append([f"{system} - {baseline}", *(f"{one.difference:+.2f} ({one.p:.3g})" for one in tests)])
    return rows


def _legend(comparison: Comparison) -> str:
    """Explain the marks in one line."""
    from limner.evaluation.compare import DAGGERS

    better = (f"{dagger} better than {one.name}" for dagger, one in zip(DAGGERS, comparison.systems, strict=False))
    test = f"p < {comparison.level:g} by approximate randomisation ({comparison.signature})"
    return f"{', '.join(better)}: {test}"


def _markdown(comparison: Comparison) -> str:
    """Return both tables, the legend and the signatures as Markdown."""
    lines = []
    for head, *rows in (_scores(comparison), _differences(comparison)):
        cells = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells] + [""]
    lines += [f"{_legend(comparison).replace('|', ', ')}.", ""]
    lines += [f"- {metric.name}: `{metric.signature}`" for metric in comparison.metrics]
    return "\n".join([*lines, ""])


def _print_table(rows: list[list[str]]) -> None:
    from rich.table import Table

    head, *body = rows
    table = Table(box=None, pad_edge=False)
    for column, name in enumerate(head):
        table.add_column(name, justify="right" if column else "left", no_wrap=True)
    for row in body:
        table.add_row(*row)
    out.print(table)
