"""Tuning of the weights on n-best translations of held-out sentences, decoded again with each new weights.

Och (2003), section 7, for the loop that merges the lists of all iterations; `mert.py` and `mira.py` optimise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.smt import mert, mira
from limner.smt.features import NUM_TUNED
from limner.smt.layout import NUM_FEATURES
from limner.smt.mert import NUM_STATISTICS, Candidates, Reference, bleu
from limner.smt.system import ScoredTranslation, System

Floats = NDArray[np.float64]

RANDOM_STARTS = 3
"""Random points from which MERT starts besides the last and the best weights so far."""
RANDOM_DIRECTIONS = 10
"""Random directions of each round of MERT."""

logger = logging.getLogger(__name__)


class TuningSet(NamedTuple):
    """Held-out sentences and their references."""

    sources: Sequence[Sequence[int]]
    copies: Sequence[Sequence[int]]
    """Target word of each source word if it is copied, numbered as the words of the references."""
    references: Sequence[Sequence[Sequence[int]]]


class TuningOptions(NamedTuple):
    """Options of the tuning."""

    method: Literal["mert", "mira"]
    iterations: int
    """Largest number of times that the sentences are translated."""
    n_best: int
    """Number of translations of a sentence in each iteration."""
    seed: int


class Tuned(NamedTuple):
    """Result of a tuning."""

    weights: Floats
    history: tuple[float, ...]
    """BLEU, 0 to 1, of the translations of each iteration; the weights are those of the largest."""


def tune(
    system: System,
    data: TuningSet,
    options: TuningOptions,
    on_iteration: Callable[[int, float], None] | None = None,
) -> Tuned:
    """Tune the weights of a system on BLEU.

    Args:
        system: system with initial weights.
        data: held-out sentences.
        options: method and sizes.
        on_iteration: called with the number of each iteration, from 1, and BLEU of its translations.

    Returns:
        The weights whose own translations have the largest BLEU.
    """
    rng = np.random.default_rng(options.seed)
    lists = _Lists(data)
    tried: list[Floats] = [system.weights]
    history: list[float] = []
    for iteration in range(1, options.iterations + 1):
        found = system._replace(weights=tried[-1]).translate_all(data.sources, data.copies, options.n_best)
        history.append(lists.first_bleu(found))
        logger.info("tuning, iteration %d: BLEU %.2f", iteration, 100 * history[-1])
        if on_iteration is not None:
            on_iteration(iteration, history[-1])
        if not lists.add(found) or iteration == options.iterations:
            break
        starts = [tried[-1], tried[int(np.argmax(history))]]
        weights = _optimise(lists.candidates(), starts, options, rng)
        weights[:NUM_TUNED] /= np.abs(weights[:NUM_TUNED]).sum()
        if np.abs(weights - tried[-1]).max() < 1e-5:
            break
        tried.append(weights)
    return Tuned(tried[int(np.argmax(history))], tuple(history))


def _optimise(candidates: Candidates, starts: list[Floats], options: TuningOptions, rng: np.random.Generator) -> Floats:
    if options.method == "mira":
        return mira.optimise(candidates, starts[0], NUM_TUNED, rng)[0].copy()
    for _ in range(RANDOM_STARTS):
        drawn = starts[0].copy()
        drawn[:NUM_TUNED] = rng.uniform(0, 1, NUM_TUNED)
        drawn[:NUM_TUNED] /= drawn[:NUM_TUNED].sum()
        starts.append(drawn)
    return mert.optimise(candidates, starts, NUM_TUNED, rng, RANDOM_DIRECTIONS)[0].copy()


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
        """Add the translations of an iteration; return the number of those that are new."""
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
