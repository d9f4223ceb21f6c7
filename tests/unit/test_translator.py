"""Translation of sentences and files, with and without images."""

import json
import logging
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_translation import BATS, WORDS, GridBackbone, learn, text_collection

import limner
from limner.apps.export import folder
from limner.apps.export.folder import export
from limner.data.examples import Example, collate
from limner.errors import MediaError, RunError, SettingsError
from limner.generation.sentences import EMPTY_TRANSLATION
from limner.inference import features
from limner.inference.translator import Translator

SENTENCES = ["zwei eins", "drei", "eins eins", "", "drei zwei", "eins", "zwei drei", "zwei", "eins drei"]
TRANSLATED = [" ".join(WORDS[word] for word in text.split()) for text in SENTENCES]


@pytest.fixture(scope="module")
def photos(toy_image_run):
    return {colour: toy_image_run.parent / "collection" / f"{colour}.png" for colour in BATS}


@pytest.fixture
def multimodal(toy_image_run, monkeypatch):
    monkeypatch.setattr(features, "load_backbone_for", lambda *_, **__: GridBackbone())
    return Translator.load(toy_image_run)


def best(result):
    return [translations[0].text for translations in result]


def test_an_empty_sentence_is_not_decoded(translator, monkeypatch):
    monkeypatch.setattr(type(translator.models[0].model), "encode", None)
    assert translator.translate(["", "  "], n_best=2) == [[EMPTY_TRANSLATION], [EMPTY_TRANSLATION]]
    assert translator.translate([]) == []


def test_log_probs_are_those_of_the_model(translator):
    result = translator.translate(["zwei eins"], beam_size=4, n_best=3)[0]
    assert [one.score for one in result] == sorted((one.score for one in result), reverse=True)
    checkpoint = translator.models[0]
    source = checkpoint.source_tokenizer.encode("zwei eins")
    batch = collate([Example("", one.tokens, source) for one in result])
    with torch.inference_mode():
        each = checkpoint.model(batch).logits.log_softmax(-1).gather(-1, batch.target_out[..., None]).squeeze(-1)
    expected = (each * batch.target_mask).sum(1).tolist()
    assert [one.log_prob for one in result if one.ended] == pytest.approx(
        [value for value, one in zip(expected, result, strict=True) if one.ended], abs=1e-4
    )


def test_a_sentence_of_too_many_tokens_is_an_error(translator):
    with pytest.raises(SettingsError, match=r"sentence 2: expected at most 1,000 tokens, got 1,001; .*one a line"):
        translator.translate(["eins", "eins " * 1001])
    translator.translate(["eins " * 1000])


def test_a_string_instead_of_a_list_is_an_error(translator):
    with pytest.raises(SettingsError, match="expected a list of sentences, got one sentence"):
        translator.translate("eins")


def test_unknown_source_words_are_logged(translator, caplog):
    translator.translate(["eins", "пять eins", "zwei"])
    assert "'пять'" in caplog.text and "'eins'" not in caplog.text


def test_translations_cut_off_are_logged(translator, caplog):
    result = translator.translate(["eins zwei", "eins"], max_length=1)
    assert [translations[0].ended for translations in result] == [False, False]
    assert "2 of 2 translations were cut off at max_length=1" in caplog.text


def test_load_returns_the_class_for_the_model(toy_run, trained_on_colours):
    assert isinstance(limner.load(toy_run), Translator)
    assert isinstance(limner.load(trained_on_colours, encode_images=False), limner.Captioner)
    with pytest.raises(RunError, match=r"translates from 'de'.*limner translate"):
        limner.Captioner.load(toy_run)
    with pytest.raises(RunError, match="'mrnn' does not translate"):
        Translator.load(trained_on_colours, encode_images=False)


def test_the_image_resolves_the_ambiguous_word(multimodal, photos):
    paths = [photos["red"], photos["green"], photos["green"], photos["red"]]
    result = multimodal.translate(["bat", "bat", "eins bat", "bat zwei"], images=paths)
    assert best(result) == ["club", "flyer", "one flyer", "club two"]


def test_a_missing_image_is_an_error_unless_text_alone_is_allowed(multimodal, photos):
    with pytest.raises(SettingsError, match=r"sentence 3 has no image.*--missing text"):
        multimodal.translate(["bat", "", "eins bat"], images=[photos["red"], None, None])
    result = multimodal.translate(["bat", "eins bat"], images=[photos["red"], None], missing="text")
    assert result[0][0].text == "club"
    alone = multimodal.translate(["eins bat"], missing="text")[0][0]
    assert result[1][0].log_prob == pytest.approx(alone.log_prob, abs=1e-5)
    with pytest.raises(SettingsError, match="missing: expected one of refuse, text, got 'blind'"):
        multimodal.translate(["bat"], missing="blind")


def test_images_that_do_not_fit_are_errors(multimodal, toy_image_run, photos, tmp_path):
    with pytest.raises(SettingsError, match="1 image and 2 sentences"):
        multimodal.translate(["bat", "bat"], images=[photos["red"]])
    with pytest.raises(MediaError, match=r"gone\.png: no such image file"):
        multimodal.translate(["bat"], images=[tmp_path / "gone.png"])
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(MediaError, match=r"text\.png"):
        multimodal.translate(["bat"], images=[tmp_path / "text.png"])
    with pytest.raises(SettingsError, match="encode_images=True"):
        Translator.load(toy_image_run, encode_images=False).translate(["bat"], images=[photos["red"]])


def test_a_text_only_model_logs_that_images_are_ignored(translator, photos, caplog):
    assert best(translator.translate(["eins"], images=[photos["red"]])) == ["one"]
    assert "trained without images" in caplog.text


@pytest.fixture
def limner_translate(toy_run, command_line, monkeypatch):
    """Calls the command in this process: its exit status, output and messages."""

    def call(*arguments, model=toy_run, stdin=None):
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", stdin)
        result = command_line("translate", "--model", model, *arguments)
        logging.getLogger().handlers.clear()
        return result

    return call


class Piped:
    """Standard input with piped bytes."""

    def __init__(self, data):
        self.buffer = self
        self.data = data

    def isatty(self):
        return self.data is None

    def read(self):
        return self.data


def test_arguments_files_and_pipes_give_equal_translations(limner_translate, tmp_path):
    expected = "".join(f"{text}\n" for text in TRANSLATED)
    (tmp_path / "in").write_text("\n".join(SENTENCES))  # the last line may lack its end
    assert limner_translate(*SENTENCES)[:2] == (0, expected)
    assert limner_translate("--input", tmp_path / "in")[:2] == (0, expected)
    piped = "\r\n".join([*SENTENCES, ""]).encode()
    assert limner_translate(stdin=Piped(piped))[:2] == (0, expected)
    assert limner_translate("--input", "-", stdin=Piped(b"\xef\xbb\xbf" + piped))[:2] == (0, expected)
    assert limner_translate(stdin=Piped(b"")) == (0, "", "WARNING  standard input: no sentences to translate\n")
    assert limner_translate("")[:2] == limner_translate(stdin=Piped(b"\n"))[:2] == (0, "\n")
    status, printed, stderr = limner_translate(stdin=Piped(None))
    assert (status, printed) == (1, "") and "nothing to translate" in stderr


def test_a_translated_file_does_not_depend_on_the_size_of_batches(limner_translate, tmp_path):
    (tmp_path / "in").write_text("\n".join(SENTENCES * 8))
    made = []
    for size in (1, 7, 64):
        out = tmp_path / f"out{size}"
        options = ["--batch-size", size, "--beam-size", 3, "--out", out, "--force"]
        assert limner_translate("--input", tmp_path / "in", *options)[:2] == (0, "")
        made.append(out.read_bytes())
    assert made == ["".join(f"{text}\n" for text in TRANSLATED * 8).encode()] * 3


def test_only_line_feeds_separate_lines(limner_translate):
    status, printed, _ = limner_translate(stdin=Piped("eins\u2028zwei\neins\x85zwei\n".encode()))
    assert (status, printed.count("\n")) == (0, 2)
    stderr = json.loads(limner_translate("--json", stdin=Piped(b"eins\r\n"))[1])
    assert [one["source"] for one in stderr] == ["eins"]


def test_output_formats(limner_translate):
    printed = limner_translate("zwei eins", "eins", "--n-best", 2)[1].splitlines()
    cells = [line.split(" ||| ") for line in printed]
    assert [(number, text) for number, text, *_ in cells][::2] == [("0", "two one"), ("1", "one")]
    assert all(float(score) <= 0 and feature.startswith("logprob= -") for _, _, feature, score in cells)
    # One hypothesis exists, two were requested.
    assert limner_translate("", "--n-best", 2)[1].startswith("0 |||  ||| logprob= ")
    text, log_prob = limner_translate("zwei eins", "--scores")[1].rstrip("\n").split("\t")
    assert text == "two one" and float(log_prob) < 0
    stderr = json.loads(limner_translate("zwei eins", "", "--json")[1])
    assert [(one["source"], one["image"], one["translations"][0]["text"]) for one in stderr] == [
        ("zwei eins", None, "two one"),
        ("", None, ""),
    ]
    assert stderr[0]["translations"][0]["tokens"] == ["two", "one"]


def test_files_of_different_length(limner_translate, tmp_path):
    (tmp_path / "in.de").write_text("eins\nzwei\ndrei\n")
    for lines, named in ((2, r"line 3 of \S*in\.de has no counterpart in \S*pics"), (4, r"line 4 of \S*pics has")):
        (tmp_path / "pics").write_text("\n" * lines)
        status, printed, stderr = limner_translate("--input", tmp_path / "in.de", "--image-list", tmp_path / "pics")
        assert (status, printed) == (1, "")
        assert re.search(named, stderr.replace("\n", " ")), stderr


def test_an_error_leaves_the_output_file_unchanged(limner_translate, tmp_path):
    (tmp_path / "in").write_bytes(b"eins\nf\xfcnf\n")
    (tmp_path / "out").write_text("mine")
    status, _, stderr = limner_translate("--input", tmp_path / "in", "--out", tmp_path / "out")
    assert status == 1 and "in, line 2: byte 0xfc is not UTF-8" in stderr.replace("\n", "")
    assert (tmp_path / "out").read_text() == "mine"


def test_images_on_the_command_line(limner_translate, toy_image_run, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "load_backbone_for", lambda *_, **__: GridBackbone())
    one = limner_translate("bat", "eins bat", "--image", photos["green"], model=toy_image_run)
    assert one[:2] == (0, "flyer\none flyer\n")
    each = limner_translate("bat", "bat", "--image", photos["green"], "--image", photos["red"], model=toy_image_run)
    assert each[:2] == (0, "flyer\nclub\n")
    (tmp_path / "pics").write_text(f"{photos['red']}\n\n{photos['green']}\n")
    arguments = ["bat", "bat", "bat", "--image-list", tmp_path / "pics"]
    status, _, stderr = limner_translate(*arguments, model=toy_image_run)
    assert status == 1 and "sentence 2 has no image" in stderr.replace("\n", " ")
    lines = limner_translate(*arguments, "--missing", "text", model=toy_image_run)[1].splitlines()
    assert (lines[0], lines[2]) == ("club", "flyer")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["eins", "--input", "file"], "give one or the other"),
        (["eins", "--image", "a", "--image-list", "b"], "give one or the other"),
        (["eins", "zwei", "drei", "--image", "a", "--image", "b"], "2 images (--image) and 3 sentences"),
        (["--input", "nowhere"], "nowhere: cannot be read (No such file or directory); expected a text file"),
        (["eins", "--out", "."], "--out .: is a folder"),
    ],
)
def test_user_errors_are_one_line(limner_translate, arguments, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, printed, stderr = limner_translate(*arguments)
    assert (status, printed) == (1, "")
    assert stderr.startswith("error: ") and named in " ".join(stderr.split())
    assert not Path("nowhere").exists()


EXPORTED_SENTENCES = ["zwei eins", "drei", "eins eins", "", "drei zwei", "eins drei"]
SEARCHES = [{}, {"beam_size": 3, "n_best": 2, "length_penalty": 1.0}]


@pytest.fixture(scope="module")
def exported(toy_run, tmp_path_factory):
    return export(toy_run, tmp_path_factory.mktemp("exported") / "exported").folder


@pytest.mark.parametrize("decoding", SEARCHES)
def test_translations_are_those_of_the_run(toy_run, exported, decoding):
    expected = Translator.load(toy_run).translate(EXPORTED_SENTENCES, **decoding)
    found = limner.load(exported).translate(EXPORTED_SENTENCES, batch_size=2, **decoding)
    assert [[one.text for one in n_best] for n_best in found] == [[one.text for one in n_best] for n_best in expected]
    log_probs = [[one.log_prob for n_best in decoded for one in n_best] for decoded in (found, expected)]
    np.testing.assert_allclose(*log_probs, atol=1e-4)


def test_shared_embeddings_and_a_deep_encoder_are_exported(tmp_path):
    run = learn(text_collection(tmp_path / "collection"), tmp_path / "run", level="bpe", steps=120, shared=True)
    sentences = EXPORTED_SENTENCES[:3]
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
