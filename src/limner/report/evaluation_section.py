"""The template variables of one evaluation: scores, gallery, errors by kind, retrieval, regions and attention."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from limner.errors import LimnerError, RunError
from limner.media.modality import Modality
from limner.report.baselines import baselines, other_sentences
from limner.report.error_kinds import LABELS, find_errors, group_errors
from limner.report.gallery import (
    FIRST,
    LARGE,
    MEDIUM,
    Card,
    Chosen,
    cards,
    choose_first,
    choose_gallery,
    choose_to_explain,
    filters,
    mark,
)
from limner.report.gates import gate_section
from limner.report.headlines import WordShares, abilities, choose_headlines, headline, units_of
from limner.report.labels import confused_labels, is_of_labels, reliability_chart
from limner.report.provenance import duration, without_folders
from limner.report.region_drawing import draw_region, region_cards
from limner.report.retrieval_examples import image_queries, recall_charts, sentence_queries
from limner.report.score_tables import generation_rows, retrieval_rows, title_of
from limner.report.thumbnails import Thumbnails
from limner.report.tracks import PREDICTED, RIGHT, by_position_error, draw_track, is_of_tracks, key_positions
from limner.report.word_kinds import Lexicon, read_lexicon
from limner.report.word_marks import mark_words, share_of_right_words, words_of
from limner.runs.records import EvaluatedItem, Evaluation
from limner.text.scripts import are_characters

if TYPE_CHECKING:
    from limner.media.video import FrameSampling
    from limner.runs.trained_model import TrainedModel

logger = logging.getLogger(__name__)

GROUPS = {"sample": "Random sample", "best": "Best", "worst": "Worst", "right": "Without error"}
"""Labels of the groups of a gallery before those of the kinds of errors; the first is shown at first."""


class PageContext(NamedTuple):
    """Objects that the sections of a page share."""

    model: TrainedModel | None
    """The trained model; None if it cannot be loaded."""
    modality: Modality
    """Modality of the features that the model was trained on; images if there are none."""
    frames: FrameSampling | None
    """Frames of the clips that the model reads; None for other features."""
    published: Mapping[str, Any]
    """Published row of the recipe: its name and its values."""
    thumbnails: Thumbnails
    seed: int
    lang: str
    """Target language of the model, or its kind of labels; empty if unknown."""
    vocabulary: int | None
    """Number of tokens of the target vocabulary."""
    evaluations: Sequence[Evaluation]
    """All evaluations of the run."""


class Material(NamedTuple):
    """What the beginning and the section of an evaluation both show."""

    items: list[EvaluatedItem]
    """Items of the evaluation; those of tracks are ordered by their position error."""
    translated: bool
    labels: bool
    """Whether the hypotheses are labels."""
    tracks: bool
    """Whether they are positions."""
    lexicon: Lexicon | None
    """Kinds of the words; None for labels and for languages without word lists."""
    cards: Callable[..., list[Card]]
    """`gallery.cards` for these items."""

    @property
    def unmarked(self) -> frozenset[str]:
        """Words that are neither right nor wrong: the function words of captions."""
        return self.lexicon.function_words if self.lexicon is not None and not self.translated else frozenset()


def material(evaluation: Evaluation, context: PageContext) -> Material:
    """Prepare the items of an evaluation."""
    tracks, labels = is_of_tracks(evaluation), is_of_labels(evaluation)
    items = by_position_error(evaluation.items) if tracks else list(evaluation.items)
    translated = any(item.source is not None for item in items)
    lexicon = None if labels else read_lexicon(context.lang, [one for item in items for one in item.references])
    draw = partial(draw_track, sampling=context.frames) if tracks else draw_region
    prepared = Material(items, translated, labels, tracks, lexicon, cards)
    build = partial(
        cards, items=items, thumbnails=context.thumbnails, unmarked=prepared.unmarked, labels=labels, draw=draw
    )
    return prepared._replace(cards=build)


def evaluation_section(evaluation: Evaluation, context: PageContext) -> dict[str, Any]:
    """Build the template variables of one evaluation."""
    modality, thumbnails = context.modality, context.thumbnails
    published = context.published.get("values", {})
    about = material(evaluation, context)
    items, lexicon = about.items, about.lexicon
    errors = None
    if lexicon is not None and items and all(item.references for item in items):
        errors = [find_errors(item.hypothesis, item.references, lexicon) for item in items]
    chosen = choose_gallery(items, context.seed, errors)
    shown = about.cards(chosen, side=MEDIUM)
    return {
        "evaluation": evaluation,
        "labels": about.labels,
        "reliability": reliability_chart(evaluation) if about.labels else None,
        "title": title_of(evaluation),
        "units": units_of(evaluation, modality),
        "task": "Labels" if about.labels else "Translations" if about.translated else "Captions",
        "translated": about.translated,
        "collection": without_folders(evaluation.collection),
        "command": without_folders(evaluation.command),
        "duration": duration(evaluation.seconds),
        "published": context.published.get("row"),
        "generation": generation_rows(evaluation.scores, published, modality),
        "retrieval": retrieval_rows(evaluation.scores, published, modality),
        "gallery": shown,
        "filters": filters(shown, {**GROUPS, **{str(kind): label for kind, label in LABELS.items()}}),
        "errors": None if errors is None else group_errors(errors),
        "confused_labels": confused_labels(items) if about.labels and not about.tracks else [],
        "lexicon": lexicon,
        "tracks": _tracks([items[one.row] for one in chosen]) if about.tracks else None,
        "curves": recall_charts(evaluation, modality),
        "image_queries": image_queries(evaluation, thumbnails),
        "sentence_queries": sentence_queries(evaluation, thumbnails),
        "regions": region_cards(evaluation.regions, thumbnails),
        "gates": None if evaluation.gates is None else gate_section(evaluation.gates),
        **_attention(evaluation, choose_to_explain(chosen, items), context),
    }


def beginning(evaluation: Evaluation, context: PageContext) -> dict[str, Any]:
    """Build the beginning of the report: six items, one sentence, and headline numbers with baselines."""
    about = material(evaluation, context)
    first = [Chosen(row, ()) for row in choose_first(about.items, context.seed)]
    headlines = choose_headlines(evaluation.scores)
    names = dict.fromkeys(("text_to_image_r1", *(score.name for score in headlines)))
    published = context.published
    compared = baselines(
        evaluation,
        [name for name in names if any(score.name == name for score in evaluation.scores)],
        context.evaluations,
        published.get("values", {}),
        row=published.get("row") or "published",
        vocabulary=context.vocabulary,
        lang=context.lang or "en",
    )
    words = None if about.labels else word_shares(about.items, about.unmarked)
    return {
        "cards": about.cards(first, side=LARGE),
        "regions": region_cards(evaluation.regions[:FIRST], context.thumbnails),
        "tracks": {"predicted": PREDICTED, "right": RIGHT} if about.tracks else None,
        "labels": about.labels,
        "abilities": abilities(evaluation, context.modality, compared, words),
        "headlines": [headline(score, compared[score.name], context.modality) for score in headlines],
        "title": title_of(evaluation),
    }


def word_shares(items: Sequence[EvaluatedItem], unmarked: frozenset[str]) -> WordShares | None:
    """Compute the shares of right words of all sentences, and of the sentences given to other items."""
    own = share_of_right_words(mark(item, unmarked, labels=False) for item in items)
    if own is None:
        return None
    unit = "characters" if are_characters(word for item in items[:1] for word in words_of(item.hypothesis)) else "words"
    if len(items) < 2:
        return WordShares(own, None, unit)
    others = other_sentences([item.hypothesis for item in items])
    return WordShares(
        own,
        share_of_right_words(
            mark_words(text, item.references, unmarked) for text, item in zip(others, items, strict=True)
        ),
        unit,
    )


def _tracks(items: Sequence[EvaluatedItem]) -> dict[str, Any]:
    """Colours of the dots, and the positions in the key frames of each item by its id."""
    return {"predicted": PREDICTED, "right": RIGHT, "positions": {item.id: key_positions(item) for item in items}}


def _attention(evaluation: Evaluation, chosen: Sequence[EvaluatedItem], context: PageContext) -> dict[str, Any]:
    """Sentences with their attention; for translations, the reason if there are none."""
    if is_of_labels(evaluation):
        return {"explained": [], "attention_error": ""}
    try:
        if context.model is None:
            raise RunError("the run directory has no model that can be loaded")
        from limner.report.explanations import explain_items  # imported late: imports torch

        sentences = explain_items(context.model, evaluation, chosen, context.thumbnails)
        return {"explained": sentences, "attention_error": ""}
    except LimnerError as error:
        logger.info("the report of '%s' has no attention: %s", evaluation.name, error)
        translated = any(item.source is not None for item in chosen)
        return {"explained": [], "attention_error": without_folders(str(error)) if translated else ""}
