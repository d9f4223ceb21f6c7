"""Saved models: round trips, and errors that name the damaged file."""

import json
import shutil
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from limner.data.examples import Example, collate
from limner.errors import RunError
from limner.models import ModelInputs, build_model
from limner.runs.recipe import Recipe
from limner.runs.trained_model import ModelConfig, TrainedModel, load_trained_model, save_trained_model, sha256
from limner.text.tokenizer import Tokenizer
from limner.text.words import TextSettings
from limner.training.state import find_state

FILES = ("config.json", "tokenizer.json", "model.safetensors", "README.md")


@pytest.fixture
def run(trained_on_colours, tmp_path):
    """A copy of a trained run, to be damaged."""
    return shutil.copytree(trained_on_colours, tmp_path / "run")


def logits(checkpoint):
    batch = collate([Example("a", [4, 5, 6], image={"pooled": torch.rand(3).half().numpy()})])
    with torch.inference_mode():
        return checkpoint.model(batch).logits


def test_a_round_trip_changes_nothing(run, tmp_path):
    first = load_trained_model(run)
    save_trained_model(tmp_path / "again", first)
    second = load_trained_model(str(tmp_path / "again"))
    torch.manual_seed(0)
    expected = logits(first)
    torch.manual_seed(0)
    assert torch.equal(logits(second), expected)
    assert second.tokenizer.entries == first.tokenizer.entries
    assert second.recipe == first.recipe
    assert second.config == first.config
    assert not second.model.training
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == sorted(FILES)


def test_the_config_records_the_origin_of_the_model(run):
    facts = load_trained_model(run).config.provenance
    assert {"collection", "collection_fingerprint", "seed", "command", "torch", "limner", "machine"} <= set(facts)
    card = (run / "README.md").read_text()
    assert "limner describe" in card
    assert facts["collection_fingerprint"] in card


def test_the_vocabulary_of_another_model_is_refused(run):
    Tokenizer.train(["quite other words"], TextSettings()).save(run / "tokenizer.json")
    with pytest.raises(RunError, match=r"tokenizer\.json: expected the vocabulary .*restore"):
        load_trained_model(run)


def test_a_recipe_of_another_version_is_refused(run):
    change_config(run, lambda config: config["recipe"]["model"].update(heads=8))
    with pytest.raises(RunError, match=r"config\.json: model\.heads: unknown key.*restore"):
        load_trained_model(run)


def change_config(run, change):
    config = json.loads((run / "config.json").read_text())
    change(config)
    (run / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("decoding", lambda config: config["recipe"]["decoding"].update(beam_size=2)),
        ("model", lambda config: config["recipe"]["model"].update(embedding_activation="relu")),
        ("text", lambda config: config["recipe"]["text"].update(lowercase=False)),
        ("features", lambda config: config["features"][0]["preprocessing"].update(size=8)),
        ("features", lambda config: config["features"].append(config["features"][0])),
        ("tokenizer_sha256", lambda config: config.update(tokenizer_sha256="0" * 64)),
    ],
)
def test_settings_other_than_those_of_the_weights_are_named(run, section, change):
    change_config(run, change)
    with pytest.raises(RunError, match=rf"config\.json: expected the settings .* others in {section}; restore"):
        load_trained_model(run)


def test_what_does_not_determine_results_may_change(run):
    before = load_trained_model(run)
    change_config(run, lambda config: config["provenance"].update(collection="/elsewhere"))
    change_config(run, lambda config: config["recipe"].update(description="another"))
    change_config(run, lambda config: config["recipe"]["training"].update(epochs=99))
    change_config(run, lambda config: config["features"][0].update(name="moved"))
    after = load_trained_model(run)
    assert after.recipe.training.epochs == 99 and after.config.features[0].name == "moved"
    assert all(
        torch.equal(weights, after.model.state_dict()[name]) for name, weights in before.model.state_dict().items()
    )
    assert after.tokenizer.entries == before.tokenizer.entries


def test_weights_of_earlier_versions_are_loaded_without_digests_of_the_settings(run):
    save_file(load_file(run / "model.safetensors"), run / "model.safetensors")
    change_config(run, lambda config: config["recipe"]["decoding"].update(beam_size=2))
    assert load_trained_model(run).recipe.decoding.beam_size == 2


def test_a_vocabulary_of_another_size_is_refused(run):
    save_file(load_file(run / "model.safetensors"), run / "model.safetensors")
    Tokenizer.train(["quite other words"], TextSettings()).save(run / "tokenizer.json")
    change_config(run, lambda config: config.update(tokenizer_sha256=sha256(run / "tokenizer.json")))
    with pytest.raises(RunError, match=r"tokenizer\.json: expected a vocabulary of .* entries, found 7; restore"):
        load_trained_model(run)


@pytest.mark.parametrize(("kind", "shape"), [("pooled", []), ("grid", [3]), ("maps", [3, 4]), ("maps", [2, 3, 4, 4])])
def test_features_of_an_impossible_shape_are_refused(run, kind, shape):
    change_config(run, lambda config: config["features"][0].update(kind=kind, shape=shape))
    with pytest.raises(RunError, match=rf"config\.json: .*the shape of {kind}, got {len(shape)}; restore"):
        load_trained_model(run)


def test_weights_that_do_not_fit_are_named(run):
    weights = load_file(run / "model.safetensors")
    save_file({**weights, "softmax.bias": torch.zeros(3)}, run / "model.safetensors")
    with pytest.raises(RunError, match=r"weight 'softmax\.bias': expected shape \(\d+,\), found \(3,\)"):
        load_trained_model(run)
    moved = {name.replace("softmax", "output"): value for name, value in weights.items()}
    save_file(moved, run / "model.safetensors")
    with pytest.raises(RunError, match=r"missing softmax\.bias, .*unknown output\.bias.*restore"):
        load_trained_model(run)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not limit the size of files")
@pytest.mark.parametrize(("name", "share"), [("tokenizer.json", 0.5), ("model.safetensors", 0.9)])
def test_a_full_disk_is_an_error_and_preserves_the_old_model(run, name, share, file_size_limit):
    def contents():  # the model card is written first, and has the times of the record
        return {path.name: path.read_bytes() for path in run.iterdir() if path.is_file() and path.name != "README.md"}

    before, model = contents(), load_trained_model(run)
    message = rf"{name}: cannot be written \(.*free disk space.*--resume"
    with file_size_limit(int(share * (run / name).stat().st_size)), pytest.raises(RunError, match=message):
        save_trained_model(run, model)
    assert contents() == before
    load_trained_model(run)


def test_nothing_in_a_run_is_a_pickle(run):
    """Every file is text, safetensors or TensorBoard's own log."""
    assert find_state(run) is not None
    for path in run.rglob("*"):
        if path.is_dir():
            continue
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as tensors:
                assert tensors.keys() is not None
        elif "tensorboard" not in path.parts:
            assert path.suffix in (".json", ".jsonl", ".md"), path
            path.read_text(encoding="utf-8")
        head = path.read_bytes()[:4]
        assert head[:1] != b"\x80", f"{path} begins as a pickle does"
        assert head != b"PK\x03\x04", f"{path} begins as an archive of torch.save does"


@pytest.mark.parametrize(
    "name", ["train_state.json", "model.safetensors", "optimizer.safetensors", "rng_state.safetensors"]
)
def test_a_damaged_state_is_named(run, tiny, recipe_of, name):
    from limner.training.loop import train

    state = find_state(run)
    (state / name).write_bytes((state / name).read_bytes()[:20])
    with pytest.raises(RunError, match=rf"state-\S+{name}: (missing or )?damaged"):
        train(recipe_of(epochs=20, validate_every=5), tiny, run, resume=True)


def test_temporary_files_of_a_killed_run_are_removed(run):
    (run / ".state-000000999-00002.partial-4711").mkdir()
    (run / ".state-000000999-00002.partial-4711" / "model.safetensors").write_bytes(b"half")
    (run / ".model.safetensors.partial-4711").write_bytes(b"half")
    (run / ".gitignore").write_text("mine")
    newest = find_state(run)
    assert (newest / "train_state.json").exists()
    assert [path.name for path in run.glob(".*")] == [".gitignore"]


@pytest.fixture
def translator(tmp_path):
    """An untrained translation model and its run directory."""
    sizes = {"embedding_dim": 4, "hidden_dim": 5, "attention_dim": 3, "readout_dim": 4}
    recipe = Recipe.parse(
        {
            "data": {"lang": "de", "source_lang": "en", "synthetic": 0.5},
            "model": {"name": "nmt", **sizes, "tie_embeddings": True},
        }
    )
    german, english = (Tokenizer.train([text], TextSettings()) for text in ("eine rote wand", "a wall"))
    model = build_model(recipe.model, ModelInputs(len(german), {}, len(english))).eval()
    config = ModelConfig(
        recipe=recipe.model_dump(mode="json"), vocab_size=len(german), source_vocab_size=len(english), features=()
    )
    checkpoint = TrainedModel(model, german, config, recipe, english)
    folder = tmp_path / "translator"
    folder.mkdir()
    save_trained_model(folder, checkpoint)
    return checkpoint, folder


def test_a_translation_model_round_trips_with_both_vocabularies(translator):
    saved, folder = translator
    loaded = load_trained_model(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted((*FILES, "source_tokenizer.json"))
    assert loaded.tokenizer.entries == saved.tokenizer.entries
    assert loaded.source.tokenizer.entries == saved.source_tokenizer.entries
    assert (loaded.source.lang, loaded.recipe) == ("en", saved.recipe)
    batch = collate([Example("a", [4, 5], source=[5, 4]), Example("b", [], source=[4])])
    with torch.inference_mode():
        assert torch.equal(loaded.model(batch).logits, saved.model(batch).logits)


def test_a_captioning_model_has_no_source_vocabulary(run):
    loaded = load_trained_model(run)
    assert loaded.source is None
    assert loaded.source_tokenizer is None
    assert not (run / "source_tokenizer.json").exists()


def test_a_missing_or_changed_source_vocabulary_is_refused(translator):
    _, folder = translator
    shutil.copy(folder / "tokenizer.json", folder / "source_tokenizer.json")
    with pytest.raises(RunError, match=r"source_tokenizer\.json: expected the vocabulary .*restore"):
        load_trained_model(folder)
    (folder / "source_tokenizer.json").unlink()
    with pytest.raises(RunError, match=r"source_tokenizer\.json: cannot be read"):
        load_trained_model(folder)
