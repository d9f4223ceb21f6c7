"""Section of the report about attention: alignment, heat maps, and the figure whose script shows one word's attention.

The page of the service has the same figure and the same script (`plots/web/attention.js`).
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from limner.apps.report.attention_page import alignment_of, attended_panels, target_of
from limner.apps.report.images import Thumbnails
from limner.data.collection import Collection
from limner.data.dataset import GenerationInput
from limner.decoding.sentence import Sentence
from limner.errors import CollectionError, MediaError, MissingExtraError, RunError
from limner.features.spec import FeatureSpec, attended_area
from limner.inference.collection_features import open_features
from limner.inference.explain import Explanation, explain
from limner.media.image import image_size
from limner.media.modality import VIDEO
from limner.models.phrase_based import PhraseBased
from limner.plots import figures
from limner.runs.records import EvaluatedItem, Evaluation
from limner.runs.trained_model import TrainedModel
from limner.text.vocab import SPECIAL_TOKENS

MAX_WORDS = 40
"""Maximum number of words of a sentence with a heat map."""
HEAT_MAP_SIDE, FIGURE_SIDE = 168, 480
"""Longer side of a heat map and of the figure in pixels."""

logger = logging.getLogger(__name__)


class AttendedWord(NamedTuple):
    """A generated word with its attention."""

    text: str
    gate: float | None
    panel: str | None
    """Heat map over the image or the frames, as data URL."""
    weights: str
    """Weights of the locations, row by row, as bytes in base64; 255 is the largest weight of the word."""


class AttendedImage(NamedTuple):
    """An image or the frames of a video with the attention of each word of a sentence."""

    panel: str | None
    """The image or the frames beside the heat maps, as data URL."""
    url: str | None
    """The image of the figure with the attention of the word that is pointed at; None for a video."""
    grid: tuple[int, int] | None
    """Rows and columns of the locations."""
    box: tuple[float, ...]
    """Left, top, right and bottom of the part of the image that the grid covers, as fractions of its sides."""
    words: tuple[AttendedWord, ...]


class ExplainedSentence(NamedTuple):
    """A generated sentence with its attention plots."""

    item: EvaluatedItem
    target: str
    """Generated sentence; its words are coloured by their gate if there is one."""
    gated: bool
    """Whether the words have a gate."""
    alignment: Markup | None
    """Plot of the alignment with the source words."""
    width: float
    """Width of the alignment plot in inches."""
    image: AttendedImage | None
    """The image with its attention; None without attention over an image that can be read."""


def explain_items(
    model: TrainedModel, evaluation: Evaluation, items: Sequence[EvaluatedItem], thumbnails: Thumbnails
) -> list[ExplainedSentence]:
    """Compute and plot the attention of generated sentences of an evaluation; empty if the model has no attention.

    Raises:
        RunError: the model did not generate these sentences, because it was trained again since the evaluation.
        CollectionError: the collection or an item does not exist any more.
        FeatureError: the features are missing, or were made by another backbone.
    """
    if not all(_is_generated_by(model, item) for item in items):
        raise RunError("the evaluated sentences are not those of the present model; run 'limner evaluate' again")
    collection = Collection.open(evaluation.collection)
    by_id = {item.id: item for item in collection.items(evaluation.split)}
    if missing := [item.id for item in items if item.id not in by_id]:
        raise CollectionError(
            f"{evaluation.collection}: split '{evaluation.split}' has no item '{missing[0]}' any more"
        )
    inputs = [GenerationInput(by_id[item.id], item.source, item.references) for item in items]
    hypotheses = [Sentence(item.ids, item.log_prob or 0.0, 0.0, True) for item in items]
    features = open_features(model, collection, cache_mib=0)  # few rows: read from disk
    return [
        plot_explanation(explanation, item, model.config.features, thumbnails)
        for explanation, item in zip(explain(model, inputs, hypotheses, features), items, strict=True)
        if explanation.alignment is not None or explanation.attention is not None
    ]


def plot_explanation(
    explanation: Explanation, item: EvaluatedItem, features: Sequence[FeatureSpec], thumbnails: Thumbnails
) -> ExplainedSentence:
    """Plot the attention of one sentence."""
    chart, width, image = None, 0.0, None
    if (figure := alignment_of(explanation)) is not None:
        width = float(figure.get_size_inches()[0])
        text = f"Alignment of the words of '{' '.join(explanation.words)}' with the source words"
        chart = Markup(figures.svg(figure, text))
    try:
        image = _attended_image(explanation, item, features, thumbnails)
    except (MediaError, MissingExtraError) as error:
        logger.info("%s", error)
    return ExplainedSentence(item, target_of(explanation), explanation.gate is not None, chart, width, image)


def _is_generated_by(model: TrainedModel, item: EvaluatedItem) -> bool:
    if not all(token < len(model.tokenizer) for token in item.ids):
        return False
    has_copied = SPECIAL_TOKENS.unk in item.ids and isinstance(model.model, PhraseBased)
    return has_copied or model.tokenizer.decode(item.ids, detokenise=True) == item.hypothesis


def _attended_image(
    explanation: Explanation, item: EvaluatedItem, features: Sequence[FeatureSpec], thumbnails: Thumbnails
) -> AttendedImage | None:
    """Plot the attention over the image of a sentence; that of captions as in Xu et al. (2015)."""
    if explanation.image_weights is None or item.image is None:
        return None
    path, words = Path(item.image), explanation.words[:MAX_WORDS]
    weights = explanation.image_weights[: len(words)]
    panels = attended_panels(path, weights, features, side=HEAT_MAP_SIDE, film=item.source is None)
    if not panels:
        return None
    first, *urls = (thumbnails.of_image(panel) for panel in panels)
    gates = [None if explanation.gate is None else float(explanation.gate[number]) for number in range(len(words))]
    url, grid = None, None
    box: tuple[float, ...] = ()
    if not VIDEO.matches(path):
        width, height = image_size(path)
        if (area := attended_area(features, weights.shape[1], (width, height))) is not None:
            url, grid = thumbnails(item.image, FIGURE_SIDE), area.grid
            box = tuple(place / side for place, side in zip(area.box, (width, height) * 2, strict=True))
    scaled = np.round(255 * weights / weights.max(1, keepdims=True).clip(1e-12)).astype(np.uint8)
    encoded = [base64.b64encode(row.tobytes()).decode() for row in scaled]
    shown = zip(words, gates, urls, encoded, strict=True)
    return AttendedImage(first, url, grid, box, tuple(AttendedWord(*word) for word in shown))
