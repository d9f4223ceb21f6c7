"""Phrase pairs of aligned sentences and their scores: Koehn et al. (2003), sections 2.2, 3.1 and 3.3.

Spans are numbered from 0, ends included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.compiled import compiled
from limner.smt.hashing import build_table
from limner.smt.layout import MAX_PHRASE_LENGTH
from limner.smt.reordering import DISCONTINUOUS, MONOTONE, SWAP, orientation_log_probs
from limner.text.vocab import SPECIAL_TOKENS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


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


class PhraseTable(NamedTuple):
    """Phrase pairs by source phrase. A source phrase is a node of a trie of words; node 0 is the empty phrase.

    P is the number of pairs, M that of nodes, W the number of words of all target phrases.
    """

    vocab_size: int
    """Number of source words; the edge of a word from a node has the key node * vocab_size + word."""
    edges: Ints  # (M - 1,): key of the edge to each node but the first
    first: Ints  # (M + 1,): the pairs of node m are first[m] … first[m + 1] - 1
    word_starts: Ints  # (P + 1,): the target words of pair p are words[word_starts[p]] … words[word_starts[p + 1] - 1]
    words: Ints  # (W,)
    scores: NDArray[np.float32]  # (P, NUM_SCORES)
    alignments: Ints  # (P,): the most frequent one of each pair; see `Instances`

    def table(self) -> Ints:
        """Build the table of the edges."""
        return build_table(self.edges, np.arange(1, len(self.edges) + 1))


@compiled
def alignment_bit(i: int, j: int) -> int:
    """Return the bit of the alignment of source word i and target word j of a phrase pair."""
    return 1 << (i * MAX_PHRASE_LENGTH + j)


@compiled
def _is_aligned(alignment: Bools, i: int, j: int) -> bool:
    """Whether two words are aligned; the words before the sentences are, and so are those after them."""
    height, width = alignment.shape
    if i < 0 or j < 0:
        return i == -1 and j == -1
    if i >= height or j >= width:
        return bool(i == height and j == width)
    return bool(alignment[i, j])


@compiled
def _orientations(alignment: Bools, start: int, end: int, first: int, last: int) -> tuple[int, int]:
    """Return the orientation of a phrase pair to the previous phrase and that of the next, by the words at its corners.

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

    Args:
        alignment: aligned words, (S, T).
        max_length: largest number of words of a phrase.

    Returns:
        First and last source word, first and last target word, the orientation to the previous phrase, and that of the
        next phrase, both by the alignment of the adjacent words; sorted by target span, then source span.
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
) -> tuple[dict[int, float], dict[int, float]]:
    """Estimate w(f | e) and w(e | f) by the relative frequency of aligned words, Koehn et al. (2003), section 3.3.

    Args:
        sources: source sentences f.
        targets: target sentences e.
        alignments: aligned words of each pair.
        sizes: sizes of the vocabularies; these numbers stand for NULL, with which words without alignment are aligned.

    Returns:
        Both by the key f * (V_e + 1) + e.
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
    of_source, of_target = np.bincount(f, counts), np.bincount(e, counts)
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

    `w_fe` and `w_ef` are (S + 1, T + 1), the last row and column those of NULL.
    """
    height, width = alignment.shape
    found = extract(alignment, max_length)
    for n, (start, end, first, last, previous, following) in enumerate(found):
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
    return len(found)


def extract_all(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    alignments: Sequence[Bools],
    sizes: tuple[int, int],
    max_length: int,
) -> Instances:
    """Extract the phrase pairs of all sentence pairs, without those that have an unknown word on a side.

    Unknown words are copied: one token stands for all of them, so that a pair with it would translate any of them.
    Arguments are those of `lexical_probabilities` and `extract`.
    """
    given_target, given_source = lexical_probabilities(sources, targets, alignments, sizes)
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
    unknown = np.concatenate([np.array(one, dtype=np.int64) for one in sentences]) == SPECIAL_TOKENS.unk
    before = np.concatenate([[0], np.cumsum(unknown)])
    result: Bools = before[starts + lengths] > before[starts]
    return result


class _Phrases(NamedTuple):
    """Numbers of the phrases at each place of a text."""

    parents: list[Ints]  # for each length: phrase without its last word
    lasts: list[Ints]  # for each length: last word
    at: list[Ints]  # for each length: number of the phrase that starts at each position


def _number(words: Ints, lengths: int, vocab_size: int) -> _Phrases:
    """Number the phrases of up to `lengths` words in order of their length; 0 is the empty one."""
    current, start = np.zeros(len(words), dtype=np.int64), 1
    parents, lasts, at = [], [], []
    for length in range(1, lengths + 1):
        here = np.arange(len(words) - length + 1)
        keys = current[here] * vocab_size + words[here + length - 1]
        distinct, inverse = np.unique(keys, return_inverse=True)
        parents.append(distinct // vocab_size)
        lasts.append(distinct % vocab_size)
        current = start + inverse
        at.append(current)
        start += len(distinct)
    return _Phrases(parents, lasts, at)


def score(instances: Instances, source: Ints, target: Ints, sizes: tuple[int, int], limit: int) -> PhraseTable:
    """Build the phrase table.

    phi are relative frequencies. Of several alignments of a pair the one with the largest lexical weights counts,
    Koehn et al. (2003), section 3.3: the maximum of each direction. Of each source phrase the `limit` pairs of largest
    phi(e | f) are kept.

    Args:
        instances: occurrences of the pairs.
        source: words of all source sentences, one after the other.
        target: words of all target sentences.
        sizes: sizes of the vocabularies.
        limit: largest number of pairs of a source phrase.
    """
    longest = int(max(instances.source_lengths.max(), instances.target_lengths.max()))
    source_phrases, target_phrases = (
        _number(words, longest, size) for words, size in zip((source, target), sizes, strict=True)
    )
    f = _numbers_at(source_phrases, instances.source_starts, instances.source_lengths)
    e = _numbers_at(target_phrases, instances.target_starts, instances.target_lengths)
    size = int(e.max()) + 1
    distinct, index, pair, counts = np.unique(f * size + e, return_index=True, return_inverse=True, return_counts=True)
    pair_f, pair_e = np.divmod(distinct, size)
    scores = _scores(instances, pair, np.stack([pair_f, pair_e]), counts)
    kept = _largest(pair_f, pair_e, scores[:, 2], limit)
    lengths = instances.target_lengths[index[kept]]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    places = np.repeat(instances.target_starts[index[kept]] - starts[:-1], lengths) + np.arange(starts[-1])
    edges, first = _trie(pair_f[kept], source_phrases, sizes[0])
    return PhraseTable(
        vocab_size=sizes[0],
        edges=edges,
        first=first,
        word_starts=starts,
        words=target[places],
        scores=scores[kept].astype(np.float32),
        alignments=_most_frequent(pair, instances.alignments)[kept],
    )


def _scores(instances: Instances, pair: Ints, phrases: Ints, counts: Ints) -> Floats:
    """Compute the scores of all phrase pairs, (P, NUM_SCORES).

    Args:
        instances: occurrences of the pairs.
        pair: number of the pair of each occurrence, (N,).
        phrases: source and target phrase of each pair, (2, P).
        counts: number of occurrences of each pair, (P,).
    """
    phi_ef, phi_fe = (np.log(counts / np.bincount(given, counts)[given]) for given in phrases)
    lexical = np.full((len(counts), 2), -np.inf)
    np.maximum.at(lexical, pair, instances.lexical)
    orientations = [orientation_log_probs(pair, one, len(counts)) for one in (instances.previous, instances.next)]
    return np.concatenate([np.stack([phi_fe, lexical[:, 0], phi_ef, lexical[:, 1]], 1), *orientations], 1)


def _largest(f: Ints, e: Ints, phi: Floats, limit: int) -> Ints:
    """Return the `limit` pairs of largest phi of each source phrase f, in order; equal ones in the order of e."""
    best = np.lexsort((e, -phi, f))
    sorted_f = f[best]
    rank = np.arange(len(best)) - np.searchsorted(sorted_f, sorted_f)
    kept: Ints = best[rank < limit]
    return kept


def _trie(used: Ints, phrases: _Phrases, vocab_size: int) -> tuple[Ints, Ints]:
    """Return `edges` and `first` of a phrase table.

    Args:
        used: source phrase of each pair, sorted, (P,).
        phrases: all source phrases.
        vocab_size: number of source words.
    """
    parents, lasts = np.concatenate(phrases.parents), np.concatenate(phrases.lasts)
    nodes, pair_node = _used_nodes(used, parents)
    first = np.searchsorted(pair_node, np.arange(len(nodes) + 2))
    renumbered = np.zeros(len(parents) + 1, dtype=np.int64)
    renumbered[nodes] = np.arange(1, len(nodes) + 1)
    return renumbered[parents[nodes - 1]] * vocab_size + lasts[nodes - 1], first


def _most_frequent(pair: Ints, alignments: Ints) -> Ints:
    """Return the most frequent alignment of each pair; of equally frequent ones the smallest integer.

    Args:
        pair: number of the pair of each occurrence, all from 0 on, (N,).
        alignments: alignment of each occurrence, (N,).
    """
    order = np.lexsort((alignments, pair))
    pairs, values = pair[order], alignments[order]
    is_first = np.concatenate([[True], (np.diff(pairs) != 0) | (np.diff(values) != 0)])
    firsts = np.flatnonzero(is_first)
    counts = np.diff(np.append(firsts, len(pairs)))
    best = firsts[np.lexsort((-counts, pairs[firsts]))]
    return values[best[np.unique(pairs[best], return_index=True)[1]]]


def _numbers_at(phrases: _Phrases, starts: Ints, lengths: Ints) -> Ints:
    """Return the numbers of phrases by their first positions and lengths."""
    result = np.empty(len(starts), dtype=np.int64)
    for length, at in enumerate(phrases.at, 1):
        chosen = lengths == length
        result[chosen] = at[starts[chosen]]
    return result


def _used_nodes(phrases: Ints, parents: Ints) -> tuple[Ints, Ints]:
    """Return the numbers of the given phrases and of all that they begin with; and the new number of each phrase.

    `parents` are those of the phrases from number 1 on. New numbers are from 1 on in the same order, and 0 is the
    empty phrase.
    """
    used = np.unique(phrases)
    while True:
        more = np.union1d(used, parents[used - 1])
        more = more[more > 0]
        if len(more) == len(used):
            return used, np.searchsorted(used, phrases) + 1
        used = more
