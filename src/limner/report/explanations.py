"""What sentences were made from: the report's part about attention."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from limner.data.collection import Collection
from limner.data.dataset import GenerationInput
from limner.data.examples import Item
from limner.decoding.hypotheses import Hypothesis
from limner.errors import CollectionError, MediaError, RunError
from limner.features.preprocessing import Preprocessing, encoded_box
from limner.features.spec import FeatureSpec
from limner.inference.collection_features import open_features
from limner.inference.explain import Explanation, explain
from limner.media.image import open_image
from limner.report import attention_plots, plots
from limner.report.attention_page import grid_of
from limner.report.thumbnails import Thumbnails
from limner.runs.records import EvaluatedItem, Evaluation
from limner.runs.trained_model import TrainedModel

LOOKS = 40
"""Of a longer sentence the first words have a small picture."""
SIDE = 168
"""Longer side of one, in pixels."""

logger = logging.getLogger(__name__)


class Explained(NamedTuple):
    """A sentence and what it was made from, as the page shows it."""

    item: EvaluatedItem
    target: str
    """What was said; its words in colours where there is a gate."""
    gated: bool
    matrix: Markup | None
    """The source words each word came from."""
    width: float
    """Of that drawing, in inches."""
    looks: list[tuple[str, str]]
    """Address of a small picture and what stands beneath it: the picture first, then where each word looked."""


def explain_items(
    model: TrainedModel, evaluation: Evaluation, items: Sequence[EvaluatedItem], thumbnails: Thumbnails
) -> list[Explained]:
    """Read sentences once more, and draw what they were made from; nothing where the model does not tell.

    Args:
        model: that said them, of an ensemble the first.
        evaluation: where they were said.
        items: some of its items.
        thumbnails: the pictures of the page.

    Raises:
        RunError: the model cannot have said this; it was trained again, or the evaluation is an old one.
        CollectionError: the collection is not where it was, or has no such items any more.
        FeatureError: it has lost the features, or has others.
    """
    if not all(_said_by(model, item) for item in items):
        raise RunError("these sentences are not the model's as it is now; run 'limner evaluate' again")
    collection = Collection.open(evaluation.collection)
    there = {item.id: item for item in collection.items(evaluation.split)}
    queries = [GenerationInput(_found(there, one.id, evaluation), one.source, one.references) for one in items]
    said = [Hypothesis(one.ids, one.log_prob or 0.0, 0.0, True) for one in items]
    made = explain(model, queries, said, open_features(model, collection, cache_mib=0))  # a few rows, from the disk
    return [
        _show(one, item, model.config.features, thumbnails)
        for one, item in zip(made, items, strict=True)
        if one.alignment is not None or one.attention is not None
    ]


def _said_by(model: TrainedModel, item: EvaluatedItem) -> bool:
    known = all(id_ < len(model.tokenizer) for id_ in item.ids)
    return known and model.tokenizer.decode(item.ids, detokenise=True) == item.hypothesis


def _found(there: dict[str, Item], name: str, evaluation: Evaluation) -> Item:
    if name not in there:
        raise CollectionError(f"{evaluation.collection}: item '{name}' is no more in split '{evaluation.split}'")
    return there[name]


def _show(one: Explanation, item: EvaluatedItem, features: Sequence[FeatureSpec], thumbnails: Thumbnails) -> Explained:
    words, gates = one.target[:-1], None if one.gate is None else one.gate[:-1]
    target = " ".join(words) if gates is None else Markup(attention_plots.beta_spans(words, gates))
    matrix, width = None, 0.0
    if one.alignment is not None and one.source:
        figure = attention_plots.alignment(one.source, one.target, one.alignment, betas=one.gate)
        width = float(figure.get_size_inches()[0])
        matrix = Markup(plots.svg(figure, f"The source words that each word of '{' '.join(words)}' came from"))
    return Explained(item, target, gates is not None, matrix, width, list(_looks(one, item, features, thumbnails)))


def _looks(
    one: Explanation, item: EvaluatedItem, features: Sequence[FeatureSpec], thumbnails: Thumbnails
) -> Iterable[tuple[str, str]]:
    """The picture, then for each word its light on it; what is over the budget is left out."""
    if one.attention is None or item.image is None:
        return
    places = one.attention.shape[1]
    fitting = [(spec, grid) for spec in features if (grid := grid_of(spec, places)) is not None]
    if not fitting:
        return
    spec, grid = fitting[0]
    try:
        picture = open_image(Path(item.image))
    except MediaError as error:
        logger.info("%s", error)
        return
    words = one.target[:-1][:LOOKS]
    box = encoded_box(picture.size, Preprocessing.parse(spec.preprocessing, f"features '{spec.name}'"))
    shown = attention_plots.panels(picture, one.attention[: len(words)], grid, box=box, side=SIDE)
    told = words if one.gate is None else [f"{word} ({gate:.2f})" for word, gate in zip(words, one.gate, strict=False)]
    for panel, beneath in zip(shown, ["the picture", *told], strict=True):
        if (address := thumbnails.drawn(panel)) is not None:
            yield address, beneath
