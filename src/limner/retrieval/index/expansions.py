"""First-order expansions of log P(sentence | image) in what the decoder of a model reads of an image.

`encode` of a model computes its memory m of an image, a few vectors that are constant over the time steps. The
log-probability of a sentence w_1 … w_T is a smooth function f of them, so that near a point c

    f(m) ≈ f(c) + grad f(c) · (m - c).

Value and gradient of f at c take about three times as long as a score. Memories of attention models hold one
annotation for each image location; they are averaged over the locations here, which an attention over one location
reads, so that f is itself an approximation for these models. Nothing is proven by an estimate: where the softmax is
affine in the image, as in MLBL-B, `limner.retrieval.index.concave` has bounds.

Shapes: N images, C points, D size of a code, the memory as one vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from limner.data.examples import Batch, ImageFeatures
from limner.layers.attention import Annotations
from limner.layers.functional import precise
from limner.models.protocols import AllPositions, Memory, Model, device_of
from limner.runs.trained_model import TrainedModel
from limner.text.vocab import SPECIAL_TOKENS

LOGITS = 1 << 21
"""Number of logits that are computed at a time, 8 MiB."""


class Expansion(NamedTuple):
    """f and its gradient at C points."""

    values: Tensor  # (C,)
    gradients: Tensor  # (C, D)


class ImageCodes:
    """Memories of the images of a model as vectors, and log-probabilities of sentences as functions of them."""

    def __init__(self, model: Model, image: ImageFeatures) -> None:
        """Learn the structure of the memory of a captioning model in evaluation mode from the features of an image."""
        self.model = model
        self._template = self._memory(image)
        self.averages = _has_locations(model.encode(_batch(image)))
        """Whether the codes are averages over the image locations, so that scores of codes are approximations."""

    @classmethod
    def of(cls, model: TrainedModel) -> ImageCodes:
        """Learn the structure of the memory of a trained model from an image of zeros."""
        shapes = model.config.inputs.feature_shapes
        zeros = {kind: torch.zeros(1, *shape) for kind, shape in shapes.items()}
        return cls(model.model, ImageFeatures(torch.ones(1, dtype=torch.bool), **zeros).to(device_of(model.model)))

    @torch.no_grad()
    def encode(self, image: ImageFeatures) -> Tensor:
        """Compute the codes of N images, (N, D)."""
        return torch.cat([part.flatten(1) for part in _tensors(self._memory(image))], 1).float()

    @torch.no_grad()
    def _memory(self, image: ImageFeatures) -> Memory:
        return _average_locations(self.model.encode(_batch(image)))

    def log_probs(self, tokens: Sequence[int], codes: Tensor) -> Tensor:
        """Compute f of a sentence, without special tokens, at N codes (N, D), (N,), with gradients."""
        if isinstance(self.model, AllPositions):
            rows = max(1, LOGITS // (self.model.vocab_size * (len(tokens) + 1)))
            parts = [self._all_positions(self.model, tokens, part) for part in torch.split(codes, rows)]
            return torch.cat(parts)
        return self._step_by_step(tokens, codes)

    def _all_positions(self, model: AllPositions, tokens: Sequence[int], codes: Tensor) -> Tensor:
        """Compute f at N codes from the logits of all positions."""
        before, after = self._shifted(tokens, codes)
        logits = precise(model.all_logits(self._restored(codes), before.unsqueeze(0)))  # (N, T, V)
        targets = after.expand(len(codes), -1)
        return -cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape).sum(1)

    def _step_by_step(self, tokens: Sequence[int], codes: Tensor) -> Tensor:
        """Compute f at N codes; this is the plain form of `_all_positions`, which tests hold equal to it."""
        memory = self._restored(codes)
        state = self.model.start(memory)
        total = codes.new_zeros(len(codes))
        for before, after in zip(*self._shifted(tokens, codes), strict=True):
            logits, state = self.model.step(before.expand(len(codes)), memory, state)
            total = total - cross_entropy(precise(logits), after.expand(len(codes)), reduction="none")
        return total

    def _shifted(self, tokens: Sequence[int], codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input tokens and the tokens to predict, (T,) each."""
        ids = torch.tensor([SPECIAL_TOKENS.bos, *tokens, SPECIAL_TOKENS.eos], device=codes.device)
        return ids[:-1], ids[1:]

    def _restored(self, codes: Tensor) -> Any:  # noqa: ANN401
        """Return the memory of N codes."""
        sizes = [part[0].numel() for part in _tensors(self._template)]
        return _restore(self._template, iter(torch.split(codes, sizes, 1)), len(codes))

    def expand(self, tokens: Sequence[int], points: Tensor) -> Expansion:
        """Compute f and its gradient at C points, (C, D)."""
        with torch.enable_grad():
            inputs = points.detach().requires_grad_(True)
            values = self.log_probs(tokens, inputs)
            (gradients,) = torch.autograd.grad(values.sum(), inputs)
        return Expansion(values.detach(), gradients)


def _batch(image: ImageFeatures) -> Batch:
    """Return a batch of images without sentences."""
    count = len(image.present)
    tokens = torch.zeros(count, 1, dtype=torch.long, device=image.present.device)
    return Batch(("",) * count, image, tokens, tokens, tokens.bool())


def _has_locations(memory: Any) -> bool:  # noqa: ANN401
    """Whether a memory holds annotations of more than one location."""
    if isinstance(memory, Annotations):
        return memory.values.shape[1] > 1
    return isinstance(memory, tuple) and any(_has_locations(part) for part in memory)


def _average_locations(memory: Any) -> Any:  # noqa: ANN401
    """Average all annotations in nested tuples over the locations that exist."""
    if isinstance(memory, Annotations):
        weights = memory.values.new_ones(memory.values.shape[:2]) if memory.mask is None else memory.mask
        shares = (weights / weights.sum(1, keepdim=True).clamp(min=1))[..., None].to(memory.values.dtype)
        values, keys = ((part * shares).sum(1, keepdim=True) for part in (memory.values, memory.keys))
        return type(memory)(values, keys, None)
    if isinstance(memory, tuple):
        parts = map(_average_locations, memory)
        return type(memory)(*parts) if hasattr(memory, "_fields") else tuple(parts)
    return memory


def _tensors(memory: Any) -> list[Tensor]:  # noqa: ANN401
    """Return the tensors of nested tuples in order."""
    if isinstance(memory, Tensor):
        return [memory]
    return [tensor for part in memory for tensor in _tensors(part)] if isinstance(memory, tuple) else []


def _restore(template: Any, parts: Iterator[Tensor], count: int) -> Any:  # noqa: ANN401
    """Build nested tuples of the structure of a template from flattened tensors."""
    if isinstance(template, Tensor):
        return next(parts).view(count, *template.shape[1:])
    if isinstance(template, tuple):
        members = [_restore(part, parts, count) for part in template]
        return type(template)(*members) if hasattr(template, "_fields") else tuple(members)
    return template
