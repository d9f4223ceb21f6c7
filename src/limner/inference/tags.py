"""Tags: everyday nouns of what the classifier of the built-in backbone sees in an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from limner.data.examples import StoredFeatures
from limner.errors import SettingsError
from limner.features.encoders.efficientnet import ClassProbabilities, pooled_vector
from limner.runs.calibration import FeatureStatistics, StoredCalibration
from limner.runs.trained_model import TrainedModel
from limner.text.class_nouns import LANGUAGES, ClassNoun, class_nouns
from limner.text.people_words import PEOPLE_WORDS

SHOWN = 5
"""Maximum number of tags of an image."""
MIN_PROBABILITY = 0.05
"""Probability below which a noun is no tag."""
LIKELY = 0.5
"""Probability from which a tag is named in place of a caption of which the model is not sure."""
KINDS = {
    "animal": ("animal", "Tier", "动物"),
    "vehicle": ("vehicle", "Fahrzeug", "交通工具"),
    "food": ("food", "Essen", "食物"),
    "plant": ("plant", "Pflanze", "植物"),
    "building": ("building", "Gebäude", "建筑"),
    "furniture": ("furniture", "Möbel", "家具"),
    "instrument": ("musical instrument", "Musikinstrument", "乐器"),
}
"""Nouns of kinds of things in the order of `LANGUAGES`."""
SUBJECT_KINDS = frozenset({"animal", "vehicle", "food", "drink", "household", "device"})
"""Kinds of things with which a caption may start."""


class Tag(NamedTuple):
    """A thing that the classifier sees in an image."""

    word: str
    """The usual noun, in the language of the captions."""
    probability: float
    """Sum of the probabilities of all classes with this word, which exclude each other."""
    kind: str
    """Kind of thing, such as animal."""
    words: tuple[str, ...] = ()
    """All words that name the thing; a sentence with one of them mentions it."""


class People:
    """Classifier of people, fitted on what people mention in the captions of the training images."""

    def __init__(self, words: Sequence[str], statistics: FeatureStatistics) -> None:
        """Create the classifier.

        Args:
            words: words that name people.
            statistics: statistics of the features with the regression.
        """
        self.words, self._statistics = frozenset(words), statistics

    def __call__(self, vector: NDArray[np.float32]) -> float:
        """Compute the probability of people in an image, of its pooled features (D,)."""
        return float(self._statistics.people_probability(vector[None])[0])


class ClassifiedImage(NamedTuple):
    """What the classifiers compute of one image, once for its tags, denied words and confidence."""

    nouns: NDArray[np.float64]  # (N,): probability of every noun
    people: float | None
    """Probability of people; None without a classifier of people."""
    tags: tuple[Tag, ...]
    """The most probable tags, by descending probability."""


class Tagger:
    """Computes the tags of images from their features."""

    def __init__(
        self,
        classifier: ClassProbabilities,
        nouns: Sequence[ClassNoun],
        background: float = 0.0,
        people: People | None = None,
        lang: str = "en",
    ) -> None:
        """Combine a classifier with the nouns of its classes.

        Args:
            classifier: classifier of the features.
            nouns: nouns of its classes.
            background: probability that every class has in every image; it is subtracted, and the rest is normalised.
            people: classifier of people, of whom the other has no class; None without one.
            lang: language of the nouns.
        """
        self.classifier, self.nouns, self.background = classifier, tuple(nouns), background
        self.people, self.lang = people, lang
        self._noun_of_class = np.zeros(len(classifier.bias), int)
        for number, noun in enumerate(self.nouns):
            self._noun_of_class[list(noun.classes)] = number
        self._tag_words = list(dict.fromkeys(noun.word for noun in self.nouns))
        numbers = {word: number for number, word in enumerate(self._tag_words)}
        self._tag_of_noun = np.array([numbers[noun.word] for noun in self.nouns], int)
        self._nouns_of_word: dict[str, list[int]] = {}
        for number, noun in enumerate(self.nouns):
            for word in noun.words:
                self._nouns_of_word.setdefault(word, []).append(number)

    @classmethod
    def of(cls, model: TrainedModel, calibration: StoredCalibration | None = None) -> Self | None:
        """Create the tagger of the features that a captioner reads; None where the backbone has no classifier.

        The nouns are English where there are none of the language of the captions.
        """
        classifier = ClassProbabilities.of(model.config.features)
        if classifier is None:
            return None
        lang = model.recipe.data.lang if model.recipe.data.lang in LANGUAGES else "en"
        nouns = class_nouns(lang)
        if calibration is None:
            return cls(classifier, nouns, lang=lang)
        people = People(PEOPLE_WORDS[lang], calibration.statistics)
        return cls(classifier, nouns, calibration.settings.background, people, lang)

    def __call__(self, features: Sequence[StoredFeatures | None]) -> list[tuple[Tag, ...]]:
        """Return the most probable tags of each image, by descending probability."""
        return [one.tags for one in self.classify(features)]

    def classify(self, features: Sequence[StoredFeatures | None]) -> list[ClassifiedImage]:
        """Compute what the other methods read of images, of each on its own, so that no bit depends on others."""
        vectors = [None if one is None else pooled_vector(one) for one in features]
        rows = self.probabilities([None if one is None else {"pooled": one} for one in vectors])
        if self.people is None:
            return [ClassifiedImage(row, None, self._tags(row)) for row in rows]
        empty = np.zeros(self.classifier.weight.shape[1], np.float32)
        return [
            ClassifiedImage(row, self.people(empty if vector is None else vector), self._tags(row))
            for row, vector in zip(rows, vectors, strict=True)
        ]

    def probabilities(self, features: Sequence[StoredFeatures | None]) -> NDArray[np.float64]:
        """Compute the probability of every noun, (B, N)."""
        by_class = np.maximum(self.classifier(features) - self.background, 0)
        by_class /= np.maximum(by_class.sum(1, keepdims=True), 1e-9)
        return np.stack([np.bincount(self._noun_of_class, row, len(self.nouns)) for row in by_class])

    def word_probabilities(self, images: Sequence[ClassifiedImage], words: Sequence[str]) -> NDArray[np.float64]:
        """Compute the probability that what each word names is in each image, (B, W); 0 for other words."""
        by_noun, found = np.stack([one.nouns for one in images]), np.zeros((len(images), len(words)))
        for column, word in enumerate(words):
            if self.people is not None and word in self.people.words:
                found[:, column] = [one.people for one in images]
            elif word in self._nouns_of_word:
                found[:, column] = by_noun[:, self._nouns_of_word[word]].sum(1)
        return found

    def denied(
        self, images: Sequence[ClassifiedImage], thresholds: Mapping[str, float], min_people_probability: float = 0.0
    ) -> list[frozenset[str]]:
        """Return the words of each image that have a probability below their thresholds.

        Words of probable nouns are not among them, nor are those of their phrases ('hot dog').

        Args:
            images: the images.
            thresholds: probability of each word.
            min_people_probability: probability of people below which the words for people are among them if a thing
                that is usually a subject is likely.
        """
        words = list(thresholds)
        low = self.word_probabilities(images, words) < np.array([thresholds[word] for word in words])
        found = []
        for one, below in zip(images, low, strict=True):
            probable = (self.nouns[number] for number in np.flatnonzero(one.nouns >= MIN_PROBABILITY))
            named = {part for noun in probable for phrase in noun.words for part in phrase.split()}
            found.append(frozenset(words[column] for column in np.flatnonzero(below)) - named)
        if self.people is None or not min_people_probability:
            return found
        return [
            words_of_one | self.people.words
            if (one.people or 0.0) < min_people_probability and _has_subject(one.tags)
            else words_of_one
            for words_of_one, one in zip(found, images, strict=True)
        ]

    def likely(self, tags: Sequence[Tag]) -> tuple[Tag, ...]:
        """Return the tags that are likely, or the kind of thing that is where no single one is.

        Args:
            tags: tags of an image, best first.
        """
        sure = tuple(tag for tag in tags if tag.probability >= LIKELY)
        if sure:
            return sure
        of_kinds = dict.fromkeys((tag.kind for tag in tags), 0.0)
        for tag in tags:
            of_kinds[tag.kind] += tag.probability
        column = LANGUAGES.index(self.lang)
        return tuple(
            Tag(KINDS[kind][column], probability, kind)
            for kind, probability in of_kinds.items()
            if probability >= LIKELY and kind in KINDS
        )

    def _tags(self, probabilities: NDArray[np.float64]) -> tuple[Tag, ...]:
        """Return the tags of an image; nouns with the same usual word, such as two kinds of ships, are one tag."""
        sums = np.bincount(self._tag_of_noun, probabilities, len(self._tag_words))
        tags = []
        for tag in np.argsort(-sums, kind="stable")[:SHOWN].tolist():
            if sums[tag] >= MIN_PROBABILITY:
                numbers = np.flatnonzero(self._tag_of_noun == tag).tolist()
                nouns = [self.nouns[number] for number in sorted(numbers, key=lambda number: -probabilities[number])]
                words = dict.fromkeys(word for noun in nouns for word in noun.words)
                tags.append(Tag(self._tag_words[tag], float(sums[tag]), nouns[0].kind, tuple(words)))
        return tuple(tags)


def _has_subject(tags: Sequence[Tag]) -> bool:
    """Whether the best tag is likely and usually a subject."""
    return bool(tags) and tags[0].probability >= LIKELY and tags[0].kind in SUBJECT_KINDS


def require_tagger(tagger: Tagger | None) -> Tagger:
    """Return a tagger.

    Raises:
        SettingsError: there is none.
    """
    if tagger is None:
        raise SettingsError(
            "tags need the features of the last layer of a built-in backbone (efficientnet-lite2), whose classifier "
            "names them; use a model trained on these features, or leave out the tags (--tags)"
        )
    return tagger
