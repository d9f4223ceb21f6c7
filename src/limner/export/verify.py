"""Comparison of graphs with the model that they were recorded from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from limner.errors import RunError
from limner.export.record import Recorded, batch_of, example_inputs
from limner.features.encoders.base import RecordableBackbone
from limner.features.spec import FeatureSpec
from limner.models import Model
from limner.runs.trained_model import TrainedModel
from limner.runtime.graphs import LOG_PROBS, NEXT, PIXELS, TOKENS, Graph
from limner.runtime.manifest import BACKBONE, ENCODER, STEP
from limner.text.vocab import SPECIAL_TOKENS

TOLERANCE = 1e-4
"""Largest difference of a log-probability, or of a feature relative to the largest one."""
_STEPS = 4
_LENGTHS = ((7,), (4, 4, 4, 4), (3, 6, 2, 1, 1))
"""Lengths of the source sentences of the batches that are compared, other than those of the recording."""


def verify_model(trained: TrainedModel, recorded: Recorded) -> float:
    """Compare the log-probabilities of several batches and steps.

    Returns:
        Largest difference.

    Raises:
        RunError: it is above `TOLERANCE`.
    """
    config = trained.config
    difference = largest_difference(trained.model, config.features, config.source_vocab_size, recorded)
    if not difference <= TOLERANCE:
        raise RunError(
            f"the graphs of model '{trained.recipe.model.name}' differ from it by {difference:.2g} in a "
            f"log-probability, expected at most {TOLERANCE:g}; please report this"
        )
    return difference


@torch.no_grad()
def largest_difference(
    model: Model, features: Sequence[FeatureSpec], source_vocab_size: int | None, recorded: Recorded
) -> float:
    """Compute the largest difference of a log-probability between the graphs and the model."""
    encoder, step = Graph(ENCODER, recorded.encoder), Graph(STEP, recorded.step)
    differences = []
    for lengths in _LENGTHS:
        inputs = example_inputs(features, source_vocab_size, lengths, all_present=len(set(lengths)) == 1)
        memory = model.encode(batch_of(inputs))
        state = model.start(memory)
        tensors = encoder({name: values.numpy() for name, values in inputs.items()})
        tokens = torch.full((len(lengths),), SPECIAL_TOKENS.bos)
        for number in range(_STEPS):
            logits, state = model.step(tokens, memory, state)
            results = step({TOKENS: tokens.numpy(), **tensors})
            tensors |= {name: results[NEXT + name] for name in recorded.state}
            differences.append(_largest(logits.log_softmax(-1), results[LOG_PROBS]))
            tokens = (tokens + number + torch.arange(len(tokens))) % model.vocab_size
    return max(differences)


def _largest(expected: Tensor, computed: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> float:
    """Return the largest difference; infinite values have to be equal."""
    values = expected.numpy()
    with np.errstate(invalid="ignore"):
        return float(np.where(values == computed, 0.0, np.abs(values - computed)).max())


def verify_backbone(backbone: RecordableBackbone, graph: bytes) -> None:
    """Compare the features of one image of noise.

    Raises:
        RunError: they differ by more than `TOLERANCE` of the largest one.
    """
    size, crops = backbone.preprocessing.size, backbone.preprocessing.crops
    pixels = np.random.default_rng(0).integers(0, 256, (1, crops, size, size, 3)).astype(np.uint8)
    with torch.no_grad():
        expected = backbone.compute(torch.from_numpy(pixels))
    computed = Graph(BACKBONE, graph)({PIXELS: pixels})
    for kind, values in expected.items():
        difference = _largest(values, computed[kind]) / max(1.0, float(values.abs().max()))
        if not difference <= TOLERANCE:
            raise RunError(f"the graph of the backbone differs from it by {difference:.2g}; please report this")
