"""Reproduction of translation tables: seeds, significance marks, pre-trained rows and rows without a recipe."""

import itertools
import json
import logging
import shutil
import statistics
from functools import partial

import pytest
from toy_reproduction import NMT, recipe_folder, run_table

from limner.apps.reproduce import PublishedRow, PublishedTable, RowResult, TableColumn, results, run
from limner.apps.reproduce.render import to_markdown
from limner.apps.reproduce.results import TableComparison, compare_rows, significance_marks
from limner.data.collection import Collection, write_items
from limner.data.examples import Item, ItemSentence
from limner.errors import RunError, SettingsError
from limner.evaluation.compare import compare
from limner.evaluation.comparison import ComparisonSettings
from limner.metrics import score_sentences
from limner.metrics.significance import holm
from limner.runs.evaluations import EvaluatedItem, Evaluation
from limner.runs.recipe import load_recipe
from limner.runs.records import RunConfig
from limner.training.loop import train

WORDS = {"eins": "one", "zwei": "two", "drei": "three"}
COLUMNS = (
    TableColumn(score="ter", label="TER ↓", digits=1),
    TableColumn(score="chrf3", label="chrF3 ↑", digits=1),
    TableColumn(score="perplexity", label="PPL ↓", digits=2),
)
BASELINES = ("Idle", "NMT")
TABLE = PublishedTable(
    name="toy/table",
    title="A table",
    recipes="toy",
    columns=COLUMNS,
    datasets=("Theirs",),
    rows=(
        PublishedRow(name="Idle", recipe="idle", published={"Theirs": {"ter": 46.7}}, baselines=BASELINES, level=0.01),
        PublishedRow(
            name="Moses", published={"Theirs": {"ter": 45.1, "chrf3": 67.4}}, published_marks={"Theirs": {"ter": "†"}}
        ),
        PublishedRow(name="NMT", recipe="nmt", baselines=BASELINES, level=0.01),
        PublishedRow(name="The same", recipe="same", baselines=BASELINES, level=0.01),
        PublishedRow(name="NMT, more", recipe="nmt", pretraining=("nmt-bt",)),
    ),
    notes="Notes.",
)
RECIPES = {
    "nmt": NMT.replace("epochs: 1", "epochs: 3"),
    "idle": "{base: toy/nmt, training: {epochs: 1, optimizer: {name: sgd, lr: 1.0e-9}}}",
    "same": "base: toy/nmt",
    "nmt-bt": "{base: toy/nmt, data: {synthetic: 0.5}, training: {epochs: 2}}",
    "back": "{base: toy/nmt, data: {lang: de, source_lang: en}, training: {epochs: 20}}",
}


@pytest.fixture(scope="module", autouse=True)
def _toy(tmp_path_factory):
    """Use few trials of the significance tests."""
    with recipe_folder(tmp_path_factory.mktemp("recipes"), RECIPES), pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "ComparisonSettings", partial(ComparisonSettings, trials=400))
        yield


@pytest.fixture
def done(monkeypatch):
    """Record the trained runs with the runs that initialise them; count evaluations and comparisons."""
    counts = {"train": [], "evaluate": 0, "compare_evaluations": 0}

    def trained(recipe, collection, run, *, init=None, **more):
        counts["train"].append((run.name, init and init.name))
        return train(recipe, collection, run, init=init, **more)

    monkeypatch.setattr(run, "train", trained)
    for module, name in ((run, "evaluate"), (results, "compare_evaluations")):
        real = getattr(module, name)

        def counted(*given, real=real, name=name, **more):
            counts[name] += 1
            return real(*given, **more)

        monkeypatch.setattr(module, name, counted)
    return counts


def numbers(split, lengths, generated_by=""):
    for words in itertools.chain(*(itertools.product(WORDS, repeat=length) for length in lengths)):
        german, english = " ".join(words), " ".join(map(WORDS.get, words))
        pair = (ItemSentence("de", german, generated_by=generated_by), ItemSentence("en", english))
        yield Item(f"{split} {german}{generated_by}", split, sentences=pair)


def write(folder, *more):
    write_items(folder, [*numbers("train", (1, 2, 3)), *numbers("val", (1, 2)), *numbers("test", (1, 2, 3)), *more])
    return Collection.open(folder)


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    """Numbers in German and English, with some back-translated German ones."""
    return write(tmp_path_factory.mktemp("counting"), *numbers("train", (1, 2), "runs/back"))


@pytest.fixture(scope="module")
def made(counting, tmp_path_factory):
    """The toy table, with two seeds."""
    return run_table(TABLE, counting, tmp_path_factory.mktemp("made") / "out", seeds=2)


@pytest.fixture
def copied(made, tmp_path):
    """A copy of the folder of the toy table, which a test may change."""
    return shutil.copytree(made.markdown.parent, tmp_path / "copied")


def cells_of(markdown):
    """Cells by the heading of their row."""
    table = itertools.takewhile(lambda line: line.startswith("|"), markdown.splitlines()[4:])
    return {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in table}


def plain(made):
    return {row["row"]: row for row in json.loads(made.json.read_text())["rows"]}


# Rows


def test_a_row_without_a_recipe_is_rendered(made):
    cells = cells_of(made.markdown.read_text())
    names = ["Idle (2 seeds)", "Moses", "NMT (2 seeds)", "The same (2 seeds)", "NMT, more (2 seeds)"]
    assert list(cells) == names
    assert cells["Moses"] == ["–", "–", "–", "45.1†", "67.4"]
    assert cells["Idle (2 seeds)"][3:] == ["46.7", "–"]
    assert set(plain(made)["Moses"]) == {"row", "other_authors", "published", "published_marks"}
    assert [result.row for result in made.results[::2]] == ["Idle", "NMT", "The same", "NMT, more"]


def test_rows_of_other_authors_are_marked(made):
    rows = [row.model_copy(update={"other_authors": row.name != "Idle"}) for row in TABLE.rows]
    cited = TABLE.model_copy(update={"rows": tuple(rows)})
    names = list(cells_of(to_markdown(cited, made.results, TableComparison())))
    assert names[:3] == ["Idle (2 seeds)", "Moses (other authors)", "NMT (other authors; 2 seeds)"]


def test_the_runs_of_a_table_are_compared_as_any_other(made):
    """The evaluation of a row is in its run directory, where `limner evaluate` writes it."""
    runs = made.markdown.parent / "runs"
    comparison = compare(
        [[runs / "idle", runs / "idle-seed2"], [runs / "nmt", runs / "nmt-seed2"]],
        settings=ComparisonSettings(metrics=("ter",), trials=400),
    )
    ours = [result.scores["ter"].value for result in made.results if result.row == "NMT"]
    assert comparison.score("nmt (2 runs)", "ter").values == pytest.approx(ours)


def test_hypotheses_are_evaluated_by_the_metrics_of_the_table(made):
    first = made.results[0]
    hypotheses = [item.tokens for item in first.evaluation.items]
    references = [list(item.reference_tokens) for item in first.evaluation.items]
    for score in score_sentences(hypotheses, references, ["ter", "chrf3"]):
        assert first.scores[score.name].value == score.value
    assert f"- ter: `{first.scores['ter'].signature}`" in made.markdown.read_text()


def test_scores_are_means_over_the_seeds(made):
    one, other = (result.scores["perplexity"].value for result in made.results if result.row == "NMT")
    assert one != other
    mean, std = statistics.mean([one, other]), statistics.stdev([one, other])
    assert cells_of(made.markdown.read_text())["NMT (2 seeds)"][2] == f"{mean:.2f} ± {std:.2f}"
    row = plain(made)["NMT"]
    assert [seed["seed"] for seed in row["seeds"]] == [1, 2]
    assert [seed["run"] for seed in row["seeds"]] == ["runs/nmt", "runs/nmt-seed2"]
    assert [seed["scores"]["perplexity"] for seed in row["seeds"]] == [one, other]
    assert {score["name"]: score["value"] for score in row["scores"]}["perplexity"] == pytest.approx(mean)


def test_a_row_is_initialised_from_its_preceding_stage(made, counting):
    runs = made.markdown.parent / "runs"
    facts = RunConfig.load(runs / "nmt-after-nmt-bt" / "config.json").provenance
    assert facts["init"].startswith(f"{runs / 'nmt-bt'}: ")
    assert facts["training_sentences"] == 39
    assert RunConfig.load(runs / "nmt-bt" / "config.json").provenance["training_sentences"] == 39 + 12
    result = next(result for result in made.results if result.row == "NMT, more")
    assert result.recipe["data"]["synthetic"] == 0
    assert [(stage["data"]["synthetic"], stage["training"]["seed"]) for stage in result.pretraining] == [(0.5, 1)]
    assert RunConfig.load(runs / "nmt-bt-seed2" / "config.json").recipe["training"]["seed"] == 2
    both = [RunConfig.load(runs / name / "config.json").provenance for name in ("nmt-bt", "nmt-after-nmt-bt")]
    assert result.seconds == pytest.approx(sum(float(one["seconds"]) for one in both), abs=0.11)


def test_finished_seeds_are_kept_and_further_seeds_are_added(copied, counting, done):
    before = (copied / "table.md").read_text()
    assert run_table(TABLE, counting, copied, seeds=2).markdown.read_text() == before
    assert run_table(TABLE, counting, copied).markdown.read_text() == before  # all stored seeds are rendered
    assert done == {"train": [], "evaluate": 0, "compare_evaluations": 0}
    more = run_table(TABLE, counting, copied, seeds=3, rows=["NMT, more"])
    assert done["train"] == [("nmt-bt-seed3", None), ("nmt-after-nmt-bt-seed3", "nmt-bt-seed3")]
    assert list(cells_of(more.markdown.read_text()))[-2:] == ["The same (2 seeds)", "NMT, more (3 seeds)"]


@pytest.mark.parametrize(
    ("p", "adjusted", "level", "marks"),
    [
        (0.004, 0.008, 0.01, "†"),
        (0.01, 0.02, 0.01, ""),  # the level of the row, not .05
        (0.01, 0.02, 0.05, "†"),
        (0.004, 0.04, 0.01, ""),  # the adjusted p
    ],
)
def test_a_row_is_marked_by_its_own_level_and_the_adjusted_p(p, adjusted, level, marks):
    row = PublishedRow(name="NMT", recipe="nmt", baselines=BASELINES, level=level)
    better = {"metric": "ter", "difference": -1.0, "p": p, "adjusted_p": adjusted, "interval": (-2.0, 0.0)} | {
        "over_runs": False
    }
    pair = {"rows": ("Idle", "NMT"), "digest": "", "signature": ""}
    compared = TableComparison.model_validate(
        {"pairs": [{**pair, "contrasts": [{"system": "NMT", "baseline": "Idle", **better}]}]}
    )
    assert significance_marks(row, "ter", compared) == marks
    second = row.model_copy(update={"baselines": ("Other", "Idle")})
    assert significance_marks(second, "ter", compared) == marks.replace("†", "‡")


def test_a_reproduction_interrupted_between_stages_is_resumed(counting, tmp_path, done, monkeypatch):
    trained = run.train

    def stopped(recipe, collection, run, **more):
        if run.name == "nmt-after-nmt-bt":
            raise KeyboardInterrupt
        return trained(recipe, collection, run, **more)

    with monkeypatch.context() as patch:
        patch.setattr(run, "train", stopped)
        with pytest.raises(KeyboardInterrupt):
            run_table(TABLE, counting, tmp_path / "out", rows=["NMT, more"], budget=0.1)
    weights = tmp_path / "out" / "runs" / "nmt-bt" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    (result,) = run_table(TABLE, counting, tmp_path / "out", rows=["NMT, more"], budget=0.1).results
    assert weights.stat().st_mtime_ns == before
    assert [stage["training"]["epochs"] for stage in (*result.pretraining, result.recipe)] == [1, 1]


def test_rows_are_initialised_from_a_given_run(made, counting, tmp_path, done):
    elsewhere = made.markdown.parent / "runs" / "nmt"
    reproduction = run_table(TABLE, counting, tmp_path / "out", rows=["Idle"], init=elsewhere)
    (idle,) = reproduction.results
    learned = next(result for result in made.results if result.row == "NMT")
    assert done["train"] == [("idle", "nmt")]
    assert idle.scores["perplexity"].value == pytest.approx(learned.scores["perplexity"].value, rel=1e-3)
    assert "Idle (initialised from nmt)" in cells_of(reproduction.markdown.read_text())
    initial, trained = idle.initialised_from, RunConfig.load(elsewhere / "config.json").provenance
    assert (initial.command, initial.seconds) == (trained["command"], trained["seconds"])
    run_table(TABLE, counting, tmp_path / "out", rows=["Idle"], init=elsewhere)
    for init, expected in ((None, "random weights"), (elsewhere.with_name("same-seed2"), "run 'same-seed2'")):
        with pytest.raises(RunError, match=rf"idle\.json: was initialised from run 'nmt' .*, expected {expected}"):
            run_table(TABLE, counting, tmp_path / "out", rows=["Idle"], init=init)
    assert len(done["train"]) == 1


# Errors before the first training run


@pytest.mark.parametrize("option", ["init", "back_translator"])
def test_a_named_run_that_does_not_exist_is_an_error_with_a_remedy(described, tmp_path, done, option):
    asked, nowhere = {**ONE_EPOCH, option: tmp_path / "nowhere"}, tmp_path / "nowhere"
    with pytest.raises(RunError, match=f"^{nowhere}: no such run directory; check the path, or train one"):
        run_table(REVERSED, described, tmp_path / "out", **asked)
    nowhere.mkdir()
    with pytest.raises(RunError, match=r"nowhere: expected a run directory .*, found no config\.json"):
        run_table(REVERSED, described, tmp_path / "out", **asked)
    assert done["train"] == []


def test_a_seed_with_other_settings_is_rejected(copied, counting, done):
    (copied / "rows" / "nmt.json").unlink()
    with pytest.raises(RunError, match=r"nmt-seed2\.json: made with other settings"):
        run_table(TABLE, counting, copied, rows=["NMT"], overrides=["decoding.beam_size=2"])
    with pytest.raises(RunError, match=r"nmt-more\.json: made with other settings"):  # only the preceding stage differs
        run_table(changed("NMT, more", pretraining=("same",)), counting, copied, rows=["NMT, more"])
    assert done["train"] == []


def changed(name, **values):
    rows = [row.model_copy(update=values if row.name == name else {}) for row in TABLE.rows]
    return TABLE.model_copy(update={"rows": tuple(rows)})


@pytest.fixture
def described(tmp_path):
    """Numbers in both languages, and some in English alone, as the independent descriptions of task 2."""
    alone = [
        Item(f"alone {word}", "train", sentences=(ItemSentence("en", f"{word} {word} {word} {word}"),))
        for word in WORDS.values()
    ]
    return write(tmp_path / "described", *alone)


REVERSED = TABLE.model_copy(update={"reverse": "back"})


def test_source_sentences_are_generated_in_a_derived_collection(described, tmp_path, done):
    before, rows, out = described.fingerprint(), ["NMT", "NMT, more"], tmp_path / "out"
    made = run_table(REVERSED, described, out, rows=rows)
    assert done["train"] == [("nmt", None), ("back", None), ("nmt-bt", None), ("nmt-after-nmt-bt", "nmt-bt")]
    assert Collection.open(described.path).fingerprint() == before
    derived = Collection.open(out / "back-translated")
    generated = [one for item in derived.items() for one in item.sentences if one.generated_by]
    assert {one.lang for one in generated} == {"de"} and 0 < len(generated) <= 3
    assert {one.generated_by.partition(":")[0] for one in generated} == {"back"}
    plain, more = made.results
    assert plain.evaluation.fingerprint == more.evaluation.fingerprint == before
    assert (plain.back_translated_by, more.back_translated_by) == (None, generated[0].generated_by)
    runs = [RunConfig.load(out / "runs" / name / "config.json") for name in ("back", "nmt-bt", "nmt-after-nmt-bt")]
    assert more.seconds == pytest.approx(sum(float(one.provenance["seconds"]) for one in runs), abs=0.11)
    done["train"].clear()
    run_table(REVERSED, described, out, rows=rows)
    assert done["train"] == []
    run_table(REVERSED, described, out, rows=["NMT, more"], seeds=2)
    assert [name for name, _ in done["train"]] == ["back", "nmt-bt-seed2", "nmt-after-nmt-bt-seed2"]  # back is finished
    assert Collection.open(out / "back-translated").fingerprint() == derived.fingerprint()


@pytest.fixture(scope="module")
def back(counting, tmp_path_factory):
    """A run that translates English to German."""
    folder = tmp_path_factory.mktemp("back") / "back"
    train(load_recipe("toy/back", ["training.epochs=20"]), counting, folder)
    return folder


ONE_EPOCH = {"rows": ["NMT, more"], "overrides": ["training.epochs=1"]}


def test_a_run_of_the_opposite_direction_can_be_given(described, back, tmp_path, done):
    out, asked = tmp_path / "out", {**ONE_EPOCH, "back_translator": back}
    result = run_table(TABLE, described, out, **asked).results[0]
    assert str(result.back_translated_by).startswith("back:")
    assert [name for name, _ in done["train"]] == ["nmt-bt", "nmt-after-nmt-bt"]
    with pytest.raises(SettingsError, match=r"nmt-bt: translates de to en, expected en to de"):
        run_table(TABLE, described, tmp_path / "third", **{**asked, "back_translator": out / "runs" / "nmt-bt"})
    write_items(described.path, list(numbers("test", (4,))))
    (out / "rows" / "nmt-more.json").unlink()
    with pytest.raises(RunError, match=r"derived\.json: made from another collection; choose another --out"):
        run_table(TABLE, Collection.open(described.path), out, **asked)


def test_a_model_that_completes_no_translation_is_named(described, back, tmp_path):
    asked = {"rows": ["NMT, more"], "overrides": ["training.epochs=1", "decoding.max_length=1"]}
    with pytest.raises(RunError, match=r"runs/back: none of its translations of the descriptions is complete"):
        run_table(REVERSED, described, tmp_path / "out", **asked)


def test_an_interrupted_copy_is_made_again(described, back, tmp_path):
    unfinished = tmp_path / "out" / "back-translated"
    write_items(unfinished, list(numbers("train", (1,))))  # without its record, which is written last
    run_table(TABLE, described, tmp_path / "out", **ONE_EPOCH, back_translator=back)
    assert len(Collection.open(unfinished)) == len(described)


def test_missing_back_translated_sentences(tmp_path, done):
    people = write(tmp_path / "people")
    with pytest.raises(SettingsError, match=r"data\.synthetic=0\.5 needs generated .*--back-translator RUN"):
        run_table(TABLE, people, tmp_path / "out")
    with pytest.raises(SettingsError, match=r"no sentence in 'en' without a translation in 'de'; import the indep"):
        run_table(REVERSED, people, tmp_path / "out")
    assert done["train"] == []


# Significance marks

SENTENCES = [f"a house with {number} windows stands at the lake" for number in range(40)]
WRONG = [sentence.replace("stands", "stood") for sentence in SENTENCES]


def result_of(row, hypotheses, seed=1, references=SENTENCES):
    """Create a result from hypotheses."""
    items = [
        EvaluatedItem(id=str(place), references=(right,), hypothesis=text, tokens=text, reference_tokens=(right,))
        for place, (text, right) in enumerate(zip(hypotheses, references, strict=True))
    ]
    scores = score_sentences(hypotheses, [[right] for right in references], ["ter", "chrf3"])
    facts = {"split": "test", "collection": "houses", "fingerprint": "f", "command": "", "seconds": 1}
    recipe = {"data": {"lang": "en"}, "training": {"seed": seed}}
    evaluation = Evaluation(items=tuple(items), scores=tuple(scores), **facts)
    run = {"recipe": recipe, "recipe_folder": "toy", "run": f"runs/{row}{seed}", "image_control": "right", "seconds": 1}
    return RowResult(table=TABLE.name, row=row, evaluation=evaluation, **run)


def compared_rows(results, folder):
    return compare_rows(TABLE, results, folder, lambda part, done, total: None)


def marked(results, folder):
    """Our cells of the sentence metrics, by row."""
    cells = cells_of(to_markdown(TABLE, results, compared_rows(results, folder)))
    return {name.split(" (")[0]: row[:2] for name, row in cells.items() if row[0] != "–"}


def test_better_rows_are_marked_and_equal_rows_are_not(tmp_path):
    cells = marked([result_of("Idle", WRONG), result_of("NMT", SENTENCES), result_of("The same", SENTENCES)], tmp_path)
    assert cells["NMT"] == cells["The same"] == ["0.0 †", "100.0 †"]
    assert not {"†", "‡"} & set("".join(cells["Idle"]))
    cells = marked([result_of("Idle", SENTENCES), result_of("NMT", WRONG), result_of("The same", SENTENCES)], tmp_path)
    assert cells["Idle"] == cells["The same"] == ["0.0 ‡", "100.0 ‡"]
    assert not {"†", "‡"} & set("".join(cells["NMT"]))


def test_without_the_first_baseline_the_second_keeps_its_mark(tmp_path):
    cells = marked([result_of("NMT", WRONG), result_of("The same", SENTENCES)], tmp_path)
    assert cells["The same"] == ["0.0 ‡", "100.0 ‡"]
    few = [*SENTENCES[:2], *WRONG[2:]]  # two of forty sentences are not significant
    assert "†" not in "".join(marked([result_of("Idle", WRONG), result_of("NMT", few)], tmp_path)["NMT"])


def test_the_legend_explains_the_marks(tmp_path):
    results = [result_of("Idle", WRONG), result_of("NMT", SENTENCES)]
    compared = compared_rows(results, tmp_path)
    assert compared == TableComparison.load(tmp_path / "significance.json")
    rendered = to_markdown(TABLE, results, compared)
    assert "- marks of NMT: † significantly better than Idle, p < 0.01\n" in rendered
    assert "- test: `ar:400|samples:1000|seed:1|segments:40|correction:none`\n" in rendered
    (pair,) = compared.pairs
    here, there = pair.contrasts_of("NMT"), pair.contrasts_of("Idle")
    assert {(one.system, one.baseline) for one in here} == {("NMT", "Idle")}
    assert [one.metric for one in here] == ["ter", "chrf3"]
    assert [one.difference for one in there] == [-one.difference for one in here]
    assert [one.p for one in there] == [one.p for one in here] == [1 / 401, 1 / 401]


def test_a_damaged_file_of_tests_is_named_with_its_remedy_and_written_again(tmp_path):
    file, results = tmp_path / "significance.json", [result_of("Idle", WRONG), result_of("NMT", SENTENCES)]
    for text in ("{", '{"pairs": 1}'):
        file.write_text(text)
        with pytest.raises(RunError, match=r"significance\.json: .*; remove it; 'limner reproduce' writes it again$"):
            TableComparison.load(file)
        for one in (results[:1], results):  # without and with a pair
            compared_rows(one, tmp_path)
            TableComparison.load(file)


def test_p_values_are_adjusted_for_the_pairs_of_the_table(tmp_path):
    results = [result_of("Idle", WRONG), result_of("NMT", SENTENCES), result_of("The same", SENTENCES)]
    for _ in ("computed", "read from the cache"):
        compared = compared_rows(results, tmp_path)
        ter = [one for pair in compared.pairs for one in pair.contrasts if one.metric == "ter"]
        assert [one.adjusted_p for one in ter] == holm([one.p for one in ter]) and len(ter) == 3
    assert "|holm:3`" in to_markdown(TABLE, results, compared)


def test_rows_are_compared_by_all_their_seeds(tmp_path):
    idle = [result_of("Idle", outputs, seed) for seed, outputs in ((1, WRONG), (2, [*SENTENCES[:1], *WRONG[1:]]))]
    compared = compared_rows([*idle, result_of("NMT", SENTENCES)], tmp_path)
    assert compared.pairs[0].signature.startswith("hierarchical-t:cochran-cox|runs:2+1|")
    both = [*idle, *(result_of("NMT", SENTENCES, seed) for seed in (1, 2))]
    assert marked(both, tmp_path)["NMT"] == ["0.0 ± 0.0 †", "100.0 ± 0.0 †"]


def test_rows_with_different_sentences_are_not_compared(tmp_path, caplog):
    results = [result_of("Idle", WRONG), result_of("NMT", SENTENCES[1:], references=SENTENCES[1:])]
    with caplog.at_level(logging.WARNING):
        assert marked(results, tmp_path)["NMT"] == ["0.0", "100.0"]
    assert "'NMT' is not compared with 'Idle': " in caplog.text
