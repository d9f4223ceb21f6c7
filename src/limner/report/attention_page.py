"""A folder of drawings that show what translations were made from, with a page to look at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from limner.features.preprocessing import Preprocessing, encoded_box
from limner.features.spec import FeatureSpec
from limner.files import write_text
from limner.inference.explain import Explanation
from limner.media.image import open_image
from limner.report import attention_plots, plots
from limner.report.attention_plots import Box

PAGE = "index.html"


def save_explanations(
    explanations: Sequence[Explanation | None],
    folder: Path,
    *,
    sentences: Sequence[str],
    pictures: Sequence[Path | str | None] | None = None,
    features: Sequence[FeatureSpec] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Draw explanations: the alignment, the places of the picture that each word looked at, and its gate in colours.

    Args:
        explanations: None for a sentence of which there is nothing to draw.
        folder: where to; made when missing. Files of the same names are replaced.
        sentences: what was translated.
        pictures: for each sentence the file of its picture, or None.
        features: of the model, whose grid the pictures were cut into.
        progress: told the sentences that are drawn, and how many there are.

    Returns:
        The page, beside which lie 1-alignment.png, 1-picture.png and so on, by the sentences' numbers.

    Raises:
        RunError: a file cannot be written.
        MediaError: a picture cannot be read.
    """
    paths = [None] * len(sentences) if pictures is None else pictures
    shown = []
    for number, (one, text, path) in enumerate(zip(explanations, sentences, paths, strict=True), start=1):
        if one is not None:
            drawings = list(_drawings(one, folder, number, path, features))
            shown.append({"number": number, "source": text, "target": _target(one), "drawings": drawings})
        if progress is not None:
            progress(number, len(sentences))
    made = [one for one in explanations if one is not None]
    pages = Environment(loader=PackageLoader("limner"), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    page = pages.get_template("attention.html").render(
        shown=shown,
        aligned=any(one.alignment is not None for one in made),
        seen=any(one.attention is not None for one in made),
        gated=any(one.gate is not None for one in made),
    )
    write_text(folder / PAGE, page)
    return folder / PAGE


def _target(one: Explanation) -> str:
    words = one.target[:-1]
    return " ".join(words) if one.gate is None else Markup(attention_plots.beta_spans(words, one.gate[:-1]))


def _drawings(
    one: Explanation, folder: Path, number: int, path: Path | str | None, features: Sequence[FeatureSpec]
) -> Iterator[tuple[str, str]]:
    """Draw what there is of one sentence; yields each file's name and what it shows."""
    if one.alignment is not None and one.source:
        figure = attention_plots.alignment(one.source, one.target, one.alignment, betas=one.gate)
        yield plots.save_png(figure, folder / f"{number}-alignment.png").name, "which source words each word came from"
    if one.attention is None or path is None:
        return
    for spec in features:
        grid = grid_of(spec, one.attention.shape[1])
        if grid is None:
            continue
        picture = open_image(Path(path))
        box = seen_box(spec, picture.size)
        figure = attention_plots.heat_maps(picture, one.target, one.attention, grid, betas=one.gate, box=box)
        yield plots.save_png(figure, folder / f"{number}-picture.png").name, "where on the picture each word looked"


def grid_of(spec: FeatureSpec, places: int) -> tuple[int, int] | None:
    """Rows and columns of so many places that a model attends to; None where they are not of these features.

    A convnet of the model's own, which reads maps, keeps their proportions.
    """
    if spec.kind == "maps":
        height, width = spec.shape[1:]
        size = round((places * height / width) ** 0.5), round((places * width / height) ** 0.5)
    elif spec.grid_size is not None:
        size = spec.grid_size
    else:
        return None
    return size if size[0] * size[1] == places else None


def seen_box(spec: FeatureSpec, size: tuple[int, int]) -> Box:
    """What the network saw of a picture of this width and height, whose parts the places of the grid are.

    It may reach beyond the picture, as the middle that `limner.features.preprocessing.preprocess` cuts out does.
    """
    return encoded_box(size, Preprocessing.parse(spec.preprocessing, f"features '{spec.name}'"))
