"""Comparison of graphs with the model that they were recorded from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from limner.apps.export.record import Recorded, batch_of, example_inputs
from limner.errors import RunError
from limner.features.encoders.base import RecordableBackbone
from limner.features.spec import FeatureSpec
from limner.models import Model
from limner.runs.trained_model import TrainedModel
from limner.runtime.graphs import LOG_PROBS, NEXT, PIXELS, TOKENS, Graph
from limner.runtime.manifest import BACKBONE, ENCODER, STEP
from limner.text.vocab import SPECIAL_TOKENS

TOLERANCE = 1e-4
"""Largest difference of a log-probability that is allowed, or of a feature relative to the largest one."""
RELATIVE_TOLERANCE = 1e-5
"""What is allowed besides, relative to the largest log-probability of the same distribution, which float32 rounds."""
_STEPS = 4
_LENGTHS = ((7,), (4, 4, 4, 4), (3, 6, 2, 1, 1))
"""Lengths of the source sentences of the batches that are compared, other than those of the recording."""


class Difference(NamedTuple):
    """Difference of a log-probability."""

    value: float
    """Absolute difference; infinite where only one of the two is finite."""
    scale: float
    """Largest absolute log-probability of the distribution."""

    @property
    def allowed(self) -> float:
        """Difference that rounding explains."""
        return TOLERANCE + RELATIVE_TOLERANCE * self.scale


def verify_model(trained: TrainedModel, recorded: Recorded) -> float:
    """Compare the log-probabilities of several batches and steps.

    Returns:
        The difference that is the largest in proportion to the allowed one.

    Raises:
        RunError: it is above `TOLERANCE` + `RELATIVE_TOLERANCE` times the largest log-probability of its distribution.
    """
    config = trained.config
    difference = largest_difference(trained.model, config.features, config.source_vocab_size, recorded)
    if difference.value > difference.allowed:
        raise RunError(
            f"the graphs of model '{trained.recipe.model.name}' differ from it by {difference.value:.2g} in a "
            f"log-probability, expected at most {difference.allowed:.2g} ({TOLERANCE:g}, and {RELATIVE_TOLERANCE:g} of "
            f"the largest log-probability of its distribution, {difference.scale:.3g}); please report this"
        )
    return difference.value


@torch.no_grad()
def largest_difference(
    model: Model, features: Sequence[FeatureSpec], source_vocab_size: int | None, recorded: Recorded
) -> Difference:
    """Compute the difference between the graphs and the model that is the largest in proportion to the allowed one."""
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
            for expected, computed in zip(logits.log_softmax(-1).numpy(), results[LOG_PROBS], strict=True):
                scale = np.abs(expected, where=np.isfinite(expected), out=np.zeros_like(expected)).max()
                differences.append(Difference(_largest(expected, computed), float(scale)))
            tokens = (tokens + number + torch.arange(len(tokens))) % model.vocab_size
    return max(differences, key=lambda difference: difference.value / difference.allowed)


def _largest(expected: NDArray[np.float32], computed: NDArray[np.float32]) -> float:
    """Return the largest difference; values that are infinite or not numbers have to be equal."""
    with np.errstate(invalid="ignore"):
        differences = np.where(expected == computed, 0.0, np.abs(expected - computed))
    return float(np.where(np.isnan(differences), np.inf, differences).max())


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
        difference = _largest(values.numpy(), computed[kind]) / max(1.0, float(values.abs().max()))
        if not difference <= TOLERANCE:
            raise RunError(f"the graph of the backbone differs from it by {difference:.2g}; please report this")
