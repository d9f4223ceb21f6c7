"""The messages of a chat as one request to the engine: a caption of an image, or a translation of a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from limner.server.engine import Engine, EventStream
from limner.server.errors import InvalidRequestError
from limner.server.generation_options import decoding_changes
from limner.server.images import read_image_reference
from limner.server.jobs import GenerationRequest
from limner.server.models import Models, ServedModel
from limner.server.prompts import read_prompt, require_source_prompts

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


@dataclass(frozen=True)
class Sampling:
    """Parameters of `decoding_changes`."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    count: int = 1


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

    async def generate(self, engine: Engine, sampling: Sampling, probable_tokens: int = 0) -> EventStream:
        """Hand the request to the engine; errors are those of `Engine.describe`."""
        prefix, source = (self.text, None) if self.served.task == "describe" else ("", self.text)
        decoding = decoding_changes(self.generator, prefix=prefix, **vars(sampling))
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


async def read_conversation(engine: Engine, model: str, messages: Sequence[Message], param: str) -> Conversation:
    """Return what a chat requests.

    The last message of the user counts, with its image, or else the latest image before. Earlier messages have no
    effect: the models have no memory.

    Args:
        engine: engine with the served models.
        model: name of a model, with a tag or without.
        messages: messages in their order.
        param: field with the images, for errors.

    Raises:
        ServerError: there is no such model, no message of the user, or not one image.
        PromptError: the text asks for something that the model cannot do.
    """
    served, lang = find_model(engine.models, model)
    users = [one for one in messages if one.role == "user"]
    if not users:
        raise InvalidRequestError("messages: expected a message with the role 'user'; add one", "messages")
    texts = [one.text for one in messages if one.role in _SYSTEM_ROLES and one.text]
    text, any_prompt = users[-1].text, engine.settings.any_prompt
    if served.task == "describe":
        instruction = read_prompt([*texts, text], served.languages, any_prompt=any_prompt)
        text, lang = instruction.prefix, lang or instruction.lang
    else:
        require_source_prompts(texts, any_prompt=any_prompt)
    references = next((one.images for one in reversed(users) if one.images), ())
    if len(references) > 1 or (not references and served.task == "describe"):
        raise InvalidRequestError(
            f"{param}: model '{served.name}' takes one image, got {len(references)}; send one image a request", param
        )
    image = await read_image_reference(references[0], engine.fetcher, param) if references else None
    lang = lang or served.languages[0]
    return Conversation(served, served.generator(lang), lang, text, image)
