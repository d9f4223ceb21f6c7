"""Published tables of translations: seeds, marks of significance, rows that begin with others, rows only printed."""

import itertools
import json
import logging
import statistics
from functools import partial

import pytest

from limner.data.collection import Collection, write_items
from limner.data.examples import Item, Sentence
from limner.errors import RunError, SettingsError
from limner.evaluation.compare import ComparisonSettings
from limner.metrics import score_sentences
from limner.reproduce import Outcome, Row, Table, reproduce, run, significance
from limner.reproduce.render import to_markdown
from limner.reproduce.significance import ComparedTable, compare_rows
from limner.reproduce.tables import Column
from limner.runs.records import EvaluatedItem, Evaluation, RunConfig
from limner.training.loop import train

WORDS = {"eins": "one", "zwei": "two", "drei": "three"}
COLUMNS = (Column("ter", "TER ↓", 1), Column("chrf3", "chrF3 ↑", 1), Column("perplexity", "PPL ↓", 2))
AGAINST = ("Idle", "NMT")
TABLE = Table(
    name="toy/table",
    title="A table",
    recipes="toy",
    columns=COLUMNS,
    published=("Theirs",),
    rows=(
        Row("Idle", "idle", published={"Theirs": {"ter": 46.7}}, against=AGAINST, level=0.01),
        Row(
            "Moses", None, published={"Theirs": {"ter": 45.1, "chrf3": 67.4}}, published_marks={"Theirs": {"ter": "†"}}
        ),
        Row("NMT", "nmt", against=AGAINST, level=0.01),
        Row("The same", "same", against=AGAINST, level=0.01),
        Row("NMT, more", "nmt", begins_with=("nmt-bt",)),
    ),
    notes="Notes.",
)
RECIPES = {
    "nmt": """
        data: {lang: en, source_lang: de}
        text: {tokenise: space}
        model: {name: nmt, embedding_dim: 12, hidden_dim: 16, attention_dim: 12, readout_dim: 12}
        training:
          epochs: 3
          batch_size: 4
          optimizer: {name: adam, lr: 0.03}
          precision: fp32
          metrics: []
        decoding: {max_length: 6}
    """,
    "idle": "{base: toy/nmt, training: {epochs: 1, optimizer: {name: sgd, lr: 1.0e-9}}}",
    "same": "base: toy/nmt",
    "nmt-bt": "{base: toy/nmt, data: {synthetic: 0.5}, training: {epochs: 2}}",
}


@pytest.fixture(scope="module", autouse=True)
def _toy(tmp_path_factory):
    """A folder of recipes of its own, and tests of few trials."""
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "toy").mkdir()
    for name, text in RECIPES.items():
        (folder / "toy" / f"{name}.yaml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("limner.runs.recipe.recipe_folder", lambda: folder)
        patch.setattr(significance, "ComparisonSettings", partial(ComparisonSettings, trials=200))
        yield


@pytest.fixture
def done(monkeypatch):
    """The runs that are trained, with what each begins with, and how many are measured and pairs compared."""
    found = {"train": [], "evaluate": 0, "compare_evaluations": 0}

    def trained(recipe, collection, run, *, init=None, **more):
        found["train"].append((run.name, init and init.name))
        return train(recipe, collection, run, init=init, **more)

    monkeypatch.setattr(run, "train", trained)
    for module, name in ((run, "evaluate"), (significance, "compare_evaluations")):
        real = getattr(module, name)

        def counted(*given, real=real, name=name, **more):
            found[name] += 1
            return real(*given, **more)

        monkeypatch.setattr(module, name, counted)
    return found


def numbers(split, lengths, generated_by=""):
    for words in itertools.chain(*(itertools.product(WORDS, repeat=length) for length in lengths)):
        german, english = " ".join(words), " ".join(map(WORDS.get, words))
        pair = (Sentence("de", german, generated_by=generated_by), Sentence("en", english))
        yield Item(f"{split} {german}{generated_by}", split, sentences=pair)


def write(folder, *more):
    write_items(folder, [*numbers("train", (1, 2, 3)), *numbers("val", (1, 2)), *numbers("test", (1, 2, 3)), *more])
    return Collection.open(folder)


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    """Numbers in German and English, some of the German ones by a model."""
    return write(tmp_path_factory.mktemp("counting"), *numbers("train", (1, 2), "runs/back"))


@pytest.fixture(scope="module")
def made(counting, tmp_path_factory):
    """The toy table, with two seeds."""
    return reproduce(TABLE, counting, tmp_path_factory.mktemp("made") / "out", seeds=2)


def cells_of(markdown):
    """Cells by the name of their row."""
    table = itertools.takewhile(lambda line: line.startswith("|"), markdown.splitlines()[4:])
    return {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in table}


def plain(made):
    return {row["row"]: row for row in json.loads(made.json.read_text())["rows"]}


# Rows


def test_a_row_that_is_only_printed_stands_among_ours(made):
    cells = cells_of(made.markdown.read_text())
    names = ["Idle (2 seeds)", "Moses", "NMT (2 seeds)", "The same (2 seeds)", "NMT, more (2 seeds)"]
    assert list(cells) == names
    assert cells["Moses"] == ["–", "–", "–", "45.1 †", "67.4"]
    assert cells["Idle (2 seeds)"][3:] == ["46.7", "–"]
    assert set(plain(made)["Moses"]) == {"row", "published", "published_marks"}
    assert [outcome.row for outcome in made.outcomes[::2]] == ["Idle", "NMT", "The same", "NMT, more"]


def test_a_row_that_is_only_printed_cannot_be_made(counting, tmp_path):
    with pytest.raises(SettingsError, match=r"row 'Moses' of toy/table is shown as printed.*Idle, NMT, The same"):
        reproduce(TABLE, counting, tmp_path / "out", rows=["Moses"])


def test_what_systems_say_is_measured_by_the_table_s_metrics(made):
    first = made.outcomes[0]
    said = [item.tokens for item in first.evaluation.items]
    references = [list(item.reference_tokens) for item in first.evaluation.items]
    for score in score_sentences(said, references, ["ter", "chrf3"]):
        assert first.scores[score.name].value == score.value
    assert f"- ter: `{first.scores['ter'].signature}`" in made.markdown.read_text()


def test_figures_are_means_over_the_seeds(made):
    one, other = (outcome.scores["perplexity"].value for outcome in made.outcomes if outcome.row == "NMT")
    assert one != other
    mean, spread = statistics.mean([one, other]), statistics.stdev([one, other])
    assert cells_of(made.markdown.read_text())["NMT (2 seeds)"][2] == f"{mean:.2f} ± {spread:.2f}"
    row = plain(made)["NMT"]
    assert [seed["seed"] for seed in row["seeds"]] == [1, 2]
    assert [seed["run"] for seed in row["seeds"]] == ["runs/nmt", "runs/nmt-seed2"]
    assert [seed["scores"]["perplexity"] for seed in row["seeds"]] == [one, other]
    assert {score["name"]: score["value"] for score in row["scores"]}["perplexity"] == pytest.approx(mean)


def test_a_row_begins_with_another_one_s_weights_and_words(made, counting):
    runs = made.markdown.parent / "runs"
    facts = RunConfig.load(runs / "nmt-after-nmt-bt" / "config.json").provenance
    assert facts["init"].startswith(f"{runs / 'nmt-bt'}: ")
    assert facts["training_sentences"] == 39
    assert RunConfig.load(runs / "nmt-bt" / "config.json").provenance["training_sentences"] == 39 + 12
    outcome = next(outcome for outcome in made.outcomes if outcome.row == "NMT, more")
    assert outcome.recipe["data"]["synthetic"] == 0
    assert [(stage["data"]["synthetic"], stage["training"]["seed"]) for stage in outcome.stages] == [(0.5, 1)]
    seconds = [
        float(RunConfig.load(runs / name / "config.json").provenance["seconds"])
        for name in ("nmt-bt", "nmt-after-nmt-bt")
    ]
    assert outcome.seconds == pytest.approx(sum(seconds), abs=0.11)


def test_what_is_done_is_not_done_again_and_a_further_seed_is_added(made, counting, done):
    before = made.markdown.read_text()
    out = made.markdown.parent
    assert reproduce(TABLE, counting, out, seeds=2).markdown.read_text() == before
    assert reproduce(TABLE, counting, out).markdown.read_text() == before  # all seeds that are there are shown
    assert done == {"train": [], "evaluate": 0, "compare_evaluations": 0}
    more = reproduce(TABLE, counting, out, seeds=3, rows=["NMT, more"])
    assert done["train"] == [("nmt-bt-seed3", None), ("nmt-after-nmt-bt-seed3", "nmt-bt-seed3")]
    assert list(cells_of(more.markdown.read_text()))[-2:] == ["The same (2 seeds)", "NMT, more (3 seeds)"]
    for path in (out / "rows").glob("*-seed3.json"):
        path.unlink()


def test_it_goes_on_between_a_stage_and_its_row(counting, tmp_path, done, monkeypatch):
    trained = run.train

    def stopped(recipe, collection, run, **more):
        if run.name == "nmt-after-nmt-bt":
            raise KeyboardInterrupt
        return trained(recipe, collection, run, **more)

    with monkeypatch.context() as patch:
        patch.setattr(run, "train", stopped)
        with pytest.raises(KeyboardInterrupt):
            reproduce(TABLE, counting, tmp_path / "out", rows=["NMT, more"], budget=0.1)
    weights = tmp_path / "out" / "runs" / "nmt-bt" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    (outcome,) = reproduce(TABLE, counting, tmp_path / "out", rows=["NMT, more"], budget=0.1).outcomes
    assert weights.stat().st_mtime_ns == before
    assert [stage["training"]["epochs"] for stage in (*outcome.stages, outcome.recipe)] == [1, 1]


def test_rows_begin_with_a_run_from_elsewhere(made, counting, tmp_path, done):
    elsewhere = made.markdown.parent / "runs" / "nmt"
    begun = reproduce(TABLE, counting, tmp_path / "out", rows=["Idle"], init=elsewhere)
    (idle,) = begun.outcomes
    learned = next(outcome for outcome in made.outcomes if outcome.row == "NMT")
    assert done["train"] == [("idle", "nmt")]
    assert idle.scores["perplexity"].value == pytest.approx(learned.scores["perplexity"].value, rel=1e-3)
    assert "Idle (begun with nmt)" in cells_of(begun.markdown.read_text())
    reproduce(TABLE, counting, tmp_path / "out", rows=["Idle"], init=elsewhere)
    for init, told in ((None, "fresh weights"), (elsewhere.with_name("same-seed2"), "run 'same-seed2'")):
        with pytest.raises(RunError, match=rf"idle\.json: began with run 'nmt' .*, and would now begin with {told}"):
            reproduce(TABLE, counting, tmp_path / "out", rows=["Idle"], init=init)
    assert len(done["train"]) == 1


# What is refused before the first training


def test_a_seed_of_other_settings_is_not_mixed_in(made, counting, done):
    out = made.markdown.parent
    kept = out / "rows" / "nmt.json"
    stored = kept.read_text()
    try:
        kept.unlink()
        with pytest.raises(RunError, match=r"nmt-seed2\.json: made with other settings"):
            reproduce(TABLE, counting, out, rows=["NMT"], changes=["decoding.beam_size=2"])
    finally:
        kept.write_text(stored)
    with pytest.raises(RunError, match=r"nmt-more\.json: made with other settings"):  # of the stage alone
        reproduce(changed("NMT, more", begins_with=("same",)), counting, out, rows=["NMT, more"])
    assert done["train"] == []


def changed(name, **values):
    return TABLE._replace(rows=tuple(row._replace(**values) if row.name == name else row for row in TABLE.rows))


def test_seeds_are_one_or_more(counting, tmp_path):
    with pytest.raises(SettingsError, match="seeds 0: expected"):
        reproduce(TABLE, counting, tmp_path / "out", seeds=0)


def test_back_translated_sentences_must_be_there(tmp_path, done):
    people = write(tmp_path / "people")
    with pytest.raises(SettingsError, match=r"data\.synthetic: 0\.5, and split 'train' .* no source sentence in 'de'"):
        reproduce(TABLE, people, tmp_path / "out")
    assert done["train"] == []


def test_a_row_and_what_it_begins_with_have_the_same_languages(counting, tmp_path, done, monkeypatch):
    other = {**RECIPES, "back": "{base: toy/nmt, data: {lang: de, source_lang: en}}"}
    for name, text in other.items():
        (tmp_path / "toy").mkdir(exist_ok=True)
        (tmp_path / "toy" / f"{name}.yaml").write_text(text)
    monkeypatch.setattr("limner.runs.recipe.recipe_folder", lambda: tmp_path)
    with pytest.raises(
        SettingsError, match=r"'NMT, more': nmt-after-back learns from de to en, and back.* from en to de"
    ):
        reproduce(changed("NMT, more", begins_with=("back",)), counting, tmp_path / "out")
    with pytest.raises(SettingsError, match=r"evaluation\.samples: 2, and of translations nothing is sampled"):
        reproduce(TABLE, counting, tmp_path / "out", changes=["evaluation.samples=2"])
    assert done["train"] == []


# Marks

SENTENCES = [f"a house with {number} windows stands at the lake" for number in range(40)]
WRONG = [sentence.replace("stands", "stood") for sentence in SENTENCES]


def outcome(row, said, seed=1, references=SENTENCES):
    """A row as it may have come out."""
    items = [
        EvaluatedItem(id=str(place), references=(right,), hypothesis=text, tokens=text, reference_tokens=(right,))
        for place, (text, right) in enumerate(zip(said, references, strict=True))
    ]
    scores = score_sentences(said, [[right] for right in references], ["ter", "chrf3"])
    facts = {"split": "test", "collection": "houses", "fingerprint": "f", "command": "", "seconds": 1}
    recipe = {"data": {"lang": "en"}, "training": {"seed": seed}}
    found = Evaluation(items=tuple(items), scores=tuple(scores), **facts)
    return Outcome(row=row, recipe=recipe, run=f"runs/{row}{seed}", pictures="right", seconds=1, evaluation=found)


def marked(outcomes, folder, table=TABLE):
    """Our cells of the metrics, by row."""
    compared = compare_rows(table, outcomes, folder, lambda part, done, total: None)
    cells = cells_of(to_markdown(table, outcomes, compared))
    return {name.split(" (")[0]: row[:2] for name, row in cells.items() if row[0] != "–"}


def test_better_on_every_sentence_is_marked_and_equal_is_not(tmp_path):
    found = marked([outcome("Idle", WRONG), outcome("NMT", SENTENCES), outcome("The same", SENTENCES)], tmp_path)
    assert found["NMT"] == found["The same"] == ["0.0 †", "100.0 †"]
    assert not {"†", "‡"} & set("".join(found["Idle"]))
    found = marked([outcome("Idle", SENTENCES), outcome("NMT", WRONG), outcome("The same", SENTENCES)], tmp_path)
    assert found["Idle"] == found["The same"] == ["0.0 ‡", "100.0 ‡"]
    assert not {"†", "‡"} & set("".join(found["NMT"]))


def test_without_the_first_baseline_the_second_keeps_its_mark(tmp_path):
    assert marked([outcome("NMT", WRONG), outcome("The same", SENTENCES)], tmp_path)["The same"] == ["0.0 ‡", "100.0 ‡"]
    few = [*SENTENCES[:2], *WRONG[2:]]  # two sentences of forty are chance
    assert "†" not in "".join(marked([outcome("Idle", WRONG), outcome("NMT", few)], tmp_path)["NMT"])


def test_the_legend_and_the_record_say_what_the_marks_mean(tmp_path):
    outcomes = [outcome("Idle", WRONG), outcome("NMT", SENTENCES)]
    compared = compare_rows(TABLE, outcomes, tmp_path, lambda part, done, total: None)
    assert compared == ComparedTable.load(tmp_path / "significance.json")
    told = to_markdown(TABLE, outcomes, compared)
    assert "- marks of NMT: † better than Idle, p < 0.01\n" in told
    assert "- test: `ar:200|seed:1|runs:1`\n" in told
    (pair,) = compared.pairs
    here, there = pair.seen_from("NMT"), pair.seen_from("Idle")
    assert [(one.system, one.baseline, one.metric) for one in here] == [
        ("NMT", "Idle", "ter"),
        ("NMT", "Idle", "chrf3"),
    ]
    assert [one.difference for one in there] == [-one.difference for one in here]
    assert [one.p for one in there] == [one.p for one in here] == [1 / 201, 1 / 201]


def test_only_what_changed_is_compared_again(tmp_path, done):
    first, second, third = outcome("Idle", WRONG), outcome("NMT", SENTENCES), outcome("The same", SENTENCES)
    marked([first, second], tmp_path)
    assert done["compare_evaluations"] == 1
    before = marked([first, second, third], tmp_path)
    assert done["compare_evaluations"] == 3
    assert marked([first, second, third], tmp_path) == before
    assert done["compare_evaluations"] == 3
    assert marked([first, second, outcome("The same", WRONG)], tmp_path)["The same"][0][-1:] != "†"
    assert done["compare_evaluations"] == 5


def test_of_rows_of_more_seeds_as_many_are_compared_as_both_have(tmp_path):
    idle = [outcome("Idle", WRONG, seed) for seed in (1, 2)]
    compared = compare_rows(TABLE, [*idle, outcome("NMT", SENTENCES)], tmp_path, lambda part, done, total: None)
    assert compared.pairs[0].signature.endswith("|runs:1")
    both = [*idle, *(outcome("NMT", SENTENCES, seed) for seed in (1, 2))]
    assert marked(both, tmp_path)["NMT"] == ["0.0 ± 0.0 †", "100.0 ± 0.0 †"]


def test_rows_of_different_sentences_are_not_tested_and_the_log_says_why(tmp_path, caplog):
    outcomes = [outcome("Idle", WRONG), outcome("NMT", SENTENCES[1:], references=SENTENCES[1:])]
    with caplog.at_level(logging.WARNING):
        assert marked(outcomes, tmp_path)["NMT"] == ["0.0", "100.0"]
    assert "'NMT' is not tested against 'Idle': " in caplog.text
