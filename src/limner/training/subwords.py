"""Random subwords of the training sentences, drawn anew in every epoch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple, Self

from limner.data.dataset import Examples
from limner.data.token_lists import PairLengths, TokenLists
from limner.runs.training_settings import TrainingSettings
from limner.text.bpe_dropout import BPEDropout


class DrawnSubwords:
    """Token ids of some examples, drawn for one epoch.

    Args:
        rows: rows of the examples.
        drawn: target and source token ids of each of them; the latter are None for captioning.
    """

    def __init__(self, rows: Sequence[int], drawn: Iterable[tuple[Sequence[int], Sequence[int] | None]]) -> None:
        self._places = {row: place for place, row in enumerate(rows)}
        self._targets, self._sources = TokenLists(), TokenLists()
        for target, source in drawn:
            self._targets.append(target)
            if source is not None:
                self._sources.append(source)

    @property
    def lengths(self) -> PairLengths:
        """Number of target tokens and of source tokens of each example, in the order of the rows."""
        return PairLengths(self._targets, self._sources or None)

    def tokens(self, row: int) -> tuple[Sequence[int], Sequence[int] | None]:
        """Return the target and the source token ids of an example; the latter are None for captioning."""
        place = self._places[row]
        return self._targets[place], self._sources[place] if self._sources else None


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

    def of_epoch(self, epoch: int, rows: Sequence[int]) -> DrawnSubwords:
        """Draw the subwords of some examples in an epoch, numbered from 0."""
        return DrawnSubwords(rows, (self._draw(epoch, row) for row in rows))

    def _draw(self, epoch: int, row: int) -> tuple[Sequence[int], Sequence[int] | None]:
        random = Random(f"{self.seed}/{epoch}/{row}/subwords")
        target, source = self.examples.tokens(row)
        return self.target(target, random), None if self.source is None else self.source(source or (), random)
