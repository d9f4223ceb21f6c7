"""Translations of new sentences, with or without images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from limner.data.dataset import GenerationInput
from limner.data.languages import SourceLanguage
from limner.decoding.sentence import Sentence
from limner.decoding.settings import change_decoding
from limner.errors import RunError, SettingsError
from limner.features.encoders.base import Backbone
from limner.generation.engine import Engine
from limner.generation.request import Request
from limner.generation.sentences import (
    COPIED_CHARACTERS,
    COPIED_SOURCE,
    EMPTY_TRANSLATION,
    UNKNOWN_SOURCE,
    MissingImage,
    MustInclude,
    all_translations,
    images_of_sentences,
    missing_image_message,
    require_image_files,
    require_source_length,
    warn_of_ignored_images,
    warn_of_unknown_words,
    words_of_inputs,
)
from limner.inference.base import TextGenerator, require_sentences
from limner.inference.explain import Explanation
from limner.inference.explain_beam import BeamExplanation, explain_beam
from limner.inference.features import new_item
from limner.inference.generate import features_port, request_batches
from limner.inference.search_translations import search_translations
from limner.media.image import ImageInput
from limner.models.phrase_based import PhraseBased
from limner.progress import Progress
from limner.runs.trained_model import TrainedModel
from limner.smt import FEATURES

TRANSLATION_BATCH_SIZE = 64


class TranslationInputs(NamedTuple):
    """The sentences of a call that are not empty."""

    rows: list[int]
    """Positions of the sentences in the call."""
    inputs: list[GenerationInput]
    images: list[ImageInput | None]


class Translator(TextGenerator):
    """A translation model, or an ensemble of several."""

    def __init__(self, models: Sequence[TrainedModel], backbone: Backbone | None = None) -> None:
        """Combine models that share their vocabularies and features, see `TextGenerator`.

        Raises:
            RunError: the models do not translate, or their vocabularies or features differ.
        """
        super().__init__(models, backbone)
        self.source, self.lang = languages(models[0])
        self.source_tokenizer = self.source.tokenizer

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
        """
        settings = change_decoding(self.decoding, decoding)
        rows, inputs, images_of_rows = self.inputs(sentences, images, missing)
        words = words_of_inputs(self.tokenizer, must_include, len(sentences))
        inputs = [source._replace(must_include=words[row]) for row, source in zip(rows, inputs, strict=True)]
        effect, empty = UNKNOWN_SOURCE, EMPTY_TRANSLATION
        model = self.models[0].model
        if isinstance(model, PhraseBased):
            effect = COPIED_SOURCE if self.source_tokenizer.settings.level == "word" else COPIED_CHARACTERS
            empty = empty._replace(features=tuple((name, 0.0) for name in FEATURES))
        warn_of_unknown_words(self.source_tokenizer, (source.source or "" for source in inputs), effect)
        if isinstance(model, PhraseBased):
            hypotheses = search_translations(self.models, inputs, settings, on_progress=on_progress)
        else:
            requests: list[Request] = [self.request(source, settings) for source in inputs]
            engine = Engine(features_port(self.features_of(images_of_rows)), isolated=())
            list(engine.run(request_batches(requests, batch_size), ahead=True, on_progress=on_progress))
            hypotheses = [request.sentences for request in requests]
        translations = dict(zip(rows, hypotheses, strict=True))
        return all_translations(translations, len(sentences), settings.max_length, empty)

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
        rows, inputs, images_of_rows = self.inputs(sentences, images, missing)
        explained = self._explain(inputs, [translations[row] for row in rows], images_of_rows, on_progress)
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
        _, inputs, images = self.inputs([sentence], [image], missing)
        if not inputs:
            raise SettingsError("expected a sentence to translate, got an empty one")
        (words,) = words_of_inputs(self.tokenizer, must_include, 1)
        source = inputs[0]._replace(must_include=words)
        return explain_beam(self.models, source, self.features_of(images), settings)

    def inputs(
        self, sentences: Sequence[str], images: Sequence[ImageInput | None] | None, missing: MissingImage = "refuse"
    ) -> TranslationInputs:
        """Check sentences and images as `translate` does, and select the sentences that are not empty."""
        images = images_of_sentences(sentences, images, missing)
        rows = []
        for row, text in enumerate(sentences):
            count = len(self.source_tokenizer.encode(text))
            require_source_length(row, count)
            if count:
                rows.append(row)
        self._check_images(rows, [images[row] for row in rows], missing)
        inputs = [GenerationInput(new_item(images[row], sentences[row]), sentences[row], ()) for row in rows]
        return TranslationInputs(rows, inputs, [images[row] for row in rows])

    def _check_images(self, rows: Sequence[int], images: Sequence[ImageInput | None], missing: MissingImage) -> None:
        """Check the images of the sentences at positions `rows` before anything is decoded."""
        require_image_files(images)
        without = [row for row, image in zip(rows, images, strict=True) if image is None]
        if not self.uses_image:
            warn_of_ignored_images(images)
            return
        if len(without) < len(rows) and self.backbone is None:
            raise SettingsError("images need the backbone: load the translator with encode_images=True")
        if without and missing == "refuse":
            raise SettingsError(missing_image_message(without[0]))


def languages(model: TrainedModel) -> tuple[SourceLanguage, str]:
    """Return the source language, with its tokenizer, and the target language; RunError if it does not translate."""
    require_sentences(model)
    if model.source is None:
        raise RunError(
            f"model '{model.recipe.model.name}' does not translate: use 'limner describe', or train a translation "
            "model (recipes calixto2017/…)"
        )
    return model.source, model.recipe.data.lang
