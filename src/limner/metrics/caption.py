"""CIDEr-D and ROUGE-L of tokens, with the values of pycocoevalcap.

As metrics, CIDEr-D takes its document frequencies from the references of the scored items; a reward needs
the frequencies of the training split, and the score of few sentences at every step.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from limner.metrics.base import Metric, References, Statistics, percentage, require_sentences

logger = logging.getLogger(__name__)

ROUGE_BETA = 1.2  # weight of the recall of ROUGE-L


def cider_statistics(hypotheses: Sequence[str], references: References) -> Statistics:
    """Compute CIDEr-D (Vedantam et al., 2015) of every segment, with the document frequencies of all references.

    The statistics are the score of the segment and 1, (N, 2); resampling keeps the document frequencies of the whole
    corpus.
    """
    if len(hypotheses) == 1:
        logger.warning("cider: the score of a single item is always 0, because all document frequencies are 1")
    cider = CiderD([[reference.split() for reference in group] for group in references], cached_items=0)
    scores = [cider.score(item, hypothesis.split()) for item, hypothesis in enumerate(hypotheses)]
    return np.stack([scores, np.ones(len(scores))], axis=1)


def rouge_statistics(hypotheses: Sequence[str], references: References) -> Statistics:
    """Compute ROUGE-L (Lin, 2004) of segments, with the best precision and recall: score and 1, (N, 2)."""
    rows = np.ones((len(hypotheses), 2))
    for row, (hypothesis, item_references) in enumerate(zip(hypotheses, references, strict=True)):
        tokens, groups = hypothesis.split(), [reference.split() for reference in item_references]
        common = [_common_length(tokens, group) for group in groups]
        precision = max(common) / max(1, len(tokens))
        recall = max(length / max(1, len(group)) for length, group in zip(common, groups, strict=True))
        denominator = recall + ROUGE_BETA**2 * precision
        rows[row, 0] = (1 + ROUGE_BETA**2) * precision * recall / denominator if denominator else 0.0
    return rows


def _common_length(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the length of the longest common subsequence; an integer has the bits of a table row (Hyyrö, 2004)."""
    positions: dict[str, int] = {}
    for position, token in enumerate(a):
        positions[token] = positions.get(token, 0) | 1 << position
    row = every = (1 << len(a)) - 1
    for token in b:
        matches = row & positions.get(token, 0)
        row = (row + matches | row - matches) & every
    return len(a) - row.bit_count()


_SETTINGS = "tok:given|scale:x100|implementation:limner"
CIDER = Metric(
    "cider", cider_statistics, percentage, lambda: f"n:4|sigma:6|idf:references of the scored items|{_SETTINGS}"
)
ROUGE_L = Metric("rouge_l", rouge_statistics, percentage, lambda: f"beta:{ROUGE_BETA}|{_SETTINGS}")


CAPTION_SCORES = {
    name: Metric(name, lambda *_: np.empty(0), lambda totals: float(totals[0] / totals[1]), lambda: "scale:0-100")
    for name in ("caption_score", "ref_caption_score")
}
"""Scores of captions of images, whose statistics are the scores that an evaluation stores, see
`limner.evaluation.caption_score`."""


MAX_ORDER = 4  # largest order of the n-grams that BLEU-4 and CIDEr count
Ngram = tuple[str, ...]
Token = TypeVar("Token")
SIGMA = 6.0  # standard deviation of the Gaussian penalty of the difference in length
CACHED_ITEMS = 10_000  # number of items whose reference vectors are kept in memory, about 50 KB each


class TfIdfVector(NamedTuple):
    """TF-IDF vector of a sentence."""

    values: dict[Ngram, float]  # count times inverse document frequency of each n-gram
    norms: list[float]  # norm of the values by order of the n-grams
    length: int


def count_ngrams(tokens: Sequence[Token]) -> Counter[tuple[Token, ...]]:
    """Count the n-grams of orders 1 to 4 of a sentence."""
    words = tuple(tokens)
    # Tuples of the shifted sentence: faster than slicing, since a reward counts many sentences at every training step.
    shifted = [words[k:] for k in range(MAX_ORDER)]
    counts: Counter[tuple[Token, ...]] = Counter()
    for order in range(1, MAX_ORDER + 1):
        counts.update(zip(*shifted[:order], strict=False))
    return counts


class CiderD:
    """CIDEr-D (Vedantam et al., 2015, section 8) of hypotheses for the N items of a corpus; equal to pycocoevalcap's.

    The vector g^n of a sentence holds, for every n-gram, its count times log(N / df), where df is the number of items
    with the n-gram in a reference, at least 1. With clipped counts and a penalty of the difference in length,

        CIDEr-D_n(c) = 10/m sum_j exp(-(l(c) - l(s_j))^2 / (2 sigma^2)) cos_n(c, s_j),
        cos_n(c, s) = min(g^n(c), g^n(s)) g^n(s) / (|g^n(c)| |g^n(s)|)

    for a hypothesis c and m references s_j, and CIDEr-D is the mean over n = 1 to 4. As in the reference program, the
    length l counts bigrams.
    """

    def __init__(self, references: Sequence[Sequence[Sequence[str]]], cached_items: int = CACHED_ITEMS) -> None:
        """Count the document frequencies in the tokens of the references of N items; keep the vectors of some items."""
        require_sentences(references)
        frequencies: Counter[Ngram] = Counter()
        for item_references in references:
            frequencies.update({ngram for tokens in item_references for ngram in count_ngrams(tokens)})
        self.references = references
        self.max_idf = math.log(len(references))  # of an n-gram in one item or none
        self.idf = {ngram: self.max_idf - math.log(count) for ngram, count in frequencies.items() if count > 1}
        self._own_references = lru_cache(cached_items)(self._vectors_of_references)

    def score(self, item: int, hypothesis: Sequence[str]) -> float:
        """Compute the score of a hypothesis, given as tokens, for an item; 1.0 is 100 on the scale of `METRICS`."""
        references, all_ngrams = self._own_references(item)
        values, norms, length = self._vector(hypothesis)
        shared = [(ngram, value) for ngram, value in values.items() if ngram in all_ngrams]
        total = 0.0
        for own_values, own_norms, own_length in references:
            products = [0.0] * MAX_ORDER
            for ngram, value in shared:
                if ngram in own_values:
                    other = own_values[ngram]
                    products[len(ngram) - 1] += min(value, other) * other
            penalty = math.exp(-((length - own_length) ** 2) / (2 * SIGMA**2))
            total += penalty * sum(p / (a * b) for p, a, b in zip(products, norms, own_norms, strict=True) if p)
        return 10 * total / MAX_ORDER / len(references)

    def _vectors_of_references(self, item: int) -> tuple[list[TfIdfVector], frozenset[Ngram]]:
        vectors = [self._vector(tokens) for tokens in self.references[item]]
        return vectors, frozenset(ngram for vector in vectors for ngram in vector.values)

    def _vector(self, tokens: Sequence[str]) -> TfIdfVector:
        squares = [0.0] * MAX_ORDER
        values: dict[Ngram, float] = {}
        for ngram, count in count_ngrams(tokens).items():
            value = values[ngram] = count * self.idf.get(ngram, self.max_idf)
            squares[len(ngram) - 1] += value * value
        return TfIdfVector(values, [math.sqrt(square) for square in squares], max(0, len(tokens) - 1))
