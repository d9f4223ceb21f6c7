"""The messages of a chat as one request to the engine: a caption of an image, or a translation of a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fastapi import Request

from limner.apps.server.engine import EventStream, ServiceEngine
from limner.apps.server.errors import InvalidRequestError
from limner.apps.server.generation_options import ChatFields, SamplingFields, decoding_changes
from limner.apps.server.images import read_image_reference
from limner.apps.server.jobs import GenerationRequest
from limner.apps.server.models import Models, ServedModel

if TYPE_CHECKING:
    from limner.inference.captioner import Captioner
    from limner.inference.translator import Translator

DEFAULT_TAG = "latest"
"""Tag of the first language of a model."""
_SYSTEM_ROLES = ("system", "developer")


class Message(NamedTuple):
    """A message of a chat."""

    role: str
    text: str
    images: Sequence[str] = ()
    """Images in base64, or as URLs."""


class Conversation(NamedTuple):
    """What a chat requests."""

    served: ServedModel
    generator: Captioner | Translator
    lang: str
    text: str
    """Source sentence, or the words that the caption starts with."""
    image: bytes | None

    @property
    def input_tokens(self) -> int:
        """Number of tokens of the source sentence, or of the words that the caption starts with."""
        source = self.served.trained(self.lang).source_tokenizer
        return len((source or self.generator.tokenizer).encode(self.text))

    @property
    def given_tokens(self) -> int:
        """Number of tokens of the generated sentence that were given."""
        return self.input_tokens if self.served.task == "describe" else 0

    async def generate(
        self,
        engine: ServiceEngine,
        sampling: SamplingFields,
        *,
        count: int = 1,
        probable_tokens: int = 0,
    ) -> EventStream:
        """Hand the request to the engine; see `ServiceEngine.describe` for errors, `decoding_changes` for arguments."""
        prefix, source = (self.text, None) if self.served.task == "describe" else ("", self.text)
        decoding = decoding_changes(self.generator, sampling, prefix=prefix, count=count)
        return await engine.generate(
            GenerationRequest(
                self.served,
                self.generator,
                self.image,
                source,
                decoding,
                prefix,
                probable_tokens=probable_tokens,
                withholds=True,
            )
        )


def find_model(models: Models, name: str) -> tuple[ServedModel, str | None]:
    """Find a model by its name, or by its name with a tag: a language of the model, or 'latest'.

    Raises:
        NotFoundError: there is no such model, or it has no such language.
    """
    base, _, tag = name.rpartition(":")
    if name not in models.by_name and base in models.by_name:
        served = models.get(base)
        if tag == DEFAULT_TAG:
            return served, None
        if tag in served.languages:
            return served, tag
    return models.get(name), None


async def read_conversation(
    request: Request, body: ChatFields, messages: Sequence[Message], param: str
) -> Conversation:
    """Return what a chat requests, and note in `request.state.ignored` which texts have no effect.

    A captioning model describes the image of the last message of the user, or else the latest image before; the words
    of the prompt have no effect on it. It continues the last message, if that is of the assistant. To a translation
    model the last message of the user is the source sentence. The models have no memory of earlier messages.

    Args:
        request: request of HTTP.
        body: its body.
        messages: messages in their order.
        param: field with the images, for errors.

    Raises:
        ServerError: the request requires JSON or tools, or there is no such model, no message of the user, or not one
            image.
    """
    engine: ServiceEngine = request.app.state.engine
    body.require_text()
    served, lang = find_model(engine.models, body.model)
    users = [message for message in messages if message.role == "user"]
    if not users:
        raise InvalidRequestError("messages: expected a message with the role 'user'; add one", "messages")
    if any(message.text for message in messages if message.role in _SYSTEM_ROLES):
        request.state.ignored.append("system")
    text, last = users[-1].text, messages[-1]
    if served.task == "describe":
        if text:
            request.state.ignored.append("prompt")
        text = last.text if last.role == "assistant" else ""
    references = next((message.images for message in reversed(users) if message.images), ())
    if len(references) > 1 or (not references and served.task == "describe"):
        raise InvalidRequestError(
            f"{param}: model '{served.name}' takes one image, got {len(references)}; send one image a request", param
        )
    image = await read_image_reference(references[0], engine.fetcher, param) if references else None
    lang = lang or served.languages[0]
    return Conversation(served, served.generator(lang), lang, text, image)
