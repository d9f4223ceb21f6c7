"""Thumbnails embedded in a page as data URLs."""

from __future__ import annotations

import base64
import io
import logging
from pathlib import Path

from PIL import Image

from limner.errors import MediaError, MissingExtraError
from limner.report.film_strip import film_strip, open_stills

logger = logging.getLogger(__name__)


class Thumbnails:
    """Data URLs of thumbnails within a total size; each file is read once for each size."""

    def __init__(self, budget: int) -> None:
        """Create an empty set of thumbnails.

        Args:
            budget: maximum total length of the data URLs in bytes.
        """
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
        return _data_url(image)


def _data_url(image: Image.Image) -> str:
    jpeg = io.BytesIO()
    image.save(jpeg, format="JPEG", quality=82, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(jpeg.getvalue()).decode()
