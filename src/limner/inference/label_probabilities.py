"""Probabilities of the labels of decoded sentences of labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from limner.data.batching import bounded_batches
from limner.data.dataset import FeatureSource, GenerationInput
from limner.data.examples import Example, collate
from limner.decoding.sentence import Sentence
from limner.decoding.torch_models import mean_log_probs
from limner.models.protocols import device_of
from limner.runs.trained_model import TrainedModel
from limner.text.labels import Point, PredictedLabel, cell_centres

Probabilities = NDArray[np.float64]

LABEL_BATCH_SIZE = 64


@torch.no_grad()
def label_probabilities(
    models: Sequence[TrainedModel],
    inputs: Sequence[GenerationInput],
    hypotheses: Sequence[Sentence],
    features: FeatureSource | None,
    *,
    batch_size: int = LABEL_BATCH_SIZE,
) -> list[Probabilities]:
    """Compute P(y_t | x, y_1, ..., y_{t-1}) of every label at every step of decoded labels.

    Args:
        models: one model, or several whose probabilities are averaged, in evaluation mode.
        inputs: N inputs.
        hypotheses: decoded labels of each input, y_1, ..., y_T.
        features: features of the inputs; None for models that use none.
        batch_size: inputs a batch, fewer where they are long; it changes no result.

    Returns:
        Probabilities (T, V) of each input, special tokens included.
    """
    tokenizer, device = models[0].source_tokenizer, device_of(models[0].model)
    sources = [None if tokenizer is None else tokenizer.encode(one.source or "") for one in inputs]
    lengths = [max(len(ids or ()), len(one.tokens)) for ids, one in zip(sources, hypotheses, strict=True)]
    results: list[Probabilities] = [np.zeros((0, 0)) for _ in inputs]
    for rows in bounded_batches(sorted(range(len(inputs)), key=lengths.__getitem__), lengths, batch_size):
        items = [inputs[row].item for row in rows]
        images = features.take(items) if features is not None else [None] * len(items)
        examples = [
            Example(item.id, hypotheses[row].tokens, sources[row], image)
            for row, item, image in zip(rows, items, images, strict=True)
        ]
        batch = collate(examples).to(device)
        values = mean_log_probs([one.model(batch).logits for one in models]).double().exp().cpu().numpy()
        for row, own in zip(rows, values, strict=True):
            results[row] = own[: len(hypotheses[row].tokens)]
    return results


def predicted_labels(
    entries: Sequence[str], hypothesis: Sentence, probabilities: Probabilities
) -> list[PredictedLabel]:
    """Return the decoded labels with their probabilities.

    Args:
        entries: labels by token id.
        hypothesis: decoded labels, T tokens.
        probabilities: their probabilities, (T, V).
    """
    return [
        PredictedLabel(entries[token], float(row[token]))
        for token, row in zip(hypothesis.tokens, probabilities, strict=True)
    ]


def expected_point(entries: Sequence[str], probabilities: Probabilities) -> Point:
    """Compute the expected position: the mean of the cells' centres, weighted by their probabilities (V,)."""
    centres = cell_centres(entries)
    cells = np.isfinite(centres[:, 0])
    weights = probabilities[cells]
    x, y = (weights @ centres[cells] / max(weights.sum(), 1e-12)).tolist()
    return x, y


def all_labels(entries: Iterable[str], probabilities: Probabilities) -> list[PredictedLabel]:
    """Return all labels of one step with their probabilities (V,), the most probable first."""
    pairs = [PredictedLabel(label, float(value)) for label, value in zip(entries, probabilities, strict=True)]
    return sorted(pairs, key=lambda one: -one.probability)
