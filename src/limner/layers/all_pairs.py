"""Log-probabilities of every sentence with every picture, where the two meet just before the softmax.

The exact all-pairs matrix for models whose recurrent states do not depend on the picture, in tiles of one large
matrix product each, within a memory budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

import torch
from torch import Tensor

from limner.data.examples import Batch

LOG2E = math.log2(math.e)
FAINT = 1e-20
"""Sums of exponentials below this are taken again: what has vanished among their terms might count."""


class PrefixTree(NamedTuple):
    """The different prefixes of some sentences, and the words that follow them.

    Sentences that begin alike share the work: the softmax after 'a man in a' is computed once a picture. An edge is
    a (prefix, next word) that occurs; edges are sorted by prefix, their uses by edge.
    """

    row: Tensor  # (P,) the first sentence that has the prefix, never falling
    column: Tensor  # (P,) and the position where it ends
    first_edge: Tensor  # (P + 1,) the edges of prefix p are first_edge[p] … first_edge[p + 1]
    word: Tensor  # (N,) the word of each edge
    first_use: Tensor  # (N + 1,) the uses of edge n are first_use[n] … first_use[n + 1]
    sentence: Tensor  # (U,) the sentence of each use, one for each word of each sentence
    sentences: int

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Build the tree of a batch's sentences."""
        lengths = batch.target_mask.sum(1).tolist()
        words = [row[:length] for row, length in zip(batch.target_out.tolist(), lengths, strict=True)]
        prefixes: dict[tuple[int, int], int] = {}  # (prefix before, word) -> prefix
        places = [(0, 0)]
        uses: dict[tuple[int, int], list[int]] = {}  # (prefix, word) -> sentences
        for sentence, sequence in enumerate(words):
            node = 0
            for column, word in enumerate(sequence):
                edge = (node, word)
                uses.setdefault(edge, []).append(sentence)
                if column + 1 < len(sequence):
                    node = prefixes.setdefault(edge, len(places))
                    if node == len(places):
                        places.append((sentence, column + 1))
        edges = sorted(uses)
        counts = torch.zeros(len(places) + 1, dtype=torch.long)
        if edges:
            counts[1:] = torch.bincount(torch.tensor([node for node, _ in edges]), minlength=len(places))
        use_counts = torch.tensor([0] + [len(uses[edge]) for edge in edges])
        return cls(
            row=torch.tensor([row for row, _ in places]),
            column=torch.tensor([column for _, column in places]),
            first_edge=counts.cumsum(0),
            word=torch.tensor([word for _, word in edges], dtype=torch.long),
            first_use=use_counts.cumsum(0),
            sentence=torch.tensor([s for edge in edges for s in uses[edge]], dtype=torch.long),
            sentences=len(words),
        )

    def edges(self, prefixes: slice) -> tuple[Tensor, Tensor]:
        """The edges of some prefixes: which of these each goes out from, (n,), and its word, (n,)."""
        owner = _owners(self.first_edge[prefixes.start : prefixes.stop + 1])
        return owner, self.word[int(self.first_edge[prefixes.start]) : int(self.first_edge[prefixes.stop])]

    def credit(self, scores: Tensor, prefixes: slice, gained: Tensor, budget: int) -> None:
        """Add the log-probabilities of the edges of some prefixes, (n, i), to their sentences' scores, (S, i)."""
        first, last = int(self.first_edge[prefixes.start]), int(self.first_edge[prefixes.stop])
        users = _owners(self.first_use[first : last + 1])
        sentences = self.sentence[int(self.first_use[first]) : int(self.first_use[last])]
        at_once = max(1, budget // (gained.shape[1] * gained.element_size()))
        for some, theirs in zip(torch.split(users, at_once), torch.split(sentences, at_once), strict=True):
            scores.index_add_(0, theirs.to(scores.device), gained[some])


def tanh_of_sum(language: Tensor, picture: Tensor) -> Tensor:
    """The hidden units of every pair where the two are added: (p, M) and (i, M) to (p, i, M)."""
    return torch.tanh(language.unsqueeze(1) + picture)


def softmax_log_probs(
    language: Tensor,
    picture: Tensor,
    weight: Tensor,
    bias: Tensor,
    tree: PrefixTree,
    budget: int,
    meet: Callable[[Tensor, Tensor], Tensor] = tanh_of_sum,
) -> Tensor:
    """Log-probability of every sentence given every picture where logits = weight · meet(language, picture) + bias.

    Args:
        language: what each prefix of the tree contributes, (P, M).
        picture: what each picture contributes, (I, N).
        weight: (V, M); its type (float32 or bfloat16) is the type of the matrix products.
        bias: (V,).
        tree: the prefixes of the sentences.
        budget: bytes of working memory a tile may take.
        meet: the hidden units of some pairs, (p, M) and (i, N) to (p, i, M).

    Returns:
        (S, I) in float32, natural logarithm.
    """
    kind = weight.dtype
    scores = torch.zeros(tree.sentences, len(picture), device=picture.device)
    base2 = (weight.float() * LOG2E).to(kind).t()
    bias2 = (bias.float() * LOG2E).to(kind)
    language, picture = language.float(), picture.float()
    for prefixes, pictures in _tiles(len(language), len(picture), weight, budget):
        hidden = meet(language[prefixes], picture[pictures]).to(kind)  # (p, i, M)
        owner, words = tree.edges(prefixes)
        gained = _log2_probs(hidden, base2, bias2, owner, words)
        tree.credit(scores[:, pictures], prefixes, gained, budget)
    return scores.div_(LOG2E)


def additive_log_probs(
    language: Tensor, picture: Tensor, weight: Tensor, bias: Tensor, tree: PrefixTree, budget: int
) -> Tensor:
    """Log-probability of every sentence given every picture where logits = weight · (language + picture) + bias.

    The logits of a pair are a sum, A[p, v] + B[i, v], so all its normalisers over the vocabulary are one matrix
    product: exp(A - max A) · exp(B - max B)^T. Where such a sum is too faint to be trusted, since what is probable
    by the words is not by the picture, the pair is computed again by logsumexp.

    Args:
        language: what each prefix of the tree contributes, (P, M).
        picture: what each picture contributes, (I, M).
        weight: (V, M).
        bias: (V,).
        tree: the prefixes of the sentences.
        budget: bytes of working memory: half for what the pictures show, the rest for a tile and what becomes of it.

    Returns:
        (S, I) in float32, natural logarithm.
    """
    scores = torch.zeros(tree.sentences, len(picture), device=picture.device, dtype=weight.dtype)
    width = max(1, budget // (4 * len(weight) * weight.element_size()))
    for left in range(0, len(picture), width):
        some = slice(left, left + width)
        _add_scores(scores[:, some], language, picture[some], weight, bias, tree, budget // 4)
    return scores.float()


def _add_scores(
    scores: Tensor, language: Tensor, picture: Tensor, weight: Tensor, bias: Tensor, tree: PrefixTree, budget: int
) -> None:
    """Add the log-probabilities of some pictures (i, M) to their scores (S, i); see `additive_log_probs`."""
    shown = weight @ picture.t()  # (V, I): B^T
    brightest = shown.amax(0)
    factors = (shown - brightest).exp_()
    size = weight.element_size()
    # Of the empty prefix so many edges go out that they count beside the prefixes.
    cost = torch.arange(len(language) + 1) * (2 * len(weight) + 3 * len(picture)) * size
    cost += tree.first_edge * 2 * len(picture) * size
    bottom = 0
    while bottom < len(language):
        top = bottom
        bottom = max(top + 1, int(torch.searchsorted(cost, cost[top] + budget, right=True)) - 1)
        prefixes = slice(top, bottom)
        said = torch.addmm(bias, language[prefixes], weight.t())  # (p, V): A
        loudest = said.amax(1, keepdim=True)
        sums = (said - loudest).exp_() @ factors  # (p, I)
        normaliser = sums.log().add_(loudest).add_(brightest)
        _mend(normaliser, (sums < FAINT).nonzero(), said, shown, budget)
        owner, words = tree.edges(prefixes)
        gained = shown[words].add_(said[owner, words].unsqueeze(1)).sub_(normaliser[owner])  # (n, I)
        tree.credit(scores, prefixes, gained, budget)


def _mend(normaliser: Tensor, faint: Tensor, said: Tensor, shown: Tensor, budget: int) -> None:
    """Compute the normalisers (p, I) of some (prefix, picture) pairs (n, 2) again, the long way."""
    at_once = max(1, budget // (4 * len(shown) * said.element_size()))
    for row, column in (some.unbind(1) for some in torch.split(faint, at_once)):
        normaliser[row, column] = (said[row] + shown[:, column].t()).logsumexp(1)


def _log2_probs(hidden: Tensor, base2: Tensor, bias2: Tensor, owner: Tensor, words: Tensor) -> Tensor:
    """Binary logarithm of the probability of some words, each after one of the prefixes.

    Args:
        hidden: of each prefix with each picture, (p, i, M).
        base2: softmax weights times log2(e), (M, V).
        bias2: softmax biases times log2(e), (V,).
        owner: the prefix of each word, (n,).
        words: (n,).

    Returns:
        (n, i) in float32.
    """
    rows = hidden.flatten(0, 1)
    logits = torch.addmm(bias2, rows, base2)  # (p * i, V)
    gained = logits.view(*hidden.shape[:2], -1)[owner, :, words].float()
    return gained.sub_(_log2_normaliser(logits, rows, base2, bias2).view(hidden.shape[:2])[owner])


def _owners(first: Tensor) -> Tensor:
    """Ranges [first[k], first[k+1]) to the index k of every member."""
    return torch.repeat_interleave(torch.arange(len(first) - 1), first.diff())


def _tiles(prefixes: int, pictures: int, weight: Tensor, budget: int) -> Iterator[tuple[slice, slice]]:
    """Tiles of (prefixes, pictures) whose logits and hidden units stay within the budget."""
    row_bytes = (2 * weight.shape[0] + 2 * weight.shape[1]) * weight.element_size() + 8 * weight.shape[1]
    rows = max(1, budget // row_bytes)
    width = max(1, min(pictures, rows))
    height = max(1, rows // width)
    for top in range(0, prefixes, height):
        for left in range(0, pictures, width):
            yield slice(top, min(top + height, prefixes)), slice(left, min(left + width, pictures))


def _log2_normaliser(logits: Tensor, rows: Tensor, base2: Tensor, bias2: Tensor) -> Tensor:
    """log2 of sum over v of 2^logits_v in float32, where logits = rows · base2 + bias2, which are overwritten.

    Powers of two are summed without shifting, which is exact while they neither overflow nor vanish; the rows where
    they do are found and computed again by logsumexp. A sum of bfloat16 is rounded to bfloat16 once, by at most
    0.003 bits, a tenth of what the rounding of one logit of 10 costs; a float32 sum takes as long as the product.
    """
    sums = logits.exp2_().sum(1).float()
    result = sums.log2()
    doubtful = ~((sums > 1e-30) & (sums < 1e30))
    if bool(doubtful.any()):
        again = torch.addmm(bias2, rows[doubtful], base2).float() / LOG2E
        result[doubtful] = again.logsumexp(1) * LOG2E
    return result
