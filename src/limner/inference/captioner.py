"""Captions of new images, or of audio files for models whose features are of audio."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from limner.data.dataset import GenerationInput
from limner.decoding.ranking import Hypothesis
from limner.decoding.settings import DecodingSettings, change_decoding
from limner.errors import MediaError
from limner.features.encoders.base import Backbone
from limner.inference.base import TextGenerator, require_captioning
from limner.inference.caption_rules import CaptionRules
from limner.inference.explain import Explanation
from limner.inference.explain_beam import BeamExplanation, explain_beam
from limner.inference.generate import EncodedImages, encode_images, generate_captions
from limner.inference.must_include import MustInclude, words_of_inputs
from limner.inference.new_images import new_item
from limner.inference.sentences import Caption, caption_of, warn_of_cut_off, warn_of_unknown_words
from limner.inference.tags import Tag, require_tagger
from limner.media.image import ImageInput
from limner.media.modality import IMAGE, Modality, modality_of
from limner.progress import Progress
from limner.runs.trained_model import TrainedModel

CAPTION_BATCH_SIZE = 32
"""Default number of images that are captioned together."""
UNKNOWN_PREFIX = "captions do not depend on them"

ImageT = TypeVar("ImageT", bound=ImageInput)


class _Request(NamedTuple):
    """Options of `describe`, checked and completed."""

    settings: DecodingSettings
    words: Sequence[tuple[str, ...]]
    """Words that the caption of each image includes."""
    prefixes: Sequence[str] | None
    with_tags: bool
    name_tags: bool
    min_confidence: float
    stops_at_errors: bool = False
    """Whether an image that cannot be read raises its error, instead of being yielded with it."""
    log_cut_off: bool = True

    def take(self, rows: slice) -> _Request:
        """Return the request of some of the images."""
        prefixes = None if self.prefixes is None else self.prefixes[rows]
        return self._replace(words=self.words[rows], prefixes=prefixes)

    @property
    def is_free(self) -> bool:
        """Whether captions have no prefix and no required words, so that they may name tags."""
        return self.name_tags and self.prefixes is None and not any(self.words)


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
        self.rules = CaptionRules(self.models)
        """Tags in captions, and confidence."""
        self.models = self.rules.models

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
        name_tags: bool = True,
        min_confidence: float | None = None,
        batch_size: int = CAPTION_BATCH_SIZE,
        log_cut_off: bool = True,
        **decoding: Any,  # noqa: ANN401
    ) -> list[list[Caption]]:
        """Generate captions of images.

        Args:
            images: paths, encoded bytes, PIL images or arrays (H, W, 3).
            prefixes: for each image the words that its caption starts with.
            must_include: words or phrases that every caption includes, such as ["umbrella", "dog|puppy"], where one of
                the alternatives between | is enough; or one such list for each image.
            with_tags: whether captions have the `tags` of their images.
            name_tags: whether captions without `prefixes` and `must_include` name the most probable tag; only for
                models with a calibration, such as the built-in captioner, and without sampling.
            min_confidence: confidence below which `Caption.is_sure` is false; None for that of the calibration.
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
        request = self._request(images, prefixes, must_include, with_tags, name_tags, min_confidence, decoding)
        request = request._replace(stops_at_errors=True, log_cut_off=log_cut_off)
        results = self._describe_batches(images, request, batch_size)
        return [result for _, result in results if not isinstance(result, MediaError)]

    def check_options(self, *, with_tags: bool, name_tags: bool, min_confidence: float | None) -> None:
        """Check options of `describe` before the first image is read.

        Raises:
            SettingsError: the model reads other features than those that tags are computed of, or it has no calibration
                of its confidence.
        """
        self._request((), None, None, with_tags, name_tags, min_confidence, {})

    def tags(self, images: Sequence[ImageInput], *, batch_size: int = CAPTION_BATCH_SIZE) -> list[tuple[Tag, ...]]:
        """Name what the classifier of the built-in backbone sees in images, without captioning them.

        Args:
            images: as for `describe`.
            batch_size: number of images that are encoded together.

        Returns:
            The most probable nouns of each image, best first; an image may have none.

        Raises:
            MediaError: an image cannot be read.
            SettingsError: the model reads other features than those of a built-in backbone's last layer.
        """
        tagger = require_tagger(self.rules.tagger)
        tags: list[tuple[Tag, ...]] = []
        for start in range(0, len(images), batch_size):
            batch = images[start : start + batch_size]
            features = self.features_of(batch)
            assert features is not None, "tags without a backbone"
            tags += tagger(features.take([new_item(image) for image in batch]))
        return tags

    def describe_each(
        self,
        images: Sequence[ImageT],
        *,
        prefixes: Sequence[str] | None = None,
        must_include: MustInclude | None = None,
        with_tags: bool = False,
        name_tags: bool = True,
        min_confidence: float | None = None,
        batch_size: int = CAPTION_BATCH_SIZE,
        **decoding: Any,  # noqa: ANN401
    ) -> Iterator[tuple[ImageT, list[Caption] | MediaError]]:
        """Generate captions batch by batch; an image that cannot be read does not stop the others.

        Args:
            images: as for `describe`.
            prefixes: as for `describe`.
            must_include: as for `describe`.
            with_tags: as for `describe`.
            name_tags: as for `describe`.
            min_confidence: as for `describe`.
            batch_size: as for `describe`.
            decoding: as for `describe`.

        Yields:
            Each image with its captions, or with the error that it cannot be read.
        """
        request = self._request(images, prefixes, must_include, with_tags, name_tags, min_confidence, decoding)
        yield from self._describe_batches(images, request, batch_size)

    def explain(
        self,
        images: Sequence[ImageInput],
        captions: Sequence[Caption],
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
        return self._explain(self._inputs(images), captions, images, on_progress)

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
        (one,) = self._inputs([image], words_of_inputs(self.tokenizer, must_include, 1))
        return explain_beam(self.models, one, self.features_of([image]), settings, prefix)

    def _request(
        self,
        images: Sequence[ImageInput],
        prefixes: Sequence[str] | None,
        must_include: MustInclude | None,
        with_tags: bool,
        name_tags: bool,
        min_confidence: float | None,
        decoding: Mapping[str, Any],
    ) -> _Request:
        """Check and complete the options of `describe`."""
        settings = change_decoding(self.decoding, decoding)
        if with_tags:
            require_tagger(self.rules.tagger)
        least = self.rules.least_confidence(min_confidence)
        warn_of_unknown_words(self.tokenizer, prefixes or (), UNKNOWN_PREFIX)
        words = words_of_inputs(self.tokenizer, must_include, len(images))
        return _Request(settings, words, prefixes, with_tags, name_tags, least)

    def _describe_batches(
        self, images: Sequence[ImageT], request: _Request, batch_size: int
    ) -> Iterator[tuple[ImageT, list[Caption] | MediaError]]:
        """Yield images with their captions, or with the error that they cannot be read; see `describe_each`."""
        starts = range(0, len(images), batch_size)
        pending = deque(slice(start, min(start + batch_size, len(images))) for start in starts)
        cut = done = 0
        while pending:
            rows = pending.popleft()
            batch, options = images[rows], request.take(rows)
            try:
                inputs, settings = self._inputs(batch, options.words), options.settings
                encoded = encode_images(self.models, inputs, self.features_of(batch), settings)
                found = generate_captions(self.models, encoded, settings, options.prefixes)
                captions = self._captions(encoded, found, options)
            except MediaError as error:
                if request.stops_at_errors:
                    raise
                if len(batch) == 1:
                    yield batch[0], error
                else:  # one by one, to find the images that cannot be read
                    pending.extendleft(slice(row, row + 1) for row in reversed(range(rows.start, rows.stop)))
                continue
            for image, n_best in zip(batch, captions, strict=True):
                cut, done = cut + (not n_best[0].ended), done + 1
                yield image, n_best
        if request.log_cut_off:
            warn_of_cut_off(cut, done, "captions", request.settings.max_length, "raise max_length")

    def _captions(
        self,
        images: EncodedImages,
        hypotheses: list[list[Hypothesis]],
        request: _Request,
    ) -> list[list[Caption]]:
        """Return the captions of images: the hypotheses, or others by the rules, with tags and confidence."""
        rules, settings, classified = self.rules, request.settings, None
        named = rules.named_tags(settings) if request.is_free else None
        if (request.with_tags or named is not None or rules.has_confidence) and rules.tagger is not None:
            classified = rules.tagger.classify(images.features)
        if named is not None and classified is not None:
            hypotheses = rules.name_tags(images, settings, hypotheses, classified, named)
        captions = [[caption_of(self.tokenizer, one) for one in n_best] for n_best in hypotheses]
        if classified is not None:
            captions = [
                [one._replace(tags=image.tags) for one in n_best]
                for n_best, image in zip(captions, classified, strict=True)
            ]
        if not rules.has_confidence:
            return captions
        computed = rules.confidences(hypotheses, images.features, classified, settings)
        return rules.with_confidence(captions, computed, request.min_confidence)

    def _inputs(
        self, images: Sequence[ImageInput], words: Sequence[tuple[str, ...]] | None = None
    ) -> list[GenerationInput]:
        require_images(self.models[0], images)
        words = [()] * len(images) if words is None else words
        return [GenerationInput(new_item(image), None, (), some) for image, some in zip(images, words, strict=True)]


def require_images(model: TrainedModel, images: Sequence[ImageInput]) -> None:
    """Check that the images of a model without features can be read, as the backbone does for other models.

    Raises:
        MediaError: an image cannot be read.
    """
    if not model.config.features:
        for path in dict.fromkeys(image for image in images if isinstance(image, Path | str)):
            modality_of(path).open(path)
