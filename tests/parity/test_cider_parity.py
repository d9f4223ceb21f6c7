"""CIDEr-D against the reference program, pycocoevalcap."""

import random

import pytest

from limner.metrics.caption import CiderD

WORDS = ["a", "the", "two", "dog", "man", "runs", "sits", "red", "café", "on", "in", "grass", "street", "with"]


def corpus(size, seed):
    """References and hypotheses of different lengths, some equal to a reference, some empty, some of unknown words."""
    rng = random.Random(seed)
    references = [
        [[rng.choice(WORDS) for _ in range(rng.randint(1, 14))] for _ in range(rng.randint(1, 5))] for _ in range(size)
    ]
    hypotheses = [
        rng.choice(
            [
                own[0],
                own[0][:-1],
                [rng.choice([*WORDS, "zebra", "yak"]) for _ in range(rng.randint(0, 14))],
                ["a"] * 9,
                ["zebra", "yak", "zebra", "yak"],
            ]
        )
        for own in references
    ]
    return hypotheses, references


@pytest.mark.parametrize("end", [[], ["</s>"]])
def test_cider_d_equals_that_of_the_reference_program(end):
    """With and without an end-of-sentence token, with which the self-critical literature computes its reward."""
    scorer = pytest.importorskip("pycocoevalcap.cider.cider_scorer").CiderScorer(n=4, sigma=6.0)
    hypotheses, references = corpus(150, seed=1)
    hypotheses = [tokens + end for tokens in hypotheses]
    references = [[tokens + end for tokens in own] for own in references]
    for tokens, own in zip(hypotheses, references, strict=True):
        scorer += (" ".join(tokens), [" ".join(reference) for reference in own])
    _, expected = scorer.compute_score()
    cider = CiderD(references)
    assert max(expected) > 5
    assert [cider.score(item, tokens) for item, tokens in enumerate(hypotheses)] == pytest.approx(
        list(expected), rel=1e-9, abs=1e-9
    )


def test_document_frequencies_are_those_of_the_whole_corpus():
    """The score of an item does not depend on which other items are scored."""
    hypotheses, references = corpus(40, seed=2)
    whole, few = CiderD(references), CiderD(references[:10])
    assert whole.score(3, references[3][0]) != pytest.approx(few.score(3, references[3][0]))
    backwards = [whole.score(item, hypotheses[item]) for item in reversed(range(40))][::-1]
    assert backwards == [whole.score(item, tokens) for item, tokens in enumerate(hypotheses)]
