"""Classifiers of bags of words by scikit-learn, as baselines of models that read the order of the words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, Self

from limner.data.examples import Item
from limner.errors import MissingExtraError
from limner.text.labels import LABEL
from limner.text.words import TextSettings, split_words

STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Values of the regularisation parameter C; the validation part selects one."""


class LabelledTexts(NamedTuple):
    """Texts as words joined by spaces, and their labels."""

    texts: list[str]
    labels: list[str]

    @classmethod
    def of(cls, items: Iterable[Item], lang: str, settings: TextSettings) -> Self:
        """Collect the sentences of items in a language with the labels of the items."""
        pairs = [pair for item in items for pair in item.pairs(lang, LABEL)]
        texts = [" ".join(split_words(text.text, settings)) for text, _ in pairs]
        return cls(texts, [label.text for _, label in pairs])


def classify_bags_of_words(
    train: LabelledTexts, validation: LabelledTexts, texts: Sequence[str], settings: TextSettings
) -> dict[str, list[str]]:
    """Train classifiers of tf-idf vectors and classify texts.

    Args:
        train: training texts.
        validation: texts that select the regularisation parameter.
        texts: texts to classify.
        settings: splitting of the texts into words.

    Returns:
        Predicted labels of each classifier: logistic regression and a linear support vector machine on words, and
        logistic regression on words and pairs of words.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    linear, svm, text = (_sklearn(name) for name in ("linear_model", "svm", "feature_extraction.text"))
    words = [" ".join(split_words(one, settings)) for one in texts]
    logistic: Callable[..., Any] = partial(linear.LogisticRegression, max_iter=1000)
    classifiers = {
        "logistic regression, words": (1, logistic),
        "linear SVM, words": (1, svm.LinearSVC),
        "logistic regression, words and pairs": (2, logistic),
    }
    predictions = {}
    for name, (longest, build) in classifiers.items():
        vectorizer = text.TfidfVectorizer(
            token_pattern=r"\S+", ngram_range=(1, longest), lowercase=False, sublinear_tf=True
        )
        inputs = vectorizer.fit_transform(train.texts)
        fitted = [build(C=c).fit(inputs, train.labels) for c in STRENGTHS]
        held_out = vectorizer.transform(validation.texts)
        best = max(fitted, key=lambda one: one.score(held_out, validation.labels))
        predictions[name] = best.predict(vectorizer.transform(words)).tolist()
    return predictions


def _sklearn(name: str) -> Any:  # noqa: ANN401  (a module without types)
    try:
        return import_module(f"sklearn.{name}")
    except ImportError:
        raise MissingExtraError("a bag-of-words baseline", "words") from None
