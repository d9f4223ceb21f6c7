"""The command that compares runs: compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limner.bounds import BootstrapSamples, Level, Seed, Trials
from limner.cli.app import MEASURE, app
from limner.cli.options import ForceOption, JsonOption, Number, given, refuse
from limner.cli.terminal import activity, echo, out, print_json, progress_bars
from limner.storage.outputs import SavedOutput, claim_file, save_output

if TYPE_CHECKING:
    from limner.evaluation.comparison import Comparison, SystemScore


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
        "--trials",
        help="Number of trials of approximate randomisation, the test of systems with one seed; default: 10000.",
        parser=Number(Trials),
    ),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", help="Random seed of trials and samples; default: 1.", parser=Number(Seed))
]
SamplesOption = Annotated[
    int | None,
    typer.Option(
        "--samples",
        help="Number of bootstrap samples of the sentences, for intervals and for tests of systems with several seeds; "
        "default: 1000.",
        parser=Number(BootstrapSamples),
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
    samples: SamplesOption = None,
    level: LevelOption = None,
    markdown: MarkdownOption = False,
    out_file: OutOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare systems on the same sentences: scores, differences and their significance.

    The first system is the baseline. † marks systems significantly better than the first, ‡ than the second. Systems
    with several seeds are compared over seeds and sentences, others over sentences alone.

    Example: `limner compare runs/nmt1,runs/nmt2 runs/src-img1,runs/src-img2 --metric bleu4 --metric ter --level 0.01`
    """
    from limner.evaluation.compare import compare as compare_systems
    from limner.evaluation.comparison import ComparisonSettings

    refuse({"--markdown": markdown and as_json}, "--json prints JSON instead; leave one of them out")
    refuse({"--force": force and out_file is None}, "has an effect only with --out; leave it out")
    if out_file is not None:
        claim_file(out_file, "--out", force=force)
    options = given(metrics=metric, trials=trials, samples=samples, seed=seed, level=level)
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
        print_json({**comparison.model_dump(mode="json"), "signature": comparison.signature, **page})
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
    for line in comparison.explanation:
        echo(line)
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
    """Return the table of differences, header first: one row per pair of systems and metric."""
    percent = f"{100 * (1 - comparison.settings.level):g} %"
    rows = [
        ["difference", "metric", "value", f"{percent} interval", "p", *(["p (Holm)"] if comparison.pairs > 1 else [])]
    ]
    for one in comparison.contrasts:
        interval = f"[{one.interval[0]:+.2f}, {one.interval[1]:+.2f}]"
        adjusted = [f"{one.adjusted_p:.3g}"] if comparison.pairs > 1 else []
        pair = f"{one.system} - {one.baseline}"
        rows.append([pair, one.metric, f"{one.difference:+.2f}", interval, f"{one.p:.3g}", *adjusted])
    return rows


def _markdown(comparison: Comparison) -> str:
    """Return both tables, the explanation and the signatures as Markdown."""
    lines = []
    for head, *rows in (_scores(comparison), _differences(comparison)):
        cells = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells] + [""]
    lines += [f"- {line.replace('|', ', ')}" for line in comparison.explanation]
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
