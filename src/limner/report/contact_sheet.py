"""Contact sheet of a collection: thumbnails with their captions."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from PIL import Image, ImageDraw, ImageFont, ImageOps, PngImagePlugin

from limner.data.collection import Collection
from limner.data.examples import Item, Region
from limner.errors import CollectionError, MediaError, SettingsError
from limner.files import atomic_write
from limner.media.modality import IMAGE, VIDEO
from limner.report.film_strip import open_stills
from limner.storage.outputs import GENERATOR

THUMBNAIL_SIZE = (240, 180)
"""Width and height of a thumbnail in pixels."""
MARGIN, GAP = 28, 20
"""Width of the border and of the space between thumbnails, in pixels."""
CAPTION_LINES = 3
FONT_SIZE, LINE_HEIGHT = 13, 18
SHEET_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
"""Formats of contact sheets by the suffix of the file."""
BACKGROUND, TEXT, FADED_TEXT, TILE = "#fbfaf7", "#2b2b2b", "#8a8780", "#dedbd4"
BOX_COLOURS = ("#e4572e", "#17bebb", "#ffc914", "#6a994e", "#b388eb", "#3a86ff", "#f28482", "#8d6e63")


def contact_sheet(
    collection: Collection, split: str | None = None, rows: int = 4, columns: int = 5, *, boxes: bool = False
) -> Image.Image:
    """Draw thumbnails of images or videos (the middle frame) at regular intervals of a split, each with a caption.

    A missing or damaged image is drawn as a grey tile with the name of its file.

    Args:
        collection: collection with images.
        split: name of the split; None for all items.
        rows: maximum number of rows.
        columns: maximum number of columns.
        boxes: whether the boxes of the regions are drawn; boxes of one entity have one colour.

    Raises:
        CollectionError: the split does not exist or has no images, or `rows` or `columns` is not positive.
    """
    if rows < 1 or columns < 1:
        raise CollectionError(f"contact sheet: expected at least 1 row and 1 column, got {rows} and {columns}")
    items = [item for item in collection.items(split) if item.modality in (IMAGE, VIDEO)]
    if not items:
        where = "the collection" if split is None else f"split '{split}'"
        raise CollectionError(f"{collection.path}: {where} has no images or videos")
    count = min(len(items), rows * columns)
    chosen = [items[i * len(items) // count] for i in range(count)]
    font = _font()
    return draw_tiles(
        [
            (_thumbnail(collection.media_file(item), font, item.regions if boxes else ()), _first_caption(item))
            for item in chosen
        ],
        columns,
    )


def draw_tiles(tiles: Sequence[tuple[Image.Image, str]], columns: int) -> Image.Image:
    """Draw images, cut to the size of thumbnails, in rows, each with its caption.

    Args:
        tiles: at least one image and its caption.
        columns: maximum number of columns.
    """
    columns = min(columns, len(tiles))
    rows = -(-len(tiles) // columns)
    width, height = THUMBNAIL_SIZE[0] + GAP, THUMBNAIL_SIZE[1] + 10 + CAPTION_LINES * LINE_HEIGHT + GAP
    sheet = Image.new("RGB", (2 * MARGIN + columns * width - GAP, 2 * MARGIN + rows * height - GAP), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    font = _font()
    for index, (image, caption) in enumerate(tiles):
        left, top = MARGIN + index % columns * width, MARGIN + index // columns * height
        sheet.paste(_cut(image), (left, top))
        for number, line in enumerate(_wrap(caption, font, THUMBNAIL_SIZE[0], CAPTION_LINES)):
            draw.text((left, top + THUMBNAIL_SIZE[1] + 8 + number * LINE_HEIGHT), line, TEXT, font)
    return sheet


def draw_boxes(image: Image.Image, regions: Sequence[Region]) -> None:
    """Draw the distinct boxes of regions on an image; boxes of one entity have one colour."""
    draw = ImageDraw.Draw(image)
    entities = list(dict.fromkeys(region.entity or str(region.box) for region in regions))
    for region in {one.box: one for one in regions}.values():
        left, top, width, height = region.box
        colour = BOX_COLOURS[entities.index(region.entity or str(region.box)) % len(BOX_COLOURS)]
        draw.rectangle((left, top, left + width, top + height), outline=colour, width=max(2, min(image.size) // 100))


def require_sheet_suffix(path: Path) -> None:
    """Check that a file name ends in the suffix of an image format that can be written.

    Raises:
        SettingsError: it does not.
    """
    if path.suffix.lower() not in SHEET_FORMATS:
        expected = ", ".join(SHEET_FORMATS)
        raise SettingsError(f"{path}: expected the name of an image file that ends in {expected}, such as sheet.png")


def save_sheet(sheet: Image.Image, path: Path) -> None:
    """Write a contact sheet in the image format of the file name's suffix; an existing file is replaced.

    Raises:
        SettingsError: the suffix is not that of an image format that can be written.
        WriteError: the file cannot be written; an existing file is unchanged.
    """
    require_sheet_suffix(path)
    format_ = SHEET_FORMATS[path.suffix.lower()]
    options: dict[str, Any] = {"comment": GENERATOR} if format_ == "JPEG" else {}
    if format_ == "PNG":
        options["pnginfo"] = PngImagePlugin.PngInfo()
        options["pnginfo"].add_text("Software", GENERATOR)
    with atomic_write(path, ValueError) as beside:
        sheet.save(beside, format=format_, **options)


def _thumbnail(path: Path, font: ImageFont.FreeTypeFont, regions: Sequence[Region] = ()) -> Image.Image:
    try:
        (image,) = open_stills(path, 1)
        draw_boxes(image, regions)
        return _cut(image)
    except (MediaError, OSError):
        tile = Image.new("RGB", THUMBNAIL_SIZE, TILE)
        lines = _wrap(path.name, font, THUMBNAIL_SIZE[0] - 24, CAPTION_LINES)
        text, middle = "\n".join(lines), (THUMBNAIL_SIZE[0] / 2, THUMBNAIL_SIZE[1] / 2)
        ImageDraw.Draw(tile).multiline_text(middle, text, FADED_TEXT, font, anchor="mm", align="center")
        return tile


def _cut(image: Image.Image) -> Image.Image:
    """Resize an image and cut off its ends, so that it has the size of a thumbnail."""
    return ImageOps.fit(image, THUMBNAIL_SIZE, Image.Resampling.LANCZOS, centering=(0.5, 0.4))


def _font() -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which is part of matplotlib and covers all European scripts."""
    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), FONT_SIZE)


def _wrap(text: str, font: ImageFont.FreeTypeFont, width: int, max_lines: int) -> list[str]:
    """Wrap a text to a width in pixels; a longer text ends in an ellipsis."""
    characters = int(width / font.getlength("i"))
    text = text[: (characters + 1) * (max_lines + 1)]  # a damaged caption may have millions of characters
    wrapped = textwrap.wrap(text, characters)
    while characters > 1 and any(font.getlength(line) > width for line in wrapped):
        characters -= 1
        wrapped = textwrap.wrap(text, characters)
    if len(wrapped) > max_lines:
        last = wrapped[max_lines - 1]
        while last and font.getlength(last + "…") > width:
            last = last[:-1]
        wrapped = [*wrapped[: max_lines - 1], last.rstrip(" .,;") + "…"]
    return wrapped


def _first_caption(item: Item) -> str:
    text = item.sentences[0].text if item.sentences else ""
    return re.sub(r"\s+(?=[.,;:!?])", "", text)  # tokenised corpora separate punctuation by a space
