"""Log-probabilities of sentences given images by a tree of their prefixes: a common prefix is read once per image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from limner.data.examples import Batch, Example, ImageFeatures, collate
from limner.decoding.torch_models import select
from limner.layers.functional import precise
from limner.models.protocols import Memory, Model
from limner.progress import Progress
from limner.text.vocab import SPECIAL_TOKENS

BYTES_PER_LOGIT = 12
"""Memory of a logit, of its logarithm and of a copy, in float32."""
IMAGES_PER_TILE = 8
"""Images that a step reads; the more of them, the fewer sentences (and so common prefixes) a tree has."""


class Level(NamedTuple):
    """The K distinct prefixes of one length: each is a prefix of the level above and one more token."""

    parents: Tensor  # (K,): rows among those prefixes of the level above that are continued
    tokens: Tensor  # (K,): last tokens
    continued: Tensor  # (K',): rows of the prefixes that are not whole sentences
    sentences: Tensor  # (E,): sentences that end at this level
    ends: Tensor  # (E,): their rows


def prefix_tree(sentences: Sequence[Sequence[int]], device: torch.device | None = None) -> list[Level]:
    """Build the tree of sentences, token ids with the end-of-sentence token; level t holds the prefixes of t + 1."""
    levels: list[Level] = []
    parents = dict.fromkeys(range(len(sentences)), 0)  # of each sentence that goes on
    for length in range(max(map(len, sentences), default=0)):
        rows: dict[tuple[int, int], int] = {}
        row_of = {
            sentence: rows.setdefault((row, sentences[sentence][length]), len(rows))
            for sentence, row in parents.items()
        }
        ended = [sentence for sentence in row_of if len(sentences[sentence]) == length + 1]
        going_on = [sentence for sentence in row_of if len(sentences[sentence]) > length + 1]
        continued = {row: number for number, row in enumerate(dict.fromkeys(row_of[sentence] for sentence in going_on))}
        columns = (*zip(*rows, strict=True), list(continued), ended, [row_of[sentence] for sentence in ended])
        levels.append(Level(*(torch.tensor(column, dtype=torch.long, device=device) for column in columns)))
        parents = {sentence: continued[row_of[sentence]] for sentence in going_on}
    return levels


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
    targets = _targets(sentences)
    trees = [prefix_tree(targets[top : top + height], device) for top in range(0, len(targets), height)]
    scores = torch.empty(len(sentences), count, device=device)
    width = max(1, pairs // height)
    for left in range(0, count, width):
        columns = torch.arange(left, min(left + width, count), device=device)
        tile = replace(collate([Example("", ())] * len(columns)).to(device), image=image.select(columns))
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            memory = model.encode(tile)
            parts = [_read(model, memory, tree, len(columns)) for tree in trees]
        scores[:, columns] = torch.cat(parts).float()
        if on_progress is not None:
            on_progress(len(sentences) * (left + len(columns)), len(sentences) * count)
    return scores


def _read(model: Model, memory: Memory, tree: Sequence[Level], images: int) -> Tensor:
    """Compute the log-probabilities of the sentences of a tree given each image of a memory, (S, I)."""
    state, first = model.start(memory), torch.zeros_like(tree[0].tokens[:1])
    tokens, total = first + SPECIAL_TOKENS.bos, torch.zeros(images, 1, device=first.device)
    offsets = torch.arange(images, device=first.device)[:, None]
    ended: list[Tensor] = []
    for level in tree:
        width = total.shape[1]  # prefixes that are continued
        logits, state = model.step(tokens.repeat(images), memory, state)
        logits = precise(logits).view(images, width, -1)
        log_probs = logits[:, level.parents, level.tokens] - logits.logsumexp(-1)[:, level.parents]  # (I, K)
        total = total[:, level.parents] + log_probs
        ended.append(total[:, level.ends])
        total, tokens = total[:, level.continued], level.tokens[level.continued]
        if len(tokens):
            state = select(state, (offsets * width + level.parents[level.continued]).flatten())
    order = torch.cat([level.sentences for level in tree]).argsort()
    return torch.cat(ended, 1)[:, order].T


def _targets(sentences: Batch) -> list[list[int]]:
    """Return the token ids of each sentence, with the end-of-sentence token."""
    rows = zip(sentences.target_out.tolist(), sentences.target_mask.sum(1).tolist(), strict=True)
    return [tokens[:length] for tokens, length in rows]
