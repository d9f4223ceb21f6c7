"""Translations of new sentences, with or without images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from limner.data.dataset import GenerationInput
from limner.data.languages import SourceLanguage
from limner.decoding.sentence import Sentence
from limner.decoding.settings import change_decoding
from limner.errors import RunError, SettingsError
from limner.features.encoders.base import Backbone
from limner.generation.request import Features, Request
from limner.generation.sentences import (
    COPIED_CHARACTERS,
    COPIED_SOURCE,
    EMPTY_TRANSLATION,
    MissingImage,
    words_of_inputs,
)
from limner.generation.translation import BaseTranslator
from limner.inference.base import TextGenerator, require_sentences
from limner.inference.explain import Explanation
from limner.inference.explain_beam import BeamExplanation, explain_beam
from limner.inference.features import new_item
from limner.inference.generate import features_port
from limner.inference.search_translations import search_translations
from limner.media.image import ImageInput
from limner.models.phrase_based import PhraseBased
from limner.progress import Progress
from limner.runs.trained_model import TrainedModel
from limner.smt import FEATURES


class Translator(TextGenerator, BaseTranslator):
    """A translation model, or an ensemble of several."""

    def __init__(self, models: Sequence[TrainedModel], backbone: Backbone | None = None) -> None:
        """Combine models that share their vocabularies and features, see `TextGenerator`.

        Raises:
            RunError: the models do not translate, or their vocabularies or features differ.
        """
        super().__init__(models, backbone)
        self.source, self.lang = languages(models[0])
        self.source_tokenizer = self.source.tokenizer
        if isinstance(models[0].model, PhraseBased):
            by_words = self.source_tokenizer.settings.level == "word"
            self.unknown_effect = COPIED_SOURCE if by_words else COPIED_CHARACTERS
            self.empty = EMPTY_TRANSLATION._replace(features=tuple((name, 0.0) for name in FEATURES))

    def check(
        self, sentences: Sequence[str], images: Sequence[ImageInput | None] | None, missing: MissingImage = "refuse"
    ) -> tuple[list[list[int]], Sequence[ImageInput | None]]:
        """Check sentences and images; SettingsError also for an image if the backbone was not loaded."""
        sources, images = super().check(sentences, images, missing)
        if self.backbone is None and any(image is not None for image in images):
            raise SettingsError("images need the backbone: load the translator with encode_images=True")
        return sources, images

    def features_port(self, images: Sequence[ImageInput | None]) -> Features | None:
        """Return the port of the backbone; None without it."""
        return features_port(self.features_of(images))

    def source_of(self, image: ImageInput | None, sentence: str, words: tuple[str, ...] = ()) -> GenerationInput:
        """Return the input of a request."""
        return GenerationInput(new_item(image, sentence), sentence, (), words)

    def search(self, requests: Sequence[Request], on_progress: Progress | None) -> list[list[Sentence]] | None:
        """Translate by a phrase-based model; None for another model."""
        if not isinstance(self.models[0].model, PhraseBased):
            return None
        settings = requests[0].decoding if requests else self.decoding
        inputs = [request.source for request in requests]
        return search_translations(self.models, inputs, settings, on_progress=on_progress)

    def explain(
        self,
        sentences: Sequence[str],
        translations: Sequence[Sentence],
        *,
        images: Sequence[ImageInput | None] | None = None,
        missing: MissingImage = "refuse",
        on_progress: Progress | None = None,
    ) -> list[Explanation | None]:
        """Compute the attention for each word of translations, by the first model of an ensemble.

        Args:
            sentences: source sentences, see `translate`.
            translations: one translation of each sentence, as returned by `translate`.
            images: image of each sentence, see `translate`.
            missing: treatment of sentences without an image, see `translate`.
            on_progress: called with the number of sentences done and their total.

        Returns:
            One explanation for each sentence, None for an empty sentence.
        """
        sources, images = self.check(sentences, images, missing)
        rows = [row for row, source in enumerate(sources) if source]
        inputs = [self.source_of(images[row], sentences[row]) for row in rows]
        explained = self._explain(inputs, [translations[row] for row in rows], images, on_progress)
        by_row = dict(zip(rows, explained, strict=True))
        return [by_row.get(row) for row in range(len(sentences))]

    def explain_beam(
        self,
        sentence: str,
        *,
        image: ImageInput | None = None,
        missing: MissingImage = "refuse",
        must_include: Sequence[str] | None = None,
        **decoding: Any,  # noqa: ANN401
    ) -> BeamExplanation:
        """Translate a sentence and return every hypothesis that was in the beam, as a tree.

        Args:
            sentence: plain text in the source language.
            image: its image, or None.
            missing: how a model trained with images treats a sentence without one.
            must_include: words or phrases that the translation includes, see `translate`.
            decoding: settings of `DecodingSettings` to change, such as beam_size=6.

        Raises:
            SettingsError: the sentence is empty or too long or has no image, or a decoding setting is unknown or not
                allowed.
            MediaError: the image cannot be read.
        """
        settings = change_decoding(self.decoding, decoding)
        (tokens,), images = self.check([sentence], [image], missing)
        if not tokens:
            raise SettingsError("expected a sentence to translate, got an empty one")
        (words,) = words_of_inputs(self.tokenizer, must_include, 1)
        source = self.source_of(images[0], sentence, words)
        return explain_beam(self.models, source, self.features_of(images), settings)


def languages(model: TrainedModel) -> tuple[SourceLanguage, str]:
    """Return the source language, with its tokenizer, and the target language; RunError if it does not translate."""
    require_sentences(model)
    if model.source is None:
        raise RunError(
            f"model '{model.recipe.model.name}' does not translate: use 'limner describe', or train a translation "
            "model (recipes calixto2017/…)"
        )
    return model.source, model.recipe.data.lang
