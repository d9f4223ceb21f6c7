"""Symmetrisation, phrase extraction, scores and orientations: tables worked by hand."""

import itertools
import random

import numpy as np
import pytest

from limner.smt import DISCONTINUOUS, MAX_PHRASE_LENGTH, MONOTONE, SWAP
from limner.smt.extraction import (
    ITERATIONS,
    align,
    extract,
    extract_all,
    lexical_probabilities,
    one_directional,
    symmetrise,
)
from limner.smt.features import UNK, orientation
from limner.smt.phrases import orientation_log_probs, score


def matrix(height, width, points):
    result = np.zeros((height, width), dtype=bool)
    for point in points:
        result[point] = True
    return result


def test_grow_diag_adds_neighbours_and_final_and_adds_free_words():
    forward = matrix(4, 5, [(0, 0), (0, 1), (1, 2), (3, 4)])
    backward = matrix(4, 5, [(0, 0), (1, 2), (2, 2), (2, 0)])
    # Intersection: (0, 0), (1, 2). (0, 1) and (2, 2) are neighbours with a free word. (2, 0) then has none. (3, 4) has
    # two free words and no neighbour.
    expected = matrix(4, 5, [(0, 0), (1, 2), (0, 1), (2, 2), (3, 4)])
    assert (symmetrise(forward, backward) == expected).all()


def test_phrases_of_a_swap_and_a_word_without_alignment():
    """f0 f1 f2 and e0 e1: f0-e1, f1-e0; f2 is not aligned."""
    found = {pair[:4] for pair in extract(matrix(3, 2, [(0, 1), (1, 0)]), 7)}
    assert found == {(1, 1, 0, 0), (1, 2, 0, 0), (0, 0, 1, 1), (0, 1, 0, 1), (0, 2, 0, 1)}


def consistent_pairs(alignment, longest):
    """All pairs of spans, by the definition: some words in them are aligned, and none of them with a word outside."""
    height, width = alignment.shape
    spans = itertools.product(range(height), range(height), range(width), range(width))
    found = set()
    for start, end, first, last in spans:
        if not (0 <= end - start < longest and 0 <= last - first < longest):
            continue
        inside = np.zeros_like(alignment)
        inside[start : end + 1, first : last + 1] = True
        rows, columns = np.zeros_like(alignment), np.zeros_like(alignment)
        rows[start : end + 1], columns[:, first : last + 1] = True, True
        if (alignment & inside).any() and not (alignment & (rows ^ columns)).any():
            found.add((start, end, first, last))
    return found


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_extracted_phrases_are_those_of_the_definition(share):
    rng = np.random.default_rng(1)
    for _ in range(150):
        alignment = rng.random(rng.integers(1, 7, 2)) < share
        found = [pair[:4] for pair in extract(alignment, 4)]
        assert len(set(found)) == len(found)
        assert set(found) == consistent_pairs(alignment, 4)


def test_orientations_of_extracted_phrases():
    """f0 f1 f2 to e0 e1 e2 in the order f0, f2, f1."""
    pairs = {pair[:4]: pair[4:] for pair in extract(matrix(3, 3, [(0, 0), (2, 1), (1, 2)]), 7)}
    assert pairs[0, 0, 0, 0] == (MONOTONE, DISCONTINUOUS)
    assert pairs[2, 2, 1, 1] == (DISCONTINUOUS, SWAP)
    assert pairs[1, 1, 2, 2] == (SWAP, DISCONTINUOUS)  # the end of the source follows f2, not f1
    assert pairs[0, 2, 0, 2] == (MONOTONE, MONOTONE)
    assert pairs[1, 2, 1, 2] == (MONOTONE, MONOTONE)


def test_orientation_in_the_search():
    assert orientation(-1, -1, 0, 1) == MONOTONE
    assert orientation(0, 1, 2, 2) == MONOTONE
    assert orientation(3, 4, 1, 2) == SWAP
    assert orientation(3, 4, 0, 1) == DISCONTINUOUS


def test_orientation_probabilities_are_smoothed_with_half_an_observation():
    pairs, orientations = np.array([0, 0, 0, 1]), np.array([MONOTONE, MONOTONE, SWAP, DISCONTINUOUS])
    overall = np.array([3, 2, 2]) / 7  # one more observation of each
    expected = np.array([(2, 1, 0) + 0.5 * overall, (0, 0, 1) + 0.5 * overall]) / [[3.5], [1.5]]
    assert np.exp(orientation_log_probs(pairs, orientations, 2)) == pytest.approx(expected)


def test_scores_of_phrase_pairs():
    """Three sentence pairs of single words: f0 to e0 twice, f0 to e1 once; and f1 f0 to e0."""
    sources, targets = [[0], [0], [0], [1, 0]], [[0], [0], [1], [0]]
    alignments = [np.ones((1, 1), dtype=bool)] * 3 + [matrix(2, 1, [(1, 0)])]
    instances = extract_all(sources, targets, alignments, (2, 2), 7)
    table = score(instances, np.concatenate(sources), np.concatenate(targets), (2, 2), 20)
    scores = {}
    for node in range(len(table.first) - 1):
        for pair in range(table.first[node], table.first[node + 1]):
            words = table.words[table.word_starts[pair] : table.word_starts[pair + 1]].tolist()
            scores[node, *words] = np.exp(table.scores[pair, :4])
    one, two = 1, 3  # nodes: 0 empty, 1 'f0', 2 'f1', 3 'f1 f0'
    assert set(scores) == {(one, 0), (one, 1), (two, 0)}
    # phi(f|e): of e0 are 3 'f0' and 1 'f1 f0'. w(f0|e0) = 1; w(e0|f0) = 3/4; f1 is aligned with NULL: w(f1|NULL) = 1.
    assert scores[one, 0] == pytest.approx([3 / 4, 1, 3 / 4, 3 / 4])
    assert scores[one, 1] == pytest.approx([1, 1, 1 / 4, 1 / 4])
    assert scores[two, 0] == pytest.approx([1 / 4, 1, 1, 3 / 4])


@pytest.mark.parametrize("estimate", ["moses", "koehn"])
def test_lexical_weights_by_hand(estimate):
    """Words f4 f5 and e4 e5 e6, in three sentence pairs:

    f4 f5 | e4 e5     both aligned with e4, e5 with none
    f4 f5 | e4        f4 aligned with e4, f5 with none
    f5    | e4 e6 e6  f5 aligned with e4, e6 with none
    """
    sources, targets = [[4, 5], [4, 5], [5]], [[4, 5], [4], [4, 6, 6]]
    alignments = [matrix(2, 2, [(0, 0), (1, 0)]), matrix(2, 1, [(0, 0)]), matrix(1, 3, [(0, 0)])]
    instances = extract_all(sources, targets, alignments, (7, 7), 7, estimate)
    table = score(instances, np.concatenate(sources), np.concatenate(targets), (7, 7), 20)
    # w(f4|e4) = w(f5|e4) = 2/4, w(f5|NULL) = 1; w(e4|f4) = 1, w(e5|NULL) = 1/3, w(e6|NULL) = 2/3. Of the 3 occurrences
    # of f5, 2 are aligned with e4 and one with nothing: w(e4|f5) = 2/3 in Moses, 2/2 by the formula of the paper.
    e4_f5 = {"moses": 2 / 3, "koehn": 1}[estimate]
    f4, f5, both = 1, 2, 3  # nodes
    expected = {
        # The first alignment has 1/2 · 1/2 and the mean of w(e4|f4) and w(e4|f5), the second one 1/2 · 1 and 1.
        (both, 4): [2 / 4, 1 / 2, 2 / 3, 1],
        (both, 4, 5): [1, 1 / 4, 1 / 3, (1 + e4_f5) / 2 * 1 / 3],
        (f4, 4): [1 / 4, 1 / 2, 1, 1],
        (f5, 4): [1 / 4, 1 / 2, 1 / 3, e4_f5],
        (f5, 4, 6): [1, 1 / 2, 1 / 3, e4_f5 * 2 / 3],
        (f5, 4, 6, 6): [1, 1 / 2, 1 / 3, e4_f5 * 2 / 3 * 2 / 3],
    }
    found = {}
    for node in range(len(table.first) - 1):
        for pair in range(table.first[node], table.first[node + 1]):
            words = table.words[table.word_starts[pair] : table.word_starts[pair + 1]].tolist()
            found[node, *words] = np.exp(table.scores[pair, :4].astype(float))
    assert set(found) == set(expected)
    assert all(found[key] == pytest.approx(values) for key, values in expected.items())


@pytest.mark.parametrize(("estimate", "w_f_e5", "w_e_f5"), [("moses", 1 / 2, 1 / 3), ("koehn", 1, 1)])
def test_words_without_alignment_are_counted_in_the_estimate_of_moses(estimate, w_f_e5, w_e_f5):
    """e5 is aligned once and once with nothing, f5 once and twice with nothing; NULL itself is estimated alike."""
    sources, targets = [[4, 5], [4], [5], [5, 4]], [[4], [5], [4, 5], [4]]
    alignments = [matrix(2, 1, [(0, 0)]), matrix(1, 1, [(0, 0)]), matrix(1, 2, [(0, 0)]), matrix(2, 1, [(1, 0)])]
    w_f, w_e = lexical_probabilities(sources, targets, alignments, (7, 7), estimate)
    null = 7
    assert (w_f[4 * 8 + 5], w_e[5 * 8 + 4]) == pytest.approx((w_f_e5, w_e_f5))
    assert (w_f[5 * 8 + null], w_e[null * 8 + 5]) == (1, 1)
    assert (w_f[4 * 8 + 4], w_f[5 * 8 + 4], w_e[4 * 8 + 4]) == pytest.approx((2 / 3, 1 / 3, 2 / 3))


def test_a_pair_has_its_most_frequent_alignment():
    """The pair f0 f1, e0 e1: crosswise in the first sentence, in order in the next two."""
    crosswise, in_order = matrix(2, 2, [(0, 1), (1, 0)]), matrix(2, 2, [(0, 0), (1, 1)])
    sources, targets = [[0, 1]] * 3, [[0, 1]] * 3
    instances = extract_all(sources, targets, [crosswise, in_order, in_order], (2, 2), 7)
    table = score(instances, np.concatenate(sources), np.concatenate(targets), (2, 2), 20)
    lengths = np.diff(table.word_starts)
    whole = [int(bits) for bits, length in zip(table.alignments, lengths, strict=True) if length == 2]
    assert whole == [1 << 0 | 1 << MAX_PHRASE_LENGTH + 1]


def test_the_most_probable_pairs_of_a_source_phrase_are_kept():
    sources, targets = [[0]] * 6, [[0], [0], [0], [1], [1], [2]]
    instances = extract_all(sources, targets, [np.ones((1, 1), dtype=bool)] * 6, (1, 3), 7)
    table = score(instances, np.concatenate(sources), np.concatenate(targets), (1, 3), 2)
    assert table.words.tolist() == [0, 1]


@pytest.mark.parametrize(("sources", "targets"), [([[4, UNK]], [[4, 5]]), ([[4, 5]], [[4, UNK]])])
def test_pairs_with_an_unknown_word_are_left_out(sources, targets):
    """One token stands for all unknown words, so that a pair with it would translate any of them."""
    sources, targets = [*sources, [6]], [*targets, [6]]
    alignments = [np.eye(2, dtype=bool), np.eye(1, dtype=bool)]
    instances = extract_all(sources, targets, alignments, (7, 7), 7)
    words = [
        [*zip(starts.tolist(), lengths.tolist(), strict=True)] for starts, lengths in (instances[:2], instances[2:4])
    ]
    assert words == [[(0, 1), (2, 1)]] * 2
    assert len(instances.lexical) == len(instances.alignments) == 2


def test_an_unknown_target_word_without_alignment_is_not_taken_in():
    instances = extract_all([[4]], [[4, UNK]], [matrix(1, 2, [(0, 0)])], (5, 5), 7)
    assert instances.target_lengths.tolist() == [1]


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
