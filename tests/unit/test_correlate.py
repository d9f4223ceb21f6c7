"""Correlation of scores with human judgements, and the score without references."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

import limner.apps.cli.score  # noqa: F401  (adds the commands)
from limner.data.dataset import Examples
from limner.data.examples import ItemSentence
from limner.errors import CollectionError, SettingsError
from limner.evaluation.correlate import (
    Judgements,
    correlate,
    correlate_with_judgements,
    read_judgements,
    read_scores,
    score_judged_pairs,
)
from limner.inference.features import open_features
from limner.inference.scorer import Scorer
from limner.retrieval.marginal import log_marginal, log_ratio_signature, sample_items
from limner.runs.trained_model import load_trained_model

EXPERT = """\
a.jpg\ta.jpg#0\t4\t4\t4
a.jpg\tb.jpg#1\t1\t1\t2
b.jpg\ta.jpg#0\t1\t2\t1
b.jpg\tc.jpg#3\t3\t2\t3
c.jpg\tb.jpg#1\t2\t2\t2
"""
CROWD = """\
a.jpg\ta.jpg#0\t1.0\t3\t0
a.jpg\tb.jpg#1\t0.3333333333333333\t1\t2
b.jpg\tc.jpg#3\t0\t0\t3
"""


def silent(part, done, total):
    pass


@pytest.fixture
def written(tmp_path):
    """Writes a file: written(text)."""

    def write(text, name="judgements.txt"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def test_the_files_of_flickr8k_are_read(written):
    expert, crowd = read_judgements(written(EXPERT)), read_judgements(written(CROWD))
    assert (expert.kind, crowd.kind) == ("expert", "crowd")
    assert expert.ratings["b.jpg", "c.jpg#3"] == (3, 2, 3) and len(expert.ratings) == 5
    assert crowd.ratings["a.jpg", "b.jpg#1"] == (pytest.approx(1 / 3),)
    assert expert.left_out() == [("a.jpg", "a.jpg#0")] and crowd.left_out() == []


def test_every_rating_counts_and_own_captions_of_experts_do_not(written):
    judged = read_judgements(written(EXPERT))
    scores = {pair: number / 2 for number, pair in enumerate(judged.ratings)}
    result = correlate_with_judgements(judged, scores, samples=100, on_progress=silent)
    ratings = [1, 1, 2, 1, 2, 1, 3, 2, 3, 2, 2, 2]
    values = np.repeat([0.5, 1, 1.5, 2], 3)
    assert (result.pairs, result.images, result.own_captions) == (4, 3, 1)
    for one, variant in zip(result.correlations, "bc", strict=True):
        assert one.name == f"kendall_tau_{variant}"
        assert one.value == pytest.approx(kendalltau(ratings, values, variant=variant).statistic)
    assert result.signature == "judgements:expert|pairs:4|ratings:12|images:3"
    assert result.notes == ("no interval: the bootstrap has 3 images to sample; expected 10 or more",)
    crowd = read_judgements(written(CROWD))
    scores = {pair: rating[0] for pair, rating in crowd.ratings.items()}
    result = correlate_with_judgements(crowd, scores, samples=100, on_progress=silent)
    assert (result.pairs, result.own_captions, result.correlations[0].value) == (3, 0, pytest.approx(1))


CAPTIONS = 4
"""Rated captions of an image in simulations."""


def draw(random, images):
    """Ratings and scores of the captions of some images, (images, CAPTIONS); both differ between images."""
    quality = random.normal(size=(images, CAPTIONS))
    of_ratings, of_scores = 2 * random.normal(size=(2, images, 1))
    return np.digitize(quality + of_ratings, [-1.5, 0.0, 1.5]).astype(float), quality + of_scores


def tau_b_of_samples(ratings, scores, counts):
    """Kendall's tau-b of bootstrap samples, from the signs of the differences of all pairs.

    Args:
        ratings: of the captions of G groups, (G, C).
        scores: of the same captions, (G, C).
        counts: how often each sample has each group, (samples, G).
    """
    shape = (*ratings.shape, *ratings.shape)
    first, second = (np.sign(values.ravel()[:, None] - values.ravel()) for values in (ratings, scores))

    def over_pairs(signs):
        return ((counts @ signs.reshape(shape).sum((1, 3))) * counts).sum(1)

    return over_pairs(first * second) / np.sqrt(over_pairs(first**2) * over_pairs(second**2))


def counts_of(random, groups, samples):
    chosen = [random.integers(groups, size=groups) for _ in range(samples)]
    return np.array([np.bincount(one, minlength=groups) for one in chosen], float)


@pytest.mark.parametrize("images", [10, 40])
def test_the_interval_is_that_of_the_pairs_of_resampled_images(images):
    ratings, scores = draw(np.random.default_rng(2), images)
    names = np.repeat(np.arange(images), CAPTIONS).astype(str).tolist()
    found, _ = correlate(ratings.ravel(), scores.ravel(), names, samples=150, seed=3)
    samples = tau_b_of_samples(ratings, scores, counts_of(np.random.default_rng(3), images, 150))
    assert found.interval == pytest.approx(tuple(np.quantile(samples, [0.025, 0.975])))


def test_equal_scores_have_no_correlation():
    with pytest.raises(SettingsError, match="expected scores that differ"):
        correlate(np.array([1.0, 2.0]), np.array([3.0, 3.0]), ["a", "b"])


@pytest.mark.parametrize(("images", "has_interval"), [(1, False), (2, False), (9, False), (10, True)])
def test_few_images_have_no_interval(images, has_interval):
    ratings = np.tile([1.0, 2.0, 3.0], images)
    scores, names = np.arange(3.0 * images), list(map(str, np.repeat(np.arange(images), 3)))
    for one in correlate(ratings, scores, names, samples=50):
        assert one.value == pytest.approx(kendalltau(ratings, scores, variant=one.name[-1]).statistic)
        assert (one.interval is not None) == has_interval


def test_pairs_that_are_left_out_need_no_score(written):
    judged = read_judgements(written(EXPERT))
    rows = [f"{image}\t{caption}\t{number}\n" for number, (image, caption) in enumerate(judged.ratings)]
    scores = read_scores(written("".join(rows[1:]), "s"), judged)
    assert correlate_with_judgements(judged, scores, on_progress=silent).pairs == len(scores) == 4
    with pytest.raises(SettingsError, match=r"none of 'a.jpg' and 'b.jpg#1' \(1 in all\)"):
        read_scores(written("".join([rows[0], *rows[2:]]), "s"), judged)


def judged_colours(tiny):
    """Judgements of the test images by their colours: 4 for a caption of the same colour."""
    items = list(tiny.items("test"))
    text = {item.id: next(s.text for s in item.sentences if s.lang == "en") for item in items}
    ratings = {
        (image.image, f"{other.image}#0"): ((4.0,) * 3 if text[image.id] == text[other.id] else (1.0, 2.0, 1.0))
        for image in items
        for other in items
    }
    return Judgements("expert", ratings)


def test_a_captioner_scores_captions_as_people_do(tiny, trained_on_colours):
    """Of the colours that a model has learned, and of the definition of the score."""
    model, judged = load_trained_model(trained_on_colours), judged_colours(tiny)
    scored = score_judged_pairs(model, tiny, judged, marginal=10, on_progress=silent)
    assert not scored.missing and len(scored.scores) == 64
    result = correlate_with_judgements(judged, scored.scores, samples=100, on_progress=silent)
    assert all(one.value > 0.3 for one in result.correlations)
    assert "|marginal:10:train|" in scored.signature and scored.signature.startswith("score:log-ratio|model:")
    first = tiny.items("test")[0]
    sentence = next(one.text for one in first.sentences if one.lang == "en")
    features, targets = open_features(model, tiny), [model.tokenizer.encode(sentence)]
    marginal = log_marginal(model.model, targets, sample_items(tiny, "train", features, 10), features)
    expected = log_marginal(model.model, targets, [first], features) - marginal
    assert scored.scores[first.image, f"{first.image}#0"] == pytest.approx(float(expected[0]), abs=1e-4)


def test_a_sentence_is_scored_with_its_log_ratio(tiny, trained, command_line):
    image = tiny.image_path(tiny.items("test")[0])
    sentences = ("a red wall", "a blue wall")
    arguments = ("score", image, *sentences, "--model", trained)
    _, out, _ = command_line(*arguments, "--collection", tiny.path, "--json")
    rows = json.loads(out)
    model = load_trained_model(trained)
    features, targets = open_features(model, tiny), [model.tokenizer.encode(text) for text in sentences]
    marginal = log_marginal(model.model, targets, sample_items(tiny, "train", features), features)
    expected = [row["log_prob"] - float(log_prob) for row, log_prob in zip(rows, marginal, strict=True)]
    assert [row["log_ratio"] for row in rows] == pytest.approx(expected, abs=1e-3)
    assert [word for word, _ in rows[0]["token_log_ratios"]] == ["a", "red", "wall", "</s>"]
    items = [
        replace(item, sentences=(ItemSentence("en", "a red wall"),)) for item in sample_items(tiny, "train", features)
    ]
    batch = Examples(items, model.target, features).batch(range(len(items)))
    with torch.inference_mode():
        every = model.model(batch).logits.softmax(-1).gather(2, batch.target_out[..., None])[..., 0]  # (K, T)
    shown = Examples([replace(tiny.items("test")[0], sentences=items[0].sentences)], model.target, features).batch([0])
    with torch.inference_mode():
        probabilities = model.model(shown).logits[0].softmax(-1)
    expected = probabilities[1, targets[0][1]] / ((every[:, 0] * every[:, 1]).mean() / every[:, 0].mean())
    assert rows[0]["token_log_ratios"][1][1] == pytest.approx(math.log(expected), abs=1e-3)
    assert "|marginal:32:train|seed:1|" in rows[0]["signature"] and rows[0]["signature"].endswith("|fp32")
    _, out, _ = command_line(*arguments, "--collection", tiny.path)
    header, first, second, *explained, signature = out.splitlines()
    assert header.split("\t") == ["log-prob", "perplexity", "log-ratio", "sentence"]
    assert (
        first.endswith("a red wall") and second.endswith("a blue wall") and signature.startswith("log-ratio: [score:")
    )
    assert [line.split()[1::2] for line in explained] == [["a", color, "wall", "</s>"] for color in ("red", "blue")]
    _, out, _ = command_line(*arguments)
    assert "log-ratio" not in out and "a red wall" in out


def test_log_ratios_belong_to_their_images_and_need_words(tiny, trained):
    first, second = (tiny.image_path(item) for item in tiny.items("test")[:2])
    scorer, texts = Scorer.load(trained), ["a red wall", "a zyx wall"]
    alone = [scorer.log_ratios(image, [text], tiny).values for image, text in zip((first, second), texts, strict=True)]
    calls = []
    together = scorer.log_ratios([first, second], texts, tiny, on_progress=lambda *done: calls.append(done))
    assert calls == [(32, 64), (64, 64)]
    assert together.values == pytest.approx([alone[0][0], alone[1][0]], abs=1e-4)
    assert together.tokens[1][1][0] == "<unk>"
    with pytest.raises(SettingsError):
        scorer.log_ratios([first], texts, tiny)
    with pytest.raises(SettingsError):
        scorer.log_ratios(first, [""], tiny)


def test_the_signature_of_the_log_ratio_names_model_images_and_arithmetic(tiny, trained, trained_on_colours):
    models = [load_trained_model(run) for run in (trained, trained_on_colours)]
    signatures = [log_ratio_signature(model, tiny, 10, "fp32").split("|") for model in models]
    assert [one == other for one, other in zip(*signatures, strict=True)] == [True, False, True, True, True, True]
    assert signatures[0][1].startswith("model:") and signatures[0][2:4] == ["marginal:10:train", "seed:1"]
    assert log_ratio_signature(models[0], tiny, 10, "bf16").endswith("|bf16")


def test_pairs_outside_of_the_collection_are_counted(tiny, trained_on_colours, written):
    model, judged = load_trained_model(trained_on_colours), judged_colours(tiny)
    more = Judgements("expert", {**judged.ratings, ("x.jpg", "test0.png#0"): (1.0, 1.0, 1.0)})
    assert score_judged_pairs(model, tiny, more, marginal=5, on_progress=silent).missing == [("x.jpg", "test0.png#0")]
    own = Judgements("expert", {**judged.ratings, ("x.jpg", "x.jpg#0"): (1.0, 1.0, 1.0)})  # counted as an own caption
    assert score_judged_pairs(model, tiny, own, marginal=5, on_progress=silent).missing == []
    with pytest.raises(CollectionError, match="has no judged pair"):
        score_judged_pairs(model, tiny, read_judgements(written(EXPERT)), on_progress=silent)


def test_the_command_prints_correlations_and_signatures(tiny, trained_on_colours, written, command_line):
    rows = judged_colours(tiny).ratings.items()
    file = written("".join("\t".join((*pair, *(f"{one:g}" for one in own))) + "\n" for pair, own in rows))
    model = ("--model", trained_on_colours, "--collection", tiny.path)
    status, out, _ = command_line("correlate", file, *model, "--marginal", 8, "--samples", 100)
    assert status == 0 and "kendall_tau_b = 0." in out and "kendall_tau_c = 0." in out and "95 %" not in out
    assert "note: no interval: the bootstrap has 8 images to sample; expected 10 or more\n" in out
    assert "56 pairs of 8 images" in out and "left out: 8 pairs" in out and "|marginal:8:train|" in out
    scores = written("".join("\t".join((*pair, f"{sum(own):g}")) + "\n" for pair, own in rows), "scores.tsv")
    _, out, _ = command_line("correlate", file, "--scores", scores, "--samples", 100, "--json")
    result = json.loads(out)
    assert [one["name"] for one in result["correlations"]] == ["kendall_tau_b", "kendall_tau_c"]
    assert result["correlations"][0]["value"] > 0.6 and result["pairs"] == 56
    assert result["correlations"][0]["interval"] is None and result["notes"][0].startswith("no interval")
    more = "".join(f"{number}.jpg\tx.jpg#0\t{number % 3 + 1}\t1\t{number % 4 + 1}\n" for number in range(12))
    ranks = written("".join(f"{number}.jpg\tx.jpg#0\t{number}\n" for number in range(12)), "ranks.tsv")
    arguments = ("correlate", written(more, "more.txt"), "--scores", ranks, "--samples", 100)
    _, out, _ = command_line(*arguments)
    assert out.count("95 % interval [") == 2 and "|images:12|bootstrap:100:images|seed:1]" in out
    _, out, _ = command_line(*arguments, "--json")
    assert [one["undefined"] for one in json.loads(out)["correlations"]] == [0, 0]
