"""The command that compares runs: compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from limner.cli.app import AsJson, app, given
from limner.cli.terminal import out, print_json, progress_bars

if TYPE_CHECKING:
    from limner.evaluation.compare import Comparison, SystemScore


@app.command()
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_A RUN_B [RUN_C]...",
            help="Run folders after 'limner evaluate'; the training seeds of one system joined by commas: A1,A2.",
        ),
    ],
    split: Annotated[str | None, typer.Option(help="The evaluation to read; default: test.")] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Metrics; default: bleu4, meteor, ter and chrf3. Repeatable.")
    ] = None,
    lang: Annotated[str | None, typer.Option(help="Of the sentences; default: what the first run writes.")] = None,
    trials: Annotated[int | None, typer.Option(help="Of approximate randomisation; default: 10,000.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the trials.")] = None,
    exchange: Annotated[
        str | None,
        typer.Option(help="With several seeds, what a trial exchanges: systems, or outputs one by one."),
    ] = None,
    level: Annotated[float | None, typer.Option(help="Significant is what has a smaller p; default: 0.05.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare systems on the same sentences: scores, differences and their significance.

    The first system is the baseline: † marks what is significantly better than it, ‡ what is than the second one.

    Example: `limner compare runs/nmt1,runs/nmt2 runs/src-img1,runs/src-img2 --metric bleu4 --metric ter --level 0.01`
    """
    from limner.evaluation.compare import ComparisonSettings
    from limner.evaluation.compare import compare as compare_systems

    options = given(metrics=metric, trials=trials, seed=seed, exchange=exchange, level=level)
    with progress_bars() as progress:
        found = compare_systems(
            [[Path(run) for run in system.split(",") if run] for system in runs],
            settings=ComparisonSettings.parse(options, "compare"),
            lang=lang,
            progress=progress,
            **given(split=split),
        )
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    if markdown:
        typer.echo(_markdown(found), nl=False)
        return
    for table in (_scores(found), _contrasts(found)):
        _print_table(table)
        typer.echo()
    typer.echo(_legend(found))
    for one in found.metrics:
        typer.echo(f"{one.name}: {one.signature}")


def _scores(found: Comparison) -> list[list[str]]:
    """The scores as a table of text, its head first: systems down, metrics across."""
    arrows = {metric.name: "↑" if metric.higher_is_better else "↓" for metric in found.metrics}
    rows = [[found.split, *(f"{name} {arrow}" for name, arrow in arrows.items())]]
    for system in found.systems:
        scores = [found.score(system.name, metric) for metric in arrows]
        rows.append([system.name, *(_shown(score) for score in scores)])
    return rows


def _shown(score: SystemScore) -> str:
    spread = "" if score.spread is None else f" ± {score.spread:.2f}"
    return f"{score.value:.2f}{spread} {score.marks}".rstrip()


def _contrasts(found: Comparison) -> list[list[str]]:
    """The differences as a table of text, its head first: pairs down, metrics across."""
    metrics = [metric.name for metric in found.metrics]
    pairs = dict.fromkeys((one.system, one.baseline) for one in found.contrasts)
    rows = [["difference (p)", *metrics]]
    for system, baseline in pairs:
        tests = [found.contrast(system, baseline, metric) for metric in metrics]
        rows.append([f"{system} - {baseline}", *(f"{one.difference:+.2f} ({one.p:.3g})" for one in tests)])
    return rows


def _legend(found: Comparison) -> str:
    """What the marks mean, in a line."""
    from limner.evaluation.compare import DAGGERS

    better = (f"{dagger} better than {one.name}" for dagger, one in zip(DAGGERS, found.systems, strict=False))
    return f"{', '.join(better)}: p < {found.level:g} by approximate randomisation ({found.signature})"


def _markdown(found: Comparison) -> str:
    """Both tables, what the marks mean, and the signatures."""
    lines = []
    for head, *rows in (_scores(found), _contrasts(found)):
        cells = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells] + [""]
    lines += [f"{_legend(found).replace('|', ', ')}.", ""]
    lines += [f"- {metric.name}: `{metric.signature}`" for metric in found.metrics]
    return "\n".join([*lines, ""])


def _print_table(table: list[list[str]]) -> None:
    from rich.table import Table

    head, *rows = table
    shown = Table(box=None, pad_edge=False)
    for place, name in enumerate(head):
        shown.add_column(name, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    out.print(shown)
