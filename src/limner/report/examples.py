"""Examples of generation and retrieval: the best, a random sample and the worst."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from PIL import Image

from limner.errors import MediaError
from limner.media.image import open_image
from limner.media.modality import Modality
from limner.report import plots
from limner.report.region_drawing import draw_regions
from limner.report.score_tables import retrieval_titles
from limner.report.thumbnails import Thumbnails
from limner.runs.records import EvaluatedItem, Evaluation, ImageRegions

logger = logging.getLogger(__name__)

BEST_AND_WORST = 8
"""Number of items in the galleries of the best and of the worst sentences."""
RANDOM_SAMPLE = 12
"""Number of items in the random sample."""
QUERIES = 6
"""Number of queries shown for each direction of retrieval."""
EXPLAINED = 6
"""Number of sentences shown with their attention."""
LARGE, SMALL = 256, 144
"""Longer side of a thumbnail in pixels."""

Galleries = dict[str, list[EvaluatedItem]]
"""Items by the title of their gallery."""


def choose_galleries(items: Sequence[EvaluatedItem], seed: int) -> Galleries:
    """Choose the best, a random sample and the worst items by sentence score; all items of a small split."""
    scored = sorted(
        (item for item in items if item.sentence_score is not None),
        key=lambda item: item.sentence_score or 0.0,
        reverse=True,
    )
    sample = random.Random(seed).sample(list(items), min(RANDOM_SAMPLE, len(items)))
    if len(items) <= RANDOM_SAMPLE or not scored:
        galleries = {"Random sample": sample}
    else:
        worst = scored[BEST_AND_WORST:][: -BEST_AND_WORST - 1 : -1]
        galleries = {"Best": scored[:BEST_AND_WORST], "Random sample": sample, "Worst": worst}
    return {title: chosen for title, chosen in galleries.items() if chosen}


def choose_to_explain(galleries: Galleries) -> list[EvaluatedItem]:
    """Choose a few sentences of each gallery, at most `EXPLAINED` in total."""
    per_gallery = EXPLAINED // max(1, len(galleries))
    non_empty = ([item for item in items if item.hypothesis] for items in galleries.values())
    return list(dict.fromkeys(item for items in non_empty for item in items[:per_gallery]))


def gallery_cards(
    galleries: Galleries, thumbnails: Thumbnails, draw: Callable[..., Image.Image | None] | None = None
) -> list[dict[str, Any]]:
    """Build the cards of each gallery: items with their thumbnails.

    Args:
        galleries: items of each gallery.
        thumbnails: thumbnails of the page.
        draw: function from an item and the longer side to its drawing; a plain thumbnail replaces None.
    """

    def thumbnail(item: EvaluatedItem) -> str | None:
        drawing = None if draw is None else draw(item, side=LARGE)
        return thumbnails(item.image, LARGE) if drawing is None else thumbnails.of_image(drawing)

    return [
        {"title": title, "cards": [(item, thumbnail(item)) for item in items]} for title, items in galleries.items()
    ]


def recall_charts(evaluation: Evaluation, modality: Modality) -> list[Markup]:
    """Plot the recall curves of both directions of retrieval."""
    retrieval = evaluation.retrieval
    if retrieval is None:
        return []
    charts = []
    for direction, title in retrieval_titles(modality).items():
        if points := getattr(retrieval.curves, direction):
            figure = plots.recall_curves(title, {"this model": points})
            charts.append(Markup(plots.svg(figure, f"Recall curve: {title}")))
    if retrieval.match_curves is None or retrieval.chance_curves is None:
        return charts
    for direction, title in retrieval_titles(modality).items():
        figure = plots.recall_curves(
            f"{title}, first match",
            {"this model": getattr(retrieval.match_curves, direction)},
            getattr(retrieval.chance_curves, direction),
        )
        charts.append(Markup(plots.svg(figure, f"First-match curve: {title}")))
    return charts


def image_query_cards(evaluation: Evaluation, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """Image queries with their thumbnails."""
    queries = evaluation.retrieval.image_to_text[:QUERIES] if evaluation.retrieval else ()
    return [{"query": query, "thumbnail": thumbnails(query.image, LARGE)} for query in queries]


def region_cards(images: Sequence[ImageRegions], thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """Images of a dense captioner: a drawing of the detected regions, and their descriptions with the colours."""
    cards = []
    for one in images:
        url = None
        try:
            if one.image is not None:
                regions = [(region.box, region.text) for region in one.detected]
                url = thumbnails.of_image(draw_regions(open_image(Path(one.image)), regions))
        except MediaError as error:
            logger.info("%s", error)
        cards.append({"regions": one, "thumbnail": url})
    return cards


def sentence_query_cards(evaluation: Evaluation, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """Sentence queries with the thumbnails and the first references of their results."""
    queries = evaluation.retrieval.text_to_image[:QUERIES] if evaluation.retrieval else ()
    references = {item.id: item.references[0] for item in evaluation.items if item.references}
    return [
        {
            "query": query,
            "results": [(one, thumbnails(one.image, SMALL), references.get(one.id, "")) for one in query.top],
        }
        for query in queries
    ]
