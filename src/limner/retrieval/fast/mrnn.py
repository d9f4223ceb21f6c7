"""All pairs of the m-RNN, for the variants whose recurrent states do not depend on the image.

Shapes: S sentences, T target length, I images, P prefixes, M multimodal, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from limner.data.examples import Batch, ImageFeatures
from limner.layers.all_pairs import PrefixTree, joined_terms, softmax_log_probs
from limner.models.mrnn import MRNN, SCALE, SLOPE
from limner.progress import Progress


class MRNNPairs:
    """All pairs of an m-RNN.

    The recurrent states are computed once for each distinct prefix of the sentences. The multimodal layer and the
    softmax are tiled over (prefix, image) pairs.
    """

    in_float32 = False

    def __init__(self, model: MRNN) -> None:
        self.model = model
        # A node of the prefix tree, and its terms of eq. 3.
        self.bytes_per_token = 256 + model.settings.multimodal_dim * model.softmax.weight.element_size()

    @classmethod
    def of(cls, model: MRNN) -> MRNNPairs | None:
        """Return all pairs of a model; None for the visInRnn variants, whose recurrent states depend on the image."""
        return cls(model) if model.visual_in_rnn is None else None

    def log_probs(
        self,
        images: Iterable[ImageFeatures],
        sentences: Batch,
        budget: int,
        dtype: torch.dtype,
        tail: float = 0.0,
        on_progress: Progress | None = None,
    ) -> Iterator[Tensor]:
        """Compute all pairs; see `PairScorer`."""
        softmax, tree = self.model.softmax, PrefixTree.of(sentences)
        # The constants of eq. 4 are multiplied into the terms of eq. 3 and into the softmax weights.
        language = self._prefix_terms(sentences.target_in, tree, budget).mul_(SLOPE)
        weight = (softmax.weight * SCALE).to(dtype)
        terms = (self.model.image_terms(image).multimodal * SLOPE for image in images)
        for image_term in joined_terms(terms, tree.sentence_count, budget):
            yield softmax_log_probs(
                language, image_term, weight, softmax.bias, tree, budget, tail=tail, on_progress=on_progress
            )

    def _prefix_terms(self, tokens: Tensor, tree: PrefixTree, budget: int) -> Tensor:
        """Compute V_w w(t) + V_r r(t) of eq. 3 after each prefix of a tree.

        Args:
            tokens: input tokens of the sentences, (S, T).
            tree: prefix tree of the sentences.
            budget: bytes of working memory, which limits the number of sentences encoded at a time.

        Returns:
            Terms (P, M).
        """
        model, settings = self.model, self.model.settings
        units = settings.embedding_dim + 3 * settings.hidden_dim + 3 * settings.multimodal_dim
        height = max(1, budget // (tokens.shape[1] * units * model.softmax.weight.element_size()))
        language = model.softmax.weight.new_empty(len(tree.row), settings.multimodal_dim)
        for top in range(0, len(tokens), height):
            first, last = torch.searchsorted(tree.row, torch.tensor([top, top + height])).tolist()
            positions = tree.row[first:last] - top, tree.column[first:last]
            terms = model.multimodal_terms(*model.read(tokens[top : top + height], None))
            language[first:last] = terms[positions]
        return language
