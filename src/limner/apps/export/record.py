"""Recording of a model as graphs, the encoder with the first state and one step, and their comparison with the model.

The graphs have one row of the memory for each hypothesis, and are independent of beams. The recorded example has
sentences of several lengths, an example without an image, and padding in its grid.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from limner.data.examples import Batch, Example, ImageFeatures, StoredFeatures, collate
from limner.decoding.torch_models import select
from limner.decoding.trees import flatten, rebuild
from limner.errors import RunError
from limner.features.encoders.base import RecordableBackbone
from limner.features.spec import FeatureSpec
from limner.files import read_bytes
from limner.layers.functional import exporting
from limner.layers.image_encoder import COLOURS
from limner.models import Model
from limner.runs.trained_model import TrainedModel
from limner.runtime.graphs import LOG_PROBS, NEXT, PIXELS, TOKENS, Graph
from limner.runtime.manifest import BACKBONE, ENCODER, STEP
from limner.text.vocab import SPECIAL_TOKENS

OPSET = 17  # version of the operators of ONNX that the graphs use
MEMORY, STATE = "memory", "state"  # first parts of the names of their tensors
TOLERANCE = 1e-4  # largest difference of a log-probability that is allowed, or of a feature relative to the largest one
RELATIVE_TOLERANCE = 1e-5
"""Additional tolerance for the rounding of float32, relative to the largest log-probability of the distribution."""
_STEPS = 4
_LENGTHS = {2: (7,), 1: (4, 4, 4, 4), 3: (3, 6, 2, 1, 1)}
"""Lengths of the source sentences of the compared batches, by the number K of hypotheses of an example; they differ
from the recorded lengths."""


ShapesByName = dict[str, tuple[torch.dtype, tuple[int | None, ...]]]
"""Type and shape of tensors by name; None for axes whose size depends on the input."""


class RecordedGraphs(NamedTuple):
    """Graphs of a model, and the shapes of the tensors between them."""

    encoder: bytes
    step: bytes
    memory: ShapesByName  # tensors that are constant while a sentence is generated
    state: ShapesByName  # tensors that each step replaces


class _Encoder(nn.Module):
    """The encoder and the first state as a function of named tensors."""

    def __init__(self, model: Model, inputs: Sequence[str]) -> None:
        super().__init__()
        self.model, self.inputs = model, tuple(inputs)
        self.kept: tuple[str, ...] | None = None

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        memory = self.model.encode(batch_of(dict(zip(self.inputs, values, strict=True))))
        tensors = flatten(memory, MEMORY) | flatten(self.model.start(memory), STATE)
        return tuple(tensors.values()) if self.kept is None else tuple(tensors[name] for name in self.kept)


class _Step(nn.Module):
    """One step as a function of named tensors, with log-probabilities in place of logits."""

    def __init__(self, model: Model, memory: Any, state: Any, inputs: Sequence[str]) -> None:  # noqa: ANN401
        super().__init__()
        self.model, self.memory, self.state, self.inputs = model, memory, state, tuple(inputs)

    def forward(self, tokens: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        tensors = dict(zip(self.inputs, values, strict=True))
        memory, state = rebuild(self.memory, MEMORY, tensors), rebuild(self.state, STATE, tensors)
        logits, after = self.model.step(tokens, memory, state)
        return logits.log_softmax(-1), *flatten(after, STATE).values()


class _Backbone(nn.Module):
    def __init__(self, backbone: RecordableBackbone) -> None:
        super().__init__()
        self.backbone, self.module = backbone, backbone.module

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.backbone.compute(pixels).values())


def record_model(
    model: Model, features: Sequence[FeatureSpec], source_vocab_size: int | None, *, fold: bool = True
) -> RecordedGraphs:
    """Record the encoder and the step of a model in evaluation mode.

    With `fold`, operations on weights alone are computed; otherwise the weights keep their names.
    """
    examples = [example_inputs(features, source_vocab_size, lengths) for lengths in ((3, 1, 5), (2, 4))]
    with exporting(), torch.no_grad():
        memories = [model.encode(batch_of(inputs)) for inputs in examples]
        states = [model.start(memory) for memory in memories]
        memory, state = (
            {name: _spec(tensor, flatten(trees[1], kind)[name]) for name, tensor in flatten(trees[0], kind).items()}
            for trees, kind in ((memories, MEMORY), (states, STATE))
        )
        tensors = flatten(memories[0], MEMORY) | flatten(states[0], STATE)
        hypotheses = {name: tensor.repeat_interleave(2, 0) for name, tensor in flatten(states[0], STATE).items()}
        step_names = {TOKENS: torch.full((6,), SPECIAL_TOKENS.bos), **tensors, **hypotheses}
        outputs = [LOG_PROBS, *(NEXT + name for name in state)]
        step = _export(_Step(model, memories[0], states[0], list(tensors)), step_names, outputs, fold)
        read = graph_inputs(step)
        memory = {name: spec for name, spec in memory.items() if name in read}
        encoder = _Encoder(model, list(examples[0]))
        encoder.kept = (*memory, *state)
        return RecordedGraphs(_export(encoder, examples[0], encoder.kept, fold), step, memory, state)


def record_backbone(backbone: RecordableBackbone) -> bytes:
    """Record a backbone, from pixels to features; its convolutions keep the names of their weights."""
    size, crops = backbone.preprocessing.size, backbone.preprocessing.crops
    pixels = torch.randint(256, (2, crops, size, size, 3), dtype=torch.uint8)
    with exporting(), torch.no_grad():
        return _export(_Backbone(backbone), {PIXELS: pixels}, [spec.kind for spec in backbone.specs], fold=True)


def batch_of(inputs: Mapping[str, Tensor]) -> Batch:
    """Make a batch of the inputs of an encoder graph."""
    present = inputs["present"]
    image = ImageFeatures(present, *(inputs.get(kind) for kind in ("pooled", "grid", "maps")))
    target = torch.full((len(present), 1), SPECIAL_TOKENS.bos)
    ids = ("",) * len(present)
    return Batch(ids, image, target, target, target > 0, inputs.get("source"), inputs.get("source_mask"))


def example_inputs(
    features: Sequence[FeatureSpec], source_vocab_size: int | None, lengths: Sequence[int], *, all_present: bool = False
) -> dict[str, Tensor]:
    """Draw inputs of an encoder graph; the second example has no image unless `all_present`.

    `lengths` are the lengths of the source sentences, one for each example.
    """
    random = np.random.default_rng(sum(lengths))
    examples = []
    for number, length in enumerate(lengths):
        image: StoredFeatures = {spec.kind: _example_features(spec, random) for spec in features}
        source = None if source_vocab_size is None else random.integers(SPECIAL_TOKENS.unk, source_vocab_size, length)
        present = image if number != 1 or all_present else None
        examples.append(Example(str(number), (), None if source is None else source.tolist(), present))
    batch = collate(examples)
    inputs: dict[str, Tensor | None] = {
        **batch.image._asdict(),
        "source": batch.source,
        "source_mask": batch.source_mask,
    }
    return {name: values for name, values in inputs.items() if values is not None}


def _example_features(spec: FeatureSpec, random: np.random.Generator) -> np.ndarray[Any, Any]:
    if spec.kind == "maps" and spec.shape[-3] == COLOURS:
        return random.integers(0, 256, spec.shape).astype(np.float32)
    values = random.normal(size=spec.shape).astype(np.float32)
    if spec.kind == "grid" and len(values) > 1:
        values[-1] = 0  # padding, as in tables of regions and of frames
    return values


def _spec(first: Tensor, second: Tensor) -> tuple[torch.dtype, tuple[int | None, ...]]:
    """Type and shape of a tensor; None for axes whose sizes differ between two batches."""
    pairs = zip(first.shape, second.shape, strict=True)
    return first.dtype, tuple(a if a == b else None for a, b in pairs)


def _export(module: nn.Module, inputs: Mapping[str, Tensor], outputs: Sequence[str], fold: bool) -> bytes:
    """Record a module; all axes of its inputs and outputs whose sizes may differ are dynamic."""
    axes = {name: {axis: f"{name}.{axis}" for axis in range(values.dim())} for name, values in inputs.items()}
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # about sizes that become constants, which `exporting` takes care of
        file = Path(folder) / "graph.onnx"
        torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            file,
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=OPSET,
            dynamic_axes=axes,
            dynamo=False,
            do_constant_folding=fold,
        )
        return read_bytes(file)


def graph_inputs(graph: bytes) -> set[str]:
    """Return the names of the inputs that a graph reads."""
    import onnx

    return {entry.name for entry in onnx.load_model_from_string(graph).graph.input}


class Difference(NamedTuple):
    """Difference of a log-probability."""

    value: float  # absolute difference; infinite where only one of the two is finite
    scale: float  # largest absolute log-probability of the distribution

    @property
    def allowed(self) -> float:
        """Difference that rounding explains."""
        return TOLERANCE + RELATIVE_TOLERANCE * self.scale


def verify_model(trained: TrainedModel, recorded: RecordedGraphs) -> float:
    """Compare the log-probabilities of several batches and steps.

    Return the largest difference relative to the allowed difference, `TOLERANCE` + `RELATIVE_TOLERANCE` times the
    largest log-probability of the distribution; RunError if it is above.
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
    model: Model, features: Sequence[FeatureSpec], source_vocab_size: int | None, recorded: RecordedGraphs
) -> Difference:
    """Compute the largest difference between the graphs and the model, relative to the allowed difference."""
    encoder, step = Graph(ENCODER, recorded.encoder), Graph(STEP, recorded.step)
    differences = []
    for width, lengths in _LENGTHS.items():
        inputs = example_inputs(features, source_vocab_size, lengths, all_present=len(set(lengths)) == 1)
        memory = model.encode(batch_of(inputs))
        state = model.start(memory)
        tensors = encoder({name: values.numpy() for name, values in inputs.items()})
        state = select(state, torch.arange(len(lengths)).repeat_interleave(width))
        tensors |= {name: tensors[name].repeat(width, 0) for name in recorded.state}
        tokens = torch.full((len(lengths) * width,), SPECIAL_TOKENS.bos)
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
    """Raise RunError if features of an image of noise differ by more than `TOLERANCE` of the largest feature."""
    size, crops = backbone.preprocessing.size, backbone.preprocessing.crops
    pixels = np.random.default_rng(0).integers(0, 256, (1, crops, size, size, 3)).astype(np.uint8)
    with torch.no_grad():
        expected = backbone.compute(torch.from_numpy(pixels))
    computed = Graph(BACKBONE, graph)({PIXELS: pixels})
    for kind, values in expected.items():
        difference = _largest(values.numpy(), computed[kind]) / max(1.0, float(values.abs().max()))
        if not difference <= TOLERANCE:
            raise RunError(f"the graph of the backbone differs from it by {difference:.2g}; please report this")
