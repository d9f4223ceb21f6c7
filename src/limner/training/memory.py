"""Estimate of the memory of a training, compared with what is available before the first step."""

from __future__ import annotations

from typing import NamedTuple, cast

from torch import nn

from limner.data.dataset import Examples
from limner.models import Model
from limner.process import available_memory, require_memory, training_device
from limner.runs.recipe import Recipe
from limner.runs.training_settings import SGDSettings, TrainingSettings
from limner.training.launch import ONE_DEVICE, Devices

NUMBER_BYTES = 4
"""Bytes of a weight, a gradient or an activation in float32."""
LOGIT_TENSORS = 2
"""Tensors of the size of the logits in a step: the logits and their gradient."""


class TrainingMemory(NamedTuple):
    """Memory of a training in bytes, besides the weights; rather too low than too high."""

    states: int
    """Gradients, moments of the optimizer and the moving average of the weights."""
    batch: int
    """Logits and hidden layers of a batch, with their gradients."""


def estimate_memory(model: Model, settings: TrainingSettings, examples: Examples) -> TrainingMemory:
    """Estimate the memory that the steps of a training need.

    Each weight matrix writes its rows once for each position of the sentences; a table of the size of a vocabulary is
    an embedding, or computes the logits. Activations of convolutions are not counted.
    """
    parameters = list(cast(nn.Module, model).parameters())
    weights = NUMBER_BYTES * sum(parameter.numel() for parameter in parameters)
    moments = int(settings.optimizer.momentum > 0) if isinstance(settings.optimizer, SGDSettings) else 2
    matrices = [parameter.shape for parameter in parameters if parameter.dim() == 2]
    vocabularies = {model.vocab_size, *(() if examples.source is None else (len(examples.source.tokenizer),))}
    widths = sum(min(rows, columns) if rows in vocabularies else rows for rows, columns in matrices)
    rows = min(settings.batch_size, len(examples))
    if settings.objective == "scst":
        rows *= settings.scst.samples
    tokens = rows * (1 + sum(map(len, examples.targets)) // max(1, len(examples)))
    batch = NUMBER_BYTES * tokens * (LOGIT_TENSORS * model.vocab_size + widths)
    return TrainingMemory(weights * (1 + moments + (settings.ema_decay > 0)), batch)


def require_training_memory(model: Model, recipe: Recipe, examples: Examples, devices: Devices = ONE_DEVICE) -> None:
    """Check that the memory of a training is available on its devices; processes on one CPU share its memory.

    Raises:
        ResourceError: it is not; names the setting that needs most of it.
    """
    needed = estimate_memory(model, recipe.training, examples)
    remedy = f"lower training.batch_size ({recipe.training.batch_size:,})"
    if needed.states > needed.batch:
        sizes = {name: value for name, value in recipe.model if type(value) is int}
        name = max(sizes, key=sizes.__getitem__, default=None)
        remedy = "lower the sizes of the model (model.*)" if name is None else f"lower model.{name} ({sizes[name]:,})"
    device = training_device(devices.device)
    sharing = devices.per_machine if device.type == "cpu" else 1
    total = sharing * (needed.states + needed.batch // devices.total)
    require_memory(total, "training", remedy, available_memory(device))
