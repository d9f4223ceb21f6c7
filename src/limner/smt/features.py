"""Tables, features and weights of the log-linear model, for compiled code: Koehn et al. (2003, 2007).

The only place that knows the position of each feature: the search adds up weighted features, and the n-best lists have
the features themselves, both by the functions below.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.compiled import compiled
from limner.smt import DISCONTINUOUS, MONOTONE, NUM_FEATURES, NUM_ORIENTATIONS, SWAP, Floats, Ints
from limner.smt.containers import NOT_FOUND, find
from limner.smt.language_model import LanguageModel, next_word
from limner.smt.phrases import PhraseTable
from limner.text.vocab import SPECIAL_TOKENS

Scores = NDArray[np.float32]


BOS, EOS, UNK = SPECIAL_TOKENS.bos, SPECIAL_TOKENS.eos, SPECIAL_TOKENS.unk


@compiled
def copy_id(word: int) -> int:
    """Convert a word to the negative id of the phrase pair that copies the word, or such an id to the word."""
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
    next_scores: Floats  # (C + 1, 3): log-probabilities of the next orientation; the last row is for copied words


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
        word = copy_id(pair)
        log_prob, known = lm_word(tables, context, known, word if word < tables.lm_size else UNK)
        return log_prob, known
    total = 0.0
    for position in range(tables.word_starts[pair], tables.word_starts[pair + 1]):
        log_prob, known = lm_word(tables, context, known, tables.words[position])
        total += log_prob
    return total, known


_DISTORTION, LANGUAGE_MODEL, _WORDS, _PHRASES, _SCORES, _PREVIOUS, _NEXT, _UNKNOWN = 0, 1, 2, 3, 4, 8, 11, 14
"""Positions of the features; the four scores start at `_SCORES`, the orientations at `_PREVIOUS` and `_NEXT`."""
NUM_TUNED = _UNKNOWN
"""Number of features with tuned weights, the first features: the weight of `unknown_words` is fixed."""

DEFAULT_WEIGHTS: Floats = np.array([0.3, 0.5, 1.0, 0.2, *[0.2] * 4, *[0.3] * 6, -100.0])
"""Weights before tuning, of the size that Koehn et al. (2007) start with. The weight of `words` is positive, because
the language model prefers short translations."""


@compiled
def orientation(previous_start: int, previous_end: int, start: int, end: int) -> int:
    """Return the orientation of a phrase after another, both given by their first and last source words."""
    if start == previous_end + 1:
        return MONOTONE
    return SWAP if end + 1 == previous_start else DISCONTINUOUS


@compiled
def weighted(weights: Floats, features: Floats) -> float:
    """Compute the weighted sum of features, both (NUM_FEATURES,)."""
    total = 0.0
    for feature in range(NUM_FEATURES):
        total += weights[feature] * features[feature]
    return total


@compiled
def add_phrase_features(tables: Tables, pair: int, features: Floats) -> None:
    """Add the features of a phrase pair that do not depend on other phrases to `features`, (NUM_FEATURES,)."""
    features[_PHRASES] += 1
    if pair < 0:
        features[_WORDS] += 1
        features[_UNKNOWN] += 1
        return
    features[_WORDS] += tables.word_starts[pair + 1] - tables.word_starts[pair]
    for score in range(4):
        features[_SCORES + score] += tables.scores[pair, score]


@compiled
def add_order_features(
    tables: Tables, last: Ints, start: int, end: int, pair: int, context: Ints, features: Floats
) -> None:
    """Add the features of a phrase pair that depend on the preceding target words to `features`, (NUM_FEATURES,).

    Args:
        tables: language model and phrase table.
        last: first and last source word of the last phrase, -1 at the beginning; its number in `Tables.next_kinds`; and
            the number of known words of `context`, (4,). Set to the values of the pair.
        start: first source word of the pair.
        end: last source word of the pair.
        pair: phrase pair; below 0 for a copied word.
        context: words of the language model's context, the most recent first. Set to the context after the pair.
        features: features that are added to, (NUM_FEATURES,).
    """
    log_prob, known = lm_phrase(tables, context, last[3], pair)
    features[LANGUAGE_MODEL] += log_prob
    features[_DISTORTION] -= abs(start - last[1] - 1)
    kind = orientation(last[0], last[1], start, end)
    if last[1] >= 0:
        features[_NEXT + kind] += tables.next_scores[last[2], kind]
    copied = pair < 0
    features[_PREVIOUS + kind] += np.log(1 / NUM_ORIENTATIONS) if copied else tables.scores[pair, 4 + kind]
    last[0], last[1], last[3] = start, end, known
    last[2] = len(tables.next_scores) - 1 if copied else tables.next_kinds[pair]


@compiled
def add_end_features(tables: Tables, last: Ints, size: int, context: Ints, features: Floats) -> None:
    """Add the features of the end of a sentence of `size` source words; see `add_order_features`."""
    log_prob, _ = lm_word(tables, context, last[3], EOS)
    features[LANGUAGE_MODEL] += log_prob
    kind = orientation(last[0], last[1], size, size)
    features[_NEXT + kind] += tables.next_scores[last[2], kind]


class Limits(NamedTuple):
    """Limits of the search."""

    stack_size: int
    """Pop limit of cube pruning: number of hypotheses that are made for a stack, including recombined hypotheses."""
    distortion_limit: int
    """Maximum distance in words from the first untranslated source word to the end of the next phrase. A phrase that
    begins at that word is always allowed."""
    max_length: int
    """Number of words of a source phrase."""


class PhraseOptions(NamedTuple):
    """Phrase pairs that translate spans of a sentence, grouped by span, best first."""

    starts: Ints  # (O,): first source word
    ends: Ints  # (O,): last source word
    pairs: Ints  # (O,): phrase pair; below 0 for a copied word
    fixed: Floats  # (O,): weighted features that do not depend on other phrases, without the language model
    estimates: Floats  # (O,): `fixed` and the language model's score of the words without context
    spans: Ints  # (S, max_length + 1): options of the span of n words from i are spans[i, n - 1] … spans[i, n] - 1


@compiled
def _fixed(tables: Tables, pair: int, weights: Floats, features: Floats) -> float:
    """Weigh the features of a phrase pair that do not depend on other phrases; `features` is overwritten."""
    features[:] = 0
    add_phrase_features(tables, pair, features)
    return float(weighted(weights, features))


@compiled
def find_options(tables: Tables, source: Ints, copies: Ints, weights: Floats, limits: Limits) -> PhraseOptions:
    """Find the phrase pairs of all spans; a word that no pair translates by itself can be copied."""
    size, longest = len(source), limits.max_length
    starts, ends, pairs = [0 for _ in range(0)], [0 for _ in range(0)], [0 for _ in range(0)]
    fixed, estimates = [0.0 for _ in range(0)], [0.0 for _ in range(0)]
    spans = np.zeros((size, longest + 1), dtype=np.int64)
    context, features = np.zeros(max(1, tables.lm_order - 1), dtype=np.int64), np.empty(NUM_FEATURES)
    for start in range(size):
        node = 0
        spans[start, 0] = len(starts)
        for length in range(1, longest + 1):
            end = start + length - 1
            if end < size and node != NOT_FOUND:
                node = find(tables.edges, node * tables.source_size + source[end])
                low, high = (0, 0) if node == NOT_FOUND else (tables.first[node], tables.first[node + 1])
                count = high - low
                inner, whole = np.empty(count), np.empty(count)
                for k in range(count):
                    inner[k] = _fixed(tables, low + k, weights, features)
                    whole[k] = inner[k] + weights[LANGUAGE_MODEL] * lm_phrase(tables, context, 0, low + k)[0]
                for k in np.argsort(-whole, kind="mergesort"):
                    starts.append(start)
                    ends.append(end)
                    pairs.append(low + k)
                    fixed.append(inner[k])
                    estimates.append(whole[k])
                if length == 1 and count == 0:
                    starts.append(start)
                    ends.append(end)
                    pairs.append(copy_id(copies[start]))
                    fixed.append(_fixed(tables, pairs[-1], weights, features))
                    estimates.append(fixed[-1] + weights[LANGUAGE_MODEL] * lm_phrase(tables, context, 0, pairs[-1])[0])
            spans[start, length] = len(starts)
    return PhraseOptions(np.array(starts), np.array(ends), np.array(pairs), np.array(fixed), np.array(estimates), spans)


@compiled
def future_scores(options: PhraseOptions, size: int) -> Floats:
    """Compute the future score of the words i … j - 1, the best estimate of their translation, (S + 1, S + 1)."""
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
