"""Fields that the Ollama and OpenAI interfaces share: sampling, log-probabilities and stop sequences."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field

from limner.apps.server.errors import InvalidRequestError, NotSupportedError
from limner.apps.server.events import GeneratedToken, ProbableToken, TokenEvent
from limner.apps.server.request_bodies import LenientBody
from limner.bounds import Seed, Temperature, bounds_of

if TYPE_CHECKING:
    from limner.inference.base import TextGenerator

MAX_STOPS = 16
"""Largest number of stop sequences of a request."""
MAX_STOP = 100
"""Largest number of characters of a stop sequence."""
MAX_TOP_LOGPROBS = 20


class SamplingFields(LenientBody):
    """How tokens are chosen; options of memory, hardware and repetition have no effect."""

    temperature: Annotated[float, Field(ge=0, le=1000)] | None = None
    """0, or none: the model's own decoding, usually beam search; above: sampling."""
    top_k: Annotated[int, Field(le=10_000_000)] | None = None
    """Sample from the most probable tokens; zero or below for all."""
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Sample from the most probable tokens with this mass; 0 for the most probable token."""
    seed: int | None = None
    """Seed of sampling; negative for a random one."""
    stop: str | list[str] | None = None
    """Texts that end the sentence, and are left out."""

    num_predict: int | None = None
    """Maximum number of tokens, in Ollama; zero or below for the maximum of the model, which applies as well."""
    max_completion_tokens: int | None = None
    """Maximum number of tokens, in OpenAI."""
    max_tokens: int | None = None
    """Earlier name of `max_completion_tokens`."""

    @property
    def max_length(self) -> int | None:
        """Maximum number of generated tokens; None for the maximum of the model."""
        limits = (self.num_predict, self.max_tokens, self.max_completion_tokens)
        return min((limit for limit in limits if limit is not None and limit > 0), default=None)

    def stop_text(self) -> StopText:
        """Return the reader of the stop sequences; see `StopText` for errors."""
        return StopText([self.stop] if isinstance(self.stop, str) else self.stop or [])


class ChatFields(LenientBody):
    """Fields of every request that generates. JSON and tools are refused, other unknown fields have no effect."""

    model: Annotated[str, Field(min_length=1, max_length=300)]
    """Name of a served model; a tag selects one of its languages, such as 'en:de'."""
    stream: bool | None = None
    """Answer with the parts of the sentence as they are decided."""
    logprobs: bool | None = None
    """Return the log-probability of each token."""
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    """With `logprobs`: number of probable tokens to return at each position."""
    format: str | dict[str, Any] | None = None
    """Of Ollama; JSON and JSON schemas are refused."""
    response_format: dict[str, Any] | None = None
    """Of OpenAI; refused except `{"type": "text"}`."""
    tools: list[Any] | None = None
    """Refused unless empty."""
    functions: list[Any] | None = None
    """Earlier name of `tools`."""

    def require_text(self) -> None:
        """Check that the request is answered by plain text.

        Raises:
            NotSupportedError: it requires JSON, or calls of tools.
        """
        for name in ("format", "response_format", "tools", "functions"):
            if (value := getattr(self, name)) and value != {"type": "text"}:
                raise NotSupportedError(
                    f"{name}: the models of this service answer with plain text; leave it out", name
                )

    @property
    def probable_tokens(self) -> int:
        """Number of probable tokens to return at each position."""
        return self.top_logprobs or 0 if self.logprobs else 0

    def logprobs_of(self, tokens: Sequence[TokenEvent | GeneratedToken]) -> list[GeneratedLogprob] | None:
        """Return the log-probabilities of tokens; None unless they are requested."""
        if not self.logprobs:
            return None
        return [
            GeneratedLogprob(**_logprob(token), top_logprobs=[TokenLogprob(**_logprob(top)) for top in token.probable])
            for token in tokens
        ]


class TokenLogprob(BaseModel):
    """A token with its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class GeneratedLogprob(TokenLogprob):
    """A generated token, with the most probable ones at its position."""

    top_logprobs: list[TokenLogprob] = []


def _logprob(token: TokenEvent | GeneratedToken | ProbableToken) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.log_prob, "bytes": list(token.text.encode())}


def decoding_changes(
    generator: TextGenerator,
    sampling: SamplingFields,
    *,
    prefix: str = "",
    count: int = 1,
) -> dict[str, Any]:
    """Return changes of `DecodingSettings`.

    Without a temperature, or with 0, the model decodes by its own settings, usually beam search. A temperature above 0,
    `top_k` or `top_p` samples; without a seed every request draws anew. A maximum number of tokens shortens the maximum
    length of the model, and never lengthens it.

    Args:
        generator: the model.
        sampling: how tokens are chosen.
        prefix: words that the sentence starts with, which do not count.
        count: number of sentences.
    """
    changes: dict[str, Any] = {}
    if (max_tokens := sampling.max_length) is not None:
        decoding = generator.decoding
        longest = min(decoding.max_length, len(generator.tokenizer.encode(prefix)) + max_tokens)
        changes["max_length"] = max(1, longest)
        changes["min_length"] = min(decoding.min_length, changes["max_length"])
    if count > 1:
        changes["n_best"] = count
    temperature, top_k, top_p, seed = sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed
    if top_p == 0:
        top_k, top_p = 1, None
    restricts = (top_k or 0) > 0 or (top_p is not None and top_p < 1)
    if not restricts if temperature is None else temperature < bounds_of(Temperature).low:
        return changes
    if seed is None or seed < 0:
        seed = secrets.randbits(31)
    sample: dict[str, Any] = {"seed": seed % (int(bounds_of(Seed).high) + 1)}
    if temperature is not None:
        sample["temperature"] = temperature
    if top_k and top_k > 0:
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
