"""Report of a translation model: sentences, attention, the image gate and the diagnosis."""

import base64
import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from test_report import EVIL, Page, assert_no_shared_ids
from toy_translation import image_collection, learn, text_collection

from limner.apps.report import page as report
from limner.apps.report.attention import plot_explanation
from limner.apps.report.images import Thumbnails
from limner.data.dataset import Examples
from limner.errors import RunError
from limner.evaluation.gates import gate_statistics
from limner.evaluation.measurements import AmbiguityResult, ConditionResult, ConditionScore, Diagnosis, MaskingResult
from limner.features.spec import FeatureSpec
from limner.inference.explain import END_OF_SENTENCE, Explanation, explain
from limner.inference.features import open_features
from limner.inference.generate import generate
from limner.metrics import Score
from limner.runs.evaluations import EvaluatedItem, Evaluation, GateStatistics
from limner.runs.records import RunConfig
from limner.runs.trained_model import load_trained_model


def evaluated(run, collection):
    """Store an evaluation as `limner evaluate` does; return it with the explanations of its sentences."""
    model = load_trained_model(run)
    features = open_features(model, collection)
    inputs = Examples.of_split(
        collection, "train", model.target, features, source=model.source, max_tokens=80
    ).generation_inputs()
    result = [hypotheses[0] for hypotheses in generate([model], inputs, features, model.recipe.decoding)]
    made = explain(model, inputs, result, features)
    items = [
        EvaluatedItem(
            id=query.item.id,
            image=collection.absolute_image_path(query.item),
            references=query.references,
            source=query.source,
            hypothesis=model.tokenizer.decode(one.tokens, detokenise=True),
            ids=one.tokens,
            log_prob=one.log_prob,
            sentence_score=float(row),
        )
        for row, (query, one) in enumerate(zip(inputs, result, strict=True))
    ]
    statistics = json.loads(gate_statistics(made).model_dump_json()) if made[0].gate is not None else None
    evaluation = Evaluation(
        split="train",
        collection=str(collection.path),
        fingerprint="0",
        command="limner evaluate",
        seconds=1,
        scores=(Score("bleu4", 50, "tok:given|scale:0-100"), Score("gate_above_0.5", 12.5, "words:8|scale:0-100")),
        items=tuple(items),
        gates=statistics and GateStatistics.model_validate(statistics),
    )
    evaluation.save(run / "evaluation" / "train.json")
    return evaluation, made


@pytest.fixture(scope="module")
def multimodal(tmp_path_factory):
    """A multimodal run on six images, with its collection, evaluation and explanations."""
    folder = tmp_path_factory.mktemp("seeing")
    collection = image_collection(folder / "collection")
    run = learn(collection, folder / "run", image=("attention",))
    return run, collection, *evaluated(run, collection)


@pytest.fixture(scope="module")
def reading(tmp_path_factory):
    """A text-only run on twelve sentences, with its collection, evaluation and explanations."""
    folder = tmp_path_factory.mktemp("reading")
    collection = text_collection(folder / "collection")
    run = learn(collection, folder / "run", steps=40)
    return run, collection, *evaluated(run, collection)


@pytest.fixture
def own(multimodal, tmp_path):
    """A copy of the run that a test may change."""
    return shutil.copytree(multimodal[0], tmp_path / "run")


def page_of(run, out):
    return Page(report.write_report(run, out / "r.html").read_text(encoding="utf-8"))


def attention_section(page):
    """The text of the page's section about attention."""
    return re.search(r"Attention (The attention|Attention of).*?(?= Image gate |$)", page.text)[0]


def test_translations_are_shown_with_their_source(multimodal, tmp_path):
    run, _, evaluation, _ = multimodal
    text = page_of(run, tmp_path).text
    assert "6 sentences of" in text and "BLEU-4 50.0" in text and "Words with a gate above 0.5, % 12.5" in text
    for item in evaluation.items:
        assert f"{item.source} {item.hypothesis}" in text and f"{item.id} · BLEU" in text


def test_attention_is_plotted_with_alignment_heat_maps_and_gates(multimodal, tmp_path):
    run, _, evaluation, made = multimodal
    page = page_of(run, tmp_path)
    text = attention_section(page)
    titles = re.findall(r"image gate (\d\.\d\d)", (tmp_path / "r.html").read_text(encoding="utf-8"))
    words = [word for one in made for word in one.target[:-1]]
    gates = [gate for one in made for gate in one.gate[:-1]]
    assert sorted(titles) == sorted(2 * [f"{gate:.2f}" for gate in gates])  # of the sentence and of its figure
    for word, gate in zip(words, gates, strict=True):
        assert f"{word} ({gate:.2f})" in text
    assert page.words.count("original image") == len(made)
    images = [url for url in page.urls if url.startswith("data:image/jpeg")]
    assert len(images) == 2 + 2 * len(evaluation.items) + sum(len(one.target) for one in made)  # without </s>
    assert page.tags.count("svg") == len(made)
    assert_no_shared_ids(page)


def test_a_text_only_model_has_alignments_only(reading, tmp_path):
    run = reading[0]
    page = page_of(run, tmp_path)
    text = attention_section(page)
    assert page.tags.count("svg") == 6 and "img" not in page.tags
    assert END_OF_SENTENCE in text and "Heat maps" not in text
    assert "no image" not in page.text and "Image gate" not in page.text


def attention_error(run, out):
    page = page_of(run, out)
    assert "Tables show the alignment" not in page.text
    return attention_section(page)


def test_a_missing_collection_is_reported_without_its_folder(own, multimodal, tmp_path):
    evaluation = multimodal[2].model_copy(update={"collection": "/home/me/gone"})
    evaluation.save(own / "evaluation" / "train.json")
    message = attention_error(own, tmp_path)
    assert "The attention cannot be shown: gone: this folder does not exist" in message and "/home" not in message


def test_sentences_of_another_model_are_not_explained(own, multimodal, tmp_path):
    first, *others = multimodal[2].items
    for ids in (first.ids[:-1], (*first.ids, 99), ()):
        changed = first.model_copy(update={"ids": ids})
        multimodal[2].model_copy(update={"items": (changed, *others)}).save(own / "evaluation" / "train.json")
        assert "run 'limner evaluate' again" in attention_error(own, tmp_path)


def test_a_missing_model_is_reported(own, tmp_path):
    (own / "model.safetensors").unlink()
    assert "the run directory has no model" in attention_error(own, tmp_path)


def test_a_missing_image_leaves_the_alignment(own, multimodal, tmp_path):
    items = tuple(one.model_copy(update={"image": str(tmp_path / "gone.jpg")}) for one in multimodal[2].items)
    multimodal[2].model_copy(update={"items": items}).save(own / "evaluation" / "train.json")
    page = page_of(own, tmp_path)
    assert page.tags.count("svg") == len(items) and "img" not in page.tags
    assert page.text.count("no image") == 1 + len(items)  # all are of one image


def test_words_of_a_sentence_are_escaped():
    one = Explanation(("a", EVIL), (EVIL, "b", END_OF_SENTENCE), np.full((3, 2), 0.5), None, np.array([0.9, 0.1, 0.0]))
    shown = plot_explanation(one, EvaluatedItem(id="x", hypothesis="b"), (), Thumbnails(0))
    assert "<script>" not in shown.target and "<script>" not in shown.alignment
    assert "&lt;script&gt;" in shown.target and shown.image is None


def test_heat_maps_cover_the_encoded_part_of_the_image(tmp_path):
    Image.new("RGB", (300, 200), (120, 120, 120)).save(tmp_path / "grey.png")
    spec = FeatureSpec(
        name="f",
        kind="grid",
        shape=(4, 3),
        grid_size=(2, 2),
        backbone="b",
        preprocessing={"resize": "crop", "size": 64, "short": 64},
        weights_sha256="",
    )
    one = Explanation((), ("left", END_OF_SENTENCE), None, np.array([[0.5, 0, 0.5, 0], [0.25] * 4]), None)
    item = EvaluatedItem(id="x", image=str(tmp_path / "grey.png"), hypothesis="left")
    shown = plot_explanation(one, item, (spec,), Thumbnails(1 << 20))
    (word,) = shown.image.words
    assert (word.text, word.gate) == ("left", None)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(word.panel.partition(",")[2]))).convert("L"))
    bright = np.nonzero(pixels.mean(0) > 100)[0] / pixels.shape[1]
    assert bright.min() > 1 / 6 - 0.05 and bright.max() < 2 / 3  # the middle 200 of 300 columns, and their left half
    assert np.argmax(pixels.mean(0)) < pixels.shape[1] / 2


def test_gates_are_shown_beside_the_published_ones(own, multimodal, tmp_path):
    explanations = [
        Explanation((), (*"aaaaabb", END_OF_SENTENCE), None, None, np.array([0.9, 0.9, 0.6, 0.1, 0.0, 1, 1, 1.0]))
    ]
    gates = GateStatistics.model_validate_json(gate_statistics(explanations).model_dump_json())
    multimodal[2].model_copy(update={"gates": gates}).save(own / "evaluation" / "train.json")
    text = page_of(own, tmp_path).text
    assert "all words 7 0.64 71.4 % 57.1 % all words, Calixto et al. (2017) – – 20 % 8 %" in text
    assert "words with at least 5 occurrences" in text
    assert "a 0.50 (5)" in text and "(2)" not in text


def test_rare_words_are_plotted_if_there_are_no_others(own, multimodal, tmp_path):
    gates = GateStatistics.model_validate_json(gate_statistics([
        Explanation((), ("a", END_OF_SENTENCE), None, None, np.array([0.75, 1.0]))
    ], thresholds=(0.7,)).model_dump_json())  # fmt: skip
    multimodal[2].model_copy(update={"gates": gates}).save(own / "evaluation" / "train.json")
    text = page_of(own, tmp_path).text
    assert "a 0.75 (1)" in text and "words with at least" not in text
    assert "all words 1 0.75 100.0 %" in text and "all words, Calixto" not in text  # published with other thresholds


def condition(name, value, p=None, difference=0.0, changed=0.0):
    score = ConditionScore(metric="bleu4", value=value, difference=difference, p=p)
    return ConditionResult(name=name, scores=(score,), changed=changed)


def a_diagnosis():
    return Diagnosis(
        split="test",
        decoding="beam6",
        collection="/home/me/toy",
        fingerprint="0",
        command="limner diagnose",
        seconds=1,
        sentences=929,
        image_controls=(condition("right", 30.0), condition("shuffled", 27.5, 0.00002, -2.5, 41.5)),
        masking=(
            MaskingResult(
                mask="last:3", sentences=20, masked_words=60, expected_words=58, conditions=(condition("none", 1.0),)
            ),
        ),
        ambiguity=AmbiguityResult(
            sentences=7, excluded=2, conditions=(condition("right", 95.0), condition("swapped", 4.0, 0.25, -91))
        ),
        signatures={},
        trials=10_000,
        seed=1,
        verdict="The model uses the image: <evidence>",
    )


def test_a_diagnosis_is_rendered_with_its_verdict(tmp_path):
    RunConfig().save(tmp_path / "run" / "config.json")
    a_diagnosis().save(tmp_path / "run" / "diagnosis" / "test.json")
    page = page_of(tmp_path / "run", tmp_path)
    assert "diagnosis" in page.ids and "#diagnosis" in page.urls
    for words in (
        "The model uses the image: <evidence>",
        "no image (none). Images BLEU-4 Changed right 30.00 shuffled 27.50 -2.50, p < 0.0001 41.5 %",
        "60 words in 20 source sentences. Recovered: percentage of the 58 reference words",
        "a random choice of the sense is correct in 50 %. 2 further sentences are left out",
        "right 95.00 swapped 4.00 -91.00, p = 0.2500 0.0 %",
    ):
        assert words in page.text
    assert "/home" not in page.text


def test_a_run_without_a_diagnosis_has_no_such_section(multimodal, tmp_path):
    page = page_of(multimodal[0], tmp_path)
    assert "diagnosis" not in page.ids and "#diagnosis" not in page.urls


def test_a_damaged_diagnosis_is_named(tmp_path):
    RunConfig().save(tmp_path / "run" / "config.json")
    (tmp_path / "run" / "diagnosis").mkdir()
    (tmp_path / "run" / "diagnosis" / "test.json").write_text("{}")
    with pytest.raises(RunError, match=r"diagnosis/test\.json: expected a record of type Diagnosis"):
        report.write_report(tmp_path / "run", tmp_path / "r.html")
