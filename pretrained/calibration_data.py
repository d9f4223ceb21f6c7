"""What a calibration is made from: a captioner, a collection with human captions, and what is computed of them once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from limner.data.collection import Collection
from limner.data.dataset import FeatureSource, GenerationInput
from limner.data.examples import Example, Item, StoredFeatures, collate
from limner.decoding.sentence import Sentence
from limner.decoding.torch_models import TorchModels
from limner.features.encoders.efficientnet import pooled_vector
from limner.features.encoders.load import load_backbone_for
from limner.features.store import FeatureStore
from limner.inference.caption_nouns import CaptionNouns
from limner.inference.generate import generate
from limner.inference.tagged_captions import EncodedImages, generate_captions, name_tags, without_denied_words
from limner.inference.tags import ClassifiedImage, People, Tag, Tagger, require_tagger
from limner.inference.unseen_words import with_unseen_nouns
from limner.metrics.caption import CiderD
from limner.models.protocols import device_of
from limner.runs.calibration import FeatureStatistics, TagCalibration
from limner.runs.trained_model import load_trained_model
from limner.text.people_words import PEOPLE_WORDS
from logistic import newton
from non_photographs import draw_non_photograph

PEOPLE_PENALTY = 1000.0
"""Weight of the squared coefficients of the regression of people."""
BATCH_SIZE = 16
"""Photographs that the backbone reads at once."""
Hypotheses = Sequence[list[Sentence]]


class Rules(NamedTuple):
    """What captions must not have; see `TagCalibration`."""

    denied: Mapping[str, float] = MappingProxyType({})
    no_repeats: bool = False
    min_people_probability: float = 0.0

    def as_settings(self) -> dict[str, Any]:
        """Return the rules as fields of `TagCalibration`."""
        return self._asdict() | {"denied": dict(self.denied)}


class CalibrationData:
    """A captioner, a collection with its features, and what is computed once."""

    def __init__(self, run: Path, collection: Collection) -> None:
        self.run, self.collection = run, collection
        self.plain = load_trained_model(run)
        self.lang = self.plain.recipe.data.lang
        self.settings = self.plain.recipe.decoding
        self.features = FeatureStore.open(collection, self.plain.recipe.features.tables, cache_mib=256)
        self.tagger: Tagger = require_tagger(Tagger.of(self.plain))
        self.model = with_unseen_nouns(self.plain, self.tagger.nouns, self.tagger.classifier)
        self.train = self.items("train")
        self._pooled: dict[str, dict[str, np.ndarray]] = {}
        self.vectors = self.pooled(self.train)
        self.use_statistics(FeatureStatistics.of(self.vectors))
        self.use_statistics(self.statistics._replace(people=self._fit_people()))
        self.nouns = CaptionNouns.of(self.model)
        self._backbone: Any = None
        self._decoded: dict[str, list[list[Sentence]]] = {}

    def use_statistics(self, statistics: FeatureStatistics) -> None:
        """Use statistics of the features, and their regression of people for the tags."""
        self.statistics = statistics
        self.tagger.people = People(PEOPLE_WORDS[self.lang], statistics)

    def _fit_people(self) -> np.ndarray:
        """Fit the share of the captions of training images that mention people; validation images measure it."""
        words = self.plain.tokenizer.words
        pattern = re.compile("|".join(f" {re.escape('  '.join(words(word)))} " for word in PEOPLE_WORDS[self.lang]))

        def shares(items: Sequence[Item]) -> np.ndarray:
            found = [[pattern.search(text) is not None for text in own] for own in self.human_captions(items)]
            return np.array([np.mean(own) if own else np.nan for own in found])

        mean, deviation = self.statistics.mean, self.statistics.deviation
        target = shares(self.train)
        rows = np.flatnonzero(~np.isnan(target))
        fitted = newton(((self.vectors - mean) / deviation)[rows].astype(float), target[rows], PEOPLE_PENALTY)
        val = self.items("val")
        computed = self.statistics._replace(people=fitted).people_probability(self.pooled(val))
        mentioned = shares(val)
        known = ~np.isnan(mentioned)
        print(f"people in validation images: AUC {auc(computed[known], mentioned[known] >= 0.4):.3f}")
        return np.asarray(fitted, np.float32)

    def items(self, split: str) -> list[Item]:
        """Return the items of a split that have captions in the language of the run."""
        return [item for item in self.collection.items(split) if item.texts(self.lang)]

    def take(self, items: Sequence[Item]) -> list[StoredFeatures]:
        """Return the features of items, all of which have some."""
        return [one or {} for one in self.features.take(items)]

    def pooled(self, items: Sequence[Item]) -> np.ndarray:
        """Return the pooled features of items of one split, which are read once."""
        split = items[0].split
        if split not in self._pooled:
            whole = self.collection.items(split)
            parts = (self.take(whole[start : start + 256]) for start in range(0, len(whole), 256))
            vectors = np.stack([pooled_vector(one) for part in parts for one in part])
            self._pooled[split] = dict(zip((item.id for item in whole), vectors, strict=True))
        return np.stack([self._pooled[split][item.id] for item in items])

    def pooled_features(self, items: Sequence[Item]) -> list[StoredFeatures]:
        """Return the pooled features of items as features of images."""
        return [{"pooled": one} for one in self.pooled(items)]

    def noun_probabilities(self, items: Sequence[Item]) -> np.ndarray:
        """Compute the probability of each noun for items."""
        return self.tagger.probabilities(self.pooled_features(items))

    def tags(self, items: Sequence[Item]) -> list[tuple[Tag, ...]]:
        """Compute the tags of items."""
        return self.tagger(self.pooled_features(items))

    def references(self, items: Sequence[Item]) -> list[list[list[str]]]:
        """Return the tokens of the human captions of each item."""
        words = self.plain.tokenizer.words
        return [[words(one.text) for one in item.sentences if one.lang == self.lang] for item in items]

    def human_captions(self, items: Sequence[Item]) -> list[list[str]]:
        """Return the human captions of items, with spaces around every word."""
        return [[f" {'  '.join(one)} " for one in own] for own in self.references(items)]

    def mentions(self, captions: Sequence[str], words: Sequence[str]) -> bool:
        """Whether one of the human captions of an item, of `human_captions`, has one of some words."""
        spelled = [f" {'  '.join(self.plain.tokenizer.words(word))} " for word in words]
        return any(word in text for text in captions for word in spelled)

    def texts(self, hypotheses: Hypotheses) -> list[str]:
        """Return the best caption of each item."""
        return [self.model.tokenizer.decode(n_best[0].tokens) for n_best in hypotheses]

    def cider(self, texts: Sequence[str], items: Sequence[Item]) -> np.ndarray:
        """Compute the CIDEr-D of each caption, in percent."""
        scorer = CiderD(self.references(items))
        return 100 * np.array([scorer.score(row, text.split()) for row, text in enumerate(texts)])

    def decode(self, items: Sequence[Item]) -> list[list[Sentence]]:
        """Caption the items of a split without rules, once."""
        split = items[0].split
        if split not in self._decoded:
            self._decoded[split] = generate([self.model], inputs_of(items), self.features, self.settings)
        return self._decoded[split]

    def apply_rules(self, items: Sequence[Item], decoded: Hypotheses, rules: Rules) -> tuple[EncodedImages, Hypotheses]:
        """Return the images and the hypotheses of items of the collection that keep the rules."""
        return self._apply_rules(self._encode(items, self.features), self._classify(items), decoded, rules)

    def describe_items(self, items: Sequence[Item], tags: TagCalibration | None) -> list[Sentence]:
        """Caption items of the collection as `limner describe` does."""
        images = self._encode(items, self.features)
        return self._name_tags(images, self._classify(items), self.decode(items), tags)

    def describe_images(self, images: Sequence[StoredFeatures], tags: TagCalibration | None) -> list[Sentence]:
        """Caption images of no collection as `limner describe` does."""
        items = [Item(str(row), "new", image=str(row)) for row in range(len(images))]
        encoded = self._encode(items, ListedFeatures(images))
        decoded = generate_captions([self.model], encoded, self.settings)
        return self._name_tags(encoded, self.tagger.classify(images), decoded, tags)

    def _encode(self, items: Sequence[Item], source: FeatureSource) -> EncodedImages:
        images, network = source.take(items), self.model.model
        batch = collate([Example(item.id, (), None, image) for item, image in zip(items, images, strict=True)])
        models = TorchModels([network], self.settings.precision, device_of(network))
        return EncodedImages(inputs_of(items), images, models.encode_batch(batch.to(models.device)), models.device)

    def _classify(self, items: Sequence[Item]) -> list[ClassifiedImage]:
        return self.tagger.classify(self.pooled_features(items))

    def _apply_rules(
        self, images: EncodedImages, classified: Sequence[ClassifiedImage], decoded: Hypotheses, rules: Rules
    ) -> tuple[EncodedImages, Hypotheses]:
        denied = self.tagger.denied(classified, rules.denied, rules.min_people_probability)
        at_most_once = self.nouns.single if rules.no_repeats else None
        return without_denied_words([self.model], images, self.settings, decoded, denied, at_most_once)

    def _name_tags(
        self,
        images: EncodedImages,
        classified: Sequence[ClassifiedImage],
        decoded: Hypotheses,
        tags: TagCalibration | None,
    ) -> list[Sentence]:
        if tags is not None:
            rules = Rules(tags.denied, tags.no_repeats, tags.min_people_probability)
            images, kept = self._apply_rules(images, classified, decoded, rules)
            found = [one.tags for one in classified]
            decoded = name_tags([self.model], images, self.settings, kept, found, tags)
        return [n_best[0] for n_best in decoded]

    def features_of_files(self, paths: Sequence[Path]) -> list[StoredFeatures]:
        """Compute the features of image files."""
        parts = (paths[start : start + BATCH_SIZE] for start in range(0, len(paths), BATCH_SIZE))
        return [one for part in parts for one in self._compute_features(part)]

    def features_of_generated(self, kind: str, seeds: Sequence[int]) -> list[StoredFeatures]:
        """Compute the features of generated images that are no photographs."""
        return self._compute_features([draw_non_photograph(kind, seed) for seed in seeds])

    def _compute_features(self, images: Sequence[Any]) -> list[StoredFeatures]:
        self._backbone = self._backbone or load_backbone_for(self.plain.config.features)
        computed = self._backbone(np.stack([self._backbone.read(one) for one in images]))
        return [{name: values[row] for name, values in computed.items()} for row in range(len(images))]


class ListedFeatures:
    """A source of features whose items name rows of a list."""

    def __init__(self, features: Sequence[StoredFeatures]) -> None:
        self.features = features

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Return the features of items."""
        return [self.features[int(item.image or 0)] for item in items]


def inputs_of(items: Sequence[Item]) -> list[GenerationInput]:
    """Return inputs without constraints for captions of items."""
    return [GenerationInput(item, None, ()) for item in items]


def auc(scores: np.ndarray, events: Sequence[bool]) -> float:
    """Compute the area under the ROC curve: the probability that an event has a higher score than no event."""
    order = np.argsort(np.argsort(scores))
    happened = np.asarray(events)
    yes, no = int(happened.sum()), int((~happened).sum())
    return float((order[happened].sum() - yes * (yes - 1) / 2) / max(1, yes * no))
