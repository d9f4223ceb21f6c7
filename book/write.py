"""Write the reproduction book, `docs/reproduction`: a page for each paper, and an index, from the records.

python book/write.py                 write the pages again
python book/write.py runs/table1 …   first add the rows in these folders of `limner reproduce` to the records
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from limner.apps.reproduce import PublishedRow, PublishedTable, TableColumn, published_tables
from limner.apps.reproduce.render import properties_text, required_data
from limner.apps.reproduce.tables import Paper, read_paper
from limner.evaluation.comparison import DAGGERS
from limner.files import write_text
from limner.metrics.base import format_value
from limner.progress import duration
from records import RowRecord, TableRecord, add_record, read_records, recipe_digest
from verdicts import Effect, Order, effects, is_better, mean_of, orders, values_of

PAGES = Path(__file__).parents[1] / "docs" / "reproduction"
ASSETS = PAGES.parent / "assets"
"""Images of the documentation; a page shows those that the commands of its figures write."""
PAPERS = ("kiros2014", "mao2015", "calixto2016", "calixto2017", "lecture", "vinyals2015", "xu2015", "johnson2016")
"""Papers in the order of the pages."""
PLACEHOLDERS = "C is the folder of a collection, RUN a folder in runs/ of the reproduced table."
"""Meaning of the words in capitals in the commands of figures."""
EFFECT_COLUMNS = "row|against|score|data of the paper|published|in the paper|ours|p (Holm)|level|test over|verdict"
INDEX = "index.md"
INCOMPLETE_METEOR = "|modules:exact,stem|"
"""Part of the signature of METEOR in a language whose paraphrases are missing, which the published METEOR has."""
WRITTEN_BY = "This page is written by `book/write.py` from the records of `limner reproduce`; nothing on it is typed."
HOW_TO_READ = """Each row has the scores of the paper and ours: mean ± standard deviation over the seeds.

- **Order** compares how the published scores and ours sort the rows: Kendall's τ-b, and the pairs of rows that are
  swapped. Pairs in order count all scores and data sets of the paper. p-values of swaps are the p-values of the effect,
  if the pair is one, and else of Student's t-test over the seeds, for all pairs of a score adjusted by Holm's method; a
  swap is significant if p < 0.05. Other swaps may be noise. Two rows without a random component are not tested.
- **Effects** are the differences of a row from its baselines; † and ‡ mark effects that the paper found significant.
  p-values come from the test over sentences and seeds that the page names, where both rows were reproduced together
  and the score is a metric of sentences, and else from Student's t-test over the seeds; all of a score are adjusted
  together by Holm's method. Rows that are evaluations of the same runs are compared run by run. An effect is the same
  if it has the direction of the paper and is significant, and opposite if it is significant in the other direction. A
  difference that the paper does not mark, in a score that it marks elsewhere, was not significant or not tested. With
  one seed a row the test is over sentences alone: it compares two runs, and says nothing about other seeds. The counts
  have an effect once that several data sets of the paper share.
- **Values** are compared on the test items of the paper only, without METEOR of languages whose synonyms or paraphrases
  are not in the data of our METEOR. Training and validation data may differ; the page has the number of sentences.
- **Recipes**: a row is marked "older than the recipe" if a setting has changed since it was measured, in its recipe, in
  the recipe of the paper that its differences refer to, in the recipes of its preceding stages, or in the row of the
  table. Defaults of the program are not compared. A row whose recipe was not recorded is marked as such.
- **Times** are of the training steps by the clock, with whatever else the machine computed, and in parentheses
  the processor time, summed over threads, where it was recorded. Runs from which rows are initialised are not counted.
- [Reproducing tables](../reproduce.md#the-runs-of-the-book) has the commands that made the collections and these runs.
"""


def render_pages(records: Sequence[TableRecord]) -> dict[str, str]:
    """Render the page of every paper, and an index, by file name."""
    pages = {"index.md": _index(records)}
    for name in PAPERS:
        paper = read_paper(name)
        lines = [f"# {paper.title}", "", WRITTEN_BY, ""]
        for table in sorted((*paper.tables, *paper.properties), key=lambda table: table.name):
            if isinstance(table, PublishedTable):
                lines += _table(table, records)
            else:
                lines += [properties_text(table).replace("# ", "## ", 1).rstrip(), ""]
        lines += _figures(paper)
        pages[f"{name}.md"] = "\n".join(lines).rstrip() + "\n"
    return pages


def _table(table: PublishedTable, records: Sequence[TableRecord]) -> Iterator[str]:
    """Lines about a table: all its reproductions, or what it needs."""
    yield from (f"## {table.title}", "")
    of_table = [record for record in records if record.table == table.name]
    for record in of_table:
        yield from _record(table, record)
    if not of_table:
        command = f"limner reproduce {table.name} --collection COLLECTION --out RUNS"
        yield from (f"Not reproduced: needs {required_data(table)}.", "", "```bash", command, "```", "")
        yield from (*_score_table(table, (), ()), "", table.notes, "")


def _index(records: Sequence[TableRecord]) -> str:
    lines = ["# The reproduction book", "", WRITTEN_BY, "", HOW_TO_READ]
    lines += ["| table | data | rows | seeds | pairs in order | effects | time |", "|---|---|---|---|---|---|---|"]
    for name, table in published_tables().items():
        of_table = [record for record in records if record.table == name]
        link = f"[{table.title}]({name.split('/')[0]}.md)"
        lines += [f"| {link} | {' | '.join(_summary(table, record))} |" for record in of_table]
        lines += [] if of_table else [f"| {link} | – | – | – | – | – | – |"]
    return "\n".join(lines) + "\n"


def _summary(table: PublishedTable, record: TableRecord) -> Iterator[str]:
    yield record.collection
    rows = record.rows
    ages = Counter(age for row in rows if (age := _age(table, row)))
    marks = "".join(f", {count} {age}" for age, count in ages.items())
    yield f"{len(rows)} of {sum(row.recipe is not None for row in table.rows)}{marks}"
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
        yield "- Other test items than in the paper: orders and effects compare with published scores, values do not."
    for start in sorted({one for row in record.rows for one in row.differences if one.startswith("initialised from")}):
        yield f"- Rows are {start}, whose training sentences and time come on top of those given here."
    yield f"- Hardware: {'; '.join(record.machines)}. Versions: {versions}."
    measured = [
        (row.row, [seed.evaluation_seconds for seed in row.seeds if seed.evaluation_seconds]) for row in record.rows
    ]
    if evaluated := [f"{name} {duration(float(np.mean(seconds)))}" for name, seconds in measured if seconds]:
        yield f"- Evaluation of a seed, with decoding and ranking: {', '.join(evaluated)}."
    yield from ("", "```bash", *record.commands, "```", "")
    found = effects(table, record)
    yield from _score_table(table, record.rows, found)
    yield from ("", table.notes, "", *_legend(table, record))
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
        swaps = [f"{better} / {worse}{'' if p is None else f' ({_p_is(p)})'}" for better, worse, p in order.swapped]
        swapped = "; ".join(swaps) or "none"
        label, tau = order.column.label, "–" if order.tau is None else f"{order.tau:.2f}"
        yield f"| {label} | {order.dataset} | {tau} | {order.pairs} | {len(order.swapped)}: {swapped} |"
    yield ""


def _p_is(p: float) -> str:
    return f"p {'' if p < 0.001 else '= '}{_p(p)}"


def _effects(found: Sequence[Effect], record: TableRecord) -> Iterator[str]:
    if not found:
        return
    tested = record.test is not None and any("sentences" in one.over for one in found)
    holm = f"{str(record.test).removesuffix('|correction:none')}|correction:holm"  # the page adjusts the p-values
    test = f" Test over sentences: `{holm}`." if tested else ""
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


def _score_table(table: PublishedTable, rows: Sequence[RowRecord], found: Sequence[Effect]) -> Iterator[str]:
    """The table: for each row a line of published scores for each data set, and one of ours."""
    columns = [column for column in table.columns if column.score != "training_minutes"]
    yield f"| row | scores of | {' | '.join(column.label for column in columns)} | seeds | time of a seed |"
    yield "|---" * (len(columns) + 4) + "|"
    ours = {row.row: row for row in rows}
    for row in table.rows:
        notes = ["other authors"] * row.other_authors + ["published only"] * (row.recipe is None)
        name = f"{row.name} ({', '.join(notes)})" if notes else row.name
        for dataset in (one for one in table.datasets if row.published.get(one)):
            cells = [row.published_cell(dataset, column) for column in columns]
            yield f"| {name} | the paper, {dataset} | {' | '.join(cells)} | | |"
            name = ""
        if row.name in ours:
            made = ours[row.name]
            cells = [_ours(made, column) + _daggers(row, column, table, found) for column in columns]
            seeds = ", ".join(str(seed.seed) for seed in made.seeds)
            time = _time([seed.seconds for seed in made.seeds], [seed.processor_seconds for seed in made.seeds])
            age = _age(table, made)
            yield f"| {name} | **Limner**{age and f', {age}'} | {' | '.join(cells)} | {seeds} | {time} |"
        elif row.recipe is not None:
            yield f"| {name} | Limner | {' | '.join('–' for _ in columns)} | none | |"


def _age(table: PublishedTable, made: RowRecord) -> str:
    """How a reproduced row relates to its recipe of today; empty if it was made from the same settings."""
    if made.recipe_sha256 is None:
        return "recipe not recorded"
    row = next(row for row in table.rows if row.name == made.row)
    return "" if made.recipe_sha256 == recipe_digest(table, row, made.recipe) else "older than the recipe"


def _time(seconds: Sequence[float], processor_seconds: Sequence[float | None]) -> str:
    """Mean duration of the trainings, and mean processor time if it is known of all of them."""
    known = [one for one in processor_seconds if one is not None]
    processor = f" ({duration(float(np.mean(known)))})" if len(known) == len(processor_seconds) else ""
    return f"{duration(float(np.mean(seconds)))}{processor}"


def _ours(row: RowRecord, column: TableColumn) -> str:
    values, mean = values_of(row, column.score), mean_of(row, column.score)
    if mean is None:
        return "–"
    spread = f" ± {column.format(float(np.std(values, ddof=1)))}" if len(values) > 1 else ""
    return f"**{column.format(mean)}**{spread}"


def _daggers(row: PublishedRow, column: TableColumn, table: PublishedTable, found: Sequence[Effect]) -> str:
    """Marks of one of our scores, in a table whose paper marks significant differences."""
    own = [one.dagger for one in found if (one.row, one.column) == (row.name, column)]
    own += [one.reversed_dagger for one in found if (one.baseline, one.column) == (row.name, column)]
    return "".join(dagger for dagger in DAGGERS if _has_marks(table) and dagger in own)


def _has_marks(table: PublishedTable) -> bool:
    return any(row.published_marks for row in table.rows)


def _legend(table: PublishedTable, record: TableRecord) -> Iterator[str]:
    """What the marks of our scores mean, and which of those of the paper could not be tested."""
    if not _has_marks(table):
        return
    names = {row.row for row in record.rows}
    rows: dict[tuple[str, ...], list[str]] = {}
    for row in table.rows:
        if row.name in names and row.baselines:
            rows.setdefault(row.baselines, []).append(row.name)
    yield from ("† and ‡ of our scores: significantly better than the first and the second baseline of the row.", "")
    for baselines, of in rows.items():
        yield f"- Baselines of {', '.join(of)}: {' and '.join(baselines)}."
    if missing := [name for name in dict.fromkeys(name for one in rows for name in one) if name not in names]:
        yield f"- Not tested, because these rows were not reproduced on this collection: {', '.join(missing)}."
    yield ""


def _figures(paper: Paper) -> Iterator[str]:
    """The figures of a paper with their commands."""
    figures = paper.figures
    if any(figure.commands for figure in figures):
        yield from ("## Figures and examples", "", PLACEHOLDERS, "")
        for figure in figures:
            if figure.commands:
                note = f" ({figure.note})" if figure.note else ""
                yield from (f"**{figure.number}**: {figure.title}{note}.", "", "```bash", *figure.commands, "```", "")
                for image in re.findall(r"[\w-]+\.png", " ".join(figure.commands)):
                    if (ASSETS / image).exists():
                        yield from (f"![{figure.number}: {figure.title}](../assets/{image})", "")
    drawings = ", ".join(f"{figure.number} ({figure.title})" for figure in figures if not figure.commands)
    if drawings:
        yield from (f"Drawings of models, for which nothing is computed: {drawings}.", "")


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        add_record(Path(folder))
    for name, text in render_pages(read_records()).items():
        write_text(PAGES / name, text)
