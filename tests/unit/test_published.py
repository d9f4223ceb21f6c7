"""Published tables row by row: what is trained, what is spared when it is done again, and what is printed."""

import json
import shutil

import pytest

from limner.data.collection import Collection, write_items
from limner.data.examples import Item, Sentence
from limner.errors import FeatureError, LimnerError, RunError, SettingsError
from limner.features.store import extract
from limner.reproduce import TABLES, Row, Table, calixto2016, calixto2017, find_table, plan, reproduce, run
from limner.reproduce.kiros2014 import TABLE_1
from limner.reproduce.render import to_markdown
from limner.reproduce.significance import ComparedTable
from limner.reproduce.tables import Column
from limner.runs.recipe import load_recipe

TABLE = Table(
    name="test/table",
    title="A table",
    recipes="kiros2014",
    columns=(Column("perplexity", "PPL", 2), Column("sampled_bleu1", "B-1", 3, scale=0.01)),
    published=("Theirs",),
    rows=(
        Row("GT2", "gt2", published={"Theirs": {"perplexity": 54.5, "sampled_bleu1": 32.3}}),
        Row("MLBL-B-R", "mlbl-b", "shuffled"),
        Row("MLBL-B", "mlbl-b"),
        Row("bow", "bow-f", choices=(("training.optimizer.lr=1.0e-6",), ("training.optimizer.lr=0.05",))),
    ),
    notes="Notes.",
)
SMALL = ["text.min_count=1", "evaluation.skip_words=0", "evaluation.samples=2", "evaluation.prefix_words=1"]
SMALL += ["evaluation.shortlist=3", "decoding.max_length=8"]
FOR = {  # what the recipes of this test have in common but the n-grams do not know
    "kiros2014/mlbl-b": ["training.epochs=2", "training.fuse=2", "features.tables=[colour]", "model.word_dim=6"],
    "kiros2014/bow-f": ["training.epochs=2", "features.tables=[colour]"],
}


@pytest.fixture
def small(monkeypatch):
    """Recipes made small enough for the tiny collection; counts trainings and evaluations."""
    done = {"train": 0, "evaluate": 0}
    monkeypatch.setattr(plan, "load_recipe", lambda name, changes: load_recipe(name, [*FOR.get(name, []), *changes]))
    for name in done:
        real = getattr(run, name)

        def counted(*given, real=real, name=name, **more):
            done[name] += 1
            return real(*given, **more)

        monkeypatch.setattr(run, name, counted)
    return done


@pytest.fixture
def made(small, tiny, tmp_path):
    return reproduce(TABLE, tiny, tmp_path / "out", changes=SMALL)


def test_every_row_is_there_beside_what_was_published(made, tiny):
    lines = made.markdown.read_text().splitlines()
    assert lines[2] == f"| {tiny.path.name} | PPL | B-1 | PPL, Theirs | B-1, Theirs |"
    cells = {line.split("|")[1].split(" (")[0].strip(): cells_of(line) for line in lines[4:8]}
    assert list(cells) == ["GT2", "MLBL-B-R", "MLBL-B", "bow"]
    assert cells["GT2"][2:] == ["54.50", "0.323"]
    assert cells["MLBL-B"][2:] == ["–", "–"]
    scores = {outcome.row: outcome.scores for outcome in made.outcomes}
    assert cells["MLBL-B"][0] == f"{scores['MLBL-B']['perplexity'].value:.2f}"
    mean, std = (scores["MLBL-B"][name].value / 100 for name in ("sampled_bleu1", "sampled_bleu1_std"))
    assert cells["MLBL-B"][1] == f"{mean:.3f} ± {std:.3f}"
    plain = json.loads(made.json.read_text())
    assert [row["row"] for row in plain["rows"]] == list(cells)
    assert {path.name for path in made.figures} == {"text_to_image.png", "image_to_text.png"}
    assert all(path.stat().st_size > 5000 for path in made.figures)


def cells_of(line):
    return [cell.strip() for cell in line.split("|")[2:-1]]


def names_in(made):
    return [line.split("|")[1].strip() for line in made.markdown.read_text().splitlines()[4 : 4 + len(made.outcomes)]]


def test_a_control_is_the_same_model_shown_other_pictures(made):
    outcomes = {outcome.row: outcome for outcome in made.outcomes}
    assert outcomes["MLBL-B-R"].run == outcomes["MLBL-B"].run
    assert outcomes["MLBL-B-R"].evaluation.pictures == "shuffled"
    assert outcomes["MLBL-B-R"].scores["perplexity"].value != outcomes["MLBL-B"].scores["perplexity"].value


def test_the_choice_that_validates_best_is_the_row(made):
    chosen = next(outcome for outcome in made.outcomes if outcome.row == "bow")
    assert chosen.recipe["training"]["optimizer"]["lr"] == 0.05
    assert chosen.run == "runs/bow-f-2"


def test_the_time_of_a_row_is_that_of_all_it_was_chosen_from(small, tiny, tmp_path, monkeypatch):
    real = run.train

    def timed(recipe, collection, run, **more):
        real(recipe, collection, run, **more)
        config = json.loads((run / "config.json").read_text())
        config["provenance"]["seconds"] = 7.0
        (run / "config.json").write_text(json.dumps(config))
        return run

    monkeypatch.setattr(run, "train", timed)
    made = reproduce(TABLE, tiny, tmp_path / "out", changes=SMALL, rows=["GT2", "bow"])
    assert [outcome.seconds for outcome in made.outcomes] == [7.0, 14.0]


def test_what_is_done_is_not_done_again(made, small, tiny, tmp_path):
    before = dict(small)
    assert before == {"train": 5, "evaluate": 4}
    again = reproduce(TABLE, tiny, tmp_path / "out", changes=SMALL)
    assert small == before
    assert again.markdown.read_text() == made.markdown.read_text()


def test_it_goes_on_where_it_was_stopped(small, tiny, tmp_path, monkeypatch):
    real, calls = run.evaluate, []

    def stop(*given, **more):
        calls.append(more)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*given, **more)

    monkeypatch.setattr(run, "evaluate", stop)
    with pytest.raises(KeyboardInterrupt):
        reproduce(TABLE, tiny, tmp_path / "out", changes=SMALL)
    assert "| GT2 (" in (tmp_path / "out" / "table.md").read_text()
    made = reproduce(TABLE, tiny, tmp_path / "out", changes=SMALL)
    assert [outcome.row for outcome in made.outcomes] == ["GT2", "MLBL-B-R", "MLBL-B", "bow"]
    assert len(calls) == 2 + 3  # the row that was stopped and the two after it


def test_rows_of_other_settings_or_data_are_not_mixed(small, tiny, own_tiny, tmp_path):
    reproduce(TABLE, tiny, tmp_path / "out", changes=SMALL, rows=["GT2"])
    with pytest.raises(RunError, match="other settings"):
        reproduce(TABLE, tiny, tmp_path / "out", changes=[*SMALL, "model.order=1"], rows=["GT2"])
    write_items(own_tiny.path, [Item("more", "train", sentences=(Sentence("en", "one more wall"),))])
    before = dict(small)
    for row in ("GT2", "bow"):  # the row that is there, or another one that would stand beside it
        with pytest.raises(RunError, match=r"gt2\.json: made from another collection"):
            reproduce(TABLE, Collection.open(own_tiny.path), tmp_path / "out", changes=SMALL, rows=[row])
    assert small == before


def test_a_row_of_other_features_is_refused(small, own_tiny, eye_of, tmp_path):
    out = tmp_path / "out"
    (first,) = reproduce(TABLE, own_tiny, out, changes=SMALL, rows=["MLBL-B"]).outcomes
    kept = out / "rows" / "mlbl-b.json"
    stored = json.loads(kept.read_text())
    assert stored["features"] == list(first.features) != []
    shutil.rmtree(own_tiny.path / "features" / "colour.lance")
    extract(own_tiny, eye_of(version="2"))
    for record in (stored, without(stored, "features")):  # older records leave that to the run
        kept.write_text(json.dumps(record))
        with pytest.raises(RunError, match=rf"mlbl-b\.json: made from other features \({first.features[0]};"):
            reproduce(TABLE, own_tiny, out, changes=SMALL, rows=["MLBL-B"])


def without(record, *keys):
    return {key: value for key, value in record.items() if key not in keys}


def test_what_is_not_as_the_table_s_own_recipe_says_stands_beside_the_name(small, tiny, tmp_path):
    changes = [*SMALL, "training.embeddings=null", "description=Not as the paper has it, at all"]
    made = reproduce(TABLE, tiny, tmp_path / "out", changes=changes, rows=["GT2"], budget=0.5)
    (name,) = names_in(made)
    told = [*SMALL, "training.embeddings=null", "description=…", "budget 0.5"]
    assert name == f"GT2 ({'; '.join(told)})"
    assert json.loads(made.json.read_text())["rows"][0]["changes"] == changes
    assert made.outcomes[0].recipes == "kiros2014"
    own = made.outcomes[0].model_copy(update={"changes": (), "budget": 1.0})
    assert "| GT2 |" in to_markdown(TABLE, [own], ComparedTable())
    other = own.model_copy(update={"recipes": "kiros2014/adamw", "changes": ("text.level=bpe",), "budget": 0.1})
    assert "| GT2 (kiros2014/adamw; text.level=bpe; budget 0.1) |" in to_markdown(TABLE, [other], ComparedTable())


def test_records_that_do_not_say_where_the_recipe_was_from_still_load_and_learn_it(small, tiny, tmp_path):
    out = tmp_path / "out"
    first = reproduce(TABLE, tiny, out, changes=SMALL, rows=["MLBL-B"])
    kept = out / "rows" / "mlbl-b.json"
    kept.write_text(json.dumps(without(json.loads(kept.read_text()), "recipes", "changes", "features")))
    again = reproduce(TABLE, tiny, out, changes=SMALL, rows=["MLBL-B"])
    assert again.outcomes == first.outcomes


def test_records_without_settings_that_there_were_none_of_by_then_are_still_the_same(small, tiny, tmp_path):
    out = tmp_path / "out"
    reproduce(TABLE, tiny, out, changes=SMALL, rows=["GT2"])
    kept = out / "rows" / "gt2.json"
    stored = json.loads(kept.read_text())
    older = without(stored["recipe"], "source_text") | {"data": without(stored["recipe"]["data"], "synthetic")}
    kept.write_text(json.dumps(stored | {"recipe": older}))
    reproduce(TABLE, tiny, out, changes=SMALL, rows=["GT2"])
    assert small["evaluate"] == 1
    kept.write_text(json.dumps(stored | {"recipe": stored["recipe"] | {"of_another_version": 1}}))
    with pytest.raises(RunError, match="other settings"):
        reproduce(TABLE, tiny, out, changes=SMALL, rows=["GT2"])


def test_a_choice_is_made_with_the_first_seed(small, tiny, tmp_path):
    made = reproduce(TABLE, tiny, tmp_path / "out", changes=SMALL, rows=["bow"], seeds=2)
    assert [outcome.run for outcome in made.outcomes] == ["runs/bow-f-2", "runs/bow-f-2-seed2"]
    assert [(outcome.seed, outcome.recipe["training"]["optimizer"]["lr"]) for outcome in made.outcomes] == [
        (1, 0.05),
        (2, 0.05),
    ]
    assert small == {"train": 3, "evaluate": 2}


@pytest.mark.parametrize(
    ("row", "changes", "error", "message"),
    [
        (
            "MLBL-B",
            ["evaluation.shortlist=9"],
            SettingsError,
            r"shortlist: expected at most 8, .*evaluation\.shortlist=8",
        ),
        ("MLBL-B", ["features.tables=[mobilenet]"], FeatureError, "no such features"),
        ("bow", ["evaluation.skip_words=5"], SettingsError, r"skip_words: 5 leaves out .*'val'.*skip_words=0"),
        ("MLBL-B", ["evaluation.prefix_words=9"], SettingsError, r"prefix_words: 9, and no sentence .*prefix_words=4"),
        ("MLBL-B", ["training.weight_decay={nothing: 1.0}"], SettingsError, "'nothing' fits no parameter"),
        ("MLBL-B", ["training.embeddings=nowhere.txt"], LimnerError, "nowhere.txt"),
        ("GT2", ["training.embeddings=nowhere.txt"], SettingsError, "does not begin with word vectors"),
        ("MLBL-B-R", ["features.tables=[]", "model.variant=LBL"], SettingsError, "looks at no pictures"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_the_first_training(
    small, tiny, tmp_path, monkeypatch, row, changes, error, message
):
    """Also where it is the last row that cannot."""
    recipe = {one.name: f"kiros2014/{one.recipe}" for one in TABLE.rows}[row]
    loaded = plan.load_recipe
    monkeypatch.setattr(
        plan, "load_recipe", lambda name, given: loaded(name, [*given, *(changes if name == recipe else [])])
    )
    with pytest.raises(error, match=message):
        reproduce(TABLE, tiny, tmp_path / "out", changes=SMALL, rows=["GT2", row])
    assert small == {"train": 0, "evaluate": 0}
    assert not (tmp_path / "out").exists()


def test_a_trained_row_is_measured_in_another_way_without_training_it_again(small, tiny, tmp_path):
    out = tmp_path / "out"
    reproduce(TABLE, tiny, out, changes=SMALL, rows=["MLBL-B"])
    weights = out / "runs" / "mlbl-b" / "model.safetensors"
    before = weights.read_bytes(), weights.stat().st_mtime_ns
    (out / "rows" / "mlbl-b.json").unlink()
    changes = [*SMALL, "evaluation.shortlist=5", "evaluation.samples=3", "decoding.max_length=9"]
    made = reproduce(TABLE, tiny, out, changes=changes, rows=["MLBL-B"])
    assert (weights.read_bytes(), weights.stat().st_mtime_ns) == before
    (outcome,) = made.outcomes
    assert outcome.evaluation.retrieval.shortlist == 5
    assert "samples:3" in outcome.scores["sampled_bleu1"].signature
    assert outcome.recipe["evaluation"]["shortlist"] == 5
    assert reproduce(TABLE, tiny, out, changes=changes, rows=["MLBL-B"]).outcomes == made.outcomes


def test_another_folder_of_recipes_is_taken_where_it_has_the_row(monkeypatch, tiny, tmp_path):
    names = []

    def noted(name, changes):
        names.append(name)
        raise SettingsError("enough")

    monkeypatch.setattr(plan, "load_recipe", noted)
    for row in ("MLBL-B", "bow-f"):
        with pytest.raises(SettingsError, match="enough"):
            reproduce(TABLE_1, tiny, tmp_path / "out", rows=[row], recipes="kiros2014/adamw")
    assert names == ["kiros2014/adamw/mlbl-b", "kiros2014/bow-f"]
    with pytest.raises(SettingsError, match="no recipes 'kiros'; there are: "):
        reproduce(TABLE_1, tiny, tmp_path / "out", recipes="kiros")


def test_a_budget_shrinks_epochs_and_samples_and_says_so(small, tiny, tmp_path):
    made = reproduce(
        TABLE, tiny, tmp_path / "out", changes=[*SMALL, "evaluation.samples=10"], rows=["MLBL-B"], budget=0.5
    )
    (outcome,) = made.outcomes
    assert outcome.recipe["training"]["epochs"] == 1
    assert outcome.recipe["evaluation"]["samples"] == 5
    both = reproduce(TABLE, tiny, tmp_path / "out", changes=SMALL, rows=["GT2"])
    one, other = names_in(both)  # in the table's order, the budget only where there was one
    assert one.startswith("GT2 (")
    assert "budget" not in one
    assert other.startswith("MLBL-B (")
    assert other.endswith("; budget 0.5)")


def test_a_budget_shrinks_the_second_stage_and_does_not_leave_it_out(small, tiny, tmp_path):
    (outcome,) = reproduce(TABLE, tiny, tmp_path / "out", changes=SMALL, rows=["MLBL-B"], budget=0.1).outcomes
    assert outcome.recipe["training"]["fuse"] == 1
    more = [*SMALL, "training.fuse=0"]
    (outcome,) = reproduce(TABLE, tiny, tmp_path / "other", changes=more, rows=["MLBL-B"], budget=0.1).outcomes
    assert outcome.recipe["training"]["fuse"] == 0


@pytest.mark.parametrize("budget", [0, -1, 1.5])
def test_a_budget_that_is_none(tiny, tmp_path, budget):
    with pytest.raises(SettingsError, match="above 0 and at most 1"):
        reproduce(TABLE, tiny, tmp_path / "out", budget=budget)


def test_rows_and_tables_nobody_knows_are_named(tiny, tmp_path):
    with pytest.raises(SettingsError, match=r"no row 'GT7' in test/table; there are: GT2"):
        reproduce(TABLE, tiny, tmp_path / "out", rows=["GT7"])
    with pytest.raises(SettingsError, match=r"no table 'kiros'; there are: kiros2014/table1"):
        find_table("kiros")


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_row_has_its_recipe_and_figures_we_measure(table):
    known = {column.score for column in table.columns}
    ours = {row.name: row for row in table.rows if row.recipe is not None}
    for row in table.rows:
        assert set(row.published) <= set(table.published)
        assert all(set(values) <= known for values in row.published.values())
        assert all(set(marks) <= set(row.published[data]) for data, marks in row.published_marks.items())
    for row in ours.values():
        (*stages, own) = [load_recipe(f"{table.recipes}/{name}", []) for name in (*row.begins_with, row.recipe)]
        for choice in row.choices:
            load_recipe(f"{table.recipes}/{row.recipe}", list(choice))
        assert all(stage.data.lang == own.data.lang for stage in stages)
        assert set(row.against) <= set(ours)
        assert own.data.synthetic == 0


@pytest.mark.parametrize(
    "table", [calixto2017.TABLE_1, calixto2017.TABLE_2, calixto2016.TABLE_1], ids=lambda table: table.name
)
def test_small_recipes_are_there_for_all_rows_and_differ_from_the_paper_s_in_size_alone(table):
    for row in table.rows:
        for name in (*row.begins_with, *([row.recipe] if row.recipe else [])):
            small, printed = (
                load_recipe(f"{folder}/{name}", []) for folder in (f"{table.recipes}/small", table.recipes)
            )
            assert small.model.name == printed.model.name
            assert small.model.embedding_dim <= printed.model.embedding_dim
            assert small.data == printed.data
            for setting in ("image", "decoder", "initial_state"):
                assert getattr(small.model, setting, None) == getattr(printed.model, setting, None)


def test_recipes_and_tables_print_the_same_figures():
    """Those of a row that begins with another recipe stand with that one."""
    for table in TABLES.values():
        for row in table.rows:
            if row.recipe is None or table.recipes == "kiros2014":
                continue
            name = row.begins_with[-1] if row.begins_with else row.recipe
            assert load_recipe(f"{table.recipes}/{name}", []).published.values == row.published["Multi30k"]


def test_kiros_table_1_is_as_printed():
    rows_of = {row.name: row.published for row in TABLE_1.rows}
    assert list(rows_of["MLBL-B"]["IAPR TC-12"].values()) == [18.0, 34.9, 16.1, 7.9]
    assert list(rows_of["MLBL-F-conv"]["Attributes"].values()) == [113.2, 17.5, 4.2, 1.4]
    assert rows_of["MLBL-B-conv-R"]["Attributes"]["perplexity"] == 154.4


def test_the_tables_of_calixto_are_as_printed():
    rows_of = {row.name: row for row in calixto2017.TABLE_1.rows}
    ours = rows_of["NMT_SRC+IMG"]
    assert list(ours.published["Multi30k"].values()) == [36.5, 55.0, 43.7, 67.3, 66.8, 67.4]
    assert ours.published_marks["Multi30k"] == {"bleu4": "†‡", "meteor": "†", "ter": "†‡"}
    assert (ours.level, rows_of["NMT_SRC+IMG with M30kC"].level) == (0.01, 0.05)
    assert rows_of["Huang et al. m1"].published["Multi30k"] == {"bleu4": 35.1, "meteor": 52.2}
    assert rows_of["NMT_SRC+IMG with WMT'15"].published["Multi30k"]["bleu4"] == 39.0
    rows_of = {row.name: row.published["Multi30k"] for row in calixto2017.TABLE_2.rows}
    assert list(rows_of["NMT with M30kC"].values()) == [42.6, 38.9, 36.1, 67.6]
    assert [row.published["Multi30k"]["meteor"] for row in calixto2016.TABLE_1.rows] == [52.3, 46.4, 44.1, 43.5, 24.7]
