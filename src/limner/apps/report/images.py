"""Images for reports, contact sheets and files: thumbnails, strips of frames, boxes with descriptions."""

from __future__ import annotations

import base64
import io
import logging
import math
import re
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from PIL import Image, ImageDraw, ImageFont, ImageOps

from limner.errors import CollectionError, MediaError, MissingExtraError, SettingsError
from limner.files import atomic_write
from limner.media.image import open_image
from limner.media.modality import IMAGE, VIDEO
from limner.media.video import FrameSampling, read_frames

if TYPE_CHECKING:
    from limner.data.collection import Collection
    from limner.data.examples import Region

KEY_FRAMES = 4
FRAME_GAP = 2  # distance of the frames of a strip in pixels
THUMBNAIL_SIZE = (240, 180)  # width and height of a thumbnail of a contact sheet in pixels
ROWS, COLUMNS = 4, 5  # largest numbers of rows and columns of a contact sheet of a collection
MARGIN, GAP = 28, 20  # width of the border and of the space between thumbnails, in pixels
CAPTION_LINES = 3
FONT_SIZE, LINE_HEIGHT, LINE_LENGTH = 13, 18, THUMBNAIL_SIZE[0] // 8  # the length in characters
SHEET_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
BACKGROUND, TEXT, FADED_TEXT, TILE = "#fbfaf7", "#2b2b2b", "#8a8780", "#dedbd4"
ENTITY_COLOURS = ("#e4572e", "#17bebb", "#ffc914", "#6a994e", "#b388eb", "#3a86ff", "#f28482", "#8d6e63")
REGION_COLOURS = (
    "#e6194b", "#3cb44b", "#0082c8", "#f58231", "#911eb4", "#008080", "#aa6e28", "#800000", "#000080", "#808000"
)  # fmt: skip
"""Colours of the boxes of described regions, in turn."""
MIN_SIDE = 640
"""Minimum longer side of a drawing of regions in pixels; smaller images are enlarged so that the text can be read."""
REGION_FONT_SIZE, PADDING, LINE = 14, 3, 3

Box = tuple[float, float, float, float]

logger = logging.getLogger(__name__)


class Thumbnails:
    """Data URLs of thumbnails within a total size; each file is read once for each size."""

    def __init__(self, budget: int) -> None:
        """Create an empty set of thumbnails whose data URLs have at most `budget` bytes together."""
        self.left_out = 0
        """Number of images that are missing, damaged or over the budget."""
        self.shapes: list[float] = []
        """Width divided by height of every image of the page."""
        self._remaining = budget
        self._cache: dict[tuple[str, int], str | None] = {}

    def __call__(self, path: str | None, side: int) -> str | None:
        """Return the data URL of an image file whose longer side is at most `side` pixels, or of a strip of key frames.

        None if the image is missing, damaged or over the budget.
        """
        if path is None:
            return None
        if (path, side) not in self._cache:
            self._cache[path, side] = self._read(Path(path), side)
        return self._within_budget(self._cache[path, side])

    def of_image(self, image: Image.Image) -> str | None:
        """Return the data URL of an image in memory at its own size; None if it is over the budget."""
        return self._within_budget(self._encode(image))

    def _within_budget(self, url: str | None) -> str | None:
        if url is None or len(url) > self._remaining:
            self.left_out += 1
            return None
        self._remaining -= len(url)
        return url

    def _read(self, path: Path, side: int) -> str | None:
        try:
            stills = open_stills(path, min_side=side)
        except (MediaError, MissingExtraError) as error:
            logger.info("%s", error)
            return None
        if len(stills) > 1:
            return self._encode(film_strip(stills, side // 2))
        stills[0].thumbnail((side, side), Image.Resampling.LANCZOS)
        return self._encode(stills[0])

    def _encode(self, image: Image.Image) -> str:
        self.shapes.append(image.width / image.height)
        jpeg = io.BytesIO()
        image.save(jpeg, format="JPEG", quality=82, optimize=True)
        return jpeg_url(jpeg.getvalue())


def open_stills(path: Path, count: int = KEY_FRAMES, *, min_side: int | None = None) -> list[Image.Image]:
    """Open an image, or at most `count` key frames of a video, evenly spaced in time."""
    if VIDEO.matches(path):
        return read_frames(path, FrameSampling(count=count))
    return [open_image(path, min_side=min_side)]


def film_strip(frames: Sequence[Image.Image], side: int, columns: int | None = None) -> Image.Image:
    """Lay out frames in rows of `columns`, by default one row; all get the size of the first, `side` pixels long."""
    columns = columns or len(frames)
    rows = math.ceil(len(frames) / columns)
    scale = side / max(frames[0].size)
    width, height = (max(1, round(length * scale)) for length in frames[0].size)
    size = (columns * (width + FRAME_GAP) - FRAME_GAP, rows * (height + FRAME_GAP) - FRAME_GAP)
    strip = Image.new("RGB", size, "white")
    for number, frame in enumerate(frames):
        place = number % columns * (width + FRAME_GAP), number // columns * (height + FRAME_GAP)
        strip.paste(frame.resize((width, height), Image.Resampling.LANCZOS), place)
    return strip


def strip_grid(count: int) -> tuple[int, int]:
    """Rows and columns of a strip of `count` frames that is about as high as wide."""
    columns = math.ceil(math.sqrt(count))
    return math.ceil(count / columns), columns


def contact_sheet(collection: Collection, split: str | None = None, *, boxes: bool = False) -> Image.Image:
    """Draw thumbnails of images or videos (the middle frame) at regular intervals of a split, each with a caption.

    A missing or damaged image is drawn as a grey tile with the name of its file. There are at most `ROWS` and
    `COLUMNS`. With `boxes`, the boxes of the regions are drawn; boxes of one entity have one colour.
    """
    items = [item for item in collection.items(split) if item.modality in (IMAGE, VIDEO)]
    if not items:
        where = "the collection" if split is None else f"split '{split}'"
        raise CollectionError(f"{collection.path}: {where} has no images or videos")
    count = min(len(items), ROWS * COLUMNS)
    chosen = [items[number * len(items) // count] for number in range(count)]
    captions = (item.sentences[0].text if item.sentences else "" for item in chosen)
    captions = (re.sub(r"\s+(?=[.,;:!?])", "", text) for text in captions)  # as tokenised corpora separate punctuation
    tiles = (_tile(collection.media_file(item), item.regions if boxes else ()) for item in chosen)
    return draw_tiles(list(zip(tiles, captions, strict=True)))


def draw_tiles(tiles: Sequence[tuple[Image.Image, str]], notes: Sequence[str] = ()) -> Image.Image:
    """Draw images, cut to the size of thumbnails, in rows of at most `COLUMNS`, each with its caption.

    Each caption has a line with a note below it, shortened at its start to one line; without notes, no such line.
    """
    columns = min(COLUMNS, len(tiles))
    rows = -(-len(tiles) // columns)
    width, height = THUMBNAIL_SIZE[0] + GAP, THUMBNAIL_SIZE[1] + 10 + (CAPTION_LINES + bool(notes)) * LINE_HEIGHT + GAP
    sheet = Image.new("RGB", (2 * MARGIN + columns * width - GAP, 2 * MARGIN + rows * height - GAP), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for index, (image, caption) in enumerate(tiles):
        left, top = MARGIN + index % columns * width, MARGIN + index // columns * height
        sheet.paste(_crop(image), (left, top))
        lines = [(line, TEXT) for line in _wrap(caption)]
        if notes:
            too_long = len(notes[index]) > LINE_LENGTH
            lines.append((f"…{notes[index][1 - LINE_LENGTH :]}" if too_long else notes[index], FADED_TEXT))
        for number, (line, colour) in enumerate(lines):
            draw.text((left, top + THUMBNAIL_SIZE[1] + 8 + number * LINE_HEIGHT), line, colour, _font(FONT_SIZE))
    return sheet


def require_sheet_suffix(path: Path) -> None:
    """Raise SettingsError if a file name does not end in the suffix of an image format that can be written."""
    if path.suffix.lower() not in SHEET_FORMATS:
        expected = ", ".join(SHEET_FORMATS)
        raise SettingsError(f"{path}: expected the name of an image file that ends in {expected}, such as sheet.png")


def save_sheet(sheet: Image.Image, path: Path) -> None:
    """Write a contact sheet in the image format of the file name's suffix; an existing file is replaced."""
    require_sheet_suffix(path)
    with atomic_write(path, ValueError) as beside:
        sheet.save(beside, format=SHEET_FORMATS[path.suffix.lower()])


def draw_regions(image: Image.Image, regions: Sequence[tuple[Box, str]]) -> Image.Image:
    """Draw boxes of regions (left, top, width, height), each with its description; the first lies on top."""
    factor = max(1.0, MIN_SIDE / max(image.size))
    drawing = image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.LANCZOS)
    pen, font = ImageDraw.Draw(drawing), _font(REGION_FONT_SIZE)
    for number, (box, text) in reversed(list(enumerate(regions))):
        colour = REGION_COLOURS[number % len(REGION_COLOURS)]
        left, top, width, height = (value * factor for value in box)
        pen.rectangle((left, top, left + max(1, width), top + max(1, height)), outline=colour, width=LINE)
        if not text:
            continue
        # The text is on a filled background, moved so that it lies inside the drawing.
        size = pen.textlength(text, font=font) + 2 * PADDING, REGION_FONT_SIZE + 2 * PADDING
        left, top = (max(0.0, min(corner, drawing.size[axis] - size[axis])) for axis, corner in enumerate((left, top)))
        pen.rectangle((left, top, left + size[0], top + size[1]), fill=colour)
        pen.text((left + PADDING, top + PADDING), text, "white", font, anchor="lt")
    return drawing


def open_regions(path: str | None, regions: Sequence[tuple[Box, str]]) -> Image.Image | None:
    """Open an image file and draw the boxes of regions on it; None if there is no image that can be read."""
    try:
        return None if path is None else draw_regions(open_image(Path(path)), regions)
    except MediaError as error:
        logger.info("%s", error)
        return None


def jpeg_url(jpeg: bytes) -> str:
    """Return the data URL of a JPEG file."""
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()


def _tile(path: Path, regions: Sequence[Region]) -> Image.Image:
    """The image of a tile with the distinct boxes of its regions, or a grey tile with the name of the file."""
    try:
        (image,) = open_stills(path, 1)
    except (MediaError, OSError):
        tile = Image.new("RGB", THUMBNAIL_SIZE, TILE)
        text, middle = "\n".join(_wrap(path.name)), (THUMBNAIL_SIZE[0] / 2, THUMBNAIL_SIZE[1] / 2)
        ImageDraw.Draw(tile).multiline_text(middle, text, FADED_TEXT, _font(FONT_SIZE), anchor="mm", align="center")
        return tile
    draw, width = ImageDraw.Draw(image), max(2, min(image.size) // 100)
    entities = list(dict.fromkeys(region.entity or str(region.box) for region in regions))
    for region in {region.box: region for region in regions}.values():
        left, top, across, down = region.box
        colour = ENTITY_COLOURS[entities.index(region.entity or str(region.box)) % len(ENTITY_COLOURS)]
        draw.rectangle((left, top, left + across, top + down), outline=colour, width=width)
    return _crop(image)


def _crop(image: Image.Image) -> Image.Image:
    """Resize an image and cut off its ends, so that it has the size of a thumbnail."""
    return ImageOps.fit(image, THUMBNAIL_SIZE, Image.Resampling.LANCZOS, centering=(0.5, 0.4))


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans of matplotlib, which covers all European scripts; without matplotlib the Latin font of Pillow."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return cast("ImageFont.FreeTypeFont", ImageFont.load_default(size))
    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), size)


def _wrap(text: str) -> list[str]:
    """Wrap a text to about the width of a thumbnail, and at most `CAPTION_LINES`; a longer text ends in an ellipsis."""
    text = text[:200]  # a damaged caption may have millions of characters
    return textwrap.wrap(text, LINE_LENGTH, max_lines=CAPTION_LINES, placeholder="…")
