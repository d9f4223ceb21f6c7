"""What a model says of a split under several conditions, and whether they differ by more than chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from limner.data.dataset import Examples, FeatureSource, GenerationInput
from limner.decoding.beam_search import DecodingSettings, Hypothesis
from limner.decoding.scoring import score_examples
from limner.diagnosis.records import Condition, Figure
from limner.evaluation.hypothesis_statistics import hypothesis_statistics
from limner.inference.generate import generate
from limner.metrics import perplexity
from limner.metrics.base import Statistics
from limner.metrics.significance import approximate_randomisation
from limner.progress import part_of
from limner.runs.trained_model import TrainedModel

PERPLEXITY = "perplexity"
"""Beside the metrics of sentences: that of the split's own sentences."""

Note = Callable[[str, int, int], None]


class Measure(NamedTuple):
    """What a metric counted under one condition."""

    name: str
    statistics: Statistics
    """Of every item, (N, k): what is said of one picture is no independent evidence, so it is dealt out as one."""
    value: Callable[[Statistics], float]
    signature: str = ""


class Shown(NamedTuple):
    """A condition, what the model said under it, and what that is worth."""

    name: str
    said: list[str]
    """Tokens joined by blanks, one for every sentence asked for."""
    measures: list[Measure]


@dataclass(frozen=True)
class Study:
    """A model, the split it is asked about, and how its answers are found, measured and compared."""

    model: TrainedModel
    examples: Examples
    asked: Sequence[GenerationInput]
    settings: DecodingSettings
    metrics: Sequence[str]
    """Names of sentence metrics, and `PERPLEXITY`."""
    trials: int
    seed: int
    note: Note

    def answers(
        self,
        what: str,
        pictures: FeatureSource | None,
        asked: Sequence[GenerationInput] | None = None,
        model: TrainedModel | None = None,
    ) -> list[Hypothesis]:
        """What the model says.

        Args:
            what: the part of the work, for the progress.
            pictures: what it is shown.
            asked: none for all that the study asks.
            model: none for the study's; or the same one reading otherwise.
        """
        found = generate(
            [model or self.model],
            self.asked if asked is None else asked,
            pictures,
            self.settings,
            on_progress=partial(self.note, f"answering, {what}"),
        )
        return [hypotheses[0] for hypotheses in found]

    def shown(self, name: str, best: Sequence[Hypothesis], asked: Sequence[GenerationInput] | None = None) -> Shown:
        """Measure what the model said; `asked` as of `answers`."""
        asked = self.asked if asked is None else asked
        tokenizer = self.model.tokenizer
        said = [tokenizer.decode(one.tokens) for one in best]
        wanted = [metric for metric in self.metrics if metric != PERPLEXITY]
        counted = hypothesis_statistics(tokenizer, best, asked, wanted)
        ids = [query.item.id for query in asked]
        how = f"|decoding:{self.settings.signature}"
        measures = [
            Measure(c.metric.name, by_item(c.statistics, ids), c.metric.value, c.signature + how) for c in counted
        ]
        return Shown(name, said, measures)

    def perplexity(self, pictures: FeatureSource | None) -> Measure:
        """Perplexity of the split's own sentences with some pictures."""
        skip = self.model.recipe.evaluation.skip_words
        examples = self.examples.with_features(pictures)
        scored = score_examples(self.model.model, examples, skip_words=skip)
        statistics = np.stack([scored.log_probs.double().numpy(), scored.words.double().numpy()], axis=1)
        ids = [examples.items[row].id for row in examples.owners]
        return Measure(PERPLEXITY, by_item(statistics, ids), _perplexity, scored.perplexity.signature)

    def compare(self, shown: Sequence[Shown], what: str) -> tuple[Condition, ...]:
        """Test each condition against the first.

        Args:
            shown: the conditions, of the same sentences.
            what: the part of the work, for the progress.
        """
        first, *others = shown
        before = {measure.name: measure for measure in first.measures}
        pairs = {other.name: [measure for measure in other.measures if measure.name in before] for other in others}
        total = self.trials * sum(map(len, pairs.values()))
        conditions = [Condition(name=first.name, figures=tuple(_figure(measure) for measure in first.measures))]
        done = 0
        for other in others:
            figures = []
            for measure in pairs[other.name]:
                found = approximate_randomisation(
                    [measure.statistics],
                    [before[measure.name].statistics],
                    measure.value,
                    trials=self.trials,
                    seed=self.seed,
                    progress=part_of(partial(self.note, f"testing, {what}"), done, total),
                )
                figures.append(Figure(metric=measure.name, value=found.a_mean, difference=found.difference, p=found.p))
                done += self.trials
            changed = np.mean([ours != theirs for ours, theirs in zip(first.said, other.said, strict=True)])
            conditions.append(Condition(name=other.name, figures=tuple(figures), changed=100 * float(changed)))
        return tuple(conditions)


def share(name: str, counts: Sequence[tuple[int, int]], asked: Sequence[GenerationInput]) -> Measure:
    """A percentage as a measure.

    Args:
        name: of the figure.
        counts: of every sentence asked for, how many there are and out of how many.
        asked: the sentences.
    """
    statistics = by_item(np.array(counts, dtype=np.float64), [query.item.id for query in asked])
    return Measure(name, statistics, _percentage)


def by_item(statistics: Statistics, ids: Sequence[str]) -> Statistics:
    """Statistics of sentences (M, k) as those of the items they are about (N, k), in order of appearance."""
    rows = {id: row for row, id in enumerate(dict.fromkeys(ids))}
    summed = np.zeros((len(rows), statistics.shape[1]))
    np.add.at(summed, [rows[id] for id in ids], statistics)
    return summed


def _figure(measure: Measure) -> Figure:
    return Figure(metric=measure.name, value=measure.value(measure.statistics.sum(axis=0)))


def _perplexity(totals: Statistics) -> float:
    return perplexity(float(totals[0]), int(totals[1])).value


def _percentage(totals: Statistics) -> float:
    return float(100 * totals[0] / totals[1])
