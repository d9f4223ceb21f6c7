"""Estimate of the memory of a training, compared with what is available before the first step."""

from __future__ import annotations

from typing import NamedTuple, cast

from torch import nn

from limner.data.dataset import Examples
from limner.device import training_device
from limner.models import Model, largest_size
from limner.process import available_memory, require_memory
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


def weight_copies(settings: TrainingSettings, devices: Devices = ONE_DEVICE) -> int:
    """Return the number of tensors of the size of the weights that the memory of the machine must hold.

    Those of a training: weights, gradients, moments and moving average of every process. On a GPU all but the initial
    weights are in its own memory.
    """
    on_cpu = training_device(devices.device).type == "cpu"
    return devices.per_machine * (1 + (_further_copies(settings) if on_cpu else 0))


def _further_copies(settings: TrainingSettings) -> int:
    """Return the number of tensors of the size of the weights besides these."""
    moments = int(settings.optimizer.momentum > 0) if isinstance(settings.optimizer, SGDSettings) else 2
    return 1 + moments + (settings.ema_decay > 0)


def estimate_memory(model: Model, settings: TrainingSettings, examples: Examples) -> TrainingMemory:
    """Estimate the memory that the steps of a training need.

    Each weight matrix writes its rows once for each position of the sentences; a table of the size of a vocabulary is
    an embedding, or computes the logits. Activations of convolutions are not counted.

    Args:
        model: model whose weights exist.
        settings: settings of the training.
        examples: training examples, whose mean length is that of a batch.
    """
    parameters = list(cast(nn.Module, model).parameters())
    weights = NUMBER_BYTES * sum(one.numel() for one in parameters)
    matrices = [one.shape for one in parameters if one.dim() == 2]
    vocabularies = {model.vocab_size, *(() if examples.source is None else (len(examples.source.tokenizer),))}
    widths = sum(min(rows, columns) if rows in vocabularies else rows for rows, columns in matrices)
    rows = min(settings.batch_size, len(examples))
    if settings.objective == "scst":
        rows *= settings.scst.samples
    tokens = rows * (1 + sum(map(len, examples.targets)) // max(1, len(examples)))
    batch = NUMBER_BYTES * tokens * (LOGIT_TENSORS * model.vocab_size + widths)
    return TrainingMemory(weights * _further_copies(settings), batch)


def require_training_memory(model: Model, recipe: Recipe, examples: Examples, devices: Devices = ONE_DEVICE) -> None:
    """Check that the memory of a training is available on its devices; processes on one CPU share its memory.

    Raises:
        ResourceError: it is not; names the setting that needs most of it.
    """
    settings = recipe.training
    needed = estimate_memory(model, settings, examples)
    remedy = f"lower training.batch_size ({settings.batch_size:,})"
    if needed.states > needed.batch:
        remedy = f"lower {largest_size(recipe.model)}"
    device = training_device(devices.device)
    sharing = devices.per_machine if device.type == "cpu" else 1
    total = sharing * (needed.states + needed.batch // devices.total)
    require_memory(total, "training", remedy, available_memory(device))
