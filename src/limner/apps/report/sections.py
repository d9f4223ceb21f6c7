"""Sections of the report: evaluations with gallery, retrieval, regions and attention; diagnoses and grounding."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image, ImageDraw

from limner.apps.report import gallery
from limner.apps.report.images import Thumbnails, open_regions
from limner.apps.report.rendering import without_folders
from limner.apps.report.scores import headlines, label, score_tables, title_of
from limner.errors import LimnerError, MediaError, RunError, counted
from limner.evaluation.measurements import Diagnosis, Grounding, GroundingExample
from limner.media.image import open_image
from limner.media.modality import Modality
from limner.metrics.base import format_value
from limner.metrics.classification import METRICS_OF_LABELS
from limner.plots.attention import panels
from limner.progress import duration
from limner.runs.evaluations import EvaluatedItem, Evaluation, GateStatistics, ImageRegions
from limner.runs.pretrained import results_folder
from limner.text.labels import read_predictions

if TYPE_CHECKING:
    from limner.runs.trained_model import TrainedModel

LARGE, MEDIUM = 512, 320  # longer side of the images of the beginning and of the gallery in pixels
QUERIES = 6  # number of queries shown for each direction of retrieval
QUERY_SIDE, RESULT_SIDE = 256, 144  # longer side of the image of a query and of a result in pixels
SHOWN_CONFUSIONS = 10
PUBLISHED_GATES = {0.5: 0.20, 0.8: 0.08}
"""Fraction of the generated words whose gate is above each threshold in Calixto et al. (2017), section 5.2: English to
German, Multi30k."""
MIN_COUNT, GATED_WORDS = 5, 20
"""Minimum number of occurrences of the words with the highest mean gates, and the number of these words."""

IMAGE_CONTROLS = (
    "Images: the item's own (right), another item's (shuffled), the mean over the training split (mean), features "
    "of zeros (zero), no image (none)."
)
HEAT_MAP_SIDE = 320  # longer side of a heat map in pixels
BOX_COLOUR = "#ffc914"

logger = logging.getLogger(__name__)


class PageContext(NamedTuple):
    """Objects that the sections of a page share."""

    model: TrainedModel | None  # the trained model; None if it cannot be loaded
    modality: Modality  # modality of the features that the model was trained on; images if there are none
    published: Mapping[str, Any]  # published row of the recipe: its name and its values
    thumbnails: Thumbnails
    lang: str  # target language of the model, or its kind of labels; empty if unknown
    vocabulary: int | None
    evaluations: Sequence[Evaluation]


def first_section(evaluation: Evaluation, context: PageContext) -> dict[str, Any]:
    """Build the beginning of the report: six items, and headline numbers with baselines."""
    items, labels = _shown_items(evaluation), is_of_labels(evaluation)
    first = gallery.choose_first(items, gallery.SEED)
    chance: dict[str, Any] = {"vocabulary": context.vocabulary, "lang": context.lang or "en"}
    return {
        "cards": gallery.cards(dict.fromkeys(first, ""), items, context.thumbnails, side=LARGE, labels=labels),
        "regions": region_cards(evaluation.regions[: gallery.FIRST], context.thumbnails),
        "tracks": gallery.is_of_tracks(evaluation),
        "labels": labels,
        "headlines": headlines(evaluation, context.evaluations, context.published, context.modality, **chance),
        "title": title_of(evaluation),
    }


def evaluation_section(evaluation: Evaluation, context: PageContext) -> dict[str, Any]:
    """Build the template variables of one evaluation."""
    modality, thumbnails, labels = context.modality, context.thumbnails, is_of_labels(evaluation)
    items = _shown_items(evaluation)
    translated = any(item.source is not None for item in items)
    chosen = gallery.choose_gallery(items, gallery.SEED)
    sizes = Counter(chosen.values())
    task = "Labels" if labels else "Translations" if translated else "Captions"
    return {
        "evaluation": evaluation,
        "labels": labels,
        "title": title_of(evaluation),
        "units": "sentences" if translated else "regions" if evaluation.regions else modality.plural,
        "task": task,
        "translated": translated,
        "collection": without_folders(evaluation.collection),
        "command": without_folders(evaluation.command),
        "duration": duration(evaluation.seconds),
        "published": context.published.get("row"),
        "scores": score_tables(evaluation.scores, context.published.get("values", {}), modality, task),
        "gallery": gallery.cards(chosen, items, thumbnails, side=MEDIUM, labels=labels),
        "filters": [(name, label, sizes[name]) for name, label in gallery.GROUPS.items() if sizes[name]],
        "confused_labels": confused_labels(items) if labels and not gallery.is_of_tracks(evaluation) else [],
        "tracks": gallery.is_of_tracks(evaluation),
        "image_queries": image_queries(evaluation, thumbnails),
        "sentence_queries": sentence_queries(evaluation, thumbnails),
        "shortlist": evaluation.retrieval and evaluation.retrieval.shortlist,
        "regions": region_cards(evaluation.regions, thumbnails),
        "gates": None if evaluation.gates is None else gate_section(evaluation.gates),
        **_attention_part(evaluation, gallery.choose_to_explain(chosen, items), context),
    }


def is_of_labels(evaluation: Evaluation) -> bool:
    """Whether an evaluation is of labels rather than of sentences."""
    names = {name for metrics in METRICS_OF_LABELS.values() for name in metrics}
    return any(score.name in names for score in evaluation.scores)


def confused_labels(items: Iterable[EvaluatedItem]) -> list[tuple[str, str, int]]:
    """Count the pairs of a wrong predicted label and the right label, the most frequent first."""
    pairs = Counter[tuple[str, str]]()
    for item in items:
        right = "".join(item.references[:1]).split()
        predicted = [prediction.label for prediction in read_predictions(item.hypothesis)]
        pairs.update(pair for pair in zip(predicted, right, strict=False) if pair[0] != pair[1])
    most = sorted(pairs.items(), key=lambda entry: (-entry[1], entry[0]))[:SHOWN_CONFUSIONS]
    return [(predicted, right, count) for (predicted, right), count in most]


def gate_section(gates: GateStatistics) -> dict[str, Any]:
    """Gate statistics of a split beside the published statistics, and the words with the highest mean gate."""
    frequent = [entry for entry in gates.words if entry[2] >= MIN_COUNT]
    published = [PUBLISHED_GATES.get(threshold) for threshold in gates.thresholds]
    return {
        "thresholds": gates.thresholds,
        "parts": gates.parts,
        "published": published if any(fraction is not None for fraction in published) else (),
        "min_count": MIN_COUNT if frequent else 1,
        "words": sorted(frequent or gates.words, key=lambda entry: (-entry[1], -entry[2], entry[0]))[:GATED_WORDS],
    }


def region_cards(images: Sequence[ImageRegions], thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """Images of a dense captioner with drawings of the detected regions; None where an image cannot be shown."""
    shown = []
    for regions in images:
        drawing = open_regions(regions.image, [(region.box, region.text) for region in regions.detected])
        shown.append({"regions": regions, "thumbnail": None if drawing is None else thumbnails.of_image(drawing)})
    return shown


def image_queries(evaluation: Evaluation, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """The image queries; 'own' is a sentence of the image if none is among the results."""
    references = {item.id: item.references for item in evaluation.items}
    queries = []
    for query in evaluation.retrieval.image_to_text[:QUERIES] if evaluation.retrieval else ():
        own = "" if any(result.right for result in query.top) else next(iter(references.get(query.id, ())), "")
        queries.append({"query": query, "thumbnail": thumbnails(query.image, QUERY_SIDE), "own": own})
    return queries


def sentence_queries(evaluation: Evaluation, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """The sentence queries: the first results, and at the end the described image with its rank."""
    items = {item.id: item for item in evaluation.items}

    def ranked(name: str, image: str | None, rank: int, *, right: bool) -> dict[str, Any]:
        caption = items[name].references[0] if name in items and items[name].references else ""
        shown = {"id": name, "thumbnail": thumbnails(image, RESULT_SIDE), "has_file": image is not None}
        return {**shown, "rank": rank, "right": right, "caption": caption}

    built = []
    for query in evaluation.retrieval.text_to_image[:QUERIES] if evaluation.retrieval else ():
        results = [ranked(hit.id, hit.image, place, right=hit.right) for place, hit in enumerate(query.top, start=1)]
        images = {name: item.image for name, item in items.items()} | {hit.id: hit.image for hit in query.top}
        described = ranked(query.image_id, images.get(query.image_id), query.rank, right=True)
        built.append({"query": query, "results": results, "described": described})
    return built


def _shown_items(evaluation: Evaluation) -> list[EvaluatedItem]:
    """The items of an evaluation; items with tracks have their position errors as scores."""
    return gallery.by_position_error(evaluation.items) if gallery.is_of_tracks(evaluation) else list(evaluation.items)


def _attention_part(evaluation: Evaluation, chosen: Sequence[EvaluatedItem], context: PageContext) -> dict[str, Any]:
    """Sentences with their attention; for translations, the reason if there are none."""
    if is_of_labels(evaluation):
        return {"explained": [], "attention_error": ""}
    try:
        if context.model is None:
            raise RunError("the run directory has no model that can be loaded")
        from limner.apps.report.attention import explain_items  # imported late: imports torch

        sentences = explain_items(context.model, evaluation, chosen, context.thumbnails)
        return {"explained": sentences, "attention_error": ""}
    except LimnerError as error:
        logger.info("the report of '%s' has no attention: %s", evaluation.name, error)
        translated = any(item.source is not None for item in chosen)
        return {"explained": [], "attention_error": without_folders(str(error)) if translated else ""}


def read_diagnoses(run_folder: Path) -> list[dict[str, Any]]:
    """Read RUN/diagnosis/*.json and build the tables of each diagnosis; RunError if a file is damaged."""
    paths = sorted((results_folder(run_folder) / "diagnosis").glob("*.json"))
    return [_diagnosis_tables(Diagnosis.load(path)) for path in paths]


def read_groundings(run_folder: Path, thumbnails: Thumbnails) -> list[dict[str, Any]]:
    """Read RUN/diagnosis/grounding/*.json and build the tables and heat maps of each; RunError if a file is damaged."""
    paths = sorted((results_folder(run_folder) / "diagnosis" / "grounding").glob("*.json"))
    return [_grounding_tables(Grounding.load(path), thumbnails) for path in paths]


def heat_map_with_boxes(image: Image.Image, example: GroundingExample, grid: tuple[int, int]) -> Image.Image:
    """Draw the attention of a phrase over its image, and the outlines of the boxes of its entity."""
    heat_map = panels(image, [example.attention], grid, box=example.area, side=HEAT_MAP_SIDE)[1]
    across, down = heat_map.width / image.width, heat_map.height / image.height
    draw = ImageDraw.Draw(heat_map)
    for left, top, width, height in example.boxes:
        corners = (left * across, top * down, (left + width) * across, (top + height) * down)
        draw.rectangle(corners, outline=BOX_COLOUR, width=2)
    return heat_map


def _diagnosis_tables(diagnosis: Diagnosis) -> dict[str, Any]:
    """The tables of a diagnosis: title, note, conditions and the labels of their scores by metric."""
    note = f"{counted(diagnosis.sentences, 'sentence')}. {IMAGE_CONTROLS}"
    tables = [("Image ablations", note, diagnosis.image_controls)]
    for masking in diagnosis.masking:
        sentences = counted(masking.sentences, "source sentence")
        note = f"Mask '{masking.mask}': {counted(masking.masked_words, 'word')} in {sentences}."
        if masking.expected_words:
            note += f" Recovered: percentage of the {masking.expected_words:,} reference words that translate them."
        tables.append((f"Masked source words: {masking.mask}", note, masking.conditions))
    if (ambiguity := diagnosis.ambiguity) is not None:
        note = (
            f"{counted(ambiguity.sentences, 'sentence')} with a word that only the image disambiguates; a random "
            f"choice of the sense is correct in {ambiguity.chance:g} %."
        )
        if ambiguity.excluded:
            note += f" {ambiguity.excluded:,} further sentences are left out: no image shows the other sense."
        tables.append(("Ambiguous words", note, ambiguity.conditions))
    labelled = [
        (*table, {score.metric: label(score.metric) for condition in table[2] for score in condition.scores})
        for table in tables
    ]
    return {"diagnosis": diagnosis, "tables": labelled, "format": format_value}


def _grounding_tables(grounding: Grounding, thumbnails: Thumbnails) -> dict[str, Any]:
    def card(example: GroundingExample) -> tuple[str | None, GroundingExample]:
        try:
            heat_map = heat_map_with_boxes(open_image(Path(example.image)), example, grounding.grid)
        except MediaError as error:
            logger.info("%s", error)
            return None, example
        return thumbnails.of_image(heat_map), example

    galleries = {"Best hits": grounding.hits, "Worst misses": grounding.misses}
    return {"grounding": grounding, "galleries": {name: list(map(card, group)) for name, group in galleries.items()}}
