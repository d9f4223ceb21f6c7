"""Pages of the reproduction book in Markdown, rendered from records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from limner.files import write_text
from limner.metrics.base import format_value
from limner.report.provenance import duration
from limner.reproduce import PROPERTY_TABLES, TABLES
from limner.reproduce.book.record import TableRecord
from limner.reproduce.book.score_table import legend, score_table
from limner.reproduce.book.verdicts import Effect, Order, Swap, effects, is_better, mean_of, orders
from limner.reproduce.ensembles import is_ensemble, with_ensembles
from limner.reproduce.figures import PLACEHOLDERS, figures_of
from limner.reproduce.required_data import required_data
from limner.reproduce.tables import PublishedTable

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
EFFECT_COLUMNS = "row|against|score|data of the paper|published|in the paper|ours|p (Holm)|level|test over|verdict"
INDEX = "index.md"
INCOMPLETE_METEOR = "|modules:exact,stem|"
"""Part of the signature of METEOR in a language whose paraphrases are missing, which the published METEOR has."""
WRITTEN_BY = "This page is written by `limner book` from the records of `limner reproduce`; nothing on it is typed."
HOW_TO_READ = """Each row has the scores of the paper and ours: mean ± standard deviation over the seeds.

- **Order** compares how the published scores and ours sort the rows: Kendall's τ-b, and the pairs of rows that are
  swapped. Pairs in order are those of all scores and data sets of the paper. p-values of swaps are those of the effect,
  if the pair is one, and else of Student's t-test over the seeds, for all pairs of a score adjusted by Holm's method; a
  swap is significant if p < 0.05. Other swaps may be noise. Two rows without a random component are not tested.
- **Effects** are the differences of a row from its baselines; † and ‡ mark those that the paper found significant.
  p-values are those of the test over sentences and seeds that the page names, where both rows were reproduced together
  and the score is a metric of sentences, and else those of Student's t-test over the seeds; all of a score are adjusted
  together by Holm's method. Rows that are evaluations of the same runs are compared run by run. An effect is the same
  if it has the direction of the paper and is significant, and opposite if it is significant in the other direction. A
  difference that the paper does not mark, in a score that it marks elsewhere, was not significant or not tested. With
  one seed a row the test is over sentences alone: it compares two runs, and says nothing about other seeds. The counts
  have an effect once that several data sets of the paper share.
- **Values** are compared on the test items of the paper only, without METEOR of languages whose synonyms or paraphrases
  are not in the data of our METEOR. Training and validation data may differ; the page has the number of sentences.
- **Times** are those of the training steps by the clock, with whatever else the machine computed, and in parentheses
  the processor time, summed over threads, where it was recorded. Runs from which rows are initialised are not counted.
- [Reproducing tables](../reproduce.md#the-runs-of-the-book) has the commands that made the collections and these runs.
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
        names = sorted(name for name in (*TABLES, *PROPERTY_TABLES) if name.startswith(f"{paper}/"))
        lines = [f"# {title}", "", WRITTEN_BY, ""]
        lines += [line for name in names for line in _table(name, records)]
        lines += _figures(paper)
        pages[f"{paper}.md"] = "\n".join(lines).rstrip() + "\n"
    return pages


def _table(name: str, records: Sequence[TableRecord]) -> Iterator[str]:
    """Lines about a table: all its reproductions, or what it needs."""
    if name in PROPERTY_TABLES:
        yield from (PROPERTY_TABLES[name].to_markdown().replace("# ", "## ", 1).rstrip(), "")
        return
    table, own = TABLES[name], [record for record in records if record.table == name]
    yield from (f"## {table.title}", "")
    for record in own:
        yield from _record(_shown(table, record), record)
    if not own:
        yield from _not_trained(table)


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
    yield _summary_of_orders(list(orders(table, record)))
    yield "; ".join(f"{number} {verdict}" for verdict, number in _counts(effects(table, record))) or "–"
    # Rows that share a run are trained once; runs of the same name in the folders of two commands differ in their time.
    trained = {(seed.run or row.row, seed.seed, seed.seconds) for row in rows for seed in row.seeds}
    yield duration(sum(seconds for _, _, seconds in trained))


def _summary_of_orders(found: Sequence[Order]) -> str:
    pairs, ties = sum(order.pairs for order in found), sum(order.ties for order in found)
    swaps = [swap for order in found for swap in order.swapped]
    if not pairs:
        return "–"
    equal = f"; {ties} equal" if ties else ""
    significant = f"; {sum(swap.is_significant for swap in swaps)} of {len(swaps)} swaps significant" if swaps else ""
    return f"{pairs - ties - len(swaps)} of {pairs}{equal}{significant}"


def _shown(table: PublishedTable, record: TableRecord) -> PublishedTable:
    """The table with the ensembles of a record."""
    return with_ensembles(table, [row.row for row in record.rows])


def _record(table: PublishedTable, record: TableRecord) -> Iterator[str]:
    """Lines about one reproduction of a table."""
    yield from (f"### On {record.collection}", "")
    paper = ", ".join(table.datasets) or "no published scores"
    sentences = ", ".join(sorted({f"{row.training_sentences:,}" for row in record.rows if row.training_sentences}))
    same = f" (the test items of {record.dataset})" if record.dataset in table.datasets else ""
    yield f"- Data of the paper: {paper}. Ours: {record.collection}{same}, {sentences} training sentences,"
    yield f"  {record.items:,} items of split '{record.split}', fingerprint {record.fingerprint[:12]}."
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    if table.datasets and not same:
        yield "- Other test items than those of the paper: scores do not compare with its own; orders and effects do."
    for start in sorted({one for row in record.rows for one in row.differences if one.startswith("initialised from")}):
        yield f"- Rows are {start}, whose training sentences and time come on top of those given here."
    yield f"- Hardware: {'; '.join(record.machines)}. Versions: {versions}."
    yield from ("", "```bash", *record.commands, "```", "")
    found = effects(table, record)
    yield from score_table(table, record.rows, found)
    yield from ("", table.notes, "", *legend(table, record))
    yield from _reached(table, record)
    yield from _orders(list(orders(table, record)))
    yield from _effects(found, record)
    yield from _differences(record)
    yield from _signatures(record)


def _differences(record: TableRecord) -> Iterator[str]:
    """What differs from the recipes, once for all rows that have the same differences."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for row in record.rows:
        reads = f"; features {', '.join(row.features)}" if row.features else ""
        rows.setdefault((f"recipes `{row.recipe.rpartition('/')[0]}`{reads}", *row.differences), []).append(row.row)
    common = set.intersection(*(set(settings) for _, *settings in rows)) if len(rows) > 1 else set()
    yield from ("**Settings that differ** from Limner's recipes of the paper:", "")
    if shared := [one for one in next(iter(rows))[1:] if one in common]:
        yield f"- all rows: {', '.join(f'`{one}`' for one in shared)}"
    for (recipes, *differences), names in rows.items():
        other = "nothing else" if shared else "nothing"
        settings = ", ".join(f"`{one}`" for one in differences if one not in common) or other
        who = "all rows" if len(names) == len(record.rows) > 1 else ", ".join(names)
        yield f"- {who} ({recipes}): {settings}"
    yield from ("", "[Models](../models.md) lists the departures of each model from its paper.", "")


def _orders(found: Sequence[Order]) -> Iterator[str]:
    if not found:
        return
    yield from ("**Order** of the rows:", "", "| score | data of the paper | τ-b | pairs | swapped in our runs |")
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
    tested = record.test is not None and any("sentences" in one.over for one in found)
    test = f" Test over sentences: `{_holm(str(record.test))}`." if tested else ""
    counts = "; ".join(f"{number} {verdict}" for verdict, number in _counts(found))
    yield from (f"**Effects**: {counts}.{test}", "")
    columns = EFFECT_COLUMNS.split("|")
    yield from (f"| {' | '.join(columns)} |", "|---" * len(columns) + "|")
    for one in found:
        published = format_value(one.published * one.column.scale, one.column.digits, "+")
        ours = format_value(one.ours * one.column.scale, one.column.digits + 1, "+")
        cells = [one.row, one.baseline, one.column.label, one.dataset, f"{published} {one.mark}".rstrip()]
        cells += [
            one.in_the_paper,
            ours,
            _p(one.p),
            f"{one.level:g}",
            ", ".join(one.over) if one.p is not None else "–",
            one.verdict,
        ]
        yield f"| {' | '.join(cells)} |"
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


def _not_trained(table: PublishedTable) -> Iterator[str]:
    """The published scores of a table that no record is about."""
    command = f"limner reproduce {table.name} --collection COLLECTION --out RUNS"
    yield from (f"Not reproduced: needs {required_data(table)}.", "", "```bash", command, "```", "")
    yield from (*score_table(table, (), ()), "", table.notes, "")


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
