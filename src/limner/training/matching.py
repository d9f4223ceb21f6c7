"""Training of models that embed sentences and images in one space: contrastive loss and distillation of a teacher.

Shapes: S sentences and I images of a group, N training sentences, G images of a full group, P partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import kl_div

from limner.data.dataset import Examples
from limner.data.examples import Batch
from limner.errors import SettingsError
from limner.inference.collection_features import open_features
from limner.models.protocols import Mean
from limner.models.two_tower import TwoTower
from limner.retrieval.all_pairs import pair_log_probs, uses_bf16
from limner.runs.trained_model import TrainedModel, load_trained_model, model_fingerprint
from limner.storage.tensors import read_tensors, save_tensors
from limner.training.processes import StepLoss

if TYPE_CHECKING:
    from limner.training.context import TrainingContext

logger = logging.getLogger(__name__)

TEACHER_SCORES = "teacher_scores.safetensors"
"""File in the run directory with the teacher's log-probabilities of the training pairs."""


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
    own = torch.zeros_like(logits, dtype=torch.bool)
    own[torch.arange(len(owners), device=owners.device), owners] = True
    _, number = torch.unique(sentences, dim=0, return_inverse=True)
    shared = (number[:, None] == number[None, :]).float() @ own.float() > 0  # (S, I): w describes I too
    logits = logits.masked_fill(shared & ~own, -torch.inf)
    of_image = logits.masked_fill(~own, -torch.inf)
    return -logits.log_softmax(1)[own].mean() - (of_image.logsumexp(0) - logits.logsumexp(0)).mean()


def distillation_loss(logits: Tensor, log_probs: Tensor, temperature: float) -> Tensor:
    """Compute the Kullback-Leibler divergences of the student's rankings from the teacher's, in both directions.

    With the teacher's scores of the S I pairs of a group and log P(w) the log of the mean of P(w|I') over its images,

        p(I|w) = softmax_I(log P(w|I) / tau)                     p(w|I) = softmax_w((log P(w|I) - log P(w)) / tau)
        q(I|w) = softmax_I(gamma s(w, I))                        q(w|I) = softmax_w(gamma s(w, I))
        loss = 1/S sum_w KL(p(·|w) || q(·|w)) + 1/I sum_I KL(p(·|I) || q(·|I))

    The second term ranks sentences by eq. 7 of Mao et al. (2015).

    Args:
        logits: gamma s(w, I), (S, I).
        log_probs: log P(w|I) of the teacher, natural logarithms, (S, I).
        temperature: tau; larger values give more weight to the order of improbable images.
    """
    marginal = log_probs.logsumexp(1, keepdim=True) - np.log(log_probs.shape[1])

    def divergence(student: Tensor, teacher: Tensor, dim: int) -> Tensor:
        log_q, log_p = student.log_softmax(dim), (teacher / temperature).log_softmax(dim)
        return kl_div(log_q, log_p, reduction="sum", log_target=True) / student.shape[1 - dim]

    return divergence(logits, log_probs, 1) + divergence(logits, log_probs - marginal, 0)


class Group(NamedTuple):
    """Images that are compared with each other, and their sentences."""

    images: list[int]
    """Indices of I items."""
    rows: list[int]
    """Examples of these items, S sentences."""


def partition(examples: Examples, size: int, seed: int, number: int) -> list[Group]:
    """Cut the items of the training split into groups of `size` at random; each number gives another partition."""
    by_item: dict[int, list[int]] = {}
    for row, owner in enumerate(examples.owners):
        by_item.setdefault(owner, []).append(row)
    order = np.random.default_rng([seed, 0x6D61, number]).permutation(sorted(by_item)).tolist()
    groups = [order[begin : begin + size] for begin in range(0, len(order), size)]
    if len(groups) > 1 and len(groups[-1]) == 1:  # one image has nothing to be compared with
        groups[-2] += groups.pop()
    return [Group(group, [row for item in group for row in by_item[item]]) for group in groups]


class Matching:
    """Objective of a `TwoTower`: the contrastive loss, and the distillation of a teacher if there is one.

    Every batch is a group of `training.batch_size` images with all their sentences. Without a teacher each epoch has
    another random partition into groups. The teacher scores all pairs of each group of `training.matching.partitions`
    partitions once, before the first epoch, and the epochs use them in turn.
    """

    def __init__(self, run: TrainingContext) -> None:
        """Compute the teacher's scores, or read the scores that an interrupted training stored."""
        self.run, self.settings, self.examples = run, run.settings.matching, run.training_set
        self.model = run.trained.model
        self._groups: dict[int, list[Group]] = {}
        self.teacher = None if self.settings.teacher is None else self._teacher_scores(self.settings.teacher)

    def epoch_batches(self, epoch: int) -> list[list[int]]:
        """Draw the batches of an epoch: the rows of each group, in random order."""
        return [group.rows for group in self._epoch_groups(epoch)]

    def batch(self, rows: Sequence[int], epoch: int = 0) -> Batch:
        """Collate the sentences of a group with their images."""
        return self.examples.batch(rows)

    def loss(self, batch: Batch, epoch: int) -> StepLoss:
        """Compute the loss of a group."""
        assert self.run.optimization is not None and isinstance(self.model, TwoTower)
        group = self._epoch_groups(epoch)[self.run.state.batch]
        columns = {item: column for column, item in enumerate(group.images)}
        owners = torch.tensor([columns[self.examples.owners[row]] for row in group.rows], device=batch.target_in.device)
        first = torch.tensor([int((owners == column).nonzero()[0]) for column in range(len(group.images))])
        with self.run.optimization.fabric.autocast():
            images = self.model.image_vector(batch.image.select(first))
            cosines = self.model.sentence_vector(batch) @ images.t()
        settings, cosines = self.settings, cosines.float()
        logits = self.model.log_sharpness.exp() * cosines
        if settings.negatives == "softmax":
            loss = softmax_loss(logits, owners, batch.target_out)
        else:
            loss = contrastive_loss(cosines, owners, settings.margin, hardest=settings.negatives == "hardest")
        loss = settings.contrastive * loss
        if self.teacher is not None:
            number = epoch % settings.partitions
            log_probs = self.teacher[number, group.rows, : len(group.images)].to(cosines.device)
            loss = loss + settings.distillation * distillation_loss(logits, log_probs, settings.temperature)
        return StepLoss((Mean(loss, 1),), int(batch.target_mask.sum()))

    def _epoch_groups(self, epoch: int) -> list[Group]:
        """Return the groups of an epoch in their order."""
        if epoch not in self._groups:
            number = epoch if self.teacher is None else epoch % self.settings.partitions
            groups, seed = self._partition(number), self.run.settings.seed
            order = np.random.default_rng([seed, 0x67726F, epoch]).permutation(len(groups))
            self._groups = {epoch: [groups[k] for k in order]}
        return self._groups[epoch]

    def _partition(self, number: int) -> list[Group]:
        """Return the groups of a partition of the training split."""
        return partition(self.examples, self.run.settings.batch_size, self.run.settings.seed, number)

    def _teacher_scores(self, run: Path) -> Tensor:
        """Return log P(w|I) of the teacher for the pairs of every group of every partition, (P, N, G).

        Sentences are tokenised by the vocabulary of the teacher. Stored scores belong to the weights of the teacher.
        """
        teacher, path = load_trained_model(run), self.run.out / TEACHER_SCORES
        require_teacher(teacher, run)
        partitions = [self._partition(number) for number in range(self.settings.partitions)]
        shape, facts = (len(partitions), len(self.examples)), {"teacher": model_fingerprint([teacher])}
        if path.exists():
            stored = read_tensors(path)
            if stored.facts.get("teacher") == facts["teacher"] and stored.tensors["log_probs"].shape[:2] == shape:
                return stored.tensors["log_probs"]
        features = open_features(teacher, self.run.collection)
        targets = [teacher.tokenizer.encode(text) for text in self.examples.texts]
        width = max(len(group.images) for groups in partitions for group in groups)
        scores = torch.zeros(len(partitions), len(self.examples), width)
        pairs = sum(len(group.rows) * len(group.images) for groups in partitions for group in groups)
        logger.info("%s: scoring %s pairs of training sentences and images", run, f"{pairs:,}")
        for number, groups in enumerate(partitions):
            for group in groups:
                items = [self.examples.items[image] for image in group.images]
                sentences = [targets[row] for row in group.rows]
                values = pair_log_probs(teacher.model, sentences, items, features, bf16=uses_bf16(teacher))
                scores[number, group.rows, : len(items)] = values
        save_tensors(path, {"log_probs": scores}, facts)
        return scores


def require_teacher(teacher: TrainedModel, run: Path) -> None:
    """Check that a teacher gives probabilities of sentences given images.

    Raises:
        SettingsError: it does not generate sentences of images.
    """
    recipe = teacher.recipe
    if not recipe.model.generates or recipe.model.describes_regions or teacher.source is not None:
        raise SettingsError(
            f"training.matching.teacher={run}: expected a model that captions whole images, found "
            f"'{recipe.model.name}'; name the run of a captioning model"
        )
    if not teacher.config.features:
        raise SettingsError(
            f"training.matching.teacher={run}: expected a model that uses the image, found one that was trained "
            "without; name the run of a captioning model"
        )
