"""Pages of the reproduction book in Markdown, rendered from records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from limner.files import write_text
from limner.metrics.base import format_value
from limner.report.provenance import duration
from limner.reproduce import PROPERTY_TABLES, TABLES
from limner.reproduce.book.record import RowRecord, TableRecord
from limner.reproduce.book.verdicts import Effect, Order, Swap, effects, is_better, mean_of, orders, values_of
from limner.reproduce.ensembles import is_ensemble, with_ensembles
from limner.reproduce.figures import PLACEHOLDERS, figures_of
from limner.reproduce.tables import PublishedRow, PublishedTable, TableColumn

PAPERS = {
    "kiros2014": "Kiros et al. (2014)",
    "mao2015": "Mao et al. (2015)",
    "calixto2016": "Calixto et al. (2016)",
    "calixto2017": "Calixto et al. (2017)",
    "lecture": "The lecture on recurrent networks",
    "vinyals2015": "Vinyals et al. (2015)",
    "xu2015": "Xu et al. (2015)",
    "johnson2016": "Johnson et al. (2016)",
}
"""Titles of the pages by the first part of the names of tables."""
INDEX = "index.md"
INCOMPLETE_METEOR = "|modules:exact,stem|"
"""Part of the signature of METEOR in a language whose paraphrases are missing, which the published METEOR has."""
WRITTEN_BY = "This page is written by `limner book` from the records of `limner reproduce`; nothing on it is typed."
HOW_TO_READ = """Each row has the scores of the paper and ours: mean ± standard deviation over the seeds.

- **Order** compares how the published scores and ours sort the rows: Kendall's τ-b, and the pairs of rows that are
  swapped. Pairs in order are those of all scores and data sets of the paper, and include rows that are equal with us. A
  swap is significant if Student's t-test over the seeds of the two rows has p < 0.05, not adjusted; other swaps may be
  noise.
- **Effects** are the differences of a row from its baselines; † and ‡ mark those that the paper found significant.
  p-values are those of the test over sentences and seeds that the page names, where both rows were reproduced together
  and the score is a metric of sentences, and else those of Student's t-test over the seeds; all of a score are adjusted
  together by Holm's method. Rows that are evaluations of the same runs are compared run by run. An effect is the same
  if it has the direction of the paper and is significant, and opposite if it is significant in the other direction.
  With one seed a row the test is over sentences alone: it compares two runs, and says nothing about other seeds. The
  counts have an effect once that several data sets of the paper share.
- **Values** are compared on the data set of the paper only, without METEOR of languages whose synonyms or paraphrases
  are not in the data of our METEOR.
- **Times** are those of the training steps by the clock, with whatever else the machine computed, and in parentheses
  the processor time, summed over threads, where it was recorded.
"""


def page_names() -> list[str]:
    """File names of the pages, the index first."""
    return [INDEX, *(f"{paper}.md" for paper in PAPERS)]


def write_book(records: Sequence[TableRecord], out: Path) -> list[Path]:
    """Write the pages of the book to a folder; return their paths."""
    paths = []
    for name, text in render_pages(records).items():
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / name, text)
        paths.append(out / name)
    return paths


def render_pages(records: Sequence[TableRecord]) -> dict[str, str]:
    """Render the page of every paper that has tables, and an index, by file name."""
    pages = {INDEX: _index(records)}
    for paper, title in PAPERS.items():
        tables = [table for name, table in TABLES.items() if name.startswith(f"{paper}/")]
        lines = [f"# {title}", "", WRITTEN_BY, ""]
        lines += [line for name in PROPERTY_TABLES if name.startswith(f"{paper}/") for line in _properties(name)]
        for table in tables:
            own = [record for record in records if record.table == table.name]
            lines += [f"## {table.title}", ""]
            lines += [line for record in own for line in _record(_shown(table, record), record)]
            lines += [] if own else _not_trained(table)
        lines += _figures(paper)
        pages[f"{paper}.md"] = "\n".join(lines).rstrip() + "\n"
    return pages


def _index(records: Sequence[TableRecord]) -> str:
    lines = ["# The reproduction book", "", WRITTEN_BY, "", HOW_TO_READ]
    lines += ["| table | data | rows | seeds | pairs in order | effects | time |", "|---|---|---|---|---|---|---|"]
    for name, table in TABLES.items():
        own = [record for record in records if record.table == name]
        link = f"[{table.title}]({name.split('/')[0]}.md)"
        lines += [f"| {link} | {' | '.join(_summary(table, record))} |" for record in own]
        lines += [] if own else [f"| {link} | – | – | – | – | – | – |"]
    return "\n".join(lines) + "\n"


def _summary(table: PublishedTable, record: TableRecord) -> Iterator[str]:
    yield record.collection
    rows = [row for row in record.rows if not is_ensemble(row.row)]
    yield f"{len(rows)} of {sum(row.recipe is not None for row in table.rows)}"
    yield " to ".join(dict.fromkeys(str(one([len(row.seeds) for row in rows])) for one in (min, max)))
    found = list(orders(table, record))
    pairs, swaps = sum(order.pairs for order in found), [swap for order in found for swap in order.swapped]
    significant = f"; {sum(swap.is_significant for swap in swaps)} of {len(swaps)} swaps significant" if swaps else ""
    yield f"{pairs - len(swaps)} of {pairs}{significant}" if pairs else "–"
    yield "; ".join(f"{number} {verdict}" for verdict, number in _counts(effects(table, record))) or "–"
    seeds = [(seed.run or f"{row.row} {seed.seed}", seed.seconds) for row in rows for seed in row.seeds]
    yield duration(sum(dict(seeds).values()))  # rows that share a run are trained once


def _shown(table: PublishedTable, record: TableRecord) -> PublishedTable:
    """The table with the ensembles of a record."""
    return with_ensembles(table, [row.row for row in record.rows])


def _record(table: PublishedTable, record: TableRecord) -> Iterator[str]:
    """Lines about one reproduction of a table."""
    yield from (f"### On {record.collection}", "")
    paper = ", ".join(table.datasets) or "no published figures"
    sentences = ", ".join(sorted({f"{row.training_sentences:,}" for row in record.rows if row.training_sentences}))
    same = " (the same data set)" if record.dataset in table.datasets else ""
    yield f"- Data of the paper: {paper}. Ours: {record.collection}{same}, {sentences} training sentences,"
    yield f"  {record.items:,} items of split '{record.split}', fingerprint {record.fingerprint[:12]}."
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    yield f"- Hardware: {'; '.join(record.machines)}. Versions: {versions}."
    yield from ("", "```bash", *record.commands, "```", "")
    yield from _scores(table, record.rows)
    yield from ("", table.notes, "")
    yield from _differences(record)
    yield from _orders(list(orders(table, record)))
    yield from _effects(effects(table, record), record)
    yield from _reached(table, record)
    yield from _signatures(record)


def _scores(table: PublishedTable, rows: Sequence[RowRecord]) -> Iterator[str]:
    """The table: for each row a line of published scores for each data set, and one of ours."""
    columns = [column for column in table.columns if column.score != "training_minutes"]
    yield f"| row | scores of | {' | '.join(column.label for column in columns)} | seeds | time of a seed |"
    yield "|---" * (len(columns) + 4) + "|"
    ours = {row.row: row for row in rows}
    for row in table.rows:
        name = row.name if row.recipe is not None else f"{row.name} (published only)"
        for dataset in (one for one in table.datasets if row.published.get(one)):
            cells = [_published(row, dataset, column) for column in columns]
            yield f"| {name} | the paper, {dataset} | {' | '.join(cells)} | | |"
            name = ""
        if row.name in ours:
            made = ours[row.name]
            cells = [_ours(made, column) for column in columns]
            seeds = "together" if is_ensemble(row.name) else ", ".join(str(seed.seed) for seed in made.seeds)
            time = _time([seed.seconds for seed in made.seeds], [seed.processor_seconds for seed in made.seeds])
            yield f"| {name} | **Limner** | {' | '.join(cells)} | {seeds} | {time} |"
        elif row.recipe is not None:
            yield f"| {name} | Limner | {' | '.join('–' for _ in columns)} | none | |"


def _time(seconds: Sequence[float], processor_seconds: Sequence[float | None]) -> str:
    """Mean duration of the trainings, and mean processor time if it is known of all of them."""
    known = [one for one in processor_seconds if one is not None]
    processor = f" ({duration(float(np.mean(known)))})" if len(known) == len(processor_seconds) else ""
    return f"{duration(float(np.mean(seconds)))}{processor}"


def _published(row: PublishedRow, dataset: str, column: TableColumn) -> str:
    value = row.published[dataset].get(column.score)
    mark = row.published_marks.get(dataset, {}).get(column.score, "")
    return "–" if value is None else f"{_number(value, column)}{mark}"


def _ours(row: RowRecord, column: TableColumn) -> str:
    values, mean = values_of(row, column.score), mean_of(row, column.score)
    if mean is None:
        return "–"
    spread = f" ± {_number(float(np.std(values, ddof=1)), column)}" if len(values) > 1 else ""
    return f"**{_number(mean, column)}**{spread}"


def _number(value: float, column: TableColumn) -> str:
    return format_value(value * column.scale, column.digits)


def _differences(record: TableRecord) -> Iterator[str]:
    """What differs from the recipes, once for all rows that have the same differences."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for row in record.rows:
        reads = f"; features {', '.join(row.features)}" if row.features else ""
        rows.setdefault((f"recipes `{row.recipe.rpartition('/')[0]}`{reads}", *row.differences), []).append(row.row)
    yield from ("**What differs** from the recipes of the paper:", "")
    for (recipes, *differences), names in rows.items():
        settings = ", ".join(f"`{one}`" for one in differences) or "nothing"
        yield f"- {', '.join(names)} ({recipes}): {settings}"
    yield from ("", "[Models](../models.md) lists the departures of each model from its paper.", "")


def _orders(found: Sequence[Order]) -> Iterator[str]:
    if not found:
        return
    yield from ("**Order** of the rows:", "", "| score | data of the paper | τ-b | pairs | swapped with us |")
    yield "|---|---|---|---|---|"
    for order in found:
        swapped = "; ".join(map(_swap, order.swapped)) or "none"
        label, tau = order.column.label, "–" if order.tau is None else f"{order.tau:.2f}"
        yield f"| {label} | {order.dataset} | {tau} | {order.pairs} | {len(order.swapped)}: {swapped} |"
    yield ""


def _swap(swap: Swap) -> str:
    p = "" if swap.p is None else f" (p {'' if swap.p < 0.001 else '= '}{_p(swap.p)})"
    return f"{swap.better} / {swap.worse}{p}"


def _effects(found: Sequence[Effect], record: TableRecord) -> Iterator[str]:
    if not found:
        return
    tested = record.test is not None and any(one.over_sentences for one in found)
    test = f" Test over sentences and seeds: `{_holm(str(record.test))}`." if tested else ""
    counts = "; ".join(f"{number} {verdict}" for verdict, number in _counts(found))
    yield from (f"**Effects**: {counts}.{test}", "")
    yield "| row | against | score | data of the paper | published | ours | p | test over | verdict |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for one in found:
        differences = (
            format_value(value * one.column.scale, one.column.digits, "+") for value in (one.published, one.ours)
        )
        cells = [one.row, one.baseline, one.column.label, one.dataset, *differences]
        cells[4] += f" {one.mark}" if one.mark else ""
        test = "–" if one.p is None else "sentences, seeds" if one.over_sentences else "seeds"
        yield f"| {' | '.join(cells)} | {_p(one.p)} | {test} | {one.verdict} |"
    yield ""


def _p(p: float | None) -> str:
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _holm(test: str) -> str:
    """The signature of a test whose p-values the page adjusts."""
    return f"{test.removesuffix('|correction:none')}|correction:holm"


def _reached(table: PublishedTable, record: TableRecord) -> Iterator[str]:
    """On the data set of the paper: how many published scores are reached by each row."""
    if record.dataset not in table.datasets:
        return
    rows = {row.name: row.published.get(str(record.dataset), {}) for row in table.rows}
    lines = []
    for made in record.rows:
        means = {score: mean_of(made, score) for score in rows[made.row]}
        compared = {
            score: mean
            for score, mean in means.items()
            if mean is not None and INCOMPLETE_METEOR not in made.signatures[score]
        }
        reached = sum(is_better(score, mean, rows[made.row][score]) for score, mean in compared.items())
        if compared:
            lines += [f"- {made.row}: at least as good as published in {reached} of {len(compared)} scores"]
    if lines:
        yield from ("**Values**, on the data set of the paper:", "", *lines, "")


def _signatures(record: TableRecord) -> Iterator[str]:
    """The signatures of the scores; a score has several if they differ between the rows."""
    rows: dict[tuple[str, str], list[str]] = {}
    for row in record.rows:
        for score, signature in row.signatures.items():
            rows.setdefault((score, signature), []).append(row.row)
    differ = Counter(score for score, _ in rows)
    yield from ("**Signatures** of the scores:", "")
    for (score, signature), names in rows.items():
        of_rows = f" of {', '.join(names)}" if differ[score] > 1 else ""
        yield f"- {score}{of_rows}: `{signature}`"
    yield ""


def _counts(found: Sequence[Effect]) -> list[tuple[str, int]]:
    """Verdicts with their numbers, in alphabetical order from the end: 'same' before 'opposite'.

    A difference of ours counts once for all data sets of the paper with the same verdict.
    """
    distinct = {(effect.row, effect.baseline, effect.column.score, effect.verdict) for effect in found}
    return sorted(Counter(verdict for *_, verdict in distinct).items(), reverse=True)


def _properties(name: str) -> Iterator[str]:
    """A table of properties of models, of which nothing is trained."""
    yield from (PROPERTY_TABLES[name].to_markdown().replace("# ", "## ", 1).rstrip(), "")


def _not_trained(table: PublishedTable) -> Iterator[str]:
    """The published scores of a table that no record is about."""
    yield from (f"Not reproduced: needs {table.needs}.", "", *_scores(table, ()), "")


def _figures(paper: str) -> Iterator[str]:
    """The figures of a paper with their commands."""
    figures = figures_of(paper)
    if any(figure.commands for figure in figures):
        yield from ("## Figures and examples", "", PLACEHOLDERS, "")
        for figure in figures:
            if figure.commands:
                note = f" ({figure.note})" if figure.note else ""
                yield from (f"**{figure.number}**: {figure.title}{note}.", "", "```bash", *figure.commands, "```", "")
    drawings = ", ".join(f"{figure.number} ({figure.title})" for figure in figures if not figure.commands)
    if drawings:
        yield from (f"Drawings of models, for which nothing is computed: {drawings}.", "")
