"""Log-probabilities of all (sentence, image) pairs, faster than pair by pair.

`tree_log_probs` reads a common prefix of sentences once per image, for any model. `pair_scorer` returns the
`PairScorer` of a model; a new model with a faster form needs a class here and a line there.

Shapes: S sentences, T target length, I images, P prefixes, M multimodal, V vocabulary, d embedding size, f factors,
n - 1 context tokens; p and i are the prefixes and images of one tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeGuard

import torch
from torch import Tensor

from limner.data.examples import Batch, Example, ImageFeatures, collate
from limner.decoding.torch_models import select
from limner.layers.all_pairs import PairOptions, PrefixTree, additive_log_probs, softmax_log_probs
from limner.layers.functional import precise
from limner.models.bag_of_words import BagOfWords, pool_tokens
from limner.models.log_bilinear import LBL
from limner.models.mrnn import MRNN, SCALE, SLOPE
from limner.models.protocols import Memory, Model, device_of
from limner.progress import Progress
from limner.text.vocab import SPECIAL_TOKENS


class PairScorer(Protocol):
    """Computes the log-probabilities of all pairs by a model; each sentence is encoded once."""

    in_float32: bool
    """Whether all pairs are scored in float32 even where bfloat16 is allowed."""
    bytes_per_token: int
    """Bytes of memory that `log_probs` needs for each token of the sentences."""

    def log_probs(self, images: Iterable[ImageFeatures], sentences: Batch, options: PairOptions) -> Iterator[Tensor]:
        """Compute the log-probability of every sentence given every image.

        Args:
            images: batches of images.
            sentences: S sentences; images in this batch are ignored.
            options: arithmetic, and working memory in addition to `bytes_per_token` a token.

        Yields:
            Natural logarithms (S, I) for each batch of I images.
        """


class BagOfWordsPairs:
    """All pairs of a `BagOfWords`, as a language model."""

    in_float32 = True
    bytes_per_token = 64

    def __init__(self, model: BagOfWords) -> None:
        self.model = model

    def log_probs(self, images: Iterable[ImageFeatures], sentences: Batch, options: PairOptions) -> Iterator[Tensor]:
        for image in images:
            log_probs = self.model.log_probs(image).log_softmax(dim=1)
            yield pool_tokens(sentences, log_probs, "sum", include_eos=True)


class AffineTerms(NamedTuple):
    """Logits of the tokens of one sentence as functions of the image term z: `weight` · (prefix_t + z) + bias.

    The log-probability of a sentence is concave in z, and its tangents are upper bounds.
    """

    prefixes: Tensor  # (T, d): term of each position
    weight: Tensor  # (V, d)
    bias: Tensor  # (V,)


def is_affine_in_image(model: Model) -> TypeGuard[LBL]:
    """Whether logits are affine in the image: true for MLBL-B only; LBL uses no image, and MLBL-F is quadratic."""
    return isinstance(model, LBL) and model.settings.variant == "MLBL-B"


def affine_terms(model: LBL, tokens: Tensor) -> AffineTerms:
    """Compute sum_i C_i r_{w_i} (eq. 1) at each position of input tokens (T,), (T, d), with R and b (eq. 4)."""
    return AffineTerms(model.language(tokens.unsqueeze(0))[0], model.words, model.bias)


class LBLPairs:
    """All pairs of a log-bilinear model.

    In LBL and MLBL-B, the logits are a sum of a term of the sentence and a term of the image, so all normalisers are
    one matrix product, in float32 for any data type. MLBL-F is tiled over (prefix, image) pairs, as the m-RNN.
    """

    def __init__(self, model: LBL) -> None:
        self.model = model
        self.in_float32 = model.word_factors is None
        # A node of the prefix tree, and its prediction.
        self.bytes_per_token = 256 + (model.words.shape[1] + model.word_dim) * model.words.element_size()

    def log_probs(self, images: Iterable[ImageFeatures], sentences: Batch, options: PairOptions) -> Iterator[Tensor]:
        model, tree, budget = self.model, PrefixTree.of(sentences), options.budget
        language = self._prefix_terms(sentences.target_in, tree, budget)  # (P, d)
        if model.word_factors is None:
            for image in images:
                bias = model.image_terms(image).bias
                yield additive_log_probs(language, bias, model.words, model.bias, tree, budget)
            return
        language = model.word_factors(language)
        for image in images:
            yield softmax_log_probs(language, self._gated_terms(image), model.words, model.bias, tree, options, gated)

    def _gated_terms(self, image: ImageFeatures) -> Tensor:
        """Compute W_fr C_m x and W_fx x (eq. 8) of each image of a model with factors, side by side, (I, 2f)."""
        memory = self.model.image_terms(image)
        assert memory.gates is not None and self.model.word_factors is not None, "MLBL-F has gates and factors"
        return torch.cat([self.model.word_factors(memory.bias), memory.gates], 1)

    def _prefix_terms(self, tokens: Tensor, tree: PrefixTree, budget: int) -> Tensor:
        """Compute sum_i C_i r_{w_i} (eq. 1) after each prefix of tokens (S, T), (P, d), in `budget` bytes."""
        model = self.model
        length, size = model.settings.context, model.words.element_size()
        height = max(1, budget // (length * (64 + (model.words.shape[1] + model.word_dim) * size)))
        offsets = torch.arange(1 - length, 1)
        language = model.words.new_empty(len(tree.row), model.word_dim)
        for top in range(0, len(tree.row), height):
            prefixes = slice(top, top + height)
            columns = tree.column[prefixes, None] + offsets  # (p, n - 1)
            context = tokens[tree.row[prefixes, None], columns.clamp(min=0)]
            context.masked_fill_((columns < 0).to(context.device), SPECIAL_TOKENS.bos)
            language[prefixes] = model.context(model.vectors(context).flatten(1))
        return language


def gated(language: Tensor, image: Tensor) -> Tensor:
    """Compute (W_fr q) * (W_fx x) of every pair (eq. 8), (p, i, f), of W_fr sum_i C_i r_{w_i} (p, f) and (i, 2f)."""
    added, gates = image.chunk(2, dim=1)
    return (language.unsqueeze(1) + added) * gates


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

    def log_probs(self, images: Iterable[ImageFeatures], sentences: Batch, options: PairOptions) -> Iterator[Tensor]:
        softmax, tree = self.model.softmax, PrefixTree.of(sentences)
        # The constants of eq. 4 are multiplied into the terms of eq. 3 and into the softmax weights.
        language = self._prefix_terms(sentences.target_in, tree, options.budget).mul_(SLOPE)
        weight = softmax.weight * SCALE
        for image in images:
            image_term = self.model.image_terms(image).multimodal * SLOPE
            yield softmax_log_probs(language, image_term, weight, softmax.bias, tree, options)

    def _prefix_terms(self, tokens: Tensor, tree: PrefixTree, budget: int) -> Tensor:
        """Compute V_w w(t) + V_r r(t) of eq. 3 after each prefix of tokens (S, T), (P, M), in `budget` bytes."""
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


def pair_scorer(model: Model) -> PairScorer | None:
    """Return the `PairScorer` of a model; None for a model without a faster form."""
    if isinstance(model, BagOfWords):
        return BagOfWordsPairs(model)
    if isinstance(model, LBL):
        return LBLPairs(model)
    # The recurrent states of the visInRnn variants depend on the image.
    return MRNNPairs(model) if isinstance(model, MRNN) and model.visual_in_rnn is None else None


BYTES_PER_LOGIT = 12
"""Memory of a logit, of its logarithm and of a copy, in float32."""
IMAGES_PER_TILE = 8
"""Number of images that a step reads; more images leave fewer sentences, and so fewer common prefixes, to a tree."""


def tree_log_probs(
    model: Model,
    image: ImageFeatures,
    sentences: Batch,
    budget: int,
    bf16: bool = False,
    on_progress: Progress | None = None,
) -> Tensor:
    """Compute the log-probability of every sentence given every image by `step`; common prefixes are read once.

    Args:
        model: a model that does not translate.
        image: features of I images.
        sentences: S sentences, best in lexicographic order; their own images are ignored.
        budget: bytes of the logits of a step, their softmax and a copy.
        bf16: whether matrix products may be computed in bfloat16.
        on_progress: called with the number of pairs done and their total.

    Returns:
        Natural logarithms, (S, I).
    """
    count, device = len(image.present), image.present.device
    pairs = max(1, budget // (model.vocab_size * BYTES_PER_LOGIT))
    height = min(len(sentences), max(1, pairs // min(count, IMAGES_PER_TILE)))
    blocks = (slice(top, top + height) for top in range(0, len(sentences), height))
    trees = [
        PrefixTree.of(
            replace(sentences, target_out=sentences.target_out[rows], target_mask=sentences.target_mask[rows])
        )
        for rows in blocks
    ]
    scores = torch.empty(len(sentences), count, device=device)
    width = max(1, pairs // height)
    for left in range(0, count, width):
        columns = torch.arange(left, min(left + width, count), device=device)
        tile = replace(collate([Example("", ())] * len(columns)).to(device), image=image.select(columns))
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            memory = model.encode(tile)
            parts = [_read_tree(model, memory, tree, len(columns)) for tree in trees]
        scores[:, columns] = torch.cat(parts).float()
        if on_progress is not None:
            on_progress(len(sentences) * (left + len(columns)), len(sentences) * count)
    return scores


def _read_tree(model: Model, memory: Memory, tree: PrefixTree, images: int) -> Tensor:
    """Compute the log-probabilities of the sentences of a tree given each image of a memory, (S, I)."""
    state, device = model.start(memory), device_of(model)
    offsets, before = torch.arange(images, device=device)[:, None], torch.zeros(1, dtype=torch.long)
    edge_prefix, _ = tree.edges(slice(0, len(tree.row)))
    order, parts = list[Tensor](), list[Tensor]()
    for column in range(int(tree.column.max()) + 1):  # the prefixes of one length, of which `before` are the parents
        prefixes = (tree.column == column).nonzero()[:, 0]
        if column:
            parents = torch.searchsorted(before, tree.parent[prefixes]).to(device)
            state = select(state, (offsets * len(before) + parents).flatten())
        logits, state = model.step(tree.last[prefixes].to(device).repeat(images), memory, state)
        logits = precise(logits).view(images, len(prefixes), -1)
        edges = (tree.column[edge_prefix] == column).nonzero()[:, 0]
        rows = torch.searchsorted(prefixes, edge_prefix[edges]).to(device)
        parts.append((logits[:, rows, tree.token[edges].to(device)] - logits.logsumexp(-1)[:, rows]).T)  # (edges, I)
        order.append(edges)
        before = prefixes
    log_probs = torch.cat(parts)[torch.cat(order).argsort().to(device)]
    scores = log_probs.new_zeros(tree.sentence_count, images)
    tree.accumulate(scores, slice(0, len(tree.row)), log_probs, log_probs.nbytes)
    return scores
