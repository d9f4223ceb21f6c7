"""Folder of attention plots of translations, with an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import ArrayLike
from PIL import Image

from limner.features.preprocessing import Preprocessing, encoded_box
from limner.features.spec import FeatureSpec
from limner.features.spec import grid_of as grid_of
from limner.files import write_text
from limner.inference.explain import Explanation
from limner.media.image import open_image
from limner.media.modality import VIDEO
from limner.media.video import read_frames
from limner.progress import Progress
from limner.report import attention_plots, plots
from limner.report.attention_plots import Box
from limner.report.film_strip import film_strip, open_stills, pad_weights, strip_grid

PAGE = "index.html"


def save_explanations(
    explanations: Sequence[Explanation | None],
    folder: Path,
    *,
    sentences: Sequence[str],
    images: Sequence[Path | str | None] | None = None,
    features: Sequence[FeatureSpec] = (),
    on_progress: Progress | None = None,
) -> Path:
    """Plot the alignment, the attention over the image and the image gate of translations.

    Args:
        explanations: attention weights of each translation; None for a sentence without a plot.
        folder: output folder, created if missing. Existing files of the same names are replaced.
        sentences: source sentences.
        images: image file of each sentence, or None.
        features: specifications of the model's features, which define the grid of image locations.
        on_progress: called with the number of plotted sentences and their total.

    Returns:
        The page `index.html`. The plots beside it are named by the number of the sentence: 1-alignment.png,
        1-image.png.

    Raises:
        RunError: a file cannot be written.
        MediaError: an image cannot be read.
    """
    paths = [None] * len(sentences) if images is None else images
    entries = []
    for number, (explanation, source, path) in enumerate(zip(explanations, sentences, paths, strict=True), start=1):
        if explanation is not None:
            files = list(_save_plots(explanation, folder, number, path, features))
            entries.append({"number": number, "source": source, "target": _target(explanation), "plots": files})
        if on_progress is not None:
            on_progress(number, len(sentences))
    explained = [explanation for explanation in explanations if explanation is not None]
    pages = Environment(loader=PackageLoader("limner"), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    page = pages.get_template("attention.html").render(
        entries=entries,
        has_alignment=any(one.alignment is not None for one in explained),
        has_attention=any(one.attention is not None for one in explained),
        has_gate=any(one.gate is not None for one in explained),
    )
    write_text(folder / PAGE, page)
    return folder / PAGE


def _target(explanation: Explanation) -> str:
    """The target sentence, its words coloured by their gate if there is one."""
    words = explanation.target[:-1]
    if explanation.gate is None:
        return " ".join(words)
    return Markup(attention_plots.gate_spans(words, explanation.gate[:-1]))


def _save_plots(
    explanation: Explanation, folder: Path, number: int, path: Path | str | None, features: Sequence[FeatureSpec]
) -> Iterator[tuple[str, str]]:
    """Write the plots of one sentence; yield the name and the description of each file."""
    if explanation.alignment is not None and explanation.source:
        figure = attention_plots.alignment(
            explanation.source, explanation.target, explanation.alignment, gates=explanation.gate
        )
        yield plots.save_png(figure, folder / f"{number}-alignment.png").name, "alignment of target and source words"
    if explanation.attention is None or path is None:
        return
    for spec in features:
        grid = grid_of(spec, explanation.attention.shape[1])
        if grid is None:
            continue
        image = open_image(Path(path))
        figure = attention_plots.heat_maps(
            image,
            explanation.target,
            explanation.attention,
            grid,
            gates=explanation.gate,
            box=box_of(spec, image.size),
        )
        yield (
            plots.save_png(figure, folder / f"{number}-image.png").name,
            "attention over the image",
        )


def attended_panels(path: Path, weights: ArrayLike, features: Sequence[FeatureSpec], *, side: int) -> list[Image.Image]:
    """Create an image, or a strip of the frames of a video, and a heat map of the attention over it for each word.

    Args:
        path: image or video file.
        weights: attention weights, (T, L).
        features: specifications of the model's features, which define the grid of image locations or the frames.
        side: longer side of a heat map in pixels.

    Returns:
        The image or strip and T heat maps; empty if no features have L locations or frames.

    Raises:
        MediaError: the file cannot be read.
        MissingExtraError: the file is a video and PyAV is not installed.
    """
    locations = np.shape(weights)[1]
    for spec in features:
        if spec.frame_by_frame and locations == spec.shape[0]:
            rows, columns = strip_grid(locations)
            strip = film_strip(read_frames_of(path, spec), 2 * side // columns, columns)
            cells = pad_weights(weights, rows * columns)
            return attention_plots.panels(strip, cells, (rows, columns), side=2 * side, smooth=False)
    grids = [(spec, grid) for spec in features if (grid := grid_of(spec, locations)) is not None]
    if not grids:
        return []
    spec, grid = grids[0]
    (image,) = open_stills(path, 1)
    return attention_plots.panels(image, weights, grid, box=box_of(spec, image.size), side=side)


def read_frames_of(path: Path, spec: FeatureSpec) -> list[Image.Image]:
    """Read the frames that features were computed of, and black ones in place of those that do not exist."""
    assert spec.frames is not None
    frames = read_frames(path, spec.frames) if VIDEO.matches(path) else open_stills(path)
    black = Image.new("RGB", frames[0].size)
    return frames + [black] * (spec.shape[0] - len(frames))


def box_of(spec: FeatureSpec, size: tuple[int, int]) -> Box:
    """The part of an image of this width and height that the grid covers; it may extend beyond the image."""
    return encoded_box(size, Preprocessing.parse(spec.preprocessing, f"features '{spec.name}'"))
