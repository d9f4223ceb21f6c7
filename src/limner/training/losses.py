"""What training minimises."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy

from limner.data.examples import Batch
from limner.models.protocols import Output, precise

IGNORED = -100
ELEMENTS_PER_CHUNK = 1 << 20
"""Logits whose softmax is taken together: few enough for the caches, enough that threads seldom wait for each other."""


def word_loss(output: Output, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
    """Mean negative log-likelihood of the words, end signs included: nats a word, a scalar.

    The data term of Mao et al. (2015), eq. 6, there in bits; plus the auxiliary loss of the model, if it has one.
    A model with a loss of its own is trained on that loss instead.
    """
    if output.loss is not None:
        return output.loss
    targets = batch.target_out.masked_fill(~batch.target_mask, IGNORED).flatten()  # spares a copy of the real rows
    logits = output.logits.flatten(0, 1)
    if logits.device.type == "cpu":
        loss: Tensor = _CrossEntropy.apply(logits, targets, label_smoothing)  # type: ignore[no-untyped-call]
    else:
        loss = cross_entropy(precise(logits), targets, ignore_index=IGNORED, label_smoothing=label_smoothing)
    return loss if output.auxiliary_loss is None else loss + output.auxiliary_loss


class _CrossEntropy(torch.autograd.Function):
    """`cross_entropy` and its gradient in one pass, some rows at a time.

    Torch's own passes over the logits six times, half of them in float32 and in memory of their size. This spares a
    fifth of the processor time of a log-bilinear model's training step; with two free threads it is as fast as torch's.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:  # noqa: ANN401
        """Logits (N, V) and targets (N,) to the mean over the targets that are not `IGNORED`."""
        counted = (targets != IGNORED).unsqueeze(1)
        words, share = targets.clamp(min=0).unsqueeze(1), smoothing / logits.shape[1]
        weight = precise(counted.to(logits.dtype)) / counted.sum()  # (N, 1)
        losses, gradient = [], torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        height = max(1, ELEMENTS_PER_CHUNK // logits.shape[1])
        for some in (slice(top, top + height) for top in range(0, len(logits), height)):
            values = precise(logits[some])
            values = values - values.amax(1, keepdim=True)
            loss = values.gather(1, words[some])
            mean = values.sum(1, keepdim=True) if smoothing else None
            total = values.exp_().sum(1, keepdim=True)  # each is taken to the power of e once: half the time
            loss = loss - total.log()
            if mean is not None:  # 0 times a word's -inf would be no number
                loss = (1 - smoothing) * loss + share * (mean - values.shape[1] * total.log())
            losses.append((loss[counted[some]]).sum())
            if gradient is not None:
                right = values.new_full(words[some].shape, smoothing - 1)
                values.mul_(weight[some] / total)
                if smoothing:
                    values.sub_(share * weight[some])
                gradient[some] = values.scatter_add_(1, words[some], right * weight[some])
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return -torch.stack(losses).sum() / counted.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(outer), None, None  # in place: a second way back through it would be refused by autograd
