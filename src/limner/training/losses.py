"""The training loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy

from limner.data.examples import Batch
from limner.layers.functional import precise
from limner.models.protocols import Mean, Output

IGNORED = -100
ELEMENTS_PER_CHUNK = 1 << 20
"""Number of logits per block of the softmax: small enough for the caches, large enough to use several threads."""


def word_loss(output: Output, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
    """Compute the training loss of a batch, a scalar; see `loss_terms`."""
    return torch.stack([term.value for term in loss_terms(output, batch, label_smoothing)]).sum()


def loss_terms(output: Output, batch: Batch, label_smoothing: float = 0.0) -> tuple[Mean, ...]:
    """Compute the mean negative log-likelihood of the target tokens, end of sentence included, in nats per token.

    This is the data term of Mao et al. (2015), eq. 6, which is in bits there, with a share `label_smoothing` of the
    probability spread evenly over the vocabulary. The auxiliary loss of the model is added; a model that computes its
    own loss is trained on its loss instead.

    Returns:
        Means whose sum is the loss.
    """
    if output.loss is not None:
        return output.loss
    weights = precise(batch.target_mask.to(output.logits.dtype))
    loss = Mean(weighted_loss(output.logits, batch, weights, label_smoothing), batch.target_mask.sum())
    return (loss,) if output.auxiliary_loss is None else (loss, output.auxiliary_loss)


def weighted_loss(
    logits: Tensor, batch: Batch, weights: Tensor, label_smoothing: float = 0.0, excluded: Sequence[int] = ()
) -> Tensor:
    """Compute the weighted sum of the negative log-likelihoods of the target tokens.

    Args:
        logits: logits of all positions, (B, T, V).
        batch: batch with the targets, (B, T).
        weights: weight of each token, (B, T); ignored for padding.
        label_smoothing: share of the probability spread evenly over the vocabulary.
        excluded: tokens of probability zero, which are never targets; not with label smoothing.

    Returns:
        Scalar.
    """
    targets = batch.target_out.masked_fill(
        ~batch.target_mask, IGNORED
    ).flatten()  # masking avoids a copy of the unpadded rows
    logits = logits.flatten(0, 1)
    removed = torch.tensor(excluded, device=logits.device, dtype=torch.long)
    if logits.device.type == "cpu":
        loss: Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
            logits, targets, weights.flatten(), label_smoothing, removed
        )
        return loss
    logits = logits.index_fill(1, removed, -math.inf)
    losses = cross_entropy(
        precise(logits), targets, ignore_index=IGNORED, label_smoothing=label_smoothing, reduction="none"
    )
    return (losses * weights.flatten()).sum()


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy and its gradient in one pass over blocks of rows, for the CPU.

    PyTorch's implementation passes over the logits six times, three of them over a float32 copy. A training step of a
    log-bilinear model takes a fifth less CPU time with this function; with two idle threads both take equally long.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        logits: Tensor,
        targets: Tensor,
        weights: Tensor,
        smoothing: float,
        excluded: Tensor,
    ) -> Tensor:
        """Compute the weighted sum over the targets (N,) that are not `IGNORED`, from logits (N, V)."""
        counted = (targets != IGNORED).unsqueeze(1)
        tokens, share = targets.clamp(min=0).unsqueeze(1), smoothing / logits.shape[1]
        weight = weights.unsqueeze(1) * counted  # (N, 1)
        losses, gradient = [], torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        height = max(1, ELEMENTS_PER_CHUNK // logits.shape[1])
        for rows in (slice(top, top + height) for top in range(0, len(logits), height)):
            values = precise(logits[rows])
            if len(excluded):
                values = values.index_fill(1, excluded, -math.inf)
            values = values - values.amax(1, keepdim=True)
            loss = values.gather(1, tokens[rows])
            mean = values.sum(1, keepdim=True) if smoothing else None
            total = values.exp_().sum(1, keepdim=True)  # in place: one exponential per logit
            loss = loss - total.log()
            if mean is not None:  # without smoothing, 0 times a logit of -inf would be nan
                loss = (1 - smoothing) * loss + share * (mean - values.shape[1] * total.log())
            losses.append((loss * weight[rows])[counted[rows]].sum())
            if gradient is not None:
                target_gradient = values.new_full(tokens[rows].shape, smoothing - 1)
                values.mul_(weight[rows] / total)
                if smoothing:
                    values.sub_(share * weight[rows])
                gradient[rows] = values.scatter_add_(1, tokens[rows], target_gradient * weight[rows])
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return -torch.stack(losses).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None, None, None]:  # noqa: ANN401
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(outer), None, None, None, None  # in place: autograd refuses a second backward pass
