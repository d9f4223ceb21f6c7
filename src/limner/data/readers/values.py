"""Parsing of table cells and JSON values: sentences, names, groups, and boxes of images.

A value of any other type is an error, instead of being stored as Python prints it.
"""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn
from uuid import UUID

from limner.bounds import Group, bounds_of
from limner.data.readers.item_builder import ItemBuilder, SourceLocation
from limner.errors import CollectionError

TEXT_FIELDS = ("raw", "text", "caption", "sentence", "captions", "sentences")
"""Fields of a struct that hold its sentences, in the order of preference."""


def sentences_in(value: Any, column: str, location: SourceLocation) -> list[str]:  # noqa: ANN401 (any value)
    """Return the sentences that a value of a row holds, as Arrow or JSON returns it.

    A text is a sentence, and so are bytes of UTF-8. Null and NaN hold no sentence. A list has the sentences of its
    parts, a struct the sentences of the first of `TEXT_FIELDS` that is not null.

    Raises:
        CollectionError: a number, a boolean, other bytes, a struct without such a field, or a list of lists of texts,
            which may be tokens.
    """
    if is_missing(value):
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, bytes):
        return [_decode(value, column, location)]
    if isinstance(value, dict) and (parts := [value[field] for field in TEXT_FIELDS if field in value]):
        return sentences_in(next((part for part in parts if not is_missing(part)), None), column, location)
    nested = [part for parts in value if isinstance(parts, list) for part in parts] if isinstance(value, list) else []
    if isinstance(value, list) and not any(isinstance(part, str | bytes) for part in nested):
        return [sentence for part in value for sentence in sentences_in(part, column, location)]
    _refuse(value, column, location, f"a text, a list of texts, or a struct with {', '.join(TEXT_FIELDS)}")


def name_in(value: Any, column: str, location: SourceLocation) -> str:  # noqa: ANN401 (any value)
    """Return the id, split, language, label or path that a value holds; empty if it is null or NaN.

    A number is its digits, without `.0`; a boolean `true` or `false`, as in JSON.

    Raises:
        CollectionError: the value is of another type; see `sentences_in` for the arguments.
    """
    if is_missing(value):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | Decimal | date | UUID):
        return str(int(value) if isinstance(value, float) and value.is_integer() else value)
    if isinstance(value, bytes):
        value = _decode(value, column, location)
    if isinstance(value, str):
        return value.strip()
    _refuse(value, column, location, "a text or a number")


def group_in(text: str, name: str, location: SourceLocation) -> int:
    """Return the number of the group of a sentence; CollectionError if a collection cannot store it."""
    try:
        return int(bounds_of(Group).parse(text))
    except ValueError as error:
        raise CollectionError(f"{location}: {name}: {error}") from None


def is_missing(value: Any) -> bool:  # noqa: ANN401 (any value)
    """Whether a value is null, or the NaN that pandas writes in its place."""
    return value is None or (isinstance(value, float) and value != value)


def _decode(value: bytes, column: str, location: SourceLocation) -> str:
    try:
        return value.decode("utf-8-sig")
    except UnicodeDecodeError:
        _refuse(value, column, location, "a text in UTF-8")


def _refuse(value: Any, column: str, location: SourceLocation, expected: str) -> NoReturn:  # noqa: ANN401
    if isinstance(value, dict):
        kind = f"a struct with {', '.join(map(str, value)) or 'no fields'}"
    elif isinstance(value, list):
        kind = "a list of lists of texts" if any(isinstance(part, list) for part in value) else "a list"
    elif isinstance(value, bytes):
        kind = "bytes that are not UTF-8"
    elif isinstance(value, bool):
        kind = str(value).lower()
    else:
        kind = f"the number {value}" if isinstance(value, int | float) else f"a {type(value).__name__}"
    raise CollectionError(f"{location}: '{column}' is {kind}; expected {expected}: convert it")


Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels."""


class ImageScale(NamedTuple):
    """Sizes of an image when it was annotated and in the stored file."""

    annotated: tuple[int, int]
    """Width and height that the boxes refer to, in pixels."""
    stored: tuple[int, int]
    """Width and height of the stored file in pixels."""


def fit_box(box: Box, scale: ImageScale, name: str, location: SourceLocation, builder: ItemBuilder) -> Box | None:
    """Clip a box to the annotated image and scale it to the stored image, in pixels; None if nothing is left.

    Clipped and empty boxes are counted.

    Raises:
        CollectionError: a value is NaN or infinite.
    """
    left, top, width, height = box
    if not all(map(math.isfinite, box)):
        raise CollectionError(f"{location}: the box {box} of '{name}' is not finite; expected numbers of pixels")
    if width <= 0 or height <= 0:
        builder.skip("boxes without width or height", name, location)
        return None
    right, bottom = min(left + width, scale.annotated[0]), min(top + height, scale.annotated[1])
    left, top = max(left, 0), max(top, 0)
    if right <= left or bottom <= top:
        builder.skip("boxes outside their image", name, location)
        return None
    if (right - left, bottom - top) != (width, height):
        builder.skip("parts of boxes beyond the edge of the image (the boxes are clipped)", name, location)
    across, down = (stored / annotated for stored, annotated in zip(scale.stored, scale.annotated, strict=True))
    return left * across, top * down, (right - left) * across, (bottom - top) * down
