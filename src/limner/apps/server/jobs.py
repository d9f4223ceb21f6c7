"""Requests of the service: their checks, the features of their images, and delivery to the stream of their route.

Features of images are encoded in batches, and kept for images that are sent again.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from limner.apps.server.labels import labels_of
from limner.apps.server.models import ServedGenerator, ServedModel, trained_models
from limner.apps.server.settings import ServerSettings
from limner.data.examples import Example, StoredFeatures
from limner.decoding.sentence import Sentence
from limner.decoding.settings import change_decoding
from limner.errors import LimnerError, SettingsError
from limner.features.encoders.base import Backbone, EncoderInput, encode
from limner.features.spec import attended_area
from limner.generation.request import Request, RuleOptions
from limner.generation.sentences import compile_words, require_source_length, without_capitals, words_of_inputs
from limner.generation.translation import BaseTranslator
from limner.media.image import image_name, image_size, require_pixels
from limner.storage.json_text import to_json
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS


class FeatureCache:
    """Features of the latest images, by backbone and content, up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.bytes = max_bytes, 0
        self._stored: OrderedDict[tuple[int, str], StoredFeatures] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, backbone: Backbone, key: str) -> StoredFeatures | None:
        """Return the features of an image, and mark them as the latest; None where they are not stored."""
        with self._lock:
            features = self._stored.get((id(backbone), key))
            if features is not None:
                self._stored.move_to_end((id(backbone), key))
            return features

    def put(self, backbone: Backbone, key: str, features: StoredFeatures) -> None:
        """Store the features of an image, and remove the oldest features above the limit."""
        with self._lock:
            old = self._stored.pop((id(backbone), key), {})
            self.bytes += _bytes(features) - _bytes(old)
            self._stored[id(backbone), key] = features
            while self.bytes > self.max_bytes:
                self.bytes -= _bytes(self._stored.popitem(last=False)[1])


def _bytes(features: StoredFeatures) -> int:
    return sum(values.nbytes for values in features.values() if values is not None)


class RequestFeatures:
    """The features port of the service: computes the features of the images that were read with the requests."""

    def __init__(self, cache: FeatureCache) -> None:
        self.cache = cache

    def __call__(self, requests: Sequence[Request]) -> list[StoredFeatures | None]:
        """Return the features of the image of each job, encoded by shape; BackboneError if one is not finite."""
        jobs = cast("Sequence[Job]", requests)
        batches: dict[tuple[Backbone, tuple[int, ...]], dict[str, EncoderInput]] = {}
        for job in jobs:
            if job.pixels is not None and job.image_key is not None and job.generator.backbone is not None:
                batches.setdefault((job.generator.backbone, job.pixels.shape), {})[job.image_key] = job.pixels
        computed: dict[tuple[Backbone | None, str | None], StoredFeatures] = {}
        for (backbone, _), images in batches.items():
            features = encode(backbone, np.stack([*images.values()]), [*images])
            for row, key in enumerate(images):
                stored: StoredFeatures = {kind: values[row].copy() for kind, values in features.items()}
                computed[backbone, key] = stored
                self.cache.put(backbone, key, stored)
        for job in jobs:
            job.features = computed.get((job.generator.backbone, job.image_key), job.features)
            job.pixels = None
        return [job.features for job in jobs]


Box = tuple[float, float, float, float]
"""Left, top, right and bottom of a part of an image, as fractions of its sides."""
logger = logging.getLogger(__name__)


class GenerationRequest(NamedTuple):
    """Request of a route for sentences."""

    served: ServedModel
    generator: ServedGenerator
    image: bytes | None = None
    text: str | None = None
    """Source sentence; None for a caption."""
    decoding: Mapping[str, Any] = {}
    """Fields of `DecodingSettings` to change, such as beam_size, n_best and sample={"temperature": …, "seed": …}."""
    prefix: str = ""
    must_include: Sequence[str] = ()
    attention: bool = False
    probable_tokens: int = 0
    """Number of probable tokens to return at each position."""
    rule_options: RuleOptions = RuleOptions()
    of_chat: bool = False
    """Whether the tokens are a message of a chat that continues the prefix, and leaves it out."""
    withheld: str = ""
    """In a chat, text in place of a withheld caption."""
    labels: Mapping[str, Any] | None = None
    """JSON schema of labels to return in place of a sentence; None for a sentence."""


class ProbableToken(NamedTuple):
    """A token that could continue a sentence."""

    text: str
    log_prob: float


class GeneratedToken(NamedTuple):
    """A token of a generated sentence."""

    text: str
    """Text that the token adds; the texts of all tokens joined are the sentence."""
    token_id: int
    log_prob: float
    """Natural logarithm of its probability given the tokens before it."""
    attention: tuple[float, ...] | None = None
    """Weights over the image locations, row by row; None unless they are requested and the model has attention."""
    probable: tuple[ProbableToken, ...] = ()
    """The most probable tokens at its position, as many as are requested."""


class FinalEvent(NamedTuple):
    """The end of a stream: all sentences, best first."""

    job: Job
    sentences: tuple[Sentence, ...]
    """The `n_best` sentences, best first."""
    tokens: tuple[tuple[GeneratedToken, ...], ...]
    """Tokens of each sentence, without special tokens."""
    grid_size: tuple[int, int] | None = None
    """Rows and columns of the image locations that attention weights belong to."""
    box: Box | None = None
    """Part of the image under the grid."""

    @property
    def best(self) -> Sentence:
        """The best sentence."""
        return self.sentences[0]


Event = GeneratedToken | FinalEvent
"""A token of the best sentence that has been decided, or the end."""


class Job(Request):
    """A request of a route, whose sentences become events."""

    generator: ServedGenerator

    def __init__(self, *arguments: Any, request: GenerationRequest, **options: Any) -> None:  # noqa: ANN401
        """Create a job for the request of a route; the other arguments are described at `Request`."""
        super().__init__(*arguments, **options)
        self.request = request
        self.image_key: str | None = None
        """Name of the image in the cache of features; None without an image or a backbone."""
        self.pixels: EncoderInput | None = None
        """Preprocessed image; None where its features are cached."""
        self.deliver: Callable[[Event | BaseException], None] = lambda event: None
        self.streams = True
        self._first = len(self.prefix) if request.of_chat else 0
        self._delivered = self._first

    @property
    def lang(self) -> str:
        """Language of the sentences."""
        return self.generator.lang

    @property
    def input_tokens(self) -> int:
        """Number of input tokens: of the source sentence, or of the prefix."""
        return len(self.prefix if self.source_tokens is None else self.source_tokens)

    @property
    def tags(self) -> list[tuple[str, float]]:
        """Names of things in the image with their probability, where the model has tags."""
        return [(tag.word, tag.probability) for tag in self.sentences[0].tags] if self.sentences else []

    def example(self, tokens: Sequence[int]) -> Example:
        """Return the example of the model with some target tokens."""
        return Example(self.id, tokens, self.source_tokens, self.features)

    def decided(self, tokens: Sequence[int], totals: Sequence[float]) -> None:
        """Deliver tokens of the best sentence, unless the concepts may choose another caption or withhold it."""
        rules = self.generator.rules
        may_change = rules is not None and (
            rules.chooses(self) or (self.request.of_chat and rules.concepts is not None)
        )
        if self.request.labels is None and not may_change:
            self._deliver_tokens(Sentence(tuple(tokens), 0.0, 0.0, totals=tuple(totals), copied=self.copied))

    def _deliver_tokens(self, sentence: Sentence) -> None:
        for token in generated_tokens(self, sentence)[self._delivered :]:
            self.deliver(token)
        self._delivered = max(self._delivered, len(sentence.tokens))

    def finished(self, sentences: list[Sentence]) -> None:
        """Deliver the last tokens, and all sentences; or the labels of the image in their place."""
        if self.request.labels is not None:
            tags = [(tag.word, tag.probability) for tag in sentences[0].tags]
            labels = to_json(labels_of(tags, self.request.labels, "format"))
            sentences = [Sentence((), 0.0, 0.0, text=labels, tags=sentences[0].tags)]
        elif self.request.of_chat:
            text = self.request.withheld
            withheld = Sentence((), 0.0, 0.0, text=text, is_sure=bool(text))
            sentences = [sentence if sentence.is_sure else withheld for sentence in sentences]
        super().finished(sentences)
        if self.streams:
            self._deliver_tokens(sentences[0])
        tokens = tuple(generated_tokens(self, sentence)[self._first :] for sentence in sentences)
        weights = next((token.attention for token in tokens[0] if token.attention is not None), ())
        self.deliver(FinalEvent(self, tuple(sentences), tokens, *image_grid(self, len(weights))))

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
    source_tokens = None
    if request.served.source is not None:
        image = image if generator.uses_image else None
        assert isinstance(generator, BaseTranslator), "a model with a source language translates"
        source_tokens = generator.source_tokenizer.encode(without_capitals(request.text or ""))
        require_source_length(0, len(source_tokens), generator.max_source_tokens)
    elif generator.rules is not None:
        generator.rules.check(RuleOptions(min_confidence=request.rule_options.min_confidence))
    if request.attention or request.probable_tokens:
        trained_models(generator)  # here, as the first call loads them
    job = Job(
        generator,
        request.text or ("" if image is None else image_name(image)),
        decoding,
        request=request,
        prefix=request.prefix,
        source_tokens=source_tokens,
        constraint=compile_words(generator.tokenizer, words) if words else None,
    )
    with_tags = generator.rules is not None and generator.rules.tagger is not None
    job.rule_options = request.rule_options._replace(with_tags=with_tags)
    job.exponent = request.decoding.get("length_penalty", job.exponent)
    if len(job.prefix) > decoding.max_length:
        length = len(job.prefix)
        raise SettingsError(f"prefix: expected at most {decoding.max_length} tokens, got {length}; shorten it")
    if image is not None:
        require_pixels(image, settings.max_pixels)
    if image is not None and generator.backbone is not None:
        job.image_key = image_name(image)
        job.features = cache.get(generator.backbone, job.image_key)
        if job.features is None:
            job.pixels = generator.backbone.read(image)
    return job


def generated_tokens(job: Job, sentence: Sentence) -> tuple[GeneratedToken, ...]:
    """Return the tokens of a sentence, or of its beginning, with attention and probable tokens as requested."""
    tokens, tokenizer = sentence.tokens, job.generator.tokenizer
    if not tokens and sentence.text:  # a plain sentence
        return (GeneratedToken(sentence.text, SPECIAL_TOKENS.unk, sentence.log_prob),)
    attention: Sequence[tuple[float, ...] | None] = [None] * len(tokens)
    probable: Sequence[tuple[ProbableToken, ...]] = [()] * len(tokens)
    if tokens and (job.request.attention or job.request.probable_tokens):
        from limner.apps.server.explanations import explain_tokens  # imports torch

        attention, probable = explain_tokens(job, tokens)
    before = (0.0, *sentence.totals)
    return tuple(
        GeneratedToken(
            text,
            tokens[position],
            sentence.totals[position] - before[position],
            attention[position],
            probable[position],
        )
        for position, text in enumerate(token_texts(tokenizer, tokens, sentence.copied))
    )


def token_texts(tokenizer: Tokenizer, tokens: Sequence[int], copied: Sequence[str] = ()) -> list[str]:
    """Return the text that each token adds to the running text of the sentence; joined they are the text.

    Where a token changes the text before it, such as a closing quotation mark, the text is kept back until it agrees
    with the whole sentence; the last token adds the rest.
    """
    whole = tokenizer.decode(tokens, detokenise=True, copied=copied)
    texts, before = [], ""
    for count in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[:count], detokenise=True, copied=copied)
        added = text[len(before) :] if text.startswith(before) and whole.startswith(text) else ""
        texts.append(added)
        before += added
    if texts:
        texts[-1] += whole[len(before) :]
    return texts


def image_grid(job: Job, locations: int) -> tuple[tuple[int, int] | None, Box | None]:
    """Return the rows and columns of the grid of attended locations, and the part of the image under it."""
    if job.request.image is None or not locations:
        return None, None
    width, height = image_size(job.request.image)
    area = attended_area(trained_models(job.generator)[0].config.features, locations, (width, height))
    if area is None:
        return None, None
    left, top, right, bottom = area.box
    return area.grid, (left / width, top / height, right / width, bottom / height)
