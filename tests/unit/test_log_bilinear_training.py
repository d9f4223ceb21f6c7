"""Training as in Kiros et al. (2014): pre-trained vectors, two stages, count-based models."""

import json
import math

import pytest
import torch

from interrupted import train_until
from limner.data.collection import Collection, write_items
from limner.data.examples import Item, ItemSentence
from limner.decoding.scoring import score_examples
from limner.errors import SettingsError
from limner.retrieval import all_pairs
from limner.runs.recipe import Recipe
from limner.runs.records import read_log
from limner.runs.trained_model import load_trained_model
from limner.training.loop import train

SGD = {"name": "sgd", "lr": 0.5, "momentum": 0.5}


def recipe_of(model=None, features="colour", **training):
    return Recipe.parse(
        {
            "features": {"tables": [features] if features else []},
            "model": model or {"name": "lbl", "word_dim": 8, "init_std": 0.3},
            "training": {"epochs": 3, "batch_size": 16, "optimizer": SGD, "precision": "fp32", **training},
            "decoding": {"max_length": 12},
        }
    )


def split(tiny, run, name):
    from limner.data.dataset import Examples
    from limner.inference.features import open_features

    model = load_trained_model(run)
    return model, Examples.of_split(tiny, name, model.target, open_features(model, tiny), max_tokens=80)


def test_the_second_stage_ends_at_the_training_loss_of_the_first(tiny, tmp_path):
    run = train(recipe_of(epochs=40, patience=3, train_on_val_epochs=60), tiny, tmp_path / "run")
    facts = load_trained_model(run).config.provenance
    target = state_of(run)["target_perplexity"]
    assert 1 <= facts["train_on_val_epochs"] < 60
    model, examples = split(tiny, run, "val")
    fits = score_examples(model.model, examples).perplexity.value
    assert fits <= target
    assert facts["train_on_val_perplexity"] == pytest.approx(fits, abs=1e-3)
    lines = read_log(run / "log.jsonl")
    words = {line.kind: line for line in lines}
    assert words["val"].perplexity == pytest.approx(fits, rel=1e-4)


def state_of(run):
    (folder,) = run.glob("state-*")
    return json.loads((folder / "train_state.json").read_text())["state"]


def test_the_second_stage_starts_from_the_best_weights_and_their_loss(scripted, tiny, tmp_path):
    scripted(3.0, 2.0, 9.0)
    best = train(recipe_of(epochs=3), tiny, tmp_path / "best")
    model, examples = split(tiny, best, "train")
    expected = score_examples(model.model, examples).perplexity.value
    scripted(3.0, 2.0, 9.0)
    run = train(recipe_of(epochs=3, train_on_val_epochs=1), tiny, tmp_path / "run")
    assert state_of(run)["target_perplexity"] == pytest.approx(expected)


def test_the_second_stage_ends_after_its_maximum_epochs_with_a_warning(own_tiny, tmp_path, caplog):
    strange = (ItemSentence("en", "nobody ever heard these words before today"),)
    write_items(own_tiny.path, [Item(f"strange{k}", "val", sentences=strange) for k in range(20)])
    vanishing = {"name": "exponential", "decay": 1e-9}  # only the first epoch changes the weights
    recipe = recipe_of(epochs=1, train_on_val_epochs=2, schedule=vanishing)
    run = train(recipe, Collection.open(own_tiny.path), tmp_path / "run")
    facts = load_trained_model(run).config.provenance
    assert state_of(run)["train_on_val_perplexity"] > state_of(run)["target_perplexity"]
    assert facts["train_on_val_epochs"] == 2
    assert "training.train_on_val_epochs: 2 epochs have not reached the perplexity" in caplog.text


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_a_run_resumed_in_the_second_stage_equals_an_uninterrupted_run(tiny, tmp_path, average):
    recipe = recipe_of(epochs=4, train_on_val_epochs=3, save_every=3, ema_decay=average, optimizer={**SGD, "lr": 0.02})
    whole = train(recipe, tiny, tmp_path / "whole")
    steps = state_of(whole)["step"]

    train_until(steps - 2, recipe, tiny, tmp_path / "run")
    assert state_of(tmp_path / "run")["target_perplexity"] is not None
    again = train(recipe, tiny, tmp_path / "run", resume=True)
    ours, theirs = (load_trained_model(run).model.state_dict() for run in (again, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_training_starts_from_pretrained_vectors(tiny, tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_text("red 1 2 3\ngreen -1 0 2\nwall 0.5 0.5 0.5\nzebra 9 9 9\n")
    model = {"name": "lbl", "word_dim": 3}
    still = {"optimizer": {"name": "sgd", "lr": 1e-9, "momentum": 0.0}, "epochs": 1}
    run = train(recipe_of(model, pretrained_embeddings=str(file), **still), tiny, tmp_path / "run")
    loaded = load_trained_model(run)
    rows = {word: row for row, word in enumerate(loaded.tokenizer.entries)}
    vectors = loaded.model.word_vectors().detach()
    torch.testing.assert_close(vectors[rows["green"]], torch.tensor([-1.0, 0.0, 2.0]))
    words = len(rows) - 4
    assert loaded.config.provenance["embeddings"] == f"vectors.txt: 3 of {words} words found ({3 / words:.0%})"
    with pytest.raises(SettingsError, match=r"vectors of 3 dimensions.*model\.word_dim=3"):
        train(recipe_of(pretrained_embeddings=str(file)), tiny, tmp_path / "other")
    with pytest.raises(SettingsError, match="does not support pre-trained word embeddings"):
        train(recipe_of({"name": "mrnn"}, pretrained_embeddings=str(file)), tiny, tmp_path / "mrnn")


def test_coverage_of_pretrained_vectors_is_logged_before_training(tiny, tmp_path, caplog):
    caplog.set_level("INFO", "limner.training.loop")
    file = tmp_path / "vectors.txt"
    file.write_text("red 1 2 3\ngreen -1 0 2\nwall 0.5 0.5 0.5\n")
    before = []
    recipe = recipe_of({"name": "lbl", "word_dim": 3}, pretrained_embeddings=str(file), epochs=1)
    run = train(
        recipe, tiny, tmp_path / "run", on_progress=lambda news: before.append((news.state.step, *caplog.messages))
    )
    facts = load_trained_model(run).config.provenance
    line = f"pre-trained embeddings: {facts['embeddings']}; the others are drawn from the same distribution"
    assert before[0][0] == 1 and line in before[0][1:]
    caplog.clear()
    train(recipe_of(epochs=1), tiny, tmp_path / "none")
    assert not [line for line in caplog.messages if "embeddings" in line]


def test_a_count_based_model_is_evaluated_before_it_is_fitted_on_both_splits(tiny, tmp_path):
    model = {"name": "ngram", "order": 2}
    plain = train(recipe_of(model, features=None), tiny, tmp_path / "plain")
    fused = train(recipe_of(model, features=None, train_on_val_epochs=1), tiny, tmp_path / "fused")
    before, after = (load_trained_model(run).config.provenance for run in (plain, fused))
    assert after["validation_perplexity"] == before["validation_perplexity"]
    alone, examples = split(tiny, plain, "val")
    both, _ = split(tiny, fused, "val")
    assert after["train_on_val"] == f"refitted on the training split and {len(examples)} validation sentences"
    assert "train_on_val" not in before
    first, then = (score_examples(of.model, examples).perplexity.value for of in (alone, both))
    assert then < first
    _, training = split(tiny, plain, "train")
    both.model.fit([*training.targets, *examples.targets])
    assert score_examples(both.model, examples).perplexity.value == pytest.approx(then)


def test_a_count_based_model_is_fitted_and_evaluated_in_one_epoch(tiny, tmp_path):
    run = train(recipe_of({"name": "ngram", "order": 2}, features=None), tiny, tmp_path / "run")
    model, examples = split(tiny, run, "val")
    measured = score_examples(model.model, examples).perplexity.value
    assert model.config.provenance["validation_perplexity"] == pytest.approx(measured, abs=1e-3)
    assert math.isfinite(measured)
    assert measured < len(model.tokenizer) / 2
    assert [line.kind for line in read_log(run / "log.jsonl")] == ["val"]
    train(recipe_of({"name": "ngram", "order": 2}, features=None), tiny, tmp_path / "run", resume=True)


def test_every_multimodal_log_bilinear_model_learns_to_use_the_image(tiny, tmp_path):
    perplexities = {}
    for variant, features in (("LBL", None), ("MLBL-B", "colour"), ("MLBL-F", "colour")):
        model = {"name": "lbl", "variant": variant, "word_dim": 8, "factors": 12, "init_std": 0.3}
        run = train(
            recipe_of(model, features, epochs=20, validate_every=20, optimizer={"name": "adamw", "lr": 0.03}),
            tiny,
            tmp_path / variant,
        )
        perplexities[variant] = load_trained_model(run).config.provenance["validation_perplexity"]
    assert perplexities["MLBL-B"] < 0.8 * perplexities["LBL"]
    assert perplexities["MLBL-F"] < 0.9 * perplexities["LBL"]


def test_the_retrieval_signature_names_the_precision(tiny, tmp_path, monkeypatch):
    """Additive logits use one float32 product; tiles use bfloat16 where the hardware supports it."""
    monkeypatch.setattr(all_pairs, "native_bf16", lambda device: True)
    for variant, exact in (("MLBL-B", True), ("MLBL-F", False)):
        model = {"name": "lbl", "variant": variant, "word_dim": 8, "factors": 12}
        run = train(recipe_of(model, epochs=1, precision="auto"), tiny, tmp_path / variant)
        assert all_pairs.uses_bf16(load_trained_model(run)) is not exact
