"""Sentences and searches to look at: the best, the worst and a fair sample."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from limner.report import plots
from limner.report.score_tables import directions
from limner.report.thumbnails import Thumbnails
from limner.runs.records import EvaluatedItem, Evaluation

BEST_AND_WORST = 8
FAIR_SAMPLE = 12
QUERIES = 6
EXPLAINED = 6
LARGE, SMALL = 256, 144
"""Longer side of a picture, in pixels."""

Galleries = dict[str, list[EvaluatedItem]]
"""Items by the name of their gallery."""


def choose_galleries(items: Sequence[EvaluatedItem], seed: int) -> Galleries:
    """The best, a fair sample and the worst; of a small split, everything."""
    scored = sorted(
        (item for item in items if item.sentence_score is not None),
        key=lambda item: item.sentence_score or 0.0,
        reverse=True,
    )
    fair = random.Random(seed).sample(list(items), min(FAIR_SAMPLE, len(items)))
    if len(items) <= FAIR_SAMPLE or not scored:
        chosen = {"A fair sample": fair}
    else:
        worst = scored[BEST_AND_WORST:][: -BEST_AND_WORST - 1 : -1]
        chosen = {"Best": scored[:BEST_AND_WORST], "A fair sample": fair, "Worst": worst}
    return {title: shown for title, shown in chosen.items() if shown}


def choose_to_explain(galleries: Galleries) -> list[EvaluatedItem]:
    """A few sentences of each gallery, `EXPLAINED` together at most."""
    each = EXPLAINED // max(1, len(galleries))
    said = ([item for item in items if item.hypothesis] for items in galleries.values())
    return list(dict.fromkeys(item for items in said for item in items[:each]))


def show_galleries(galleries: Galleries, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """Each gallery's items with their pictures."""
    return [
        {"title": title, "cards": [(item, thumbnails(item.image, LARGE)) for item in items]}
        for title, items in galleries.items()
    ]


def recall_curves(evaluation: Evaluation, media: str) -> list[Markup]:
    """The curves of a search, both ways."""
    if evaluation.retrieval is None:
        return []
    found, matches = evaluation.retrieval.curves, evaluation.retrieval.match_curves
    chance = evaluation.retrieval.chance_curves
    drawn = []
    for direction, title in directions(media).items():
        if points := getattr(found, direction):
            figure = plots.recall_curves(title, {"this model": points})
            drawn.append(Markup(plots.svg(figure, f"Recall curve: {title}")))
    for direction, title in directions(media).items():
        if matches is not None and chance is not None:
            figure = plots.recall_curves(
                f"{title}, first match", {"this model": getattr(matches, direction)}, getattr(chance, direction)
            )
            drawn.append(Markup(plots.svg(figure, f"Match curve: {title}")))
    return drawn


def picture_queries(evaluation: Evaluation, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """Pictures with the sentences found for them."""
    queries = evaluation.retrieval.image_to_text[:QUERIES] if evaluation.retrieval else ()
    return [{"query": query, "picture": thumbnails(query.image, LARGE)} for query in queries]


def sentence_queries(evaluation: Evaluation, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """Sentences with the pictures found for them, and what was said of these."""
    queries = evaluation.retrieval.text_to_image[:QUERIES] if evaluation.retrieval else ()
    said = {item.id: item.references[0] for item in evaluation.items if item.references}
    return [
        {
            "query": query,
            "found": [(one, thumbnails(one.image, SMALL), said.get(one.id, "")) for one in query.top],
        }
        for query in queries
    ]
