"""Training of translation models: recipes, vocabularies, synthetic sentences, initialisation from a run."""

import math

import pytest
import torch
from PIL import Image
from toy_translation import GridBackbone

from interrupted import assert_equal_weights, resumed, train_until, without_times
from limner.data.collection import Collection, write_items
from limner.data.dataset import Examples
from limner.data.examples import Item, ItemSentence
from limner.decoding.scoring import score_examples
from limner.errors import RunError, SettingsError, TrainingError
from limner.evaluation.validate import validate
from limner.features.extract import extract
from limner.inference.features import open_features
from limner.runs.recipe import Recipe
from limner.runs.records import read_log
from limner.runs.trained_model import load_trained_model
from limner.storage.tensors import load_tensors
from limner.training.loop import train

COLOURS = {"red": ("rote", (250, 20, 20)), "green": ("grüne", (20, 250, 20)), "blue": ("blaue", (20, 20, 250))}
SIZES = {"train": 18, "val": 6}
NEW = {
    *(f"decoder.image_attention.{name}" for name in ("query.weight", "key.weight", "key.bias", "score")),
    *("decoder.image_context.weight", "decoder.gate.weight", "decoder.gate.bias", "readout_image.weight"),
}
"""Parameters of the multimodal model that the text-only model does not have."""
SMALL = {"name": "nmt", "embedding_dim": 6, "hidden_dim": 8, "attention_dim": 7, "readout_dim": 6}


def items(folder):
    """Walls of one colour, one in three without an image; each split has a word of its own."""
    for split, size in SIZES.items():
        for number in range(size):
            english, (german, colour) = list(COLOURS.items())[number % 3]
            id_ = f"{split}{number}"
            if number % 3:
                Image.new("RGB", (8, 8), colour).save(folder / f"{id_}.png")
            origin = (f"a {english} wall", f"eine {german} Wand"), (f"a wall of {split}", f"eine Wand von {split}wort")
            pairs = [(ItemSentence("en", en, k), ItemSentence("de", de, k)) for k, (en, de) in enumerate(origin)]
            sentences = tuple(sentence for pair in pairs for sentence in pair)
            yield Item(id_, split, image=f"{id_}.png" if number % 3 else None, sentences=sentences)


@pytest.fixture(scope="module")
def walls(tmp_path_factory):
    """Walls with English and German sentences, some with images, and the features 'quarters'."""
    folder = tmp_path_factory.mktemp("walls")
    write_items(folder, items(folder))
    extract(Collection.open(folder), GridBackbone())
    return Collection.open(folder)


def recipe_of(model=None, features=None, data=None, text=None, **training):
    chosen = {"epochs": 2, "batch_size": 12, "optimizer": {"name": "adam", "lr": 0.02}, "precision": "fp32"}
    return Recipe.parse(
        {
            "data": {"lang": "de", "source_lang": "en", **(data or {})},
            "text": {"lowercase": False, **(text or {})},
            "features": {"tables": [features] if features else []},
            "model": {**SMALL, **(model or {})},
            "training": {"metrics": ["perplexity"], **chosen, **training},
            "decoding": {"max_length": 9},
        }
    )


def stored(folder, items):
    write_items(folder, items)
    return Collection.open(folder)


def looking(**changes):
    return recipe_of({"image": ["attention"]}, "quarters", **changes)


@pytest.fixture(scope="module")
def text_only(walls, tmp_path_factory):
    return train(recipe_of(epochs=3), walls, tmp_path_factory.mktemp("runs") / "text-only")


# Requirements of a recipe


def test_a_translation_model_needs_a_source_language():
    with pytest.raises(SettingsError, match=r"model 'nmt' translates: set the source language, data\.source_lang"):
        recipe_of(data={"source_lang": None})
    with pytest.raises(SettingsError, match=r"data\.source_lang is 'de', but model 'mrnn' does not translate"):
        Recipe.parse({"data": {"lang": "en", "source_lang": "de"}, "model": {"name": "mrnn"}})
    with pytest.raises(
        SettingsError, match=r"training\.source_masks is .*colours.*, but model 'mrnn' does not translate"
    ):
        Recipe.parse({"data": {"lang": "en"}, "model": {"name": "mrnn"}, "training": {"source_masks": ["colours"]}})


def test_source_text_settings_differ_in_the_language_only():
    plain = recipe_of(text={"max_size": 50, "min_count": 2})
    assert plain.source_text == plain.text.model_copy(update={"lang": "en"})
    values = {"data": {"lang": "de", "source_lang": "en"}, "model": {"name": "nmt"}}
    other = Recipe.parse({**values, "text": {"max_size": 50}, "source_text": {"max_size": 70, "split_compounds": True}})
    assert (other.text.max_size, other.text.split_compounds) == (50, False)
    assert (other.source_text.lang, other.source_text.max_size, other.source_text.split_compounds) == ("en", 70, True)
    assert Recipe.parse(other.model_dump(mode="json")) == other
    with pytest.raises(SettingsError, match=r"source_text\.lang is 'fr' and data\.source_lang is 'en'"):
        Recipe.parse({**values, "source_text": {"lang": "fr"}})
    with pytest.raises(SettingsError, match=r"source_text\.lang is 'en' and data\.source_lang is 'None'"):
        Recipe.parse({"model": {"name": "mrnn"}, "source_text": {"max_size": 70}})


def test_an_image_input_needs_features_of_its_kind(walls, tmp_path):
    with pytest.raises(SettingsError, match=r"model\.image \['attention'\] needs features of kind grid or maps.*none"):
        train(recipe_of({"image": ["attention"]}), walls, tmp_path / "run")
    with pytest.raises(SettingsError, match="lists a use twice"):
        recipe_of({"image": ["initial", "initial"]})
    with pytest.raises(SettingsError, match=r"readout_dim \(5\) must equal embedding_dim \(6\)"):
        recipe_of({"tie_embeddings": True, "readout_dim": 5})


def test_shared_embeddings_need_a_joint_vocabulary(walls, tmp_path):
    tied = {"share_embeddings": True, "tie_embeddings": True, "encoder_layers": 2}
    with pytest.raises(
        SettingsError, match=r"share_embeddings=true needs one vocabulary .*data\.joint_vocabulary=true"
    ):
        recipe_of(tied)
    recipe = recipe_of(tied, data={"joint_vocabulary": True}, epochs=1)
    run = train(recipe, walls, tmp_path / "run")
    weights = load_tensors(run / "model.safetensors")
    assert [name for name in weights if "embedding" in name or name == "readout.weight"] == ["target_embedding.weight"]
    model = load_trained_model(run)
    assert model.model.source_embedding is None
    assert model.source.tokenizer.entries == model.tokenizer.entries and {"red", "rote"} <= set(model.tokenizer.entries)


# Training


def val_of(model, collection):
    return Examples.of_split(
        collection, "val", model.target, open_features(model, collection), source=model.source, max_tokens=80
    )


def test_a_trained_model_is_evaluated_by_real_decoding(walls, tmp_path):
    recipe = recipe_of(
        {"image": ["attention"], "initial_std": 0.3}, "quarters", epochs=20, metric="bleu2", validate_every=4
    )
    run = train(recipe, walls, tmp_path / "run")
    losses = [line.loss for line in read_log(run / "log.jsonl") if line.kind == "train"]
    assert losses[-1] < 0.5 * losses[0]
    best = load_trained_model(run)
    facts = best.config.provenance
    assert facts["validation_bleu2"] > 40
    scores = validate(best, val_of(best, walls), ["bleu2", "perplexity"])
    assert {f"validation_{name}": round(value, 3) for name, value in scores.items()} == {
        name: facts[name] for name in ("validation_bleu2", "validation_perplexity")
    }
    assert facts["training_sentences"] == 2 * SIZES["train"]


def test_both_vocabularies_contain_training_words_only(text_only):
    model = load_trained_model(text_only)
    english, german = set(model.source.tokenizer.entries), set(model.tokenizer.entries)
    assert {"red", "train"} <= english
    assert {"rote", "Wand", "trainwort"} <= german
    assert not {"val", "rote", "Wand"} & english
    assert not {"valwort", "red", "wall"} & german
    assert (model.source.lang, model.recipe.data.lang) == ("en", "de")


MADE = "other:0123456789ab"


@pytest.fixture
def half_made(walls, tmp_path):
    """The same walls with as many German sentences with generated English ones, in every split."""
    more = []
    for item in walls.items():
        pair = ItemSentence("de", "noch eine Wand", 9), ItemSentence("en", f"yet synthetic{item.split} wall", 9, MADE)
        more.append(Item(item.id, item.split, sentences=(*item.sentences[:2], *pair)))
    return stored(tmp_path / "half-made", more)


@pytest.mark.parametrize(("share", "read"), [(0.0, 18), (0.25, 24), (0.5, 36)])
def test_synthetic_sentences_are_read_by_their_share(half_made, tmp_path, share, read):
    messages = []
    recipe = recipe_of(data={"synthetic": share}, epochs=1, batch_size=5)
    run = train(recipe, half_made, tmp_path / "run", on_progress=messages.append)
    assert {news.total_steps for news in messages} == {math.ceil(read / 5)}
    assert messages[-1].state.step == math.ceil(read / 5)
    model = load_trained_model(run)
    # Generated sentences do not count for the vocabulary, human-written sentences count if they are used.
    assert "synthetictrain" not in model.source.tokenizer.entries
    assert ("noch" in model.tokenizer.entries) == (share > 0)


def test_generated_sentences_are_excluded_from_validation(half_made, tmp_path):
    run = train(recipe_of(data={"synthetic": 0.5}), half_made, tmp_path / "run")
    model = load_trained_model(run)
    people = Examples.of_split(
        half_made, "val", model.target, None, source=model.source._replace(synthetic=0.0), max_tokens=80
    )
    assert len(people) == SIZES["val"]
    expected = score_examples(model.model, people).perplexity.value
    assert model.config.provenance["validation_perplexity"] == pytest.approx(expected, abs=1e-3)


def test_missing_synthetic_sentences_are_an_error(walls, tmp_path):
    with pytest.raises(
        SettingsError,
        match=r"data\.synthetic=0\.5 needs generated source sentences, and split 'train' of .* has none in 'en'",
    ):
        train(recipe_of(data={"synthetic": 0.5}), walls, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("share", "level"), [(0.5, "INFO"), (0.9, "WARNING")])
def test_the_share_of_synthetic_sentences_is_logged(half_made, tmp_path, caplog, share, level):
    with caplog.at_level("INFO", "limner.training.setup"):
        train(recipe_of(data={"synthetic": share}, epochs=1), half_made, tmp_path / "run")
    lines = [record for record in caplog.records if "generated source sentence" in record.getMessage()]
    assert [line.levelname for line in lines] == [level]
    assert "18 of the 36 pairs of an epoch" in lines[0].getMessage()


@pytest.fixture
def all_made(walls, tmp_path):
    """Walls whose English training sentences are all generated."""
    made = (ItemSentence("de", "rote Wand", 0), ItemSentence("en", "red wall", 0, MADE))
    learned = [Item(item.id, "train", sentences=made) for item in walls.items("train")]
    val = [Item(item.id, "val", sentences=item.sentences) for item in walls.items("val")]
    return stored(tmp_path / "all-made", [*learned, *val])


def test_generated_sentences_alone_are_not_enough_for_a_vocabulary(all_made, text_only, tmp_path):
    recipe = recipe_of(data={"synthetic": 0.9}, epochs=1, batch_size=6)
    with pytest.raises(
        TrainingError, match=r"expected sentences in 'en' written by people in split 'train'.*: --init RUN$"
    ):
        train(recipe, all_made, tmp_path / "run")
    messages = []
    train(recipe, all_made, tmp_path / "run", init=text_only, on_progress=messages.append)
    assert {news.total_steps for news in messages} == {3}  # with the vocabulary of another run all sentences are used


# Initialisation from another run

STILL = {"optimizer": {"name": "sgd", "lr": 1e-12, "momentum": 0.0}, "epochs": 1}


def test_a_multimodal_model_is_initialised_from_a_text_only_model(walls, text_only, tmp_path, caplog):
    caplog.set_level("INFO", "limner.training.loop")
    run = train(looking(**STILL), walls, tmp_path / "run", init=text_only)
    before, after = (load_tensors(folder / "model.safetensors") for folder in (text_only, run))
    assert after.keys() - before.keys() == NEW
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, rtol=0, atol=1e-9)
    origin = load_trained_model(run).config.provenance["init"]
    assert origin.startswith(f"{text_only}: {len(before)} weights taken; new: ")
    assert set(origin.partition("; new: ")[2].split(", ")) == NEW
    assert f"initial weights: {origin}" in caplog.messages


def test_a_text_only_model_ignores_the_weights_of_the_image_encoder(walls, text_only, tmp_path):
    multimodal = train(looking(epochs=1), walls, tmp_path / "seeing", init=text_only)
    without_image = train(recipe_of(**STILL), walls, tmp_path / "blind", init=multimodal)
    origin = load_trained_model(without_image).config.provenance["init"]
    assert "; new: none; unused: " in origin
    assert set(origin.partition("; unused: ")[2].split(", ")) == NEW


def test_the_vocabulary_is_transferred_with_the_weights(walls, text_only, tmp_path):
    """The vocabulary of the initial run takes priority over the collection and the recipe."""
    new = (ItemSentence("en", "a house"), ItemSentence("de", "ein Haus"))
    more = stored(tmp_path / "c", [*walls.items(), Item("new", "train", sentences=new)])
    recipe = recipe_of(epochs=1, text={"lowercase": True, "max_size": 8})
    run = train(recipe, more, tmp_path / "run", init=text_only)
    first, second = load_trained_model(text_only), load_trained_model(run)
    assert second.tokenizer.entries == first.tokenizer.entries
    assert second.source.tokenizer.entries == first.source.tokenizer.entries
    assert (second.recipe.text, second.recipe.source_text) == (first.recipe.text, first.recipe.source_text)


@pytest.mark.parametrize("data", [{"lang": "en", "source_lang": "de"}, {"lang": "de", "source_lang": "fr"}], ids=str)
def test_initialisation_from_a_run_of_other_languages_is_refused(walls, text_only, tmp_path, data):
    with pytest.raises(
        SettingsError, match=r"text-only: expected a run of the same languages.*found source 'en' and target 'de'"
    ):
        train(recipe_of(data=data), walls, tmp_path / "run", init=text_only)


def test_initialisation_without_a_matching_weight_is_refused(walls, text_only, tmp_path):
    other = {"name": "independent", "embedding_dim": 5, "hidden_dim": 7}
    recipe = recipe_of(features="quarters", epochs=1).model_dump(mode="json")
    learned = train(Recipe.parse({**recipe, "model": other}), walls, tmp_path / "other")
    with pytest.raises(
        SettingsError, match=r"other: expected weights with the names and shapes of this model's, found none"
    ):
        train(recipe_of(), walls, tmp_path / "run", init=learned)


def test_word_vectors_of_another_size_are_reported(walls, text_only, tmp_path, caplog):
    train(recipe_of(**STILL), walls, tmp_path / "same", init=text_only)
    assert "no weights of the same name and shape" not in caplog.text
    train(recipe_of({"embedding_dim": 5}, **STILL), walls, tmp_path / "run", init=text_only)
    weights = "source_embedding.weight, encoder.forwards.0.cell.input.weight"
    assert f"no weights of the same name and shape for {weights}" in caplog.text


@pytest.mark.parametrize("joint", [True, False])
def test_the_saved_recipe_records_the_origin_of_the_vocabulary(walls, text_only, tmp_path, joint):
    first = text_only if not joint else train(recipe_of(data={"joint_vocabulary": True}), walls, tmp_path / "joint")
    run = train(recipe_of(data={"joint_vocabulary": not joint}, epochs=1), walls, tmp_path / "run", init=first)
    assert load_trained_model(run).recipe.data.joint_vocabulary == joint


def test_a_resumed_run_does_not_log_its_initialisation(walls, text_only, tmp_path, caplog):
    caplog.set_level("INFO", "limner.training.loop")
    recipe = recipe_of(save_every=1)
    train_until(1, recipe, walls, tmp_path / "run", init=text_only)
    assert any(line.startswith("initial weights:") for line in caplog.messages)
    caplog.clear()
    train(recipe, walls, tmp_path / "run", init=text_only, resume=True)
    assert not any(line.startswith("initial weights:") for line in caplog.messages)


def test_an_initial_run_that_is_no_run_directory_is_refused(walls, tmp_path):
    with pytest.raises(RunError, match=r"nothing: no such run directory"):
        train(recipe_of(), walls, tmp_path / "run", init=tmp_path / "nothing")


SOFT = {f"{part}_dropout": 0.2 for part in ("encoder", "annotation", "decoder", "readout", "source_word")} | {
    "image_encoder": {"dropout": 0.2}
}


@pytest.fixture(scope="module")
def uninterrupted(walls, text_only, tmp_path_factory):
    """A recipe, and a training by it."""
    recipe = recipe_of({"image": ["attention"], **SOFT}, "quarters", ema_decay=0.9, save_every=1)
    return recipe, train(recipe, walls, tmp_path_factory.mktemp("whole") / "run", init=text_only)


@pytest.mark.parametrize("step", [1, 3, 4])  # three steps per epoch: in the middle, at the end, and in the next epoch
def test_an_initialised_run_that_is_resumed_equals_an_uninterrupted_run(
    uninterrupted, walls, text_only, tmp_path, step
):
    recipe, whole = uninterrupted
    run = resumed(step, recipe, walls, tmp_path / "run", init=text_only)
    assert_equal_weights(run, whole)
    assert without_times(run) == without_times(whole)


def test_a_run_with_synthetic_sentences_resumes_within_its_epoch(half_made, tmp_path):
    recipe = recipe_of(data={"synthetic": 0.4}, epochs=3, batch_size=7, save_every=1)
    whole = train(recipe, half_made, tmp_path / "whole")
    run = resumed(6, recipe, half_made, tmp_path / "run")
    assert_equal_weights(run, whole)


def test_resuming_without_the_initial_run_is_refused(walls, text_only, tmp_path):
    """Token ids would mean other words, without an error if the vocabulary sizes are equal."""
    train_until(1, recipe_of(save_every=1), walls, tmp_path / "run", init=text_only)
    with pytest.raises(RunError, match="cannot resume, init was"):
        train(recipe_of(save_every=1), walls, tmp_path / "run", resume=True)
