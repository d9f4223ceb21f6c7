"""METEOR's beam search by hand: which of the possible alignments is chosen."""

import numpy as np
import pytest

pytest.importorskip("numba")

from limner.metrics.meteor.alignment import BEAM, best_alignment

EXACT, PARAPHRASE = 0, 3


def aligned(hypothesis, reference, width=BEAM, others=()):
    """Align two sentences by identical words and other matches; return pairs of reference and hypothesis words."""
    hyp, ref = hypothesis.split(), reference.split()
    same = [(i, 1, j, 1, EXACT) for i in range(len(ref)) for j in range(len(hyp)) if hyp[j] == ref[i]]
    matches = sorted([*same, *others], key=lambda match: (match[0], match[4], match[2]))
    table = np.array(matches, np.int32).reshape(-1, 5)
    return [(int(table[n, 0]), int(table[n, 2])) for n in best_alignment(table, len(hyp), len(ref), width)]


@pytest.mark.parametrize(
    ("hypothesis", "reference", "expected"),
    [
        ("a b", "a b", [(0, 0), (1, 1)]),
        ("x", "y", []),
        ("z d z", "d z", [(0, 1), (1, 2)]),  # one chunk
        ("a x b x c", "c b a", [(0, 4), (1, 2), (2, 0)]),  # covered words before chunks
        # Distances of matches not taken: |0 - 0| for the second a and nothing for the first; the open chunk wins.
        ("a", "a x a", [(2, 0)]),
        # |0 - 1| for the second a, nothing for the first.
        ("x a", "a x a", [(1, 0), (2, 1)]),
        ("y a", "a x a", [(0, 1)]),
        ("a y a", "a", [(0, 0)]),
        # Both have one chunk and the distance 1: the second is still open when it is ranked.
        ("z x z", "x z x", [(1, 0), (2, 1)]),
        ("b a b", "b a a b", [(0, 0), (1, 1), (3, 2)]),
    ],
)
def test_exact_matches(hypothesis, reference, expected):
    assert aligned(hypothesis, reference) == expected


def test_a_narrow_beam_decides_word_by_word():
    assert aligned("a", "a x a", width=1) == [(0, 0)]
    assert aligned("a b b", "b c b b", width=1) == [(0, 1), (2, 2)]
    assert aligned("a b b", "b c b b") == [(2, 1), (3, 2)]


def test_single_words_of_other_modules_count_nothing_unless_they_are_certain():
    one, two = (0, 1, 0, 1, PARAPHRASE), (0, 1, 2, 1, PARAPHRASE)
    assert aligned("t z t", "u", others=[one]) == [(0, 0)]
    assert aligned("t z t", "u", others=[one, two]) == []
    assert aligned("a t z t", "a u", others=[(1, 1, 1, 1, PARAPHRASE), (1, 1, 3, 1, PARAPHRASE)]) == [(0, 0), (1, 1)]


def test_half_of_the_words_of_a_paraphrase_counts_rounded_down_on_each_side():
    phrase = (2, 2, 0, 2, PARAPHRASE)  # 1 + 1, as much as an exact match of one word
    assert aligned("p q r", "p z x y", others=[phrase]) == [(2, 0)]
    assert aligned("p q r", "p q x y", others=[phrase]) == [(0, 0), (1, 1)]
    assert aligned("p q r", "p z x", others=[(2, 1, 0, 2, PARAPHRASE)]) == [(0, 0)]
