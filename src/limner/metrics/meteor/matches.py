"""Matches of words and phrases between a hypothesis and a reference, compiled by numba.

A match pairs one or more words of the reference with words of the hypothesis (Denkowski and Lavie, 2011, section 2.1):
identical words, words with the same stem, words with a common synonym set, phrases that are paraphrases. Several
modules may match the same words, but only identical words are exact. Every entry of the paraphrase table is a match:
two phrases that are listed in both directions match twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from limner.compiled import compiled
from limner.metrics.meteor.matchers import Ids, RaggedArray

EXACT, STEM, SYNONYM, PARAPHRASE = range(4)


@compiled
def row_of(lists: RaggedArray, row: int) -> Ids:
    """Return one of the lists."""
    return lists.values[lists.starts[row] : lists.starts[row + 1]]


@compiled
def _intersect(lists: RaggedArray, one: int, other: int) -> bool:
    """Whether two ascending lists have a common value."""
    a, b = lists.starts[one], lists.starts[other]
    while a < lists.starts[one + 1] and b < lists.starts[other + 1]:
        difference = lists.values[a] - lists.values[b]
        if difference == 0:
            return True
        a += difference < 0
        b += difference > 0
    return False


@compiled
def _entry(corpus: Any, phrase: int, paraphrase: int) -> int:  # noqa: ANN401
    """Return the entry of the table that lists a paraphrase of a phrase, or -1."""
    start, end = corpus.paraphrases.starts[phrase], corpus.paraphrases.starts[phrase + 1]
    place = start + np.searchsorted(corpus.paraphrases.values[start:end], paraphrase)
    if place < end and corpus.paraphrases.values[place] == paraphrase:
        return int(corpus.entries[place])
    return -1


@compiled
def _match_words(i: int, hyp: Ids, ref: Ids, corpus: Any, found: list[tuple[int, int, int, int, int]]) -> None:  # noqa: ANN401
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
                found.append((i, 1, j, 1, module))


@compiled
def _match_phrases(
    hyp_phrases: Ids,
    ref_phrases: Ids,
    corpus: Any,  # noqa: ANN401
    found: list[tuple[int, int, int, int, int]],
) -> None:
    """Append the paraphrases that start at one word of the reference.

    Those that the table lists for a phrase of the reference come before those that it lists for one of the hypothesis;
    the phrases that have entries are taken from left to right, the shortest first, their entries in the order of the
    table.
    """
    for k in range(0, len(ref_phrases), 3):
        first = len(found)
        order = np.empty(len(hyp_phrases) // 3, np.int64)
        for n in range(0, len(hyp_phrases), 3):
            entry = _entry(corpus, ref_phrases[k + 2], hyp_phrases[n + 2])
            if entry >= 0:
                match = (ref_phrases[k], ref_phrases[k + 1], hyp_phrases[n], hyp_phrases[n + 1], PARAPHRASE)
                _insert(found, order, first, entry, match)
    for n in range(0, len(hyp_phrases), 3):
        first = len(found)
        order = np.empty(len(ref_phrases) // 3, np.int64)
        for k in range(0, len(ref_phrases), 3):
            entry = _entry(corpus, hyp_phrases[n + 2], ref_phrases[k + 2])
            if entry >= 0:
                match = (ref_phrases[k], ref_phrases[k + 1], hyp_phrases[n], hyp_phrases[n + 1], PARAPHRASE)
                _insert(found, order, first, entry, match)


@compiled
def _insert(
    found: list[tuple[int, int, int, int, int]],
    order: NDArray[np.int64],
    first: int,
    entry: int,
    match: tuple[int, int, int, int, int],
) -> None:
    """Insert a match by its entry, after equal ones; `order` holds the entries of the matches from `first` on."""
    found.append(match)
    place = len(found) - 1
    while place > first and order[place - first - 1] > entry:
        found[place] = found[place - 1]
        order[place - first] = order[place - first - 1]
        place -= 1
    found[place] = match
    order[place - first] = entry


@compiled
def list_matches(hyp: Ids, ref: Ids, hyp_phrases: Ids, ref_phrases: Ids, corpus: Any) -> Ids:  # noqa: ANN401
    """List all matches by their first word of the reference, then by module.

    Returns:
        (M, 5): first word and number of words of the reference, the same of the hypothesis, module.
    """
    found = [(0, 0, 0, 0, 0)]
    end = 0
    for i in range(len(ref)):
        _match_words(i, hyp, ref, corpus, found)
        start = end
        while end < len(ref_phrases) and ref_phrases[end] == i:
            end += 3
        if end > start:
            _match_phrases(hyp_phrases, ref_phrases[start:end], corpus, found)
    result = np.empty((len(found) - 1, 5), np.int32)
    for n in range(1, len(found)):
        match = found[n]
        result[n - 1, 0], result[n - 1, 1], result[n - 1, 2], result[n - 1, 3], result[n - 1, 4] = match
    return result


@compiled
def certain_matches(matches: Ids, hyp_length: int, ref_length: int) -> NDArray[np.bool_]:
    """Whether no word of a match is in another match, (M,): such a match is part of every alignment."""
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
