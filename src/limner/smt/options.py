"""Phrase pairs that translate spans of a sentence, and estimates of future costs: Koehn et al. (2003), section 2.3."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from limner.smt.features import (
    LANGUAGE_MODEL,
    PHRASES,
    SCORES,
    UNKNOWN,
    WORDS,
)
from limner.smt.hashing import NOT_FOUND, find
from limner.smt.language_model import LanguageModel, next_word
from limner.smt.phrases import PhraseTable
from limner.smt.reordering import NUM_ORIENTATIONS
from limner.text.vocab import SPECIAL_TOKENS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Scores = NDArray[np.float32]


BOS, EOS, UNK = SPECIAL_TOKENS.bos, SPECIAL_TOKENS.eos, SPECIAL_TOKENS.unk
COPIED = -1
"""Phrase pair of an option that copies an unknown word."""


class Tables(NamedTuple):
    """A language model and a phrase table with the hash tables of their tries, as arrays for compiled code."""

    lm_table: Ints
    lm_log_probs: Floats
    lm_log_backoffs: Floats
    lm_size: int
    lm_order: int
    edges: Ints
    source_size: int
    first: Ints
    word_starts: Ints
    words: Ints
    scores: Scores
    next_kinds: Ints  # (P,): pairs with equal probabilities of the next orientation have the same number
    next_scores: Floats  # (C + 1, 3): these log-probabilities; the last row is that of copied words


class Limits(NamedTuple):
    """Limits of the search."""

    stack_size: int
    """Number of hypotheses of a stack that are extended."""
    pop_limit: int
    """Number of hypotheses that are made for a stack."""
    distortion_limit: int
    """Number of words from the first one not translated to the end of any translated one."""
    table_limit: int
    """Number of phrase pairs for a source phrase."""
    max_length: int
    """Number of words of a source phrase."""


class PhraseOptions(NamedTuple):
    """Phrase pairs that translate spans of a sentence, those of a span together, best first."""

    starts: Ints  # (O,): first source word
    ends: Ints  # (O,): last source word
    pairs: Ints  # (O,): phrase pair, or COPIED
    fixed: Floats  # (O,): weighted features that do not depend on other phrases, without the language model
    estimates: Floats  # (O,): `fixed` and the language model's score of the words without context
    spans: Ints  # (S, max_length + 1): options of the span of n words from i are spans[i, n - 1] … spans[i, n] - 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def lm_phrase(tables: Tables, context: Ints, known: int, pair: int) -> tuple[float, int]:
    """Score the words of a phrase pair after a context, which is changed; see `next_word`."""
    if pair == COPIED:
        log_prob, known = next_word(
            tables.lm_table, tables.lm_log_probs, tables.lm_log_backoffs, tables.lm_size, context, known, UNK
        )
        return log_prob, known
    total = 0.0
    for position in range(tables.word_starts[pair], tables.word_starts[pair + 1]):
        log_prob, known = next_word(
            tables.lm_table,
            tables.lm_log_probs,
            tables.lm_log_backoffs,
            tables.lm_size,
            context,
            known,
            tables.words[position],
        )
        total += log_prob
    return total, known


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def find_options(tables: Tables, source: Ints, weights: Floats, limits: Limits) -> PhraseOptions:
    """Find the best phrase pairs of all spans; a word that no pair translates alone and is unknown is copied."""
    size, longest = len(source), limits.max_length
    starts, ends, pairs = [0 for _ in range(0)], [0 for _ in range(0)], [0 for _ in range(0)]
    fixed, estimates = [0.0 for _ in range(0)], [0.0 for _ in range(0)]
    spans = np.zeros((size, longest + 1), dtype=np.int64)
    context = np.zeros(max(1, tables.lm_order - 1), dtype=np.int64)
    for start in range(size):
        node = 0
        spans[start, 0] = len(starts)
        for length in range(1, longest + 1):
            end = start + length - 1
            if end < size and node != NOT_FOUND:
                node = find(tables.edges, node * tables.source_size + source[end])
                low, high = (0, 0) if node == NOT_FOUND else (tables.first[node], tables.first[node + 1])
                count = high - low
                own, whole = np.empty(count), np.empty(count)
                for k in range(count):
                    own[k] = weights[PHRASES] + weights[WORDS] * (
                        tables.word_starts[low + k + 1] - tables.word_starts[low + k]
                    )
                    for score in range(4):
                        own[k] += weights[SCORES + score] * tables.scores[low + k, score]
                    whole[k] = own[k] + weights[LANGUAGE_MODEL] * lm_phrase(tables, context, 0, low + k)[0]
                for k in np.argsort(-whole, kind="mergesort")[: limits.table_limit]:
                    starts.append(start)
                    ends.append(end)
                    pairs.append(low + k)
                    fixed.append(own[k])
                    estimates.append(whole[k])
                if length == 1 and count == 0:
                    starts.append(start)
                    ends.append(end)
                    pairs.append(COPIED)
                    fixed.append(weights[PHRASES] + weights[WORDS] + weights[UNKNOWN])
                    estimates.append(fixed[-1] + weights[LANGUAGE_MODEL] * lm_phrase(tables, context, 0, COPIED)[0])
            spans[start, length] = len(starts)
    return PhraseOptions(np.array(starts), np.array(ends), np.array(pairs), np.array(fixed), np.array(estimates), spans)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def future_scores(options: PhraseOptions, size: int) -> Floats:
    """Compute the best sum of estimates that translates the words i … j - 1, (S + 1, S + 1)."""
    best = np.full((size + 1, size + 1), -np.inf)
    for start in range(size + 1):
        best[start, start] = 0.0
    for option in range(len(options.starts)):
        start, end = options.starts[option], options.ends[option] + 1
        best[start, end] = max(best[start, end], options.estimates[option])
    for length in range(2, size + 1):
        for start in range(size - length + 1):
            end = start + length
            for middle in range(start + 1, end):
                best[start, end] = max(best[start, end], best[start, middle] + best[middle, end])
    return best


def build_tables(lm: LanguageModel, phrases: PhraseTable) -> Tables:
    """Build the arrays that a search reads."""
    distinct, kinds = np.unique(phrases.scores[:, 7:], axis=0, return_inverse=True)
    copied = np.full((1, NUM_ORIENTATIONS), np.log(1 / NUM_ORIENTATIONS))
    return Tables(
        lm.table(),
        lm.log_probs,
        lm.log_backoffs,
        lm.vocab_size,
        lm.order,
        phrases.table(),
        phrases.vocab_size,
        phrases.first,
        phrases.word_starts,
        phrases.words,
        phrases.scores,
        kinds.reshape(-1),
        np.concatenate([distinct.astype(np.float64), copied]),
    )
