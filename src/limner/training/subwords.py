"""Random subwords of the training sentences by BPE dropout (`training.bpe_dropout`), drawn anew in every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from limner.data.batching import TokenLists, pair_lengths
from limner.data.dataset import Examples
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS, WORD_START


class DrawnSubwords:
    """Token ids of some examples, drawn for one epoch."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.indices = {row: index for index, row in enumerate(rows)}
        self.targets, self.sources = TokenLists(), TokenLists()

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Number of target tokens and of source tokens of each example, in the order of the rows."""
        return pair_lengths(self.targets, self.sources or None)

    def tokens(self, row: int) -> tuple[Sequence[int], Sequence[int] | None]:
        """Return the target and the source token ids of an example; the latter are None for captioning."""
        index = self.indices[row]
        return self.targets[index], self.sources[index] if self.sources else None


def draw_subwords(examples: Examples, rate: float, seed: int, epoch: int, rows: Sequence[int]) -> DrawnSubwords:
    """Draw the subwords of examples in an epoch, numbered from 0.

    The subwords of a sentence depend on the seed, the epoch and the row alone: not on the order of the batches, the
    number of processes, or an interruption of the training.
    """
    subwords = DrawnSubwords(rows)
    target_dropout = BPEDropout(examples.target.tokenizer, rate)
    source_dropout = None if examples.source is None else BPEDropout(examples.source.tokenizer, rate)
    for row in rows:
        random = Random(f"{seed}/{epoch}/{row}/subwords")
        target, source = examples.tokens(row)
        subwords.targets.append(target_dropout(target, random))
        if source_dropout is not None:
            subwords.sources.append(source_dropout(source or (), random))
    return subwords


class BPEDropout:
    """Segmentation of words into subwords with random merges left out (Provilkov et al., 2020, algorithm 1).

    A word starts as its characters. In each round, every possible merge is left out with probability `rate`; the one
    learned first among the others is applied. The word is finished when a round has no merge. Rate 0 gives the subwords
    of the tokenizer, rate 1 characters. Words with an unknown character keep their subwords.
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
        """Draw subwords of a sentence of subwords; the same state of `random` gives the same."""
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
