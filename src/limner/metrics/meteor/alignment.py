"""Alignment of a hypothesis and a reference by METEOR's beam search (Denkowski and Lavie, 2011), compiled by numba.

A match pairs one or more words of the reference with words of the hypothesis (section 2.1): identical words, words with
the same stem, words with a common synonym set, phrases that are paraphrases. Several modules may match the same words,
but only identical words are exact. Every entry of the paraphrase table is a match: two phrases that are listed in both
directions match twice.

In an alignment every word is in at most one match. The paper asks for the most covered words, then the fewest chunks
(matches that are adjacent in the same order on both sides), then the smallest sum of distances between the starts of
the matches, and searches with a beam. Its open details were determined by comparing alignments of generated sentences
with the alignments of METEOR 1.5 (options `-writeAlignments`, `-x`, `-a`):

- The words of the reference are read from left to right; each partial alignment is extended by every match that starts
  at the word, then kept without one. A match that shares no word with another is always taken.
- A match of another module than `exact` counts half of its words on each side, rounded down: 0 for single words.
- The distance is summed over the possible matches that were *not* taken: all that are listed before the match that is
  taken, or all if no match is taken.
- The beam is ranked by covered words, then chunks, then distance, and ties keep their order. The chunk that the
  next match may continue is not counted until the last word has been read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.compiled import compiled
from limner.metrics.meteor.data import FIELDS
from limner.metrics.meteor.matchers import Corpus, Ids, RaggedArray

EXACT, STEM, SYNONYM, PARAPHRASE = range(4)


@compiled
def row_of(lists: RaggedArray, row: int) -> Ids:
    """Return list `row`."""
    return lists.values[lists.starts[row] : lists.starts[row + 1]]


@compiled
def _intersect(lists: RaggedArray, first: int, second: int) -> bool:
    """Whether two ascending lists have a common value."""
    a, b = lists.starts[first], lists.starts[second]
    while a < lists.starts[first + 1] and b < lists.starts[second + 1]:
        difference = lists.values[a] - lists.values[b]
        if difference == 0:
            return True
        a += difference < 0
        b += difference > 0
    return False


@compiled
def _paraphrase_entry(corpus: Any, phrase: int, paraphrase: int) -> int:  # noqa: ANN401
    """Return the entry of the table that lists a paraphrase of a phrase, or -1."""
    start, end = corpus.paraphrases.starts[phrase], corpus.paraphrases.starts[phrase + 1]
    place = start + np.searchsorted(corpus.paraphrases.values[start:end], paraphrase)
    if place < end and corpus.paraphrases.values[place] == paraphrase:
        return int(corpus.entries[place])
    return -1


@compiled
def _match_words(i: int, hyp: Ids, ref: Ids, corpus: Any, matches: list[tuple[int, int, int, int, int]]) -> None:  # noqa: ANN401
    """Append the matches of single words with word `i` of the reference: by module, then from left to right."""
    for module in (EXACT, STEM, SYNONYM):
        if corpus.slots[module] < 0:
            continue
        for j in range(len(hyp)):
            if (hyp[j] == ref[i]) != (module == EXACT):
                continue
            if (
                module == EXACT
                or (module == STEM and corpus.stems[hyp[j]] == corpus.stems[ref[i]])
                or (module == SYNONYM and _intersect(corpus.synsets, hyp[j], ref[i]))
            ):
                matches.append((i, 1, j, 1, module))


@compiled
def _match_phrases(
    hyp_phrases: Ids,
    ref_phrases: Ids,
    corpus: Any,  # noqa: ANN401
    matches: list[tuple[int, int, int, int, int]],
) -> None:
    """Append the paraphrases that start at one word of the reference.

    Paraphrases listed for a phrase of the reference come before paraphrases listed for a phrase of the hypothesis;
    phrases are taken from left to right, the shortest first, and their entries in the order of the table.
    """
    for k in range(0, len(ref_phrases), 3):
        first = len(matches)
        order = np.empty(len(hyp_phrases) // 3, np.int64)
        for n in range(0, len(hyp_phrases), 3):
            entry = _paraphrase_entry(corpus, ref_phrases[k + 2], hyp_phrases[n + 2])
            if entry >= 0:
                match = (ref_phrases[k], ref_phrases[k + 1], hyp_phrases[n], hyp_phrases[n + 1], PARAPHRASE)
                _insert_match(matches, order, first, entry, match)
    for n in range(0, len(hyp_phrases), 3):
        first = len(matches)
        order = np.empty(len(ref_phrases) // 3, np.int64)
        for k in range(0, len(ref_phrases), 3):
            entry = _paraphrase_entry(corpus, hyp_phrases[n + 2], ref_phrases[k + 2])
            if entry >= 0:
                match = (ref_phrases[k], ref_phrases[k + 1], hyp_phrases[n], hyp_phrases[n + 1], PARAPHRASE)
                _insert_match(matches, order, first, entry, match)


@compiled
def _insert_match(
    matches: list[tuple[int, int, int, int, int]],
    order: NDArray[np.int64],
    first: int,
    entry: int,
    match: tuple[int, int, int, int, int],
) -> None:
    """Insert a match by its entry, behind equal entries; `order` holds the entries of the matches from `first` on."""
    matches.append(match)
    place = len(matches) - 1
    while place > first and order[place - first - 1] > entry:
        matches[place] = matches[place - 1]
        order[place - first] = order[place - first - 1]
        place -= 1
    matches[place] = match
    order[place - first] = entry


@compiled
def list_matches(hyp: Ids, ref: Ids, hyp_phrases: Ids, ref_phrases: Ids, corpus: Any) -> Ids:  # noqa: ANN401
    """List all matches by their first word of the reference, then by module.

    Columns of the result, (M, 5): first word and number of words in the reference and in the hypothesis, and module.
    """
    matches = [(0, 0, 0, 0, 0)]
    end = 0
    for i in range(len(ref)):
        _match_words(i, hyp, ref, corpus, matches)
        start = end
        while end < len(ref_phrases) and ref_phrases[end] == i:
            end += 3
        if end > start:
            _match_phrases(hyp_phrases, ref_phrases[start:end], corpus, matches)
    result = np.empty((len(matches) - 1, 5), np.int32)
    for n in range(1, len(matches)):
        match = matches[n]
        result[n - 1, 0], result[n - 1, 1], result[n - 1, 2], result[n - 1, 3], result[n - 1, 4] = match
    return result


@compiled
def certain_matches(matches: Ids, hyp_length: int, ref_length: int) -> NDArray[np.bool_]:
    """Whether no word of a match is in another match, (M,): such a match is part of every alignment."""
    in_hyp, in_ref = np.zeros(hyp_length, np.int32), np.zeros(ref_length, np.int32)
    for n in range(len(matches)):
        start, length, other_start, other_length, _ = matches[n]
        in_ref[start : start + length] += 1
        in_hyp[other_start : other_start + other_length] += 1
    certain = np.zeros(len(matches), np.bool_)
    for n in range(len(matches)):
        start, length, other_start, other_length, _ = matches[n]
        certain[n] = (in_ref[start : start + length] == 1).all() and (
            in_hyp[other_start : other_start + other_length] == 1
        ).all()
    return certain


BEAM = 40  # number of partial alignments, the default of METEOR 1.5
NONE = -1  # no match


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
    start, length, other_start, other_length, module = match
    covered = length + other_length if module == EXACT else length // 2 + other_length // 2
    continued = beam.ends[state] == start and beam.other_ends[state] == other_start
    return beam.covered[state] + covered, beam.chunks[state] + (not continued)


@compiled
def _insert(ranked: NDArray[np.int64], kept: int, candidate: tuple[int, int, int, int, int]) -> int:
    """Insert a candidate after all that are at least as good; return the new number of candidates."""
    covered, chunks, distance, _, _ = candidate
    place = kept
    while place > 0:
        entry = ranked[place - 1]
        if entry[0] > covered or (
            entry[0] == covered and (entry[1] < chunks or (entry[1] == chunks and entry[2] <= distance))
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

    `span` has the first match at word `i`, the first match after it, and whether the match is certain; `ranked` is
    filled with covered words, closed chunks, distance, partial alignment, match or -1, (K, 5). Return the number of
    ranked candidates.
    """
    first, last, certain = span
    kept = 0
    for state in range(size):
        distance = beam.distances[state]
        inside = beam.ends[state] > i
        for n in range(first, first if inside else last):
            other_start, other_length = matches[n, 2], matches[n, 3]
            if beam.used[state, other_start : other_start + other_length].any():
                continue
            covered, chunks = _extended(beam, state, matches[n])
            kept = _insert(ranked, kept, (covered, chunks - 1, distance, state, n))
            distance += abs(i - other_start)
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
            start, length, other_start, other_length, _ = matches[n]
            new.ends[row], new.other_ends[row] = start + length, other_start + other_length
            new.used[row, other_start : other_start + other_length] = True
            history[first + row, 0], history[first + row, 1] = n, beam.links[state]
            new.links[row] = first + row


@compiled
def best_alignment(matches: Ids, hyp_length: int, ref_length: int, width: int) -> Ids:
    """Search the matches of the best alignment.

    The matches, (M, 5), are in the order of their first word of the reference, and so are the returned indices.
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
        start, length, other_start, other_length, module = matches[n]
        field = 4 + 4 * corpus.slots[module]
        for word in hyp[other_start : other_start + other_length]:
            row[field + 2 * corpus.is_function_word[word]] += 1
        for word in ref[start : start + length]:
            row[field + 1 + 2 * corpus.is_function_word[word]] += 1
        row[20] += end != start or other_end != other_start
        row[21] += other_length
        row[22] += length
        end, other_end = start + length, other_start + other_length


@compiled
def pair_statistics(hypotheses: Ids, references: Ids, corpus: Corpus, width: int) -> NDArray[np.float64]:
    """Align pairs of sentences and count their statistics.

    Hypotheses and references are indices of sentences, (P,); `width` is the number of partial alignments. The
    statistics are lengths, function words, matches of four modules, chunks and matched words, (P, 23).
    """
    rows = np.zeros((len(hypotheses), FIELDS))
    for pair in range(len(hypotheses)):
        h, r = hypotheses[pair], references[pair]
        hyp, ref = row_of(corpus.words, h), row_of(corpus.words, r)
        matches = list_matches(hyp, ref, row_of(corpus.phrases, h), row_of(corpus.phrases, r), corpus)
        _count(hyp, ref, matches[best_alignment(matches, len(hyp), len(ref), width)], corpus, rows[pair])
    return rows
