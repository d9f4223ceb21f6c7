"""Alignment of a hypothesis and a reference by METEOR's beam search (Denkowski and Lavie, 2011), compiled by numba.

A match pairs words of the reference with words of the hypothesis; every word is in at most one match of an alignment.
Matches that exclude no other match are part of every alignment. The rest is chosen by a beam search over the words of
the reference from left to right. Partial alignments are ranked by covered words minus chunks, where a word covered by a
match of another module than `exact` counts half, and then by exact matches. Of equal ones the search keeps the first; a
word without a match comes before its matches. This ranking was found by comparing alignments with those of METEOR 1.5;
the paper describes most covered words, then fewest chunks, then the smallest sum of distances.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from limner.metrics.meteor.matchers import Corpus, Ids, Lists
from limner.metrics.meteor.parameters import FIELDS

BEAM = 40
"""Number of partial alignments, the default of METEOR 1.5."""
CHUNK = 2
"""Cost of a chunk; a word of an exact match counts 2, another matched word 1."""


class PartialAlignments(NamedTuple):
    """Partial alignments, the best first."""

    scores: NDArray[np.int64]
    """Twice the covered words minus chunks, (K,)."""
    exact: NDArray[np.int64]
    """Number of exact matches, (K,)."""
    counts: Ids
    """Number of matches."""
    chosen: Ids
    """Matches in the order of the reference, (K, R)."""
    ends: Ids
    """First word of the reference after the last match, (K,)."""
    other_ends: Ids
    """First word of the hypothesis after the last match, (K,)."""
    used: NDArray[np.bool_]
    """Whether a word of the hypothesis is in a match, (K, H)."""


@njit(cache=True)
def _intersect(lists: Lists, one: int, other: int) -> bool:
    """Whether two ascending lists have a common value."""
    a, b = lists.starts[one], lists.starts[other]
    while a < lists.starts[one + 1] and b < lists.starts[other + 1]:
        difference = lists.values[a] - lists.values[b]
        if difference == 0:
            return True
        a += difference < 0
        b += difference > 0
    return False


@njit(cache=True)
def _contains(lists: Lists, row: int, value: int) -> bool:
    """Whether an ascending list contains a value."""
    values = lists.values[lists.starts[row] : lists.starts[row + 1]]
    place = np.searchsorted(values, value)
    return bool(place < len(values) and values[place] == value)


@njit(cache=True)
def _row(lists: Lists, row: int) -> Ids:
    return lists.values[lists.starts[row] : lists.starts[row + 1]]


@njit(cache=True)
def _matches(hyp: Ids, ref: Ids, hyp_phrases: Ids, ref_phrases: Ids, corpus: Any) -> Ids:  # noqa: ANN401
    """List all matches by their first word of the reference, then by module.

    Returns:
        (M, 5): first word and number of words of the reference, the same of the hypothesis, module.
    """
    found = []
    phrase = 0
    for i in range(len(ref)):
        for module in range(3):
            for j in range(len(hyp)):
                if corpus.slots[module] < 0 or (hyp[j] == ref[i]) != (module == 0):
                    continue
                if (
                    module == 0
                    or (module == 1 and corpus.stems[hyp[j]] == corpus.stems[ref[i]])
                    or (module == 2 and _intersect(corpus.synsets, hyp[j], ref[i]))
                ):
                    found.append((i, 1, j, 1, module))
        while phrase < len(ref_phrases) and ref_phrases[phrase] == i:
            for k in range(0, len(hyp_phrases), 3):
                if _contains(corpus.paraphrases, ref_phrases[phrase + 2], hyp_phrases[k + 2]):
                    found.append((i, ref_phrases[phrase + 1], hyp_phrases[k], hyp_phrases[k + 1], 3))
            phrase += 3
    result = np.empty((len(found), 5), np.int32)
    for n, match in enumerate(found):
        result[n, 0], result[n, 1], result[n, 2], result[n, 3], result[n, 4] = match
    return result


@njit(cache=True)
def _certain(matches: Ids, hyp_length: int, ref_length: int) -> NDArray[np.bool_]:
    """Whether no word of a match is in another match, (M,)."""
    in_hyp, in_ref = np.zeros(hyp_length, np.int32), np.zeros(ref_length, np.int32)
    for n in range(len(matches)):
        start, length, other, other_length, _ = matches[n]
        in_ref[start : start + length] += 1
        in_hyp[other : other + other_length] += 1
    certain = np.zeros(len(matches), np.bool_)
    for n in range(len(matches)):
        start, length, other, other_length, _ = matches[n]
        certain[n] = (in_ref[start : start + length] == 1).all() and (in_hyp[other : other + other_length] == 1).all()
    return certain


@njit(cache=True)
def _empty_beam(size: int, hyp_length: int, ref_length: int) -> PartialAlignments:
    return PartialAlignments(
        np.zeros(size, np.int64),
        np.zeros(size, np.int64),
        np.zeros(size, np.int32),
        np.empty((size, ref_length), np.int32),
        np.zeros(size, np.int32),
        np.full(size, -1, np.int32),
        np.zeros((size, hyp_length), np.bool_),
    )


@njit(cache=True)
def _rank(
    beam: PartialAlignments, size: int, i: int, matches: Ids, options: tuple[int, int, bool]
) -> NDArray[np.int64]:
    """Rank the partial alignments without a match at word `i` and with each of its matches.

    Args:
        beam: partial alignments of the words before.
        size: number of partial alignments.
        i: word of the reference.
        matches: all matches.
        options: first and last match at the word, whether the match is certain.

    Returns:
        (K, 4): score, exact, partial alignment, match or -1; the best first.
    """
    first, last, certain = options
    ranked = np.empty((len(beam.scores), 4), np.int64)
    kept = 0
    for state in range(size):
        for n in range(first - 1, last):
            covered = beam.ends[state] > i
            score, exact = beam.scores[state], beam.exact[state]
            if n < first:
                if certain and not covered:
                    continue
            else:
                length, other, other_length, module = matches[n, 1:]
                if covered or beam.used[state, other : other + other_length].any():
                    continue
                score += (length + other_length) * (2 if module == 0 else 1)
                if beam.counts[state] == 0 or beam.ends[state] != i or beam.other_ends[state] != other:
                    score -= CHUNK
                exact += module == 0
            place = kept
            while place > 0 and (
                ranked[place - 1, 0] < score or (ranked[place - 1, 0] == score and ranked[place - 1, 1] < exact)
            ):
                place -= 1
            if place < len(ranked):
                kept = min(kept + 1, len(ranked))
                ranked[place + 1 : kept] = ranked[place : kept - 1].copy()
                ranked[place] = score, exact, state, n if n >= first else -1
    return ranked[:kept]


@njit(cache=True)
def _extend(beam: PartialAlignments, ranked: NDArray[np.int64], matches: Ids, new: PartialAlignments) -> None:
    """Write the ranked partial alignments to another beam."""
    for row in range(len(ranked)):
        new.scores[row], new.exact[row], state, n = ranked[row]
        count = beam.counts[state]
        new.counts[row] = count + (n >= 0)
        new.chosen[row, :count] = beam.chosen[state, :count]
        new.ends[row], new.other_ends[row] = beam.ends[state], beam.other_ends[state]
        new.used[row] = beam.used[state]
        if n >= 0:
            start, length, other, other_length, _ = matches[n]
            new.chosen[row, count] = n
            new.ends[row], new.other_ends[row] = start + length, other + other_length
            new.used[row, other : other + other_length] = True


@njit(cache=True)
def _search(matches: Ids, hyp_length: int, ref_length: int, width: int) -> Ids:
    """Return the matches of the best alignment in the order of the reference."""
    certain = _certain(matches, hyp_length, ref_length)
    first = np.searchsorted(matches[:, 0], np.arange(ref_length + 1))
    beam, new = _empty_beam(width, hyp_length, ref_length), _empty_beam(width, hyp_length, ref_length)
    size = 1
    for i in range(ref_length):
        if first[i] < first[i + 1]:
            options = (first[i], first[i + 1], certain[first[i]])  # a certain match is the only one
            ranked = _rank(beam, size, i, matches, options)
            _extend(beam, ranked, matches, new)
            beam, new, size = new, beam, len(ranked)
    return beam.chosen[0, : beam.counts[0]]


@njit(cache=True)
def _count(hyp: Ids, ref: Ids, matches: Ids, corpus: Any, row: NDArray[np.float64]) -> None:  # noqa: ANN401
    """Count lengths, function words, words of the matches of each module, chunks and matched words."""
    row[0], row[1] = len(hyp), len(ref)
    row[2], row[3] = corpus.is_function_word[hyp].sum(), corpus.is_function_word[ref].sum()
    end, other_end = -1, -1
    for n in range(len(matches)):
        start, length, other, other_length, module = matches[n]
        field = 4 + 4 * corpus.slots[module]
        for word in hyp[other : other + other_length]:
            row[field + 2 * corpus.is_function_word[word]] += 1
        for word in ref[start : start + length]:
            row[field + 1 + 2 * corpus.is_function_word[word]] += 1
        row[20] += end != start or other_end != other
        row[21] += other_length
        row[22] += length
        end, other_end = start + length, other + other_length


@njit(cache=True)
def pair_statistics(
    hypotheses: Ids,
    references: Ids,
    corpus: Corpus,
    width: int,
) -> NDArray[np.float64]:
    """Align pairs of sentences and count their statistics.

    Args:
        hypotheses: indices of the sentences of the hypotheses, (P,).
        references: indices of the sentences of the references, (P,).
        corpus: words and phrases of the sentences.
        width: number of partial alignments.

    Returns:
        (P, 23): lengths, function words, matches of four modules, chunks, matched words.
    """
    rows = np.zeros((len(hypotheses), FIELDS))
    for pair in range(len(hypotheses)):
        h, r = hypotheses[pair], references[pair]
        hyp, ref = _row(corpus.words, h), _row(corpus.words, r)
        matches = _matches(hyp, ref, _row(corpus.phrases, h), _row(corpus.phrases, r), corpus)
        _count(hyp, ref, matches[_search(matches, len(hyp), len(ref), width)], corpus, rows[pair])
    return rows
