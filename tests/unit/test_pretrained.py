"""The built-in captioner: its folders, its weights in float16, and which model is used when none is named."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

from limner.apps.cli import app
from limner.errors import RunError, SettingsError
from limner.features.encoders.load import load_backbone_for
from limner.inference.features import load_backbone_of
from limner.inference.load import load
from limner.runs import pretrained
from limner.runs.pretrained import choose_runs, is_pretrained, pack, pretrained_languages, pretrained_run
from limner.runs.trained_model import load_trained_model, read_config


@pytest.fixture
def package(trained_on_colours, tmp_path, monkeypatch):
    """A package whose captioner is a small model, in two languages."""
    monkeypatch.setattr(pretrained, "PRETRAINED", tmp_path / "pretrained")
    for lang in ("de", "en"):
        pack(trained_on_colours, tmp_path / "pretrained" / lang, f"Captioner, {lang}", {"beam_size": 3})
    return tmp_path / "pretrained"


def test_languages_are_the_folders_of_the_package(package):
    assert pretrained_languages() == ("en", "de")
    assert pretrained_run() == package / "en"
    assert pretrained_run("de") == package / "de"
    assert is_pretrained(package / "de")
    assert not is_pretrained(package)


def test_packed_weights_are_float16_and_computed_in_float32(package, trained_on_colours):
    stored, original = load_trained_model(package / "en"), load_trained_model(trained_on_colours)
    with safe_open(package / "en" / "model.safetensors", framework="pt") as weights:
        assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.float16}  # noqa: SIM118
    for name, weight in stored.model.state_dict().items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, original.model.state_dict()[name].half().float()), name
    assert stored.recipe.decoding.beam_size == 3
    assert stored.recipe.model == original.recipe.model


def test_packed_models_name_no_folder_of_the_training(package, trained_on_colours):
    original, packed = read_config(trained_on_colours)[0], read_config(package / "en")[0]
    assert {"collection", "command"} <= set(original.provenance)
    assert not {"collection", "command", "init"} & set(packed.provenance)
    assert packed.provenance["seed"] == original.provenance["seed"]


@pytest.mark.parametrize("config", sorted(pretrained.PRETRAINED.glob("*/*.json")), ids=str)
def test_the_package_names_no_folder_of_the_training(config):
    assert "--collection" not in config.read_text(encoding="utf-8")


def test_weights_out_of_the_range_of_float16_are_refused(trained_on_colours, tmp_path, monkeypatch):
    trained = load_trained_model(trained_on_colours)
    with torch.no_grad():
        next(iter(trained.model.parameters())).fill_(1e6)
    monkeypatch.setattr("limner.runs.trained_model.load_trained_model", lambda run: trained)
    with pytest.raises(RunError, match="in float16"):
        pack(trained_on_colours, tmp_path / "packed", "captioner", {})
    assert not (tmp_path / "packed" / "model.safetensors").exists()


def test_the_built_in_captioner_is_used_when_no_run_is_named(package, trained_on_colours):
    assert choose_runs([], None) == (package / "en",)
    assert choose_runs([], "de") == (package / "de",)
    assert choose_runs([trained_on_colours], None) == (trained_on_colours,)
    assert load(lang="de", encode_images=False).models[0].config.recipe["description"] == "Captioner, de"


def test_a_language_without_a_captioner_is_named(package, trained_on_colours):
    with pytest.raises(SettingsError, match="lang 'fr': the built-in captioner has the languages en, de"):
        load(lang="fr")
    for lang in ("German", "de-CH"):
        with pytest.raises(SettingsError, match=rf"lang '{lang}': .* en, de; did you mean 'de'\?"):
            load(lang=lang)
    with pytest.raises(SettingsError, match="has no effect on"):
        load(trained_on_colours, lang="de")
    result = CliRunner().invoke(app, ["score", "photo.jpg", "a dog", "--lang", "fr"])
    assert "the built-in captioner has the languages en, de" in str(result.exception)


def test_a_package_without_weights_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "PRETRAINED", tmp_path)
    with pytest.raises(RunError, match="install Limner again"):
        load()


@pytest.mark.parametrize("lang", ["en", "de", "zh"])
def test_the_package_has_a_captioner_of_every_language(lang):
    captioner, trained = load(lang=lang), load_trained_model(pretrained.pretrained_run(lang))
    assert captioner.lang == trained.recipe.data.lang == lang
    assert captioner.decoding == trained.recipe.decoding
    assert captioner.decoding.beam_size > 1
    (features,) = trained.config.features
    assert (features.source, features.kind) == ("efficientnet-lite2", "grid")


def test_the_weights_of_the_package_are_small():
    folders = [pretrained.PRETRAINED / lang for lang in pretrained_languages()]
    sizes = [file.stat().st_size for folder in folders for file in folder.glob("*.safetensors")]
    assert 0 < sum(sizes) <= 24 * 2**20


def test_the_backbone_of_8_bits_computes_the_features_of_the_network():
    model = load_trained_model(pretrained.PRETRAINED / "en")
    network, graph = load_backbone_for(model.config.features, precision="fp32"), load_backbone_of(model)
    for photograph in sorted((Path(__file__).parents[2] / "docs/assets/photographs").glob("*.jpg"))[:4]:
        exact, computed = (
            np.float32(backbone(backbone.read(photograph)[None])["grid"][0]).mean(0) for backbone in (network, graph)
        )
        assert exact @ computed > 0.993 * np.linalg.norm(exact) * np.linalg.norm(computed), photograph
        assert not np.array_equal(exact, computed)
        assert 0.9 < computed.sum() / exact.sum() < 1.1, photograph
