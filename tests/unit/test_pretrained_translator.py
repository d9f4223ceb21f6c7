"""The built-in translator: its folders, the choice of a direction, and translation without torch."""

import pytest
from running_service import with_service
from test_startup import modules_of
from toy_translation import learn, text_collection
from typer.testing import CliRunner

from limner.apps.cli import app
from limner.apps.export.folder import add_graphs
from limner.apps.server.models import load_served_models
from limner.apps.server.settings import ServerSettings
from limner.errors import SettingsError
from limner.inference.load import load
from limner.inference.translator import Translator
from limner.runs import pretrained
from limner.runs.pretrained import pack, pretrained_languages, pretrained_pairs, pretrained_translator

SENTENCES = ["zwei eins", "drei", "", "eins drei"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A package with a small translator from German to English, its weights in float16."""
    place = tmp_path_factory.mktemp("package")
    run = learn(text_collection(place / "collection"), place / "run", level="bpe", steps=120, shared=True)
    pack(run, place / "pretrained" / "de-en", "Translator", {"beam_size": 3})
    add_graphs(place / "pretrained" / "de-en")
    return place / "pretrained"


@pytest.fixture
def package(packed, monkeypatch):
    monkeypatch.setattr(pretrained, "PRETRAINED", packed)
    return packed


def test_a_direction_is_chosen_by_its_languages(package):
    assert pretrained_pairs() == (("de", "en"),)
    assert pretrained_languages() == ()
    for languages in (("en", None), ("en", "de"), (None, "de")):
        assert pretrained_translator(*languages) == package / "de-en"
    for languages in (("de", None), ("en", "fr"), (None, "en")):
        with pytest.raises(SettingsError, match="the built-in translator has de to en"):
            pretrained_translator(*languages)


def test_graphs_without_weights_translate_as_the_run(package):
    translator, run = load(to="en"), Translator.load(package / "de-en")
    assert translator.decoding.beam_size == 3
    texts, expected = ([n_best[0].text for n_best in model.translate(SENTENCES)] for model in (translator, run))
    assert texts == expected and texts[:3] == ["two one", "three", ""]


def test_options_that_contradict_each_other_are_refused(package):
    with pytest.raises(SettingsError, match="selects the built-in translator"):
        load(package / "de-en", to="en")
    with pytest.raises(SettingsError, match="leave out lang"):
        load(lang="de", to="en")
    for options, error in (
        (["--to", "en", "--model", "run"], "has no effect on --model"),
        (["--from", "en"], "the built-in translator has de to en"),
        ([], "expected --to de or --to en"),
    ):
        assert error in str(CliRunner().invoke(app, ["translate", "drei", *options]).exception)


def test_the_command_translates_without_torch(package):
    place = (
        f"from pathlib import Path\nfrom limner.runs import pretrained\npretrained.PRETRAINED = Path({str(package)!r})"
    )
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
        body = {"q": CAPTIONS["en", "de"][0][0], "source": "auto", "target": "de"}
        answer = (await client.post("/translate", json=body)).json()
        return (await client.get("/languages")).json(), answer["translatedText"]

    languages, text = with_service(load_served_models(ServerSettings()), use)
    assert [(entry["code"], entry["targets"]) for entry in languages] == [("en", ["de"]), ("de", ["en"])]
    assert "Hunde" in text and "Schnee" in text


def test_several_sentences_in_one_text_are_logged(caplog):
    result = CliRunner().invoke(app, ["translate", "Two dogs run. A man sleeps.", "Dr. no one", "--to", "de"])
    assert result.exit_code == 0
    assert "1 of 2 texts: the built-in translator reads several sentences as one" in caplog.text
