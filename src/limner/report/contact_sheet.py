"""What `limner show` tells and shows of a collection: its counts, and a sheet of captioned pictures."""

from __future__ import annotations

import os
import re
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont, ImageOps

from limner.data.collection import Collection
from limner.data.examples import Item
from limner.errors import CollectionError, MediaError, SettingsError
from limner.media.image import open_image
from limner.media.modality import IMAGE

THUMBNAIL = (240, 180)  # pixels
MARGIN, GAP = 28, 20
CAPTION_LINES = 3
FONT_SIZE, LINE_HEIGHT = 13, 18
PAPER, INK, FADED, TILE = "#fbfaf7", "#2b2b2b", "#8a8780", "#dedbd4"


@dataclass(frozen=True, slots=True)
class Summary:
    """The counts of a collection."""

    items: int
    splits: dict[str, int]
    sentences: dict[str, dict[str, int]]
    """By split, then by language; "en (made)" are those that a model wrote."""
    pictures: dict[str, int]
    """Items that name a picture, by split."""
    sounds: int
    videos: int
    regions: int
    missing: int
    """Pictures and sounds that are named and not there."""
    missing_examples: tuple[str, ...]
    features: tuple[str, ...]


def summary(collection: Collection, *, examples: int = 3) -> Summary:
    """Count what a collection holds, and look whether its pictures and sounds are still where they were.

    Args:
        collection: what to count.
        examples: how many missing files to name.
    """
    items = collection.items()
    sentences: dict[str, Counter[str]] = {item.split: Counter() for item in items}
    for item in items:
        sentences[item.split].update(one.lang + (" (made)" if one.generated_by else "") for one in item.sentences)
    paths = [collection.path / name for item in items for name in (item.image, item.audio) if name is not None]
    missing = [str(path) for path in paths if not os.path.isfile(path)]
    return Summary(
        items=len(items),
        splits=dict(Counter(item.split for item in items)),
        sentences={split: dict(sorted(counts.items())) for split, counts in sentences.items()},
        pictures=dict(Counter(item.split for item in items if item.image is not None)),
        sounds=sum(item.audio is not None for item in items),
        videos=sum(item.video is not None for item in items),
        regions=sum(len(item.regions) for item in items),
        missing=len(missing),
        missing_examples=tuple(missing[:examples]),
        features=collection.features(),
    )


def contact_sheet(collection: Collection, split: str | None = None, rows: int = 4, columns: int = 5) -> Image.Image:
    """Thumbnails of pictures spread evenly over a split, each with its first caption.

    A picture that is missing or damaged becomes a grey tile with its file's name.

    Args:
        collection: where the pictures are from.
        split: which part of it; all of it when None.
        rows: rows of the sheet, fewer when there are not enough pictures.
        columns: columns of the sheet.

    Raises:
        CollectionError: the split does not exist, or has no pictures; rows or columns are not positive.
    """
    if rows < 1 or columns < 1:
        raise CollectionError(f"a sheet of {rows} rows and {columns} columns; expected at least 1 of each")
    items = [item for item in collection.items(split) if item.image is not None]
    if not items:
        where = f"split '{split}'" if split else "the collection"
        raise CollectionError(f"{collection.path}: {where} has no pictures to show")
    shown = min(len(items), rows * columns)
    chosen = [items[i * len(items) // shown] for i in range(shown)]
    columns = min(columns, shown)
    rows = -(-shown // columns)
    width, height = THUMBNAIL[0] + GAP, THUMBNAIL[1] + 10 + CAPTION_LINES * LINE_HEIGHT + GAP
    sheet = Image.new("RGB", (2 * MARGIN + columns * width - GAP, 2 * MARGIN + rows * height - GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    font = _font()
    for index, item in enumerate(chosen):
        left, top = MARGIN + index % columns * width, MARGIN + index // columns * height
        sheet.paste(_thumbnail(collection.image_path(item), font), (left, top))
        for number, line in enumerate(_wrap(_first_caption(item), font, THUMBNAIL[0], CAPTION_LINES)):
            draw.text((left, top + THUMBNAIL[1] + 8 + number * LINE_HEIGHT), line, INK, font)
    return sheet


def save_sheet(sheet: Image.Image, path: Path) -> None:
    """Write a contact sheet as the kind of picture that the file's name says.

    Raises:
        SettingsError: the file is not named like a picture, or is a folder.
    """
    if path.is_dir() or not IMAGE.matches(path):
        is_what = "is a folder" if path.is_dir() else "does not end like the name of a picture"
        raise SettingsError(f"{path}: {is_what}; name a .png")
    sheet.save(path)


def _thumbnail(path: Path, font: ImageFont.FreeTypeFont) -> Image.Image:
    try:
        return ImageOps.fit(open_image(path), THUMBNAIL, Image.Resampling.LANCZOS, centering=(0.5, 0.4))
    except (MediaError, OSError):
        tile = Image.new("RGB", THUMBNAIL, TILE)
        lines = _wrap(path.name, font, THUMBNAIL[0] - 24, CAPTION_LINES)
        text, middle = "\n".join(lines), (THUMBNAIL[0] / 2, THUMBNAIL[1] / 2)
        ImageDraw.Draw(tile).multiline_text(middle, text, FADED, font, anchor="mm", align="center")
        return tile


def _font() -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib and knows the letters of all European languages."""
    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), FONT_SIZE)


def _wrap(text: str, font: ImageFont.FreeTypeFont, width: int, lines: int) -> list[str]:
    """Break `text` into at most so many lines of a width in pixels; what does not fit ends in an ellipsis."""
    letters = int(width / font.getlength("i"))
    wrapped = textwrap.wrap(text, letters)
    while letters > 1 and any(font.getlength(line) > width for line in wrapped):
        letters -= 1
        wrapped = textwrap.wrap(text, letters)
    if len(wrapped) > lines:
        last = wrapped[lines - 1]
        while last and font.getlength(last + "…") > width:
            last = last[:-1]
        wrapped = [*wrapped[: lines - 1], last.rstrip(" .,;") + "…"]
    return wrapped


def _first_caption(item: Item) -> str:
    text = item.sentences[0].text if item.sentences else ""
    return re.sub(r"\s+(?=[.,;:!?])", "", text)  # corpora have their signs set apart
