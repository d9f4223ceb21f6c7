"""Scores of phrase pairs, and the table that holds them: Koehn et al. (2003), sections 2.2, 3.1 and 3.3."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.smt import NUM_ORIENTATIONS, Floats, Ints
from limner.smt.containers import build_table
from limner.smt.extraction import Instances

SMOOTHING = 0.5
"""Number sigma of added observations of an orientation, distributed as in the whole data; Moses adds 0.5 to each."""


class PhraseTable(NamedTuple):
    """Phrase pairs by source phrase. A source phrase is a node of a trie of words; node 0 is the empty phrase.

    P is the number of pairs, M the number of nodes, W the number of words of all target phrases.
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


def orientation_log_probs(pairs: Ints, orientations: Ints, num_pairs: int) -> Floats:
    """Estimate log P(o | f, e) = log((sigma P(o) + c(o, f, e)) / (sigma + c(f, e))), Koehn et al. (2005), section 3.

    `pairs` and `orientations` have an entry for each occurrence, (N,). The result is (P, NUM_ORIENTATIONS); P(o) has
    one more observation of each orientation, so that none is 0.
    """
    keys = pairs * NUM_ORIENTATIONS + orientations
    counts = np.bincount(keys, minlength=num_pairs * NUM_ORIENTATIONS).reshape(num_pairs, NUM_ORIENTATIONS)
    overall = counts.sum(0) + 1
    smoothed = counts + SMOOTHING * overall / overall.sum()
    result: Floats = np.log(smoothed / smoothed.sum(1, keepdims=True))
    return result


class _Phrases(NamedTuple):
    """Phrases numbered by length, and the phrase id at each start position."""

    parents: list[Ints]  # for each length: phrase without its last word
    lasts: list[Ints]  # for each length: last word
    at: list[Ints]  # for each length: number of the phrase that starts at each position


def _number(words: Ints, lengths: int, vocab_size: int) -> _Phrases:
    """Number the phrases of up to `lengths` words in order of their length; 0 is the empty phrase."""
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

    phi are relative frequencies. If a pair has several alignments, the alignment with the largest lexical weights
    counts, Koehn et al. (2003), section 3.3: the maximum of each direction. For each source phrase, the `limit` pairs
    with the largest phi(e | f) are kept. `source` and `target` have the words of all sentences, one after the other.
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
    """Compute the scores of all phrase pairs, (P, NUM_SCORES)."""
    phi_ef, phi_fe = (np.log(counts / np.bincount(condition, counts)[condition]) for condition in phrases)
    lexical = np.full((len(counts), 2), -np.inf)
    np.maximum.at(lexical, pair, instances.lexical)
    orientations = [
        orientation_log_probs(pair, orientation, len(counts)) for orientation in (instances.previous, instances.next)
    ]
    return np.concatenate([np.stack([phi_fe, lexical[:, 0], phi_ef, lexical[:, 1]], 1), *orientations], 1)


def _largest(f: Ints, e: Ints, phi: Floats, limit: int) -> Ints:
    """Return the `limit` pairs with the largest phi of each source phrase f in order; ties are in the order of e."""
    best = np.lexsort((e, -phi, f))
    sorted_f = f[best]
    rank = np.arange(len(best)) - np.searchsorted(sorted_f, sorted_f)
    kept: Ints = best[rank < limit]
    return kept


def _trie(used: Ints, phrases: _Phrases, vocab_size: int) -> tuple[Ints, Ints]:
    """Return `edges` and `first` of a phrase table."""
    parents, lasts = np.concatenate(phrases.parents), np.concatenate(phrases.lasts)
    nodes, pair_node = _used_nodes(used, parents)
    first = np.searchsorted(pair_node, np.arange(len(nodes) + 2))
    renumbered = np.zeros(len(parents) + 1, dtype=np.int64)
    renumbered[nodes] = np.arange(1, len(nodes) + 1)
    return renumbered[parents[nodes - 1]] * vocab_size + lasts[nodes - 1], first


def _most_frequent(pair: Ints, alignments: Ints) -> Ints:
    """Return the most frequent alignment of each pair; in a tie, the smallest integer."""
    order = np.lexsort((alignments, pair))
    pairs, values = pair[order], alignments[order]
    is_first = np.concatenate([[True], (np.diff(pairs) != 0) | (np.diff(values) != 0)])
    firsts = np.flatnonzero(is_first)
    counts = np.diff(np.append(firsts, len(pairs)))
    best = firsts[np.lexsort((-counts, pairs[firsts]))]
    return values[best[np.unique(pairs[best], return_index=True)[1]]]


def _numbers_at(phrases: _Phrases, starts: Ints, lengths: Ints) -> Ints:
    """Look up the ids of phrases by their start positions and lengths."""
    result = np.empty(len(starts), dtype=np.int64)
    for length, at in enumerate(phrases.at, 1):
        chosen = lengths == length
        result[chosen] = at[starts[chosen]]
    return result


def _used_nodes(phrases: Ints, parents: Ints) -> tuple[Ints, Ints]:
    """Return the ids of `phrases` and of all their prefixes, and the new id of each of `phrases`.

    `parents` has the parent of every phrase from id 1 on. New ids count from 1 in the same order; 0 is the empty
    phrase.
    """
    used = np.unique(phrases)
    while True:
        more = np.union1d(used, parents[used - 1])
        more = more[more > 0]
        if len(more) == len(used):
            return used, np.searchsorted(used, phrases) + 1
        used = more
