"""Training of models that embed sentences and images in one space: contrastive losses and the loss of paraphrases.

Shapes: S sentences and I images of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from limner.data.examples import Batch
from limner.models.protocols import Mean
from limner.models.two_tower import TwoTower
from limner.training.processes import StepLoss

if TYPE_CHECKING:
    from limner.training.context import TrainingContext


def contrastive_loss(cosines: Tensor, owners: Tensor, margin: float, *, hardest: bool) -> Tensor:
    """Compute the hinge loss of Faghri et al. (2018), eqs. 5 and 6, per sentence.

    With [a]_+ = max(a, 0), images I' that sentence w does not describe, and sentences w' that do not describe its
    image I, the loss of a pair (w, I) is

        sum of hinges (eq. 5):  sum_w' [margin + s(w', I) - s(w, I)]_+  +  sum_I' [margin + s(w, I') - s(w, I)]_+
        max of hinges (eq. 6):  the largest term of each sum in place of the sum (`hardest`)

    Args:
        cosines: s(w, I) of all pairs of the group, (S, I).
        owners: column of the image of each sentence, (S,).
        margin: margin alpha.
        hardest: whether only the hardest negatives count.

    Returns:
        Mean over the S pairs, scalar.
    """
    rows = torch.arange(len(owners), device=owners.device)
    matching = cosines[rows, owners]
    positive = torch.zeros_like(cosines, dtype=torch.bool)
    positive[rows, owners] = True
    images = (margin + cosines - matching[:, None]).clamp(min=0).masked_fill(positive, 0)  # (S, I): I' for each w
    same_image = owners[:, None] == owners[None, :]
    hinges = (margin + cosines[:, owners].t() - matching[:, None]).clamp(min=0)  # (S, S): w'
    sentences = hinges.masked_fill(same_image, 0)
    if hardest:
        return (images.amax(1) + sentences.amax(1)).mean()
    return (images.sum(1) + sentences.sum(1)).mean()


def softmax_loss(logits: Tensor, owners: Tensor, sentences: Tensor) -> Tensor:
    """Compute the cross-entropies of the matching pairs in both directions, the sum of two means.

    With l(w, I) = gamma s(w, I) and W_I the sentences of image I (van den Oord et al., 2018; Radford et al., 2021, for
    one sentence an image). A pair (w, I) that does not belong together, though image I has a sentence equal to w, is
    left out of both sums: a class of photographs may share a sentence.

        mean_w -log(exp l(w, I_w) / sum_I exp l(w, I))  +  mean_I -log(sum_{w in W_I} exp l(w, I) / sum_w exp l(w, I))

    Args:
        logits: l(w, I) of all pairs of the group, (S, I).
        owners: column of the image of each sentence, (S,).
        sentences: token ids of the sentences, (S, T).
    """
    matching = torch.zeros_like(logits, dtype=torch.bool)
    matching[torch.arange(len(owners), device=owners.device), owners] = True
    logits = logits.masked_fill(_describes(owners, sentences).t() & ~matching, -torch.inf)
    of_image = logits.masked_fill(~matching, -torch.inf)
    return -logits.log_softmax(1)[matching].mean() - (of_image.logsumexp(0) - logits.logsumexp(0)).mean()


def paraphrase_loss(logits: Tensor, owners: Tensor, sentences: Tensor) -> Tensor:
    """Compute the cross-entropy of the other sentences of an item, a softmax among the sentences of a group.

    With l(w, w') = gamma u(w) · u(w') and the other sentences W_w of the item of sentence w,

        mean_w -log(sum_{w' in W_w} exp l(w, w') / sum_{w' != w} exp l(w, w'))

    over the sentences with another sentence of their item; 0 if there are none. A sentence w' of another item that is
    equal to a sentence of the item of w is left out of the sums.

    Args:
        logits: l(w, w'), (S, S).
        owners: number of the item of each sentence, (S,).
        sentences: token ids of the sentences, (S, T).
    """
    same = owners[:, None] == owners[None, :]
    same.fill_diagonal_(False)
    rows = same.any(1)
    if not rows.any():
        return logits.sum() * 0
    # w itself is no pair of `same`, and is equal to a sentence of its item
    logits = logits.masked_fill(_describes(owners, sentences)[owners] & ~same, -torch.inf)
    return (logits.logsumexp(1) - logits.masked_fill(~same, -torch.inf).logsumexp(1))[rows].mean()


def _describes(owners: Tensor, sentences: Tensor) -> Tensor:
    """Whether each sentence (S,) is equal to a sentence of each item (I,): (I, S)."""
    _, number = torch.unique(sentences, dim=0, return_inverse=True)
    has = torch.zeros(int(owners.max()) + 1, int(number.max()) + 1, dtype=torch.bool, device=owners.device)
    has[owners, number] = True
    return has[:, number]


class Matching:
    """Objective of a `TwoTower`: the loss of pairs of a sentence and an image, and of the sentences of one item.

    Every batch is a group of `training.batch_size` items with all their sentences; each epoch has other random groups.
    """

    def __init__(self, run: TrainingContext) -> None:
        """Prepare the training of a run."""
        self.run, self.settings, self.examples = run, run.settings.matching, run.training_set
        self.model = run.trained.model

    def epoch_batches(self, epoch: int) -> list[list[int]]:
        """Draw the batches of an epoch: the rows of each group."""
        rows_of: dict[int, list[int]] = {}
        for row, owner in enumerate(self.examples.owners):
            rows_of.setdefault(owner, []).append(row)
        settings = self.run.settings
        order = np.random.default_rng([settings.seed, 0x6D61, epoch]).permutation(sorted(rows_of)).tolist()
        groups = [order[begin : begin + settings.batch_size] for begin in range(0, len(order), settings.batch_size)]
        if len(groups) > 1 and len(groups[-1]) == 1:  # one image has nothing to be compared with
            groups[-2:] = [groups[-2] + groups[-1]]
        return [[row for item in group for row in rows_of[item]] for group in groups]

    def batch(self, rows: Sequence[int], epoch: int = 0) -> Batch:
        """Collate the sentences of a group with their images."""
        return self.examples.batch(rows)

    def loss(self, batch: Batch, epoch: int) -> StepLoss:
        """Compute the loss of a group; items without an image have only the loss of paraphrases."""
        assert self.run.optimization is not None and isinstance(self.model, TwoTower)
        settings, numbers = self.settings, dict[str, int]()
        owners = torch.tensor([numbers.setdefault(item, len(numbers)) for item in batch.ids])  # (S,)
        first = torch.tensor([batch.ids.index(item) for item in numbers])
        owners, first = owners.to(batch.target_in.device), first.to(batch.target_in.device)
        shown = batch.image.present[first]  # (I,)
        described, columns = shown[owners], shown.cumsum(0) - 1
        with self.run.optimization.fabric.autocast():
            vectors = self.model.sentence_vector(batch)
            cosines = vectors[described] @ self.model.image_vector(batch.image.select(first[shown])).t()
        sharpness, owners_of_images, loss = (
            self.model.log_sharpness.exp(),
            columns[owners[described]],
            vectors.sum() * 0,
        )
        if shown.any() and settings.negatives == "softmax":
            loss = softmax_loss(sharpness * cosines.float(), owners_of_images, batch.target_out[described])
        elif shown.any():
            hardest = settings.negatives == "hardest"
            loss = contrastive_loss(cosines.float(), owners_of_images, settings.margin, hardest=hardest)
        if settings.paraphrases:
            logits = sharpness * (vectors @ vectors.t()).float()
            loss = loss + settings.paraphrases * paraphrase_loss(logits, owners, batch.target_out)
        return StepLoss((Mean(loss, 1),), int(batch.target_mask.sum()))
