"""Search by probability: the score of every sentence with every picture, and rankings made from it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from limner.checkpoint import Checkpoint
from limner.data.batching import Examples, Pictures, PictureSource
from limner.data.collection import Collection
from limner.data.examples import Batch, Example, Item, Visual, collate, collate_visual
from limner.errors import CollectionError
from limner.hardware import native_bf16
from limner.metrics.base import Score
from limner.metrics.ranks import RetrievalRanks, rank_all, retrieval_curves, retrieval_scores
from limner.models.protocols import Model, PairScorer
from limner.records import FoundPicture, FoundSentence, PictureQuery, RecallCurves, Retrieval, SentenceQuery
from limner.text.vocab import Tokenizer
from limner.training.objectives import sentence_log_probs

BUDGET = 64 << 20
"""Default working memory of a tile, in bytes: small enough for the caches, large enough for fast products."""

PICTURES_AT_ONCE = 1024
MARGINAL_PICTURES = 1000
SHOWN_QUERIES = 12
SHOWN_FOUND = 5

Progress = Callable[[int, int], None]

logger = logging.getLogger(__name__)


@torch.inference_mode()
def pair_log_probs(
    model: Model,
    targets: Sequence[Sequence[int]],
    items: Sequence[Item],
    pictures: PictureSource | None,
    *,
    budget: int = BUDGET,
    bf16: bool = False,
    progress: Progress | None = None,
) -> Tensor:
    """Log-probability of every sentence given every picture, exactly.

    Args:
        model: any model; one that is a `PairScorer` is asked, others score tile after tile by `forward`.
        targets: S sentences as ids, without signs.
        items: I items, whose pictures they are.
        pictures: where their features are; None for a model that looks at none.
        budget: bytes of working memory; what is read of the pictures comes on top, a thousand at a time.
        bf16: whether matrix products may be made in bfloat16.
        progress: told the pictures that are done, and how many there are.

    Returns:
        (S, I), natural logarithm, on the CPU.
    """
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    sentences = collate([Example("", target) for target in targets]).to(device)
    dtype = torch.bfloat16 if bf16 else torch.float32
    columns = []
    for begin in range(0, len(items), PICTURES_AT_ONCE):
        some = items[begin : begin + PICTURES_AT_ONCE]
        visual = collate_visual(pictures.take(some) if pictures else [None] * len(some)).to(device)
        if isinstance(model, PairScorer) and model.separable:
            columns.append(model.pair_log_probs(visual, sentences, budget, dtype).cpu())
        else:
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                columns.append(tiled_log_probs(model, visual, sentences, budget).cpu())
        if progress is not None:
            progress(begin + len(some), len(items))
    model.train(training)
    return torch.cat(columns, 1)


def tiled_log_probs(model: Model, visual: Visual, sentences: Batch, budget: int) -> Tensor:
    """The general way: (sentence, picture) pairs through `forward`, as many at once as the budget allows.

    Arguments and result as those of `PairScorer.pair_log_probs`.
    """
    count = len(visual.present)
    length = sentences.target_in.shape[1]
    rows = max(1, budget // (length * model.vocab_size * 4 * 3))  # logits, their softmax and a copy
    width = min(count, rows)
    height = max(1, rows // width)
    scores = torch.empty(len(sentences), count, device=visual.present.device)
    for top in range(0, len(sentences), height):
        chosen = torch.arange(top, min(top + height, len(sentences)), device=scores.device)
        for left in range(0, count, width):
            seen = torch.arange(left, min(left + width, count), device=scores.device)
            pairs = _pairs(sentences, visual, chosen, seen)
            found = sentence_log_probs(model(pairs), pairs)
            scores[chosen[:, None], seen] = found.view(len(chosen), len(seen)).float()
    return scores


def _pairs(sentences: Batch, visual: Visual, chosen: Tensor, seen: Tensor) -> Batch:
    left = chosen.repeat_interleave(len(seen))
    length = int(sentences.target_mask[chosen].sum(1).max())
    return replace(
        sentences,
        ids=("",) * len(left),
        visual=visual.select(seen.repeat(len(chosen))),
        target_in=sentences.target_in[left, :length],
        target_out=sentences.target_out[left, :length],
        target_mask=sentences.target_mask[left, :length],
    )


def log_marginal(scores: Tensor) -> Tensor:
    """Log of the mean of P(w|I') over sampled pictures: (S, I') to (S,).

    The denominator of Mao et al. (2015), eq. 7; their sum instead of the mean changes no ranking.
    """
    return torch.logsumexp(scores.double(), 1).float() - float(np.log(scores.shape[1]))


def normalised_log_probs(
    model: Checkpoint,
    examples: Examples,
    others: Sequence[Item],
    *,
    budget: int,
    progress: Progress | None = None,
) -> Tensor:
    """Log P(w|I) - log P(w) of every sentence with every picture of the examples, (S, I).

    For a given picture this ranks sentences by eq. 7 of Mao et al. (2015); for a given sentence it ranks pictures
    by P(w|I), since P(w) is the same for all of them.

    Args:
        model: gives the probabilities.
        examples: S sentences about I items.
        others: the pictures of the marginal P(w); none for the examples' own.
        budget: bytes of working memory.
        progress: told the pictures that are done, and how many there are.

    Raises:
        CollectionError: an item has no picture.
    """
    missing = [item.id for item in examples.items if item.image is None]
    if missing:
        raise CollectionError(f"item '{missing[0]}' has no picture; search needs one for every item of the split")
    device = next(model.model.parameters()).device
    bf16 = native_bf16(device) and model.recipe.training.precision != "fp32"
    items = [*examples.items, *others]
    scores = pair_log_probs(
        model.model, examples.targets, items, examples.pictures, budget=budget, bf16=bf16, progress=progress
    )
    own, marginal = scores[:, : len(examples.items)], scores[:, len(examples.items) :]
    return own - log_marginal(marginal if others else own).unsqueeze(1)


def sampled_items(collection: Collection, split: str, pictures: Pictures, count: int, seed: int) -> list[Item]:
    """Up to `count` items of a split that have a picture, drawn by the seed; none if there is no such split."""
    if split not in collection.splits():
        return []
    items = [item for item in collection.items(split) if item.image is not None and pictures.knows(item)]
    order = np.random.default_rng(seed).permutation(len(items))[:count]
    return [items[row] for row in sorted(order)]


class Searched(NamedTuple):
    """Search measured both ways."""

    scores: tuple[Score, ...]
    shown: Retrieval | None
    """Examples and curves for the report."""


def measure_search(
    model: Checkpoint,
    examples: Examples,
    collection: Collection,
    others: Sequence[Item],
    *,
    budget: int,
    seed: int,
    progress: Progress | None = None,
) -> Searched:
    """Search the sentences of a split by its pictures, and its pictures by its sentences.

    Args:
        model: gives the probabilities.
        examples: of the split; items without a picture are left out.
        collection: where they are from.
        others: the pictures of the marginal P(w), see `normalised_log_probs`.
        budget: bytes of working memory.
        seed: of the examples shown.
        progress: told the pictures that are done, and how many there are.
    """
    searched = _with_pictures(examples, model.tokenizer)
    if searched is None:
        return Searched((), None)
    matrix = normalised_log_probs(model, searched, others, budget=budget, progress=progress)
    ranks = rank_all(matrix.numpy(), searched.owners)
    normalised = f"|marginal:{len(others) or 'own'}"
    scores = tuple(
        score._replace(signature=score.signature + normalised) if score.name.startswith("image_to_text") else score
        for score in retrieval_scores(ranks, searched.owners)
    )
    curves = RecallCurves(**retrieval_curves(ranks, searched.owners))
    return Searched(scores, _shown(matrix, searched, collection, ranks, curves, seed))


def _with_pictures(examples: Examples, tokenizer: Tokenizer) -> Examples | None:
    """Those about items that have a picture; the others cannot be searched."""
    items = [item for item in examples.items if item.image is not None]
    if len(items) == len(examples.items):
        return examples
    absent = len(examples.items) - len(items)
    logger.warning("search is measured without the %d items that have no picture", absent)
    if not items:
        return None
    return Examples(items, tokenizer, examples.lang, examples.pictures, max_words=1 << 30)


def _shown(
    matrix: Tensor,
    examples: Examples,
    collection: Collection,
    ranks: RetrievalRanks,
    curves: RecallCurves,
    seed: int,
) -> Retrieval:
    random = np.random.default_rng(seed)
    items = examples.items

    def found_sentences(picture: int) -> tuple[FoundSentence, ...]:
        best = matrix[:, picture].topk(min(SHOWN_FOUND, len(matrix))).indices.tolist()
        return tuple(FoundSentence(text=examples.texts[row], right=examples.owners[row] == picture) for row in best)

    def found_pictures(sentence: int) -> tuple[FoundPicture, ...]:
        best = matrix[sentence].topk(min(SHOWN_FOUND, matrix.shape[1])).indices.tolist()
        right = examples.owners[sentence]
        return tuple(
            FoundPicture(id=items[row].id, image=collection.image_file(items[row]), right=row == right) for row in best
        )

    return Retrieval(
        image_to_text=tuple(
            PictureQuery(
                id=items[row].id,
                image=collection.image_file(items[row]),
                rank=int(ranks.image_to_text[row]),
                top=found_sentences(row),
            )
            for row in islice(random.permutation(len(items)).tolist(), SHOWN_QUERIES)
        ),
        text_to_image=tuple(
            SentenceQuery(
                text=examples.texts[row],
                rank=int(ranks.text_to_image[row]),
                image_id=items[examples.owners[row]].id,
                top=found_pictures(row),
            )
            for row in islice(random.permutation(len(examples)).tolist(), SHOWN_QUERIES)
        ),
        curves=curves,
    )
