"""Constraints on the next token: prefixes, minimum length, banned and repeated tokens."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from limner.data.examples import Batch
from limner.decoding.automaton import Bans
from limner.decoding.ranking import banned_tokens, require_prefixes
from limner.decoding.settings import DecodingSettings
from limner.text.vocab import SPECIAL_TOKENS


class Rules:
    """Allowed next tokens: those of the prefix first; then no end before `min_length`, no banned token."""

    def __init__(
        self, settings: DecodingSettings, prefix: Tensor, bans: Sequence[Bans] = (), vocab_size: int = 0
    ) -> None:
        """Create the rules of a batch.

        Args:
            settings: decoding settings.
            prefix: token ids of `pad_prefixes`, (B, P).
            bans: tokens that the sentence of each example must not have; empty for none.
            vocab_size: number of tokens, for `bans`.
        """
        banned = banned_tokens(settings)
        self.banned = torch.tensor(banned, device=prefix.device)
        self.banned_early = torch.tensor([*banned, SPECIAL_TOKENS.eos], device=prefix.device)
        self.min_length = settings.min_length
        self.prefix = prefix
        self.excluded: Tensor | None = None
        self.at_most_once: Tensor | None = None
        if any(one.excluded for one in bans):
            self.excluded = _rows([one.excluded for one in bans], vocab_size, prefix.device)
        if any(one.at_most_once is not None for one in bans):
            self.at_most_once = _rows([one.at_most_once or () for one in bans], vocab_size, prefix.device)
            self.repeats = torch.tensor([one.at_most_once is None for one in bans], device=prefix.device)  # (B,)

    def apply(self, log_probs: Tensor, live: list[int], tokens: Tensor) -> Tensor:
        """Set the log-probabilities (N, K, V) of tokens that are not allowed to -inf, in place.

        Args:
            log_probs: log-probabilities of the next token.
            live: positions of the N examples in the batch.
            tokens: tokens so far, (N, K, T).
        """
        length = tokens.shape[2]
        banned = self.banned_early if length < self.min_length else self.banned
        if length >= self.prefix.shape[1]:
            return self._ban(log_probs, live, tokens).index_fill_(-1, banned, -math.inf)
        token = self.prefix[live, length][:, None, None].expand(-1, log_probs.shape[1], 1)  # (N, K, 1)
        only = torch.full_like(log_probs, -math.inf).scatter(-1, token, log_probs.gather(-1, token))
        others = self._ban(log_probs, live, tokens).index_fill_(-1, banned, -math.inf)
        return torch.where(token == SPECIAL_TOKENS.pad, others, only)

    def _ban(self, log_probs: Tensor, live: list[int], tokens: Tensor) -> Tensor:
        """Set the log-probabilities (N, K, V) of banned tokens to -inf, in place."""
        if self.excluded is not None:
            log_probs.masked_fill_(self.excluded[live][:, None], -math.inf)
        if self.at_most_once is None or not tokens.shape[2]:
            return log_probs
        before = torch.zeros_like(log_probs, dtype=torch.bool).scatter_(-1, tokens, True)
        before &= self.at_most_once[live][:, None]
        last = tokens[:, :, -1:]
        before.scatter_(-1, last, before.gather(-1, last) | ~self.repeats[live][:, None, None])
        return log_probs.masked_fill_(before, -math.inf)


def _rows(tokens: Sequence[Collection[int]], vocab_size: int, device: torch.device) -> Tensor:
    """Return a mask (B, V) of the tokens of each example."""
    mask = torch.zeros(len(tokens), vocab_size, dtype=torch.bool, device=device)
    for row, own in enumerate(tokens):
        mask[row, list(own)] = True
    return mask


def pad_prefixes(prefixes: Sequence[Sequence[int]] | None, batch: Batch, max_length: int, vocab_size: int) -> Tensor:
    """Check the prefixes of a batch and pad them to one length, (B, P).

    Raises:
        SettingsError: the number of prefixes is not that of the examples, or a prefix is too long or has ids that are
            not in the vocabulary.
    """
    prefixes = require_prefixes(prefixes, batch.ids, max_length, vocab_size)
    longest = max(len(prefix) for prefix in prefixes)
    padded = [[*prefix, *[SPECIAL_TOKENS.pad] * (longest - len(prefix))] for prefix in prefixes]
    return torch.tensor(padded, device=batch.target_in.device, dtype=torch.long).view(len(batch), longest)
