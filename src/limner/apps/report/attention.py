"""Attention: plots of alignments and of images in a folder with a page, and the section of the report.

The report and the page of the service show the attention of a word by the same script (`plots/web/attention.js`).
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from PIL import Image

from limner.apps.report.images import Thumbnails, film_strip, open_stills, strip_grid
from limner.apps.report.rendering import STYLES, render_page
from limner.data.collection import Collection
from limner.data.dataset import GenerationInput
from limner.decoding.sentence import Sentence
from limner.errors import CollectionError, MediaError, MissingExtraError, RunError, SettingsError
from limner.features.spec import FeatureSpec, attended_area, grid_of
from limner.files import write_text
from limner.inference.explain import Explanation, count_locations, explain
from limner.inference.features import open_features
from limner.media.image import image_size
from limner.media.modality import VIDEO
from limner.media.video import read_frames
from limner.models.phrase_based import PhraseBased
from limner.models.video_captioner import VideoCaptionerSettings
from limner.plots import figures
from limner.plots.attention import AttentionStrip, alignment, attention_strips, gate_spans, panels
from limner.progress import Progress
from limner.runs.evaluations import EvaluatedItem, Evaluation
from limner.runs.trained_model import TrainedModel
from limner.text.vocab import SPECIAL_TOKENS

PAGE = "index.html"
STRIP_SIDE = 200  # longer side of a panel of a strip in pixels


class ModelAttention(NamedTuple):
    """Attention of one model for a sentence."""

    explanation: Explanation
    features: Sequence[FeatureSpec] = ()
    """Specifications of the model's features, which define the grid of image locations or the frames."""
    name: str = ""  # name of the model, printed beside its strip; empty for none


class AttendedSentence(NamedTuple):
    """A caption or a translation with its attention by one or several models."""

    source: str  # name of the image file, or source sentence
    image: Path | None
    attention: Sequence[ModelAttention]
    """Attention of each model, from top to bottom; the words come from the first model. Empty for no plots."""


def save_attention(
    sentences: Sequence[AttendedSentence], folder: Path, title: str, *, on_progress: Progress | None = None
) -> Path:
    """Plot the alignment, the attention over the image and the image gate of captions or translations; return the page.

    The plots are named by the number of the sentence: 1-alignment.png, 1-image.png; existing files of these names are
    replaced. `title` names the sentences on the page: 'captions' or 'translations'.
    """
    entries = []
    for number, sentence in enumerate(sentences, start=1):
        if sentence.attention:
            target = target_of(sentence.attention[0].explanation)
            files = list(_save_plots(sentence, folder, number))
            entries.append({"number": number, "source": sentence.source, "target": target, "plots": files})
        if on_progress is not None:
            on_progress(number, len(sentences))
    explained = [attended.explanation for sentence in sentences for attended in sentence.attention]
    kinds = ("alignment", "attention", "gate")
    has = {kind: any(getattr(explanation, kind) is not None for explanation in explained) for kind in kinds}
    page = render_page("attention.html", styles=STYLES[:1], scripts=(), sentences=title, entries=entries, has=has)
    write_text(folder / PAGE, page)
    return folder / PAGE


def attended_panels(
    path: Path, weights: ArrayLike, features: Sequence[FeatureSpec], *, side: int, film: bool = False
) -> list[Image.Image]:
    """Create an image, or a strip of the frames of a video, and a heat map of the attention over it for each word.

    The weights are (T, L); the features define the grid of the L locations or the frames. `side` is the longer side of
    a heat map in pixels, and half the longer side of a strip of frames. With `film` the heat maps are grey with white
    highlights, as in Xu et al. (2015). The result is empty if no features have L locations or frames.
    """
    values = np.asarray(weights, dtype=np.float64)
    locations = values.shape[1]
    for spec in features:
        if _has_frames(spec, locations):
            rows, columns = strip_grid(locations)
            assert spec.frames is not None
            frames = read_frames(path, spec.frames) if VIDEO.matches(path) else open_stills(path)
            black = [Image.new("RGB", frames[0].size)] * (spec.shape[0] - len(frames))  # in place of missing frames
            strip = film_strip([*frames, *black], 2 * side // columns, columns)
            cells = np.pad(values, ((0, 0), (0, rows * columns - locations)))  # the empty places of the strip
            return panels(strip, cells, (rows, columns), side=2 * side, smooth=False, colour=not film)
    if not any(grid_of(spec, locations) for spec in features):
        return []
    (image,) = open_stills(path, 1)
    area = attended_area(features, locations, image.size)
    assert area is not None, "a table of features has these locations"
    return panels(image, values, area.grid, box=area.box, side=side, colour=not film)


def require_attention(model: TrainedModel, where: Path | str) -> None:
    """Raise SettingsError if a captioner, whose run directory is `where`, has no attention that can be plotted."""
    locations = count_locations(model)
    specs = model.config.features
    if locations is None or not any(_has_frames(spec, locations) or grid_of(spec, locations) for spec in specs):
        remedy = "use one that has, such as 'show_attend_tell' trained on features of kind grid"
        if isinstance(model.recipe.model, VideoCaptionerSettings):
            remedy = "train it with model.frames=attention"
        name = model.recipe.model.name
        raise SettingsError(
            f"{where}: model '{name}' has no attention over image locations or frames to plot; {remedy}"
        )


def alignment_of(explanation: Explanation) -> Figure | None:
    """Plot the alignment of a translation with its source; None if there is none."""
    if explanation.alignment is None or not explanation.source:
        return None
    gates, phrases = explanation.gate, explanation.phrases
    return alignment(explanation.source, explanation.target, explanation.alignment, gates=gates, phrases=phrases)


def target_of(explanation: Explanation) -> str:
    """The target sentence; its words are coloured by their gates, if the model has gates."""
    if explanation.gate is None:
        return " ".join(explanation.words)
    return Markup(gate_spans(explanation.words, explanation.gate[:-1]))


def _save_plots(sentence: AttendedSentence, folder: Path, number: int) -> Iterator[tuple[str, str]]:
    """Write the plots of one sentence; yield the name and the description of each file."""
    first = sentence.attention[0].explanation
    if (figure := alignment_of(first)) is not None:
        yield figures.save_plot(figure, folder / f"{number}-alignment.png").name, "alignment of target and source words"
    strips = []
    for explanation, features, name in sentence.attention:
        weights, gates, count = explanation.image_weights, explanation.gate, len(first.words)
        if weights is not None and sentence.image is not None:
            film = first.alignment is None  # heat maps of captions as in Xu et al. (2015)
            shown = attended_panels(sentence.image, weights[:count], features, side=STRIP_SIDE, film=film)
            strips += [AttentionStrip(shown, None if gates is None else gates[:count], name)] if shown else []
    if strips:
        file = figures.save_plot(attention_strips(first.words, strips), folder / f"{number}-image.png").name
        yield file, f"attention over the image for each word of '{' '.join(first.words)}'"


def _has_frames(spec: FeatureSpec, locations: int) -> bool:
    """Whether `locations` are the frames of a video with these features."""
    return spec.frame_by_frame and spec.shape[0] == locations


MAX_WORDS = 40  # maximum number of words of a sentence with a heat map
HEAT_MAP_SIDE, FIGURE_SIDE = 168, 480  # longer side of a heat map and of the figure in pixels

logger = logging.getLogger(__name__)


class AttendedWord(NamedTuple):
    """A generated word with its attention."""

    text: str
    gate: float | None
    panel: str | None  # heat map over the image or the frames, as data URL
    weights: str  # weights of the locations, row by row, as bytes in base64; 255 is the largest weight of the word


class AttendedImage(NamedTuple):
    """An image or the frames of a video with the attention of each word of a sentence."""

    panel: str | None  # the image or the frames beside the heat maps, as data URL
    url: str | None  # the image of the figure with the attention of the word that is pointed at; None for a video
    grid: tuple[int, int] | None
    box: tuple[float, ...]
    """Left, top, right and bottom of the part of the image that the grid covers, as fractions of its sides."""
    words: tuple[AttendedWord, ...]


class ExplainedSentence(NamedTuple):
    """A generated sentence with its attention plots."""

    item: EvaluatedItem
    target: str  # generated sentence; its words are coloured by their gate if there is one
    gated: bool
    alignment: Markup | None
    width: float  # width of the alignment plot in inches
    image: AttendedImage | None  # the image with its attention; None without attention over an image that can be read


def explain_items(
    model: TrainedModel, evaluation: Evaluation, items: Sequence[EvaluatedItem], thumbnails: Thumbnails
) -> list[ExplainedSentence]:
    """Compute and plot the attention of generated sentences of an evaluation; empty if the model has no attention."""
    if not all(_is_generated_by(model, item) for item in items):
        raise RunError("the model has changed since the evaluation; run 'limner evaluate' again")
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
    """Plot the attention over the image of a sentence; captions are plotted as in Xu et al. (2015)."""
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
