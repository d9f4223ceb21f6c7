"""Tags: everyday nouns of what the classifier of the built-in backbone sees in an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from limner.data.examples import StoredFeatures
from limner.errors import SettingsError
from limner.features.class_probabilities import ClassProbabilities
from limner.runs.trained_model import TrainedModel
from limner.text.class_nouns import LANGUAGES, ClassNoun, class_nouns

SHOWN = 5
"""Maximum number of tags of an image."""
MIN_PROBABILITY = 0.05
"""Probability below which a noun is no tag."""


class Tag(NamedTuple):
    """A thing that the classifier sees in an image."""

    word: str
    """The usual noun, in the language of the captions."""
    probability: float
    """Sum of the probabilities of the noun's classes."""
    kind: str
    """Kind of thing, such as animal."""
    words: tuple[str, ...] = ()
    """All words that name the thing; a sentence with one of them mentions it."""


class Tagger:
    """Computes the tags of images from their features."""

    def __init__(self, classifier: ClassProbabilities, nouns: Sequence[ClassNoun], background: float = 0.0) -> None:
        """Combine a classifier with the nouns of its classes.

        Args:
            classifier: classifier of the features.
            nouns: nouns of its classes.
            background: probability that every class has in every image; it is subtracted, and the rest is normalised.
        """
        self.classifier, self.nouns, self.background = classifier, tuple(nouns), background
        self._noun_of_class = np.zeros(len(classifier.bias), int)
        for number, noun in enumerate(self.nouns):
            self._noun_of_class[list(noun.classes)] = number

    @classmethod
    def of(cls, model: TrainedModel, background: float = 0.0) -> Self | None:
        """Create the tagger of the features that a captioner reads; None where the backbone has no classifier.

        The nouns are English where there are none of the language of the captions.
        """
        classifier = ClassProbabilities.of(model.config.features)
        lang = model.recipe.data.lang
        return (
            None
            if classifier is None
            else cls(classifier, class_nouns(lang if lang in LANGUAGES else "en"), background)
        )

    def __call__(self, features: Sequence[StoredFeatures | None]) -> list[tuple[Tag, ...]]:
        """Return the most probable tags of each image, by descending probability."""
        return [self._tags(row) for row in self.probabilities(features)]

    def probabilities(self, features: Sequence[StoredFeatures | None]) -> NDArray[np.float64]:
        """Compute the probability of every noun, (B, N)."""
        by_class = np.maximum(self.classifier(features) - self.background, 0)
        by_class /= np.maximum(by_class.sum(1, keepdims=True), 1e-9)
        return np.stack([np.bincount(self._noun_of_class, row, len(self.nouns)) for row in by_class])

    def denied(
        self, features: Sequence[StoredFeatures | None], thresholds: Mapping[str, float]
    ) -> list[frozenset[str]]:
        """Return the words of each image whose nouns have a probability below their thresholds.

        Words of probable nouns are not among them, nor are those of their phrases ('hot dog').
        """
        nouns = {word: [n for n, noun in enumerate(self.nouns) if word in noun.words] for word in thresholds}
        found = []
        for row in self.probabilities(features):
            seen = {
                part
                for noun, probability in zip(self.nouns, row, strict=True)
                if probability >= MIN_PROBABILITY
                for phrase in noun.words
                for part in phrase.split()
            }
            low = {word for word, limit in thresholds.items() if row[nouns[word]].sum() < limit}
            found.append(frozenset(low - seen))
        return found

    def _tags(self, probabilities: NDArray[np.float64]) -> tuple[Tag, ...]:
        order = np.argsort(-probabilities, kind="stable")[:SHOWN]
        return tuple(
            Tag(noun.word, float(probabilities[number]), noun.kind, noun.words)
            for number, noun in ((number, self.nouns[number]) for number in order.tolist())
            if probabilities[number] >= MIN_PROBABILITY
        )


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
