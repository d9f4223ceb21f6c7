"""Constraints on the next token: prefixes, minimum length and banned special tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from limner.data.examples import Batch
from limner.decoding.ranking import banned_tokens, require_prefixes
from limner.decoding.settings import DecodingSettings
from limner.text.vocab import SPECIAL_TOKENS


class Rules:
    """Allowed next tokens: those of the prefix first, no end before `min_length`, no padding or start of sentence."""

    def __init__(self, settings: DecodingSettings, prefix: Tensor) -> None:
        """Create the rules of a batch.

        Args:
            settings: decoding settings.
            prefix: token ids of `pad_prefixes`, (B, P).
        """
        banned = banned_tokens(settings)
        self.banned = torch.tensor(banned, device=prefix.device)
        self.banned_early = torch.tensor([*banned, SPECIAL_TOKENS.eos], device=prefix.device)
        self.min_length = settings.min_length
        self.prefix = prefix

    def apply(self, log_probs: Tensor, live: list[int], length: int) -> Tensor:
        """Set the log-probabilities (N, K, V) of tokens that are not allowed to -inf, in place.

        Args:
            log_probs: log-probabilities of the next token.
            live: positions of the N examples in the batch.
            length: number of tokens so far.
        """
        banned = self.banned_early if length < self.min_length else self.banned
        if length >= self.prefix.shape[1]:
            return log_probs.index_fill_(-1, banned, -math.inf)
        token = self.prefix[live, length][:, None, None].expand(-1, log_probs.shape[1], 1)  # (N, K, 1)
        only = torch.full_like(log_probs, -math.inf).scatter(-1, token, log_probs.gather(-1, token))
        return torch.where(token == SPECIAL_TOKENS.pad, log_probs.index_fill_(-1, banned, -math.inf), only)


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
