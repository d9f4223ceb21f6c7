"""Commands, the index of a folder and the service with tiny models in the format of transformers."""

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import chdir
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import transformers
from huggingface_hub import constants
from PIL import Image
from running_service import with_service

import limner
from hub_models import END, GERMAN, PAD, SIZE, START, TOWER, VISION, save_model
from limner.apps.server.jobs import token_texts
from limner.apps.server.models import load_served_models
from limner.apps.server.settings import ServerSettings
from limner.data.collection import Collection
from limner.data.examples import Item
from limner.errors import BackboneError, MissingExtraError, RunError, SettingsError
from limner.evaluation.hub import evaluate_hub
from limner.hub import generators as hub_generators
from limner.hub import inputs
from limner.hub.families.joint_space import HubSpace
from limner.hub.inputs import HubTokenizer, without_preamble
from limner.inference.load import load_hub
from limner.metrics.ranks import rank_all
from limner.runs.evaluations import Evaluation, load_evaluation
from limner.runs.pretrained import results_folder
from limner.runs.recipe import load_recipe
from limner.synthetic.scenes import SceneSettings
from limner.synthetic.storage import generate_collection
from limner.text.tokenizer import Tokenizer

OFFLINE = """
import json, sys
from pathlib import Path
from limner.apps.cli import main
events, opened = ("socket.connect", "socket.getaddrinfo"), []
sys.addaudithook(lambda event, values: opened.append(event) if event in events else None)
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["limner", *arguments]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, arguments
lines = Path("/proc/self/net/snmp").read_text().splitlines()
counts = dict(zip(*(line.split()[1:] for line in lines if line.startswith("Ip:"))))
print(json.dumps([opened, int(counts["OutNoRoutes"]), int(counts["OutRequests"])]))
"""
"""Commands in one process, and what it has sent: also native code counts where the process has a network of its own."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Folder with a tiny model of each family."""
    place = tmp_path_factory.mktemp("models")
    for family in ("blip", "clip", "idefics3", "marian", "m2m_100", "mbart", "siglip"):
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


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_connection_is_opened_without_a_name_of_the_hub(hub, photos, tmp_path):
    cache, image, unshared = tmp_path / "cache", str(photos / "one.png"), ["unshare", "--map-root-user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*unshared, "true"], capture_output=True).returncode:
        unshared = []  # not permitted here: Python's own connections are found, and the files of telemetry
    commands = [["describe", image], ["index", str(photos)], ["search", "a dog", "--in", str(photos)]]
    commands += [["translate", "a dog", "--to", "de"], ["score", image, "a dog", "--model", str(hub / "clip")]]
    commands += [["describe", image, "--model", str(hub / "blip")]]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "HOME": str(tmp_path)}
    program = [sys.executable, "-c", OFFLINE, json.dumps(commands)]
    done = subprocess.run([*unshared, *program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    opened, unreachable, sent = json.loads(done.stdout.splitlines()[-1])
    assert opened == [] and (not unshared or unreachable == sent == 0)
    assert not list(tmp_path.glob("**/.onnxruntime"))


def test_scores_and_translations_are_printed(hub, photos, command_line):
    _, printed, _ = command_line("score", photos / "one.png", "a red dog", "w1", "--model", hub / "blip", "--json")
    assert [entry["tokens"] for entry in json.loads(printed)] == [4, 2]
    (translation,) = limner.load(hub / "marian").translate(["the red dog"], beam_size=2)[0]
    status, printed, _ = command_line("translate", "the red dog", "--model", hub / "marian", "--beam-size", 2)
    assert (status, printed.strip()) == (0, translation.text)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    settings = SceneSettings(train=2, val=2, test=4, size=32)
    return generate_collection(tmp_path_factory.mktemp("scenes") / "collection", settings).path


def test_captioners_are_evaluated_and_compared(hub, scenes, command_line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run = ("--collection", scenes, "--metric", "bleu4", "--json")
    short = "decoding.max_length=4", "decoding.sample=null"
    status, printed, _ = command_line("evaluate", "--model", hub / "blip", *run, *short)
    assert status == 0
    result = json.loads(printed)
    assert [score["name"] for score in result["scores"]] == ["bleu4"] and "parameters (float32)" in result["notes"][0]
    assert "cut off at decoding.max_length=4" in result["notes"][1]
    german = ("--lang", "de", "--dtype", "bfloat16", "--prompt", "Was ist das?")
    status, printed, _ = command_line("evaluate", "--model", hub / "idefics3", *run, *german)
    assert "lang:de|dtype:bfloat16" in json.loads(printed)["scores"][0]["signature"]
    assert command_line("evaluate", "--model", hub / "idefics3", *run)[0] == 0
    assert len({*(tmp_path / "idefics3/evaluation").iterdir()}) == 2
    status, printed, _ = command_line("compare", hub / "blip", hub / "idefics3", "--metric", "bleu4", "--json")
    assert [system["name"] for system in json.loads(printed)["systems"]] == ["blip", "idefics3"]
    (stored,) = map(Evaluation.load, (tmp_path / "blip/evaluation").iterdir())
    assert "max_length4" in stored.name
    best = stored.items[0]
    assert limner.load(hub / "blip").describe([best.image], max_length=4)[0][0].text == best.hypothesis


def test_a_captioner_is_compared_with_a_run_of_own_photographs(hub, scenes, command_line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert command_line("evaluate", "--model", hub / "blip", "--collection", scenes, "--metric", "bleu4")[0] == 0
    stored = Evaluation.load(tmp_path / "blip/evaluation/test.json")
    recipe = load_recipe("own/photos", [])
    items = list(Collection.open(scenes).items("test"))
    tokenizer = Tokenizer.train((text for item in items for text in item.texts("en")), recipe.text)
    assert all(text.endswith(".") for item in items for text in item.texts("en"))
    references = [tuple(" ".join(tokenizer.words(text)) for text in item.texts("en")) for item in items]
    of_run = [
        item.model_copy(update={"reference_tokens": tokens})
        for item, tokens in zip(stored.items, references, strict=True)
    ]
    stored.model_copy(update={"items": tuple(of_run), "model": ""}).save(tmp_path / "mine/evaluation/test.json")
    (tmp_path / "mine/config.json").write_text(json.dumps({"recipe": {"data": {"lang": "en"}}}))
    assert command_line("compare", hub / "blip", "mine", "--metric", "bleu4")[0] == 0


def test_translators_are_evaluated_and_compared(hub, tiny, command_line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run = ("--collection", tiny.path, "--metric", "bleu4", "--metric", "chrf3", "--json")
    languages = {"m2m_100": ("--from", "en", "--to", "de"), "marian": ("--source-lang", "en", "--lang", "de")}
    for name, options in languages.items():
        status, printed, _ = command_line("evaluate", "--model", hub / name, *run, *options)
        assert status == 0 and [score["name"] for score in json.loads(printed)["scores"]] == ["bleu4", "chrf3"]
    (stored,) = map(Evaluation.load, (tmp_path / "m2m_100/evaluation").iterdir())
    pairs = [(f"look , {item.texts('en')[0]}", ("eine wand",)) for item in tiny.items("test")]
    assert [(item.source, item.references) for item in stored.items] == pairs and stored.lang == "de"
    expected = limner.load(hub / "m2m_100", to="de", source="en").translate([source for source, _ in pairs])
    assert [item.hypothesis for item in stored.items] == [best.text for (best,) in expected]
    status, printed, _ = command_line("compare", hub / "m2m_100", hub / "marian", "--metric", "bleu4", "--json")
    assert status == 0 and json.loads(printed)["segments"] == len(pairs)
    status, _, errors = command_line("evaluate", "--model", hub / "marian", *run)
    assert status == 1 and "name --source-lang and --lang" in errors


def test_joint_spaces_are_evaluated_and_compared_by_retrieval(hub, tiny, command_line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("siglip", "clip"):
        assert command_line("evaluate", "--model", hub / name, "--collection", tiny.path)[0] == 0
    (stored,) = map(Evaluation.load, (tmp_path / "clip/evaluation").iterdir())
    images, texts = zip(*((tiny.media_source(item), item.texts("en")) for item in tiny.items("test")), strict=True)
    pairs = [(image, text) for sentences in texts for text in sentences for image in images]
    scores = np.array([match.score for match in HubSpace(hub / "clip").score(*zip(*pairs, strict=True))])
    owners = np.repeat(np.arange(len(images)), [len(sentences) for sentences in texts])
    ranks = rank_all(scores.reshape(len(owners), -1), owners)
    assert np.abs(np.array(stored.retrieval.ranks["text_to_image"]) - ranks.text_to_image).max() <= 1  # near ties
    status, printed, _ = command_line("compare", hub / "siglip", hub / "clip", "--json")
    compared = {entry["metric"]: entry["value"] for entry in json.loads(printed)["scores"] if entry["system"] == "clip"}
    assert status == 0 and compared == {
        score.name: pytest.approx(score.value)
        for score in stored.scores
        if score.name[-3:-1] == "_r" or "_r10" in score.name
    }
    status, _, errors = command_line("compare", hub / "clip", hub / "siglip", "--metric", "bleu4")
    assert status == 1 and len(errors.splitlines()) == 1


@pytest.mark.long
@pytest.mark.timeout(900)
def test_captioners_of_two_eras_are_evaluated_and_measured_together(hub, tiny, trained, command_line, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation"))
    with chdir(tmp_path):
        together = ("compare", hub / "blip", run, "--collection", tiny.path, "--metric", "chrf3_text")
        status, printed, errors = command_line(*together)
        assert status == 0, errors
        (_, *lines) = printed[printed.index("s an image") :].splitlines()
        for line, place in zip(lines, (hub / "blip", run), strict=False):
            name, parameters, seconds, *memory = line.split()
            assert (name, parameters) == (place.name, f"{limner.load(place).parameters:,}") and float(seconds) > 0
            assert not memory or 64 < float(memory[0].replace(",", "")) < 4096
        assert load_evaluation(run, "test").scores and load_evaluation(hub / "blip", "test").scores


def test_items_that_are_not_described_are_counted(hub, scenes, monkeypatch):
    model, opened = load_hub(hub / "blip", tasks=("describe",)), Collection.open(scenes)
    first, texts = next(iter(opened.items("test"))).id, Item.texts
    monkeypatch.setattr(Item, "texts", lambda item, lang: () if item.id == first else texts(item, lang))
    result = evaluate_hub(model, opened, "test", ["bleu4"], on_progress=lambda *_: None)
    assert first not in {item.id for item in result.items}
    assert any("skipped 1 item" in note and "a sentence in 'en'" in note for note in result.notes)


def test_a_language_without_a_prompt_is_refused_before_weights_are_read(tmp_path):
    save_model("idefics3", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(SettingsError, match="lang 'xx': no default prompt"):
        limner.load(tmp_path, lang="xx")


def test_results_of_models_with_the_same_name_are_kept_apart(hub, scenes, command_line, monkeypatch, tmp_path):
    assert results_folder(Path("hub:one/blip@v1")) == Path("one--blip@v1")
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other/blip"
    save_model("blip", other, max_length=8)
    run = ("--collection", scenes, "--metric", "bleu4")
    assert command_line("evaluate", "--model", hub / "blip", *run)[0] == 0
    for command in (("evaluate", "--model", other, *run), ("compare", other, hub / "blip")):
        status, _, errors = command_line(*command)
        assert status == 1 and str(other) in errors and str(hub / "blip") in errors


def test_captions_are_sampled_only_where_that_is_asked_for(photos, scenes, command_line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    save_model("blip", tmp_path / "samples", max_length=8, do_sample=True, top_k=0)
    model = limner.load(tmp_path / "samples")
    assert model.decoding.sample is not None
    (expected,) = model.describe([photos / "one.png"], sample=None)[0]
    _, printed, _ = command_line("describe", photos / "one.png", "--model", tmp_path / "samples")
    assert printed.strip().endswith(f"\t{expected.text}")
    run = ("--collection", scenes, "--metric", "bleu4")
    assert command_line("evaluate", "--model", tmp_path / "samples", *run)[0] == 0
    (stored,) = map(Evaluation.load, (tmp_path / "samples/evaluation").iterdir())
    assert "sample" not in stored.scores[0].signature


def test_judged_pairs_are_scored_by_clip_score_and_by_captioners(hub, scenes, command_line, tmp_path):
    names = [Path(item.image).name for item in Collection.open(scenes).items()][:5]
    pairs = [(image, f"{caption}#0", 1 + place % 4) for place, (image, caption) in enumerate(permutations(names, 2))]
    (tmp_path / "judged.txt").write_text("".join(f"{a}\t{b}\t{value}\t{value}\t1\n" for a, b, value in pairs))
    judged = (tmp_path / "judged.txt", "--collection", scenes, "--json", "--model")
    for family, signature in (("siglip", "clip_score|w:2.5|prompt:none|siglip"), ("blip", "log_prob|blip")):
        status, printed, _ = command_line("correlate", *judged, hub / family)
        result = json.loads(printed)
        assert (status, result["pairs"], result["score"]) == (0, len(pairs), signature)


def test_the_prompt_has_an_effect_and_a_language(hub, photos, command_line):
    prompts = [limner.load(hub / "idefics3", **given).network.text for given in ({}, {"lang": "fr"}, {"prompt": "dog"})]
    assert "Describe this image" in prompts[0] and "Décris cette image" in prompts[1] and " dog" in prompts[2]
    prompted = ("--model", hub / "idefics3", "--prompt", "a red dog")
    _, printed, _ = command_line("describe", photos / "one.png", *prompted)
    (expected,) = limner.load(hub / "idefics3", prompt="a red dog").describe([photos / "one.png"])[0]
    assert printed.strip().endswith(expected.text)
    assert command_line("index", photos, *prompted)[0] == 0
    assert "2 unchanged" in command_line("index", photos, *prompted)[1]
    _, printed, _ = command_line("search", "a dog", "--in", photos, "--json")
    assert expected.text in {match["caption"] for match in json.loads(printed)}
    status, _, errors = command_line("index", photos, *prompted[:2])
    assert status == 1 and "not the captioner" in errors


def test_the_service_has_the_prompt_of_its_captioners(hub, photos):
    served = ServerSettings.parse({"models": [str(hub / "idefics3"), str(hub / "marian")], "hub": {"prompt": "dog"}})
    (captioner,) = load_served_models(served).captioners
    assert " dog" in captioner.network.text
    with pytest.raises(SettingsError, match=r"prompt:.*expected a captioner of the hub"):
        load_served_models(ServerSettings.parse({"models": [str(hub / "marian")], "hub": {"prompt": "dog"}}))


def test_a_chat_template_cannot_leave_the_sandbox(tmp_path):
    save_model("idefics3", tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(BackboneError, match="chat template"):
        limner.load(tmp_path)


def test_a_chat_model_without_a_template_is_refused_with_a_remedy(tmp_path):
    save_model("idefics3", tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(BackboneError, match="no chat template; choose the instruction-tuned checkpoint"):
        limner.load(tmp_path)


def test_a_missing_package_of_the_extra_hub_is_named(tmp_path, monkeypatch):
    def load(*_, **__):
        raise ImportError("Package `num2words` is required to run SmolVLM processor")

    monkeypatch.setattr(inputs, "find_spec", lambda name: None)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", load)
    with pytest.raises(MissingExtraError, match="extra 'hub'"):
        inputs.load_part(tmp_path, "AutoTokenizer")


@pytest.mark.parametrize(
    ("written", "caption"),
    [
        ("The image shows a red dog.", "A red dog."),
        ("In this photograph, we see two cats", "Two cats"),
        ("This picture depicts the beach", "The beach"),
        ("The image of a saint hangs on a wall", "The image of a saint hangs on a wall"),
        ("A picture hangs on a wall", "A picture hangs on a wall"),
        ("L'image montre un chien", "Un chien"),
    ],
)
def test_preambles_are_removed(written, caption):
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: row for row, word in enumerate(written.split())}))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = HubTokenizer(transformers.PreTrainedTokenizerFast(tokenizer_object=inner), len(written.split()), "en")
    assert tokenizer.decode(tokenizer.encode(written)) == written
    assert without_preamble(written) == caption
    assert "".join(token_texts(tokenizer, tokenizer.encode(written))) == written


def test_a_preamble_that_a_prefix_or_the_service_has_begun_stays(hub, photos, monkeypatch):
    monkeypatch.setattr(hub_generators, "without_preamble", lambda text: f"without: {text}")
    image, model = photos / "one.png", limner.load(hub / "idefics3")
    text = {}
    options = {"none": {}, "prefix": {"prefixes": ["a red"]}, "words": {"must_include": ["dog"], "beam_size": 2}}
    for name, values in options.items():
        text[name] = model.describe([image], **values)[0][0].text
    text["blip"] = limner.load(hub / "blip").describe([image])[0][0].text
    text["kept"] = limner.load(hub / "idefics3", keep_preamble=True).describe([image])[0][0].text
    assert [name for name in text if text[name].startswith("without: ")] == ["none"]
    assert text["none"] == f"without: {text['kept']}" and text["prefix"].startswith("a red")

    async def ask(client):
        body = {"prompt": "", "images": [base64.b64encode(image.read_bytes()).decode()]}
        lines = (await client.post("/api/generate", json={"model": "idefics3", **body})).text.splitlines()
        whole = await client.post("/api/generate", json={"model": "blip", "stream": False, **body})
        return "".join(json.loads(line)["response"] for line in lines), whole.json()["response"]

    served = [str(hub / name) for name in ("idefics3", "blip", "marian")]
    models = load_served_models(ServerSettings.parse({"models": served}))
    assert with_service(models, ask) == (text["kept"], text["blip"])


def test_positions_of_a_roberta_decoder_begin_after_the_padding(tmp_path):
    sizes = {**TOWER, "vocab_size": SIZE, "max_position_embeddings": 32, "pad_token_id": 1}
    decoder = transformers.RobertaConfig(is_decoder=True, add_cross_attention=True, **sizes)
    encoder = transformers.ViTConfig(**VISION)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.eos_token_id, config.pad_token_id = START, END, PAD
    save_model("blip", tmp_path)  # its tokenizer and preprocessing
    transformers.VisionEncoderDecoderModel(config).save_pretrained(tmp_path)
    model = limner.load(tmp_path)
    assert model.network.positions == 30
    image = Image.new("RGB", (32, 32))
    assert len(model.describe([image], max_length=30, min_length=30)[0][0].tokens) == 30
    with pytest.raises(SettingsError, match="expected at most 30"):
        model.describe([image], max_length=31)


def test_weights_in_another_format_are_refused_with_a_remedy(tmp_path):
    save_model("blip", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(BackboneError, match=r"no model.safetensors \(found pytorch_model.bin\); choose a revision"):
        limner.load(tmp_path)


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


@pytest.mark.parametrize(("start", "to"), [("en", "de"), ("en_XX", "de_DE"), ("de", "en")])
def test_languages_of_mbart_are_named_with_or_without_their_country(start, to, hub, command_line):
    languages = ("--from", start, "--to", to)
    _, printed, _ = command_line("translate", "the red dog", "--model", hub / "mbart", *languages)
    codes = {"en": "en_XX", "de": "de_DE"}
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(hub / "mbart")
    tokenizer = transformers.AutoTokenizer.from_pretrained(hub / "mbart", src_lang=codes.get(start, start))
    target = tokenizer.convert_tokens_to_ids(codes.get(to, to))
    settings = {"forced_bos_token_id": target, "forced_eos_token_id": None, "max_new_tokens": 7}
    expected = network.generate(**tokenizer("the red dog", return_tensors="pt"), **settings)
    assert printed.strip() == tokenizer.decode(expected[0], skip_special_tokens=True)


def test_the_first_mbart_is_refused(tmp_path):
    save_model("mbart", tmp_path, decoder_start_token_id=5)
    with pytest.raises(RunError, match="decoder_start_token_id is 5, expected 2; choose an mBART-50"):
        limner.load(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("translate", "a", "--model", "{hub}/mbart", "--to", "d"), "language 'd': not among"),
        (("describe", "{photo}", "--model", "{hub}/marian"), "use 'limner translate'"),
        (("describe", "{photo}", "--model", "{hub}/siglip"), "compares images and sentences"),
        (("describe", "{photo}", "--model", "{hub}/blip", "--attention", "{hub}/plots"), "needs a run"),
        (
            ("evaluate", "--model", "{hub}/clip", "--collection", "{scenes}", "--to", "de"),
            "compares images and sentences",
        ),
        (("evaluate", "--model", "{hub}/blip", "--collection", "{scenes}", "--source-lang", "de"), "is of translators"),
        (("evaluate", "--model", "{hub}/clip", "--collection", "{scenes}", "--metric", "bleu4"), "writes no sentence"),
        (("export", "{hub}/out", "--model", "{hub}/blip"), "name a run, or another command"),
        (("index", "{hub}", "--model", "{hub}/blip", "--prompt", "a"), "describes images without a prompt"),
        (("evaluate", "--model", "{hub}/blip", "--collection", "{scenes}", "--exact"), "needs a run"),
        (("diagnose", "--model", "{hub}/blip", "--collection", "{scenes}"), "found a model of transformers"),
        (("describe", "{photo}", "--model", "{hub}/blip", "--prompt", "a"), "describes images without a prompt"),
        (("describe", "{photo}", "--model", "{hub}/idefics3", "--lang", "xx"), "no default prompt"),
        (("describe", "{photo}", "--model", "{hub}/blip", "--keep-preamble"), "describes images without a prompt"),
        (("score", "{photo}", "a", "--model", "{hub}/siglip", "--prompt", "a"), "compares images and sentences"),
        (
            ("evaluate", "--model", "{hub}/blip", "--model", "{hub}/idefics3", "--collection", "{scenes}"),
            "a model of the hub is no part of an ensemble; name it alone",
        ),
        (("describe", "{photo}", "--dtype", "bfloat16"), "only on a model of the hub"),
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
def test_errors_are_one_line(hub, photos, scenes, command_line, monkeypatch, arguments, message):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was opened"))
    for name, config in (("unknown", {"model_type": "unknown"}), ("code", {"model_type": "blip", "auto_map": {}})):
        (hub / name).mkdir(exist_ok=True)
        (hub / name / "config.json").write_text(json.dumps(config))
    filled = [part.format(hub=hub, scenes=scenes, photo=photos / "one.png") for part in arguments]
    status, _, errors = command_line(*filled)
    assert status == 1 and message in errors and len(errors.strip().splitlines()) == 1
