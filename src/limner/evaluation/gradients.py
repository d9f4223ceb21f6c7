"""Gradients through time: the norm of the Jacobian of a model's state after t tokens by its state after k tokens.

Shapes: B batch, T target length, S size of the whole state, n size of one tensor of it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import computed_field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from limner.bounds import Count, Few
from limner.data.collection import Collection
from limner.data.dataset import Examples
from limner.data.examples import Batch
from limner.decoding.trees import flatten, rebuild
from limner.errors import SettingsError
from limner.evaluation.measurements import Measurement, MeasurementSettings
from limner.inference.features import open_features
from limner.models.phrase_based import PhraseBased
from limner.models.protocols import Model, device_of
from limner.models.sequence_labeller import SequenceLabeller
from limner.progress import StageProgress
from limner.runs.records import Record, provenance
from limner.runs.trained_model import TrainedModel
from limner.storage.outputs import name_or_default

WHOLE_STATE = "state"
BATCH_SIZE = 32


class GradientSettings(MeasurementSettings):
    """Scope of a measurement of gradients through time."""

    sentences: Count = 128
    """Maximum number of sentences, drawn at random."""
    probes: Few = 4
    """Number of random vectors for each tensor of the state; as many as the tensor has units give exact norms."""


class GradientCurve(Record):
    """Norm of a Jacobian by the distance between two states."""

    name: str
    """Tensor of the state, such as 'layers.0.state.cell', or 'state' for the whole state."""
    size: int
    norms: tuple[float, ...]
    """Root mean square over sentences and positions of the Frobenius norm divided by the square root of the size, for
    the distances 0, 1, 2, … in tokens; 1 for an identity."""


class ExponentialDecay(Record):
    """An exponential fitted to the norms of a curve."""

    factor: float
    """Factor λ per token."""
    first: int
    """Smallest distance that was fitted."""
    last: int
    """Largest distance that was fitted."""

    @property
    def distances(self) -> str:
        """Range of the distances."""
        return f"{self.first}–{self.last}"

    def __str__(self) -> str:
        return f"λ {self.factor:.3f} at {self.distances}"


def fit_decay(norms: Sequence[float], pairs: Sequence[int]) -> ExponentialDecay | None:
    """Fit a multiple of λ^d to the norms at the distances d from 1 on, by least squares of their logarithms.

    The squared errors are weighted by the number of pairs of positions: few sentences reach the largest distances. Both
    sequences are by distance from 0 on; norms of zero are left out. None without positive norms at two distances.
    """
    fitted = [d for d, (norm, count) in enumerate(zip(norms, pairs, strict=True)) if d and norm > 0 and count]
    if len(fitted) < 2:
        return None
    weights = np.sqrt([pairs[distance] for distance in fitted])  # polyfit multiplies the errors by them
    slope = np.polyfit(fitted, np.log([norms[distance] for distance in fitted]), 1, w=weights)[0]
    return ExponentialDecay(factor=math.exp(float(slope)), first=fitted[0], last=fitted[-1])


class GradientNorms(Measurement):
    """The results of one `limner gradients` on one model and split."""

    folder = "gradients"
    pairs: tuple[int, ...]
    """Number of pairs of positions at each distance."""
    curves: tuple[GradientCurve, ...]
    """The whole state first, then each of its tensors if there are several."""
    probes: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def decays(self) -> dict[str, ExponentialDecay]:
        """Exponentials fitted to the curves, by name; without curves that have fewer than two positive norms."""
        fitted = {curve.name: fit_decay(curve.norms, self.pairs) for curve in self.curves}
        return {name: decay for name, decay in fitted.items() if decay is not None}

    def label(self, curve: GradientCurve, name: str | None = None) -> str:
        """Label a curve in a plot by `name`, by default the name of the curve, and its decay."""
        decay = self.decays.get(curve.name)
        return f"{name or curve.name}{'' if decay is None else f' ({decay})'}"


class SquaredNorms(NamedTuple):
    """Squared Frobenius norms of the Jacobians of a batch, summed over sentences and positions."""

    sizes: dict[str, int]  # n by tensor
    whole: Tensor  # (T + 1,) by distance
    blocks: dict[str, Tensor]  # (T + 1,) by distance; each tensor by its own earlier value
    pairs: Tensor  # (T + 1,) number of summands


def measure_gradients(
    model: TrainedModel,
    collection: Collection,
    *,
    settings: GradientSettings | None = None,
    command: str = "limner.measure_gradients",
    on_progress: StageProgress | None = None,
) -> GradientNorms:
    """Measure how the gradient vanishes or explodes with the distance in a model with a recurrent state."""
    began, settings = time.perf_counter(), settings or GradientSettings()
    split = name_or_default(settings.split, model.recipe.data.val, "the split")
    examples = Examples.of_split(
        collection,
        split,
        model.target,
        open_features(model, collection),
        source=model.source,
        max_tokens=model.recipe.data.max_tokens,
        leave_out=settings.leave_out,
    )
    rows = random.Random(settings.seed).sample(range(len(examples)), min(settings.sentences, len(examples)))
    rows.sort(key=lambda row: len(examples.targets[row]))  # little padding
    generator = torch.Generator().manual_seed(settings.seed)
    device, measured = device_of(model.model), []
    for begin in range(0, len(rows), BATCH_SIZE):
        if on_progress is not None:
            on_progress("gradients", begin, len(rows))
        batch = examples.batch(rows[begin : begin + BATCH_SIZE]).to(device)
        measured.append(squared_norms(model.model, batch, settings.probes, generator))
    pairs = _add([norms.pairs for norms in measured])
    return GradientNorms(
        split=split,
        sentences=len(rows),
        pairs=tuple(int(count) for count in pairs),
        curves=tuple(_curves(measured, pairs)),
        **settings.model_dump(include={"probes", "seed"}),
        **provenance(collection, command, began),
    )


def _curves(measured: Sequence[SquaredNorms], pairs: Tensor) -> Iterator[GradientCurve]:
    """Compute the curves of the whole state and of its tensors from the sums of all batches."""
    sizes = measured[0].sizes

    def curve(name: str, size: int, sums: list[Tensor]) -> GradientCurve:
        norms = (_add(sums) / (size * pairs)).sqrt()
        return GradientCurve(name=name, size=size, norms=tuple(norms.tolist()))

    yield curve(WHOLE_STATE, sum(sizes.values()), [norms.whole for norms in measured])
    if len(sizes) > 1:
        for name, size in sizes.items():
            yield curve(name, size, [norms.blocks[name] for norms in measured])


def _add(sums: Sequence[Tensor]) -> Tensor:
    """Add vectors of different lengths."""
    return pad_sequence(list(sums)).sum(1)


def squared_norms(model: Model, batch: Batch, probes: int, generator: torch.Generator) -> SquaredNorms:
    """Compute the squared Frobenius norms of the Jacobians d s_t / d s_k of a batch, for all k <= t.

    s_t is the state after t tokens, as `start` and `step` return it. Since E |v' J|^2 = |J|_F^2 for a vector v of
    random signs, one backward pass from s_t estimates the norms for all k at once (Hutchinson, 1990). With as many
    probes as a tensor has units, the unit vectors give the exact norms.
    """
    states, lengths = _states(model, batch), batch.target_mask.sum(1)
    steps = len(states) - 1
    sizes = {name: part[0].numel() for name, part in states[0].items()}
    whole = torch.zeros(steps + 1, dtype=torch.float64)
    blocks = {name: torch.zeros_like(whole) for name in sizes}
    pairs = torch.zeros_like(whole)
    for t in range(steps + 1):
        valid = (lengths >= t).cpu()
        pairs[: t + 1] += valid.sum()
        whole[0] += valid.sum() * sum(sizes.values())
        for name, size in sizes.items():
            blocks[name][0] += valid.sum() * size
            if t == 0:
                continue
            of_block, of_state = _row_norms(states[: t + 1], name, probes, generator)
            blocks[name][1 : t + 1] += of_block[:, valid].sum(1)
            whole[1 : t + 1] += of_state[:, valid].sum(1)
    return SquaredNorms(sizes, whole, blocks, pairs)


def _row_norms(
    states: Sequence[dict[str, Tensor]], name: str, probes: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Estimate the squared norms of the rows of the Jacobian that belong to one tensor of the last state s_t.

    The squared norms of the derivatives by the same tensor and by the whole state are (t, B) each, for k = t - 1 … 0.
    """
    output, inputs = states[-1][name], [part for state in states[-2::-1] for part in state.values()]
    of_block = torch.zeros(len(states) - 1, len(output), dtype=torch.float64)
    of_state = torch.zeros_like(of_block)
    place, count = list(states[0]).index(name), len(states[0])
    for vector in _probes(output, probes, generator):
        gradients = torch.autograd.grad(output, inputs, vector, retain_graph=True, allow_unused=True)
        for index, gradient in enumerate(gradients):
            if gradient is None:
                continue
            squares = gradient.flatten(1).double().square().sum(1).cpu()
            of_state[index // count] += squares
            if index % count == place:
                of_block[index // count] += squares
    return of_block, of_state


def _probes(output: Tensor, probes: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Return vectors (B, …) with sum_i v_i v_i' = 1: all unit vectors, or the mean of random signs."""
    size = output[0].numel()
    if probes >= size:
        for unit in torch.eye(size, dtype=output.dtype, device=output.device):
            yield unit.view(1, *output.shape[1:]).expand_as(output)
        return
    for _ in range(probes):
        signs = torch.randint(0, 2, output.shape, generator=generator).to(output) * 2 - 1
        yield signs / math.sqrt(probes)


def _states(model: Model, batch: Batch) -> list[dict[str, Tensor]]:
    """Run a model over a batch; return its states s_0 … s_T by name, each as independent inputs of the next step."""
    training = model.training
    model.eval()
    parts: dict[str, Tensor] = {}
    if not isinstance(model, PhraseBased):
        with torch.no_grad():
            memory = model.encode(batch)
            state = model.start(memory)
        parts = {name: part.clone().requires_grad_() for name, part in _real_tensors(state).items()}
    if not parts and isinstance(model, SequenceLabeller):
        raise SettingsError(
            "labellers read the whole sequence at once and are not supported; use 'lecture/rnn' or another generator"
        )
    if not parts:
        raise SettingsError(
            "this model has no recurrent state of real numbers, so no gradient passes through its state; expected a "
            "recurrent model, such as 'rnn', 'mrnn' or 'nmt'"
        )
    states = [parts]
    with torch.enable_grad():
        for tokens in batch.target_in.unbind(1):
            _, state = model.step(tokens, memory, rebuild(state, "", flatten(state, "") | parts))
            # A copy of each tensor: derivatives by it hold the others of the same state constant.
            parts = {name: part.clone() for name, part in _real_tensors(state).items()}
            states.append(parts)
    model.train(training)
    return states


def _real_tensors(state: Any) -> dict[str, Tensor]:  # noqa: ANN401
    """Return the tensors of real numbers of a state, by the names of the fields that lead to them."""
    return {name: tensor for name, tensor in flatten(state, "").items() if tensor.is_floating_point()}
