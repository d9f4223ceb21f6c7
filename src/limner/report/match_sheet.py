"""Contact sheets of the images that a search in a folder has found: an image, or an HTML page of one file."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from limner.errors import FolderError
from limner.files import write_text
from limner.folders.index import FolderMatch
from limner.report.contact_sheet import draw_tiles
from limner.report.rendering import render_page

COLUMNS = 5
STYLES = ("shared/look.css",)


def draw_matches(matches: Sequence[FolderMatch], columns: int = COLUMNS) -> Image.Image:
    """Draw the thumbnails of matches with their captions.

    Args:
        matches: results of a search.
        columns: maximum number of columns.

    Raises:
        FolderError: there is no match to draw.
    """
    if not matches:
        raise FolderError("the search has found no image, so that there is no contact sheet; add images to the index")
    return draw_tiles([(Image.open(io.BytesIO(match.thumbnail)), match.display_text) for match in matches], columns)


def write_match_page(query: str, matches: Sequence[FolderMatch], file: Path) -> None:
    """Write an HTML page of matches, with their thumbnails in it.

    Args:
        query: what was searched.
        matches: results of the search.
        file: page to write.

    Raises:
        WriteError: the page cannot be written.
    """
    entries = [
        {
            "name": os.fsencode(match.path).decode(errors="backslashreplace"),
            "link": match.path.resolve().as_uri(),
            "caption": match.display_text,
            "score": f"{match.score:.2f}",
            "thumbnail": f"data:image/jpeg;base64,{base64.b64encode(match.thumbnail).decode()}",
        }
        for match in matches
    ]
    write_text(file, render_page("matches.html", styles=STYLES, scripts=(), query=query, entries=entries))
