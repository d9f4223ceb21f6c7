"""Correlation of a score with human judgements of captions: Kendall's tau with bootstrap intervals over images.

The judgements are the two files of Flickr8k (Hodosh et al., 2013), whose fields are separated by tabs; a caption is
named by the image it was written for and its number, `name.jpg#0`:

    ExpertAnnotations.txt         image, caption, three ratings from 1 (does not describe the image) to 4 (describes it)
    CrowdFlowerAnnotations.txt    image, caption, share of yes, number of yes, number of no
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.data.collection import Collection
from limner.data.dataset import Examples
from limner.data.examples import Item, ItemSentence
from limner.errors import CollectionError, SettingsError, counted
from limner.features.store import FeatureStore
from limner.files import decode_utf8, read_bytes
from limner.inference.base import require_captioning
from limner.inference.features import open_features
from limner.metrics.significance import LEVEL, SAMPLES, SEED, Interval
from limner.progress import StageProgress
from limner.retrieval.marginal import MARGINAL_IMAGES, log_ratio_signature, marginal_items, normalised_log_probs
from limner.runs.trained_model import TrainedModel

Pair = tuple[str, str]  # names of an image and of a caption
LARGEST_DEVIATION = 1e-3  # largest difference between the share of yes and its numbers


class Judgements(NamedTuple):
    """Ratings of pairs of an image and a caption."""

    kind: Literal["expert", "crowd"]
    ratings: Mapping[Pair, tuple[float, ...]]  # three ratings of experts, or the share of yes, of each pair

    def left_out(self) -> list[Pair]:
        """Return the pairs that are not correlated: experts' pairs whose caption was written for the image.

        Anderson et al. (2016) leave them out, because metrics with references would compare these captions with
        themselves; all pairs of Flickr8k-CF are kept.
        """
        if self.kind != "expert":
            return []
        return [(image, caption) for image, caption in self.ratings if caption.rpartition("#")[0] == image]

    def correlated(self) -> list[Pair]:
        """Return the pairs that are correlated: all except `left_out`."""
        left_out = set(self.left_out())
        return [pair for pair in self.ratings if pair not in left_out]


def read_judgements(path: Path) -> Judgements:
    """Read a file in the format of Flickr8k-Expert (three ratings a line) or Flickr8k-CF (fraction of 'yes')."""
    ratings: dict[Pair, tuple[float, ...]] = {}
    kinds: set[Literal["expert", "crowd"]] = set()
    for number, fields in _rows(path):
        kind, rating = _ratings(fields, f"{path}, line {number}")
        kinds.add(kind)
        if len(kinds) > 1:
            raise SettingsError(
                f"{path}, line {number}: ratings of experts and shares of yes in one file; expected one kind"
            )
        ratings[_pair(fields, ratings, f"{path}, line {number}")] = rating
    if not ratings:
        raise SettingsError(f"{path}: expected judgements, found an empty file")
    return Judgements(kinds.pop(), ratings)


def read_scores(path: Path, judgements: Judgements) -> dict[Pair, float]:
    """Read scores of judged pairs from lines `image<TAB>caption<TAB>score`, which the correlated pairs need."""
    scores: dict[Pair, float] = {}
    for number, fields in _rows(path):
        where = f"{path}, line {number}"
        if len(fields) != 3:
            raise SettingsError(
                f"{where}: expected 'image<TAB>caption<TAB>score', found {counted(len(fields), 'column')}"
            )
        scores[_pair(fields, scores, where)] = _number(fields[2], where)
    missing = [pair for pair in judgements.correlated() if pair not in scores]
    if missing:
        raise SettingsError(
            f"{path}: expected a score of every judged pair, found none of '{missing[0][0]}' and '{missing[0][1]}' "
            f"({len(missing):,} in all); add a line 'image<TAB>caption<TAB>score' for each"
        )
    return scores


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    try:
        data = read_bytes(path)
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read ({error.strerror}); expected lines separated by tabs; check the path"
        ) from None
    text = decode_utf8(data, SettingsError, lambda line: f"{path}, line {line}")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return [(number, line.split("\t")) for number, line in enumerate(lines, start=1) if line.strip()]


def _pair(fields: Sequence[str], known: Container[Pair], where: str) -> Pair:
    pair = fields[0].strip(), fields[1].strip()
    if not pair[0]:
        raise SettingsError(f"{where}: expected the name of an image in the first column, found none")
    if "#" not in pair[1]:
        raise SettingsError(f"{where}: expected a caption named 'image#number', found '{pair[1]}'")
    if pair in known:
        raise SettingsError(f"{where}: '{pair[0]}' and '{pair[1]}' occur twice; remove one of the lines")
    return pair


def _ratings(fields: Sequence[str], where: str) -> tuple[Literal["expert", "crowd"], tuple[float, ...]]:
    if len(fields) != 5:
        raise SettingsError(
            f"{where}: expected image, caption and three ratings, or image, caption, share of yes and the numbers of "
            f"yes and no, separated by tabs; found {counted(len(fields), 'column')}"
        )
    first, second, third = (_number(field, where) for field in fields[2:])
    if all(value in (1, 2, 3, 4) for value in (first, second, third)):
        return "expert", (first, second, third)
    if min(second, third) >= 0 < second + third and abs(first - second / (second + third)) < LARGEST_DEVIATION:
        return "crowd", (first,)
    raise SettingsError(
        f"{where}: expected three ratings from 1 to 4, or a share of yes with the numbers of yes and no that give it; "
        f"found {', '.join(fields[2:])}"
    )


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise SettingsError(f"{where}: expected a number, found '{text}'")
    return value


class PairScores(NamedTuple):
    """Scores of judged pairs."""

    scores: dict[Pair, float]  # log P(w|I) - log P(w) in natural logarithms
    missing: list[Pair]  # pairs whose image or caption is not in the collection, or whose image has no features
    signature: str


class JudgedCorrelation(NamedTuple):
    """Correlations of a score with judgements."""

    correlations: list[Correlation]
    pairs: int
    images: int
    own_captions: int  # number of pairs that were left out because their caption was written for the image
    signature: str  # judgements, numbers of ratings, and the bootstrap if there are intervals
    notes: tuple[str, ...] = ()  # lines about missing or doubtful intervals


def score_judged_pairs(
    model: TrainedModel,
    collection: Collection,
    judgements: Judgements,
    *,
    marginal: int = MARGINAL_IMAGES,
    on_progress: StageProgress,
) -> PairScores:
    """Score judged pairs by log P(w|I) - log P(w) under a captioning model.

    The collection has images, captions and features; the mean over `marginal` images of its training split gives P(w).
    """
    require_captioning(model)
    features = open_features(model, collection)
    if features is None:
        raise SettingsError("expected a model with stored image features, found one without; name another by --model")
    lang = model.recipe.data.lang
    images, captions, judged = judged_pairs(collection, judgements, features, lang)
    rows = {caption: row for row, caption in enumerate(dict.fromkeys(caption for _, caption in judged))}
    columns = {image: column for column, image in enumerate(dict.fromkeys(image for image, _ in judged))}
    item = Item("judged", "", sentences=tuple(captions[caption] for caption in rows))
    targets = Examples([item], model.target, None).targets
    marginal_images = marginal_items(model, collection, features, marginal)
    pairs = normalised_log_probs(
        model,
        targets,
        [images[image] for image in columns],
        features,
        marginal_images,
        on_progress=lambda done, total: on_progress("scoring", done, total),
    )
    scores = {(image, caption): float(pairs.normalised[rows[caption], columns[image]]) for image, caption in judged}
    missing = [pair for pair in judgements.correlated() if pair not in scores]
    signature = log_ratio_signature(model, collection, len(marginal_images), pairs.precision)
    return PairScores(scores, missing, signature)


def judged_pairs(
    collection: Collection, judgements: Judgements, features: FeatureStore | None, lang: str
) -> tuple[dict[str, Item], dict[str, ItemSentence], list[Pair]]:
    """Find the judged images by file name, the judged captions, and the pairs; CollectionError without a pair."""
    judged_names = {name for image, caption in judgements.ratings for name in (image, caption.rpartition("#")[0])}
    images: dict[str, Item] = {}
    captions: dict[str, ItemSentence] = {}
    for item in collection.items():
        name = Path(item.media_path or "").name
        if name not in judged_names:
            continue
        if features is None or features.covers(item):
            images[name] = item
        in_lang = (sentence for sentence in item.sentences if sentence.lang == lang)
        captions.update({f"{name}#{sentence.group}": sentence for sentence in in_lang})
    judged = [(image, caption) for image, caption in judgements.ratings if image in images and caption in captions]
    if not judged:
        raise CollectionError(
            f"{collection.path}: has no judged pair of an image with features and a caption in '{lang}'; expected the "
            "images and captions that the judgements name"
        )
    return images, captions, judged


def correlate_with_judgements(
    judgements: Judgements,
    scores: dict[Pair, float],
    *,
    samples: int = SAMPLES,
    seed: int = SEED,
    on_progress: StageProgress,
) -> JudgedCorrelation:
    """Correlate scores with judgements; every rating of an expert counts by itself, as in the published correlations.

    Pairs of Flickr8k-Expert whose caption was written for the image are left out (`Judgements.left_out`). Pairs without
    a score are left out as well. The bootstrap samples are of the images.
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
    num_images, own_captions = len(set(images)), len(judgements.left_out())
    notes = [note] if (note := too_few_images(num_images)) else []
    if undefined := max(correlation.undefined for correlation in correlations):
        notes.append(
            f"{undefined:,} of {counted(samples, 'bootstrap sample')} have no correlation, as all their ratings or "
            "scores are the same, and are not part of the interval, which may be too narrow; expected more images"
        )
    signature = f"judgements:{judgements.kind}|pairs:{len(pairs)}|ratings:{len(ratings)}|images:{num_images}"
    if any(correlation.interval for correlation in correlations):
        signature += f"|bootstrap:{samples}:images|seed:{seed}"
    return JudgedCorrelation(correlations, len(pairs), num_images, own_captions, signature, tuple(notes))


TAUS: tuple[Literal["b", "c"], ...] = ("b", "c")
MIN_IMAGES = 10
"""Minimum number of images of an interval: with fewer, the bootstrap has too few to sample (five images: 83 % coverage
of intervals of 95 % in simulations)."""


class Correlation(NamedTuple):
    """A rank correlation with its interval."""

    name: str
    """kendall_tau_b or kendall_tau_c."""
    value: float
    """From -1 to 1."""
    interval: Interval | None
    """Bootstrap interval; None with fewer than `MIN_IMAGES` images, or if no sample has a correlation."""
    undefined: int = 0
    """Number of bootstrap samples without a correlation, because all ratings or all scores are the same; the interval
    is computed from the other samples."""


def correlate(
    ratings: NDArray[np.float64],
    scores: NDArray[np.float64],
    images: Sequence[str],
    *,
    samples: int = SAMPLES,
    seed: int = SEED,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Correlation]:
    """Compute Kendall's tau-b and tau-c between ratings and scores.

    The judgements of one image are not independent: the bootstrap resamples images. Ratings, scores and images are
    (N,); the intervals have a confidence of 1 - `LEVEL`.
    """
    for name, values in (("ratings", ratings), ("scores", scores)):
        if len(set(values.tolist())) < 2:
            raise SettingsError(
                f"expected {name} that differ, found {len(values)} of the same value: no rank correlation"
            )
    groups: dict[str, list[int]] = {}
    for row, image in enumerate(images):
        groups.setdefault(image, []).append(row)
    members, random = [np.array(rows) for rows in groups.values()], np.random.default_rng(seed)
    resampled = np.empty((0 if too_few_images(len(groups)) else samples, len(TAUS)))
    for sample in range(len(resampled)):
        rows = np.concatenate([members[group] for group in random.integers(len(members), size=len(members))])
        resampled[sample] = _taus(ratings[rows], scores[rows])
        if on_progress is not None:
            on_progress(sample + 1, samples)
    correlations = []
    for tau, value, column in zip(TAUS, _taus(ratings, scores), resampled.T, strict=True):
        defined, interval = column[~np.isnan(column)], None
        if len(defined):
            low, high = np.quantile(defined, [LEVEL / 2, 1 - LEVEL / 2])
            interval = float(low), float(high)
        correlations.append(Correlation(f"kendall_tau_{tau}", value, interval, len(column) - len(defined)))
    return correlations


def too_few_images(images: int) -> str:
    """Return why there is no bootstrap interval over so few images; empty if there are enough."""
    if images >= MIN_IMAGES:
        return ""
    return f"no interval: the bootstrap has {counted(images, 'image')} to sample; expected {MIN_IMAGES} or more"


def _taus(ratings: NDArray[np.float64], scores: NDArray[np.float64]) -> list[float]:
    from scipy.stats import kendalltau

    return [float(kendalltau(ratings, scores, variant=tau).statistic) for tau in TAUS]
