"""N-gram language model with modified Kneser-Ney smoothing: Chen and Goodman (1998), Heafield et al. (2013).

An n-gram is a node of a trie that grows to the left: the node of w_1 … w_n is the child w_1 of the node of w_2 … w_n.
The node of a single word is its token id. `limner.smt.arpa` writes and reads files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.compiled import compiled
from limner.smt import Floats, Ints
from limner.smt.containers import NOT_FOUND, build_table, find
from limner.text.vocab import SPECIAL_TOKENS

IMPOSSIBLE = -99 * np.log(10)
"""Log-probability of <pad> and <s>, which are never predicted: -99 in decimal logarithms, as ARPA files have it."""


class LanguageModel(NamedTuple):
    """Back-off form of the model: log-probability and back-off weight of every observed n-gram.

    With the context h, h' without its first word, and the n-gram h w:

        log P(w | h) = log_probs[h w]                       if h w was observed
                     = log_backoffs[h] + log P(w | h')      otherwise; the back-off of a context not observed is 0
    """

    order: int
    vocab_size: int  # number of words V, the special tokens included; their nodes are the first
    suffixes: Ints  # (N,): node without the first word of each node; -1 of words
    firsts: Ints  # (N,): first word of each node
    log_probs: Floats  # (N,): natural logarithms
    log_backoffs: Floats  # (N,): natural logarithms, 0 of the highest order

    def cut(self, vocab_size: int) -> LanguageModel:
        """Leave out the n-grams with a word from `vocab_size` on: no scored sentence has such words."""
        if vocab_size == self.vocab_size:
            return self
        foreign = self.firsts >= vocab_size
        for _ in range(1, self.order):
            foreign |= (self.suffixes >= 0) & foreign[self.suffixes]
        numbers = np.cumsum(~foreign) - 1
        suffixes = self.suffixes[~foreign]
        return LanguageModel(
            self.order,
            vocab_size,
            np.where(suffixes >= 0, numbers[suffixes], -1),
            self.firsts[~foreign],
            self.log_probs[~foreign],
            self.log_backoffs[~foreign],
        )

    def table(self) -> Ints:
        """Build the table of the children, for `next_word`: suffix * V + first word -> node."""
        longer = slice(self.vocab_size, None)
        keys = self.suffixes[longer] * self.vocab_size + self.firsts[longer]
        return build_table(keys, np.arange(self.vocab_size, len(self.suffixes)))

    def words(self, node: int) -> list[int]:
        """Return the words of a node."""
        result = []
        while node >= 0:
            result.append(int(self.firsts[node]))
            node = int(self.suffixes[node])
        return result


@compiled
def next_word(
    table: Ints, log_probs: Floats, log_backoffs: Floats, vocab_size: int, context: Ints, known: int, word: int
) -> tuple[float, int]:
    """Compute the log-probability of a word after a context, and append the word to the context.

    `table` has the children of the nodes. The context is the last words, the most recent first, and is changed in
    place; its size is the order minus 1, and `known` is the number of its words. The results are the natural
    logarithm of the probability and the number of words of the new context: no longer context was observed.
    """
    node, matched = word, 1
    for position in range(known):
        child = find(table, node * vocab_size + context[position])
        if child == NOT_FOUND:
            break
        node, matched = child, matched + 1
    log_prob = log_probs[node]
    if matched <= known:
        history = context[0]
        for length in range(1, known + 1):
            if length >= matched:
                log_prob += log_backoffs[history]
            if length < known:
                history = find(table, history * vocab_size + context[length])
                if history == NOT_FOUND:
                    break
    kept = min(matched, len(context))
    for position in range(kept - 1, 0, -1):
        context[position] = context[position - 1]
    if kept:
        context[0] = word
    return log_prob, kept


class _Order(NamedTuple):
    """Distinct n-grams of one order."""

    suffixes: Ints  # node of the n-gram without its first word
    contexts: Ints  # node of the n-gram without its last word
    firsts: Ints
    counts: Ints
    after_bos: NDArray[np.bool_]  # whether the n-gram begins with <s>


def estimate(sentences: Iterable[Sequence[int]], order: int, vocab_size: int) -> LanguageModel:
    """Estimate the model from sentences: interpolated modified Kneser-Ney, Heafield et al. (2013), section 3.

    With the adjusted count a (the number of distinct words before an n-gram; the count itself for the highest order and
    for n-grams that begin with <s>), and the discounts D_1, D_2, D_3+ of the order:

    P(w | h) = (a(h w) - D(a(h w))) / sum_x a(h x) + b(h) P(w | h') b(h) = sum_x D(a(h x)) / sum_x a(h x) P(w | h') of
    unigrams: 1 / (V - 2) Sentences are token ids without special tokens.
    """
    words = np.array(
        [id_ for sentence in sentences for id_ in (SPECIAL_TOKENS.bos, *sentence, SPECIAL_TOKENS.eos)], dtype=np.int64
    )
    orders = _count(words, order, vocab_size)
    num_nodes = vocab_size + sum(len(ngrams.counts) for ngrams in orders[1:])
    suffixes, firsts = np.full(num_nodes, -1, dtype=np.int64), np.arange(num_nodes)
    probs, backoffs = np.zeros(num_nodes), np.zeros(num_nodes)
    start = 0
    for n, ngrams in enumerate(orders, 1):
        nodes = np.arange(start, start + len(ngrams.counts))
        counts = _adjusted_counts(ngrams, orders[n] if n < order else None, start)
        discounted = _discounts(counts)[np.minimum(counts, 3)]
        contexts = ngrams.contexts if n > 1 else np.zeros(len(nodes), dtype=np.int64)
        size = start if n > 1 else 1
        totals = np.bincount(contexts, counts, size)
        weights = np.bincount(contexts, discounted, size) / np.maximum(totals, 1)
        lower = probs[ngrams.suffixes] if n > 1 else np.full(len(nodes), 1 / (vocab_size - 2))
        probs[nodes] = (counts - discounted) / totals[contexts] + weights[contexts] * lower
        if n > 1:
            backoffs[np.unique(contexts)] = weights[np.unique(contexts)]
            suffixes[nodes], firsts[nodes] = ngrams.suffixes, ngrams.firsts
        start += len(nodes)
    probs[[SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos]] = 0
    impossible = probs <= 0
    log_probs = np.where(impossible, IMPOSSIBLE, np.log(np.where(impossible, 1, probs)))
    log_backoffs = np.where(backoffs > 0, np.log(np.where(backoffs > 0, backoffs, 1)), 0.0)
    return LanguageModel(order, vocab_size, suffixes, firsts, log_probs, log_backoffs)


def _count(words: Ints, order: int, vocab_size: int) -> list[_Order]:
    """Count the n-grams of every order up to `order` within the sentences, each from <s> to </s>."""
    offset = np.arange(len(words)) - np.maximum.accumulate(
        np.where(words == SPECIAL_TOKENS.bos, np.arange(len(words)), 0)
    )
    counts = np.bincount(words, minlength=vocab_size)
    no_context = np.zeros(vocab_size, dtype=np.int64)
    is_bos = np.arange(vocab_size) == SPECIAL_TOKENS.bos
    result = [_Order(no_context - 1, no_context, np.arange(vocab_size), counts, is_bos)]
    nodes, start = words, vocab_size  # node of the n-gram that ends at each position
    for n in range(2, order + 1):
        at = np.flatnonzero(offset >= n - 1)
        keys = nodes[at] * vocab_size + words[at - n + 1]
        distinct, index, inverse, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        firsts = distinct % vocab_size
        result.append(
            _Order(distinct // vocab_size, nodes[at - 1][index], firsts, counts, firsts == SPECIAL_TOKENS.bos)
        )
        nodes = np.full(len(words), -1, dtype=np.int64)
        nodes[at] = start + inverse
        start += len(distinct)
    return result


def _adjusted_counts(ngrams: _Order, longer: _Order | None, start: int) -> Ints:
    """Return the number of distinct words before each n-gram, or its count; see `estimate`."""
    counts = ngrams.counts
    if longer is not None:
        distinct = np.bincount(longer.suffixes - start, minlength=len(counts))
        counts = np.where(ngrams.after_bos, counts, distinct)
    if start == 0:  # single words, of which <s> is never predicted
        counts = np.where(ngrams.after_bos, 0, counts)
    return counts


def _discounts(counts: Ints) -> Floats:
    """Estimate D_0 = 0, D_1, D_2 and D_3+ from the adjusted counts of an order, Chen and Goodman (1998), eq. 26.

    Where no n-gram has one of the counts 1 to 3, or a discount is not above 0 and at most its count, the discounts are
    0.5, 1 and 1.5, the fallback of Heafield's lmplz. Unlike lmplz, discounts of 0 are not accepted: a context whose
    n-grams all have this count would leave no probability to other words.
    """
    n1, n2, n3, n4 = (int((counts == count).sum()) for count in range(1, 5))
    if min(n1, n2, n3) == 0:
        return np.array([0, 0.5, 1, 1.5])
    y = n1 / (n1 + 2 * n2)
    discounts = np.array([0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
    return discounts if (discounts[1:] > 0).all() and (discounts <= np.arange(4)).all() else np.array([0, 0.5, 1, 1.5])
