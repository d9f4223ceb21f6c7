"""Cross-validation: a training and an evaluation for every fold of a collection, mean scores, and baselines.

The baselines are classifiers of bags of words by scikit-learn, for models that read the order of the words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from math import floor
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Self

import numpy as np

from limner.bounds import Few, Folds, Half, Seed
from limner.data.collection import Collection
from limner.data.examples import Item
from limner.errors import SettingsError, extra_module
from limner.evaluation.evaluate import EvaluationOptions, evaluate
from limner.metrics.classification import ACCURACY, accuracy_statistics
from limner.metrics.significance import approximate_randomisation
from limner.runs.evaluations import Evaluation, save_evaluation
from limner.runs.recipe import Recipe
from limner.runs.records import Record
from limner.runs.trained_model import load_trained_model
from limner.settings import Settings
from limner.text.labels import LABEL
from limner.text.words import TextSettings, split_words
from limner.training.context import TrainProgress
from limner.training.loop import train

TRAIN, VALIDATION, TEST = "train", "val", "test"


def assign_folds(items: Sequence[Item], folds: int, validation: float, seed: int) -> list[dict[str, str]]:
    """Assign items to training, validation and test in every fold, each label in equal shares.

    The test parts of the folds are disjoint and cover all items. The validation part of a fold is drawn from its
    training part at even distances: where the multiples of the share reach the next integer, one position later in each
    fold.

    Returns:
        For each fold the split of every item, `train`, `val` or `test`, by item id.

    Raises:
        SettingsError: there are fewer items than folds, or a fold without validation or training items.
    """
    by_label: defaultdict[str, list[str]] = defaultdict(list)
    for item in items:
        by_label[item.label or ""].append(item.id)
    ordered: list[str] = []
    for label in sorted(by_label):
        ids = sorted(by_label[label])
        Random(f"{seed}/{label}").shuffle(ids)
        ordered += ids  # labels one after the other: every K-th item is a share of each label
    share = Fraction(str(validation))  # exact: 0.29 * 100 is less than 29 in floating point
    result: list[dict[str, str]] = []
    for fold in range(folds):
        rest = [id for position, id in enumerate(ordered) if position % folds != fold]
        splits = {
            id: VALIDATION if floor((position - fold) * share) > floor((position - fold - 1) * share) else TRAIN
            for position, id in enumerate(rest)
        }
        splits |= dict.fromkeys(ordered[fold::folds], TEST)
        if len(set(splits.values())) < 3:
            raise SettingsError(f"{folds} folds need more items, found {len(items)}; lower --folds")
        result.append(splits)
    return result


RECORD = "crossvalidation.json"


class CrossValidationSettings(Settings):
    """Folds of a cross-validation."""

    folds: Folds = 10
    """Number of folds; each is the test part once."""
    validation: Half = 0.1
    """Share of the training part of each fold that selects the best weights."""
    split: str | None = None
    """Split whose items are divided; None for all items of the collection."""
    seed: Seed = 1
    """Seed of the assignment of items to folds, separate from the seed of the training."""
    models: Few = 1
    """Number of models of each fold, trained with successive seeds; the mean of their probabilities is evaluated."""
    baseline: bool = False
    """Whether to train bag-of-words classifiers of scikit-learn on the same folds."""


class FoldScores(Record):
    """Score of all folds by one metric."""

    name: str
    mean: float
    std: float
    """Standard deviation over the folds, with K - 1 in the denominator."""
    values: tuple[float, ...]
    """Score of each fold."""


class BaselineScore(Record):
    """Accuracy of a bag-of-words classifier on the same folds."""

    name: str
    accuracy: FoldScores
    p: float
    """p-value of the difference to the model over the test items of all folds, by approximate randomisation."""


class CrossValidation(Record):
    """Results of a cross-validation."""

    settings: CrossValidationSettings
    recipe: str
    """Description of the recipe."""
    command: str
    runs: tuple[str, ...]
    """Run directories of each fold in turn."""
    scores: tuple[FoldScores, ...]
    baselines: tuple[BaselineScore, ...] = ()


def cross_validate(
    recipe: Recipe,
    collection: Collection,
    out: Path,
    *,
    settings: CrossValidationSettings | None = None,
    command: str = "limner.cross_validate",
    on_progress: Callable[[TrainProgress], None] | None = None,
    on_fold: Callable[[int, Evaluation], None] | None = None,
) -> CrossValidation:
    """Train and evaluate a model on every fold; folds that are finished in `out` are not trained again.

    Args:
        recipe: settings of the model and the training; its splits are replaced by the splits of the folds.
        collection: collection whose items are divided into folds.
        out: folder of the runs `fold-1`, `fold-2`, … and of the record `crossvalidation.json`; further models of a fold
            are `fold-1-model-2`, `fold-1-model-3`, ….
        settings: number of folds and of models, share of validation items, baselines.
        command: command line, for the records.
        on_progress: called after every training step.
        on_fold: called with the number of a fold, from 1, and its evaluation.

    Raises:
        SettingsError: there are too few items, or baselines are requested and the model does not classify texts.
        LimnerError: see `train` and `evaluate`.
    """
    settings = settings or CrossValidationSettings()
    recipe = recipe.model_copy(
        update={"data": recipe.data.model_copy(update={"train": TRAIN, "val": VALIDATION, "test": TEST})}
    )
    if settings.baseline and (recipe.data.lang != LABEL or recipe.data.source_lang is None):
        raise SettingsError("baselines classify texts: expected data.lang=label and data.source_lang, or no --baseline")
    items = collection.items(settings.split)
    folds = assign_folds(items, settings.folds, settings.validation, settings.seed)
    evaluations: list[Evaluation] = []
    runs: list[Path] = []
    for number, splits in enumerate(folds, start=1):
        view, ensemble = collection.with_splits(splits), []
        for model in range(settings.models):
            ensemble.append(out / (f"fold-{number}-model-{model + 1}" if model else f"fold-{number}"))
            training = recipe.training.model_copy(update={"seed": recipe.training.seed + model})
            seeded = recipe.model_copy(update={"training": training})
            train(seeded, view, ensemble[-1], resume=ensemble[-1].exists(), command=command, on_progress=on_progress)
        evaluations.append(_evaluate(ensemble, view, command))
        runs += ensemble
        if on_fold is not None:
            on_fold(number, evaluations[-1])
    result = CrossValidation(
        settings=settings,
        recipe=recipe.description,
        command=command,
        runs=tuple(str(run) for run in runs),
        scores=tuple(_mean_scores(evaluations)),
        baselines=tuple(_baselines(recipe, items, folds, evaluations)) if settings.baseline else (),
    )
    result.save(out / RECORD)
    return result


def _evaluate(runs: Sequence[Path], view: Collection, command: str) -> Evaluation:
    """Evaluate one model, or an ensemble, unless a single model has been evaluated since it was trained."""
    path = runs[0] / "evaluation" / f"{TEST}.json"
    if len(runs) == 1 and path.exists() and path.stat().st_mtime >= (runs[0] / "model.safetensors").stat().st_mtime:
        return Evaluation.load(path)
    models = [load_trained_model(run) for run in runs]
    evaluation = evaluate(models, view, options=EvaluationOptions(retrieval=False), command=command)
    if len(runs) == 1:
        save_evaluation(evaluation, runs[0])
    return evaluation


def _mean_scores(evaluations: Sequence[Evaluation]) -> Iterable[FoldScores]:
    """Average the scores that all folds have."""
    values: dict[str, list[float]] = {}
    for evaluation in evaluations:
        for score in evaluation.scores:
            values.setdefault(score.name, []).append(score.value)
    return (
        fold_scores(name, fold_values) for name, fold_values in values.items() if len(fold_values) == len(evaluations)
    )


def fold_scores(name: str, values: Sequence[float]) -> FoldScores:
    """Return the mean and the standard deviation of the scores of the folds."""
    return FoldScores(name=name, mean=float(np.mean(values)), std=float(np.std(values, ddof=1)), values=tuple(values))


def _baselines(
    recipe: Recipe, items: Sequence[Item], folds: Sequence[Mapping[str, str]], evaluations: Sequence[Evaluation]
) -> Iterable[BaselineScore]:
    """Train the classifiers of bags of words on every fold and compare them with the model by accuracy."""
    assert recipe.source_text is not None and recipe.data.source_lang is not None
    lang, by_id = recipe.data.source_lang, {item.id: item for item in items}
    predictions: dict[str, list[list[str]]] = {}
    for splits, evaluation in zip(folds, evaluations, strict=True):
        parts = {
            name: LabelledTexts.from_items([by_id[id] for id in splits if splits[id] == name], lang, recipe.source_text)
            for name in (TRAIN, VALIDATION)
        }
        texts = [item.source or "" for item in evaluation.items]
        for name, labels in classify_bags_of_words(parts[TRAIN], parts[VALIDATION], texts, recipe.source_text).items():
            predictions.setdefault(name, []).append(labels)
    references = [[list(item.reference_tokens) for item in evaluation.items] for evaluation in evaluations]
    model = np.concatenate(
        [
            accuracy_statistics([item.tokens for item in evaluation.items], labels)
            for evaluation, labels in zip(evaluations, references, strict=True)
        ]
    )
    for name, labels_by_fold in predictions.items():
        statistics = [accuracy_statistics(*pair) for pair in zip(labels_by_fold, references, strict=True)]
        values = [ACCURACY.value(rows.sum(axis=0)) for rows in statistics]
        test = approximate_randomisation(model, np.concatenate(statistics), ACCURACY.value)
        yield BaselineScore(name=name, accuracy=fold_scores(name, values), p=test.p)


STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Values of the regularisation parameter C; the validation part selects one."""


class LabelledTexts(NamedTuple):
    """Texts as words joined by spaces, and their labels."""

    texts: list[str]
    labels: list[str]

    @classmethod
    def from_items(cls, items: Iterable[Item], lang: str, settings: TextSettings) -> Self:
        """Collect the sentences of items in a language with the labels of the items."""
        pairs = [pair for item in items for pair in item.pairs(lang, LABEL)]
        texts = [" ".join(split_words(text.text, settings)) for text, _ in pairs]
        return cls(texts, [label.text for _, label in pairs])


def classify_bags_of_words(
    train: LabelledTexts, validation: LabelledTexts, texts: Sequence[str], settings: TextSettings
) -> dict[str, list[str]]:
    """Train classifiers of tf-idf vectors, with a regularisation that `validation` selects, and classify texts.

    Returns:
        Predicted labels of each classifier: logistic regression and a linear support vector machine on words, and
        logistic regression on words and pairs of words.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    modules = (f"sklearn.{name}" for name in ("linear_model", "svm", "feature_extraction.text"))
    linear, svm, text = (extra_module(name, "a bag-of-words baseline", "words") for name in modules)
    words = [" ".join(split_words(text, settings)) for text in texts]
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
        best = max(fitted, key=lambda classifier: classifier.score(held_out, validation.labels))
        predictions[name] = best.predict(vectorizer.transform(words)).tolist()
    return predictions
