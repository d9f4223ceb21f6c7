"""Captioner, Scorer and Retriever on new images."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import limner
from limner.apps.cli import app
from limner.data.collection import Collection, write_items
from limner.data.examples import Example, Item, ItemSentence, collate
from limner.errors import BackboneError, CollectionError, MediaError, RunError, SettingsError
from limner.inference.features import new_item
from limner.models.protocols import Output
from limner.training.loop import train

COLOURS = {"red": (250, 20, 20), "green": (20, 250, 20), "blue": (20, 20, 250), "white": (250, 250, 250)}


@pytest.fixture(scope="module")
def scorer(trained):
    return limner.Scorer.load(trained)


@pytest.fixture(scope="module")
def retriever(trained):
    return limner.Retriever.load(trained)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """New images of another size and format, one for each colour."""
    folder = tmp_path_factory.mktemp("photos")
    for name, colour in COLOURS.items():
        Image.new("RGB", (90, 70), colour).save(folder / f"{name}.jpg")
    return {name: folder / f"{name}.jpg" for name in COLOURS}


def test_new_images_are_described(captioner, photos):
    result = captioner.describe(list(photos.values()))
    assert [colour in descriptions[0].text for colour, descriptions in zip(photos, result, strict=True)] == [True] * 4


def test_log_probs_of_captions_equal_their_scores(captioner, scorer, photos):
    best = captioner.describe([photos["red"]], beam_size=4, n_best=3)[0]
    assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)
    again = scorer.score([photos["red"]] * 3, [one.text for one in best])
    assert [one.log_prob for one in again] == pytest.approx([one.log_prob for one in best], abs=1e-3)


def test_captions_start_with_the_prefix(captioner, photos):
    assert captioner.describe([photos["blue"]], prefixes=["look , a"])[0][0].text.startswith("look, a blue")


def test_a_misspelt_decoding_setting_is_an_error(captioner, photos):
    with pytest.raises(SettingsError, match=r"decoding: beam_sise: unknown key"):
        captioner.describe([photos["red"]], beam_sise=3)


def test_the_correct_sentence_is_the_most_probable_one(scorer, photos):
    sentences = [f"a {colour} wall" for colour in COLOURS]
    for colour, path in photos.items():
        scores = scorer.score([path] * 4, sentences)
        assert max(scores, key=lambda one: one.log_prob) == scores[list(COLOURS).index(colour)]
        assert scores[0].tokens == 4
        assert scores[0].perplexity == pytest.approx(math.exp(-scores[0].log_prob / 4))


def test_scoring_needs_one_image_for_each_sentence(scorer, photos):
    with pytest.raises(SettingsError, match="1 image and 2 sentences"):
        scorer.score([photos["red"]], ["a", "b"])


def test_text_to_image_retrieval(retriever, tiny):
    result = retriever.retrieve_images("a green wall", tiny, split="test", count=2)
    assert {one.id for one in result} == {"test1", "test5"}  # the green ones
    assert result[0].score >= result[1].score
    assert result[0].image.endswith(f"{result[0].id}.png")
    own = {item.id: item.texts("en")[0] for item in tiny.items("test")}
    assert [one.text for one in result] == [own[one.id] for one in result]  # not the query
    assert len(retriever.retrieve_images("a wall", tiny, split="test", count=100)) == 8


def test_image_to_text_retrieval(retriever, tiny, photos):
    result = retriever.retrieve_sentences(photos["blue"], tiny, split="test", count=2)
    assert {one.text for one in result} == {"a blue wall", "look , a blue wall"}  # the sentences of two images
    assert [Path(one.image).name for one in result] == [f"{one.id}.png" for one in result]


def test_retrieval_without_candidates_is_an_error(retriever, own_tiny, photos):
    write_items(
        own_tiny.path,
        [
            Item("silent", "mute", image="train0.png"),
            Item("blind", "words", sentences=(ItemSentence("en", "a red wall"),)),
            Item("late", "late", image="late.png", sentences=(ItemSentence("en", "a red wall"),)),
        ],
    )
    collection = Collection.open(own_tiny.path)
    with pytest.raises(CollectionError, match="no image with features to search"):
        retriever.retrieve_images("a wall", collection, split="words")
    (found,) = retriever.retrieve_sentences(photos["red"], collection, split="words")
    assert found.text == "a red wall", "P(w) is of training images"
    for split in ("mute", "late"):
        with pytest.raises(CollectionError, match="no sentence in 'en' to search"):
            retriever.retrieve_sentences(photos["red"], collection, split=split)
    with pytest.raises(CollectionError, match="no image with features to search"):
        retriever.retrieve_images("a wall", collection, split="late")
    with pytest.raises(CollectionError, match="no items in split 'dev'"):
        retriever.retrieve_images("a wall", collection, split="dev")


def test_nearest_words(captioner):
    result = limner.nearest_words(captioner.models[0], "red", 3)
    distances = [distance for _, distance in result]
    assert distances == sorted(distances)
    assert len(result) == 3
    words = {word for word, _ in limner.nearest_words(captioner.models[0], "red", 1000)}
    assert words == set(captioner.models[0].tokenizer.entries[4:]) - {"red"}
    with pytest.raises(SettingsError, match=r"'purple' is not among the \d+ words"):
        limner.nearest_words(captioner.models[0], "purple")


def test_a_model_of_stored_features_needs_its_backbone(trained_on_colours, tiny):
    with pytest.raises(BackboneError, match=r"computed by 'eye' at an unknown place.*give the location"):
        limner.load(trained_on_colours)
    text_only = limner.Retriever.load(trained_on_colours, encode_images=False)
    assert text_only.retrieve_images("a red wall", tiny, split="test", count=1)[0].id in ("test0", "test4")


def test_an_ensemble_averages_probabilities(trained, tiny, recipe_of, photos, tmp_path):
    other = train(recipe_of("pixels16", epochs=8, validate_every=8, seed=2), tiny, tmp_path / "run")
    both = limner.load(trained, other)
    result = both.describe([photos["red"]])[0][0]
    tokens = both.models[0].tokenizer.encode(result.text)
    features = both.features_of([photos["red"]]).take([new_item(photos["red"])])[0]
    batch = collate([Example("red", tokens, image=features)])
    with torch.inference_mode():
        each = [one.model(batch).logits[0].softmax(-1) for one in both.models]  # (T, V)
    of_words = [probs[range(len(tokens) + 1), batch.target_out[0]] for probs in each]
    assert result.log_prob == pytest.approx(float(sum(of_words).div(2).log().sum()), abs=1e-4)
    assert result.log_prob != pytest.approx(float(of_words[0].log().sum()), abs=1e-3)


def test_samples_do_not_depend_on_the_batch(captioner, photos, tmp_path):
    drawn = {"sample": {"temperature": 3.0, "seed": 5}, "beam_size": 3, "n_best": 3}
    alone = captioner.describe([photos["red"]], **drawn)[0]
    for neighbours in (["blue", "green"], ["red", "white"]):
        features = [photos[name] for name in neighbours]
        together = captioner.describe([*features, photos["red"]], **drawn)[-1]
        assert [one.text for one in together] == [one.text for one in alone]
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"")
    beside_a_broken_one = dict(captioner.describe_each([bad, photos["red"]], **drawn))[photos["red"]]
    assert [one.text for one in beside_a_broken_one] == [one.text for one in alone]
    assert len({one.text for one in alone}) > 1  # the map is not constant


def test_an_image_is_read_once_for_all_its_sentences(scorer, photos, monkeypatch):
    opened, read = [], type(scorer.backbone).read
    monkeypatch.setattr(type(scorer.backbone), "read", lambda self, image: opened.append(image) or read(self, image))
    both = [photos["red"], photos["blue"].read_bytes()]
    scores = scorer.score([both[k % 2] for k in range(10)], ["a red wall"] * 10)
    assert opened == both
    assert scores[0] == scores[2] != scores[1]


def test_captions_that_are_cut_off_are_counted(captioner, photos, caplog):
    assert len(list(captioner.describe_each(list(photos.values()), max_length=1))) == len(photos)
    assert f"{len(photos)} of {len(photos)} captions were cut off at max_length=1; raise max_length" in caplog.text


def test_retrieval_leaves_out_items_without_features(retriever, own_tiny, photos, caplog):
    sentence = (ItemSentence("en", "a green wall"),)
    write_items(own_tiny.path, [Item("late", "test", image="late.png", sentences=sentence)])
    collection = Collection.open(own_tiny.path)
    result = retriever.retrieve_images("a green wall", collection, split="test", count=100)
    assert len(result) == 8 and "late" not in {one.id for one in result}
    assert "1 item without features is left out" in caplog.text
    sentences = retriever.retrieve_sentences(photos["green"], collection, split="test", count=100)
    assert "late" not in {one.id for one in sentences}


def test_each_text_is_retrieved_once(retriever, tiny, photos):
    result = retriever.retrieve_sentences(photos["blue"], tiny, split="test", count=100)
    all_texts = [text for item in tiny.items("test") for text in item.texts("en")]
    assert len(set(all_texts)) < len(all_texts)
    assert sorted(one.text for one in result) == sorted(set(all_texts))
    assert [one.score for one in result] == sorted((one.score for one in result), reverse=True)


@pytest.mark.parametrize("sentence", ["", "   ", "\t"])
def test_a_sentence_without_words_is_an_error(scorer, retriever, tiny, photos, sentence):
    with pytest.raises(SettingsError, match="a sentence of at least one word"):
        scorer.score([photos["red"]] * 2, ["a red wall", sentence])
    with pytest.raises(SettingsError, match="a sentence of at least one word"):
        retriever.retrieve_images(sentence, tiny)


def test_models_that_form_no_ensemble(trained, trained_on_colours, own_tiny, recipe_of, tmp_path):
    with pytest.raises(RunError, match="must be trained on the same features"):
        limner.load(trained, trained_on_colours, encode_images=False)
    write_items(own_tiny.path, [Item("more", "train", sentences=(ItemSentence("en", "a purple wall"),))])
    other = train(recipe_of("pixels16", epochs=1), Collection.open(own_tiny.path), tmp_path / "run")
    with pytest.raises(RunError, match="must share one vocabulary"):
        limner.load(trained, other)


def test_a_model_without_images(tiny, recipe_of, photos, tmp_path):
    run = train(recipe_of(None, model={"variant": "RNN-base"}, epochs=3), tiny, tmp_path / "run")
    model = limner.load(run)
    texts = [result[0].text for result in model.describe(list(photos.values()))]
    assert len(set(texts)) == 1
    for slip in ("nosuch.jpg", "nosuch.wav"):
        with pytest.raises(MediaError, match=slip):
            model.describe([tmp_path / slip])
        with pytest.raises(MediaError, match=slip):
            limner.Scorer.load(run).score([tmp_path / slip], ["a red wall"])
    with pytest.raises(CollectionError, match="trained without images"):
        limner.Retriever.load(run).retrieve_sentences(photos["red"], tiny)
    with pytest.raises(CollectionError, match="trained without images"):
        limner.Retriever.load(run).retrieve_images("a wall", tiny)
    shutil.rmtree(run)


def test_an_unreadable_image_does_not_stop_the_others(captioner, photos, tmp_path):
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"")
    result = dict(captioner.describe_each([photos["red"], bad, b"no image", photos["blue"]]))
    assert isinstance(result[bad], MediaError) and isinstance(result[b"no image"], MediaError)
    for name in ("red", "blue"):
        assert [one.text for one in result[photos[name]]] == [one.text for one in captioner.describe([photos[name]])[0]]


def test_words_are_normalised_as_in_the_vocabulary(captioner):
    assert limner.nearest_words(captioner.models[0], "RED") == limner.nearest_words(captioner.models[0], "red")


def test_unknown_words_are_logged(scorer, photos, caplog):
    scorer.score([photos["red"]], ["Hund and Katze"])
    assert "'hund', 'katze'" in caplog.text
    caplog.clear()
    scorer.score([photos["red"]], ["red"])
    assert "not in the vocabulary" not in caplog.text


def kinds_of_features(path):
    with Image.open(path) as image:
        image.load()
        return {
            "path": path,
            "text": str(path),
            "bytes": path.read_bytes(),
            "pillow": image.copy(),
            "array": np.asarray(image.convert("RGB")),
        }


@pytest.mark.parametrize("kind", ["text", "bytes", "pillow", "array"])
def test_images_in_memory_give_the_results_of_their_files(captioner, scorer, retriever, tiny, photos, kind):
    red, blue = (kinds_of_features(photos[name]) for name in ("red", "blue"))
    settings = {"beam_size": 3, "n_best": 2}
    of_files = captioner.describe([red["path"], blue["path"]], **settings)
    assert captioner.describe([red[kind], blue[kind]], **settings) == of_files
    sentences = ["a red wall", "a blue wall"]
    assert scorer.score([red[kind], blue[kind]], sentences) == scorer.score([red["path"], blue["path"]], sentences)
    assert retriever.retrieve_sentences(blue[kind], tiny, split="test") == retriever.retrieve_sentences(
        blue["path"], tiny, split="test"
    )


def test_a_captioning_model_without_attention_is_not_explained(captioner, photos):
    captions = [captions[0] for captions in captioner.describe([photos["red"]])]
    with pytest.raises(SettingsError, match="model 'mrnn' has no attention to explain"):
        captioner.explain([photos["red"]], captions)


class AttendsToLocations(torch.nn.Module):
    """A captioning model whose attention over four locations is given."""

    uses_image = True

    def __init__(self, vocab_size):
        super().__init__()
        self.vocab_size = vocab_size
        self.register_buffer("unused", torch.zeros(1))

    def forward(self, batch):
        size, length = batch.target_in.shape
        attention = torch.tensor([0.1, 0.2, 0.3, 0.4]).expand(size, length, 4)
        return Output(torch.zeros(size, length, self.vocab_size), attention=attention)


def test_a_captioning_model_with_attention_is_explained(captioner, photos):
    captions = [captions[0] for captions in captioner.describe([photos["red"], photos["blue"]])]
    model = captioner.models[0]._replace(model=AttendsToLocations(captioner.models[0].model.vocab_size))
    explanations = limner.Captioner([model], captioner.backbone).explain([photos["red"], photos["blue"]], captions)
    for caption, explanation in zip(captions, explanations, strict=True):
        assert " ".join(explanation.target[:-1]) == model.tokenizer.decode(caption.tokens)
        assert explanation.attention == pytest.approx(np.tile([0.1, 0.2, 0.3, 0.4], (len(explanation.target), 1)))
        assert explanation.source == () and explanation.alignment is None and explanation.gate is None


def test_without_torch_videos_among_photographs_are_skipped(photos, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("limner.apps.cli.describe.find_spec", lambda name: None)
    (tmp_path / "clip.mp4").write_bytes(b"never opened")
    assert CliRunner().invoke(app, ["describe", str(tmp_path)]).exit_code == 1
    shutil.copy(photos["red"], tmp_path)
    result = CliRunner().invoke(app, ["describe", str(tmp_path)])
    assert result.exit_code == 0 and [line.partition("\t")[0] for line in result.stdout.splitlines()] == [
        str(tmp_path / "red.jpg")
    ]
    assert "1 video skipped" in caplog.text and "clip.mp4" in caplog.text
