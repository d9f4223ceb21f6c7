"""What training minimises."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from limner.data.examples import Batch
from limner.models.protocols import Output, precise

IGNORED = -100


def word_loss(output: Output, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
    """Mean negative log-likelihood of the words, end signs included: nats a word, a scalar.

    The data term of Mao et al. (2015), eq. 6, there in bits; plus the penalty a model may add. A model with a loss
    of its own is taken at its word.
    """
    if output.loss is not None:
        return output.loss
    targets = batch.target_out.masked_fill(~batch.target_mask, IGNORED)  # spares a copy of the real rows
    loss = cross_entropy(
        precise(output.logits.flatten(0, 1)),
        targets.flatten(),
        ignore_index=IGNORED,
        label_smoothing=label_smoothing,
    )
    return loss if output.penalty is None else loss + output.penalty
