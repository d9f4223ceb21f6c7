"""Labels as targets: items, readers, folds, generated reviews and sequences of sounds, classification of new inputs."""

import json
import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import limner
from limner.apps.cli import app
from limner.apps.cli.score import _lines, _record
from limner.data.collection import Collection, write_items
from limner.data.dataset import Examples
from limner.data.examples import Item, ItemSentence
from limner.data.languages import SourceLanguage, TargetLanguage
from limner.data.readers import ReaderOptions, read_source
from limner.errors import CollectionError, MediaError, RunError, SettingsError, TrainingError
from limner.features.encoders.load import load_backbone
from limner.inference.classifier import Classification, StepLabel
from limner.metrics import METRICS
from limner.runs.recipe import load_recipe
from limner.synthetic.reviews import write_review
from limner.synthetic.sounds import SILENCE, SoundSequenceSettings, make_sequence
from limner.text.labels import CELLS, PredictedLabel, cell_centres, write_predictions
from limner.text.tokenizer import Tokenizer
from limner.training.cross_validation import assign_folds

TINY = [
    *("model.word_dim=12", "model.hidden_dim=12", "model.dropout=0", "training.epochs=2", "training.batch_size=32"),
    *("training.schedule={name: constant}", "training.precision=fp32"),
]


def test_labels_are_sentences_of_an_item():
    item = Item(
        "a",
        "train",
        sentences=(ItemSentence("en", "good film", 0), ItemSentence("en", "a film", 1), ItemSentence("de", "Film", 0)),
        label="very good",
        frame_labels=("tone", "no sound"),
        track=((0.0, 0.0, 10.0, 10.0), (90.0, 40.0, 10.0, 10.0)),
        frame_size=(100, 50),
    )
    assert item.texts("label") == ["very_good"]
    assert item.texts("frame_labels") == ["tone no_sound"]
    assert [(source.text, target.text) for source, target in item.pairs("en", "label")] == [
        ("good film", "very_good"),
        ("a film", "very_good"),
    ]
    assert item.positions == [(0.05, 0.1), (0.95, 0.9)]
    (track,) = item.texts("track")
    assert np.abs(cell_centres(track.split()) - item.positions).max() < 1 / CELLS
    assert item.texts("track") == [track]
    assert Item("b", "train").texts("label") == Item("b", "train").texts("track") == []


def test_labels_of_frames_are_stored_with_the_item(tmp_path):
    item = Item("a", "train", label="x", frame_labels=("b", "c"), track=((1.0, 2.0, 3.0, 4.0),), frame_size=(8, 6))
    write_items(tmp_path / "c", [item])
    (stored,) = Collection.open(tmp_path / "c").items()
    assert stored == item
    with pytest.raises(CollectionError, match="frame_labels"):
        write_items(tmp_path / "c", [Item("a", "train", frame_labels=("b", "d"))])


def test_a_split_without_labels_is_an_error_that_says_so(tmp_path):
    write_items(tmp_path / "c", [Item("a", "train", sentences=(ItemSentence("en", "a film"),))])
    settings = load_recipe("lecture/reviews", [])
    tokenizer = Tokenizer.train([], settings.text)
    source = SourceLanguage("en", Tokenizer.train(["a film"], settings.source_text))
    with pytest.raises(TrainingError, match="no item with a label and a sentence in 'en'"):
        Examples.of_split(
            Collection.open(tmp_path / "c"), "train", TargetLanguage("label", tokenizer), None, source=source
        )


def test_tables_of_texts_and_labels(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text('text,label\n"a film, good",pos\na bad film,neg\n')
    result = read_source("csv", table)
    assert [(one.id, one.split, one.label, one.texts("en")) for one in result.items] == [
        ("row-00001", "train", "pos", ["a film, good"]),
        ("row-00002", "train", "neg", ["a bad film"]),
    ]
    lines = tmp_path / "t.jsonl"
    lines.write_text(json.dumps({"text": "ein Film", "label": "pos", "split": "test"}) + "\n")
    (item,) = read_source("jsonl", lines, ReaderOptions(lang="de")).items
    assert (item.split, item.texts("de")) == ("test", ["ein Film"])


def test_folders_of_imdb(tmp_path):
    files = {"train/pos/1_9.txt": "good<br />film", "train/neg/2_1.txt": "bad", "test/pos/3_8.txt": "fine"}
    for name, text in {**files, "train/unsup/4_0.txt": "no label"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    result = read_source("imdb", tmp_path)
    items = {item.id: item for item in result.items}
    assert {(one.split, one.label) for one in result.items} == {("train", "pos"), ("train", "neg"), ("test", "pos")}
    assert items["train/pos/1_9"].texts("en") == ["good film"]
    assert result.tally.skipped == {"texts without a label": 1}
    for split in ("pos", "neg"):
        (tmp_path / "flat" / split).mkdir(parents=True)
        (tmp_path / "flat" / split / "1.txt").write_text(split)
    assert [one.id for one in read_source("imdb", tmp_path / "flat").items] == ["neg/1", "pos/1"]


def test_files_of_rt_polarity(tmp_path):
    (tmp_path / "rt-polarity.pos").write_text("good film\n\nfine film\n")
    (tmp_path / "rt-polarity.neg").write_text("bad film\n")
    result = read_source("rt-polarity", tmp_path)
    labels = [(item.id, item.label) for item in result.items]
    assert labels == [("neg-00001", "neg"), ("pos-00001", "pos"), ("pos-00003", "pos")]
    (tmp_path / "other.neg").write_text("bad\n")
    with pytest.raises(CollectionError, match="of one name"):
        read_source("rt-polarity", tmp_path)


def test_folds_are_disjoint_and_stratified():
    items = [Item(f"{label}{n}", "train", label=label) for label, count in (("a", 40), ("b", 20)) for n in range(count)]
    folds = assign_folds(items, 5, 0.1, seed=1)
    tested = [id for fold in folds for id in fold if fold[id] == "test"]
    assert sorted(tested) == sorted(item.id for item in items)
    for fold in folds:
        assert set(fold) == {item.id for item in items}
        counts = {split: [id[0] for id in fold if fold[id] == split] for split in ("train", "val", "test")}
        assert (counts["test"].count("a"), counts["test"].count("b")) == (8, 4)
        assert len(counts["val"]) == 5 and 0 < counts["val"].count("b") < 5
    assert assign_folds(items[::-1], 5, 0.1, seed=1) == folds != assign_folds(items, 5, 0.1, seed=2)
    with pytest.raises(SettingsError, match="lower --folds"):
        assign_folds(items[:3], 3, 0.1, seed=1)


@pytest.mark.parametrize("share", [0.1, 0.15, 0.25, 0.29, 0.3, 0.4, 0.5])
def test_the_share_of_validation_items_is_that_of_the_setting(share):
    items = [Item(f"{label}{n:03d}", "train", label=label) for label in "ab" for n in range(250)]
    for fold in assign_folds(items, 5, share, seed=1):
        for label in "ab":
            chosen = [id for id, split in fold.items() if split == "val" and id[0] == label]
            assert abs(len(chosen) - 200 * share) < 1
            positions = np.diff([n for n, id in enumerate(x for x in fold if x[0] == label) if fold[id] == "val"])
            assert positions.max() - positions.min() <= 1


@pytest.mark.parametrize("length", [1, 2])
def test_words_and_pairs_of_words_of_reviews_tell_little_of_the_sentiment(length):
    """A naive Bayes classifier of the words or of the pairs of adjacent words stays far below 75 %."""

    def ngrams(split, index):
        text, label = write_review(0, split, index)
        words = text.split()
        return set(zip(*(words[first:] for first in range(length)), strict=False)), label == "positive"

    counts = {True: Counter(), False: Counter()}
    for index in range(4000):
        found, positive = ngrams("train", index)
        counts[positive].update(found)
    correct = 0
    for index in range(1000):
        found, positive = ngrams("test", index)
        odds = sum(math.log((counts[True][one] + 1) / (counts[False][one] + 1)) for one in found)
        correct += (odds > 0) == positive
    assert correct < (560, 700)[length - 1]  # 500 +- 16 by chance
    assert write_review(0, "train", 7) == write_review(0, "train", 7) != write_review(1, "train", 7)


def test_frames_of_sound_sequences_have_the_label_of_their_middle():
    settings = SoundSequenceSettings()
    samples, labels = make_sequence(settings, "train", 3)
    assert len(samples) == 32000 and len(labels) == 62 and labels[0] == SILENCE
    power = np.square(samples[: 62 * 512].reshape(62, 512)).mean(1)
    tones = [row for row, label in zip(power, labels, strict=True) if label in ("tone", "noise", "rising", "falling")]
    silent = [row for row, label in zip(power, labels, strict=True) if label == SILENCE]
    assert np.median(silent) < 1e-3 * np.median(tones)


def test_frames_of_sounds_as_a_grid(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.wav", np.zeros(5 * 512), 16000)
    backbone = load_backbone("logmel:7")
    (spec,) = backbone.specs
    assert (spec.kind, spec.shape, spec.name) == ("grid", (7, 41), "logmel_frames")
    grid = backbone.read(tmp_path / "a.wav")
    assert (grid[:5, -1] == 1).all() and (grid[5:] == 0).all()
    with pytest.raises(MediaError, match="at most 4 frames, found 5"):
        load_backbone("logmel:4").read(tmp_path / "a.wav")


@pytest.fixture(scope="module")
def validated(tmp_path_factory):
    """Result of a cross-validation with two folds of generated reviews, and its folder."""
    folder = tmp_path_factory.mktemp("reviews")
    settings = limner.ReviewSettings(train=120, val=0, test=0)
    reviews = limner.generate_collection(folder / "c", settings)
    recipe = load_recipe("lecture/reviews", TINY)
    chosen = limner.CrossValidationSettings(folds=2)
    return limner.cross_validate(recipe, reviews, folder / "folds", settings=chosen), folder


def test_cross_validation_evaluates_every_item_once(validated):
    result, folder = validated
    (accuracy,) = [score for score in result.scores if score.name == "accuracy"]
    assert accuracy.mean == pytest.approx(np.mean(accuracy.values)) and len(accuracy.values) == 2
    assert accuracy.std == pytest.approx(np.std(accuracy.values, ddof=1))
    tested = [
        item["id"]
        for run in ("fold-1", "fold-2")
        for item in json.loads((folder / "folds" / run / "evaluation" / "test.json").read_text())["items"]
    ]
    assert len(set(tested)) == len(tested) == 120
    again = limner.cross_validate(
        load_recipe("lecture/reviews", TINY), Collection.open(folder / "c"), folder / "folds", settings=result.settings
    )
    assert again.scores == result.scores


def test_perplexity_of_labels_counts_the_labels_alone(validated):
    run = validated[1] / "folds" / "fold-1"
    record = json.loads((run / "evaluation" / "test.json").read_text())
    (score,) = [score for score in record["scores"] if score["name"] == "perplexity"]
    labels = limner.load(run).classify([item["source"] for item in record["items"]])
    pairs = zip(labels, record["items"], strict=True)
    probabilities = [dict(one.steps[0].labels)[item["reference_tokens"][0]] for one, item in pairs]
    assert score["signature"] == "tokens:60|eos:not counted"
    assert score["value"] == pytest.approx(np.exp(-np.log(probabilities).mean()), rel=1e-4)


def test_models_of_a_fold_are_an_ensemble(validated):
    """A further seed for each fold; the accuracy is that of the mean of the probabilities."""
    result, folder = validated
    before = (folder / "folds" / "fold-1" / "evaluation" / "test.json").read_bytes()
    collection = Collection.open(folder / "c")
    settings = result.settings.model_copy(update={"models": 2})
    recipe = load_recipe("lecture/reviews", TINY)
    ensemble = limner.cross_validate(recipe, collection, folder / "folds", settings=settings)
    runs = [Path(run) for run in ensemble.runs]
    assert [run.name for run in runs] == ["fold-1", "fold-1-model-2", "fold-2", "fold-2-model-2"]
    seeds = [json.loads((run / "recipe.json").read_text())["recipe"]["training"]["seed"] for run in runs]
    assert seeds == [1, 2, 1, 2]
    assert (runs[0] / "evaluation" / "test.json").read_bytes() == before
    items = json.loads(before)["items"]
    classifiers = [limner.load(run).classify([item["source"] for item in items]) for run in runs[:2]]
    texts = []
    for both in zip(*classifiers, strict=True):
        mean = {label: (p + dict(both[1].steps[0].labels)[label]) / 2 for label, p in both[0].steps[0].labels}
        texts.append(write_predictions([PredictedLabel(*max(mean.items(), key=lambda pair: pair[1]))]))
    references = [item["reference_tokens"] for item in items]
    metric = METRICS["calibration_error"]
    expected = metric.value(metric.statistics(texts, references).sum(0))
    (error,) = [score for score in ensemble.scores if score.name == "calibration_error"]
    assert error.values[0] == pytest.approx(expected, abs=0.01) != result.scores[2].values[0]
    assert result.scores[2].name == error.name


def test_sentences_of_a_file_or_of_standard_input_are_classified(validated, tmp_path):
    model, texts = ["--model", str(validated[1] / "folds" / "fold-1")], ["the plot is not dull .", "the cast is good ."]

    def run(*arguments, text=None):
        return CliRunner().invoke(app, ["classify", *map(str, arguments), *model], input=text)

    expected = run(*texts).stdout
    assert [line.split("\t")[0] for line in expected.splitlines()] == texts
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    assert run("--file", tmp_path / "texts.txt").stdout == expected
    assert run("--file", "-", text="\r\n".join(texts)).stdout == expected
    for arguments, text, message in [
        ((), None, "nothing to classify"),
        ((texts[0], "--file", "-"), "", "give one or the other"),
        (("--file", "-"), "", "standard input: the file is empty"),
        (("--file", tmp_path / "none.txt"), None, "none.txt: cannot be read"),
    ]:
        with pytest.raises(SettingsError, match=message):
            raise run(*arguments, text=text).exception
    assert run("--file", "-", text="\n".join([*texts, "", " ", ""])).stdout == expected  # blank lines at the end
    result = run("--file", "-", text="\n".join([texts[0], "", texts[1], "a/photo.jpg"]))
    assert (result.exit_code, result.stdout) == (1, expected)
    assert "standard input, line 2: expected a sentence of at least one word" in result.stderr
    assert "standard input, line 4: 'a/photo.jpg': expected a sentence" in result.stderr


def test_a_file_is_no_sentence(validated, tmp_path):
    classifier = limner.load(validated[1] / "folds" / "fold-1")
    (tmp_path / "notes").write_text("the cast is good .")
    for name in ("clip.mp4", "photo.jpg", "noise.wav", str(tmp_path / "notes")):
        with pytest.raises(SettingsError, match=r"expected a sentence, .* give the sentence itself"):
            classifier.classify(["the cast is good .", name])
    good, bad = classifier.classify_each(["the cast is good .", "photo.jpg"])
    assert good == classifier.classify(["the cast is good ."])[0] and isinstance(bad, SettingsError)


def test_a_single_frame_is_printed_with_its_step_if_frames_are_labelled():
    one = Classification((StepLabel((PredictedLabel("c0r0", 0.5),), (0.1, 0.2)),))
    assert list(_lines(one, 1, steps=True)) == [("0", "10.00", "20.00")]
    assert list(_record("a.png", one, 1, steps=True)) == ["input", "steps"]
    one = Classification((StepLabel((PredictedLabel("good", 0.5),)),))
    assert list(_lines(one, 1, steps=False)) == [("good", "0.5000")]
    assert _record("a film", one, 1, steps=False)["label"] == "good"


def test_the_header_on_a_terminal_names_the_columns(validated, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    arguments = ["classify", "the cast is good .", "--model", str(validated[1] / "folds" / "fold-1")]
    app(arguments, standalone_mode=False)
    header, line = capsys.readouterr().out.splitlines()
    assert header.split("\t") == ["input", "label", "probability"] and len(line.split("\t")) == 3


def test_classification_of_new_sentences(validated):
    _, folder = validated
    classifier = limner.load(folder / "folds" / "fold-1")
    one, two = classifier.classify(["the plot is not dull .", "the cast is good ."])
    assert {label for label, _ in one.steps[0].labels} == {"negative", "positive"}
    assert sum(probability for _, probability in two.steps[0].labels) == pytest.approx(1)
    assert one.probability == one.steps[0].labels[0].probability >= 0.5
    assert classifier.classify(["the plot is not dull ."])[0].probability == pytest.approx(one.probability, abs=1e-5)
    with pytest.raises(SettingsError, match="at least one word"):
        classifier.classify([" "])
    with pytest.raises(RunError, match="limner classify"):
        limner.Translator.load(folder / "folds" / "fold-1")
