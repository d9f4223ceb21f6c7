"""One epoch of gradient descent, with source masks and subwords (`training.bpe_dropout`) drawn anew."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from functools import partial
from random import Random
from typing import Protocol

from torch.nn.utils import clip_grad_norm_

from limner.data.batching import epoch_order, prefetch
from limner.data.dataset import Examples
from limner.data.examples import Batch
from limner.data.source_masks import MaskedTokenizer, create_mask
from limner.errors import TrainingError
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS, WORD_START
from limner.training.context import TrainingContext, TrainProgress
from limner.training.losses import loss_terms
from limner.training.optimizers import add_l2_gradient, set_learning_rates
from limner.training.processes import StepLoss
from limner.training.state import Timestamp, TrainState

DrawnTokens = dict[int, tuple[Sequence[int], Sequence[int] | None]]
"""Target and source token ids of examples by their rows, drawn for one epoch; source ids are None for captioning."""


def draw_tokens(
    examples: Examples, rate: float, seed: int, epoch: int, rows: Iterable[int], masked: Sequence[Tokenizer] = ()
) -> DrawnTokens:
    """Draw the source masks and the subwords of examples in an epoch, numbered from 0.

    The draws of a sentence depend on the seed, the epoch and the row alone: not on the order of the batches, the number
    of processes, or an interruption of the training. `masked` has a source tokenizer for each mask.
    """
    drawn: DrawnTokens = {}
    target_dropout = BPEDropout(examples.target.tokenizer, rate)
    source_dropout = None if examples.source is None else BPEDropout(examples.source.tokenizer, rate)
    for row in rows:
        random = Random(f"{seed}/{epoch}/{row}/subwords")
        target, source = examples.tokens(row)
        if rate:
            target = array("i", target_dropout(target, random))
        if masked and (tokenizer := random.choice([None, *masked])) is not None:
            source = array("i", tokenizer.encode(examples.pair(row).source))
        if source is not None and source_dropout is not None and rate:
            source = array("i", source_dropout(source, random))
        drawn[row] = target, source
    return drawn


class BPEDropout:
    """Segmentation of words into subwords with random merges left out (Provilkov et al., 2020, algorithm 1).

    A word starts as its characters. In each round, every possible merge is left out with probability `rate`, and the
    first-learned of the remaining merges is applied. The word is finished when a round has no merge. Rate 0 gives the
    subwords of the tokenizer, rate 1 characters. Words with an unknown character keep their subwords.
    """

    def __init__(self, tokenizer: Tokenizer, rate: float) -> None:
        """Read the merges of a tokenizer with subwords (`text.level` 'bpe')."""
        self.rate = rate
        ids = {entry: token_id for token_id, entry in enumerate(tokenizer.entries)}
        self._merges = {
            (ids[left], ids[right]): (rank, ids[left + right]) for rank, (left, right) in enumerate(tokenizer.merges)
        }
        self._characters = [tuple(ids.get(character, SPECIAL_TOKENS.unk) for character in entry) for entry in ids]
        self._starts = [entry.startswith(WORD_START) for entry in ids]

    def __call__(self, token_ids: Sequence[int], random: Random) -> list[int]:
        """Draw subwords of a sentence; equal states of `random` give equal subwords."""
        result: list[int] = []
        begin = 0
        for end in range(1, len(token_ids) + 1):
            if end == len(token_ids) or self._starts[token_ids[end]]:
                result += self._word(token_ids[begin:end], random)
                begin = end
        return result

    def _word(self, token_ids: Sequence[int], random: Random) -> Sequence[int]:
        if any(token_id <= SPECIAL_TOKENS.unk for token_id in token_ids):
            return token_ids
        return self._merge([character for token_id in token_ids for character in self._characters[token_id]], random)

    def _merge(self, tokens: list[int], random: Random) -> list[int]:
        """Merge the characters of a word in place."""
        merges, rate, draw = self._merges, self.rate, random.random
        while True:
            best = at = -1
            merged = 0
            for index in range(len(tokens) - 1):
                merge = merges.get((tokens[index], tokens[index + 1]))
                if merge is not None and draw() >= rate and (best < 0 or merge[0] < best):
                    (best, merged), at = merge, index
            if best < 0:
                return tokens
            tokens[at : at + 2] = [merged]


class Objective(Protocol):
    """Objective of a stage: the batches of an epoch and the loss of each batch."""

    def epoch_batches(self, epoch: int) -> list[list[int]]:
        """Draw the batches of an epoch, numbered from 0: the rows of each batch."""

    def batch(self, rows: Sequence[int], epoch: int) -> Batch:
        """Collate a batch of an epoch, numbered from 0; called in another thread."""

    def loss(self, batch: Batch, epoch: int) -> StepLoss:
        """Compute the loss of a batch on the device of the model."""


class CrossEntropy:
    """Negative log-likelihood of the sentences of some examples (`word_loss`)."""

    def __init__(self, run: TrainingContext, examples: Examples) -> None:
        self.run, self.examples = run, examples
        self.masked: list[Tokenizer] = []
        if (source := examples.source) is not None:
            masks = (create_mask(name, source.lang, examples.target.lang) for name in run.settings.source_masks)
            self.masked = [MaskedTokenizer(source.tokenizer, mask) for mask in masks]
        self.drawn: DrawnTokens = {}

    def epoch_batches(self, epoch: int) -> list[list[int]]:
        """Draw the masks and subwords of an epoch, and batches sorted by the numbers of subwords; see `Objective`."""
        settings, rows = self.run.settings, self.examples.epoch_rows(self.run.settings.seed, epoch)
        if settings.bpe_dropout or self.masked:
            self.drawn = draw_tokens(self.examples, settings.bpe_dropout, settings.seed, epoch, rows, self.masked)
            lengths = [(len(target), len(source or ())) for target, source in self.drawn.values()]
        else:
            of_all = self.examples.lengths
            lengths = [of_all[row] for row in rows]
        order = epoch_order(lengths, settings.batch_size, settings.bucket, settings.seed, epoch)
        return [[rows[k] for k in batch] for batch in order]

    def batch(self, rows: Sequence[int], epoch: int) -> Batch:
        """Collate a batch of the epoch whose batches were drawn last."""
        return self.examples.batch(rows, self.drawn.__getitem__ if self.drawn else None)

    def loss(self, batch: Batch, epoch: int) -> StepLoss:
        """Compute the mean loss of the tokens of a batch."""
        assert self.run.optimization is not None
        terms = loss_terms(self.run.optimization.model(batch), batch, self.run.settings.label_smoothing)
        return StepLoss(terms, int(batch.target_mask.sum()))


def train_epoch(run: TrainingContext, objective: Objective) -> None:
    """Train for one epoch, or for the remainder of an epoch that was interrupted.

    Raises:
        TrainingError: the loss or the norm of the gradient is not finite; names the step and the first item.
        KeyboardInterrupt: Ctrl-C was pressed; the state of the completed step is saved.
    """
    assert run.optimization is not None, "a count-based model is not trained by gradient descent"
    fabric, _, wrapped_optimizer, optimizer, ema = run.optimization
    settings, state, processes = run.settings, run.state, run.processes
    batches = objective.epoch_batches(state.epoch)
    total_steps = settings.epochs * len(batches)
    parameters = list(run.trained.model.parameters())
    run.trained.model.train()
    remaining = batches[state.batch :]
    collate = partial(objective.batch, epoch=state.epoch)
    shares = prefetch(collate, map(processes.rows, remaining), settings.prefetch)
    for rows, batch in zip(remaining, shares, strict=True):
        began = Timestamp.now()
        set_learning_rates(optimizer, settings, state.step, state.epoch, total_steps)
        batch = batch.to(fabric.device)
        step = processes.combine(objective.loss(batch, state.epoch), rows, run.interruption.requested)
        _require_finite("loss", step.value, state, batch.ids)
        optimizer.zero_grad()
        fabric.backward(step.loss)
        if settings.l2:
            add_l2_gradient(parameters, settings.l2)
        norm = clip_grad_norm_(parameters, settings.clip_norm or math.inf)
        _require_finite("norm of the gradient", float(norm), state, batch.ids)
        wrapped_optimizer.step()
        if ema is not None:
            ema.update(state.step)
        state.add_step(step.reported, step.tokens, began)
        if state.step % settings.save_every == 0 or step.interrupted:
            run.save_state()
        if step.interrupted:
            raise KeyboardInterrupt
        if run.on_progress is not None:
            run.on_progress(TrainProgress(state, total_steps))
    run.log.epoch(state)
    state.begin_epoch()


def _require_finite(name: str, value: float, state: TrainState, ids: tuple[str, ...]) -> None:
    if not math.isfinite(value):
        raise TrainingError(
            f"the {name} is {value} at step {state.step} (epoch {state.epoch}, first item of the "
            f"batch '{ids[0]}'): lower training.optimizer.lr or set training.clip_norm, then resume from the last "
            "saved state"
        )
