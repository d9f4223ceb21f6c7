"""Word alignments of artificial languages, whose words are translated one by one."""

import random

import pytest

from limner.smt.extraction import ITERATIONS, align, one_directional

pytest.importorskip("thot")

WORDS = 20


def corpus(reverse):
    """Sentence pairs: even words f are translated as f, odd ones as f and f + WORDS; and the aligned words."""
    rng = random.Random(1)
    pairs = []
    for _ in range(300):
        source = [rng.randrange(WORDS) for _ in range(rng.randint(2, 6))]
        units = [[(i, e) for e in ((f, f + WORDS) if f % 2 else (f,))] for i, f in enumerate(source)]
        flat = [word for unit in (reversed(units) if reverse else units) for word in unit]
        pairs.append((source, [e for _, e in flat], {(i, j) for j, (i, _) in enumerate(flat)}))
    return zip(*pairs, strict=True)


@pytest.mark.parametrize("model", ITERATIONS)
@pytest.mark.parametrize("reverse", [False, True])
def test_words_are_aligned_with_their_translations(model, reverse):
    sources, targets, expected = corpus(reverse)
    found = align(sources, targets, model)
    right = sum(bool(matrix[i, j]) for matrix, points in zip(found, expected, strict=True) for i, j in points)
    points, aligned = sum(map(len, expected)), sum(int(matrix.sum()) for matrix in found)
    repeated = 0.9 if model == "ibm1" else 0.97  # IBM model 1 knows no order: a word that occurs twice is a toss-up
    assert right / points > repeated and right / aligned > repeated


@pytest.mark.parametrize("model", ["hmm", "ibm4"])
def test_an_alignment_is_the_same_again(model):
    sources, targets, _ = corpus(reverse=True)
    first, second = (one_directional(sources, targets, model) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("lengths", [(1, 1), (3, 1), (1, 100), (80, 80)])
def test_a_single_pair_of_any_length_is_aligned(lengths):
    (matrix,) = align([[1] * lengths[0]], [[2] * lengths[1]])
    assert matrix.shape == lengths and matrix.any()
