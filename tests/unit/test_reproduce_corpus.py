"""Rows of translation tables that train with the sentence pairs of another collection."""

import itertools

import pytest
from toy_reproduction import NMT, recipe_folder, run_table
from typer.testing import CliRunner

from limner.apps.cli import app
from limner.apps.reproduce import (
    PublishedRow,
    PublishedTable,
    ReproductionSettings,
    RowResult,
    TableColumn,
    find_table,
    run,
)
from limner.apps.reproduce.plan import ReproductionJob, plan_row
from limner.apps.reproduce.results import CorpusRecord
from limner.data.collection import Collection, write_items
from limner.data.examples import Item, ItemSentence
from limner.errors import CollectionError, RunError, SettingsError
from limner.runs.recipe import load_recipe
from limner.runs.records import RunConfig
from limner.runs.trained_model import load_trained_model
from limner.training.loop import train

ONES, MORE = {"eins": "one", "zwei": "two", "drei": "three"}, {"vier": "four", "fünf": "five", "eins": "one"}
BASELINES = ("NMT with more", "Moses (concat) with more")
TABLE = PublishedTable(
    name="toy/table",
    title="A table",
    recipes="toy",
    columns=(
        TableColumn(score="ter", label="TER ↓", digits=1),
        TableColumn(score="perplexity", label="PPL ↓", digits=2),
    ),
    datasets=(),
    rows=(
        PublishedRow(name="NMT", recipe="nmt"),
        PublishedRow(name="Moses (concat) with more", recipe="concat", baselines=BASELINES, corpus="pairs"),
        PublishedRow(name="Moses (LM) with more", recipe="lm", baselines=BASELINES, corpus="sentences"),
        PublishedRow(
            name="NMT with more", recipe="nmt", pretraining=("nmt-more",), baselines=BASELINES, corpus="pretraining"
        ),
        PublishedRow(
            name="Other with more", recipe="same", pretraining=("nmt-more",), baselines=BASELINES, corpus="pretraining"
        ),
    ),
    notes="Notes.",
)
WITH_CORPUS = [row.name for row in TABLE.rows if row.corpus]
RECIPES = {
    "nmt": NMT,
    "same": "base: toy/nmt",
    "nmt-more": "{base: toy/nmt, training: {epochs: 2}}",
    "concat": """
        data: {lang: en, source_lang: de}
        text: {tokenise: space}
        model: {name: phrase_based, tuning: {method: none}}
        training: {metric: ter, metrics: [ter]}
        decoding: {beam_size: 5}
    """,
    "lm": "{base: toy/concat, model: {language_model: all}}",
}
PAIRS, MORE_PAIRS = 3 + 9, 3 + 9 + 27
"""Numbers of pairs in the training splits."""


@pytest.fixture(scope="module", autouse=True)
def _toy(tmp_path_factory):
    with recipe_folder(tmp_path_factory.mktemp("recipes"), RECIPES):
        yield


@pytest.fixture
def trained(monkeypatch):
    """Names of the trained runs, with the collection of each and the run that initialises it."""
    names = []

    def recorded(recipe, collection, run, *, init=None, **more):
        names.append((run.name, collection.path.name, init and init.name))
        return train(recipe, collection, run, init=init, **more)

    monkeypatch.setattr(run, "train", recorded)
    return names


def numbers(words, split, lengths):
    for chosen in itertools.chain(*(itertools.product(words, repeat=length) for length in lengths)):
        german, english = " ".join(chosen), " ".join(map(words.get, chosen))
        yield Item(f"{split} {german}", split, sentences=(ItemSentence("de", german), ItemSentence("en", english)))


def write(folder, *items):
    write_items(folder, itertools.chain(*items))
    return Collection.open(folder)


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    """Numbers to three in German and English, and independent descriptions in English."""
    splits = [numbers(ONES, "train", (1, 2)), numbers(ONES, "val", (1, 2)), numbers(ONES, "test", (1, 2, 3))]
    generated = (ItemSentence("de", "null", 3, "a model"), ItemSentence("en", "zero", 3))
    alone = Item("alone", "train", sentences=(ItemSentence("en", "a number"), *generated))
    return write(tmp_path_factory.mktemp("counting") / "small", *splits, [alone])


@pytest.fixture(scope="module")
def more(tmp_path_factory):
    """A corpus of other numbers; some ids are those of the collection, and other splits are not used."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "more")


def write_corpus(folder):
    return write(folder, numbers(MORE, "train", (1, 2, 3)), numbers(MORE, "test", (4,)))


@pytest.fixture(scope="module")
def made(counting, more, tmp_path_factory):
    """The toy table, all rows."""
    return run_table(TABLE, counting, tmp_path_factory.mktemp("made") / "out", corpus=more.path)


def facts(made, name):
    return RunConfig.load(made.markdown.parent / "runs" / name / "config.json").provenance


# Rows


def test_models_are_pre_trained_on_the_corpus_and_continue_on_the_collection(made, counting):
    stage, run, other = (facts(made, name) for name in ("nmt-more", "nmt-after-nmt-more", "same-after-nmt-more"))
    assert stage["training_sentences"] == MORE_PAIRS
    assert run["training_sentences"] == other["training_sentences"] == PAIRS
    assert run["init_sha256"] == other["init_sha256"]
    assert run["collection_fingerprint"] == counting.fingerprint()
    vocabulary = load_trained_model(made.markdown.parent / "runs" / "nmt-after-nmt-more").source.tokenizer.entries
    assert set(MORE) <= set(vocabulary) and "zwei" not in vocabulary  # that of the preceding stage


def test_phrase_based_rows_add_the_pairs_or_the_target_sentences(made, counting):
    concat, lm = facts(made, "concat"), facts(made, "lm")
    assert (concat["training_sentences"], lm["training_sentences"]) == (PAIRS + MORE_PAIRS, PAIRS)
    assert concat["phrase_pairs"] > lm["phrase_pairs"]
    runs = made.markdown.parent / "runs"
    assert {"four", "five"} <= set(load_trained_model(runs / "concat").tokenizer.entries)
    plain = train(load_recipe("toy/concat", []), counting, runs.parent / "elsewhere" / "plain")
    assert lm["language_model_ngrams"] > RunConfig.load(plain / "config.json").provenance["language_model_ngrams"]


def test_derived_collections_have_the_sentences_of_both(made, counting, more):
    folder = made.markdown.parent / "with-corpus"
    pretraining, pairs, sentences = (Collection.open(folder / use) for use in ("pretraining", "pairs", "sentences"))
    assert pretraining.splits() == {"val": 12, "test": 39, "train": MORE_PAIRS}
    assert pairs.splits() == sentences.splits() == {"train": PAIRS + MORE_PAIRS, "val": 12, "test": 39}
    added = [item for item in sentences.items("train") if item.id.startswith("corpus:")]
    assert {one.lang for item in added for one in item.sentences} == {"en"}
    assert sorted(item.texts("en") for item in added) == sorted(item.texts("en") for item in more.items("train"))
    texts = {text for derived in (pairs, sentences) for item in derived.items() for text in item.texts("en")}
    assert not {"a number", "zero"} & texts  # rows with a corpus do not use the independent descriptions


def test_results_record_the_corpus_and_are_evaluated_on_the_collection(made, counting, more):
    record = CorpusRecord(name="more", fingerprint=more.fingerprint())
    assert [result.corpus for result in made.results] == [None, *[record] * 4]
    assert {result.evaluation.fingerprint for result in made.results} == {counting.fingerprint()}
    assert {len(result.evaluation.items) for result in made.results} == {39}
    assert "| NMT with more (corpus more) |" in made.markdown.read_text()
    assert "- marks of NMT with more: ‡ significantly better than Moses (concat) with more, p < 0.05" in (
        made.markdown.read_text()
    ).replace("† significantly better than NMT with more, ", "")


def test_finished_rows_are_kept_and_other_seeds_use_the_derived_collection(made, counting, more, trained):
    out, before = made.markdown.parent, made.markdown.read_text()
    assert run_table(TABLE, counting, out, corpus=more.path).markdown.read_text() == before
    # The finished rows are shown without a corpus.
    assert run_table(TABLE, counting, out).markdown.read_text() == before
    assert trained == []
    derived = Collection.open(out / "with-corpus" / "pretraining").version
    run_table(TABLE, counting, out, corpus=more.path, rows=["NMT with more"], seeds=2)
    assert trained == [("nmt-more-seed2", "pretraining", None), ("nmt-after-nmt-more-seed2", "small", "nmt-more-seed2")]
    assert Collection.open(out / "with-corpus" / "pretraining").version == derived
    (out / "rows" / "nmt-with-more-seed2.json").unlink()


def test_rows_with_a_corpus_are_left_out_without_one(counting, tmp_path, trained):
    assert [result.row for result in run_table(TABLE, counting, tmp_path / "out").results] == ["NMT"]
    assert trained == [("nmt", "small", None)]


# Errors before the first training run


@pytest.mark.parametrize("name", WITH_CORPUS)
def test_a_row_that_needs_a_corpus_names_the_option(counting, tmp_path, name):
    with pytest.raises(SettingsError, match=r"trains with the sentence pairs of another collection: add --corpus DIR"):
        run_table(TABLE, counting, tmp_path / "out", rows=[name])
    assert not (tmp_path / "out").exists()


def test_a_corpus_that_no_row_uses_is_refused(counting, more, tmp_path):
    table = TABLE.model_copy(update={"rows": TABLE.rows[:1]})
    with pytest.raises(SettingsError, match=r"--corpus .*more: no selected row of toy/table trains with it; leave it"):
        run_table(table, counting, tmp_path / "out", corpus=more.path)
    with pytest.raises(SettingsError, match=r"no selected row of toy/table trains with it"):
        run_table(TABLE, counting, tmp_path / "out", rows=[TABLE.rows[0].name], corpus=more.path)


def test_the_corpus_is_checked_before_the_first_training(counting, tmp_path, trained):
    french = [Item("1", "train", sentences=(ItemSentence("de", "vier"), ItemSentence("fr", "quatre")))]
    wrong, later = write(tmp_path / "french", french), write(tmp_path / "later", numbers(MORE, "test", (1,)))
    for row in WITH_CORPUS:
        with pytest.raises(
            SettingsError, match=r"french: expected sentences in 'de' with translations in 'en' in split"
        ):
            run_table(TABLE, counting, tmp_path / "out", rows=["NMT", row], corpus=wrong.path)
    with pytest.raises(CollectionError, match=r"later: no items in split 'train'"):
        run_table(TABLE, counting, tmp_path / "out", corpus=later.path)
    with pytest.raises(CollectionError, match=r"none: this folder does not exist"):
        run_table(TABLE, counting, tmp_path / "out", corpus=tmp_path / "none")
    assert trained == []
    assert not (tmp_path / "out" / "rows").exists()


def test_another_corpus_is_refused(made, counting, tmp_path, trained):
    out, other = made.markdown.parent, write(tmp_path / "other", numbers(MORE, "train", (1, 2)))
    was, expected = r"was made with corpus 'more' \(fingerprint \w{12}\)", r"expected corpus 'other' .*--corpus"
    for name, file in zip(WITH_CORPUS, ("moses-concat", "moses-lm", "nmt", "other"), strict=True):
        with pytest.raises(RunError, match=rf"{file}-with-more\.json: {was}, {expected}"):
            run_table(TABLE, counting, out, corpus=other.path, rows=[name])
    stored = out / "rows" / "other-with-more.json"
    result = RowResult.load(stored)
    try:
        stored.unlink()
        with pytest.raises(RunError, match=rf"derived\.json: {was}, {expected}"):
            run_table(TABLE, counting, out, corpus=other.path, rows=["Other with more"])
        with pytest.raises(RunError, match=r"derived\.json: made from another collection, split or languages"):
            renamed, splits = write_corpus(tmp_path / "renamed"), ["data.train=test", "data.test=train"]
            run_table(TABLE, counting, out, corpus=renamed.path, rows=["Other with more"], overrides=splits)
    finally:
        result.save(stored)
    assert trained == []


# The rows of the paper

WMT_RUNS = ("nmt-wmt", "nmt-after-nmt-wmt")


def test_the_rows_of_wmt_15_are_planned(tmp_path, counting):
    table = find_table("calixto2017/table1")
    for folder in (None, "calixto2017/small"):
        settings = ReproductionSettings.parse({"recipes": folder, "overrides": ["features.tables=[grid]"]})
        job = ReproductionJob(table, counting, tmp_path, settings, "", lambda *report: None, counting)
        plans = {row.name: plan_row(row, job).alternatives[0] for row in table.rows if row.corpus}
        runs = {name: [(one.run.name, one.corpus) for one in sequence] for name, sequence in plans.items()}
        stage = ("nmt-wmt", "pretraining")
        assert runs == {
            "PBSMT (concat) with WMT'15": [("pbsmt-concat-wmt", "pairs")],
            "PBSMT (LM) with WMT'15": [("pbsmt-lm-wmt", "sentences")],
            "NMT with WMT'15": [stage, ("nmt-after-nmt-wmt", None)],
            "NMT_SRC+IMG with WMT'15": [stage, ("src-img-after-nmt-wmt", None)],
        }
        stage, image = plans["NMT_SRC+IMG with WMT'15"]
        assert (stage.recipe.features.tables, image.recipe.features.tables) == ((), ("grid",))
        assert (stage.recipe.training.epochs, stage.recipe.model.image) == (7, ())
        assert image.recipe.training.epochs > 7


def test_a_row_of_wmt_15_is_reproduced_by_one_command(tmp_path):
    german = {value: key for key, value in (ONES | MORE).items()}
    splits = [numbers(german, "train", (1,)), numbers(german, "val", (1,)), numbers(german, "test", (1,))]
    collection, corpus = write(tmp_path / "small", *splits), write(tmp_path / "wmt", numbers(german, "train", (2,)))
    changes = ["training.epochs=1", "decoding.max_length=5"]
    command = ["reproduce", "calixto2017/table1", "--recipes", "calixto2017/small", "--row", "NMT with WMT'15"]
    command += ["--collection", str(collection.path), "--out", str(tmp_path / "out"), *changes]
    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, SettingsError) and "add --corpus DIR" in str(refused.exception)
    done = CliRunner().invoke(app, [*command, "--corpus", str(corpus.path)])
    assert done.exit_code == 0, done.output
    assert f"| NMT with WMT'15 (calixto2017/small; {'; '.join(changes)}; corpus wmt) |" in done.output
    stage, run = (RunConfig.load(tmp_path / "out" / "runs" / name / "config.json") for name in WMT_RUNS)
    assert [one.provenance["training_sentences"] for one in (stage, run)] == [25, 5]
