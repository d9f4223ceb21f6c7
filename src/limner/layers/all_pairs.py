"""Log-probability of every sentence given every image, for models whose recurrent states do not depend on the image.

Sentence and image are combined just before the softmax, so the exact matrix of all pairs is computed in tiles of one
large matrix product each, within a memory budget. Common prefixes of the sentences are computed once.

Shapes: S sentences, I images, T target length, P prefixes, N edges of the prefix tree, U uses of edges, M hidden units,
V vocabulary; p, i and n are the prefixes, images and edges of one tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

import torch
from torch import Tensor

from limner.data.examples import Batch
from limner.progress import Progress
from limner.text.vocab import SPECIAL_TOKENS

LOG2E = math.log2(math.e)
UNDERFLOW = 1e-20
"""Threshold of a sum of exponentials below which its logarithm is recomputed by logsumexp, because terms that underflow
may be a relevant part of the sum."""


class PrefixTree(NamedTuple):
    """Distinct prefixes of S sentences, and the tokens that follow each of them.

    The softmax after a common prefix such as 'a man in a' is computed once per image. An edge is a (prefix, next token)
    pair that occurs in the sentences. Edges are sorted by prefix, uses are sorted by edge.
    """

    row: Tensor  # (P,) index of the first sentence with the prefix, ascending
    column: Tensor  # (P,) length of the prefix, which is the position of its next token
    parent: Tensor  # (P,) index of the prefix without the last token; 0 for the empty prefix
    last: Tensor  # (P,) last token of the prefix; begin-of-sentence for the empty one
    first_edge: Tensor  # (P + 1,) the edges of prefix p are first_edge[p] … first_edge[p + 1] - 1
    token: Tensor  # (N,) token id of each edge
    first_use: Tensor  # (N + 1,) the uses of edge n are first_use[n] … first_use[n + 1] - 1
    sentence: Tensor  # (U,) index of the sentence of each use; one use for each token of each sentence
    sentence_count: int  # S

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Build the tree of the S target sentences of a batch."""
        lengths = batch.target_mask.sum(1).tolist()
        sequences = [row[:length] for row, length in zip(batch.target_out.tolist(), lengths, strict=True)]
        prefixes: dict[tuple[int, int], int] = {}  # (prefix, next token) -> longer prefix
        positions = [(0, 0)]  # (row, column) of each prefix
        uses: dict[tuple[int, int], list[int]] = {}  # (prefix, next token) -> sentences
        for sentence, sequence in enumerate(sequences):
            prefix = 0
            for column, token in enumerate(sequence):
                edge = (prefix, token)
                uses.setdefault(edge, []).append(sentence)
                if column + 1 < len(sequence):
                    prefix = prefixes.setdefault(edge, len(positions))
                    if prefix == len(positions):
                        positions.append((sentence, column + 1))
        edges = sorted(uses)
        edge_counts = torch.zeros(len(positions) + 1, dtype=torch.long)
        if edges:
            edge_counts[1:] = torch.bincount(torch.tensor([prefix for prefix, _ in edges]), minlength=len(positions))
        use_counts = torch.tensor([0] + [len(uses[edge]) for edge in edges])
        return cls(
            row=torch.tensor([row for row, _ in positions]),
            column=torch.tensor([column for _, column in positions]),
            parent=torch.tensor([0, *(prefix for prefix, _ in prefixes)]),
            last=torch.tensor([SPECIAL_TOKENS.bos, *(token for _, token in prefixes)]),
            first_edge=edge_counts.cumsum(0),
            token=torch.tensor([token for _, token in edges], dtype=torch.long),
            first_use=use_counts.cumsum(0),
            sentence=torch.tensor([s for edge in edges for s in uses[edge]], dtype=torch.long),
            sentence_count=len(sequences),
        )

    def edges(self, prefixes: slice) -> tuple[Tensor, Tensor]:
        """Return the parents of n edges of some prefixes, relative to the first prefix, and their tokens, (n,) each."""
        parents = _segment_ids(self.first_edge[prefixes.start : prefixes.stop + 1])
        return parents, self.token[int(self.first_edge[prefixes.start]) : int(self.first_edge[prefixes.stop])]

    def accumulate(self, scores: Tensor, prefixes: slice, log_probs: Tensor, budget: int) -> None:
        """Add log-probabilities (n, i) of all edges of some prefixes to the scores (S, i) of their sentences."""
        first, last = int(self.first_edge[prefixes.start]), int(self.first_edge[prefixes.stop])
        edges = _segment_ids(self.first_use[first : last + 1])
        sentences = self.sentence[int(self.first_use[first]) : int(self.first_use[last])]
        chunk = max(1, budget // (log_probs.shape[1] * log_probs.element_size()))
        for edge, sentence in zip(torch.split(edges, chunk), torch.split(sentences, chunk), strict=True):
            scores.index_add_(0, sentence.to(scores.device), log_probs[edge])


class PairOptions(NamedTuple):
    """Options of the scoring of all pairs."""

    budget: int
    """Bytes of working memory."""
    dtype: torch.dtype = torch.float32
    """Data type of the large matrix products, float32 or bfloat16."""
    on_progress: Progress | None = None
    """Called with the number of pairs of the next result that are done, and their total."""


def tanh_of_sum(language: Tensor, image: Tensor) -> Tensor:
    """Compute tanh(language + image) of every pair: (p, M) and (i, M) to (p, i, M); 2 σ(2x) - 1 takes a third of it."""
    return (language.unsqueeze(1) + image).mul_(2).sigmoid_().mul_(2).sub_(1)


def softmax_log_probs(
    language: Tensor,
    image: Tensor,
    weight: Tensor,
    bias: Tensor,
    tree: PrefixTree,
    options: PairOptions,
    combine: Callable[[Tensor, Tensor], Tensor] = tanh_of_sum,
) -> Tensor:
    """Compute the log-probability of every sentence given every image.

    The logits of a pair are weight · combine(language, image) + bias.

    Args:
        language: term of each prefix of the tree, (P, M).
        image: term of each image, (I, M), or another second dimension that `combine` accepts.
        weight: softmax weights, (V, M).
        bias: softmax biases, (V,).
        tree: prefix tree of the sentences.
        options: arithmetic, and working memory of a tile.
        combine: computes the hidden units (p, i, M) of all pairs from the terms of p prefixes and of i images.

    Returns:
        Natural logarithms in float32, (S, I).
    """
    budget, dtype, on_progress = options
    scores = torch.zeros(tree.sentence_count, len(image), device=image.device)
    weight_2 = (weight.to(dtype).float() * LOG2E).to(dtype)
    bias_2 = (bias.float() * LOG2E).to(dtype)
    language, image = language.float(), image.float()
    for prefixes, images in _tiles(len(language), len(image), weight_2, budget):
        hidden = combine(language[prefixes], image[images]).to(dtype)  # (p, i, M)
        parents, tokens = tree.edges(prefixes)
        log_probs = _log2_probs(hidden, weight_2, bias_2, parents, tokens)
        tree.accumulate(scores[:, images], prefixes, log_probs, budget)
        if on_progress is not None and images.stop == len(image):
            on_progress(scores.numel() * prefixes.stop // len(language), scores.numel())
    return scores.div_(LOG2E)


def additive_log_probs(
    language: Tensor, image: Tensor, weight: Tensor, bias: Tensor, tree: PrefixTree, budget: int
) -> Tensor:
    """Compute the log-probability of every sentence given every image for logits that are a sum.

    The logits of a pair are weight · (language + image) + bias = A[p, v] + B[i, v], so all normalisers are one matrix
    product, exp(A - max A) · exp(B - max B)^T. Sums below `UNDERFLOW` occur where tokens that are probable given the
    prefix are improbable given the image; these normalisers are recomputed by logsumexp.

    Args:
        language: term of each prefix of the tree, (P, M).
        image: term of each image, (I, M).
        weight: softmax weights, (V, M).
        bias: softmax biases, (V,).
        tree: prefix tree of the sentences.
        budget: bytes of working memory: half for the logits of the images, half for a tile and its results.

    Returns:
        Natural logarithms in float32, (S, I).
    """
    scores = torch.zeros(tree.sentence_count, len(image), device=image.device, dtype=weight.dtype)
    width = max(1, budget // (4 * len(weight) * weight.element_size()))
    for left in range(0, len(image), width):
        images = slice(left, left + width)
        _add_scores(scores[:, images], language, image[images], weight, bias, tree, budget // 4)
    return scores.float()


def _add_scores(
    scores: Tensor, language: Tensor, image: Tensor, weight: Tensor, bias: Tensor, tree: PrefixTree, budget: int
) -> None:
    """Add the log-probabilities given some images (i, M) to their scores (S, i); see `additive_log_probs`."""
    image_logits = weight @ image.t()  # (V, i): B^T
    image_max = image_logits.amax(0)
    image_exp = (image_logits - image_max).exp_()
    size = weight.element_size()
    # Memory is counted per prefix and per edge, because the empty prefix has very many edges.
    cost = torch.arange(len(language) + 1) * (2 * len(weight) + 3 * len(image)) * size
    cost += tree.first_edge * 2 * len(image) * size
    bottom = 0
    while bottom < len(language):
        top = bottom
        bottom = max(top + 1, int(torch.searchsorted(cost, cost[top] + budget, right=True)) - 1)
        prefixes = slice(top, bottom)
        logits = torch.addmm(bias, language[prefixes], weight.t())  # (p, V): A
        logits_max = logits.amax(1, keepdim=True)
        sums = (logits - logits_max).exp_() @ image_exp  # (p, i)
        normaliser = sums.log().add_(logits_max).add_(image_max)
        _recompute_normaliser(normaliser, (sums < UNDERFLOW).nonzero(), logits, image_logits, budget)
        parents, tokens = tree.edges(prefixes)
        log_probs = image_logits[tokens].add_(logits[parents, tokens].unsqueeze(1)).sub_(normaliser[parents])  # (n, i)
        tree.accumulate(scores, prefixes, log_probs, budget)


def _recompute_normaliser(normaliser: Tensor, pairs: Tensor, logits: Tensor, image_logits: Tensor, budget: int) -> None:
    """Recompute the log-normalisers (p, i) of some pairs (m, 2) by logsumexp of A (p, V) and B^T (V, i), in place."""
    chunk = max(1, budget // (4 * len(image_logits) * logits.element_size()))
    for row, column in (part.unbind(1) for part in torch.split(pairs, chunk)):
        normaliser[row, column] = (logits[row] + image_logits[:, column].t()).logsumexp(1)


def _log2_probs(hidden: Tensor, weight_2: Tensor, bias_2: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
    """Compute binary logarithms of the probabilities of n edges, (n, i), from hidden units (p, i, M), in float32."""
    rows = hidden.flatten(0, 1)
    logits = torch.addmm(bias_2, rows, weight_2.t())  # (p * i, V)
    log_probs = logits.view(*hidden.shape[:2], -1)[parents, :, tokens].float()
    return log_probs.sub_(_log2_normaliser(logits, rows, weight_2, bias_2).view(hidden.shape[:2])[parents])


def _segment_ids(first: Tensor) -> Tensor:
    """Return the index k of the range [first[k], first[k + 1]) of every member of consecutive ranges."""
    return torch.repeat_interleave(torch.arange(len(first) - 1), first.diff())


def _tiles(prefixes: int, images: int, weight: Tensor, budget: int) -> Iterator[tuple[slice, slice]]:
    """Generate tiles (prefixes, images) whose logits and hidden units fit into the budget."""
    row_bytes = (2 * weight.shape[0] + 2 * weight.shape[1]) * weight.element_size() + 8 * weight.shape[1]
    rows = max(1, budget // row_bytes)
    width = max(1, min(images, rows))
    height = max(1, rows // width)
    for top in range(0, prefixes, height):
        for left in range(0, images, width):
            yield slice(top, min(top + height, prefixes)), slice(left, min(left + width, images))


def _log2_normaliser(logits: Tensor, rows: Tensor, weight_2: Tensor, bias_2: Tensor) -> Tensor:
    """Compute log2 of the sum over v of 2^logits_v, of R rows of hidden units (R, M); `logits` (R, V) are overwritten.

    Powers of two are summed without subtracting the maximum, which is exact unless they overflow or underflow; these
    rows are recomputed by logsumexp. A bfloat16 sum is rounded once, by at most 0.003 bits, a tenth of the rounding
    error of one logit of 10; a float32 sum would take as long as the matrix product.
    """
    sums = logits.exp2_().sum(1).float()
    result = sums.log2()
    inexact = ~((sums > 1e-30) & (sums < 1e30))
    if bool(inexact.any()):
        exact = torch.addmm(bias_2, rows[inexact], weight_2.t()).float() / LOG2E
        result[inexact] = exact.logsumexp(1) * LOG2E
    return result
