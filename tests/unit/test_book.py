"""The reproduction book: records of reproduced tables, verdicts by hand-worked rules, and the committed pages."""

import importlib
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from scipy.stats import ttest_ind, ttest_rel

from limner.apps.reproduce import (
    PublishedRow,
    PublishedTable,
    ReproductionSettings,
    TableColumn,
    find_table,
    published_tables,
    reproduce_table,
)
from limner.errors import RunError
from limner.evaluation.comparison import Contrast
from limner.metrics.significance import holm
from limner.runs.recipe import recipe_folder

with pytest.MonkeyPatch.context() as patch:  # scripts, which are not installed
    patch.syspath_prepend(Path(__file__).parents[2] / "book")
    records, verdicts, write = (importlib.import_module(name) for name in ("records", "verdicts", "write"))
RowRecord, SeedRecord, TableRecord = records.RowRecord, records.SeedRecord, records.TableRecord
effects, orders, p_over_seeds = verdicts.effects, verdicts.orders, verdicts.p_over_seeds
render_pages = write.render_pages

PAGES = Path(__file__).parents[2] / "docs" / "reproduction"
PPL, BLEU = (
    TableColumn(score="perplexity", label="PPL", digits=2),
    TableColumn(score="bleu4", label="B-4", digits=3, scale=0.01),
)


def published(name, perplexity, bleu, *baselines):
    return PublishedRow(
        name=name, recipe=name, published={"Theirs": {"perplexity": perplexity, "bleu4": bleu}}, baselines=baselines
    )


TABLE = PublishedTable(
    name="test/table",
    title="A table",
    recipes="test",
    columns=(PPL, BLEU),
    datasets=("Theirs",),
    rows=(published("a", 20.0, 15.0), published("b", 18.0, 16.0, "a"), published("c", 17.0, 16.0, "a", "b")),
    notes="Notes.",
)


def row(name, perplexities, bleus=(), contrasts=()):
    scores = [{"perplexity": one} for one in perplexities]
    for seed, value in zip(scores, bleus, strict=False):
        seed["bleu4"] = value
    seeds = tuple(SeedRecord(seed=i + 1, scores=one, seconds=60) for i, one in enumerate(scores))
    return RowRecord(
        row=name,
        seeds=seeds,
        recipe=f"test/{name}",
        differences=(),
        training_sentences=100,
        signatures={},
        contrasts=contrasts,
    )


def record(*rows):
    return TableRecord(
        table="test/table",
        collection="ours",
        dataset=None,
        fingerprint="0" * 64,
        items=10,
        split="test",
        commands=("limner reproduce test/table",),
        machines=("a machine",),
        versions={},
        test="a test",
        rows=rows,
    )


def test_the_order_of_rows_names_the_swapped_pairs():
    found = {
        order.column.score: order
        for order in orders(TABLE, record(row("a", [30], [20]), row("b", [20], [19]), row("c", [25], [21])))
    }
    # PPL: a > b > c with them, a > c > b with us: one of three pairs. BLEU: b and c are equal with them.
    assert found["perplexity"].swapped == (("c", "b", None),)
    assert (found["perplexity"].pairs, found["perplexity"].tau) == (3, pytest.approx(1 / 3))
    assert (found["bleu4"].pairs, found["bleu4"].swapped) == (2, (("b", "a", None),))


def test_swaps_of_a_score_are_one_family_of_tests_and_agree_with_the_effects():
    table = TABLE.model_copy(update={"rows": tuple(row.model_copy(update={"baselines": ()}) for row in TABLE.rows)})
    values = {"a": [17.0, 17.3, 16.7], "b": [18.0, 18.4, 17.9], "c": [20.0, 20.2, 19.7]}  # the opposite order
    made = record(*(row(name, one) for name, one in values.items()))
    pairs = (("b", "a"), ("c", "a"), ("c", "b"))
    adjusted = holm([ttest_ind(values[one], values[other]).pvalue for one, other in pairs])
    (order,) = orders(table, made)
    assert {(one.better, one.worse): one.p for one in order.swapped} == pytest.approx(
        dict(zip(pairs, adjusted, strict=True))
    )
    assert all(one.is_significant == (one.p < 0.05) for one in order.swapped)
    compared = row("b", values["b"], contrasts=(contrast("a", "perplexity", 1.0, 0.2),))
    made = record(row("a", values["a"]), compared, row("c", values["c"]))
    (order,) = orders(TABLE, made)
    of_effects = {(one.row, one.baseline): one.p for one in effects(TABLE, made)}
    assert {(one.better, one.worse): one.p for one in order.swapped} == of_effects
    assert not next(one for one in order.swapped if one.worse == "a" and one.better == "b").is_significant


@pytest.mark.parametrize("seeds", [(2, 2), (2, 3), (3, 3), (3, 5)])
def test_one_of_twenty_rows_differs_significantly_where_none_does(seeds):
    """1,000 simulated pairs of rows whose runs have random effects: the standard deviation of the rate is 0.7 %."""
    random = np.random.default_rng(3)
    found = [p_over_seeds(*(random.normal(size=count).tolist() for count in seeds)) for _ in range(1000)]
    assert 0.03 < np.mean([p < 0.05 for p in found]) < 0.07


def test_rows_that_are_evaluations_of_the_same_runs_are_compared_run_by_run():
    def with_runs(made, *names):
        pairs = zip(made.seeds, names, strict=True)
        return made.model_copy(update={"seeds": tuple(one.model_copy(update={"run": name}) for one, name in pairs)})

    names, rows = ("runs/a", "runs/b", "runs/c"), (row("a", [20.0, 25.0, 30.0]), row("b", [19.0, 24.1, 28.9]))
    (paired,) = effects(TABLE, record(*(with_runs(one, *names) for one in rows)))
    assert paired.p == pytest.approx(ttest_rel([20.0, 25.0, 30.0], [19.0, 24.1, 28.9]).pvalue)
    (others,) = effects(TABLE, record(with_runs(rows[0], *names), with_runs(rows[1], "runs/d", "runs/e", "runs/f")))
    assert others.p == pytest.approx(ttest_ind([20.0, 25.0, 30.0], [19.0, 24.1, 28.9]).pvalue)


def contrast(baseline, metric, difference, p):
    return Contrast(
        system="", baseline=baseline, metric=metric, difference=difference, p=p, adjusted_p=p, interval=(0, 1)
    )


def test_effects_of_metrics_have_the_p_of_the_record():
    for difference, p, verdict in (
        (1.0, 0.01, "same effect"),
        (1.0, 0.2, "same direction, not significant"),
        (-1.0, 0.2, "opposite direction, not significant"),
        (-1.0, 0.04, "opposite effect"),
    ):
        compared = row("b", [20], [20.0 + difference], (contrast("a", "bleu4", difference, p),))
        effect = next(one for one in effects(TABLE, record(row("a", [30], [20.0]), compared)) if one.column == BLEU)
        assert (effect.row, effect.baseline, effect.p, effect.verdict) == ("b", "a", p, verdict)
        assert (effect.ours, effect.published) == (pytest.approx(difference), 1.0)


def test_a_significant_difference_that_the_paper_does_not_mark_is_no_effect_of_the_paper():
    marked = published("b", 18.0, 16.0, "a").model_copy(update={"published_marks": {"Theirs": {"perplexity": "†"}}})
    plain = published("c", 17.0, 16.0, "a", "b")
    table = TABLE.model_copy(update={"rows": (published("a", 20.0, 15.0), marked, plain)})
    not_marked = "significant, same direction, not marked in the paper"
    for p, of_c in ((0.2, "same direction, not significant"), (0.001, not_marked)):
        compared = [row(name, [18.0], contrasts=(contrast("a", "perplexity", -2.0, p),)) for name in "bc"]
        found = {one.row: one for one in effects(table, record(row("a", [20.0]), *compared)) if one.baseline == "a"}
        assert [found[name].in_the_paper for name in "bc"] == ["significant", "not marked"]
        assert found["b"].verdict == ("same effect" if p < 0.05 else "same direction, not significant")
        assert found["c"].verdict == of_c
        assert [found[name].dagger for name in "bc"] == (["†", "†"] if p < 0.05 else ["", ""])  # lower is better
    worse = effects(
        table, record(row("a", [17.0]), row("b", [20.0], contrasts=(contrast("a", "perplexity", 3, 0.001),)))
    )
    assert (worse[0].verdict, worse[0].dagger) == ("opposite effect", "")
    untested = effects(TABLE, record(row("a", [20.0]), row("b", [18.0])))
    assert [(one.in_the_paper, one.verdict) for one in untested] == [("not tested", "same direction, not tested")]


def test_the_page_marks_our_scores_and_names_what_was_not_tested():
    name = "calixto2017/table1"

    def made(*compared):
        rows = [row(one, [5.0] * 2, [20.0, 20.2]) for one in ("NMT", "PBSMT")]
        rows.append(row("NMT_SRC+IMG", [5.0] * 2, [25.0, 25.2], compared))
        return record(*(rows if compared else rows[:1])).model_copy(update={"table": name})

    pairs = tuple(contrast(baseline, "bleu4", 5.0, p) for baseline, p in (("NMT", 0.2), ("PBSMT", 0.001)))
    page = render_pages([made(*pairs)])["calixto2017.md"]
    assert "| **25.1** ± 0.1‡ |" in page
    assert "- Baselines of NMT, PBSMT, NMT_SRC+IMG: NMT and PBSMT." in page and "- Not tested" not in page
    alone = render_pages([made()])["calixto2017.md"]
    assert "- Not tested, because these rows were not reproduced on this collection: PBSMT." in alone


def test_pairs_tested_over_sentences_and_over_seeds_are_one_family():
    compared = row("b", [20] * 3, [21.0, 21.1, 20.9], (contrast("a", "bleu4", 1.0, 0.01),))
    made = record(row("a", [30] * 3, [20.0, 20.1, 19.9]), compared, row("c", [19] * 3, [20.1, 20.4, 20.0]))
    found = {(one.row, one.baseline): one for one in effects(TABLE, made) if one.column == BLEU}
    alone = [0.01, ttest_ind([20.1, 20.4, 20.0], [20.0, 20.1, 19.9]).pvalue]
    alone.append(ttest_ind([20.1, 20.4, 20.0], [21.0, 21.1, 20.9]).pvalue)
    assert [found[pair].p for pair in (("b", "a"), ("c", "a"), ("c", "b"))] == pytest.approx(holm(alone))
    assert [one.over for one in found.values()] == [("sentences", "seeds"), ("seeds",), ("seeds",)]
    single = record(row("a", [30], [20.0]), row("b", [20], [21.0], (contrast("a", "bleu4", 1.0, 0.01),)))
    assert next(one.over for one in effects(TABLE, single) if one.column == BLEU) == ("sentences",)


def test_effects_of_other_scores_are_tested_over_the_seeds():
    made = record(row("a", [30.0, 30.1, 29.9]), row("b", [20.0, 20.1, 19.9]), row("c", [20.0, 20.2, 19.9]))
    found = {(one.row, one.baseline): one for one in effects(TABLE, made)}
    assert found["b", "a"].verdict == found["c", "a"].verdict == "same effect"
    assert found["c", "b"].verdict == "opposite direction, not significant"
    # Student's t of b against a: 10 / sqrt(0.01 / 3 + 0.01 / 3) with 4 degrees of freedom, times 3 pairs or fewer.
    assert 1e-9 < found["b", "a"].p < 1e-6


def test_rows_that_are_baselines_of_each_other_are_one_effect_with_the_mark_of_either():
    marked = published("b", 18.0, 16.0, "a", "b").model_copy(update={"published_marks": {"Theirs": {"bleu4": "†"}}})
    third = published("c", 17.0, 17.0, "a", "b").model_copy(update={"published_marks": {"Theirs": {"bleu4": "‡"}}})
    table = TABLE.model_copy(update={"rows": (published("a", 20.0, 15.0, "a", "b"), marked, third)})
    made = record(row("a", [30], [20]), row("b", [20], [21]), row("c", [20], [22]))
    found = [(one.row, one.baseline, one.mark) for one in effects(table, made) if one.column == BLEU]
    assert found == [("b", "a", "†"), ("c", "a", ""), ("c", "b", "‡")]
    better = published("a", 20.0, 15.0, "a", "b").model_copy(update={"published_marks": {"Theirs": {"bleu4": "‡"}}})
    table = table.model_copy(update={"rows": (better, published("b", 18.0, 14.0, "a", "b"))})
    found = [(one.row, one.baseline, one.mark) for one in effects(table, made) if one.column == BLEU]
    assert found == [("b", "a", "‡")]


def test_the_record_of_a_reproduction_has_what_a_page_shows(tiny, tmp_path, monkeypatch):
    table, changes = find_table("kiros2014/table1"), ("text.min_count=1", "evaluation.skip_words=0")
    changes = (*changes, "evaluation.samples=2", "evaluation.prefix_words=1", "decoding.max_length=8")
    settings = ReproductionSettings(rows=("Back-off GT2", "Back-off GT3"), seeds=2, overrides=changes)
    reproduction = reproduce_table(table, tiny, tmp_path / "out", settings=settings, command="limner reproduce it")
    monkeypatch.setattr(records, "MEASURED", tmp_path)
    for _ in range(2):  # a folder that is given twice is there once
        records.add_record(tmp_path / "out")
    (made,) = records.read_records()
    assert (made.table, made.collection, made.dataset) == (table.name, tiny.path.name, None)
    assert made.commands == ("limner reproduce it",)
    assert [one.row for one in made.rows] == ["Back-off GT2", "Back-off GT3"]
    assert [seed.seed for seed in made.rows[0].seeds] == [1, 2]
    assert made.rows[0].seeds[0].scores["perplexity"] == reproduction.results[0].scores["perplexity"].value
    assert made.rows[0].signatures["perplexity"] == reproduction.results[0].scores["perplexity"].signature
    assert set(made.rows[0].differences) == set(changes)
    xu = find_table("xu2015/table1")
    assert records.recipe_of(xu, xu.rows[3], "hard-flickr30k-vgg19.grid-seed2") == "hard-flickr30k"
    assert made.rows[0].recipe_sha256 == records.recipe_digest(table, table.rows[0], "kiros2014/gt2")
    page = render_pages([made])["kiros2014.md"]
    assert f"**{made.rows[0].seeds[0].scores['perplexity']:.2f}** ± 0.00" in page and "`text.min_count=1`" in page
    assert page.count("| none |") == sum(one.recipe is not None for one in table.rows) - 2
    with pytest.raises(RunError, match="expected the folder of 'limner reproduce'"):
        records.collect(tmp_path)


def test_a_row_is_marked_if_its_recipe_has_changed_since_it_was_measured(tmp_path, monkeypatch):
    table, recipe = find_table("kiros2014/table1"), "kiros2014/mlbl-b"
    rows = {one.name: one for one in table.rows}  # MLBL-B-R is evaluated with other images
    shuffled, stored = (records.recipe_digest(table, rows[name], recipe) for name in ("MLBL-B-R", "MLBL-B"))
    assert stored not in (None, shuffled)
    file = copytree(recipe_folder(), tmp_path / "recipes") / f"{recipe}.yaml"
    monkeypatch.setattr("limner.runs.recipe.recipe_folder", lambda: tmp_path / "recipes")
    text = file.read_text(encoding="utf-8")
    described = f"# A comment.\n{text.replace('description: ', 'description: Another ')}"
    changed, older = f"{text}decoding: {{beam_size: 7}}\n", "older than the recipe"
    for content, digest, age in (
        (described, stored, ""),
        (changed, stored, older),
        (text, None, "recipe not recorded"),
    ):
        file.write_text(content, encoding="utf-8")
        made = row("MLBL-B", [18.0]).model_copy(update={"recipe": recipe, "recipe_sha256": digest})
        pages = render_pages([record(made).model_copy(update={"table": table.name})])
        assert f"| **Limner**{age and f', {age}'} |" in pages["kiros2014.md"]
        assert f"| 1 of 13{age and f', 1 {age}'} |" in pages["index.md"]


def test_rows_that_were_measured_earlier_are_kept():
    better, table = contrast("LBL", "bleu4", 1.0, 0.03), {"table": "kiros2014/table1"}  # with an order of rows
    old = record(row("LBL", [20, 21]), row("MLBL-B", [18], contrasts=(better,)), row("MLBL-F", [17]))
    old = old.model_copy(update={**table, "versions": {"torch": "2"}})
    update = {"commands": ("limner reproduce again",), "machines": ("another",), "versions": {"torch": "3"}, **table}
    new = record(row("Back-off GT2", [30]), row("MLBL-F", [19])).model_copy(update=update)
    both = records.merged(old, new)
    assert [one.row for one in both.rows] == ["Back-off GT2", "LBL", "MLBL-B", "MLBL-F"]
    assert [[seed.scores["perplexity"] for seed in one.seeds] for one in both.rows] == [[30], [20, 21], [18], [19]]
    assert both.commands == ("limner reproduce test/table", "limner reproduce again")
    assert (both.machines, both.versions) == (("a machine", "another"), {"torch": "2, 3"})
    assert [one.difference for one in both.rows[2].contrasts] == [1.0]
    again = records.merged(old, new.model_copy(update={"rows": (row("LBL", [25]),)}))
    assert next(one for one in again.rows if one.row == "MLBL-B").contrasts == ()  # its baseline is another one now
    with pytest.raises(RunError, match="kiros2014-table1-ours: the stored record is about other data"):
        records.merged(old, old.model_copy(update={"fingerprint": "1" * 64}))


def test_every_published_row_and_figure_has_a_place_in_the_book():
    pages = render_pages([])
    for name, table in published_tables().items():
        page = pages[f"{name.split('/')[0]}.md"]
        assert table.title in page
        assert all(one.name in page for one in table.rows)
    for name in write.PAPERS:
        for figure in write.read_paper(name).figures:
            assert all(text in pages[f"{name}.md"] for text in (figure.title, *figure.commands))


def test_the_committed_pages_are_those_of_the_committed_records():
    pages = render_pages(records.read_records())
    assert {path.name for path in PAGES.glob("*.md")} == set(pages)
    for name, text in pages.items():
        assert (PAGES / name).read_text(encoding="utf-8") == text, f"{name}: run 'python book/write.py'"
