"""Common parts of the Ollama and OpenAI interfaces: messages, sampling and log-probabilities."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import Request
from pydantic import Field

from limner.apps.server.errors import InvalidRequestError, NotSupportedError
from limner.apps.server.images import read_image_reference
from limner.apps.server.jobs import GeneratedToken, GenerationRequest, ProbableToken
from limner.apps.server.labels import schema_of
from limner.apps.server.models import ServedGenerator, ServedModel
from limner.apps.server.request_bodies import LenientBody
from limner.apps.server.service import ServiceEngine
from limner.bounds import Seed, Temperature, bounds_of
from limner.decoding.sentence import Sentence

MAX_TOP_LOGPROBS = 20
ONE_STEP = {"beam_size": 1, "n_best": 1, "min_length": 0, "max_length": 1}
"""Decoding for labels, where the sentence is not used."""
_SYSTEM_ROLES = ("system", "developer")


class SamplingFields(LenientBody):
    """Settings of decoding; options of memory, hardware and repetition have no effect."""

    temperature: float | None = None
    """0, below, or none: the model's own decoding, usually beam search; above: sampling."""
    top_k: Annotated[int, Field(le=10_000_000)] | None = None
    """Sample from the most probable tokens; zero or below for all."""
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """Sample from the most probable tokens with this mass; 0 for the most probable token."""
    seed: int | None = None
    """Seed of sampling; negative for a random one."""

    num_predict: int | None = None
    """Maximum number of tokens, in Ollama; zero or below for the maximum of the model, which applies as well."""
    max_completion_tokens: int | None = None
    """Maximum number of tokens, in OpenAI."""
    max_tokens: int | None = None
    """Earlier name of `max_completion_tokens`."""
    max_output_tokens: int | None = None
    """Maximum number of tokens, in responses of OpenAI."""


class ChatFields(LenientBody):
    """Fields of every request that generates; other fields have no effect."""

    model: Annotated[str, Field(min_length=1, max_length=300)]
    """Name of a served model; a tag selects one of its languages, such as 'en:de'."""
    stream: bool | None = None
    """Whether to send the parts of the sentence as they are decided."""
    logprobs: bool | None = None
    """Return the log-probability of each token."""
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    """With `logprobs`: number of probable tokens to return at each position."""
    format: str | dict[str, Any] | None = None
    """In Ollama: `json`, or the JSON schema of labels; other schemas are refused."""
    response_format: dict[str, Any] | None = None
    """In OpenAI: `text`, `json_object`, or the JSON schema of labels; other schemas are refused."""

    def logprobs_of(self, tokens: Sequence[GeneratedToken]) -> list[dict[str, Any]] | None:
        """Return the log-probabilities of tokens in the format of both APIs; None unless they are requested."""
        if not self.logprobs:
            return None
        return [{**_logprob(token), "top_logprobs": [*map(_logprob, token.probable)]} for token in tokens]


def _logprob(token: GeneratedToken | ProbableToken) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.log_prob, "bytes": list(token.text.encode())}


class Message(NamedTuple):
    """A message of a chat."""

    role: str
    text: str
    images: Sequence[str] = ()  # images in base64, or as URLs


async def read_chat(
    request: Request,
    body: ChatFields,
    sampling: SamplingFields,
    messages: Sequence[Message],
    *,
    param: str,
    count: int = 1,
) -> GenerationRequest:
    """Return the request of a chat, and add the texts without effect to `request.state.ignored`.

    `param` is the field with the images, for errors; `count` the number of sentences. A captioning model describes the
    image of the last message of the user, or else the latest earlier image; the words of the prompt have no effect on
    it. The caption continues the last message, if the assistant is its author. To a translation model the last message
    of the user is the source sentence. The models have no memory of earlier messages. ServerError if the request
    requires JSON that is no list of labels, or labels of a model without concepts, or there is no such model, no
    message of the user, or no image.
    """
    engine: ServiceEngine = request.app.state.engine
    served, lang = engine.models.find(body.model)
    generator, field = served.generator(lang), "response_format" if body.response_format else "format"
    schema = schema_of(getattr(body, field), field)
    if schema is not None and (generator.rules is None or generator.rules.tagger is None):
        raise NotSupportedError(f"{field}: model '{served.name}' has no concepts for labels; leave it out", field)
    users = [message for message in messages if message.role == "user"]
    if not users:
        raise InvalidRequestError("messages: expected a message with the role 'user'; add one", "messages")
    if any(message.text for message in messages if message.role in _SYSTEM_ROLES):
        request.state.ignored.append("system")
    prefix, source, last = "", users[-1].text, messages[-1]
    if served.task == "describe":
        if source:
            request.state.ignored.append("prompt")
        prefix = last.text if last.role == "assistant" else ""
    if generator.rules is not None and generator.rules.concepts is not None and not prefix:
        # a drawn caption would not be checked by the concepts
        names = [name for name in ("temperature", "top_k", "top_p", "seed") if getattr(sampling, name) is not None]
        request.state.ignored.extend(names)
        sampling = sampling.model_copy(update=dict.fromkeys(names))
    reference = _image_of(users, served, request, param)
    if body.logprobs and body.top_logprobs and not served.explains:
        request.state.ignored.append("top_logprobs")
    return GenerationRequest(
        served,
        generator,
        None if reference is None else await read_image_reference(reference, engine.fetcher, param),
        None if served.task == "describe" else source,
        ONE_STEP if schema else decoding_changes(generator, sampling, prefix=prefix, count=count),
        "" if schema else prefix,
        probable_tokens=body.top_logprobs or 0 if body.logprobs and served.explains else 0,
        of_chat=True,
        withheld=engine.settings.withheld,
        labels=schema,
    )


def _image_of(users: Sequence[Message], served: ServedModel, request: Request, param: str) -> str | None:
    """Return the first image of the user's last message with images; see `read_chat`."""
    images = next((message.images for message in reversed(users) if message.images), ())
    count = len(images)
    if (count > 1 and request.app.state.settings.strict) or (not images and served.task == "describe"):
        raise InvalidRequestError(
            f"{param}: model '{served.name}' takes one image, got {count}; send one image a request", param
        )
    if count > 1:
        request.state.ignored.append(f"{param}: all images but the first")
    return images[0] if images else None


def finish_reason(sentence: Sentence, withheld: str) -> str:
    """Return the reason of a sentence's end: 'stop', 'length' if cut off, or the reason for a withheld caption."""
    return "length" if not sentence.ended else "stop" if sentence.is_sure else withheld


def decoding_changes(
    generator: ServedGenerator, sampling: SamplingFields, *, prefix: str = "", count: int = 1
) -> dict[str, Any]:
    """Return changes of `DecodingSettings` for a number of sentences; the words of the prefix are not counted.

    Without a temperature, or with 0, the model decodes by its own settings, usually beam search. A temperature above 0,
    `top_k` or `top_p` samples; without a seed every request draws anew. A maximum number of tokens shortens the maximum
    length of the model, and never lengthens it.
    """
    changes: dict[str, Any] = {"n_best": count} if count > 1 else {}
    limits = (sampling.num_predict, sampling.max_tokens, sampling.max_completion_tokens, sampling.max_output_tokens)
    if allowed := [limit for limit in limits if limit is not None and limit > 0]:
        decoding = generator.decoding
        longest = min(decoding.max_length, len(generator.tokenizer.encode(prefix)) + min(allowed))
        changes |= {"max_length": longest, "min_length": min(decoding.min_length, longest)}
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
        sample["temperature"] = min(temperature, bounds_of(Temperature).high)
    if top_k and top_k > 0:
        sample["top_k"] = top_k
    if top_p is not None and top_p < 1:
        sample["top_p"] = top_p
    return changes | {"sample": sample, "beam_size": count, "n_best": count}
