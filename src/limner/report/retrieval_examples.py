"""Examples of retrieval in the report: queries with their first results and the right result at the end."""

from __future__ import annotations

from typing import NamedTuple

from markupsafe import Markup

from limner.media.modality import Modality
from limner.report import plots
from limner.report.score_tables import retrieval_titles
from limner.report.thumbnails import Thumbnails
from limner.runs.records import EvaluatedItem, Evaluation, ImageToTextExample, TextToImageExample

QUERIES = 6
"""Number of queries shown for each direction of retrieval."""
QUERY_SIDE, RESULT_SIDE = 256, 144
"""Longer side of the image of a query and of a result in pixels."""


class ImageQuery(NamedTuple):
    """An image with the first sentences."""

    query: ImageToTextExample
    thumbnail: str | None
    own: str
    """A sentence of the image that is not among the results; empty if a result is one."""


class RankedImage(NamedTuple):
    """An image of a strip of results."""

    id: str
    thumbnail: str | None
    has_file: bool
    rank: int
    right: bool
    caption: str
    """First reference of the image; empty without one."""


class SentenceQuery(NamedTuple):
    """A sentence with the first images, and the image that it describes at the end."""

    query: TextToImageExample
    results: tuple[RankedImage, ...]
    described: RankedImage


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


def image_queries(evaluation: Evaluation, thumbnails: Thumbnails) -> list[ImageQuery]:
    """Build the image queries with their thumbnails."""
    queries = evaluation.retrieval.image_to_text[:QUERIES] if evaluation.retrieval else ()
    by_id = _by_id(evaluation)
    built = []
    for query in queries:
        found = any(result.right for result in query.top)
        item = by_id.get(query.id)
        own = "" if found or item is None or not item.references else item.references[0]
        built.append(ImageQuery(query, thumbnails(query.image, QUERY_SIDE), own))
    return built


def sentence_queries(evaluation: Evaluation, thumbnails: Thumbnails) -> list[SentenceQuery]:
    """Build the sentence queries: the first results, and at the end the described image with its rank."""
    queries = evaluation.retrieval.text_to_image[:QUERIES] if evaluation.retrieval else ()
    by_id = _by_id(evaluation)

    def ranked(name: str, image: str | None, rank: int, *, right: bool) -> RankedImage:
        item = by_id.get(name)
        caption = item.references[0] if item is not None and item.references else ""
        return RankedImage(name, thumbnails(image, RESULT_SIDE), image is not None, rank, right, caption)

    built = []
    for query in queries:
        results = tuple(
            ranked(one.id, one.image, place, right=one.right) for place, one in enumerate(query.top, start=1)
        )
        images = {one.id: one.image for one in query.top}
        item = by_id.get(query.image_id)
        image = images.get(query.image_id, None if item is None else item.image)
        built.append(SentenceQuery(query, results, ranked(query.image_id, image, query.rank, right=True)))
    return built


def _by_id(evaluation: Evaluation) -> dict[str, EvaluatedItem]:
    return {item.id: item for item in evaluation.items}
