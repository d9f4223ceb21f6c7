"""What translators of exported graphs and translators of the hub have in common: from sentences to translations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings, change_decoding
from limner.errors import SettingsError
from limner.generation.engine import Engine
from limner.generation.must_include import MustInclude, compile_words, words_of_inputs
from limner.generation.request import Features, GenerationModel, Request
from limner.generation.rules import CaptionRules
from limner.generation.sentences import (
    CUT_TRANSLATIONS,
    EMPTY_TRANSLATION,
    UNKNOWN_SOURCE,
    MissingImage,
    images_of_sentences,
    missing_image,
    require_source_length,
    warn_of_cut_off,
    warn_of_unknown_words,
)
from limner.media.image import ImageInput
from limner.progress import Progress
from limner.text.tokenizer import Tokenizer

TRANSLATION_BATCH_SIZE = 8
"""Default number of sentences that are translated together."""


class BaseTranslator(ABC):
    """A generator of translations that is not a run."""

    source_tokenizer: Tokenizer

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the translations."""

    @property
    @abstractmethod
    def decoding(self) -> DecodingSettings:
        """Default decoding settings."""

    @property
    @abstractmethod
    def rules(self) -> CaptionRules | None:
        """None: translations have no rules."""

    @property
    @abstractmethod
    def uses_image(self) -> bool:
        """Whether translations depend on an image."""

    @abstractmethod
    def model(self, settings: DecodingSettings) -> GenerationModel:
        """Return the model that decodes with some settings."""

    @property
    def features_of_sources(self) -> Features | None:
        """Features port of the images of the sentences; None for a translator of text."""
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
        """Translate sentences; arguments, results and errors are described at `limner.Translator.translate`.

        Raises:
            RunError: an image is given, and the model was exported without its backbone.
        """
        settings = change_decoding(self.decoding, decoding)
        images = self._check(sentences, images, missing)
        sources = [self.source_tokenizer.encode(text) for text in sentences]
        for row, source in enumerate(sources):
            require_source_length(row, len(source))
        words = words_of_inputs(self.tokenizer, must_include, len(sentences))
        constraints = {entry: compile_words(self.tokenizer, entry) for entry in dict.fromkeys(words) if entry}
        rows = sorted((row for row, source in enumerate(sources) if source), key=lambda row: len(sources[row]))
        warn_of_unknown_words(self.source_tokenizer, (sentences[row] for row in rows), UNKNOWN_SOURCE)
        requests = [
            Request(
                self,
                str(row),
                settings,
                source=images[row],
                source_tokens=sources[row],
                constraint=constraints.get(words[row]),
            )
            for row in rows
        ]
        batches = [requests[first : first + batch_size] for first in range(0, len(requests), batch_size)]
        done = 0
        for batch in Engine(self.features_of_sources).run(batches):
            for request in batch:
                if request.error is not None:
                    raise request.error
            done += len(batch)
            if on_progress is not None:
                on_progress(done, len(requests))
        translations = [[EMPTY_TRANSLATION] for _ in sentences]
        for row, request in zip(rows, requests, strict=True):
            translations[row] = request.sentences
        cut = sum(not n_best[0].ended for n_best in translations)
        warn_of_cut_off(cut, len(sentences), "translation", settings.max_length, CUT_TRANSLATIONS)
        return translations

    def _check(
        self, sentences: Sequence[str], images: Sequence[ImageInput | None] | None, missing: MissingImage
    ) -> Sequence[ImageInput | None]:
        """Return the image of each sentence, or raise SettingsError."""
        images = images_of_sentences(sentences, images, missing)
        if not self.uses_image:
            return [None] * len(sentences)
        pairs = enumerate(zip(images, sentences, strict=True))
        without = [row for row, (image, text) in pairs if image is None and text.strip()]
        if without and missing == "refuse":
            raise SettingsError(missing_image(without[0]))
        return images
