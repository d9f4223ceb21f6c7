"""Command line: a log-bilinear model learns to describe a folder of audio files (slow: two trainings)."""

import json
import random
import shutil

import pytest
from PIL import Image
from programs import limner as run_command
from programs import run

import limner
from limner.data.collection import Collection
from limner.errors import MediaError
from limner.synthetic.sounds import QUALITIES, SoundSettings
from limner.synthetic.storage import generate_collection

pytestmark = pytest.mark.slow

SETTINGS = SoundSettings(seed=5, train=300, val=20, test=60)
METRIC = ["--metric", "bleu4", "--no-retrieval"]


def write_folder(sounds, folder, shuffled):
    """Audio files in train/, val/ and test/ with their sentences; `shuffled` permutes the sentences."""
    for split in sounds.splits():
        items = sounds.items(split)
        sentences = [item.texts("en") for item in items]
        if shuffled and split != "test":
            random.Random(1).shuffle(sentences)
        (folder / split).mkdir(parents=True)
        for item, texts in zip(items, sentences, strict=True):
            (folder / split / f"{item.id}.wav").hardlink_to(sounds.media_file(item))
            (folder / split / f"{item.id}.txt").write_text("\n".join(texts) + "\n")
    return folder


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    return generate_collection(tmp_path_factory.mktemp("sounds") / "sounds", SETTINGS)


@pytest.fixture(scope="module")
def learned(sounds, tmp_path_factory):
    """Folders with the collection `c` and the run `run`: one with the right sentences, one with shuffled ones."""
    places = {name: tmp_path_factory.mktemp(name) for name in ("right", "shuffled")}
    for name, place in places.items():
        write_folder(sounds, place / "mine", name == "shuffled")
        run_command("import", "audio", place / "mine", place / "c")
        if name == "right":
            run_command("features", place / "c", "--backbone", "logmel")
        else:  # the same sounds, of the same names
            shutil.copytree(places["right"] / "c" / "features", place / "c" / "features")
        run_command("train", "sounds/mlbl-b", "training.epochs=20", "--collection", place / "c", "--out", place / "run")
        run_command("evaluate", "--model", place / "run", "--collection", place / "c", *METRIC)
    return places


def kinds_right(run, sounds):
    """Share of held-out sounds whose description names their kind and no other."""
    evaluation = json.loads((run / "evaluation" / "test.json").read_text())
    output = {item["id"]: set(item["hypothesis"].split()) & set(QUALITIES) for item in evaluation["items"]}
    items = sounds.items("test")
    assert len(output) == len(items) == SETTINGS.test
    return sum(output[f"test/{item.id}"] == {item.label} for item in items) / len(items)


def test_a_model_describes_sounds(learned, sounds):
    # Chance level is a quarter; shuffled training sentences carry no information.
    assert kinds_right(learned["right"] / "run", sounds) >= 0.8
    assert kinds_right(learned["shuffled"] / "run", sounds) < 0.5


def test_new_sounds_are_described(learned, sounds, tmp_path):
    items = sounds.items("test")[:8]
    for item in items:
        (tmp_path / f"{item.id}.wav").hardlink_to(sounds.media_file(item))
    (tmp_path / "notes.txt").write_text("neither a sound nor a picture")
    output = [
        line.split("\t") for line in run_command("describe", tmp_path, "--model", learned["right"] / "run").splitlines()
    ]
    assert [file for file, _ in output] == [str(tmp_path / f"{item.id}.wav") for item in items]
    assert sum(str(item.label) in text for item, (_, text) in zip(items, output, strict=True)) >= 6


def test_a_file_that_is_no_audio_does_not_stop_the_others(learned, sounds, tmp_path):
    (tmp_path / "broken.wav").write_text("no sound")
    good = sounds.media_file(sounds.items("test")[0])
    done = run("describe", tmp_path / "broken.wav", good, "--model", learned["right"] / "run")
    assert done.returncode == 1
    assert "broken.wav: not a readable audio file" in done.stderr
    assert done.stdout.startswith(f"{good}\t")


def test_sounds_are_scored_and_retrieved(learned, sounds):
    scorer = limner.Scorer.load(learned["right"] / "run")
    retriever = limner.Retriever.load(learned["right"] / "run")
    rising, falling = (
        next(sounds.media_file(item) for item in sounds.items("test") if word in item.texts("en")[0])
        for word in ("rising", "falling")
    )
    sentence = "A slow sweep with a rising pitch."
    right, wrong = scorer.score([rising, falling], [sentence] * 2)
    assert right.log_prob > wrong.log_prob + 1
    collection = Collection.open(learned["right"] / "c")
    texts = {item.id: item.texts("en") for item in collection.items("test")}
    result = retriever.retrieve_images("One hears a hissing noise that is loud.", collection, split="test", count=4)
    assert all(one.image.endswith(".wav") for one in result)
    assert sum("noise, hissing" in texts[one.id][0] for one in result) >= 3  # of about 13 among 100
    assert "sweep" in retriever.retrieve_sentences(rising, collection, split="test", count=1)[0].text


def test_an_image_is_refused_by_an_audio_model(learned, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "picture.png")
    with pytest.raises(MediaError, match="not a readable audio file"):
        limner.load(learned["right"] / "run").describe([tmp_path / "picture.png"])
