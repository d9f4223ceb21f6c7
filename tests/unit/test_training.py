"""Training: learning, best weights, early stopping, resuming and errors."""

import math
import shutil
import sys

import pytest
import torch

from interrupted import Stop, assert_equal_weights, resumed, without_times
from limner.apps.cli.train import _format_times
from limner.data.collection import Collection, write_items
from limner.data.dataset import Examples
from limner.data.examples import Item, ItemSentence
from limner.errors import FeatureError, RunError, SettingsError, TrainingError
from limner.evaluation.validate import validate as real_validate
from limner.features.extract import extract
from limner.features.store import FeatureStore
from limner.files import locked
from limner.runs.recipe import Recipe
from limner.runs.records import read_log
from limner.runs.trained_model import ModelConfig, load_trained_model
from limner.storage.tensors import load_tensors
from limner.training import context as context_module
from limner.training import epoch as epoch_module
from limner.training import stages, state
from limner.training.loop import train


def lines_of(run, kind):
    return [line for line in read_log(run / "log.jsonl") if line.kind == kind]


def test_training_reduces_the_perplexity(trained_on_colours):
    train_lines, val_lines = lines_of(trained_on_colours, "train"), lines_of(trained_on_colours, "val")
    assert [line.epoch for line in train_lines] == list(range(1, 21))
    assert train_lines[-1].loss < 0.5 * train_lines[0].loss
    assert [line.epoch for line in val_lines] == [5, 10, 15, 20]
    best = min(line.perplexity for line in val_lines)
    assert best < 3
    facts = load_trained_model(trained_on_colours).config.provenance
    assert facts["validation_perplexity"] == pytest.approx(best, abs=1e-3)


def test_the_vocabulary_contains_training_words_only(trained):
    entries = load_trained_model(trained).tokenizer.entries
    assert "trainword" in entries
    assert not {"val", "valword", "test", "testword", "eine", "wand"} & set(entries)


def test_a_decoding_metric_selects_the_best_weights(tiny, recipe_of, tmp_path):
    run = train(recipe_of(epochs=6, metric="bleu2", metrics=[]), tiny, tmp_path / "run")
    values = [line.metrics["bleu2"] for line in lines_of(run, "val")]
    saved = load_trained_model(run)
    assert saved.config.provenance["epochs"] == values.index(max(values)) + 1
    assert max(values) > 40
    features = FeatureStore.open(tiny, ["colour"], 64)
    examples = Examples.of_split(tiny, "val", saved.target, features, max_tokens=80)
    assert real_validate(saved, examples, ["bleu2"])["bleu2"] == pytest.approx(max(values))


@pytest.mark.parametrize(("metric", "values", "epoch"), [("perplexity", (5, 3, 4), 2), ("bleu4", (5, 3, 9), 3)])
def test_the_best_weights_are_saved(scripted, tiny, recipe_of, tmp_path, metric, values, epoch):
    scripted(*values, metric=metric)
    run = train(recipe_of(epochs=3, metric=metric, metrics=[]), tiny, tmp_path / "run")
    assert load_trained_model(run).config.provenance["epochs"] == epoch


def test_patience_ends_training_and_resuming_changes_nothing(scripted, tiny, recipe_of, tmp_path):
    scripted(5, 3, 4, 3, 1, 1, 1)  # an equal value is not an improvement
    recipe = recipe_of(epochs=50, metrics=["perplexity"], patience=2)
    run = train(recipe, tiny, tmp_path / "run")
    assert [line.perplexity for line in lines_of(run, "val")] == [5, 3, 4, 3]
    before = (run / "log.jsonl").read_text()
    train(recipe, tiny, run, resume=True)
    assert (run / "log.jsonl").read_text() == before


def test_the_clock_counts_all_of_a_training_and_its_steps_separately(monkeypatch, tiny, recipe_of, tmp_path):
    """A step takes 1 s, what is between two steps 10 s, a validation 100 s; the weights of the first epoch are kept."""
    clock, real = [1000.0], epoch_module.loss_terms

    def taking(seconds, result):
        clock[0] += seconds
        return result

    monkeypatch.setattr(state.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(epoch_module, "loss_terms", lambda *inputs: taking(1, real(*inputs)))
    perplexities = iter((3.0, 4.0))
    monkeypatch.setattr(stages, "validate", lambda *_: taking(100, {"perplexity": next(perplexities)}))
    recipe = recipe_of(epochs=2, metrics=["perplexity"])
    run = train(recipe, tiny, tmp_path / "run", on_progress=lambda _: taking(10, None))
    steps = lines_of(run, "train")[0].step
    times = [(line.seconds, line.step_seconds) for line in read_log(run / "log.jsonl")]
    epoch, last = 11 * steps, 2 * (11 * steps + 100)
    assert times == [(epoch, steps), (epoch + 100, steps), (last - 100, 2 * steps), (last, 2 * steps)]
    facts = ModelConfig.load(run / "config.json").provenance
    assert (facts["epochs"], facts["seconds"], facts["step_seconds"]) == (1, last, 2 * steps)
    assert _format_times(facts) == f"{last:.1f} s ({2 * steps:.1f} s in training steps)"
    train(recipe, tiny, run, resume=True)
    again = ModelConfig.load(run / "config.json").provenance
    assert {**again, "processor_seconds": facts["processor_seconds"]} == facts  # its processor time is measured


def test_averaged_weights_are_validated_and_saved(tiny, recipe_of, tmp_path):
    run = train(recipe_of(epochs=2, ema_decay=0.9), tiny, tmp_path / "run")
    saved = load_trained_model(run).model.state_dict()
    newest = state.find_state(run)
    last, average = (load_tensors(newest / f"{name}.safetensors") for name in ("model", "ema"))
    for k, name in enumerate(saved):
        torch.testing.assert_close(saved[name], average[str(k)], rtol=0, atol=0)
        assert not torch.equal(saved[name], last[name])


@pytest.fixture(scope="module", params=[1, 5], ids="save_every{}".format)
def uninterrupted(tiny, recipe_of, tmp_path_factory, request):
    """A recipe, and a training by it."""
    recipe = recipe_of(epochs=3, model={"dropout": 0.3}, ema_decay=0.9, save_every=request.param, bucket=2)
    return recipe, train(recipe, tiny, tmp_path_factory.mktemp("whole") / "run")


# 5 steps an epoch: 7 is in the middle, 5 and 10 are the end of an epoch that is not validated yet.
@pytest.mark.parametrize("moment", [1, 5, 7, 10])
def test_a_resumed_run_equals_an_uninterrupted_run(uninterrupted, tiny, tmp_path, moment):
    recipe, whole = uninterrupted
    run = resumed(moment, recipe, tiny, tmp_path / "run")
    assert_equal_weights(run, whole)
    assert without_times(run) == without_times(whole)


@pytest.mark.parametrize(
    "optimizer", [{"name": "sgd", "lr": 0.1, "momentum_start": 0.0, "momentum_epochs": 2}, {"name": "adadelta"}]
)
def test_every_optimizer_resumes(tiny, recipe_of, tmp_path, optimizer):
    recipe = recipe_of(epochs=3, optimizer=optimizer, save_every=3)
    whole = train(recipe, tiny, tmp_path / "whole")
    run = resumed(4, recipe, tiny, tmp_path / "run")
    assert_equal_weights(run, whole)


def test_a_run_interrupted_after_logging_its_validation_resumes(monkeypatch, tiny, recipe_of, tmp_path):
    """The state precedes the validation, so that validation is repeated and logged only once."""
    recipe = recipe_of(epochs=2, save_every=5)
    whole = train(recipe, tiny, tmp_path / "whole")
    save, saved = context_module.save_state, []

    def save_thrice(run, *rest):
        saved.append(run)
        if len(saved) == 2:
            raise Stop
        save(run, *rest)

    monkeypatch.setattr(context_module, "save_state", save_thrice)
    with pytest.raises(Stop):
        train(recipe, tiny, tmp_path / "run")
    assert len(lines_of(tmp_path / "run", "val")) == 1
    monkeypatch.setattr(context_module, "save_state", save)
    run = train(recipe, tiny, tmp_path / "run", resume=True)
    assert without_times(run) == without_times(whole)
    assert_equal_weights(run, whole)


def test_a_complete_training_state_exists_at_all_times(monkeypatch, tiny, recipe_of, tmp_path):
    """Before a state is removed, another one is complete."""
    run, removed = tmp_path / "run", []
    real = state.shutil.rmtree

    def watched(folder, *args, **kwargs):
        others = [other for other in run.glob("state-*") if other != folder]
        assert any((other / "train_state.json").exists() for other in others), f"{folder} was the only one"
        removed.append(folder)
        real(folder, *args, **kwargs)

    monkeypatch.setattr(state.shutil, "rmtree", watched)
    train(recipe_of(epochs=2, save_every=5), tiny, run)
    assert len(removed) == 3
    assert len(list(run.glob("state-*"))) == 1


def test_a_nan_loss_ends_training_and_preserves_the_state(monkeypatch, tiny, recipe_of, tmp_path):
    recipe, run, real = recipe_of(epochs=2, save_every=3), tmp_path / "run", epoch_module.loss_terms
    calls = []

    def broken(*args):
        calls.append(None)
        (term,) = real(*args)
        return (term._replace(total=term.total * (math.nan if len(calls) == 5 else 1)),)

    monkeypatch.setattr(epoch_module, "loss_terms", broken)
    with pytest.raises(TrainingError, match=r"the loss is nan at step 4 .*'train\d+'.*training\.optimizer\.lr"):
        train(recipe, tiny, run)
    monkeypatch.setattr(epoch_module, "loss_terms", real)
    train(recipe, tiny, run, resume=True)
    whole = train(recipe, tiny, tmp_path / "whole")
    assert_equal_weights(run, whole)


def test_a_nan_gradient_does_not_change_the_weights(monkeypatch, tiny, recipe_of, tmp_path):
    class Poison(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * math.inf

    def poisoned(*args):
        (term,) = real(*args)
        return (term._replace(total=Poison.apply(term.total)),)

    real = epoch_module.loss_terms
    monkeypatch.setattr(epoch_module, "loss_terms", poisoned)
    with pytest.raises(TrainingError, match=r"the norm of the gradient is (nan|inf) at step 0"):
        train(recipe_of(save_every=1), tiny, tmp_path / "run")
    assert state.find_state(tmp_path / "run") is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_nan_metric_saves_no_weights(scripted, tiny, recipe_of, tmp_path, value):
    scripted(4.0, value)
    with pytest.raises(TrainingError, match=r"'perplexity' has no finite value after epoch 2.*training\.clip_norm"):
        train(recipe_of(metrics=["perplexity"]), tiny, tmp_path / "run")
    assert load_trained_model(tmp_path / "run").config.provenance["validation_perplexity"] == 4


@pytest.fixture(scope="module")
def short_run(tiny, recipe_of, tmp_path_factory):
    return train(recipe_of(epochs=1), tiny, tmp_path_factory.mktemp("short") / "run")


def test_a_run_locked_by_another_process_is_refused(tiny, recipe_of, tmp_path):
    recipe, run = recipe_of(epochs=1), tmp_path / "run"
    train(recipe, tiny, run)
    partial = run / ".state-000000099-00009.partial-0-4711"  # temporary folder of the other process
    partial.mkdir()
    with locked(run, RunError):
        with pytest.raises(RunError, match=r"run: another process is writing to it"):
            train(recipe, tiny, run, resume=True)
        assert partial.exists()
    train(recipe, tiny, run, resume=True)
    assert not partial.exists()


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "null"])
def test_a_damaged_record_of_the_recipe_is_named(tiny, recipe_of, tmp_path, content):
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.json").write_text(content)
    with pytest.raises(RunError, match=r"recipe\.json: damaged .*restore the file, or name another --out"):
        train(recipe_of(epochs=1), tiny, run, resume=True)


def test_a_failed_write_preserves_the_previous_state(monkeypatch, short_run, tmp_path, tiny, recipe_of):
    run = shutil.copytree(short_run, tmp_path / "run")
    before = state.find_state(run)

    def full(path, tensors):
        path.write_bytes(b"half")
        raise RunError(f"{path}: cannot be written")

    monkeypatch.setattr(state, "save_tensors", full)
    learner = load_trained_model(run)
    with pytest.raises(RunError, match="cannot be written"):
        state.save_state(
            run, learner.model, torch.optim.SGD(learner.model.parameters()), None, state.TrainState(step=999), []
        )
    assert not list(run.glob(".*"))
    assert state.find_state(run) == before


def test_excluded_long_sentences_are_logged_and_recorded_for_both_splits(tiny, recipe_of, tmp_path, caplog):
    train(with_(recipe_of(epochs=1), data={"max_tokens": 3}), tiny, tmp_path / "run")
    logged = [record.getMessage() for record in caplog.records if record.name == "limner.training.loop"]
    assert "split 'train': skipped 33 sentences of over 3 tokens (data.max_tokens)" in logged
    assert "split 'val': skipped 9 sentences of over 3 tokens (data.max_tokens)" in logged
    assert ModelConfig.load(tmp_path / "run" / "config.json").provenance["notes"] == logged


def test_another_recipe_is_not_resumed(short_run, tiny, recipe_of):
    with pytest.raises(RunError, match=r"recipe\.model\.dropout was 0\.0 and is now 0\.5"):
        train(recipe_of(epochs=1, model={"dropout": 0.5}), tiny, short_run, resume=True)


def with_(recipe, **sections):
    """A recipe with other settings of some sections."""
    return recipe.model_copy(
        update={name: getattr(recipe, name).model_copy(update=changes) for name, changes in sections.items()}
    )


def test_settings_that_do_not_affect_training_do_not_prevent_resuming(short_run, tiny, recipe_of, tmp_path):
    recipe = recipe_of(epochs=1)
    run = shutil.copytree(short_run, tmp_path / "run")
    later = {"shortlist": 5, "samples": 3, "prefix_words": 2}
    train(with_(recipe, evaluation=later), tiny, run, resume=True)
    train(recipe.model_copy(update={"description": "reworded"}), tiny, run, resume=True)
    train(with_(recipe, training={"save_every": 7}), tiny, run, resume=True)
    with pytest.raises(RunError, match=r"recipe\.evaluation\.skip_words was 0 and is now 1"):
        train(with_(recipe, evaluation={"skip_words": 1}), tiny, run, resume=True)
    with pytest.raises(RunError, match=r"recipe\.decoding\.max_length was 12 and is now 9"):  # it decodes: bleu4
        train(with_(recipe, decoding={"max_length": 9}), tiny, run, resume=True)
    alone = recipe_of(epochs=1, metrics=["perplexity"])
    train(alone, tiny, tmp_path / "other")
    train(with_(alone, decoding={"max_length": 9}), tiny, tmp_path / "other", resume=True)


def test_sentences_too_short_to_score_are_an_error_before_the_run_is_created(tiny, recipe_of, tmp_path):
    recipe = with_(recipe_of(epochs=1), evaluation={"skip_words": 5})
    message = r"skip_words=5 leaves out sentences of fewer than 8 tokens, and the longest in split 'val' has 5; .*=0"
    counted = recipe.model_copy(update={"model": Recipe.parse({"model": {"name": "ngram"}}).model})
    for one in (recipe, counted):
        with pytest.raises(SettingsError, match=message):
            train(one, tiny, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(with_(recipe, evaluation={"skip_words": 2}), tiny, tmp_path / "run")  # five words are enough for these


def test_another_collection_is_not_resumed(short_run, own_tiny, recipe_of):
    write_items(own_tiny.path, [Item("more", "train", sentences=(ItemSentence("en", "a new wall"),))])
    with pytest.raises(RunError, match=r"data was .* and is now"):
        train(recipe_of(epochs=1), Collection.open(own_tiny.path), short_run, resume=True)


def test_other_features_are_not_resumed(short_run, own_tiny, recipe_of, backbone_of):
    shutil.rmtree(own_tiny.path / "features" / "colour.lance")
    extract(own_tiny, backbone_of(version="2"))
    with pytest.raises(RunError, match=r"features was .* and is now"):
        train(recipe_of(epochs=1), own_tiny, short_run, resume=True)


def test_an_image_without_features_is_an_error_before_training(own_tiny, recipe_of, tmp_path):
    write_items(own_tiny.path, [Item("late", "train", image="late.png", sentences=(ItemSentence("en", "a wall"),))])
    with pytest.raises(FeatureError, match=r"split 'train' has 1 item without features 'colour', the first is 'late'"):
        train(recipe_of(), Collection.open(own_tiny.path), tmp_path / "run")


def test_training_includes_sentences_without_an_image_if_configured(own_tiny, recipe_of, tmp_path):
    """A batch of one text-only item has no image features, without an error."""
    write_items(own_tiny.path, [Item("bare", "train", sentences=(ItemSentence("en", "a wall without a picture"),))])
    run = train(recipe_of(epochs=1, batch_size=1, bucket=1), Collection.open(own_tiny.path), tmp_path / "run")
    assert "without" in load_trained_model(run).tokenizer.entries


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"weight_decay": {"nothing": 0.1}}}, "'nothing' matches none"),
        ({"training": {"metric": "meteor"}}, "'meteor' cannot be computed on this machine"),
        ({"features": {"tables": ("colour", "again")}}, "got 'colour' and 'again' of kind 'pooled'"),
        ({"data": {"lang": "fr"}}, r"no sentence in 'fr' \(languages of the split: de, en\)"),
    ],
)
def test_settings_without_meaning_are_refused_before_the_run_is_created(
    own_tiny, recipe_of, backbone_of, tmp_path, monkeypatch, changes, message
):
    monkeypatch.setitem(sys.modules, "pycocoevalcap.meteor.meteor", None)
    extract(own_tiny, backbone_of("again"))
    with pytest.raises((SettingsError, TrainingError), match=message):
        train(with_(recipe_of(), **changes), own_tiny, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_training_and_validation_on_one_split_is_refused(recipe_of):
    values = recipe_of().model_dump(mode="json") | {"data": {"val": "train"}}
    with pytest.raises(SettingsError, match=r"data: .*train and val are both 'train'.*set val to another split"):
        Recipe.parse(values)


def test_resuming_a_run_whose_best_weights_are_gone_says_so(tiny, recipe_of, tmp_path):
    run = train(recipe_of(epochs=2), tiny, tmp_path / "run")
    (run / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"run: its best weights, model\.safetensors, are gone.*; restore the file"):
        train(recipe_of(epochs=2), tiny, run, resume=True)
