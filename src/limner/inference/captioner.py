"""Captions of new images, or of audio files for models of audio features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limner.data.dataset import GenerationInput
from limner.decoding.sentence import Sentence
from limner.decoding.settings import change_decoding
from limner.features.encoders.base import Backbone
from limner.generation.captioning import BaseCaptioner
from limner.generation.request import Features, Request
from limner.generation.rules import CaptionRules
from limner.generation.sentences import words_of_inputs
from limner.inference.base import TextGenerator, require_captioning
from limner.inference.explain import Explanation
from limner.inference.explain_beam import BeamExplanation, explain_beam
from limner.inference.features import new_item, require_images
from limner.inference.generate import features_port
from limner.media.image import IN_MEMORY, ImageInput
from limner.media.modality import IMAGE, Modality
from limner.progress import Progress
from limner.runs.concepts import concepts_of
from limner.runs.trained_model import TrainedModel


class Captioner(TextGenerator, BaseCaptioner):
    """A captioning model, or an ensemble of several.

    A model of audio features takes audio files wherever images are named below.
    """

    def __init__(self, models: Sequence[TrainedModel], backbone: Backbone | None = None) -> None:
        """Combine models that share their vocabulary and features, see `TextGenerator`.

        Raises:
            RunError: the vocabularies or features of the models differ, or they are translation models.
        """
        super().__init__(models, backbone)
        require_captioning(models[0])
        self.lang = models[0].recipe.data.lang
        self.rules: CaptionRules = CaptionRules(*concepts_of(self.folder, models[0].config.features))

    @property
    def folder(self) -> Path | None:
        """Run directory; None for an ensemble, or a model that was not loaded from a folder."""
        return self.models[0].folder if len(self.models) == 1 else None

    @property
    def modality(self) -> Modality:
        """Modality of the files that the model describes."""
        return IMAGE if self.backbone is None else self.backbone.modality

    def explain(
        self, images: Sequence[ImageInput], captions: Sequence[Sentence], *, on_progress: Progress | None = None
    ) -> list[Explanation]:
        """Compute the attention over the image for each word of captions, by the first model of an ensemble.

        Args:
            images: images of the captions, see `describe`.
            captions: one caption of each image, as returned by `describe`.
            on_progress: called with the number of captions done and their total.

        Raises:
            MediaError: an image cannot be read.
            SettingsError: the model has no attention.
        """
        inputs = [GenerationInput(new_item(image), None, ()) for image in images]
        return self._explain(inputs, captions, images, on_progress)

    def explain_beam(
        self,
        image: ImageInput,
        *,
        prefix: str | None = None,
        must_include: Sequence[str] | None = None,
        **decoding: Any,  # noqa: ANN401
    ) -> BeamExplanation:
        """Caption an image and return every hypothesis that was in the beam, as a tree.

        Args:
            image: path, encoded bytes, PIL image or array (H, W, 3).
            prefix: words that the caption starts with.
            must_include: words or phrases that the caption includes, see `describe`.
            decoding: settings of `DecodingSettings` to change, such as beam_size=5.

        Raises:
            MediaError: the image cannot be read.
            SettingsError: a decoding setting is unknown or not allowed, or it samples.
        """
        settings = change_decoding(self.decoding, decoding)
        (words,) = words_of_inputs(self.tokenizer, must_include, 1)
        source = GenerationInput(new_item(image), None, (), words)
        return explain_beam(self.models, source, self.features_of([image]), settings, prefix)

    def source_of(self, image: ImageInput) -> GenerationInput:
        """Return the input of a request."""
        return GenerationInput(new_item(image), None, ())

    def features_port(self, images: Sequence[ImageInput]) -> Features:
        """Return the features port, which for a model without features only checks that the images can be read."""
        if (port := features_port(self.features_of(images))) is not None:
            return port

        def check(requests: Sequence[Request]) -> list[None]:
            names = (request.source.item.media_path for request in requests)
            require_images(self.models[0], [Path(name) for name in names if not name.startswith(IN_MEMORY)])
            return [None] * len(requests)

        return check
