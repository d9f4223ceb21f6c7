"""Exported translators: the sentences of the run, with and without the image, and the command."""

import numpy as np
import pytest
from toy_translation import BATS, GridBackbone, learn, text_collection

import limner
from limner.apps.export import folder
from limner.apps.export.folder import export
from limner.errors import RunError, SettingsError
from limner.inference import features
from limner.inference.translator import Translator

SENTENCES = ["zwei eins", "drei", "eins eins", "", "drei zwei", "eins drei"]
SEARCHES = [{}, {"beam_size": 3, "n_best": 2, "length_penalty": 1.0}]


@pytest.fixture(scope="module")
def exported(toy_run, tmp_path_factory):
    return export(toy_run, tmp_path_factory.mktemp("exported") / "exported").folder


@pytest.mark.parametrize("decoding", SEARCHES)
def test_translations_are_those_of_the_run(toy_run, exported, decoding):
    expected = Translator.load(toy_run).translate(SENTENCES, **decoding)
    found = limner.load(exported).translate(SENTENCES, batch_size=2, **decoding)
    assert [[one.text for one in n_best] for n_best in found] == [[one.text for one in n_best] for n_best in expected]
    log_probs = [[one.log_prob for n_best in decoded for one in n_best] for decoded in (found, expected)]
    np.testing.assert_allclose(*log_probs, atol=1e-4)


def test_shared_embeddings_and_a_deep_encoder_are_exported(tmp_path):
    run = learn(text_collection(tmp_path / "collection"), tmp_path / "run", level="bpe", steps=120, shared=True)
    sentences = SENTENCES[:3]
    found = limner.load(export(run, tmp_path / "exported").folder).translate(sentences)
    assert [one[0].text for one in found] == ["two one", "three", "one one"]


def test_a_multimodal_model_translates_text_alone_where_that_is_allowed(toy_image_run, tmp_path, monkeypatch):
    for module in (folder, features):
        monkeypatch.setattr(module, "load_backbone_for", lambda *_, **__: GridBackbone())
    translator = limner.load(export(toy_image_run, tmp_path / "exported").folder)
    sentences = ["the bat", "red"]
    expected = Translator.load(toy_image_run).translate(sentences, missing="text")
    found = translator.translate(sentences, missing="text")
    assert [one[0].text for one in found] == [one[0].text for one in expected]
    with pytest.raises(SettingsError, match="image"):
        translator.translate(sentences)
    photo = toy_image_run.parent / "collection" / f"{next(iter(BATS))}.png"
    with pytest.raises(RunError, match="exported without a backbone"):
        translator.translate(sentences, images=[photo, photo])
