"""Base class of the captioners of torch, of exported graphs and of the hub: from images to captions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings, change_decoding
from limner.errors import MediaError
from limner.generation.engine import Engine
from limner.generation.request import Features, GenerationModel, Request, RuleOptions
from limner.generation.rules import CaptionRules
from limner.generation.sentences import (
    MustInclude,
    compile_words,
    warn_of_cut_off,
    warn_of_unknown_words,
    words_of_inputs,
)
from limner.media.image import ImageInput, image_name, require_list
from limner.runs.concepts import Tag, pooled_vector
from limner.text.tokenizer import Tokenizer

CAPTION_BATCH_SIZE = 32
"""Default number of images that are captioned together."""
UNKNOWN_PREFIX = "captions do not depend on them"

ImageT = TypeVar("ImageT", bound=ImageInput)


class BaseCaptioner(ABC):
    """A generator of captions: `limner.Captioner`, an exported captioner, or a model of the hub."""

    lang: str
    """Language of the captions."""
    tokenizer: Tokenizer
    """Tokenizer of the captions."""
    decoding: DecodingSettings
    """Decoding settings of the recipe, the default of all methods."""
    rules: CaptionRules
    """Concepts that choose captions, tags, and confidence."""
    changed: Sequence[str] = ()
    """Settings with which a model of the hub was loaded, other than the defaults."""

    @property
    @abstractmethod
    def folder(self) -> Path | None:
        """Run directory or exported model; None for an ensemble, or a model that was not loaded from a folder."""

    @abstractmethod
    def model(self, settings: DecodingSettings) -> GenerationModel:
        """Return the model that decodes with some settings."""

    @abstractmethod
    def features_port(self, images: Sequence[ImageInput]) -> Features:
        """Return the features port for requests whose sources are `source_of` of these images."""

    @abstractmethod
    def source_of(self, image: ImageInput) -> object:
        """Return the input of the features port for an image."""

    def describe(
        self,
        images: Sequence[ImageInput],
        *,
        prefixes: Sequence[str] | None = None,
        must_include: MustInclude | None = None,
        with_tags: bool = False,
        concepts: bool = True,
        min_confidence: float | None = None,
        batch_size: int = CAPTION_BATCH_SIZE,
        log_cut_off: bool = True,
        **decoding: Any,  # noqa: ANN401
    ) -> list[list[Sentence]]:
        """Generate captions of images.

        Args:
            images: paths, encoded bytes, PIL images or arrays (H, W, 3).
            prefixes: for each image the words that its caption starts with.
            must_include: words or phrases that every caption includes, such as ["umbrella", "dog|puppy"], where one of
                the alternatives between | is enough; or one such list for each image.
            with_tags: whether captions have the `tags` of their images.
            concepts: whether the concepts of the model choose among the hypotheses, and a plain sentence about the most
                probable thing replaces captions with improbable things; only for models with concepts, such
                as the built-in captioner, and without sampling.
            min_confidence: confidence below which a caption is replaced, or `Sentence.is_sure` is false; None for the
                value of the calibration.
            batch_size: number of images that are captioned together; captions do not depend on it.
            log_cut_off: whether to log how many captions did not end before `max_length`.
            decoding: settings of `DecodingSettings` to change, such as beam_size=5, n_best=3.

        Returns:
            The `n_best` captions of each image, best first.

        Raises:
            MediaError: an image cannot be read.
            SettingsError: a decoding setting is unknown or not allowed, or no caption can include the words of
                `must_include`.
            RunError: the model was exported without its backbone.
        """
        captions = []
        results = self.describe_each(
            images,
            prefixes=prefixes,
            must_include=must_include,
            with_tags=with_tags,
            concepts=concepts,
            min_confidence=min_confidence,
            batch_size=batch_size,
            log_cut_off=log_cut_off,
            **decoding,
        )
        for _, result in results:
            if isinstance(result, MediaError):
                raise result
            captions.append(result)
        return captions

    def describe_each(
        self,
        images: Sequence[ImageT],
        *,
        batch_size: int = CAPTION_BATCH_SIZE,
        log_cut_off: bool = True,
        **options: Any,  # noqa: ANN401
    ) -> Iterator[tuple[ImageT, list[Sentence] | MediaError]]:
        """Generate captions batch by batch; an image that cannot be read does not stop the others.

        The options are the other arguments of `describe`.

        Yields:
            Each image with its captions, or with the error that it cannot be read.
        """
        requests = self._requests(images, **options)
        batches = [requests[start : start + batch_size] for start in range(0, len(requests), batch_size)]
        done = cut = described = 0
        for batch in Engine(self.features_port(images)).run(batches):
            for image, request in zip(images[done : done + len(batch)], batch, strict=True):
                if isinstance(request.error, MediaError):
                    yield image, request.error
                else:
                    best = request.sentences[0]
                    described, cut = described + 1, cut + (best.is_sure and not best.ended)
                    yield image, request.sentences
            done += len(batch)
        if log_cut_off and cut:
            warn_of_cut_off(cut, described, "caption", requests[0].decoding.max_length, "raise max_length")

    def tags(self, images: Sequence[ImageInput], *, batch_size: int = CAPTION_BATCH_SIZE) -> list[tuple[Tag, ...]]:
        """Name the things in images, without captioning them.

        Args:
            images: images to tag, see `describe`.
            batch_size: number of images that are encoded together.

        Returns:
            The most probable things of each image, best first; an image may have none.

        Raises:
            MediaError: an image cannot be read.
            SettingsError: the model does not read the features of the last layer of a built-in backbone.
        """
        require_list(images, "image")
        self.rules.check(RuleOptions(with_tags=True))
        tagger, port = self.rules.tagger, self.features_port(images)
        assert tagger is not None, "checked before"
        tags: list[tuple[Tag, ...]] = []
        for start in range(0, len(images), batch_size):
            batch = [
                Request(self, image_name(image), self.decoding, source=self.source_of(image))
                for image in images[start : start + batch_size]
            ]
            tags += [
                () if values is None else tagger.tags(tagger.of_vectors(pooled_vector(values)[None])[0])
                for values in port(batch)
            ]
        return tags

    def _requests(
        self,
        images: Sequence[ImageInput],
        prefixes: Sequence[str] | None = None,
        must_include: MustInclude | None = None,
        *,
        with_tags: bool = False,
        concepts: bool = True,
        min_confidence: float | None = None,
        **decoding: Any,  # noqa: ANN401
    ) -> list[Request]:
        """Check the options of `describe`; return a request for each image."""
        require_list(images, "image")
        rule_options = RuleOptions(with_tags, concepts, min_confidence)
        settings = change_decoding(self.decoding, decoding)
        self.rules.check(rule_options)
        if prefixes:
            warn_of_unknown_words(self.tokenizer, prefixes, UNKNOWN_PREFIX)
        included = words_of_inputs(self.tokenizer, must_include, len(images)) if must_include else [()] * len(images)
        constraints = {words: compile_words(self.tokenizer, words) for words in dict.fromkeys(included) if words}
        starts = [""] * len(images) if prefixes is None else prefixes
        requests = [
            Request(
                self,
                image_name(image),
                settings,
                source=self.source_of(image),
                prefix=prefix,
                constraint=constraints.get(words),
            )
            for image, words, prefix in zip(images, included, starts, strict=True)
        ]
        for request in requests:
            request.rule_options, request.exponent = rule_options, decoding.get("length_penalty", request.exponent)
        return requests
