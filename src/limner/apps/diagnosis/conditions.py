"""Generation, measurement and significance tests of one model under several input conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import AfterValidator

from limner.bounds import Count
from limner.data.dataset import Examples, FeatureSource, GenerationInput
from limner.decoding.scoring import score_examples
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings
from limner.evaluation.measurements import ConditionResult, ConditionScore, MeasurementSettings
from limner.evaluation.validate import Hypotheses
from limner.inference.generate import generate
from limner.metrics import perplexity
from limner.metrics.base import Statistics, percentage
from limner.metrics.significance import TRIALS, approximate_randomisation, check_trials
from limner.progress import StageProgress, offset_progress
from limner.runs.trained_model import TrainedModel

PERPLEXITY = "perplexity"
"""Name of the perplexity of the references, which may be requested beside the sentence metrics."""


class DiagnosisSettings(MeasurementSettings):
    """Scope of a diagnosis: the split, the metrics and the optional experiments."""

    decoding: DecodingSettings | None = None
    """Decoding settings; None for the settings of the model's recipe."""
    metrics: tuple[str, ...] = ("bleu4", "chrf3", "ter", PERPLEXITY)
    """Names of sentence metrics, or 'perplexity'; the verdict uses the first. The default needs neither an extra nor
    Java."""
    masks: tuple[str, ...] = ()
    """Source masks of a translation model, see `create_mask`."""
    trials: Annotated[Count, AfterValidator(check_trials)] = TRIALS
    """Number of trials of each approximate randomisation test."""


class ItemStatistics(NamedTuple):
    """The statistics of one metric for every item under one condition."""

    metric: str
    statistics: Statistics
    """(N, k), one row for each item: sentences of the same image are not independent, so that the significance test
    exchanges them together."""
    value: Callable[[Statistics], float]  # function from the summed statistics (k,) to the value of the metric
    signature: str = ""


class ConditionOutput(NamedTuple):
    """The hypotheses of a model under one condition and their statistics."""

    name: str
    hypotheses: list[str]  # one tokenised hypothesis for each input
    metrics: list[ItemStatistics]


@dataclass(frozen=True)
class ConditionComparison:
    """A comparison of one model on one split under several conditions."""

    model: TrainedModel
    examples: Examples
    inputs: Sequence[GenerationInput]
    decoding: DecodingSettings
    settings: DiagnosisSettings
    on_progress: StageProgress

    def generate(
        self,
        stage: str,
        features: FeatureSource | None,
        inputs: Sequence[GenerationInput] | None = None,
        model: TrainedModel | None = None,
    ) -> list[Sentence]:
        """Generate the best hypothesis for each input, by default with the model and the inputs of the comparison."""
        models, inputs = [model or self.model], self.inputs if inputs is None else inputs
        show = partial(self.on_progress, f"generating, {stage}")
        return [best for best, *_ in generate(models, inputs, features, self.decoding, on_progress=show)]

    def measure(
        self, name: str, best: Sequence[Sentence], inputs: Sequence[GenerationInput] | None = None
    ) -> ConditionOutput:
        """Compute the statistics of the sentence metrics."""
        inputs = self.inputs if inputs is None else inputs
        sentence_metrics = [metric for metric in self.settings.metrics if metric != PERPLEXITY]
        ids = [entry.item.id for entry in inputs]
        hypotheses = Hypotheses.decoded([self.model], inputs, best, None)
        decoding = f"|decoding:{self.decoding.signature}"
        metrics = [
            ItemStatistics(metric.name, sum_by_item(statistics, ids), metric.value, signature + decoding)
            for metric, statistics, signature in hypotheses.statistics(sentence_metrics)
        ]
        return ConditionOutput(name, hypotheses.tokens, metrics)

    def perplexity(self, features: FeatureSource | None) -> ItemStatistics:
        """Compute the perplexity of the references given some image features."""
        skip = self.model.recipe.evaluation.skip_words
        examples = self.examples.with_features(features)
        scored = score_examples(self.model.model, examples, skip_words=skip)
        statistics = np.stack([scored.log_probs.double().numpy(), scored.tokens.double().numpy()], axis=1)
        summed = sum_by_item(statistics, [examples.items[row].id for row in examples.owners])

        def value(totals: Statistics) -> float:
            return perplexity(float(totals[0]), int(totals[1])).value

        return ItemStatistics(PERPLEXITY, summed, value, scored.perplexity.signature)

    def compare(self, outputs: Sequence[ConditionOutput], stage: str) -> tuple[ConditionResult, ...]:
        """Test the difference between each condition and the first one by approximate randomisation."""
        reference, *variants = outputs
        baseline = {metric.metric: metric for metric in reference.metrics}
        tested = {
            variant.name: [metric for metric in variant.metrics if metric.metric in baseline] for variant in variants
        }
        trials, seed = self.settings.trials, self.settings.seed
        total = trials * sum(map(len, tested.values()))
        values = {metric.metric: metric.value(metric.statistics.sum(axis=0)) for metric in reference.metrics}
        scores = tuple(ConditionScore(metric=name, value=value) for name, value in values.items())
        results = [ConditionResult(name=reference.name, scores=scores)]
        done = 0
        for variant in variants:
            tests = []
            for name, statistics, value, _ in tested[variant.name]:
                shown = offset_progress(partial(self.on_progress, f"testing, {stage}"), done, total)
                test = approximate_randomisation(
                    statistics, baseline[name].statistics, value, trials=trials, seed=seed, on_progress=shown
                )
                tests.append(ConditionScore(metric=name, value=test.value, difference=test.difference, p=test.p))
                done += trials
            differs = [ours != theirs for ours, theirs in zip(reference.hypotheses, variant.hypotheses, strict=True)]
            changed = 100 * float(np.mean(differs))
            results.append(ConditionResult(name=variant.name, scores=tuple(tests), changed=changed))
        return tuple(results)


def item_percentage(name: str, counts: Sequence[tuple[int, int]], inputs: Sequence[GenerationInput]) -> ItemStatistics:
    """A percentage as a metric; `counts` are the numerator and the denominator of each input."""
    statistics = sum_by_item(np.array(counts, dtype=np.float64), [entry.item.id for entry in inputs])
    return ItemStatistics(name, statistics, percentage)


def sum_by_item(statistics: Statistics, ids: Sequence[str]) -> Statistics:
    """Sum statistics of sentences (M, k) over the sentences of each item: (N, k), items in order of appearance."""
    rows = {id: row for row, id in enumerate(dict.fromkeys(ids))}
    summed = np.zeros((len(rows), statistics.shape[1]))
    np.add.at(summed, [rows[id] for id in ids], statistics)
    return summed
