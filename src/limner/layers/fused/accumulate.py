"""What every step of a loop reads, with gradients that are made once, of all steps together.

Left to itself, autograd makes the gradient of a weight at every step and adds them up: as many small products, and
sums of the weight's size, as there are steps. Here the weight passes through an identity before the loop. The steps
return nothing for it and leave what its gradient is made of; autograd goes back through the identity after all the
steps that it goes back through, be it all of them or a few, and there the gradient is made of what they left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Owed:
    """What the steps of a loop owe to tensors that all of them read."""

    def __init__(self, add_up: Callable[[list[Any]], tuple[Tensor | None, ...]]) -> None:
        """Begin a loop.

        Args:
            add_up: makes the gradient by each of the tensors, of what the steps have left.
        """
        self._add_up = add_up
        self._left: list[Any] = []
        self._backward: int | None = None

    def left(self) -> list[Any]:
        """What the steps have left in this backward pass, to be added to."""
        backward = torch._C._current_graph_task_id()  # torch has no public name for it
        if backward != self._backward:  # an earlier pass may not have asked for these gradients
            self._left, self._backward = [], backward
        return self._left

    def hand_over(self) -> tuple[Tensor | None, ...]:
        """The gradients of this backward pass."""
        gradients = self._add_up(self.left())
        self._left = []
        return gradients


def share(owed: Owed, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors for the steps of a loop, which alone read them and leave what their gradients are made of."""
    shared: tuple[Tensor, ...] = _Shared.apply(owed, *tensors)  # type: ignore[no-untyped-call]
    return shared


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, owed: Owed, *tensors: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401
        ctx.set_materialize_grads(False)
        ctx.owed = owed
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        return None, *ctx.owed.hand_over()


class Product:
    """x W' + b at every step of a loop."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Begin a loop.

        Args:
            weight: W, (out, in).
            bias: b, (out,).
        """
        dtype = weight.dtype
        if torch.is_autocast_enabled(weight.device.type):
            dtype = torch.get_autocast_dtype(weight.device.type)
        self._owed = Owed(_by_weight if bias is None else _by_weight_and_bias)
        tensors = [weight] if bias is None else [weight, bias]
        self._read = share(self._owed, *(tensor.to(dtype) for tensor in tensors))

    def __call__(self, x: Tensor) -> Tensor:
        """One step: (N, in) to (N, out)."""
        made: Tensor = _Step.apply(x.to(self._read[0].dtype), self._owed, *self._read)  # type: ignore[no-untyped-call]
        return made


def _by_weight(left: list[tuple[Tensor, Tensor]]) -> tuple[Tensor]:
    errors, inputs = map(torch.cat, zip(*left, strict=True))
    return (errors.t() @ inputs,)


def _by_weight_and_bias(left: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    errors, inputs = map(torch.cat, zip(*left, strict=True))
    return errors.t() @ inputs, errors.sum(0)


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, owed: Owed, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, weight)
        ctx.owed, ctx.given = owed, 3 if bias is None else 4
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        ctx.owed.left().append((error, x.detach()))
        return error @ weight, *[None] * (ctx.given - 1)
