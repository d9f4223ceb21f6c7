"""The score of captions without and with references, by a pair-by-pair oracle, and where commands compute it."""

import json
import shutil

import numpy as np
import pytest

from hub_models import save_model
from limner.data.collection import Collection, write_items
from limner.data.examples import Item, ItemSentence
from limner.errors import CollectionError, FeatureError, RunError, SettingsError
from limner.evaluation.caption_score import WEIGHTS, CaptionScorer
from limner.evaluation.compare import compare_evaluations
from limner.evaluation.comparison import ComparisonSettings
from limner.evaluation.evaluate import EvaluationOptions, evaluate
from limner.features.encoders.load import load_backbone
from limner.features.extract import extract
from limner.inference.image_searcher import ImageSearcher
from limner.runs.evaluations import Evaluation

BOTH = ("caption_score", "ref_caption_score")


@pytest.fixture(scope="module")
def collection(tiny, tmp_path_factory):
    """The tiny collection with features of the built-in backbone."""
    copy = Collection.open(shutil.copytree(tiny.path, tmp_path_factory.mktemp("scored") / "collection"))
    extract(copy, load_backbone("efficientnet-lite2"))
    return copy


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def oracle(collection, scorer, item, caption, references=()):
    """The equations of `CaptionScorer` in float64, one training caption at a time."""
    searcher, training = ImageSearcher("en"), list(collection.items("train"))
    features = {entry.id: scorer.features.take([entry])[0]["pooled"] for entry in [item, *training]}
    rows = {name: np.asarray(row, np.float32)[None] for name, row in features.items()}
    v = {name: searcher.project(row)[0].astype(float) for name, row in rows.items()}
    u, w = searcher.joint.sentence_vector, searcher.joint.sentence_vector(caption).astype(float)
    g = [np.mean([np.exp(14 * (w @ u(text))) for text in entry.texts("en")]) for entry in training]
    a = np.array([np.exp(18 * (v[item.id] @ v[entry.id])) for entry in training])
    density = np.log((a / a.sum()) @ np.array(g)) - np.log(np.mean(g))
    probabilities = {name: searcher.concepts.of_vectors(row)[0] for name, row in rows.items()}
    terms = []
    for columns in set(searcher.concepts.mentions(caption)):
        rate = max(np.mean([probabilities[entry.id][column] for entry in training]) for column in columns)
        seen = max(probabilities[item.id][column] for column in columns)
        terms.append(np.log(max(seen, 1e-3)) - np.log(max(rate, 1e-3)))
    cosine = w @ v[item.id] - np.mean([w @ v[entry.id] for entry in training])
    weights = WEIGHTS["ref_caption_score" if references else "caption_score"]
    best = [max(w @ u(text) for text in references)] if references else []
    values = [1, density, np.mean(terms) if terms else 0, cosine, *best]
    return 100 * sigmoid(np.dot(weights, values))


@pytest.mark.parametrize("references", [(), (["a wall in red", "look , a red wall"], ["a dog"])])
def test_the_score_is_the_sum_of_its_terms(collection, references):
    scorer, items = CaptionScorer(collection, "train", "en"), list(collection.items("test"))[:2]
    captions = ["a red wall and a man on a beach", "zyzzyva"]
    scores = scorer.score(items, captions, references)
    groups = references or [(), ()]
    expected = [oracle(collection, scorer, *entry) for entry in zip(items, captions, groups, strict=True)]
    assert scores == pytest.approx(expected, rel=1e-3)
    assert scores[0] != pytest.approx(scores[1], rel=1e-2)
    together = scorer.score([items[1], items[0]], captions[::-1], references[::-1])
    assert together == pytest.approx(scores[::-1], rel=1e-5)


def test_an_evaluation_has_the_scores_and_compare_tests_them(model, collection):
    options = EvaluationOptions(metrics=("bleu1", *BOTH), retrieval=False)
    result = evaluate([model], collection, options=options)
    by_name = {score.name: score for score in result.scores}
    assert {"bleu1", *BOTH} <= set(by_name) and "cider" not in by_name
    values = [item.caption_scores["caption_score"] for item in result.items]
    assert by_name["caption_score"].value == pytest.approx(np.mean(values))
    assert "training:32:train" in by_name["caption_score"].signature
    settings = ComparisonSettings(metrics=BOTH, trials=100, samples=100)
    compared = compare_evaluations({"a": {"a": result}, "b": {"b": result}}, "en", settings=settings)
    assert [score.value for score in compared.scores][:2] == pytest.approx([by_name[name].value for name in BOTH])
    without = result.model_copy(update={"scores": ()})
    with pytest.raises(RunError, match="has no caption_score; run 'limner evaluate --metric caption_score'"):
        compare_evaluations({"a": {"a": without}, "b": {"b": without}}, "en", settings=settings)
    other = result.model_copy(update={"scores": tuple(s._replace(signature="other") for s in result.scores)})
    with pytest.raises(RunError, match="caption_score: different models or training captions"):
        compare_evaluations({"a": {"a": result}, "b": {"b": other}}, "en", settings=settings)


def test_captions_of_a_model_of_the_hub_are_scored(collection, command_line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    save_model("blip", tmp_path / "blip", max_length=8)
    run = ("evaluate", "--model", "blip", "--collection", collection.path, "--json", "decoding.max_length=4")
    status, printed, _ = command_line(*run, "--metric", "caption_score")
    assert status == 0 and [score["name"] for score in json.loads(printed)["scores"]] == ["caption_score"]
    (stored,) = map(Evaluation.load, (tmp_path / "blip/evaluation").iterdir())
    assert all(0 <= item.caption_scores["caption_score"] < 100 for item in stored.items)


def test_items_without_an_image_train_nothing_and_empty_captions_score_zero(collection, tmp_path):
    items, copy = list(collection.items("test"))[:1], shutil.copytree(collection.path, tmp_path / "copy")
    before = CaptionScorer(collection, "train", "en").score(items, ["a red wall"])
    write_items(copy, [Item("text-only", "train", sentences=(ItemSentence("en", "a red wall"),))])
    scorer = CaptionScorer(Collection.open(copy), "train", "en")
    assert scorer.score(items, ["a red wall"]) == pytest.approx(before)
    assert scorer.score(items, [" "])[0] == 0
    with pytest.raises(FeatureError, match="item 'text-only' has no image with features"):
        scorer.score(list(Collection.open(copy).items("train"))[-1:], ["a red wall"])
    with pytest.raises(CollectionError, match="found none of 'a dog'"):
        scorer.score(items, ["a dog"], [[]])


def test_what_cannot_be_scored_is_named(tiny, collection, model):
    with pytest.raises(FeatureError, match=r"run 'limner features .* --backbone efficientnet-lite2'"):
        CaptionScorer(tiny, "train", "en")
    with pytest.raises(CollectionError, match="split 'train': no image with features has a caption in 'zh'"):
        CaptionScorer(collection, "train", "zh")
    with pytest.raises(SettingsError, match="lang 'fr'"):
        CaptionScorer(collection, "train", "fr")


def test_judged_captions_are_scored(collection, command_line, tmp_path):
    items = list(collection.items("test"))
    colour = {item.id: item.texts("en")[0] for item in items}
    rows = [
        f"{image.image}\t{other.image}#0\t{same}\t{3 * same}\t{3 - 3 * same}\n"
        for image in items
        for other in items
        for same in [int(colour[image.id] == colour[other.id])]
    ]
    judgements = tmp_path / "crowd.txt"
    judgements.write_text("".join(rows), encoding="utf-8")
    arguments = ("correlate", judgements, "--collection", collection.path, "--samples", 100, "--json")
    taus = []
    for metric in BOTH:
        status, printed, _ = command_line(*arguments, "--metric", metric)
        result = json.loads(printed)
        assert status == 0 and result["score"].startswith(f"score:{metric}|training:32:train") and result["pairs"] == 64
        taus.append(result["correlations"][0]["value"])
    assert taus[1] > taus[0] > 0  # references of the same colour say which captions are right
    chosen = ["--metric", "caption_score"]
    for more in ([*chosen, "--model", "runs/x"], [*chosen, "--marginal", 3], []):
        assert command_line(*arguments, *more)[0] == 1
