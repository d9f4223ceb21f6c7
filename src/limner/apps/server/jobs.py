"""Requests as the service generates them: checked, with the image read, and delivered to the stream of their route."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from limner.apps.server.events import Event, FinalEvent, TokenEvent
from limner.apps.server.features import FeatureCache
from limner.apps.server.images import require_size
from limner.apps.server.models import ServedModel
from limner.apps.server.sentences import generated_tokens, image_grid, probable_tokens, token_attention, token_texts
from limner.apps.server.settings import ServerSettings
from limner.data.dataset import GenerationInput
from limner.data.examples import Example
from limner.decoding.sentence import Sentence
from limner.decoding.settings import change_decoding
from limner.errors import LimnerError, SettingsError
from limner.features.encoders.base import EncoderInput
from limner.generation.request import Request, RuleOptions
from limner.inference.captioner import Captioner
from limner.inference.must_include import words_of_inputs
from limner.inference.new_images import image_name, new_item
from limner.inference.translator import Translator

logger = logging.getLogger(__name__)


class GenerationRequest(NamedTuple):
    """What a route requests."""

    served: ServedModel
    generator: Captioner | Translator
    image: bytes | None = None
    text: str | None = None
    """Source sentence; None for a caption."""
    decoding: Mapping[str, Any] = {}
    prefix: str = ""
    must_include: Sequence[str] = ()
    attention: bool = False
    probable_tokens: int = 0
    """Number of probable tokens to return at each position."""
    rules: RuleOptions = RuleOptions(with_tags=True)
    """Tags in the caption, and abstention."""
    withholds: bool = False
    """Whether no token is delivered of a caption of which the captioner is not sure."""


class Job(Request):
    """A request of a route, whose sentences become events."""

    generator: Captioner | Translator

    def __init__(self, *arguments: Any, request: GenerationRequest, **options: Any) -> None:  # noqa: ANN401
        """Create a job; `request` is what the route requests, other arguments are described at `Request`."""
        super().__init__(*arguments, **options)
        self.request = request
        self.image_key: str | None = None
        """Name of the image in the cache of features; None without an image or a backbone."""
        self.pixels: EncoderInput | None = None
        """Preprocessed image; None where its features are cached."""
        self.deliver: Callable[[Event | BaseException], None] = lambda event: None
        self.streams = True
        self._delivered = 0

    @property
    def holds_tokens(self) -> bool:
        """Whether tokens are delivered at the end only: the caption may be withheld, or replaced by one with a tag."""
        rules = self.generator.rules if isinstance(self.generator, Captioner) else None
        if rules is None:
            return False
        return (self.request.withholds and rules.has_confidence) or rules.named_tags(self) is not None

    def example(self, tokens: Sequence[int] = ()) -> Example:
        """Return the example of the model with some target tokens."""
        return Example(self.id, tokens, self.source_tokens, self.features)

    def decided(self, tokens: Sequence[int], totals: Sequence[float]) -> None:
        """Deliver tokens of the best sentence."""
        if not self.holds_tokens:
            self._deliver_tokens(tokens, totals)

    def _deliver_tokens(self, tokens: Sequence[int], totals: Sequence[float]) -> None:
        attention = token_attention(self, [tokens]) if self.request.attention else None
        probable = probable_tokens(self, [tokens])[0]
        texts = token_texts(self.generator.tokenizer, tokens)
        for position in range(self._delivered, len(tokens)):
            log_prob = totals[position] - (totals[position - 1] if position else 0.0)
            weights = None if attention is None else attention[0][position]
            self.deliver(TokenEvent(position, texts[position], tokens[position], log_prob, weights, probable[position]))
        self._delivered = len(tokens)

    def finished(self, sentences: list[Sentence]) -> None:
        """Deliver the last tokens, and all sentences."""
        best = sentences[0]
        if self.streams and (best.is_sure or not self.request.withholds):
            self._deliver_tokens(best.tokens, best.totals)
        grid, box = image_grid(self) if self.request.attention else (None, None)
        read = len(self.prefix) if self.source_tokens is None else len(self.source_tokens)
        tags = () if self.evidence is None else self.evidence.tags
        self.deliver(
            FinalEvent(
                self.request.served.name,
                self.generator.models[0].recipe.data.lang,
                tuple(sentences),
                generated_tokens(self, sentences),
                grid,
                box,
                tuple((tag.word, tag.probability) for tag in tags),
                read,
            )
        )
        super().finished(sentences)

    def failed(self, error: Exception) -> None:
        """Deliver an error in place of the sentences."""
        if not isinstance(error, LimnerError):
            logger.error("a request failed", exc_info=error)
        super().failed(error)
        self.deliver(error)


def make_job(request: GenerationRequest, cache: FeatureCache, settings: ServerSettings) -> Job:
    """Check a request, and read its image unless its features are cached; called in a thread that reads images.

    Raises:
        ImageTooLargeError: the image has too many pixels.
        MediaError: the image cannot be decoded.
        SettingsError: a decoding setting, the prefix, the text or the words to include are not allowed.
    """
    generator, image = request.generator, request.image
    decoding = change_decoding(generator.decoding, request.decoding)
    (words,) = words_of_inputs(generator.tokenizer, request.must_include, 1)
    if isinstance(generator, Translator):
        image = image if generator.uses_image else None
        generator.inputs([request.text or ""], [image], "text")  # checks the length
    else:
        generator.rules.least_confidence(request.rules.min_confidence)
    source = GenerationInput(new_item(image, request.text), request.text, (), words)
    rules = request.rules._replace(with_tags=isinstance(generator, Captioner) and generator.rules.tagger is not None)
    job = generator.request(source, decoding, prefix=request.prefix, rules=rules, make=partial(Job, request=request))
    if len(job.prefix) > decoding.max_length:
        length = len(job.prefix)
        raise SettingsError(f"prefix: expected at most {decoding.max_length} tokens, got {length}; shorten it")
    if image is not None:
        require_size(image, settings)
    if image is not None and generator.backbone is not None:
        job.image_key = image_name(image)
        if not cache.has(generator.backbone, job.image_key):
            job.pixels = generator.backbone.read(image)
    return job
