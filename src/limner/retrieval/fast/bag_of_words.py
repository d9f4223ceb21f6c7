"""All pairs of the image-conditional bag of words: one row of word probabilities for each image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from limner.data.examples import Batch, ImageFeatures
from limner.models.bag_of_words import BagOfWords, pool_tokens
from limner.progress import Progress


class BagOfWordsPairs:
    """All pairs of a `BagOfWords`, as a language model."""

    in_float32 = True
    bytes_per_token = 64

    def __init__(self, model: BagOfWords) -> None:
        self.model = model

    def log_probs(
        self,
        images: Iterable[ImageFeatures],
        sentences: Batch,
        budget: int,
        dtype: torch.dtype,
        tail: float = 0.0,
        on_progress: Progress | None = None,
    ) -> Iterator[Tensor]:
        """Compute all pairs; see `PairScorer`. Images and sentences are the only arguments with an effect."""
        for image in images:
            log_probs = self.model.log_probs(image).log_softmax(dim=1)
            yield pool_tokens(sentences, log_probs, "sum", include_eos=True)
