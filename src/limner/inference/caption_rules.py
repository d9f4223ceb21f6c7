"""What a captioner does with its captions after decoding: tags in them, and the confidence with which it abstains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from limner.data.examples import StoredFeatures
from limner.decoding.ranking import Hypothesis
from limner.decoding.settings import DecodingSettings
from limner.errors import RunError, SettingsError
from limner.inference.caption_nouns import CaptionNouns
from limner.inference.confidence import THINGS, Confidence, confidences, thing_evidence
from limner.inference.generate import EncodedImages
from limner.inference.sentences import Caption
from limner.inference.tagged_captions import name_tags, without_denied_words
from limner.inference.tags import ClassifiedImage, Tag, Tagger
from limner.inference.unseen_words import with_unseen_nouns
from limner.runs.calibration import FILE, StoredCalibration, TagCalibration, load_calibration
from limner.runs.trained_model import TrainedModel


class CaptionRules:
    """Rules of the captions of one captioning model or an ensemble; without a calibration they change nothing."""

    def __init__(self, models: Sequence[TrainedModel]) -> None:
        """Read the rules from the run directory of a model.

        Args:
            models: one model, or several as an ensemble, which has no calibration.

        Raises:
            RunError: the calibration is damaged, or needs tags that the features of the model do not have.
        """
        self.trained, folder = models[0], models[0].folder
        """The first model as it was trained, without nouns that it has never seen."""
        self.calibration: StoredCalibration | None = (
            load_calibration(folder) if folder is not None and len(models) == 1 else None
        )
        """Tags in captions and confidence, as fitted on validation; None for none."""
        confidence = None if self.calibration is None else self.calibration.settings.confidence
        needed = sorted(THINGS & confidence.caption.keys()) if confidence is not None else []
        if folder is not None and needed and self.tagger is None:
            raise RunError(
                f"{folder / FILE}: coefficient '{needed[0]}' of the confidence needs tags, which the features of this "
                "model do not have; remove the file, or run pretrained/calibrate.py again"
            )
        self.models = tuple(models)
        """The models; those whose captions name tags know all nouns of the tags."""
        if self.names_tags and self.tagger is not None:
            nouns, classifier = self.tagger.nouns, self.tagger.classifier
            self.models = tuple(with_unseen_nouns(model, nouns, classifier) for model in models)

    @cached_property
    def tagger(self) -> Tagger | None:
        """Classifier of what is in an image; None where the features are not those of a built-in backbone."""
        return Tagger.of(self.trained, self.calibration)

    @cached_property
    def nouns(self) -> CaptionNouns:
        """Nouns of the language of the captions."""
        return CaptionNouns.of(self.models[0])

    @property
    def names_tags(self) -> bool:
        """Whether captions name the most probable tag of their image."""
        return self.calibration is not None and self.calibration.settings.tags is not None and self.tagger is not None

    @property
    def has_confidence(self) -> bool:
        """Whether captions have a confidence."""
        return self.calibration is not None and self.calibration.settings.confidence is not None

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
        images: EncodedImages,
        settings: DecodingSettings,
        hypotheses: Sequence[list[Hypothesis]],
        classified: Sequence[ClassifiedImage],
        named: TagCalibration,
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of images, decoded again where they have denied words or miss a tag.

        Args:
            images: images, without words that the captions must include.
            settings: decoding settings without sampling.
            hypotheses: hypotheses of each image without constraints, best first.
            classified: what the tagger computes of the images.
            named: result of `named_tags`.
        """
        assert self.tagger is not None, "named_tags is None without a tagger"
        denied = self.tagger.denied(classified, named.denied, named.min_people_probability)
        at_most_once = self.nouns.single if named.no_repeats else None
        images, hypotheses = without_denied_words(self.models, images, settings, hypotheses, denied, at_most_once)
        return name_tags(self.models, images, settings, hypotheses, [one.tags for one in classified], named)

    def least_confidence(self, min_confidence: float | None) -> float:
        """Return the confidence below which the model is not sure of a caption.

        Args:
            min_confidence: the confidence given by the user; None for that of the calibration.

        Raises:
            SettingsError: a confidence was given, and the model has no calibration of it.
        """
        calibrated = None if self.calibration is None else self.calibration.settings.confidence
        if calibrated is not None:
            return calibrated.min_confidence if min_confidence is None else min_confidence
        if min_confidence is None:
            return 0.0
        raise SettingsError(
            f"min_confidence {min_confidence}: this model has no calibration of its confidence; leave it out "
            "(--min-confidence), or use the built-in English captioner"
        )

    def confidences(
        self,
        hypotheses: Sequence[list[Hypothesis]],
        images: Sequence[StoredFeatures | None],
        classified: Sequence[ClassifiedImage] | None,
        settings: DecodingSettings,
    ) -> list[list[Confidence]]:
        """Compute the confidence of captions; only for models with `has_confidence`.

        Args:
            hypotheses: captions of N images.
            images: features of the images.
            classified: what the tagger computes of the images; None without a tagger.
            settings: decoding settings of the captions.
        """
        calibrated = None if self.calibration is None else self.calibration.settings.confidence
        assert self.calibration is not None and calibrated is not None, "has_confidence is false"
        captions = [one.tokens for n_best in hypotheses for one in n_best]
        rows = [row for row, n_best in enumerate(hypotheses) for _ in n_best]
        things = None
        if THINGS & calibrated.caption.keys() and self.tagger is not None and classified is not None:
            things = thing_evidence(self.tagger, self.nouns, captions, [classified[row] for row in rows])
        stored, searched = [image or {} for image in images], None
        if settings.precision == "fp32":  # as the model computes without a search
            searched = [one.token_log_probs for n_best in hypotheses for one in n_best]
        of_captions = [stored[row] for row in rows]
        found = iter(confidences(self.models, captions, of_captions, self.calibration, things, searched))
        return [[next(found) for _ in n_best] for n_best in hypotheses]

    def with_confidence(
        self, captions: list[list[Caption]], computed: Sequence[Sequence[Confidence]], min_confidence: float
    ) -> list[list[Caption]]:
        """Add the confidence to the captions of each image."""
        return [
            [self._with(*pair, min_confidence) for pair in zip(n_best, own, strict=True)]
            for n_best, own in zip(captions, computed, strict=True)
        ]

    def likely_tags(self, tags: Sequence[Tag], is_sure: bool) -> tuple[Tag, ...]:
        """Return the likely tags that are named in place of a caption of which the model is not sure; else none."""
        return () if is_sure or self.tagger is None else self.tagger.likely(tags)

    def _with(self, caption: Caption, confidence: Confidence, min_confidence: float) -> Caption:
        is_sure = confidence.probability >= min_confidence
        return caption._replace(
            confidence=confidence.probability,
            log_ratio=confidence.log_ratio,
            words=confidence.words,
            is_sure=is_sure,
            likely_tags=self.likely_tags(caption.tags, is_sure),
        )
