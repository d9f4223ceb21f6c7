"""Section of the report about attention: alignment, heat maps, and the figure whose script shows one word's attention.

The page of the service has the same figure and the same script (`templates/shared/attention.js`).
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from limner.data.collection import Collection
from limner.data.dataset import GenerationInput
from limner.decoding.ranking import Hypothesis
from limner.errors import CollectionError, MediaError, MissingExtraError, RunError
from limner.features.spec import FeatureSpec
from limner.inference.collection_features import open_features
from limner.inference.explain import Explanation, Weights, explain
from limner.media.image import image_size
from limner.media.modality import VIDEO
from limner.models.capabilities import SearchingModel
from limner.report import attention_plots, plots
from limner.report.attention_page import attended_area, attended_panels, target_of
from limner.report.images import Thumbnails
from limner.runs.records import EvaluatedItem, Evaluation
from limner.runs.trained_model import TrainedModel
from limner.text.vocab import SPECIAL_TOKENS

MAX_WORDS = 40
"""Maximum number of words of a sentence with a heat map."""
HEAT_MAP_SIDE, FIGURE_SIDE = 168, 480
"""Longer side of a heat map and of the figure in pixels."""

logger = logging.getLogger(__name__)


class HeatMap(NamedTuple):
    """The attention of a word over an image, or the image."""

    url: str
    word: str
    gate: float | None


class AttendedWord(NamedTuple):
    """A generated word with its attention."""

    text: str
    weights: str
    """Weights of the locations, row by row, as bytes in base64; 255 is the largest weight of the word."""
    gate: float | None


class AttendedFigure(NamedTuple):
    """An image with the attention of each word of a sentence."""

    url: str
    grid: tuple[int, int]
    """Rows and columns of the locations."""
    box: tuple[float, float, float, float]
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
    heat_maps: list[HeatMap]
    """The image or the frames of a video, then the attention of each word."""
    figure: AttendedFigure | None
    """The image with the attention of the word that is pointed at; None for the frames of a video."""


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
    hypotheses = [Hypothesis(item.ids, item.log_prob or 0.0, 0.0, True) for item in items]
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
    chart, width = None, 0.0
    if explanation.alignment is not None and explanation.source:
        figure = attention_plots.alignment(
            explanation.source,
            explanation.target,
            explanation.alignment,
            gates=explanation.gate,
            phrases=explanation.phrases,
        )
        width = float(figure.get_size_inches()[0])
        text = f"Alignment of the words of '{' '.join(explanation.words)}' with the source words"
        chart = Markup(plots.svg(figure, text))
    words, weights = explanation.words[:MAX_WORDS], explanation.image_weights
    gates = [None if explanation.gate is None else float(explanation.gate[number]) for number in range(len(words))]
    maps, attended = [], None
    if weights is not None and item.image is not None:
        path, weights = Path(item.image), weights[: len(words)]
        try:
            maps = _heat_maps(path, weights, words, gates, features, thumbnails, film=item.source is None)
            attended = _figure(path, weights, words, gates, features, thumbnails)
        except (MediaError, MissingExtraError) as error:
            logger.info("%s", error)
    return ExplainedSentence(item, target_of(explanation), explanation.gate is not None, chart, width, maps, attended)


def _is_generated_by(model: TrainedModel, item: EvaluatedItem) -> bool:
    if not all(token < len(model.tokenizer) for token in item.ids):
        return False
    has_copied = SPECIAL_TOKENS.unk in item.ids and isinstance(model.model, SearchingModel)
    return has_copied or model.tokenizer.decode(item.ids, detokenise=True) == item.hypothesis


def _heat_maps(
    path: Path,
    weights: Weights,
    words: Sequence[str],
    gates: Sequence[float | None],
    features: Sequence[FeatureSpec],
    thumbnails: Thumbnails,
    *,
    film: bool,
) -> list[HeatMap]:
    """The image or the frames of a video, and the attention of each word; those of captions as in Xu et al. (2015)."""
    panels = attended_panels(path, weights, features, side=HEAT_MAP_SIDE, film=film)
    shown = zip(panels, ["original image", *words], [None, *gates], strict=False)
    urls = [(thumbnails.of_image(panel), word, gate) for panel, word, gate in shown]
    return [HeatMap(url, word, gate) for url, word, gate in urls if url is not None]


def _figure(
    path: Path,
    weights: Weights,
    words: Sequence[str],
    gates: Sequence[float | None],
    features: Sequence[FeatureSpec],
    thumbnails: Thumbnails,
) -> AttendedFigure | None:
    """The figure of a sentence; None without attention over the locations of an image."""
    if VIDEO.matches(path):
        return None
    width, height = image_size(path)
    area = attended_area(features, weights.shape[1], (width, height))
    if area is None or (url := thumbnails(str(path), FIGURE_SIDE)) is None:
        return None
    left, top, right, bottom = area.box
    box = (left / width, top / height, right / width, bottom / height)
    shown = zip(words, weights, gates, strict=True)
    return AttendedFigure(
        url, area.grid, box, tuple(AttendedWord(word, _encode(row), gate) for word, row, gate in shown)
    )


def _encode(weights: Weights) -> str:
    scaled = np.round(255 * weights / max(float(weights.max()), 1e-12)).astype(np.uint8)
    return base64.b64encode(scaled.tobytes()).decode()
