"""What a captioner does with its captions after decoding: tags in them, and the confidence with which it abstains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from limner.decoding.sentence import Sentence
from limner.decoding.torch_models import TorchModels
from limner.errors import RunError, SettingsError
from limner.generation.request import Request, RuleOptions, Searched
from limner.inference.caption_nouns import CaptionNouns
from limner.inference.confidence import THINGS, Confidence, confidences, thing_evidence
from limner.inference.tagged_captions import EncodedImages, name_tags, without_denied_words
from limner.inference.tags import Tagger, require_tagger
from limner.inference.unseen_words import with_unseen_nouns
from limner.models.protocols import device_of
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

    def named_tags(self, request: Request) -> TagCalibration | None:
        """Return which tags the caption of a request names; None where it names none.

        A caption names tags if its prefix and words are not prescribed and it is not sampled.
        """
        free = request.rules.name_tags and not request.prefix and not request.source.must_include
        if not free or request.decoding.sample is not None or not self.names_tags or self.calibration is None:
            return None
        return self.calibration.settings.tags

    def check(self, options: RuleOptions) -> None:
        """Check options before an image is read.

        Raises:
            SettingsError: tags are computed of other features than the model reads, or it has no calibration of its
                confidence.
        """
        if options.with_tags:
            require_tagger(self.tagger)
        self.least_confidence(options.min_confidence)

    def apply_to(self, request: Request) -> bool:
        """Whether the sentences of a request have tags or a confidence, or may be replaced."""
        return request.evidence is not None or self.has_confidence

    def prepare(self, requests: Sequence[Request]) -> None:
        """Classify the images of requests, where their captions need it."""
        needed = [
            request
            for request in requests
            if request.features is not None
            and (request.rules.with_tags or self.has_confidence or self.named_tags(request) is not None)
        ]
        if needed and self.tagger is not None:
            classified = self.tagger.classify([request.features for request in needed])
            for request, image in zip(needed, classified, strict=True):
                request.evidence = image

    def finish(self, searched: Sequence[Searched]) -> list[list[Sentence]]:
        """Return the captions of requests of the same settings: of the search, or others, with tags and confidence."""
        requests = [entry.request for entry in searched]
        captions = [
            [caption._replace(tags=() if request.evidence is None else request.evidence.tags) for caption in n_best]
            for request, n_best in zip(requests, self._name_tags(searched), strict=True)
        ]
        if not self.has_confidence:
            return captions
        return [
            [self._with_confidence(request, *pair) for pair in zip(n_best, computed, strict=True)]
            for request, n_best, computed in zip(requests, captions, self._confidences(requests, captions), strict=True)
        ]

    def _name_tags(self, searched: Sequence[Searched]) -> list[list[Sentence]]:
        """Return the captions of images, decoded again where they have denied words or miss a tag."""
        captions = [entry.sentences for entry in searched]
        rows = [row for row, entry in enumerate(searched) if self.named_tags(entry.request) is not None]
        if not rows or self.tagger is None:
            return captions
        requests = [searched[row].request for row in rows]
        named, settings = self.named_tags(requests[0]), requests[0].decoding
        assert named is not None, "rows have tags to name"
        images = EncodedImages(
            [request.source for request in requests],
            [request.features for request in requests],
            TorchModels.concatenate([searched[row].memory for row in rows]),
            device_of(self.models[0].model),
        )
        classified = [request.evidence for request in requests]
        denied = self.tagger.denied(classified, named.denied, named.min_people_probability)
        at_most_once = self.nouns.single if named.no_repeats else None
        n_bests = [captions[row] for row in rows]
        images, n_bests = without_denied_words(self.models, images, settings, n_bests, denied, at_most_once)
        n_bests = name_tags(self.models, images, settings, n_bests, [image.tags for image in classified], named)
        for row, n_best in zip(rows, n_bests, strict=True):
            captions[row] = [caption.decoded(self.models[0].tokenizer) for caption in n_best]
        return captions

    def least_confidence(self, min_confidence: float | None) -> float:
        """Return the confidence below which the model is not sure of a caption.

        Args:
            min_confidence: the confidence given by the user; None for the confidence of the calibration.

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

    def _confidences(self, requests: Sequence[Request], captions: Sequence[list[Sentence]]) -> list[list[Confidence]]:
        """Compute the confidence of the captions of requests."""
        calibrated = None if self.calibration is None else self.calibration.settings.confidence
        assert self.calibration is not None and calibrated is not None, "has_confidence is false"
        tokens = [caption.tokens for n_best in captions for caption in n_best]
        owners = [request for request, n_best in zip(requests, captions, strict=True) for _ in n_best]
        things = searched = None
        if THINGS & calibrated.caption.keys() and self.tagger is not None:
            things = thing_evidence(self.tagger, self.nouns, tokens, [request.evidence for request in owners])
        if requests[0].decoding.precision == "fp32":  # as the model computes without a search
            searched = [caption.token_log_probs for n_best in captions for caption in n_best]
        features = {id(request): request.features or {} for request in requests}
        images = [features[id(request)] for request in owners]
        computed = iter(confidences(self.models, tokens, images, self.calibration, things, searched))
        return [[next(computed) for _ in n_best] for n_best in captions]

    def _with_confidence(self, request: Request, caption: Sentence, confidence: Confidence) -> Sentence:
        is_sure = confidence.probability >= self.least_confidence(request.rules.min_confidence)
        return caption._replace(
            confidence=confidence.probability,
            log_ratio=confidence.log_ratio,
            words=confidence.words,
            is_sure=is_sure,
            likely_tags=() if is_sure or self.tagger is None else self.tagger.likely(caption.tags),
        )
