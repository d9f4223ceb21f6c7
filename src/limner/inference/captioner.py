"""Captions of new images, or of audio files for models whose features are of audio."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from limner.data.dataset import GenerationInput
from limner.decoding.sentence import Sentence
from limner.decoding.settings import change_decoding
from limner.errors import MediaError
from limner.features.encoders.base import Backbone
from limner.generation.engine import Engine
from limner.generation.request import Features, Request, RuleOptions
from limner.generation.rules import CaptionRules
from limner.inference.base import TextGenerator, require_captioning
from limner.inference.explain import Explanation
from limner.inference.explain_beam import BeamExplanation, explain_beam
from limner.inference.generate import FeaturesOfItems
from limner.inference.must_include import MustInclude, words_of_inputs
from limner.inference.new_images import IN_MEMORY, new_item, require_images
from limner.inference.sentences import warn_of_cut_off, warn_of_unknown_words
from limner.media.image import ImageInput
from limner.media.modality import IMAGE, Modality
from limner.progress import Progress
from limner.runs.concepts import Tag, concepts_of
from limner.runs.trained_model import TrainedModel

CAPTION_BATCH_SIZE = 32
"""Default number of images that are captioned together."""
UNKNOWN_PREFIX = "captions do not depend on them"

ImageT = TypeVar("ImageT", bound=ImageInput)


class Captioner(TextGenerator):
    """A captioning model, or an ensemble of several.

    A model whose features are of audio takes audio files wherever images are named below.
    """

    def __init__(self, models: Sequence[TrainedModel], backbone: Backbone | None = None) -> None:
        """Combine models that share their vocabulary and features.

        Args:
            models: one model, or several as an ensemble.
            backbone: computes the features of new images; None for models without features.

        Raises:
            RunError: the vocabularies or features of the models differ, or they are translation models.
        """
        super().__init__(models, backbone)
        require_captioning(models[0])
        own, tagger = concepts_of(models[0].folder if len(models) == 1 else None, models[0].config.features)
        self._rules = CaptionRules(own, tagger)

    @property
    def rules(self) -> CaptionRules:
        """Concepts that choose captions, tags, and confidence."""
        return self._rules

    @property
    def modality(self) -> Modality:
        """Modality of the files that the model describes."""
        return IMAGE if self.backbone is None else self.backbone.modality

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
                probable thing replaces a caption whose first thing is improbable; only for models with concepts, such
                as the built-in captioner, and without sampling.
            min_confidence: confidence below which a caption is replaced, or `Sentence.is_sure` is false; None for the
                value that was chosen with the concepts.
            batch_size: number of images that are captioned together; captions do not depend on it.
            log_cut_off: whether to log how many captions did not end before `max_length`.
            decoding: settings of `DecodingSettings` to change, such as beam_size=5, n_best=3.

        Returns:
            The `n_best` captions of each image, best first.

        Raises:
            MediaError: an image cannot be read.
            SettingsError: a decoding setting is unknown or not allowed, or no caption can include the words of
                `must_include`.
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

    def tags(self, images: Sequence[ImageInput], *, batch_size: int = CAPTION_BATCH_SIZE) -> list[tuple[Tag, ...]]:
        """Name the things in images, without captioning them.

        Args:
            images: as for `describe`.
            batch_size: number of images that are encoded together.

        Returns:
            The most probable things of each image, best first; an image may have none.

        Raises:
            MediaError: an image cannot be read.
            SettingsError: the model reads other features than those of a built-in backbone's last layer.
        """
        self.rules.check(RuleOptions(with_tags=True))
        tagger = self.rules.tagger
        assert tagger is not None, "checked before"
        tags: list[tuple[Tag, ...]] = []
        for start in range(0, len(images), batch_size):
            batch = images[start : start + batch_size]
            features = self.features_of(batch)
            assert features is not None, "tags without a backbone"
            stored = features.take([new_item(image) for image in batch])
            tags += [() if values is None else tagger.tags(tagger.probabilities(values)) for values in stored]
        return tags

    def describe_each(
        self,
        images: Sequence[ImageT],
        *,
        prefixes: Sequence[str] | None = None,
        must_include: MustInclude | None = None,
        with_tags: bool = False,
        concepts: bool = True,
        min_confidence: float | None = None,
        batch_size: int = CAPTION_BATCH_SIZE,
        log_cut_off: bool = True,
        **decoding: Any,  # noqa: ANN401
    ) -> Iterator[tuple[ImageT, list[Sentence] | MediaError]]:
        """Generate captions batch by batch; an image that cannot be read does not stop the others.

        Args:
            images: as for `describe`.
            prefixes: as for `describe`.
            must_include: as for `describe`.
            with_tags: as for `describe`.
            concepts: as for `describe`.
            min_confidence: as for `describe`.
            batch_size: as for `describe`.
            log_cut_off: as for `describe`.
            decoding: as for `describe`.

        Yields:
            Each image with its captions, or with the error that it cannot be read.
        """
        options = RuleOptions(with_tags, concepts, min_confidence)
        requests = self._requests(images, prefixes, must_include, options, decoding)
        batches = [requests[start : start + batch_size] for start in range(0, len(requests), batch_size)]
        done = cut = described = 0
        for batch in Engine(self._features_port(images)).run(batches):
            for image, request in zip(images[done : done + len(batch)], batch, strict=True):
                if isinstance(request.error, MediaError):
                    yield image, request.error
                else:
                    described, cut = described + 1, cut + (not request.sentences[0].ended)
                    yield image, request.sentences
            done += len(batch)
        if log_cut_off and described:
            warn_of_cut_off(cut, described, "captions", requests[0].decoding.max_length, "raise max_length")

    def explain(
        self,
        images: Sequence[ImageInput],
        captions: Sequence[Sentence],
        *,
        on_progress: Progress | None = None,
    ) -> list[Explanation]:
        """Compute the attention over the image for each word of captions; of an ensemble, that of the first model.

        Args:
            images: as for `describe`.
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
            must_include: words or phrases that the caption includes, as for `describe`.
            decoding: settings of `DecodingSettings` to change, such as beam_size=5.

        Raises:
            MediaError: the image cannot be read.
            SettingsError: a decoding setting is unknown or not allowed, or it samples.
        """
        settings = change_decoding(self.models[0].recipe.decoding, decoding)
        (words,) = words_of_inputs(self.tokenizer, must_include, 1)
        source = GenerationInput(new_item(image), None, (), words)
        return explain_beam(self.models, source, self.features_of([image]), settings, prefix)

    def _requests(
        self,
        images: Sequence[ImageInput],
        prefixes: Sequence[str] | None,
        must_include: MustInclude | None,
        rules: RuleOptions,
        decoding: Mapping[str, Any],
    ) -> list[Request]:
        """Check the options of `describe`; return a request for each image."""
        settings = change_decoding(self.decoding, decoding)
        self.rules.check(rules)
        warn_of_unknown_words(self.tokenizer, prefixes or (), UNKNOWN_PREFIX)
        words = words_of_inputs(self.tokenizer, must_include, len(images))
        starts = [""] * len(images) if prefixes is None else prefixes
        return [
            self.request(GenerationInput(new_item(image), None, (), include), settings, prefix=prefix, rules=rules)
            for image, include, prefix in zip(images, words, starts, strict=True)
        ]

    def _features_port(self, images: Sequence[ImageInput]) -> Features:
        """Return the features port of new images; of a model without features it checks that they can be read."""
        source = self.features_of(images)
        if source is not None:
            return FeaturesOfItems(source)

        def check(requests: Sequence[Request]) -> list[None]:
            names = (request.source.item.media_path for request in requests)
            require_images(self.models[0], [Path(name) for name in names if not name.startswith(IN_MEMORY)])
            return [None] * len(requests)

        return check
