"""Base class of the translators of torch, of exported graphs and of the hub: from sentences to translations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings, change_decoding
from limner.errors import SettingsError
from limner.generation.engine import Engine, request_batches
from limner.generation.request import Features, GenerationModel, Request
from limner.generation.rules import CaptionRules
from limner.generation.sentences import (
    EMPTY_TRANSLATION,
    MAX_SOURCE_TOKENS,
    UNKNOWN_SOURCE,
    MissingImage,
    MustInclude,
    all_translations,
    compile_words,
    images_of_sentences,
    missing_image_message,
    require_image_files,
    require_source_length,
    warn_of_ignored_images,
    warn_of_unknown_words,
    without_capitals,
    words_of_inputs,
)
from limner.media.image import ImageInput
from limner.progress import Progress
from limner.text.tokenizer import Tokenizer

TRANSLATION_BATCH_SIZE = 64
"""Default number of sentences that are translated together."""


class BaseTranslator(ABC):
    """A generator of translations: `limner.Translator`, an exported translator, or a model of the hub."""

    tokenizer: Tokenizer
    """Tokenizer of the translations."""
    source_tokenizer: Tokenizer
    """Tokenizer of the sentences that are translated."""
    max_source_tokens: int = MAX_SOURCE_TOKENS
    """Maximum number of tokens of a source sentence."""
    decoding: DecodingSettings
    """Default decoding settings."""
    uses_image: bool
    """Whether translations depend on an image."""
    rules: CaptionRules | None = None
    """Translations have no rules."""
    unknown_effect: str = UNKNOWN_SOURCE
    """Effect of words that are not in the source vocabulary, for the log."""
    empty: Sentence = EMPTY_TRANSLATION
    """Translation of an empty sentence."""

    @abstractmethod
    def model(self, settings: DecodingSettings) -> GenerationModel:
        """Return the model that decodes with some settings."""

    def features_port(self, images: Sequence[ImageInput | None]) -> Features | None:
        """Return the features port for requests whose sources are `source_of` of these images; None without images."""
        return None

    def source_of(self, image: ImageInput | None, sentence: str, words: tuple[str, ...]) -> object:
        """Return the input of the features port for an image, a sentence and the words to include."""
        return image

    def search(self, requests: Sequence[Request], on_progress: Progress | None) -> list[list[Sentence]] | None:
        """Return the translations by a search of the model's own; None for a model that decodes step by step."""
        return None

    def translate(
        self,
        sentences: Sequence[str],
        *,
        images: Sequence[ImageInput | None] | None = None,
        missing: MissingImage = "refuse",
        must_include: MustInclude | None = None,
        batch_size: int = TRANSLATION_BATCH_SIZE,
        on_progress: Progress | None = None,
        **decoding: Any,  # noqa: ANN401
    ) -> list[list[Sentence]]:
        """Translate sentences.

        Args:
            sentences: plain text in the source language.
            images: for each sentence a path, encoded bytes, a PIL image, an array (H, W, 3), or None.
            missing: treatment of sentences without an image by a model trained with images.
            must_include: words or phrases that every translation includes, see `Captioner.describe`; or one such list
                for each sentence.
            batch_size: sentences a batch; it changes no result.
            on_progress: called with the number of sentences done and their total.
            decoding: settings of `DecodingSettings` to change, such as beam_size=6, n_best=3.

        Returns:
            The `n_best` translations of each sentence, best first; `EMPTY_TRANSLATION` for an empty sentence.

        Raises:
            SettingsError: a sentence is too long or has no image, the numbers of sentences and images differ, or a
                decoding setting is unknown or not allowed, or no translation can include the words of `must_include`.
            MediaError: an image cannot be read.
            RunError: an image is given, and the model was exported without its backbone.
        """
        settings = change_decoding(self.decoding, decoding)
        sources, images = self.check(sentences, images, missing)
        words = words_of_inputs(self.tokenizer, must_include, len(sentences))
        constraints = {entry: compile_words(self.tokenizer, entry) for entry in dict.fromkeys(words) if entry}
        rows = [row for row, source in enumerate(sources) if source]
        warn_of_unknown_words(self.source_tokenizer, (sentences[row] for row in rows), self.unknown_effect)
        requests = [
            Request(
                self,
                sentences[row],
                settings,
                source=self.source_of(images[row], sentences[row], words[row]),
                source_tokens=sources[row],
                constraint=constraints.get(words[row]),
            )
            for row in rows
        ]
        translations = self.search(requests, on_progress)
        if translations is None:
            engine = Engine(self.features_port([images[row] for row in rows]), isolated=())
            list(engine.run(request_batches(requests, batch_size), ahead=True, on_progress=on_progress))
            translations = [request.sentences for request in requests]
        by_row = dict(zip(rows, translations, strict=True))
        return all_translations(by_row, len(sentences), settings.max_length, self.empty)

    def check(
        self, sentences: Sequence[str], images: Sequence[ImageInput | None] | None, missing: MissingImage = "refuse"
    ) -> tuple[list[list[int]], Sequence[ImageInput | None]]:
        """Return the tokens and the image of each sentence, None without an image; errors as `translate`."""
        images = images_of_sentences(sentences, images, missing)
        sources = [self.source_tokenizer.encode(without_capitals(text)) for text in sentences]
        for row, source in enumerate(sources):
            require_source_length(row, len(source), self.max_source_tokens)
        require_image_files(images)
        if not self.uses_image:
            warn_of_ignored_images(images)
            return sources, [None] * len(sentences)
        without = [row for row, source in enumerate(sources) if source and images[row] is None]
        if without and missing == "refuse":
            raise SettingsError(missing_image_message(without[0]))
        return sources, images
