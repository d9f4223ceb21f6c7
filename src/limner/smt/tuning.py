"""Tuning of the weights: minimum error rate training on BLEU (Papineni et al., 2002) of token ids, Och (2003).

Held-out sentences are decoded again with each new weights, and the n-best lists of all iterations are merged (section
7). Departures from the program mert of Moses: 5 starts (the last weights, the best weights, and 3 random points with
weights from 0 to 1) in place of 20 random restarts; the lines of the single weights and of random directions in random
order, where the first improvement is taken, not the best of a round; the tuned weights, all except the weight of copied
words, are scaled to absolute values that sum to 1.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from limner.compiled import compiled
from limner.metrics.caption import MAX_ORDER, count_ngrams
from limner.smt import NUM_FEATURES, Floats, Ints
from limner.smt.features import NUM_TUNED
from limner.smt.system import ScoredTranslation, System

NUM_STATISTICS = 2 * MAX_ORDER + 2
"""Number of the statistics: matched n-grams and all n-grams by order, words, and words of the reference."""
MIN_GAIN = 1e-5  # smallest gain of BLEU, 0 to 1, for which another round over all directions is made


class Reference:
    """References of one sentence, whose counts are kept for many hypotheses."""

    def __init__(self, references: Sequence[Sequence[int]]) -> None:
        self.counts: Counter[tuple[int, ...]] = Counter()
        for tokens in references:
            self.counts |= count_ngrams(tokens)
        self.lengths = sorted(len(tokens) for tokens in references)

    def statistics(self, hypothesis: Sequence[int]) -> Floats:
        """Compute the statistics of a hypothesis, (NUM_STATISTICS,), with the length of the closest reference."""
        result = np.zeros(NUM_STATISTICS)
        for ngram, count in count_ngrams(hypothesis).items():
            result[len(ngram) - 1] += min(count, self.counts[ngram])
            result[MAX_ORDER + len(ngram) - 1] += count
        result[-2] = len(hypothesis)
        result[-1] = min(self.lengths, key=lambda length: (abs(length - len(hypothesis)), length))
        return result


@compiled
def bleu(statistics: Floats) -> float:
    """Compute BLEU, 0 to 1, of summed statistics; 0 where an order has no match."""
    log_precision = 0.0
    for n in range(MAX_ORDER):
        if statistics[n] <= 0:
            return 0.0
        log_precision += np.log(statistics[n] / statistics[MAX_ORDER + n]) / MAX_ORDER
    brevity = min(0.0, 1 - statistics[2 * MAX_ORDER + 1] / statistics[2 * MAX_ORDER])
    return float(np.exp(log_precision + brevity))


class Candidates(NamedTuple):
    """N-best translations of many sentences, grouped by sentence."""

    features: Floats  # (N, F)
    statistics: Floats  # (N, NUM_STATISTICS): statistics of BLEU
    first: Ints  # (number of sentences + 1,): candidates of sentence s are first[s] … first[s + 1] - 1


def corpus_bleu(candidates: Candidates, weights: Floats) -> float:
    """Compute BLEU, 0 to 1, of the candidates that the weights choose."""
    scores = candidates.features @ weights
    chosen = [low + np.argmax(scores[low:high]) for low, high in pairwise(candidates.first)]  # a tie takes the first
    return float(bleu(candidates.statistics[chosen].sum(0)))


@compiled
def _envelope(intercepts: Floats, slopes: Floats) -> tuple[Ints, Floats]:
    """Compute the upper envelope of lines: its lines in the order of the step, and the step where each line begins."""
    order = np.argsort(intercepts)  # of equal slopes the largest intercept is last
    order = order[np.argsort(slopes[order], kind="mergesort")]
    lines, starts, count = np.empty(len(order), dtype=np.int64), np.empty(len(order)), 0
    for line in order:
        start = -np.inf
        while count:
            last = lines[count - 1]
            if slopes[last] == slopes[line]:
                count -= 1
                continue
            start = (intercepts[last] - intercepts[line]) / (slopes[line] - slopes[last])
            if start > starts[count - 1]:
                break
            count -= 1
            start = -np.inf
        lines[count], starts[count] = line, start if count else -np.inf
        count += 1
    return lines[:count], starts[:count]


@compiled
def _search(intercepts: Floats, slopes: Floats, statistics: Floats, first: Ints) -> tuple[float, float]:
    """Return the middle of the interval of steps with the largest BLEU, and this BLEU; see `line_search`."""
    total, count = np.zeros(NUM_STATISTICS), 0
    steps, corners = np.empty(len(intercepts)), np.empty((len(intercepts), 2), dtype=np.int64)
    for sentence in range(len(first) - 1):
        low, high = first[sentence], first[sentence + 1]
        lines, starts = _envelope(intercepts[low:high], slopes[low:high])
        total += statistics[low + lines[0]]
        for k in range(1, len(lines)):
            steps[count] = starts[k]
            corners[count] = (low + lines[k - 1], low + lines[k])
            count += 1
    if count == 0:
        return 0.0, bleu(total)
    order = np.argsort(steps[:count])
    best_step, best_bleu = steps[order[0]] - 1, bleu(total)
    for k in range(count):
        here = steps[order[k]]
        total += statistics[corners[order[k], 1]] - statistics[corners[order[k], 0]]
        end = steps[order[k + 1]] if k + 1 < count else here + 2
        if end - here > 1e-9:  # else two corners are one
            value = bleu(total)
            if value > best_bleu:
                best_step, best_bleu = (here + end) / 2, value
    return best_step, best_bleu


def line_search(candidates: Candidates, weights: Floats, direction: Floats) -> tuple[float, float]:
    """Find the step along a direction with the largest BLEU, and this BLEU: Och (2003), section 5.

    The score of a candidate is linear in the step, so that the best candidate of a sentence changes only at the corners
    of the upper envelope. BLEU is constant between two corners of all sentences; the step is the middle of the best
    interval, or 1 from the end of an unbounded interval.
    """
    intercepts, slopes = candidates.features @ weights, candidates.features @ direction
    step, best_bleu = _search(intercepts, slopes, candidates.statistics, candidates.first)
    return step, best_bleu


def optimise(
    candidates: Candidates, starts: Sequence[Floats], tuned: int, rng: np.random.Generator, directions: int
) -> tuple[Floats, float]:
    """Optimise the weights by line searches from several points, and return the best weights with their BLEU.

    From each point the lines of the single weights and of random directions are searched in turn, until a round over
    all of them gains nothing. The first `tuned` weights change; `directions` is the number of random directions of each
    round.
    """
    best, best_bleu = starts[0], -1.0
    for start in starts:
        weights, value, before = start, corpus_bleu(candidates, start), -1.0
        while value - before > MIN_GAIN:
            before = value
            lines = np.zeros((tuned + directions, len(weights)))
            lines[:tuned, :tuned] = np.eye(tuned)
            lines[tuned:, :tuned] = rng.uniform(-1, 1, (directions, tuned))
            for line in rng.permutation(lines):
                step, reached = line_search(candidates, weights, line)
                if reached > value:
                    weights, value = weights + step * line, reached
        if value > best_bleu:
            best, best_bleu = weights, value
    return best, best_bleu


RANDOM_STARTS = 3  # random points from which MERT starts besides the last and the best weights so far
RANDOM_DIRECTIONS = 10  # random directions of each round of MERT

logger = logging.getLogger(__name__)


class TuningSet(NamedTuple):
    """Held-out sentences and their references."""

    sources: Sequence[Sequence[int]]
    copies: Sequence[Sequence[int]]
    """Target word of each source word if it is copied, numbered as the words of the references."""
    references: Sequence[Sequence[Sequence[int]]]


class TuningOptions(NamedTuple):
    """Options of the tuning."""

    iterations: int  # largest number of times that the sentences are translated
    n_best: int  # number of translations of a sentence in each iteration
    seed: int


def tune(
    system: System, data: TuningSet, options: TuningOptions, on_iteration: Callable[[int, float], None] | None = None
) -> tuple[Floats, tuple[float, ...]]:
    """Tune the weights of a system on BLEU; return them, and BLEU, 0 to 1, of the translations of each iteration.

    The iteration whose own translations have the largest BLEU gives the weights. `on_iteration` gets the number of each
    iteration, from 1, and its BLEU.
    """
    rng = np.random.default_rng(options.seed)
    lists = _Lists(data)
    tried: list[Floats] = [system.weights]
    history: list[float] = []
    for iteration in range(1, options.iterations + 1):
        n_best = system._replace(weights=tried[-1]).translate_all(data.sources, data.copies, options.n_best)
        history.append(lists.first_bleu(n_best))
        logger.info("tuning, iteration %d: BLEU %.2f", iteration, 100 * history[-1])
        if on_iteration is not None:
            on_iteration(iteration, history[-1])
        if not lists.add(n_best) or iteration == options.iterations:
            break
        starts = [tried[-1], tried[int(np.argmax(history))]]
        for _ in range(RANDOM_STARTS):
            drawn = starts[0].copy()
            drawn[:NUM_TUNED] = rng.uniform(0, 1, NUM_TUNED)
            drawn[:NUM_TUNED] /= drawn[:NUM_TUNED].sum()
            starts.append(drawn)
        weights = optimise(lists.candidates(), starts, NUM_TUNED, rng, RANDOM_DIRECTIONS)[0].copy()
        weights[:NUM_TUNED] /= np.abs(weights[:NUM_TUNED]).sum()
        if np.abs(weights - tried[-1]).max() < 1e-5:
            break
        tried.append(weights)
    return tried[int(np.argmax(history))], tuple(history)


class _Lists:
    """N-best lists of all iterations, without repetitions."""

    def __init__(self, data: TuningSet) -> None:
        self._references = [Reference(references) for references in data.references]
        # Features and statistics of the candidates of each sentence, by their tokens and features.
        self._lists: list[dict[tuple[tuple[int, ...], bytes], tuple[Floats, Floats]]] = [{} for _ in data.sources]

    def first_bleu(self, n_best: Sequence[Sequence[ScoredTranslation]]) -> float:
        """Compute BLEU of the best translations."""
        total = np.zeros(NUM_STATISTICS)
        for reference, translations in zip(self._references, n_best, strict=True):
            total += reference.statistics(translations[0].tokens)
        return float(bleu(total))

    def add(self, n_best: Sequence[Sequence[ScoredTranslation]]) -> int:
        """Add the translations of an iteration; return the number of new translations."""
        before = sum(map(len, self._lists))
        for reference, known, translations in zip(self._references, self._lists, n_best, strict=True):
            for tokens, _, features, *_ in translations:
                key = tokens, features.round(6).tobytes()
                if key not in known:
                    known[key] = features, reference.statistics(tokens)
        return sum(map(len, self._lists)) - before

    def candidates(self) -> Candidates:
        """Return all translations so far."""
        rows = [row for known in self._lists for row in known.values()]
        features = np.array([row[0] for row in rows]).reshape(-1, NUM_FEATURES)
        statistics = np.array([row[1] for row in rows]).reshape(-1, NUM_STATISTICS)
        return Candidates(features, statistics, np.concatenate([[0], np.cumsum([len(known) for known in self._lists])]))
