"""Tags: everyday nouns of what the classifier of the built-in backbone sees in an image."""

from __future__ import annotations

from collections.abc import Sequence
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

    def __init__(self, classifier: ClassProbabilities, nouns: Sequence[ClassNoun]) -> None:
        """Combine a classifier with the nouns of its classes."""
        self.classifier, self.nouns = classifier, tuple(nouns)
        self._noun_of_class = np.zeros(len(classifier.bias), int)
        for number, noun in enumerate(self.nouns):
            self._noun_of_class[list(noun.classes)] = number

    @classmethod
    def of(cls, model: TrainedModel) -> Self | None:
        """Create the tagger of the features that a captioner reads; None where the backbone has no classifier.

        The nouns are English where there are none of the language of the captions.
        """
        classifier = ClassProbabilities.of(model.config.features)
        lang = model.recipe.data.lang
        return None if classifier is None else cls(classifier, class_nouns(lang if lang in LANGUAGES else "en"))

    def __call__(self, features: Sequence[StoredFeatures | None]) -> list[tuple[Tag, ...]]:
        """Return the most probable tags of each image, by descending probability."""
        return [self._tags(row) for row in self.probabilities(features)]

    def probabilities(self, features: Sequence[StoredFeatures | None]) -> NDArray[np.float64]:
        """Compute the probability of every noun, (B, N)."""
        by_class = self.classifier(features)
        return np.stack([np.bincount(self._noun_of_class, row, len(self.nouns)) for row in by_class])

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
