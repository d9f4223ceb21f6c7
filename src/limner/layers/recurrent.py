"""Gated recurrent units whose inputs are projected for all time steps at once, and the encoder made of two."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from limner.layers.dropout import dropout
from limner.layers.precision import at_least_float32


def gru(inputs: Tensor, recurrent: Tensor, hidden: Tensor) -> Tensor:
    """One step of a gated recurrent unit, Cho et al. (2014), in the form of Calixto et al. (2017), eq. 9.

    With z and r the update and the reset gate: h' = (1 - z) * tanh(x + r * (U h)) + z * h.

    Args:
        inputs: W x + b of z, r and the proposal, side by side, (…, 3H).
        recurrent: U h of the same three, (…, 3H).
        hidden: h, (…, H), in at least float32.

    Returns:
        h', (…, H).
    """
    after: Tensor = _Gates.apply(inputs, recurrent, hidden)  # type: ignore[no-untyped-call]
    return after


def hold(inputs: Tensor, mask: Tensor) -> None:
    """Let states stay what they were where there is nothing to read: close the update gate by an infinite input.

    This changes `inputs` in place, unseen by autograd: the gradient is zero there by `gru` itself.

    Args:
        inputs: W x + b as `gru` takes it, (…, 3H).
        mask: true where there is something to read, (…).
    """
    if not mask.all():
        inputs.detach()[..., : inputs.shape[-1] // 3].masked_fill_(~mask[..., None], torch.inf)


class _Gates(torch.autograd.Function):
    """The element-wise part of a step as one node of the graph: ten small operations would cost more than they do."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, recurrent: Tensor, hidden: Tensor) -> Tensor:  # noqa: ANN401
        after, *made = _step(inputs, recurrent, hidden)
        ctx.save_for_backward(*made, hidden)
        return after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ANN401
        gates, candidate, product, hidden = ctx.saved_tensors
        inputs = outer.new_empty(*outer.shape[:-1], 3 * outer.shape[-1])
        kept = _step_back(outer, gates, candidate, product, hidden, inputs)
        return inputs, _by_recurrent(inputs.clone(), gates), kept


class _Scan(torch.autograd.Function):
    """A GRU over all steps, its gradient written out: one product a step, and one for the weight at the end."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, kept: Tensor | None) -> Tensor:  # noqa: ANN401
        """Inputs (S, 2, B, 3H), weight (2, H, 3H) and mask (2, B, H) to the states after every step, (S, 2, B, H)."""
        size = weight.shape[1]
        hidden = torch.zeros(*inputs.shape[1:3], size, device=inputs.device, dtype=at_least_float32(inputs))
        states, made = [hidden], []
        for at_step in inputs.unbind(0):
            hidden, *parts = _step(at_step, torch.bmm(_masked(hidden, kept).to(weight.dtype), weight), hidden)
            states.append(hidden)
            made.append(parts)
        all_states = torch.stack(states)
        ctx.made, ctx.given = made, inputs.dtype
        ctx.save_for_backward(all_states, weight, kept)
        return all_states[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401
        states, weight, kept = ctx.saved_tensors
        transposed = weight.transpose(1, 2).contiguous()
        back = torch.zeros_like(states[0])
        error = outer.new_empty(*outer.shape[1:3], weight.shape[2])
        inputs = torch.empty(len(outer), *error.shape, dtype=ctx.given, device=error.device)
        products = torch.empty_like(inputs, dtype=weight.dtype)
        for t in reversed(range(len(outer))):
            gates, candidate, product = ctx.made[t]
            back = _step_back(outer[t] + back, gates, candidate, product, states[t], error)
            inputs[t] = error
            products[t] = _by_recurrent(error, gates)
            back += _masked(torch.bmm(products[t], transposed), kept)
        read = _masked(states[:-1], kept).to(weight.dtype).transpose(0, 1).flatten(1, 2)  # (2, S B, H)
        # Two products, not one batch of two, which the processor's library makes at half the speed.
        by_weight = [one.t() @ other for one, other in zip(read, products.transpose(0, 1).flatten(1, 2), strict=True)]
        return inputs, torch.stack(by_weight), None


def _step(inputs: Tensor, recurrent: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """h', and what going back needs: both gates, the candidate, and its product with the state."""
    size = hidden.shape[-1]
    inputs, recurrent = inputs.to(hidden.dtype), recurrent.to(hidden.dtype)
    gates = torch.sigmoid(inputs[..., : 2 * size] + recurrent[..., : 2 * size])
    product = recurrent[..., 2 * size :]
    candidate = torch.addcmul(inputs[..., 2 * size :], gates[..., size:], product).tanh_()
    return torch.lerp(candidate, hidden, gates[..., :size]), gates, candidate, product


def _step_back(
    outer: Tensor, gates: Tensor, candidate: Tensor, product: Tensor, hidden: Tensor, inputs: Tensor
) -> Tensor:
    """Of the gradient by h', that by hidden; that by inputs is written into `inputs`."""
    size = hidden.shape[-1]
    slopes = gates - gates * gates
    kept = outer * gates[..., :size]
    proposed = torch.mul(outer - kept, 1 - candidate * candidate, out=inputs[..., 2 * size :])
    torch.mul(outer * (hidden - candidate), slopes[..., :size], out=inputs[..., :size])
    torch.mul(proposed * product, slopes[..., size:], out=inputs[..., size : 2 * size])
    return kept


def _by_recurrent(inputs: Tensor, gates: Tensor) -> Tensor:
    """The gradient by recurrent, made in place of that by inputs."""
    size = gates.shape[-1] // 2
    inputs[..., 2 * size :] *= gates[..., size:]
    return inputs


def _masked(hidden: Tensor, kept: Tensor | None) -> Tensor:
    return hidden if kept is None else hidden * kept


class BiGRU(nn.Module):
    """A forward and a backward GRU over padded sequences: the encoder of Bahdanau et al. (2015).

    Both directions run in one loop. Padding does not move a state: its update gate is closed by an infinite input,
    so the last state of each direction is that of the last real word.
    """

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        """Build, with orthogonal recurrent weights."""
        super().__init__()
        self.input = nn.Linear(input_dim, 6 * hidden_dim)
        self.recurrent = nn.Parameter(torch.empty(2, hidden_dim, 3 * hidden_dim))  # of each direction, transposed
        self.hidden_dim = hidden_dim
        with torch.no_grad():
            for direction in self.recurrent:
                start_recurrent(direction)

    def forward(self, sequence: Tensor, mask: Tensor, rate: float = 0.0) -> tuple[Tensor, Tensor]:
        """Read sequences.

        Args:
            sequence: vectors of the words, (B, S, E).
            mask: true where there is a word, (B, S).
            rate: dropout of the states each step starts from, one mask for all steps (Gal and Ghahramani, 2016).

        Returns:
            Annotations [forward; backward] of every word, (B, S, 2H), and the last states of both, (B, 2H).
        """
        size = self.hidden_dim
        inputs = self.input(sequence).unflatten(2, (2, 3 * size))  # (B, S, 2, 3H)
        inputs = torch.stack([inputs[:, :, 0], inputs[:, :, 1].flip(1)])  # (2, B, S, 3H)
        hold(inputs, torch.stack([mask, mask.flip(1)]))
        inputs = inputs.permute(2, 0, 1, 3)  # (S, 2, B, 3H)
        ones = torch.ones(2, len(sequence), size, device=sequence.device, dtype=self.recurrent.dtype)
        kept = dropout(ones, rate, self.training) if rate and self.training else None
        states: Tensor = _Scan.apply(inputs, self.recurrent.to(inputs.dtype), kept)  # type: ignore[no-untyped-call]
        forward, backward = states.transpose(0, 2).unbind(1)  # (B, S, H) each
        return torch.cat([forward, backward.flip(1)], -1), torch.cat([states[-1, 0], states[-1, 1]], -1)


@torch.no_grad()
def start_recurrent(weight: Tensor) -> None:
    """A random orthogonal matrix for each gate: `weight` (H, n H) holds n of them side by side."""
    for gate in weight.view(len(weight), -1, len(weight)).unbind(1):
        gate.copy_(nn.init.orthogonal_(torch.empty(gate.shape)))
