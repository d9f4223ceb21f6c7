"""Alignment of a hypothesis and a reference by METEOR's beam search (Denkowski and Lavie, 2011), compiled by numba.

In an alignment every word is in at most one match. The paper asks for the most covered words, then the fewest chunks
(matches that are adjacent in the same order on both sides), then the smallest sum of distances between the starts of
the matches, and searches with a beam. What it leaves open was found by comparing alignments of generated sentences with
those of METEOR 1.5 (options `-writeAlignments`, `-x`, `-a`):

- The words of the reference are read from left to right; each partial alignment is extended by every match that starts
  at the word, then kept without one. A match that shares no word with another is always taken.
- A match of another module than `exact` counts half of its words on each side, rounded down: 0 for single words.
- The distance is that of the matches that were *not* taken although they were possible: of those listed before the
  match that is taken, or of all if none is.
- The beam is ranked by covered words, then chunks, then distance, and equal ones keep their order. The chunk that the
  next match may continue is not counted until the last word has been read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.compiled import compiled
from limner.metrics.meteor.data import FIELDS
from limner.metrics.meteor.matchers import Corpus, Ids
from limner.metrics.meteor.matches import EXACT, certain_matches, list_matches, row_of

BEAM = 40
"""Number of partial alignments, the default of METEOR 1.5."""
NONE = -1
"""No match."""


class PartialAlignments(NamedTuple):
    """Partial alignments, the best first."""

    covered: NDArray[np.int64]
    """Covered words on both sides, (K,); half of them, rounded down, for matches that are not exact."""
    chunks: NDArray[np.int64]
    """Number of chunks, (K,)."""
    distances: NDArray[np.int64]
    """Sum of the distances of the matches that were not taken, (K,)."""
    ends: Ids
    """First word of the reference after the last match, (K,)."""
    other_ends: Ids
    """First word of the hypothesis after the last match, (K,); -1 without a match."""
    links: Ids
    """Place of the last match in the history, (K,); -1 without a match."""
    used: NDArray[np.bool_]
    """Whether a word of the hypothesis is in a match, (K, H)."""


@compiled
def _empty_beam(size: int, hyp_length: int) -> PartialAlignments:
    return PartialAlignments(
        np.zeros(size, np.int64),
        np.zeros(size, np.int64),
        np.zeros(size, np.int64),
        np.zeros(size, np.int32),
        np.full(size, NONE, np.int32),
        np.full(size, NONE, np.int32),
        np.zeros((size, hyp_length), np.bool_),
    )


@compiled
def _extended(beam: PartialAlignments, state: int, match: Ids) -> tuple[int, int]:
    """Return covered words and chunks of a partial alignment with one more match."""
    start, length, other, other_length, module = match
    covered = length + other_length if module == EXACT else length // 2 + other_length // 2
    continued = beam.ends[state] == start and beam.other_ends[state] == other
    return beam.covered[state] + covered, beam.chunks[state] + (not continued)


@compiled
def _insert(ranked: NDArray[np.int64], kept: int, candidate: tuple[int, int, int, int, int]) -> int:
    """Insert a candidate after all that are at least as good; return the new number of candidates."""
    covered, chunks, distance, _, _ = candidate
    place = kept
    while place > 0:
        other = ranked[place - 1]
        if other[0] > covered or (
            other[0] == covered and (other[1] < chunks or (other[1] == chunks and other[2] <= distance))
        ):
            break
        place -= 1
    if place == len(ranked):
        return kept
    kept = min(kept + 1, len(ranked))
    for row in range(kept - 1, place, -1):
        ranked[row] = ranked[row - 1]
    for column in range(5):
        ranked[place, column] = candidate[column]
    return kept


@compiled
def _rank(
    beam: PartialAlignments, size: int, i: int, matches: Ids, span: tuple[int, int, bool], ranked: NDArray[np.int64]
) -> int:
    """Rank the partial alignments with each match that starts at word `i`, and without one.

    Args:
        beam: partial alignments of the words before.
        size: number of partial alignments.
        i: word of the reference.
        matches: all matches.
        span: first match at the word, first match after it, whether the match is certain.
        ranked: filled with (K, 5): covered words, closed chunks, distance, partial alignment, match or -1.

    Returns:
        The number of ranked candidates.
    """
    first, last, certain = span
    kept = 0
    for state in range(size):
        distance = beam.distances[state]
        inside = beam.ends[state] > i
        for n in range(first, first if inside else last):
            other, other_length = matches[n, 2], matches[n, 3]
            if beam.used[state, other : other + other_length].any():
                continue
            covered, chunks = _extended(beam, state, matches[n])
            kept = _insert(ranked, kept, (covered, chunks - 1, distance, state, n))
            distance += abs(i - other)
        if inside or not certain:
            kept = _insert(ranked, kept, (beam.covered[state], beam.chunks[state] - inside, distance, state, NONE))
    return kept


@compiled
def _extend(
    beam: PartialAlignments, ranked: NDArray[np.int64], matches: Ids, new: PartialAlignments, history: Ids, first: int
) -> None:
    """Write the ranked partial alignments to another beam, and their matches to the history from row `first` on."""
    for row in range(len(ranked)):
        _, _, distance, state, n = ranked[row]
        new.covered[row], new.chunks[row], new.distances[row] = beam.covered[state], beam.chunks[state], distance
        new.ends[row], new.other_ends[row] = beam.ends[state], beam.other_ends[state]
        new.links[row] = beam.links[state]
        new.used[row] = beam.used[state]
        if n != NONE:
            new.covered[row], new.chunks[row] = _extended(beam, state, matches[n])
            start, length, other, other_length, _ = matches[n]
            new.ends[row], new.other_ends[row] = start + length, other + other_length
            new.used[row, other : other + other_length] = True
            history[first + row, 0], history[first + row, 1] = n, beam.links[state]
            new.links[row] = first + row


@compiled
def best_alignment(matches: Ids, hyp_length: int, ref_length: int, width: int) -> Ids:
    """Search the matches of the best alignment.

    Args:
        matches: all matches, (M, 5), by their first word of the reference.
        hyp_length: words of the hypothesis.
        ref_length: words of the reference.
        width: number of partial alignments.

    Returns:
        Indices of the matches in the order of the reference.
    """
    certain = certain_matches(matches, hyp_length, ref_length)
    first = np.searchsorted(matches[:, 0], np.arange(ref_length + 1))
    beam, new = _empty_beam(width, hyp_length), _empty_beam(width, hyp_length)
    ranked = np.empty((width, 5), np.int64)
    history = np.empty((ref_length * width, 2), np.int32)
    size = 1
    for i in range(ref_length):
        if first[i] == first[i + 1] and size == 1:
            continue
        span = (first[i], first[i + 1], first[i] < first[i + 1] and certain[first[i]])  # the only one if certain
        size = _rank(beam, size, i, matches, span, ranked)
        _extend(beam, ranked[:size], matches, new, history, i * width)
        beam, new = new, beam
    kept = 0
    for state in range(size):
        candidate = (beam.covered[state], beam.chunks[state], beam.distances[state], state, NONE)
        kept = _insert(ranked[:1], kept, candidate)
    chosen = np.empty(ref_length, np.int32)
    place = ref_length
    link = beam.links[ranked[0, 3]]
    while link != NONE:
        place -= 1
        chosen[place], link = history[link, 0], history[link, 1]
    return chosen[place:]


@compiled
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


@compiled
def pair_statistics(hypotheses: Ids, references: Ids, corpus: Corpus, width: int) -> NDArray[np.float64]:
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
        hyp, ref = row_of(corpus.words, h), row_of(corpus.words, r)
        matches = list_matches(hyp, ref, row_of(corpus.phrases, h), row_of(corpus.phrases, r), corpus)
        _count(hyp, ref, matches[best_alignment(matches, len(hyp), len(ref), width)], corpus, rows[pair])
    return rows
