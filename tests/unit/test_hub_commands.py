"""Commands, the index of a folder and the service with tiny models in the format of transformers."""

import base64
import json
import socket

import numpy as np
import pytest
from huggingface_hub import constants
from PIL import Image
from running_service import with_service

import limner
from hub_models import GERMAN, save_model
from limner.apps.server.models import load_served_models
from limner.apps.server.settings import ServerSettings
from limner.errors import SettingsError


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Folder with a tiny model of each family."""
    place = tmp_path_factory.mktemp("models")
    for family in ("blip", "marian", "m2m_100", "siglip"):
        save_model(family, place / family, max_length=8)
    return place


@pytest.fixture
def photos(tmp_path):
    for name, seed in (("one", 1), ("two", 2)):
        values = np.random.default_rng(seed).integers(0, 255, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(values).save(tmp_path / f"{name}.png")
    return tmp_path


def test_a_folder_is_described_indexed_searched_and_written_as_sidecars(hub, photos, command_line):
    blip, siglip = hub / "blip", hub / "siglip"
    expected = [caption.text for (caption,) in limner.load(blip).describe([photos / "one.png", photos / "two.png"])]
    status, printed, _ = command_line("describe", photos, "--model", blip, "--write", "xmp")
    assert status == 0
    assert [line.split("\t")[1] for line in printed.splitlines()] == expected
    assert expected[0] in (photos / "one.png.xmp").read_text()
    assert command_line("index", photos, "--model", blip, "--retriever", siglip)[0] == 0
    _, printed, _ = command_line("score", photos / "one.png", "a red dog", "--model", siglip, "--json")
    (score,) = json.loads(printed)
    _, printed, _ = command_line("search", "a red dog", "--in", photos, "--json")
    matches = {entry["image"]: entry for entry in json.loads(printed)}
    assert matches[str(photos / "one.png")]["score"] == pytest.approx(score["score"], abs=0.05)  # stored in float16
    assert matches[str(photos / "one.png")]["caption"] == expected[0]
    status, printed, _ = command_line("index", photos, "--model", blip)  # the joint space is that of the index
    assert status == 0 and "2 unchanged" in printed


def test_scores_and_translations_are_printed(hub, photos, command_line):
    _, printed, _ = command_line("score", photos / "one.png", "a red dog", "w1", "--model", hub / "blip", "--json")
    assert [entry["tokens"] for entry in json.loads(printed)] == [4, 2]
    (translation,) = limner.load(hub / "marian").translate(["the red dog"], beam_size=2)[0]
    status, printed, _ = command_line("translate", "the red dog", "--model", hub / "marian", "--beam-size", 2)
    assert (status, printed.strip()) == (0, translation.text)


def test_settings_without_effect_are_logged(tmp_path, caplog):
    save_model("marian", tmp_path, length_penalty=-1.0, num_beams=2, renormalize_logits=True)
    limner.load(tmp_path)
    assert "renormalize_logits True" in caplog.text and "length_penalty -1.0" in caplog.text


def test_a_translator_of_many_languages_is_told_which(hub, command_line):
    save_model("m2m_100", hub / "german", max_length=8, forced_bos_token_id=GERMAN)
    (expected,) = limner.load(hub / "german").translate(["the red dog"])[0]
    languages = ("--from", "en", "--to", "de")
    _, printed, _ = command_line("translate", "the red dog", "--model", hub / "m2m_100", *languages)
    assert printed.strip() == expected.text
    model = limner.load(hub / "m2m_100", to="de", source="en")
    assert model.translate(["the red dog"])[0][0].text == expected.text and limner.load(hub / "german").lang == "de"
    with pytest.raises(SettingsError, match="forced_bos_token_id in its generation_config"):
        load_served_models(ServerSettings.parse({"models": [str(hub / "m2m_100")]}))


def test_the_service_serves_a_captioner(hub, photos):
    models = load_served_models(ServerSettings.parse({"models": [str(hub / "blip"), str(hub / "marian")]}))
    image = (photos / "one.png").read_bytes()

    async def ask(client):
        body = {"model": "blip", "prompt": "", "images": [base64.b64encode(image).decode()], "stream": False}
        return (await client.post("/api/generate", json=body)).json()

    (expected,) = limner.load(hub / "blip").describe([photos / "one.png"])[0]
    assert with_service(models, ask)["response"] == expected.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("describe", "{photo}", "--model", "{hub}/marian"), "use 'limner translate'"),
        (("describe", "{photo}", "--model", "{hub}/siglip"), "compares images and sentences"),
        (("describe", "{photo}", "--model", "{hub}/blip", "--attention", "{hub}/plots"), "needs a run"),
        (("evaluate", "--model", "{hub}/blip", "--collection", "{hub}"), "found a model of transformers"),
        (("translate", "a", "--model", "{hub}/blip"), "use 'limner describe'"),
        (("translate", "a", "--model", "{hub}/m2m_100", "--to", "xx"), "language 'xx': not among"),
        (("translate", "a", "--model", "{hub}/m2m_100"), "name one with to (limner translate --to)"),
        (("translate", "a " * 64, "--model", "{hub}/marian"), "expected at most 64 tokens, got 65"),
        (("translate", "a", "--model", "{hub}/marian", "--max-length", "65"), "expected at most 64, the positions"),
        (("describe", "{photo}", "--model", "{hub}/blip", "--max-length", "65"), "expected at most 64, the positions"),
        (("score", "{photo}", "a " * 64, "--model", "{hub}/blip"), "expected at most 63 tokens, got 64"),
        (("describe", "{photo}", "--model", "hub:example/absent"), "not available from the hub"),
        (("describe", "{photo}", "--model", "{hub}/unknown"), "model_type 'unknown'"),
        (("describe", "{photo}", "--model", "{hub}/code"), "never runs code"),
    ],
)
def test_errors_are_one_line(hub, photos, command_line, monkeypatch, arguments, message):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was opened"))
    for name, config in (("unknown", {"model_type": "unknown"}), ("code", {"model_type": "blip", "auto_map": {}})):
        (hub / name).mkdir(exist_ok=True)
        (hub / name / "config.json").write_text(json.dumps(config))
    filled = [part.format(hub=hub, photo=photos / "one.png") for part in arguments]
    status, _, errors = command_line(*filled)
    assert status == 1 and message in errors and len(errors.strip().splitlines()) == 1
