"""The reproduction book: records of reproduced tables, verdicts by hand-worked rules, and the committed pages."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_ind, ttest_rel
from typer.testing import CliRunner

from limner.cli import app
from limner.errors import RunError
from limner.evaluation.comparison import Contrast
from limner.metrics.significance import holm
from limner.reproduce import TABLES, ReproductionSettings, datasets, find_table, listing, reproduce_table
from limner.reproduce.book import MEASURED, collect, merged, page_names, read_records, render_pages, write_book
from limner.reproduce.book.record import RowRecord, SeedRecord, TableRecord
from limner.reproduce.book.verdicts import effects, orders, p_over_seeds
from limner.reproduce.datasets import evaluated_data_set
from limner.reproduce.listing import list_tables
from limner.reproduce.tables import PublishedRow, PublishedTable, TableColumn

PAGES = Path(__file__).parents[2] / "docs" / "reproduction"
PPL, BLEU = TableColumn("perplexity", "PPL", 2), TableColumn("bleu4", "B-4", 3, scale=0.01)


def published(name, perplexity, bleu, *baselines):
    return PublishedRow(
        name, name, published={"Theirs": {"perplexity": perplexity, "bleu4": bleu}}, baselines=baselines
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


KIROS = {"table": "kiros2014/table1"}
"""A published table, whose order of rows a merged record has."""


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


@pytest.mark.parametrize("ours", ["a-first", "z-last"])
def test_the_list_has_the_time_on_the_data_of_the_paper_if_it_was_measured(tmp_path, monkeypatch, ours):
    name = "calixto2017/table1"
    for collection, dataset, seconds in ((ours, None, 60), ("multi30k", "Multi30k", 7200)):
        one = record(row("NMT", [5.0]).model_copy(update={"seeds": (SeedRecord(seed=1, scores={}, seconds=seconds),)}))
        one = one.model_copy(update={"table": name, "collection": collection, "dataset": dataset})
        (tmp_path / f"{collection}.json").write_text(one.model_dump_json())
    monkeypatch.setattr(listing, "MEASURED", tmp_path)
    listed = {one["row"]: one for one in list_tables(name).to_plain()["tables"][0]["rows"]}
    assert (listed["NMT"]["seconds_of_a_seed"], listed["NMT"]["measured_on"]) == (7200.0, "multi30k")
    assert (listed["PBSMT"]["seconds_of_a_seed"], listed["PBSMT"]["measured_on"]) == (None, None)


@pytest.mark.parametrize(
    ("recipe", "differences", "says"),
    [
        ("calixto2017/nmt", (), "2 h 0 min a seed on multi30k\n"),
        ("calixto2017/nmt", ("training.epochs=1", "budget 0.1"), "on multi30k (1 epoch, budget 0.1)\n"),
        (
            "calixto2017/small/nmt",
            (
                "model.hidden_dim=256",
                "training.epochs=5",
                "initialised from run 'pre' (limner train)",
                "source sentences generated",
            ),
            "on multi30k (calixto2017/small, 5 epochs, initialised from run 'pre')\n",
        ),
    ],
)
def test_the_list_has_the_settings_of_a_training_time(tmp_path, monkeypatch, recipe, differences, says):
    changes = {"seeds": (SeedRecord(seed=1, scores={}, seconds=7200),), "recipe": recipe, "differences": differences}
    one = record(row("NMT", [5.0]).model_copy(update=changes))
    one.model_copy(update={"table": "calixto2017/table1", "collection": "multi30k"}).save(tmp_path / "one.json")
    monkeypatch.setattr(listing, "MEASURED", tmp_path)
    text = list_tables("calixto2017/table1").to_markdown()
    assert says in text and text.count("a seed on multi30k") == 1
    assert "    PBSMT | en to de | 32.9 54.3† 45.1† 67.4 66.5 67.5 (Multi30k) | time not measured\n" in text


def test_the_order_of_rows_names_the_swapped_pairs():
    found = {
        order.column.score: order
        for order in orders(TABLE, record(row("a", [30], [20]), row("b", [20], [19]), row("c", [25], [21])))
    }
    # PPL: a > b > c with them, a > c > b with us: one of three pairs. BLEU: b and c are equal with them.
    assert found["perplexity"].swapped == (("c", "b", None),)
    assert (found["perplexity"].pairs, found["perplexity"].tau) == (3, pytest.approx(1 / 3))
    assert (found["bleu4"].pairs, found["bleu4"].swapped) == (2, (("b", "a", None),))


@pytest.mark.parametrize(("spread", "is_significant"), [(0.01, True), (5.0, False)])
def test_a_swap_is_significant_if_the_seeds_tell_the_rows_apart(spread, is_significant):
    seeds = [value * spread for value in (-1, 0, 1)]
    rows = record(row("a", [20 + seed for seed in seeds]), row("b", [21 + seed for seed in seeds]))
    (order,) = orders(TABLE, rows)
    (swap,) = order.swapped
    expected = ttest_ind([20 + seed for seed in seeds], [21 + seed for seed in seeds]).pvalue
    assert (swap.better, swap.worse, swap.is_significant) == ("b", "a", is_significant)
    assert swap.p == pytest.approx(expected)


def test_swaps_of_a_score_are_one_family_of_tests_and_agree_with_the_effects():
    table = TABLE._replace(rows=tuple(row._replace(baselines=()) for row in TABLE.rows))
    values = {"a": [17.0, 17.3, 16.7], "b": [18.0, 18.4, 17.9], "c": [20.0, 20.2, 19.7]}  # the opposite order
    made = record(*(row(name, one) for name, one in values.items()))
    pairs = (("b", "a"), ("c", "a"), ("c", "b"))
    adjusted = holm([ttest_ind(values[one], values[other]).pvalue for one, other in pairs])
    (order,) = orders(table, made)
    assert {(one.better, one.worse): one.p for one in order.swapped} == pytest.approx(
        dict(zip(pairs, adjusted, strict=True))
    )
    compared = row("b", values["b"], contrasts=(contrast("a", "perplexity", 1.0, 0.2),))
    made = record(row("a", values["a"]), compared, row("c", values["c"]))
    (order,) = orders(TABLE, made)
    of_effects = {(one.row, one.baseline): one.p for one in effects(TABLE, made)}
    assert {(one.better, one.worse): one.p for one in order.swapped} == of_effects
    assert not next(one for one in order.swapped if one.worse == "a" and one.better == "b").is_significant


def test_equal_scores_have_no_order_and_no_direction():
    made = record(row("a", [20]), row("b", [20]))
    (order,) = orders(TABLE, made)
    (effect,) = effects(TABLE, made)
    assert (order.tau, order.swapped, effect.verdict) == (None, (), "no difference in our runs")
    assert (order.pairs, order.ties) == (1, 1)


@pytest.mark.parametrize("seeds", [(2, 2), (2, 3), (3, 3), (3, 5)])
def test_one_of_twenty_rows_differs_significantly_where_none_does(seeds):
    """1,000 simulated pairs of rows whose runs have random effects: the standard deviation of the rate is 0.7 %."""
    random = np.random.default_rng(3)
    found = [p_over_seeds(*(random.normal(size=count).tolist() for count in seeds)) for _ in range(1000)]
    assert 0.03 < np.mean([p < 0.05 for p in found]) < 0.07


@pytest.mark.parametrize("seeds", [2, 3])
def test_a_row_without_variance_is_a_constant_for_the_other(seeds):
    random = np.random.default_rng(3)
    found = [p_over_seeds([0.0] * seeds, random.normal(size=seeds).tolist()) for _ in range(1000)]
    assert 0.03 < np.mean([p < 0.05 for p in found]) < 0.07
    assert p_over_seeds([20.1] * 3, [20.0, 21.0, 22.0]) == pytest.approx(ttest_1samp([20.0, 21.0, 22.0], 20.1).pvalue)
    assert p_over_seeds([20.1] * 3, [20.0] * 3) is None  # the seeds tell nothing about two constants


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
    marked = published("b", 18.0, 16.0, "a")._replace(published_marks={"Theirs": {"perplexity": "†"}})
    plain = published("c", 17.0, 16.0, "a", "b")
    table = TABLE._replace(rows=(published("a", 20.0, 15.0), marked, plain))
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
    assert [one.in_the_paper for one in untested] == ["not tested"]


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


def test_settings_that_all_rows_share_are_listed_once():
    rows = [row(name, [20]) for name in ("LBL", "MLBL-B", "MLBL-F")]
    rows = [one.model_copy(update={"differences": ("a=1", f"b={n // 2}")}) for n, one in enumerate(rows)]
    page = render_pages([record(*rows).model_copy(update=KIROS)])["kiros2014.md"]
    listed = page[page.index("**Settings that differ**") :].splitlines()[2:5]
    assert listed == [
        "- all rows: `a=1`",
        "- LBL, MLBL-B (recipes `test`): `b=0`",
        "- MLBL-F (recipes `test`): `b=1`",
    ]


def test_pages_have_the_tables_in_order_and_the_notes_of_those_that_were_not_reproduced():
    pages = render_pages([])
    places = [pages["mao2015.md"].index(f", Table {number}:") for number in range(1, 9)]
    assert places == sorted(places)
    for name, table in TABLES.items():
        page = pages[f"{name.split('/')[0]}.md"]
        assert table.notes in page and f"limner reproduce {name} --collection COLLECTION" in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": []}, "rows"),
        ({"table": "gone/table"}, "unknown table 'gone/table'"),
        ({"rows": ["Ours-x"]}, "row 'Ours-x' is not in kiros2014/table1"),
        ({"rows": ["LBL", "LBL"]}, "row 'LBL' is there twice"),
        ({"seeds": []}, "seeds"),
        ({"signatures": {}}, "row 'LBL' has no signature of perplexity"),
        ({"scores": {"perplexity": "NaN"}}, "row 'LBL': perplexity is not a number"),
        ({"p": 7}, "less than or equal to 1"),
    ],
)
def test_damaged_records_are_refused_by_name(tmp_path, change, message):
    compared = row("LBL", [20], contrasts=(contrast("MLBL-B", "bleu4", 1.0, 0.5),))
    plain = record(compared).model_copy(update=KIROS).model_dump(mode="json")
    one = plain["rows"][0]
    one["signatures"] = {"perplexity": "tokens:1"}
    for key, value in change.items():
        match key:
            case "rows":
                plain["rows"] = [{**one, "row": name} for name in value]
            case "table":
                plain[key] = value
            case "scores":
                one["seeds"][0]["scores"] = value
            case "p":
                one["contrasts"][0]["p"] = value
            case _:
                one[key] = value
    (tmp_path / "record.json").write_text(json.dumps(plain))
    with pytest.raises(RunError, match=rf"record\.json: .*{message}"):
        read_records(tmp_path)


def test_a_folder_of_records_that_does_not_exist_leaves_the_pages(tmp_path):
    run = CliRunner().invoke(app, ["book", "--records", str(tmp_path / "nowhere"), "--out", str(tmp_path / "pages")])
    assert run.exit_code != 0 and not (tmp_path / "pages").exists()
    with pytest.raises(RunError, match=r"nowhere: expected a folder of records; 'limner book TABLE"):
        read_records(tmp_path / "nowhere")


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
    single = effects(TABLE, record(row("a", [30.0]), row("b", [20.0])))
    assert [one.verdict for one in single] == ["same direction, not tested"]


def test_rows_that_are_baselines_of_each_other_are_one_effect_with_the_mark_of_either():
    marked = published("b", 18.0, 16.0, "a", "b")._replace(published_marks={"Theirs": {"bleu4": "†"}})
    third = published("c", 17.0, 17.0, "a", "b")._replace(published_marks={"Theirs": {"bleu4": "‡"}})
    table = TABLE._replace(rows=(published("a", 20.0, 15.0, "a", "b"), marked, third))
    made = record(row("a", [30], [20]), row("b", [20], [21]), row("c", [20], [22]))
    found = [(one.row, one.baseline, one.mark) for one in effects(table, made) if one.column == BLEU]
    assert found == [("b", "a", "†"), ("c", "a", ""), ("c", "b", "‡")]
    better = published("a", 20.0, 15.0, "a", "b")._replace(published_marks={"Theirs": {"bleu4": "‡"}})
    table = table._replace(rows=(better, published("b", 18.0, 14.0, "a", "b")))
    found = [(one.row, one.baseline, one.mark) for one in effects(table, made) if one.column == BLEU]
    assert found == [("b", "a", "‡")]


def test_the_data_set_of_multi30k_is_that_of_its_test_images_alone(monkeypatch):
    ids = ["1007129816", "1009434119"]
    assert evaluated_data_set(ids) == "Flickr30k"
    monkeypatch.setattr(datasets, "MULTI30K_TEST", hashlib.sha256(b"1007129816\n1009434119").hexdigest())
    assert evaluated_data_set([*reversed(ids), ids[0]]) == "Multi30k"  # an item may have several sentences
    assert evaluated_data_set(["a", "b"]) is None


def test_the_time_of_a_shared_run_is_counted_once_and_signatures_name_their_rows():
    def made(name, run, signature):
        one = row(name, [20.0])
        seeds = tuple(seed.model_copy(update={"run": run, "seconds": 60}) for seed in one.seeds)
        return one.model_copy(update={"seeds": seeds, "signatures": {"perplexity": signature}, "features": ("grid",)})

    rows = (made("LBL", "runs/a", "one"), made("MLBL-B", "runs/b", "two"), made("MLBL-B-R", "runs/b", "two"))
    rows += (made("LBL, ensemble of 2", "runs/a", "one"),)
    pages = render_pages([record(*rows).model_copy(update={"table": "kiros2014/table1"})])
    assert "| 2 min |" in pages["index.md"] or "| 2 min 0 s |" in pages["index.md"]
    page = pages["kiros2014.md"]
    assert "- perplexity of MLBL-B, MLBL-B-R: `two`" in page
    assert "features grid" in page
    lines = [line.split(" |")[0] for line in page.splitlines()]
    assert lines.index("| LBL, ensemble of 2") == lines.index("| LBL") + 3  # after the figures on two data sets
    assert "| together |" in page and "| 3 of 13 | 1 |" in pages["index.md"]


def test_the_record_of_a_reproduction_has_what_a_page_shows(tiny, tmp_path):
    table, changes = find_table("kiros2014/table1"), ("text.min_count=1", "evaluation.skip_words=0")
    changes = (*changes, "evaluation.samples=2", "evaluation.prefix_words=1", "decoding.max_length=8")
    settings = ReproductionSettings(rows=("Back-off GT2", "Back-off GT3"), seeds=2, overrides=changes)
    reproduction = reproduce_table(table, tiny, tmp_path / "out", settings=settings, command="limner reproduce it")
    made = collect(tmp_path / "out")
    assert (made.table, made.collection, made.dataset) == (table.name, tiny.path.name, None)
    assert made.commands == ("limner reproduce it",)
    assert [one.row for one in made.rows] == ["Back-off GT2", "Back-off GT3"]
    assert [seed.seed for seed in made.rows[0].seeds] == [1, 2]
    assert made.rows[0].seeds[0].scores["perplexity"] == reproduction.results[0].scores["perplexity"].value
    assert made.rows[0].signatures["perplexity"] == reproduction.results[0].scores["perplexity"].signature
    assert set(made.rows[0].differences) == {  # the order of a recipe's own value and the printed one
        "text.min_count=1",
        "evaluation.skip_words=0",
        "evaluation.samples=2",
        "evaluation.prefix_words=1",
        "decoding.max_length=8",
    }
    written = CliRunner().invoke(
        app,
        [
            "book",
            *[str(tmp_path / "out")] * 2,
            "--records",
            str(tmp_path / "records"),
            "--out",
            str(tmp_path / "pages"),
        ],
    )
    assert written.exit_code == 0, written.output
    assert read_records(tmp_path / "records") == [made]  # a folder that is given twice is there once
    page = render_pages([made])["kiros2014.md"]
    assert f"**{made.rows[0].seeds[0].scores['perplexity']:.2f}** ± 0.00" in page and "`text.min_count=1`" in page
    assert page.count("| none |") == sum(one.recipe is not None for one in table.rows) - 2


def test_rows_that_were_measured_earlier_are_kept():
    better = contrast("LBL", "bleu4", 1.0, 0.03)
    old = record(row("LBL", [20, 21]), row("MLBL-B", [18], contrasts=(better,)), row("MLBL-F", [17]))
    new = record(row("Back-off GT2", [30]), row("MLBL-F", [19]))
    update = {"commands": ("limner reproduce again",), "machines": ("another",), "versions": {"torch": "3"}}
    both = merged(
        old.model_copy(update={**KIROS, "versions": {"torch": "2"}}), new.model_copy(update={**KIROS, **update})
    )
    assert [one.row for one in both.rows] == ["Back-off GT2", "LBL", "MLBL-B", "MLBL-F"]
    assert [[seed.scores["perplexity"] for seed in one.seeds] for one in both.rows] == [[30], [20, 21], [18], [19]]
    assert both.commands == ("limner reproduce test/table", "limner reproduce again")
    assert (both.machines, both.versions) == (("a machine", "another"), {"torch": "2, 3"})
    assert [one.difference for one in both.rows[2].contrasts] == [1.0]


def test_differences_from_a_baseline_that_was_measured_again_are_kept_if_it_is_the_same():
    old = record(row("LBL", [20]), row("MLBL-B", [18], contrasts=(contrast("LBL", "bleu4", 1.0, 0.03),)))
    old = old.model_copy(update=KIROS)
    assert merged(old, record(row("LBL", [20])).model_copy(update=KIROS)).rows[1].contrasts != ()
    assert merged(old, record(row("LBL", [21])).model_copy(update=KIROS)).rows[1].contrasts == ()


def test_seeds_of_the_same_settings_are_one_row():
    def numbered(name, perplexities, first, **update):
        made = row(name, perplexities)
        seeds = tuple(one.model_copy(update={"seed": first + i}) for i, one in enumerate(made.seeds))
        return made.model_copy(update={"seeds": seeds, **update})

    def seeds_of(new, old=None):
        both = merged(*(record(one).model_copy(update=KIROS) for one in (old or row("LBL", [20, 21]), new)))
        return [(seed.seed, seed.scores["perplexity"]) for seed in both.rows[0].seeds]

    assert seeds_of(numbered("LBL", [22, 23], 2)) == [(1, 20), (2, 22), (3, 23)]
    for name, value in {"differences": ("seed=2",), "recipe": "other", "signatures": {"perplexity": "other"}}.items():
        assert seeds_of(numbered("LBL", [22, 23], 2, **{name: value})) == [(2, 22), (3, 23)], name
    tested = row("LBL", [20], contrasts=(contrast("MLBL-B", "bleu4", 1.0, 0.03),))
    assert seeds_of(numbered("LBL", [22], 2), tested) == [(2, 22)]  # a test over sentences is about its own runs


def test_merged_rows_are_one_family_of_tests():
    def of(name, baseline, p):
        return contrast(baseline, "bleu4", 1.0, p).model_copy(update={"system": name, "p": p})

    old = record(
        row("LBL", [20], contrasts=(of("LBL", "MLBL-B", 0.01),)),
        row("MLBL-B", [18], contrasts=(of("MLBL-B", "LBL", 0.01),)),
    )
    new = record(row("MLBL-F", [18], contrasts=(of("MLBL-F", "LBL", 0.04),)))
    both = merged(old.model_copy(update=KIROS), new.model_copy(update=KIROS))
    assert [one.contrasts[0].adjusted_p for one in both.rows] == pytest.approx([0.02, 0.02, 0.04])


def test_records_of_other_data_are_not_merged():
    old = record(row("LBL", [20])).model_copy(update=KIROS)
    with pytest.raises(RunError, match="kiros2014-table1-ours: the stored record is about split 'test' of fingerprint"):
        merged(old, old.model_copy(update={"fingerprint": "1" * 64}))


def test_a_folder_without_rows_is_refused(tmp_path):
    with pytest.raises(RunError, match="expected the folder of 'limner reproduce'"):
        collect(tmp_path)


def test_a_folder_with_rows_of_two_tables_is_refused(tiny, tmp_path):
    changes = ("text.min_count=1", "evaluation.skip_words=0", "evaluation.samples=2", "evaluation.prefix_words=1")
    settings = ReproductionSettings(rows=("Back-off GT2",), overrides=changes)
    reproduce_table(find_table("kiros2014/table1"), tiny, tmp_path, settings=settings, command="it")
    stored = json.loads((tmp_path / "rows" / "back-off-gt2.json").read_text())
    (tmp_path / "rows" / "other.json").write_text(json.dumps({**stored, "table": "mao2015/table8"}))
    with pytest.raises(RunError, match=r"rows of a table, found rows of kiros2014/table1 and mao2015/table8"):
        collect(tmp_path)


def test_every_published_row_has_a_place_in_the_book(tmp_path):
    write_book([], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(page_names())
    for name, table in TABLES.items():
        page = (tmp_path / f"{name.split('/')[0]}.md").read_text(encoding="utf-8")
        assert table.title in page
        assert all(one.name in page for one in table.rows)


def test_the_committed_pages_are_those_of_the_committed_records():
    pages = render_pages(read_records(MEASURED))
    assert {path.name for path in PAGES.glob("*.md")} == set(pages)
    for name, text in pages.items():
        assert (PAGES / name).read_text(encoding="utf-8") == text, f"{name}: run 'limner book --out docs/reproduction'"


def test_a_table_without_published_scores_has_no_other_test_items():
    pages = render_pages(read_records(MEASURED))
    lecture = next(text for name, text in pages.items() if name.startswith("lecture"))
    assert "### On flickr8k" in lecture and "Other test items" not in lecture
    assert "- all rows (recipes `lecture/cells`; features lite2): nothing\n" in lecture
    assert any("Other test items" in text for text in pages.values())
