"""Random subwords of the training sentences, drawn anew in every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import NamedTuple, Self

from limner.data.dataset import Examples, ExampleTokens
from limner.runs.training_settings import TrainingSettings
from limner.text.bpe_dropout import BPEDropout


class RandomSubwords(NamedTuple):
    """Subwords of the sentences of some examples by BPE dropout (`training.bpe_dropout`).

    The subwords of a sentence depend on the seed, the epoch and the row alone: not on the order of the batches, the
    number of processes, or an interruption of the training.
    """

    examples: Examples
    seed: int
    target: BPEDropout
    source: BPEDropout | None
    """None for captioning."""

    @classmethod
    def of(cls, examples: Examples, settings: TrainingSettings) -> Self | None:
        """Return the random subwords of a training, None if it has none."""
        if not settings.bpe_dropout:
            return None
        target, source, rate = examples.target.tokenizer, examples.source, settings.bpe_dropout
        of_source = None if source is None else BPEDropout(source.tokenizer, rate)
        return cls(examples, settings.seed, BPEDropout(target, rate), of_source)

    def of_epoch(self, epoch: int) -> ExampleTokens:
        """Return the token ids of the examples in an epoch, numbered from 0."""
        return partial(self._tokens, epoch)

    def _tokens(self, epoch: int, row: int) -> tuple[Sequence[int], Sequence[int] | None]:
        random = Random(f"{self.seed}/{epoch}/{row}/subwords")
        target, source = self.examples.tokens(row)
        return self.target(target, random), source if self.source is None else self.source(source or (), random)
