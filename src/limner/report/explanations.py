"""Section of the report about attention."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from limner.data.collection import Collection
from limner.data.dataset import GenerationInput
from limner.data.examples import Item
from limner.decoding.ranking import Hypothesis
from limner.errors import CollectionError, MediaError, MissingExtraError, RunError
from limner.features.spec import FeatureSpec
from limner.inference.collection_features import open_features
from limner.inference.explain import Explanation, explain
from limner.models.capabilities import SearchingModel
from limner.report import attention_plots, plots
from limner.report.attended_figure import AttendedFigure, attended_figure
from limner.report.attention_page import attended_panels
from limner.report.thumbnails import Thumbnails
from limner.runs.records import EvaluatedItem, Evaluation
from limner.runs.trained_model import TrainedModel
from limner.text.vocab import SPECIAL_TOKENS

MAX_HEAT_MAPS = 40
"""Maximum number of words of a sentence with a heat map."""
HEAT_MAP_SIDE = 168
"""Longer side of a heat map in pixels."""

logger = logging.getLogger(__name__)


class HeatMap(NamedTuple):
    """A panel of the attention over an image, as data URL."""

    url: str
    word: str
    gate: float | None = None


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
    """The image, then the attention of each word; of a caption, the panels of a film strip."""
    figure: AttendedFigure | None
    """The image with the attention of the word that is pointed at; None for the frames of a video."""


def explain_items(
    model: TrainedModel, evaluation: Evaluation, items: Sequence[EvaluatedItem], thumbnails: Thumbnails
) -> list[ExplainedSentence]:
    """Compute and plot the attention of generated sentences; empty if the model has no attention.

    Args:
        model: the model that generated the sentences; the first one of an ensemble.
        evaluation: the evaluation of the items.
        items: items of the evaluation.
        thumbnails: images of the page.

    Raises:
        RunError: the model did not generate these sentences, because it was trained again since the evaluation.
        CollectionError: the collection or an item does not exist any more.
        FeatureError: the features are missing, or were made by another backbone.
    """
    if not all(_is_generated_by(model, item) for item in items):
        raise RunError("the evaluated sentences are not those of the present model; run 'limner evaluate' again")
    collection = Collection.open(evaluation.collection)
    by_id = {item.id: item for item in collection.items(evaluation.split)}
    inputs = [GenerationInput(_find(by_id, item.id, evaluation), item.source, item.references) for item in items]
    hypotheses = [Hypothesis(item.ids, item.log_prob or 0.0, 0.0, True) for item in items]
    features = open_features(model, collection, cache_mib=0)  # few rows: read from disk
    return [
        _plot(explanation, item, model.config.features, thumbnails)
        for explanation, item in zip(explain(model, inputs, hypotheses, features), items, strict=True)
        if explanation.alignment is not None or explanation.attention is not None
    ]


def _is_generated_by(model: TrainedModel, item: EvaluatedItem) -> bool:
    if not all(token < len(model.tokenizer) for token in item.ids):
        return False
    has_copied = SPECIAL_TOKENS.unk in item.ids and isinstance(model.model, SearchingModel)
    return has_copied or model.tokenizer.decode(item.ids, detokenise=True) == item.hypothesis


def _find(by_id: dict[str, Item], name: str, evaluation: Evaluation) -> Item:
    if name not in by_id:
        raise CollectionError(f"{evaluation.collection}: split '{evaluation.split}' has no item '{name}' any more")
    return by_id[name]


def _plot(
    explanation: Explanation, item: EvaluatedItem, features: Sequence[FeatureSpec], thumbnails: Thumbnails
) -> ExplainedSentence:
    words, gates = explanation.words, None if explanation.gate is None else explanation.gate[:-1]
    target = " ".join(words) if gates is None else Markup(attention_plots.gate_spans(words, gates))
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
        chart = Markup(plots.svg(figure, f"Alignment of the words of '{' '.join(words)}' with the source words"))
    heat_maps = list(_heat_maps(explanation, item, features, thumbnails))
    shown = attended_figure(explanation, item.image, features, thumbnails)
    return ExplainedSentence(item, target, gates is not None, chart, width, heat_maps, shown)


def _heat_maps(
    explanation: Explanation, item: EvaluatedItem, features: Sequence[FeatureSpec], thumbnails: Thumbnails
) -> Iterator[HeatMap]:
    """Yield the image or the frames of a video, and the attention of each word, as data URLs.

    The heat maps of captions are those of Xu et al. (2015).
    """
    if explanation.image_weights is None or item.image is None:
        return
    words = explanation.words[:MAX_HEAT_MAPS]
    try:
        weights, film = explanation.image_weights[: len(words)], item.source is None
        panels = attended_panels(Path(item.image), weights, features, side=HEAT_MAP_SIDE, film=film)
    except (MediaError, MissingExtraError) as error:
        logger.info("%s", error)
        return
    if not panels:
        return
    gates = (
        [None] * len(words) if explanation.gate is None else [float(gate) for gate in explanation.gate[: len(words)]]
    )
    for panel, word, gate in zip(panels, ["original image", *words], [None, *gates], strict=True):
        if (url := thumbnails.of_image(panel)) is not None:
            yield HeatMap(url, word, gate)
