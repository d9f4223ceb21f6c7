"""Statistics of the image gate of translation models, as in Calixto et al. (2017), section 5.2."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from limner.data.dataset import FeatureSource, GenerationInput
from limner.decoding.sentence import Sentence
from limner.inference.explain import EXPLANATION_BATCH_SIZE, Explanation, explain
from limner.metrics.base import Score
from limner.progress import Progress
from limner.runs.evaluations import GateShare, GateStatistics
from limner.runs.trained_model import TrainedModel

THRESHOLDS = (0.5, 0.8)
"""Thresholds of the gate in Calixto et al. (2017), section 5.2."""


def gate_statistics(
    explanations: Iterable[Explanation], thresholds: Sequence[float] = THRESHOLDS
) -> GateStatistics | None:
    """Compute the mean gate, and the share of words whose gate exceeds each threshold, over all words and groups.

    The end-of-sentence token is not counted. None if no word has a gate: the model has none, or no sentence an image.
    """
    gates: dict[str, list[float]] = defaultdict(list)
    for explanation in explanations:
        if explanation.gate is not None:
            for word, gate in zip(explanation.words, explanation.gate[:-1].tolist(), strict=True):
                gates[word].append(gate)
    if not gates:
        return None
    counts = Counter({word: len(values) for word, values in gates.items()})
    groups = {"all words": list(gates), **_by_frequency(counts)}
    parts = []
    for name, words in groups.items():
        if words:
            values = np.array([gate for word in words for gate in gates[word]])
            above = tuple(float((values > threshold).mean()) for threshold in thresholds)
            parts.append(GateShare(part=name, words=len(values), mean=float(values.mean()), above=above))
    means = ((word, float(np.mean(of_word)), len(of_word)) for word, of_word in gates.items())
    ranked = sorted(means, key=lambda entry: (-entry[1], entry[0]))
    return GateStatistics(thresholds=tuple(thresholds), parts=tuple(parts), words=tuple(ranked))


def measure_gates(
    model: TrainedModel,
    inputs: Sequence[GenerationInput],
    hypotheses: Sequence[Sentence],
    features: FeatureSource | None,
    *,
    on_progress: Progress | None = None,
) -> GateStatistics | None:
    """Compute `gate_statistics` batch by batch, see `explain`; None without a gate (first batch) or image."""
    rows_with_image = [row for row, entry in enumerate(inputs) if entry.item.media_path is not None]

    def explanations() -> Iterator[Explanation]:
        for begin in range(0, len(rows_with_image), EXPLANATION_BATCH_SIZE):
            rows = rows_with_image[begin : begin + EXPLANATION_BATCH_SIZE]
            batch = explain(model, [inputs[row] for row in rows], [hypotheses[row] for row in rows], features)
            if all(explanation.gate is None for explanation in batch):
                return
            yield from batch
            if on_progress is not None:
                on_progress(begin + len(rows), len(rows_with_image))

    return gate_statistics(explanations())


def gate_scores(gates: GateStatistics) -> list[Score]:
    """Return the mean gate of all words and, in percent, the shares above the thresholds as scores."""
    words = gates.parts[0]
    counted = f"words:{words.words}"
    shares = zip(gates.thresholds, words.above, strict=True)
    return [
        Score("gate_mean", words.mean, counted),
        *(Score(f"gate_above_{threshold:g}", 100 * share, f"{counted}|scale:0-100") for threshold, share in shares),
    ]


def _by_frequency(counts: Counter[str]) -> dict[str, list[str]]:
    """Group words into thirds of all occurrences by frequency; equally frequent words are in one group."""
    names = ("frequent words", "medium-frequency words", "rare words")
    groups: dict[str, list[str]] = {name: [] for name in names}
    before, total = 0, counts.total()
    for count in sorted(set(counts.values()), reverse=True):
        words = [word for word in counts if counts[word] == count]
        groups[names[3 * before // total]] += words
        before += count * len(words)
    return groups
