"""Captions of new images, or of audio files for models whose features are of audio."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from limner.data.dataset import FeatureSource, GenerationInput
from limner.data.examples import StoredFeatures
from limner.decoding.ranking import Hypothesis
from limner.decoding.settings import DecodingSettings, change_decoding
from limner.errors import MediaError, SettingsError
from limner.features.encoders.base import Backbone
from limner.inference.base import TextGenerator, require_captioning
from limner.inference.confidence import Confidence, confidences
from limner.inference.explain import Explanation
from limner.inference.explain_beam import BeamExplanation, explain_beam
from limner.inference.generate import generate
from limner.inference.must_include import MustInclude, words_of_inputs
from limner.inference.new_images import KeptFeatures, new_item
from limner.inference.sentences import Caption, warn_of_cut_off, warn_of_unknown_words
from limner.inference.tagged_captions import name_tags as name_tags_in
from limner.inference.tagged_captions import without_denied_words
from limner.inference.tags import Tag, Tagger, require_tagger
from limner.inference.unseen_words import with_unseen_nouns
from limner.media.image import ImageInput
from limner.media.modality import IMAGE, Modality, modality_of
from limner.progress import Progress
from limner.runs.calibration import StoredCalibration, TagCalibration, load_calibration
from limner.runs.trained_model import TrainedModel
from limner.text.tokenizer import Tokenizer

CAPTION_BATCH_SIZE = 32
"""Default number of images that are captioned together."""
UNKNOWN_PREFIX = "captions do not depend on them"

ImageT = TypeVar("ImageT", bound=ImageInput)


class _Options(NamedTuple):
    """Options of `describe` that are the same for all batches."""

    settings: DecodingSettings
    with_tags: bool
    name_tags: bool
    min_confidence: float


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
        if self.names_tags and self.tagger is not None:
            nouns, classifier = self.tagger.nouns, self.tagger.classifier
            self.models = tuple(with_unseen_nouns(model, nouns, classifier) for model in self.models)

    @cached_property
    def calibration(self) -> StoredCalibration | None:
        """Tags in captions and confidence, of one model with a calibration in its run directory; else None."""
        folder = self.models[0].folder
        # Without a backbone no image is captioned, and tags need its classifier.
        return None if folder is None or self.backbone is None or len(self.models) > 1 else load_calibration(folder)

    @property
    def names_tags(self) -> bool:
        """Whether captions name the most probable tag of their image."""
        return self.calibration is not None and self.calibration.settings.tags is not None and self.tagger is not None

    @cached_property
    def tagger(self) -> Tagger | None:
        """Classifier of what is in an image; None where the features are not those of a built-in backbone."""
        return Tagger.of(self.models[0], 0.0 if self.calibration is None else self.calibration.settings.background)

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
        settings = change_decoding(self.models[0].recipe.decoding, decoding)
        options = self._options(settings, with_tags, name_tags, min_confidence)
        warn_of_unknown_words(self.tokenizer, prefixes or (), UNKNOWN_PREFIX)
        words = words_of_inputs(self.tokenizer, must_include, len(images))
        captions: list[list[Caption]] = []
        for start in range(0, len(images), batch_size):
            rows = slice(start, start + batch_size)
            given = None if prefixes is None else prefixes[rows]
            captions += self._describe_batch(images[rows], words[rows], given, options)
        cut = sum(not n_best[0].ended for n_best in captions) if log_cut_off else 0
        warn_of_cut_off(cut, len(images), "captions", settings.max_length, "raise max_length")
        return captions

    @property
    def has_confidence(self) -> bool:
        """Whether captions have a confidence."""
        return self.calibration is not None and self.calibration.settings.confidence is not None

    def check_options(self, *, with_tags: bool, name_tags: bool, min_confidence: float | None) -> None:
        """Check options of `describe` before the first image is read.

        Raises:
            SettingsError: the model reads other features than those that tags are computed of, or it has no calibration
                of its confidence.
        """
        self._options(self.decoding, with_tags, name_tags, min_confidence)

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
        tagger = require_tagger(self.tagger)
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
        settings = change_decoding(self.models[0].recipe.decoding, decoding)
        options = self._options(settings, with_tags, name_tags, min_confidence)
        warn_of_unknown_words(self.tokenizer, prefixes or (), UNKNOWN_PREFIX)
        words = words_of_inputs(self.tokenizer, must_include, len(images))
        starts = range(0, len(images), batch_size)
        pending = deque(slice(start, min(start + batch_size, len(images))) for start in starts)
        cut = done = 0
        while pending:
            rows = pending.popleft()
            batch, given = images[rows], None if prefixes is None else prefixes[rows]
            try:
                captions = self._describe_batch(batch, words[rows], given, options)
            except MediaError as error:
                if len(batch) == 1:
                    yield batch[0], error
                else:  # one by one, to find the images that cannot be read
                    pending.extendleft(slice(row, row + 1) for row in reversed(range(rows.start, rows.stop)))
                continue
            for image, n_best in zip(batch, captions, strict=True):
                cut, done = cut + (not n_best[0].ended), done + 1
                yield image, n_best
        warn_of_cut_off(cut, done, "captions", settings.max_length, "raise max_length")

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

    def named_tags(self, settings: DecodingSettings) -> TagCalibration | None:
        """Return which tags captions name; None where they name none.

        Args:
            settings: decoding settings of captions without a prefix and without words that they must include.
        """
        if settings.sample is not None or not self.names_tags or self.calibration is None:
            return None
        return self.calibration.settings.tags

    def name_tags(
        self,
        inputs: Sequence[GenerationInput],
        features: FeatureSource,
        settings: DecodingSettings,
        hypotheses: Sequence[list[Hypothesis]],
        tags: Sequence[tuple[Tag, ...]],
        named: TagCalibration,
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of images, decoded again where they have denied words or miss a tag.

        Args:
            inputs: images, without words that the captions must include.
            features: features of the images.
            settings: decoding settings without sampling.
            hypotheses: hypotheses of each input without constraints, best first.
            tags: tags of each image, best first.
            named: result of `named_tags`.
        """
        assert self.tagger is not None, "named_tags is None without a tagger"
        denied = self.tagger.denied(features.take([one.item for one in inputs]), named.denied)
        found = without_denied_words(self.models, inputs, features, settings, hypotheses, denied)
        return name_tags_in(self.models, found[0], features, settings, found[1], tags, named)

    def least_confidence(self, min_confidence: float | None) -> float:
        """Return the confidence below which the model is not sure of a caption.

        Args:
            min_confidence: the confidence that was asked for; None for that of the calibration.

        Raises:
            SettingsError: a confidence was asked for, and the model has no calibration of it.
        """
        calibrated = None if self.calibration is None else self.calibration.settings.confidence
        if calibrated is not None:
            return calibrated.min_confidence if min_confidence is None else min_confidence
        if min_confidence is None:
            return 0.0
        raise SettingsError(
            f"min_confidence {min_confidence}: this model has no calibration of its confidence; leave it out "
            "(--min-confidence), or use the built-in captioner"
        )

    def confidences(
        self, captions: Sequence[Sequence[int]], images: Sequence[StoredFeatures | None]
    ) -> list[Confidence]:
        """Compute the confidence of captions; only for models with `has_confidence`.

        Args:
            captions: token ids of N captions, without special tokens.
            images: features of their images.
        """
        assert self.calibration is not None, "has_confidence is false"
        return confidences(self.models, captions, [image or {} for image in images], self.calibration)

    def _options(
        self, settings: DecodingSettings, with_tags: bool, name_tags: bool, min_confidence: float | None
    ) -> _Options:
        """Check and complete the options of `describe`."""
        if with_tags:
            require_tagger(self.tagger)
        return _Options(settings, with_tags, name_tags, self.least_confidence(min_confidence))

    def _describe_batch(
        self,
        images: Sequence[ImageInput],
        words: Sequence[tuple[str, ...]],
        prefixes: Sequence[str] | None,
        options: _Options,
    ) -> list[list[Caption]]:
        """Caption images together, computing their features once."""
        inputs, features = self._inputs(images, words), self._kept_features(images)
        settings = options.settings
        hypotheses = generate(self.models, inputs, features, settings, prefixes=prefixes, batch_size=len(images))
        if features is None:
            return [[_caption(self.tokenizer, one) for one in n_best] for n_best in hypotheses]
        images_of_inputs = features.take([one.item for one in inputs])
        tags: list[tuple[Tag, ...]] = [()] * len(images)
        free = options.name_tags and prefixes is None and not any(words)
        named = self.named_tags(settings) if free else None
        if (options.with_tags or named is not None) and self.tagger is not None:
            tags = self.tagger(images_of_inputs)
        if named is not None:
            hypotheses = self.name_tags(inputs, features, settings, hypotheses, tags, named)
        captions = [
            [_caption(self.tokenizer, one)._replace(tags=some) for one in n_best]
            for n_best, some in zip(hypotheses, tags, strict=True)
        ]
        return self._with_confidence(captions, images_of_inputs, options.min_confidence)

    def _with_confidence(
        self, captions: list[list[Caption]], images: Sequence[StoredFeatures | None], min_confidence: float
    ) -> list[list[Caption]]:
        """Add the confidence to the captions of each image, where the model has a calibration of it."""
        if not self.has_confidence:
            return captions
        flat = [(caption.ids, image) for n_best, image in zip(captions, images, strict=True) for caption in n_best]
        computed = iter(self.confidences(*zip(*flat, strict=True)))
        return [[_with(caption, next(computed), min_confidence) for caption in n_best] for n_best in captions]

    def _kept_features(self, images: Sequence[ImageInput]) -> KeptFeatures | None:
        features = self.features_of(images)
        return None if features is None else KeptFeatures(features)

    def _inputs(
        self, images: Sequence[ImageInput], words: Sequence[tuple[str, ...]] | None = None
    ) -> list[GenerationInput]:
        require_images(self.models[0], images)
        words = [()] * len(images) if words is None else words
        return [GenerationInput(new_item(image), None, (), some) for image, some in zip(images, words, strict=True)]


def _caption(tokenizer: Tokenizer, one: Hypothesis) -> Caption:
    return Caption(tokenizer.decode(one.tokens, detokenise=True), one.log_prob, one.score, one.tokens, one.ended)


def _with(caption: Caption, confidence: Confidence, min_confidence: float) -> Caption:
    return caption._replace(
        confidence=confidence.probability,
        log_ratio=confidence.log_ratio,
        words=confidence.words,
        is_sure=confidence.probability >= min_confidence,
    )


def require_images(model: TrainedModel, images: Sequence[ImageInput]) -> None:
    """Check that the images of a model without features can be read, as the backbone does for other models.

    Raises:
        MediaError: an image cannot be read.
    """
    if not model.config.features:
        for path in dict.fromkeys(image for image in images if isinstance(image, Path | str)):
            modality_of(path).open(path)
