"""Word alignments of sentence pairs, and extraction of phrase pairs with their lexical weights: Koehn et al. (2003).

Brown et al. (1993) and Vogel et al. (1996) for the models of alignment, by `thot`; Koehn et al. (2003), section 3.1,
and Koehn et al. (2005) for grow-diag-final-and, which joins the alignments of both directions. Spans are numbered from
0, ends included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from limner.compiled import compiled
from limner.errors import extra_module
from limner.smt import DISCONTINUOUS, MAX_PHRASE_LENGTH, MONOTONE, SWAP, Bools, Floats, Ints
from limner.text.vocab import SPECIAL_TOKENS

ITERATIONS = {
    "ibm1": {"Ibm1": 5},
    "ibm2": {"Ibm1": 5, "Ibm2": 5},
    "hmm": {"Ibm1": 5, "Hmm": 5},
    "ibm3": {"Ibm1": 5, "Hmm": 5, "Ibm3": 3},
    "ibm4": {"Ibm1": 5, "Hmm": 5, "Ibm3": 3, "Ibm4": 3},
}
"""Iterations of each model, which starts from the previous model; for IBM model 4 as in Koehn et al. (2007)."""


def align(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], model: str = "ibm4") -> list[Bools]:
    """Align the words of sentence pairs.

    For each pair, whether source word i and target word j are aligned, (S, T), by a model of `ITERATIONS`; no sentence
    is empty.
    """
    forward = one_directional(sources, targets, model)
    backward = one_directional(targets, sources, model)
    return [symmetrise(to_target, to_source.T.copy()) for to_target, to_source in zip(forward, backward, strict=True)]


def one_directional(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], model: str) -> list[Bools]:
    """Align every target word with one source word or none: Viterbi alignments of the model, (S, T) for each pair."""
    thot = extra_module("thot.alignment", "word alignments need sil-thot", "smt")
    pairs = [([*map(str, source)], [*map(str, target)]) for source, target in zip(sources, targets, strict=True)]
    trained: Any = thot.Ibm1AlignmentModel()
    for source, target in pairs:
        trained.add_sentence_pair(source, target)
    for name, iterations in ITERATIONS[model].items():
        if name != "Ibm1":
            trained = getattr(thot, f"{name}AlignmentModel")(trained)
        trained.start_training()
        for _ in range(iterations):
            trained.train()
        trained.end_training()
    best = trained.get_best_alignments([source for source, _ in pairs], [target for _, target in pairs])
    return [np.asarray(matrix.to_numpy()).astype(bool) for _, matrix in best]


@compiled
def symmetrise(forward: Bools, backward: Bools) -> Bools:
    """Combine the alignments of both directions, (S, T): grow-diag-final-and, Koehn et al. (2005).

    Points of the intersection are kept. A point of the union is added while it is a neighbour, diagonals included, of
    an aligned point and one of its words has no alignment (grow-diag); the aligned points are visited by source word,
    then by target word, until none is added. Then points of each direction are added whose words both have no alignment
    (final-and): first the points of `forward`, where each target word has at most one source word.
    """
    height, width = forward.shape
    result = forward & backward
    rows, columns = np.zeros(height, dtype=np.bool_), np.zeros(width, dtype=np.bool_)
    for i in range(height):
        for j in range(width):
            if result[i, j]:
                rows[i] = columns[j] = True
    added = True
    while added:
        added = False
        for i in range(height):
            for j in range(width):
                if not result[i, j]:
                    continue
                for di, dj in ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)):
                    y, x = i + di, j + dj
                    if not (0 <= y < height and 0 <= x < width) or result[y, x]:
                        continue
                    if (forward[y, x] or backward[y, x]) and not (rows[y] and columns[x]):
                        result[y, x] = rows[y] = columns[x] = True
                        added = True
    for direction in (forward, backward):
        for i in range(height):
            for j in range(width):
                if direction[i, j] and not rows[i] and not columns[j]:
                    result[i, j] = rows[i] = columns[j] = True
    return result


LexicalWeights = Literal["moses", "koehn"]


class Instances(NamedTuple):
    """Occurrences of phrase pairs in the training data, N of them."""

    source_starts: Ints  # (N,): positions in the words of all source sentences
    source_lengths: Ints
    target_starts: Ints
    target_lengths: Ints
    previous: Ints  # (N,): orientation to the previous phrase
    next: Ints  # (N,): orientation of the next phrase
    alignments: Ints  # (N,): `alignment_bit` of all aligned words
    lexical: Floats  # (N, 2): log lex(f | e), log lex(e | f)


@compiled
def alignment_bit(i: int, j: int) -> int:
    """Return the bit of the alignment of source word i and target word j of a phrase pair."""
    return 1 << (i * MAX_PHRASE_LENGTH + j)


@compiled
def _is_aligned(alignment: Bools, i: int, j: int) -> bool:
    """Whether two words are aligned; positions before both sentences are aligned, and positions after both."""
    height, width = alignment.shape
    if i < 0 or j < 0:
        return i == -1 and j == -1
    if i >= height or j >= width:
        return bool(i == height and j == width)
    return bool(alignment[i, j])


@compiled
def _orientations(alignment: Bools, start: int, end: int, first: int, last: int) -> tuple[int, int]:
    """Return the orientations of a phrase pair to the previous and the next phrase, by the alignments at its corners.

    Where the words at both corners are aligned, the orientation is monotone.
    """
    previous, following = DISCONTINUOUS, DISCONTINUOUS
    if _is_aligned(alignment, start - 1, first - 1):
        previous = MONOTONE
    elif _is_aligned(alignment, end + 1, first - 1):
        previous = SWAP
    if _is_aligned(alignment, end + 1, last + 1):
        following = MONOTONE
    elif _is_aligned(alignment, start - 1, last + 1):
        following = SWAP
    return previous, following


@compiled
def _aligned_span(alignment: Bools, first: int, last: int) -> tuple[int, int]:
    """Return the first and last source word that are aligned to a target span.

    Returns:
        (0, -1) where there is none, or one of the source words between them is aligned outside the target span.
    """
    height, width = alignment.shape
    lowest, highest = height, -1
    for i in range(height):
        if alignment[i, first : last + 1].any():
            lowest, highest = min(lowest, i), max(highest, i)
    for i in range(lowest, highest + 1):
        for j in range(width):
            if alignment[i, j] and not first <= j <= last:
                return 0, -1
    return (lowest, highest) if highest >= 0 else (0, -1)


@compiled
def extract(alignment: Bools, max_length: int) -> list[tuple[int, int, int, int, int, int]]:
    """Extract all phrase pairs that are consistent with an alignment.

    No word of a pair is aligned to a word outside, and at least one pair of words is aligned: Koehn et al. (2003),
    section 2.2, and Och et al. (1999). Words without alignment at the borders are left out and taken in, in all ways.
    The result has first and last source word, first and last target word, and the orientations to the previous and the
    next phrase, by the alignment of the adjacent words; sorted by target span, then source span.
    """
    height, width = alignment.shape
    pairs = [(0, 0, 0, 0, 0, 0) for _ in range(0)]
    for first in range(width):
        for last in range(first, min(width, first + max_length)):
            lowest, highest = _aligned_span(alignment, first, last)
            if highest < 0:
                continue
            start = lowest
            while start >= 0 and (start == lowest or not alignment[start].any()):
                end = highest
                while end < height and end - start < max_length and (end == highest or not alignment[end].any()):
                    previous, following = _orientations(alignment, start, end, first, last)
                    pairs.append((start, end, first, last, previous, following))
                    end += 1
                start -= 1
    return pairs


def lexical_probabilities(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    alignments: Sequence[Bools],
    sizes: tuple[int, int],
    lexical_weights: LexicalWeights = "moses",
) -> tuple[dict[int, float], dict[int, float]]:
    """Estimate w(f | e) and w(e | f) by the relative frequency of aligned words.

    Koehn et al. (2003), section 3.3: w(f | e) = count(f, e) / sum_f' count(f', e), where NULL is added to e and aligned
    with each f without alignment; so that the sum has no occurrences of e without alignment. Moses (get-lexical) counts
    these too, as aligned with a NULL of f. w(e | f) is estimated with the sides exchanged. The sizes of the
    vocabularies stand for NULL, with which words without alignment are aligned. Both results have the keys f * (V_e +
    1) + e.
    """
    source_size, target_size = sizes
    keys = []
    for source, target, alignment in zip(sources, targets, alignments, strict=True):
        f, e = np.array([*source, source_size]), np.array([*target, target_size])
        full = np.zeros((len(f), len(e)), dtype=bool)
        full[:-1, :-1] = alignment
        full[:-1, -1], full[-1, :-1] = ~alignment.any(1), ~alignment.any(0)
        i, j = np.nonzero(full)
        keys.append(f[i] * (target_size + 1) + e[j])
    distinct, counts = np.unique(np.concatenate(keys), return_counts=True)
    f, e = np.divmod(distinct, target_size + 1)
    with_null = lexical_weights == "moses"
    of_source = np.bincount(f, counts * (with_null | (e < target_size))).clip(1)
    of_target = np.bincount(e, counts * (with_null | (f < source_size))).clip(1)
    names = distinct.tolist()
    return (
        dict(zip(names, (counts / of_target[e]).tolist(), strict=True)),
        dict(zip(names, (counts / of_source[f]).tolist(), strict=True)),
    )


@compiled
def _lexical_weight(weights: Floats, alignment: Bools, null: Floats) -> float:
    """Compute log lex: the sum over rows of the log of the mean weight of the aligned columns, or of NULL."""
    total = 0.0
    for i in range(alignment.shape[0]):
        count, weight = 0, 0.0
        for j in range(alignment.shape[1]):
            if alignment[i, j]:
                count, weight = count + 1, weight + weights[i, j]
        total += np.log(weight / count if count else null[i])
    return total


@compiled
def _instances(alignment: Bools, max_length: int, w_fe: Floats, w_ef: Floats, rows: Ints, lexical: Floats) -> int:
    """Extract the pairs of one sentence pair to `rows` (N, 7) and `lexical` (N, 2); return their number.

    `w_fe` and `w_ef` are (S + 1, T + 1); the last row and column belong to NULL.
    """
    height, width = alignment.shape
    pairs = extract(alignment, max_length)
    for n, (start, end, first, last, previous, following) in enumerate(pairs):
        bits = 0
        for i in range(start, end + 1):
            for j in range(first, last + 1):
                if alignment[i, j]:
                    bits |= alignment_bit(i - start, j - first)
        inner = alignment[start : end + 1, first : last + 1]
        rows[n] = (start, end - start + 1, first, last - first + 1, previous, following, bits)
        lexical[n, 0] = _lexical_weight(w_fe[start : end + 1, first : last + 1], inner, w_fe[start : end + 1, width])
        lexical[n, 1] = _lexical_weight(
            w_ef[start : end + 1, first : last + 1].T, inner.T, w_ef[height, first : last + 1]
        )
    return len(pairs)


def extract_all(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    alignments: Sequence[Bools],
    sizes: tuple[int, int],
    max_length: int,
    lexical_weights: LexicalWeights = "moses",
) -> Instances:
    """Extract the phrase pairs without unknown words of all sentence pairs.

    Unknown words are copied: one token stands for all of them, so that a pair with it would translate any of them. See
    `lexical_probabilities` and `extract` for the arguments.
    """
    given_target, given_source = lexical_probabilities(sources, targets, alignments, sizes, lexical_weights)
    all_rows, all_lexical, source_offset, target_offset = [], [], 0, 0
    for source, target, alignment in zip(sources, targets, alignments, strict=True):
        f, e = np.array([*source, sizes[0]]), np.array([*target, sizes[1]])
        keys = f[:, None] * (sizes[1] + 1) + e
        w_fe, w_ef = (
            np.array([[table.get(key, 0.0) for key in row] for row in keys.tolist()])
            for table in (given_target, given_source)
        )
        rows = np.empty((len(source) * len(target) * max_length * max_length, 7), dtype=np.int64)
        lexical = np.empty((len(rows), 2))
        count = _instances(alignment, max_length, w_fe, w_ef, rows, lexical)
        rows = rows[:count].copy()
        rows[:, 0] += source_offset
        rows[:, 2] += target_offset
        all_rows.append(rows)
        all_lexical.append(lexical[:count].copy())
        source_offset += len(source)
        target_offset += len(target)
    rows, lexical = np.concatenate(all_rows), np.concatenate(all_lexical)
    known = ~(_has_unknown(sources, rows[:, 0], rows[:, 1]) | _has_unknown(targets, rows[:, 2], rows[:, 3]))
    starts, lengths, firsts, target_lengths, previous, following, bits = rows[known].T
    return Instances(starts, lengths, firsts, target_lengths, previous, following, bits, lexical[known])


def _has_unknown(sentences: Sequence[Sequence[int]], starts: Ints, lengths: Ints) -> Bools:
    """Whether each span has an unknown word; spans are given by positions in the words of all sentences."""
    unknown = np.concatenate([np.array(sentence, dtype=np.int64) for sentence in sentences]) == SPECIAL_TOKENS.unk
    before = np.concatenate([[0], np.cumsum(unknown)])
    result: Bools = before[starts + lengths] > before[starts]
    return result
