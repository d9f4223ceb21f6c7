"""Metrics against the published equations and against the reference programs."""

import math
import random
from collections import Counter
from itertools import zip_longest

import numpy as np
import pytest
import sacrebleu

from limner.metrics import METRICS, score_sentences

WORDS = ["a", "the", "two", "dog", "man", "runs", "sits", "red", "café", "on", "in", "grass", ",", "street", "with"]


def corpus(size, seed=0, references=5):
    """Similar sentences, like captions, with one to five references each."""
    rng = random.Random(seed)
    sentence = lambda: " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))  # noqa: E731
    vary = lambda text: " ".join(w for w in text.split() if rng.random() > 0.2) or "a"  # noqa: E731
    hypotheses = [sentence() for _ in range(size)]
    return hypotheses, [
        [rng.choice((vary(hypothesis), sentence())) for _ in range(rng.randint(1, references))]
        for hypothesis in hypotheses
    ]


def bleu_by_equations(hypotheses, references, order):
    """Mao et al. (2015), eqs. 8 and 9: p_n, r and c over the corpus, the closest length of each segment."""

    def grams(words, n):
        return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))

    c = r = 0
    matched, total = np.zeros(order), np.zeros(order)
    for hypothesis, own in zip(hypotheses, references, strict=True):
        words = hypothesis.split()
        c += len(words)
        r += min((abs(len(reference.split()) - len(words)), len(reference.split())) for reference in own)[1]
        for n in range(1, order + 1):
            counts = grams(words, n)
            ceiling = Counter()
            for reference in own:
                ceiling |= grams(reference.split(), n)
            matched[n - 1] += (counts & ceiling).total()
            total[n - 1] += counts.total()
    return min(1.0, math.exp(1 - r / c)) * math.exp(np.log(matched / total).mean())


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_bleu_equals_the_equations_of_the_paper(order, seed):
    hypotheses, references = corpus(60, seed)
    ours = METRICS[f"bleu{order}"].score(hypotheses, references).value
    assert ours == pytest.approx(100 * bleu_by_equations(hypotheses, references, order), rel=1e-12)


def test_bleu_equals_coco_captions():
    scorer = pytest.importorskip("pycocoevalcap.bleu.bleu_scorer").BleuScorer(n=4)
    hypotheses, references = corpus(60)
    for hypothesis, own in zip(hypotheses, references, strict=True):
        scorer += (hypothesis, own)
    theirs, _ = scorer.compute_score(option="closest", verbose=0)
    ours = [score.value for score in score_sentences(hypotheses, references, ["bleu1", "bleu2", "bleu3", "bleu4"])]
    assert ours == pytest.approx([100 * score for score in theirs], rel=1e-6)


def test_sacrebleu_and_chrf_equal_sacrebleu():
    hypotheses, references = corpus(60)
    streams = list(zip_longest(*references))
    ours = [score.value for score in score_sentences(hypotheses, references, ["sacrebleu", "chrf"])]
    theirs = [metric(hypotheses, streams).score for metric in (sacrebleu.corpus_bleu, sacrebleu.corpus_chrf)]
    assert ours == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize(("name", "module", "scorer"), [("cider", "cider", "Cider"), ("rouge_l", "rouge", "Rouge")])
def test_cider_and_rouge_equal_coco_captions(name, module, scorer):
    theirs = getattr(pytest.importorskip(f"pycocoevalcap.{module}.{module}"), scorer)()
    hypotheses, references = corpus(60)
    score, segments = theirs.compute_score(
        dict(enumerate(references)), {row: [hypothesis] for row, hypothesis in enumerate(hypotheses)}
    )
    metric = METRICS[name]
    assert metric.score(hypotheses, references).value == pytest.approx(100 * score, rel=1e-9)
    rows = metric.statistics(hypotheses, references)
    assert [metric.value(row) for row in rows] == pytest.approx(100 * np.asarray(segments), rel=1e-9)
