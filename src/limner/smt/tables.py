"""Language model and phrase table as arrays for compiled code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.compiled import compiled
from limner.smt.language_model import LanguageModel, next_word
from limner.smt.layout import NUM_ORIENTATIONS
from limner.smt.phrases import PhraseTable
from limner.text.vocab import SPECIAL_TOKENS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Scores = NDArray[np.float32]

BOS, EOS, UNK = SPECIAL_TOKENS.bos, SPECIAL_TOKENS.eos, SPECIAL_TOKENS.unk


@compiled
def copying(word: int) -> int:
    """Return the number below 0 that stands for the phrase pair which copies a word; and of this number, the word."""
    return -1 - word


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


@compiled
def lm_word(tables: Tables, context: Ints, known: int, word: int) -> tuple[float, int]:
    """Score a word after a context, which is changed; see `next_word`."""
    log_prob, known = next_word(
        tables.lm_table, tables.lm_log_probs, tables.lm_log_backoffs, tables.lm_size, context, known, word
    )
    return log_prob, known


@compiled
def lm_phrase(tables: Tables, context: Ints, known: int, pair: int) -> tuple[float, int]:
    """Score the words of a phrase pair after a context, which is changed; see `next_word`."""
    if pair < 0:
        word = copying(pair)
        log_prob, known = lm_word(tables, context, known, word if word < tables.lm_size else UNK)
        return log_prob, known
    total = 0.0
    for position in range(tables.word_starts[pair], tables.word_starts[pair + 1]):
        log_prob, known = lm_word(tables, context, known, tables.words[position])
        total += log_prob
    return total, known
