"""Decoded labels as texts with probabilities, which the metrics of labels read."""

from __future__ import annotations

from collections.abc import Sequence

from limner.data.dataset import FeatureSource, GenerationInput
from limner.decoding.hypotheses import Hypothesis
from limner.evaluation.hypothesis_statistics import Texts
from limner.inference.label_probabilities import label_probabilities, predicted_labels
from limner.runs.trained_model import TrainedModel
from limner.text.labels import LABEL_LANGUAGES, write_predictions


def label_texts(
    models: Sequence[TrainedModel],
    inputs: Sequence[GenerationInput],
    best: Sequence[Hypothesis],
    features: FeatureSource | None,
) -> Texts | None:
    """Write decoded labels with their probabilities and the right labels; None for models of sentences.

    Args:
        models: one model, or an ensemble, in evaluation mode.
        inputs: inputs with their references.
        best: decoded labels of each input.
        features: features of the inputs; None for models that use none.
    """
    if models[0].recipe.data.lang not in LABEL_LANGUAGES:
        return None
    entries = models[0].tokenizer.entries
    probabilities = label_probabilities(models, inputs, best, features)
    texts = [
        write_predictions(predicted_labels(entries, hypothesis, values))
        for hypothesis, values in zip(best, probabilities, strict=True)
    ]
    return texts, [one.references for one in inputs]
