"""Published tables of captioning papers: figures, data sets, plans and lists."""

import dataclasses
import hashlib
import itertools
import json
import shlex

import pytest
from typer.testing import CliRunner

from limner.apps.cli import app, build_commands
from limner.apps.reproduce import (
    PublishedRow,
    PublishedTable,
    ReproductionSettings,
    TableColumn,
    find_table,
    plan,
    published_tables,
    reproduce_table,
    run,
)
from limner.apps.reproduce.plan import ReproductionJob, plan_row, table_of_collection
from limner.apps.reproduce.render import list_tables, listing_text, open_collection, properties_plain
from limner.apps.reproduce.run import MARGINAL_IMAGES
from limner.apps.reproduce.tables import DATA_SETS, PAPERS, property_tables, read_paper, recognise_ids
from limner.data.collection import Collection, write_items
from limner.errors import CollectionError, FeatureError, RunError, SettingsError
from limner.runs.evaluations import Evaluation
from limner.runs.recipe import load_recipe, recipe_names

FLICKR8K, FLICKR30K, COCO, IAPR, VISUAL_GENOME = DATA_SETS
CAPTIONING = [table for table in published_tables().values() if table.trained_on]
PARTS = [(table, dataset) for table in CAPTIONING for dataset in table.trained_on]
WITH_FIGURES = [(table, dataset) for table, dataset in PARTS if dataset.name in table.datasets]
IDS = {
    FLICKR8K: ["1000268201_693b08cb0e", "997722733_0cb5439472"],
    FLICKR30K: ["1000092795", "99804383"],
    COCO: ["COCO_val2014_000000391895", "000000522418"],
    IAPR: ["1000", "40011", "25"],
    VISUAL_GENOME: ["2315351", "1592811", "1"],
}


def job(table, collection, out, **settings):
    parsed = ReproductionSettings.parse(settings)
    return ReproductionJob(table, collection, out, parsed, "test", lambda stage, done, total: None)


def renamed(tiny, folder, ids):
    """The sentences of the tiny collection with the ids of a data set."""
    items = zip(itertools.islice(tiny.items(), len(ids)), ids, strict=True)
    write_items(folder, [dataclasses.replace(item, id=id_, image=None) for item, id_ in items])
    return Collection.open(folder)


@pytest.mark.parametrize("name, beam", [("vinyals2015/table1", 20), ("vinyals2015/table2", 20), ("xu2015/table1", 5)])
def test_tables_of_sentences_decode_with_the_beam_that_their_notes_state(name, beam):
    table = find_table(name).for_dataset(find_table(name).trained_on[0])
    assert f"decoded with a beam of {beam}" in table.notes
    for row in table.rows:
        if row.recipe is not None:
            decoding = load_recipe(f"{table.recipes}/{row.recipe}", list(row.evaluation)).decoding
            assert decoding.beam_size == beam
            assert decoding.length_penalty == 0 or f"length penalty {decoding.length_penalty}" in table.notes


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("6.92 0.482", "row 'a': 3 columns, but 2 scores"),
        ("6.92 0.482 - 1", "row 'a': 3 columns, but 4 scores"),
        ("6.92 O.482 -", "could not convert"),
        ("6.92 0.482 -", None),
    ],
)
def test_scores_are_read_in_the_order_of_the_columns_and_on_our_scale(printed, message):
    columns = [
        {"score": "perplexity", "label": "PPL", "digits": 2},
        {"score": "bleu1", "label": "B-1", "digits": 3, "scale": 0.01},
        {"score": "bleu2", "label": "B-2", "digits": 3},
    ]
    row = {"name": "a", "published": {"Theirs": printed, "Others": "- 0.5†‡ -"}}
    values = {"name": "a/b", "title": "", "recipes": "a", "columns": columns, "rows": [row], "notes": ""}
    if message is not None:
        with pytest.raises(SettingsError, match=message):
            PublishedTable.parse(values)
        return
    (made,) = PublishedTable.parse(values).rows
    assert made.published == {"Theirs": {"perplexity": 6.92, "bleu1": 48.2}, "Others": {"bleu1": 50.0}}
    assert made.published_marks == {"Others": {"bleu1": "†‡"}}


def test_a_file_of_tables_with_an_unknown_key_or_data_set_is_refused():
    table = find_table("mao2015/table2").model_dump() | {"trained_on": ["iapr"]}
    assert PublishedTable.parse(table) == find_table("mao2015/table2")
    for change, message in (
        ({"row": []}, "row: unknown key; did you mean 'rows'"),
        ({"trained_on": ["mscoco"]}, r"trained_on\.0: expected a data set, one of flickr8k"),
        (
            {"columns": [{"score": "bleu1", "lable": "B-1", "digits": 1}]},
            r"columns\.0\.lable: unknown key; did you mean",
        ),
        ({"columns": 3, "rows": None}, r"columns: .*rows: "),
    ):
        with pytest.raises(SettingsError, match=message) as error:
            PublishedTable.parse(table | change)
        assert "\n" not in str(error.value)
    assert not [name for name in recipe_names() if name.endswith("tables")]


@pytest.mark.parametrize(("table", "dataset"), WITH_FIGURES, ids=lambda one: getattr(one, "key", None) or one.name)
def test_recipes_have_the_published_figures_of_their_rows(table, dataset):
    if table.name == "mao2015/table7":
        return  # other test images than those of the recipe's figures
    single = table.name in ("mao2015/table1", "mao2015/table2", "mao2015/table3")
    for row in table.for_dataset(dataset).rows:
        if row.recipe and not row.changes and (single or row.features != ("alexnet",)):
            published = load_recipe(f"{table.recipes}/{row.recipe}", []).published.values
            own = {score: value for score, value in row.published[dataset.name].items() if score in published}
            assert own, row.name
            tolerance = 0.5 if table.name == "mao2015/table8" else 0
            assert all(abs(published[score] - value) <= tolerance for score, value in own.items())


@pytest.mark.parametrize(("table", "dataset"), PARTS, ids=lambda one: getattr(one, "key", None) or one.name)
def test_every_row_is_planned(table, dataset, tiny, tmp_path):
    """Rows that differ in decoding alone share a run; all other rows have their own."""
    part = table_of_collection(table, tiny, dataset.key)
    assert dataset.name in part.datasets or part.datasets == table.datasets
    changes = [] if table.recipes == "kiros2014" else ["features.tables=[colour]"]
    plans = [plan_row(row, job(part, tiny, tmp_path, overrides=changes)) for row in part.rows if row.recipe]
    assert plans
    runs = {one.alternatives[0][-1].run: one.alternatives[0][-1].recipe for one in plans}
    recipes = {one.alternatives[0][-1].recipe.model_dump_json() for one in plans}
    assert len(runs) >= len(recipes)
    assert len({one.result_path for one in plans}) == len(plans)


@pytest.mark.parametrize(("dataset", "ids"), IDS.items(), ids=[one.key for one in IDS])
def test_a_data_set_is_recognised_by_the_names_of_its_images(dataset, ids):
    assert recognise_ids(ids, True) is dataset
    assert recognise_ids([*ids * 10, "drawing"], True) is dataset
    assert recognise_ids([*ids, "drawing"] if len(ids) < 9 else [], True) is None
    assert recognise_ids([], True) is None
    assert recognise_ids([str(number) for number in range(900)], False) is None  # numbers without images: any data


@pytest.mark.parametrize(
    ("table", "ids", "message"),
    [
        ("mao2015/table1", IDS[FLICKR8K], r"items of Flickr8k; .* needs IAPR TC-12 .*limner import iapr"),
        ("mao2015/table5", IDS[IAPR], r"needs Flickr30k .* or MS COCO .*--dataset flickr30k or coco"),
        ("johnson2016/table1", ["a", "b"], r"ids of another form; .* needs Visual Genome"),
    ],
)
def test_a_collection_of_other_data_is_rejected_with_the_data_that_is_needed(table, ids, message, tiny, tmp_path):
    collection = renamed(tiny, tmp_path / "other", ids)
    with pytest.raises(SettingsError, match=message):
        reproduce_table(find_table(table), collection, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_data_set_selects_recipes_and_figures(tiny, tmp_path):
    table = find_table("mao2015/table4")
    part = table_of_collection(table, renamed(tiny, tmp_path / "coco", IDS[COCO]), None)
    assert part.datasets == ("MS COCO",)
    assert [row.name for row in part.rows] == ["Random", "DeepVS-RCNN", "Ours-m-RNN-VggNet"]
    assert part.rows[-1].recipe == "coco"
    assert find_table("vinyals2015/table2").for_dataset(FLICKR8K).datasets == ("PASCAL (transfer)", "Flickr8k", "SBU")
    with pytest.raises(SettingsError, match=r"data set 'iapr' of mao2015/table4: expected one of flickr30k, coco"):
        table_of_collection(table, tiny, "iapr")
    with pytest.raises(SettingsError, match="the same for every collection"):
        table_of_collection(find_table("kiros2014/table1"), tiny, "iapr")


def test_the_features_of_the_paper_are_preferred(tiny, tmp_path, monkeypatch):
    part = find_table("mao2015/table3").for_dataset(FLICKR8K)
    (row,) = (row for row in part.rows if row.recipe)
    with pytest.raises(FeatureError, match=r"mao2015/table3 needs the feature table 'alexnet'.*or 'mobilenet_v2'"):
        plan_row(row, job(part, tiny, tmp_path))
    for existing, expected, name in (
        (("alexnet", "mobilenet_v2"), "alexnet", "flickr8k-alexnet"),
        (("mobilenet_v2",), "mobilenet_v2", "flickr8k"),
    ):
        monkeypatch.setattr(Collection, "features", lambda self, existing=existing: existing)
        planned = plan_row(row, job(part, tiny, tmp_path))
        assert planned.recipes[0].features.tables == (expected,)
        assert planned.alternatives[0][-1].run.name == name


def test_stages_that_read_features_read_the_table_of_their_row(tiny, tmp_path, monkeypatch):
    """The weights of a stage fit the last training only where both read features of one shape."""
    xu, calixto = find_table("xu2015/table1").for_dataset(FLICKR8K), find_table("calixto2017/table1")
    (hard,) = (row for row in xu.rows if row.pretraining)
    for tables in (("vgg19.grid", "lite2.grid"), ("lite2.grid",)):
        monkeypatch.setattr(Collection, "features", lambda self, tables=tables: tables)
        stage, last = plan_row(hard, job(xu, tiny, tmp_path)).alternatives[0]
        assert stage.recipe.features.tables == last.recipe.features.tables == tables[:1]
    (after_text,) = (row for row in calixto.rows if row.name == "NMT_SRC+IMG with WMT'15")
    row = after_text.model_copy(update={"features": ("lite2.grid",)})
    stage, last = plan_row(row, job(calixto, tiny, tmp_path)).alternatives[0]
    assert (stage.recipe.features.tables, last.recipe.features.tables) == ((), ("lite2.grid",))


SMALL = ("text.min_count=1", "evaluation.skip_words=0", "evaluation.samples=0", "evaluation.shortlist=3")
SMALL += ("decoding.max_length=8", "training.epochs=1", "training.train_on_val_epochs=0")
SMALL_TABLE = PublishedTable(
    name="test/captions",
    title="Captions",
    recipes="kiros2014",
    columns=(
        TableColumn(score="bleu1", label="B-1", digits=1),
        TableColumn(score="image_to_text_r1", label="R@1", digits=1),
    ),
    datasets=("Theirs",),
    rows=(
        PublishedRow(name="greedy", recipe="mlbl-b", features=("vgg19",)),
        PublishedRow(name="beam", recipe="mlbl-b", features=("vgg19",), evaluation=("decoding.beam_size=2",)),
        PublishedRow(name="text", recipe="lbl", changes=("model.word_dim=5",)),
    ),
    notes="Notes.",
)


def test_a_table_with_evaluation_settings_is_made(tiny, tmp_path, monkeypatch):
    overrides = {"kiros2014/mlbl-b": ["features.tables=[colour]", "model.word_dim=6"]}
    monkeypatch.setattr(
        plan, "load_recipe", lambda name, changes: load_recipe(name, [*overrides.get(name, []), *changes])
    )
    calls = {"train": [], "evaluate": []}
    for name in calls:
        real = getattr(run, name)

        def recorded(*given, real=real, name=name, **more):
            calls[name].append((given, more))
            return real(*given, **more)

        monkeypatch.setattr(run, name, recorded)
    settings = ReproductionSettings(overrides=SMALL)
    made = reproduce_table(SMALL_TABLE, tiny, tmp_path / "out", settings=settings)
    assert sorted(path.name for path in (tmp_path / "out" / "runs").iterdir()) == ["lbl-5", "mlbl-b"]
    options = [more["options"] for _, more in calls["evaluate"]]
    assert [one.decoding.beam_size for one in options][:2] == [1, 2]
    assert all(one.retrieval and one.marginal_images == MARGINAL_IMAGES for one in options)
    lines = [line.split("|") for line in made.markdown.read_text().splitlines()[4:7]]
    assert all("features: colour" in line[1] for line in lines[:2])
    assert lines[0][3] != " – " and lines[2][3] == " – "
    assert {result.table for result in made.results} == {"test/captions"}
    with pytest.raises(RunError, match=r"is a row of test/captions; choose another --out"):
        reproduce_table(
            SMALL_TABLE.model_copy(update={"name": "test/other"}), tiny, tmp_path / "out", settings=settings
        )


def test_every_evaluation_of_a_run_has_a_file_of_its_own_in_its_directory(tiny, tmp_path, monkeypatch):
    """Shuffled images and other decoding do not replace the evaluation that `limner compare` reads."""
    overrides = ["features.tables=[colour]", "model.word_dim=6"]
    monkeypatch.setattr(plan, "load_recipe", lambda name, changes: load_recipe(name, [*overrides, *changes]))
    shuffled = PublishedRow(name="shuffled", recipe="mlbl-b", image_control="shuffled", features=("vgg19",))
    table = SMALL_TABLE.model_copy(update={"rows": (*SMALL_TABLE.rows[:2], shuffled)})
    settings = ReproductionSettings(overrides=SMALL)
    made = reproduce_table(table, tiny, tmp_path, settings=settings)
    stored = {path.stem: Evaluation.load(path) for path in (tmp_path / "runs/mlbl-b/evaluation").iterdir()}
    assert stored == {result.evaluation.name: result.evaluation for result in made.results}
    greedy, beam, other = made.results
    assert stored["test"] == greedy.evaluation and beam.evaluation.name.startswith("test-beam")
    assert other.evaluation.name == "test-images_shuffled"


def test_properties_of_our_recipes_are_those_of_the_paper():
    table = property_tables()["mao2015/table6"]
    assert all(len(row.published) == len(table.columns) for row in table.rows)
    for row in properties_plain(table)["rows"]:
        assert row["properties"] in (["–", "–"], row["published"])


def test_tables_are_listed_with_the_data_that_they_need(tmp_path):
    text = listing_text(list_tables(None))
    assert all(name in text for name in (*published_tables(), *property_tables()))
    assert (
        "data: IAPR TC-12 ('limner import iapr SOURCE COLLECTION'); or any other collection with --dataset iapr\n"
        in text
    )
    with pytest.raises(SettingsError, match="nothing/table1"):
        list_tables("nothing/table1")
    table = find_table("xu2015/table1")
    with pytest.raises(SettingsError, match=r"expected --collection, the folder of Flickr8k .* or MS COCO"):
        open_collection(table, None)
    with pytest.raises(CollectionError, match=r"does not exist.*xu2015/table1 needs Flickr8k"):
        open_collection(table, tmp_path / "nowhere")
    with pytest.raises(
        SettingsError, match=r"the folder of IAPR TC-12 .* or any other collection with images and English"
    ):
        open_collection(find_table("kiros2014/table1"), None)


def test_lists_and_properties_are_printed_without_a_collection():
    runner = CliRunner()
    listed = runner.invoke(app, ["reproduce", "mao2015/table7", "--list"])
    assert listed.exit_code == 0
    for line in (
        "rows:\n    m-RNN-greedy-c5 | features vgg16 or vgg19 or mobilenet_v2 | 0.668 0.488 0.342 0.239 ",
        "0.221 (MS COCO)\n",
        "published only: the authors' own, without a recipe:\n    m-RNN-greedy-c40 | 0.845 ",
    ):
        assert line in listed.output
    translations = runner.invoke(app, ["reproduce", "calixto2017/table2", "--list"]).output
    assert (
        "NMT_SRC+IMG | de to en | features resnet50_res4f.grid | 40.6†‡ 37.5†‡ 37.7†‡ 65.2 (Multi30k)" in translations
    )
    properties = runner.invoke(app, ["reproduce", "mao2015/table6", "--list"]).output
    assert "rows:\n    Our m-RNN | 256 No\n" in properties
    printed = runner.invoke(app, ["reproduce", "mao2015/table6"])
    assert "| NIC (other authors) | 512 | Yes | 512 | Yes |" in printed.output
    assert "| Our m-RNN | 256 |" in printed.output and "rows, systems of other authors:\n    NIC | 512" in properties
    assert "NIC | features lite2 | 20 " in runner.invoke(app, ["reproduce", "vinyals2015/table4", "--list"]).output
    assert '"published"' in runner.invoke(app, ["reproduce", "mao2015/table6", "--json"]).output


def test_the_commands_of_figures_have_options_tables_and_recipes_that_exist():
    figures = [figure for paper in PAPERS for figure in read_paper(paper).figures]
    commands = [shlex.split(command) for figure in figures for command in figure.commands]
    known = build_commands()
    for program, name, *words in commands:
        assert program == "limner"
        known[name].make_context(name, [*words])  # raises a usage error for options that do not exist
        if name == "train":
            load_recipe(words[0], [])
        if name == "reproduce":
            find_table(words[0])
    assert all(figure.commands or figure.note for figure in figures)
    text = listing_text(list_tables(None))
    assert all(f", {figure.number}: {figure.title}\n" in text for figure in figures)
    assert list_tables("mao2015/table7")["figures"] == []


def test_a_row_has_the_languages_of_its_preceding_stages():
    """A stage inherits the vocabularies of the one before it, also with the recipes of another folder."""
    tables = published_tables().values()
    parts = [part for table in tables for part in [table.for_dataset(data) for data in table.trained_on] or [table]]
    rows = [(part, row) for part in parts for row in part.rows if row.pretraining]
    folders = {name.rpartition("/")[0] for name in recipe_names()}
    checked = 0
    for table, row in rows:
        for folder in (folder for folder in folders if folder.startswith(table.recipes)):
            names = [f"{folder}/{name}" for name in (row.recipe, *row.pretraining)]
            data = [load_recipe(name, []).data for name in names if name in recipe_names()]
            assert len({(each.source_lang, each.lang) for each in data}) == 1
            checked += len(data) > 1
    assert checked > 2


TABLES = published_tables()
DIGESTS = {
    "calixto2016": "3aa731eda4ac878f",
    "calixto2017": "5defd580f600d53b",
    "johnson2016": "1da3cd87ce4177fc",
    "kiros2014": "4092adfea676caf6",
    "lecture": "7e5b4db1386910f7",
    "mao2015": "fa257a809d5c55e7",
    "vinyals2015": "ad76d0abd0c5f611",
    "xu2015": "651d1eaf5a533d40",
}
"""Digests of the rows, figures and marks of all tables of a paper, as they were compared with its text."""
PRE_TRAINED = {1: ("NMT with M30kC", "PBSMT (LM) with M30kC"), 2: ("NMT with M30kC", "PBSMT with M30kC")}
"""NMT and SMT baselines of the pre-trained rows of Tables 1 and 2 of Calixto et al. (2017)."""


def digest(paper):
    rows = {
        name: [[row.name, row.published, row.published_marks, row.other_authors] for row in table.rows]
        for name, table in TABLES.items()
        if name.startswith(f"{paper}/")
    }
    rows |= {
        name: [[row.name, row.published] for row in table.rows]
        for name, table in property_tables().items()
        if name.startswith(f"{paper}/")
    }
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]


def test_every_paper_was_compared():
    assert DIGESTS.keys() == {name.partition("/")[0] for name in TABLES}


@pytest.mark.parametrize("paper", DIGESTS)
def test_rows_have_the_figures_and_marks_of_the_paper(paper):
    assert digest(paper) == DIGESTS[paper], "compare the changed figures with the paper, then store the new digest"


def test_marks_and_levels_are_those_of_the_captions():
    """Calixto et al. (2017): † over the NMT baseline, ‡ over the SMT baseline, both with the same training data.

    Table 1: p < 0.01 without pre-training, p < 0.05 with it. Table 2: p < 0.01.
    """
    for number in (1, 2):
        for row in TABLES[f"calixto2017/table{number}"].rows:
            is_pre_trained = " with " in row.name
            assert row.level == (0.05 if number == 1 and is_pre_trained else 0.01), row.name
            if "WMT'15" in row.name:
                assert row.baselines == ("NMT with WMT'15", "PBSMT (concat) with WMT'15")
            else:
                assert row.baselines == (PRE_TRAINED[number] if is_pre_trained else ("NMT", "PBSMT")), row.name
