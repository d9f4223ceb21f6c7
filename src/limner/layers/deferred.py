"""What every step of a loop reads, with gradients that are made once, of all steps together.

Left to itself, autograd makes the gradient of a weight at every step and adds them up: as many small products, and
sums of the weight's size, as there are steps. Here the steps leave what they read and what comes back, and the step
that goes back last makes one product of it all. The loop must go back through all of its steps, as it does where all of
its states are read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


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
        self.weight, self.bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        self.read: list[Tensor] = []
        self.returned: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        """One step: (N, in) to (N, out)."""
        made: Tensor = _Step.apply(x.to(self.weight.dtype), self.weight, self.bias, self)  # type: ignore[no-untyped-call]
        return made


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, loop: Product) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(weight)
        if any(ctx.needs_input_grad):
            ctx.loop = loop
            loop.read.append(x.detach())
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (weight,) = ctx.saved_tensors
        loop: Product = ctx.loop
        loop.returned.append(error)
        by_weight = by_bias = None
        if len(loop.returned) == len(loop.read):
            errors = torch.cat(loop.returned)
            by_weight = errors.t() @ torch.cat(loop.read[::-1])
            by_bias = None if loop.bias is None else errors.sum(0)
            loop.returned = []
        return error @ weight, by_weight, by_bias, None
