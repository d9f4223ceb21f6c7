"""Log-probabilities of all (sentence, image) pairs, faster than pair by pair: one file for each model with such a form.

To add a form, add its file, and an entry in `_SCORERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from limner.data.examples import Batch, ImageFeatures
from limner.models.bag_of_words import BagOfWords
from limner.models.log_bilinear import LBL
from limner.models.mrnn import MRNN
from limner.models.protocols import Model
from limner.progress import Progress
from limner.retrieval.fast.bag_of_words import BagOfWordsPairs
from limner.retrieval.fast.log_bilinear import LBLPairs
from limner.retrieval.fast.mrnn import MRNNPairs


class PairScorer(Protocol):
    """Computes the log-probabilities of all pairs by a model; each sentence is encoded once."""

    in_float32: bool
    """Whether all pairs are scored in float32 by whole softmaxes even where bfloat16 is allowed."""
    bytes_per_token: int
    """Bytes of memory that `log_probs` needs for each token of the sentences."""

    def log_probs(
        self,
        images: Iterable[ImageFeatures],
        sentences: Batch,
        budget: int,
        dtype: torch.dtype,
        tail: float = 0.0,
        on_progress: Progress | None = None,
    ) -> Iterator[Tensor]:
        """Compute the log-probability of every sentence given every image.

        Args:
            images: batches of images.
            sentences: S sentences; images in this batch are ignored.
            budget: bytes of working memory, in addition to `bytes_per_token` a token.
            dtype: data type of the large matrix products, float32 or bfloat16.
            tail: largest share of a softmax that may be estimated, see `limner.layers.softmax_heads`; 0 for none.
            on_progress: called with the number of pairs of the next result that are done, and their total.

        Yields:
            Natural logarithms (S, I) for consecutive groups of I images, which may join several batches.
        """
        ...


_SCORERS: dict[type, Callable[[Any], PairScorer | None]] = {
    BagOfWords: BagOfWordsPairs,
    LBL: LBLPairs,
    MRNN: MRNNPairs.of,
}


def pair_scorer(model: Model) -> PairScorer | None:
    """Return the fast form of a model; None if the model or its variant has none."""
    build = _SCORERS.get(type(model))
    return None if build is None else build(model)
