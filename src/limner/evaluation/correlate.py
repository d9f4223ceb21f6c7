"""Correlation of a score with human judgements of captions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from limner.data.collection import Collection
from limner.data.dataset import Examples
from limner.data.examples import Item, ItemSentence
from limner.errors import CollectionError, SettingsError, counted
from limner.evaluation.judgements import Judgements, Pair
from limner.features.store import FeatureStore
from limner.inference.base import require_captioning
from limner.inference.collection_features import open_features
from limner.metrics.correlation import Correlation, correlate, too_few_images
from limner.metrics.hierarchical import SAMPLES
from limner.metrics.significance import SEED
from limner.progress import StageProgress
from limner.retrieval.all_pairs import pair_arithmetic
from limner.retrieval.marginal import MARGINAL_IMAGES, log_ratio_signature, marginal_items, normalised_log_probs
from limner.runs.trained_model import TrainedModel


class PairScores(NamedTuple):
    """Scores of judged pairs."""

    scores: dict[Pair, float]
    """log P(w|I) - log P(w) in natural logarithms."""
    missing: list[Pair]
    """Pairs whose image or caption is not in the collection, or whose image has no features."""
    signature: str


class JudgedCorrelation(NamedTuple):
    """Correlations of a score with judgements."""

    correlations: list[Correlation]
    pairs: int
    """Number of judged pairs."""
    images: int
    """Number of their images."""
    own_captions: int
    """Number of pairs that were left out because their caption was written for the image."""
    signature: str
    """Judgements, numbers of ratings, and the bootstrap if there are intervals."""
    notes: tuple[str, ...] = ()
    """Lines about missing intervals, or what makes them doubtful."""


def score_judged_pairs(
    model: TrainedModel,
    collection: Collection,
    judgements: Judgements,
    *,
    marginal: int = MARGINAL_IMAGES,
    on_progress: StageProgress,
) -> PairScores:
    """Score judged pairs by log P(w|I) - log P(w) under a captioning model.

    Args:
        model: captioning model with image features.
        collection: images, captions and features; its training split gives the images of P(w).
        judgements: pairs of a name of an image file and of a caption.
        marginal: number of training images over which P(w) is the mean.
        on_progress: called with the stage, the units done and their total.

    Raises:
        CollectionError: no pair is in the collection, or its training split has no image.
        SettingsError: the model uses no image features.
    """
    require_captioning(model)
    features = open_features(model, collection)
    if features is None:
        raise SettingsError("expected a model with stored image features, found one without; name another by --model")
    lang = model.recipe.data.lang
    images, captions = _judged_parts(collection, judgements, features, lang)
    found = [(image, caption) for image, caption in judgements.ratings if image in images and caption in captions]
    if not found:
        raise CollectionError(
            f"{collection.path}: has no judged pair of an image with features and a caption in '{lang}'; expected the "
            "images and captions that the judgements name"
        )
    rows = {caption: row for row, caption in enumerate(dict.fromkeys(caption for _, caption in found))}
    columns = {image: column for column, image in enumerate(dict.fromkeys(image for image, _ in found))}
    item = Item("judged", "", sentences=tuple(captions[caption] for caption in rows))
    targets = Examples([item], model.target, None).targets
    others = marginal_items(model, collection, features, marginal)
    normalised = normalised_log_probs(
        model,
        targets,
        [images[image] for image in columns],
        features,
        others,
        on_progress=lambda done, total: on_progress("scoring", done, total),
    ).normalised
    scores = {(image, caption): float(normalised[rows[caption], columns[image]]) for image, caption in found}
    missing = [pair for pair in judgements.correlated() if pair not in scores]
    return PairScores(
        scores, missing, log_ratio_signature(model, collection, len(others), pair_arithmetic(model).signature)
    )


def _judged_parts(
    collection: Collection, judgements: Judgements, features: FeatureStore, lang: str
) -> tuple[dict[str, Item], dict[str, ItemSentence]]:
    """Find the judged images that have features, by the names of their files, and the judged captions."""
    wanted = {name for image, caption in judgements.ratings for name in (image, caption.rpartition("#")[0])}
    images: dict[str, Item] = {}
    captions: dict[str, ItemSentence] = {}
    for item in collection.items():
        name = Path(item.media_path or "").name
        if name not in wanted:
            continue
        if features.covers(item):
            images[name] = item
        own = (sentence for sentence in item.sentences if sentence.lang == lang)
        captions.update({f"{name}#{sentence.group}": sentence for sentence in own})
    return images, captions


def correlate_with_judgements(
    judgements: Judgements,
    scores: dict[Pair, float],
    *,
    samples: int = SAMPLES,
    seed: int = SEED,
    on_progress: StageProgress,
) -> JudgedCorrelation:
    """Correlate scores with judgements; every rating of an expert counts by itself, as in the published correlations.

    Pairs of Flickr8k-Expert whose caption was written for the image are left out (`Judgements.left_out`).

    Args:
        judgements: ratings of pairs.
        scores: score of each judged pair; pairs without one are left out.
        samples: number of bootstrap samples of the images.
        seed: seed of the samples.
        on_progress: called with the stage, the units done and their total.

    Raises:
        SettingsError: all ratings or all scores are the same, or no pair is left.
    """
    pairs = [pair for pair in judgements.correlated() if pair in scores]
    if not pairs:
        raise SettingsError(
            "expected judged pairs with a score, found none whose caption was written for another image"
        )
    repeated = [(rating, scores[pair], pair[0]) for pair in pairs for rating in judgements.ratings[pair]]
    ratings, values, images = zip(*repeated, strict=True)
    correlations = correlate(
        np.array(ratings),
        np.array(values),
        images,
        samples=samples,
        seed=seed,
        on_progress=lambda done, total: on_progress("resampling images", done, total),
    )
    found, own_captions = len(set(images)), len(judgements.left_out())
    notes = tuple(note for note in (too_few_images(found), _undefined(correlations, samples)) if note)
    signature = f"judgements:{judgements.kind}|pairs:{len(pairs)}|ratings:{len(ratings)}|images:{found}"
    if any(one.interval for one in correlations):
        signature += f"|bootstrap:{samples}:images|seed:{seed}"
    return JudgedCorrelation(correlations, len(pairs), found, own_captions, signature, notes)


def _undefined(correlations: Sequence[Correlation], samples: int) -> str:
    """A line about the bootstrap samples that have no correlation; empty if all have one."""
    if not (undefined := max(one.undefined for one in correlations)):
        return ""
    return (
        f"{undefined:,} of {counted(samples, 'bootstrap sample')} have no correlation, as all their ratings or scores "
        "are the same, and are not part of the interval, which may be too narrow; expected more images"
    )
