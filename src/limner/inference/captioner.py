"""Captions of new images, or of audio files for models whose features are of audio."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from limner.data.dataset import GenerationInput
from limner.decoding.ranking import Hypothesis
from limner.decoding.settings import DecodingSettings, change_decoding
from limner.errors import MediaError
from limner.features.encoders.base import Backbone
from limner.inference.base import TextGenerator, require_captioning
from limner.inference.explain import Explanation
from limner.inference.explain_beam import BeamExplanation, explain_beam
from limner.inference.generate import generate
from limner.inference.must_include import MustInclude, words_of_inputs
from limner.inference.new_images import KeptFeatures, new_item
from limner.inference.sentences import Caption, warn_of_cut_off, warn_of_unknown_words
from limner.inference.tags import Tag, Tagger, require_tagger
from limner.media.image import ImageInput
from limner.media.modality import IMAGE, Modality, modality_of
from limner.progress import Progress
from limner.runs.trained_model import TrainedModel
from limner.text.tokenizer import Tokenizer

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

    @cached_property
    def tagger(self) -> Tagger | None:
        """Classifier of what is in an image; None where the features are not those of a built-in backbone."""
        return Tagger.of(self.models[0])

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
        batch_size: int = CAPTION_BATCH_SIZE,
        **decoding: Any,  # noqa: ANN401
    ) -> list[list[Caption]]:
        """Generate captions of images.

        Args:
            images: paths, encoded bytes, PIL images or arrays (H, W, 3).
            prefixes: for each image the words that its caption starts with.
            must_include: words or phrases that every caption includes, such as ["umbrella", "dog|puppy"], where one of
                the alternatives between | is enough; or one such list for each image.
            with_tags: whether the captions name the `tags` of their images, which the classifier of a built-in backbone
                sees.
            batch_size: number of images that are captioned together; captions do not depend on it.
            decoding: settings of `DecodingSettings` to change, such as beam_size=5, n_best=3.

        Returns:
            The `n_best` captions of each image, best first.

        Raises:
            MediaError: an image cannot be read.
            SettingsError: a decoding setting is unknown or not allowed, or no caption can include the words of
                `must_include`.
        """
        settings = change_decoding(self.models[0].recipe.decoding, decoding)
        warn_of_unknown_words(self.tokenizer, prefixes or (), UNKNOWN_PREFIX)
        words = words_of_inputs(self.tokenizer, must_include, len(images))
        captions: list[list[Caption]] = []
        for start in range(0, len(images), batch_size):
            rows = slice(start, start + batch_size)
            given = None if prefixes is None else prefixes[rows]
            captions += self._describe_batch(images[rows], words[rows], given, settings, with_tags)
        cut = sum(not n_best[0].ended for n_best in captions)
        warn_of_cut_off(cut, len(images), "captions", settings.max_length, "raise max_length")
        return captions

    def require_tags(self) -> None:
        """Check that the model reads features that tags are computed of.

        Raises:
            SettingsError: it does not.
        """
        require_tagger(self.tagger)

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
        batch_size: int = CAPTION_BATCH_SIZE,
        **decoding: Any,  # noqa: ANN401
    ) -> Iterator[tuple[ImageT, list[Caption] | MediaError]]:
        """Generate captions batch by batch; an image that cannot be read does not stop the others.

        Args:
            images: as for `describe`.
            prefixes: as for `describe`.
            must_include: as for `describe`.
            with_tags: as for `describe`.
            batch_size: as for `describe`.
            decoding: as for `describe`.

        Yields:
            Each image with its captions, or with the error that it cannot be read.
        """
        settings = change_decoding(self.models[0].recipe.decoding, decoding)
        warn_of_unknown_words(self.tokenizer, prefixes or (), UNKNOWN_PREFIX)
        words = words_of_inputs(self.tokenizer, must_include, len(images))
        starts = range(0, len(images), batch_size)
        pending = deque(slice(start, min(start + batch_size, len(images))) for start in starts)
        cut = done = 0
        while pending:
            rows = pending.popleft()
            batch, given = images[rows], None if prefixes is None else prefixes[rows]
            try:
                captions = self._describe_batch(batch, words[rows], given, settings, with_tags)
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

    def _describe_batch(
        self,
        images: Sequence[ImageInput],
        words: Sequence[tuple[str, ...]],
        prefixes: Sequence[str] | None,
        settings: DecodingSettings,
        with_tags: bool,
    ) -> list[list[Caption]]:
        """Caption images together, computing their features once."""
        inputs, features = self._inputs(images, words), self._kept_features(images)
        hypotheses = generate(self.models, inputs, features, settings, prefixes=prefixes, batch_size=len(images))
        tags: list[tuple[Tag, ...]] = [()] * len(images)
        if with_tags and features is not None:
            tags = require_tagger(self.tagger)(features.take([one.item for one in inputs]))
        return [
            [_caption(self.tokenizer, one)._replace(tags=some) for one in n_best]
            for n_best, some in zip(hypotheses, tags, strict=True)
        ]

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


def require_images(model: TrainedModel, images: Sequence[ImageInput]) -> None:
    """Check that the images of a model without features can be read, as the backbone does for other models.

    Raises:
        MediaError: an image cannot be read.
    """
    if not model.config.features:
        for path in dict.fromkeys(image for image in images if isinstance(image, Path | str)):
            modality_of(path).open(path)
