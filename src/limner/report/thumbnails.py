"""Small pictures that stand in the page itself."""

from __future__ import annotations

import base64
import io
import logging
from pathlib import Path

from PIL import Image

from limner.errors import MediaError
from limner.media.image import open_image

logger = logging.getLogger(__name__)


class Thumbnails:
    """Pictures as `data:` addresses, small, within a budget, each file read once for a size."""

    def __init__(self, budget: int) -> None:
        """Begin with nothing shown.

        Args:
            budget: bytes of all addresses together.
        """
        self.left_out = 0
        self._room = budget
        self._known: dict[tuple[str, int], str | None] = {}

    def __call__(self, path: str | None, side: int) -> str | None:
        """The picture, no larger than `side` pixels; None when it is missing, damaged or over the budget."""
        if path is None:
            return None
        if (path, side) not in self._known:
            self._known[path, side] = self._read(Path(path), side)
        return self._within_budget(self._known[path, side])

    def drawn(self, picture: Image.Image) -> str | None:
        """A picture that is in no file, as it is; None when it is over the budget."""
        return self._within_budget(_address(picture))

    def _within_budget(self, address: str | None) -> str | None:
        if address is None or len(address) > self._room:
            self.left_out += 1
            return None
        self._room -= len(address)
        return address

    @staticmethod
    def _read(path: Path, side: int) -> str | None:
        try:
            picture = open_image(path, min_side=side)
        except MediaError as error:
            logger.info("%s", error)
            return None
        picture.thumbnail((side, side), Image.Resampling.LANCZOS)
        return _address(picture)


def _address(picture: Image.Image) -> str:
    target = io.BytesIO()
    picture.save(target, format="JPEG", quality=82, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(target.getvalue()).decode()
