"""Sampling parameters of the Ollama and OpenAI interfaces as settings of decoding, and stop sequences."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from limner.bounds import Seed, Temperature, bounds_of
from limner.server.errors import InvalidRequestError

if TYPE_CHECKING:
    from limner.inference.base import TextGenerator

MAX_STOPS = 16
"""Largest number of stop sequences of a request."""
MAX_STOP = 100
"""Largest number of characters of a stop sequence."""


def decoding_changes(
    generator: TextGenerator,
    *,
    prefix: str = "",
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    count: int = 1,
) -> dict[str, Any]:
    """Return changes of `DecodingSettings`.

    Without a temperature, or with 0, the model decodes by its own settings, usually beam search. A temperature above 0,
    `top_k` or `top_p` samples; without a seed every request draws anew. `max_tokens` shortens the maximum length of the
    model, and never lengthens it.

    Args:
        generator: the model.
        prefix: words that the sentence starts with, which do not count.
        max_tokens: maximum number of generated tokens; None for the maximum of the model.
        temperature: divisor of the log-probabilities.
        top_k: number of most probable tokens to draw from; 0 for all.
        top_p: probability mass to draw from; 1 for all.
        seed: random seed; negative for a random one, as in Ollama.
        count: number of sentences.
    """
    changes: dict[str, Any] = {}
    if max_tokens is not None:
        own = generator.decoding
        longest = min(own.max_length, len(generator.tokenizer.encode(prefix)) + max_tokens)
        changes["max_length"] = max(1, longest)
        changes["min_length"] = min(own.min_length, changes["max_length"])
    if count > 1:
        changes["n_best"] = count
    restricts = bool(top_k) or (top_p is not None and top_p < 1)
    if not restricts if temperature is None else temperature < bounds_of(Temperature).low:
        return changes
    if seed is None or seed < 0:
        seed = secrets.randbits(31)
    sample: dict[str, Any] = {"seed": seed % (int(bounds_of(Seed).high) + 1)}
    if temperature is not None:
        sample["temperature"] = temperature
    if top_k:
        sample["top_k"] = top_k
    if top_p is not None and top_p < 1:
        sample["top_p"] = top_p
    return changes | {"sample": sample, "beam_size": count, "n_best": count}


class StopText:
    """Text of a stream up to the first stop sequence; what may begin one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Check the stop sequences.

        Raises:
            InvalidRequestError: there are too many, or one is empty or too long.
        """
        if len(stops) > MAX_STOPS or not all(0 < len(one) <= MAX_STOP for one in stops):
            raise InvalidRequestError(
                f"stop: expected at most {MAX_STOPS} texts of 1 to {MAX_STOP} characters; shorten the list", "stop"
            )
        self.stops = tuple(stops)
        self.stopped = False
        self._held = ""

    def feed(self, text: str) -> str:
        """Return the text that can be sent after `text` was added."""
        if self.stopped:
            return ""
        self._held += text
        found = [position for one in self.stops if (position := self._held.find(one)) >= 0]
        if found:
            self.stopped = True
            sent, self._held = self._held[: min(found)], ""
            return sent
        kept = max((_overlap(self._held, one) for one in self.stops), default=0)
        sent, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return sent

    def end(self) -> str:
        """Return the text that was held back, at the end of the sentence."""
        sent, self._held = self._held, ""
        return sent

    def cut(self, text: str) -> tuple[str, bool]:
        """Return a whole text up to the first stop sequence, and whether there was one."""
        found = [position for one in self.stops if (position := text.find(one)) >= 0]
        return (text[: min(found)], True) if found else (text, False)


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of a text that begins a stop sequence."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
