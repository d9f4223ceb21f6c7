"""The built-in captioner: its folders, its weights in float16, and which model is used when none is named."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from running_service import with_service
from safetensors import safe_open
from test_process import modules_of
from toy_translation import learn, text_collection
from typer.testing import CliRunner

from limner.apps.cli import app
from limner.apps.server.models import load_served_models
from limner.apps.server.settings import ServerSettings
from limner.errors import RunError, SettingsError
from limner.features.encoders.load import load_backbone_for
from limner.inference.features import load_backbone_of
from limner.inference.load import load
from limner.inference.translator import Translator
from limner.runs import pretrained
from limner.runs.concepts import Concepts
from limner.runs.pretrained import (
    PRETRAINED,
    choose_runs,
    is_pretrained,
    pretrained_languages,
    pretrained_pairs,
    pretrained_run,
    pretrained_translator,
)
from limner.runs.trained_model import load_trained_model, read_config

SCRIPTS = Path(__file__).parents[2] / "pretrained"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(SCRIPTS)
    pack_run = importlib.import_module("pack_run")


@pytest.fixture
def package(trained_on_colours, tmp_path, monkeypatch):
    """A package whose captioner is a small model, in two languages."""
    monkeypatch.setattr(pretrained, "PRETRAINED", tmp_path / "pretrained")
    for lang in ("de", "en"):
        pack_run.pack(trained_on_colours, tmp_path / "pretrained" / lang, f"Captioner, {lang}", {"beam_size": 3})
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
    monkeypatch.setattr(pack_run, "load_trained_model", lambda run: trained)
    with pytest.raises(RunError, match="in float16"):
        pack_run.pack(trained_on_colours, tmp_path / "packed", "captioner", {})
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
    for photograph in sorted((SCRIPTS.parent / "docs/assets/photographs").glob("*.jpg"))[:4]:
        exact, computed = (
            np.float32(backbone(backbone.read(photograph)[None])["grid"][0]).mean(0) for backbone in (network, graph)
        )
        assert exact @ computed > 0.993 * np.linalg.norm(exact) * np.linalg.norm(computed), photograph
        assert not np.array_equal(exact, computed)
        assert 0.9 < computed.sum() / exact.sum() < 1.1, photograph


@pytest.fixture
def script(monkeypatch):
    """Imports a script: script(name)."""
    monkeypatch.syspath_prepend(SCRIPTS)
    before = set(sys.modules)
    yield importlib.import_module
    scripts = {"concepts", "measure_photographs", "non_photographs", "pack_concepts", "pseudo_captions", "things"}
    for name in scripts & (set(sys.modules) - before):
        del sys.modules[name]


def test_generated_images_depend_on_their_seed_alone(script):
    drawn = script("non_photographs")
    for kind in drawn.KINDS:
        image, again, other = (drawn.draw_non_photograph(kind, seed) for seed in (1, 1, 2))
        assert image.tobytes() == again.tobytes() and (image.size, image.tobytes()) != (other.size, other.tobytes())
    assert set(drawn.HELD_OUT) < set(drawn.KINDS)


def test_the_concepts_of_the_package_are_those_of_the_tables(script):
    pack = script("pack_concepts")
    words = [concept.name for concept in Concepts.load(PRETRAINED / "en").file.concepts]
    for lang in ("en", "de", "zh"):
        file = Concepts.load(PRETRAINED / lang).file
        if lang != "en":
            words = [word for word in words if word in {*pack.things(), *pack.kinds(), pack.PHOTOGRAPH}]
            assert file.names == pack.translated_names(words, lang)
        assert list(file.concepts) == [pack.concept_of(word, lang) for word in words]


def test_plain_sentences_are_grammatical(script):
    concept_of = script("pack_concepts").concept_of
    english = {word: concept_of(word, "en").sentence for word in ("hourglass", "ATM", "uniform", "sunglasses", "water")}
    assert [sentence.removeprefix("a photo of ") for sentence in english.values()] == [
        "an hourglass", "an ATM", "a uniform", "a pair of sunglasses", "water"
    ]  # fmt: skip
    german = [concept_of(word, "de").sentence for word in ("elephant", "bear", "cat", "horses", "food", "sky", "beet")]
    assert [sentence.removeprefix("Ein Foto ") for sentence in german] == [
        "von einem Elefanten", "von einem Bären", "von einer Katze", "von Pferden", "von Essen", "vom Himmel",
        "von einer Roten Bete",
    ]  # fmt: skip


SENTENCES = ["zwei eins", "drei", "", "eins drei"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A translators with a small translator from German to English, its weights in float16."""
    place = tmp_path_factory.mktemp("translators")
    run = learn(text_collection(place / "collection"), place / "run", level="bpe", steps=120, shared=True)
    pack_run.pack(run, place / "pretrained" / "de-en", "Translator", {"beam_size": 3})
    pack_run.add_graphs(place / "pretrained" / "de-en")
    return place / "pretrained"


@pytest.fixture
def translators(packed, monkeypatch):
    monkeypatch.setattr(pretrained, "PRETRAINED", packed)
    return packed


def test_a_direction_is_chosen_by_its_languages(translators):
    assert pretrained_pairs() == (("de", "en"),)
    assert pretrained_languages() == ()
    for languages in (("en", None), ("en", "de"), (None, "de")):
        assert pretrained_translator(*languages) == translators / "de-en"
    for languages in (("de", None), ("en", "fr"), (None, "en")):
        with pytest.raises(SettingsError, match=r"the built-in translator \(de to en\), got"):
            pretrained_translator(*languages)


def test_graphs_without_weights_translate_as_the_run(translators):
    translator, run = load(to="en"), Translator.load(translators / "de-en")
    assert translator.decoding.beam_size == 3
    texts, expected = ([n_best[0].text for n_best in model.translate(SENTENCES)] for model in (translator, run))
    assert texts == expected and texts[:3] == ["two one", "three", ""]


def test_options_that_contradict_each_other_are_refused(translators):
    with pytest.raises(SettingsError, match="selects the built-in translator"):
        load(translators / "de-en", to="en")
    with pytest.raises(SettingsError, match="leave out lang"):
        load(lang="de", to="en")
    for options, error in (
        (["--to", "en", "--model", "run"], "has no effect on --model"),
        (["--from", "en"], "the built-in translator (de to en), got en to no target"),
        ([], "expected --to de or --to en"),
    ):
        assert error in str(CliRunner().invoke(app, ["translate", "drei", *options]).exception)


def test_the_command_translates_without_torch(translators):
    place = "from pathlib import Path\nfrom limner.runs import pretrained\n"
    place += f"pretrained.PRETRAINED = Path({str(translators)!r})"
    modules, printed = modules_of("translate", "zwei eins", "--to", "en", before=place)
    assert printed.startswith("two one\n") and not modules & {"torch", "transformers", "lance", "pyarrow"}


CAPTIONS = {
    ("en", "de"): [
        ("Two dogs are running through the snow.", ("Hunde", "Schnee")),
        ("A man with a hat is riding a bicycle down the street.", ("Mann", "Straße")),
        ("A little girl in a red dress, who's laughing, sits on a bench!", ("Mädchen", "Bank")),
    ],
    ("de", "en"): [
        ("Zwei Hunde rennen durch den Schnee.", ("dogs", "snow")),
        ("Ein Mann mit Hut fährt auf einem Fahrrad die Straße entlang.", ("man", "street")),
        ("Ein kleines Mädchen in einem roten Kleid sitzt lachend auf einer Bank!", ("girl", "bench")),
    ],
}


@pytest.mark.parametrize("languages", CAPTIONS, ids="-".join)
def test_the_package_translates_captions_as_the_trained_model_does(languages):
    source, target = languages
    sentences, words = zip(*CAPTIONS[languages], strict=True)
    translations = load(to=target).translate(sentences, n_best=2)
    for n_best, expected in zip(translations, words, strict=True):
        assert set(expected) <= set(n_best[0].text.replace(".", "").split()), n_best[0].text
    trained = Translator.load(pretrained_translator(target, source)).translate(sentences, n_best=2)
    tokens = [[[translation.tokens for translation in n_best] for n_best in model] for model in (translations, trained)]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("languages", CAPTIONS, ids="-".join)
def test_a_translator_of_the_package_is_small_and_has_a_card(languages):
    folder = pretrained.PRETRAINED / "-".join(languages)
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 12_000_000
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "Multi30k" in card and "for research" in card and "BLEU4" in card


def test_the_service_offers_the_translator_to_clients_of_libretranslate():
    async def use(client):
        bodies = [{"q": CAPTIONS["en", "de"][0][0], "source": "auto", "target": lang} for lang in ("de", "en")]
        answers = [(await client.post("/translate", json=body)).json()["translatedText"] for body in bodies]
        return (await client.get("/languages")).json(), answers

    languages, (text, unchanged) = with_service(load_served_models(ServerSettings()), use)
    assert [(entry["code"], entry["targets"]) for entry in languages] == [("en", ["de"]), ("de", ["en"])]
    assert "Hunde" in text and "Schnee" in text and unchanged == CAPTIONS["en", "de"][0][0]


def test_capitals_are_read_as_small_letters_and_another_language_is_named(caplog):
    translator = load(pretrained.pretrained_translator("de"))
    capitals, small = (best.text for (best, *_) in translator.translate(["TWO DOGS RUN.", "Two dogs run."]))
    assert capitals == small and "hund" in small.lower()
    assert CliRunner().invoke(app, ["translate", "Zwei Hunde laufen im Schnee.", "--to", "de"]).exit_code == 0
    assert "this looks like German (de), and the translator reads English (en)" in caplog.text


def test_several_sentences_in_one_text_are_logged_also_with_plots(caplog, tmp_path):
    texts, plots = ("Two dogs run. A man sleeps.", "Dr. no one"), ("--attention", str(tmp_path / "plots"))
    assert CliRunner().invoke(app, ["translate", *texts, "--to", "de", *plots]).exit_code == 0
    assert "1 of 2 texts: the built-in translator reads several sentences as one" in caplog.text
