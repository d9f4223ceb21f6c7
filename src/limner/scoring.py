"""Log-probability and perplexity of given sentences."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from limner.data.batching import Examples, prefetch
from limner.models.protocols import Model
from limner.training.objectives import sentence_log_probs


class SentenceScores(NamedTuple):
    """Scores of the sentences of an `Examples`, in its order."""

    log_probs: Tensor  # (N,) natural logarithm, end sign included
    words: Tensor  # (N,) how many words that is, end sign included

    @property
    def perplexity(self) -> float:
        """Perplexity over all words (Mao et al. 2015, eq. 5, with L summed over the sentences)."""
        return float(torch.exp(-self.log_probs.double().sum() / self.words.sum()))


@torch.inference_mode()
def score_examples(model: Model, examples: Examples, batch_size: int = 256) -> SentenceScores:
    """Score every (picture, sentence) pair; the model is left in the mode it was in."""
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    log_probs, words = torch.zeros(len(examples)), torch.zeros(len(examples), dtype=torch.long)
    order = examples.order(batch_size)
    for rows, batch in zip(order, prefetch(examples.batch, order, 4), strict=True):
        moved = batch.to(device)
        log_probs[rows] = sentence_log_probs(model(moved), moved).cpu()
        words[rows] = batch.target_mask.sum(1)
    model.train(training)
    return SentenceScores(log_probs, words)
