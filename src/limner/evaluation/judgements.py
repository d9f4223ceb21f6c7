"""Human judgements of captions in the two files of Flickr8k (Hodosh et al., 2013), and scores of the judged pairs.

    ExpertAnnotations.txt         image, caption, three ratings from 1 (does not describe the image) to 4 (describes it)
    CrowdFlowerAnnotations.txt    image, caption, share of yes, number of yes, number of no

Fields are separated by tabs. A caption is named by the image it was written for and its number: `name.jpg#0`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from limner.errors import SettingsError
from limner.files import decode_utf8, read_bytes

Pair = tuple[str, str]
"""Names of an image and of a caption."""
LARGEST_DEVIATION = 1e-3
"""Largest difference between the share of yes and its numbers."""


class Judgements(NamedTuple):
    """Ratings of pairs of an image and a caption."""

    kind: Literal["expert", "crowd"]
    ratings: Mapping[Pair, tuple[float, ...]]
    """Three ratings of experts, or the share of yes, of each pair."""

    def left_out(self) -> list[Pair]:
        """Return the pairs that are not correlated: experts' pairs whose caption was written for the image.

        Anderson et al. (2016) leave them out, because metrics with references would compare these captions with
        themselves; all pairs of Flickr8k-CF are kept.
        """
        if self.kind != "expert":
            return []
        return [(image, caption) for image, caption in self.ratings if caption.rpartition("#")[0] == image]

    def correlated(self) -> list[Pair]:
        """Return the other pairs."""
        left_out = set(self.left_out())
        return [pair for pair in self.ratings if pair not in left_out]


def read_judgements(path: Path) -> Judgements:
    """Read a file in the form of Flickr8k-Expert, with three ratings a line, or of Flickr8k-CF, with shares of yes.

    Raises:
        SettingsError: the file cannot be read, is empty or malformed, or has a pair twice; names the line.
    """
    ratings: dict[Pair, tuple[float, ...]] = {}
    kinds: set[Literal["expert", "crowd"]] = set()
    for number, fields in _rows(path):
        kind, rating = _ratings(fields, f"{path}, line {number}")
        kinds.add(kind)
        if len(kinds) > 1:
            raise SettingsError(
                f"{path}, line {number}: ratings of experts and shares of yes in one file; expected one kind"
            )
        ratings[_pair(fields, ratings, f"{path}, line {number}")] = rating
    if not ratings:
        raise SettingsError(f"{path}: expected judgements, found an empty file")
    return Judgements(kinds.pop(), ratings)


def read_scores(path: Path, judgements: Judgements) -> dict[Pair, float]:
    """Read scores of judged pairs from lines `image<TAB>caption<TAB>score`; others than the correlated may be missing.

    Raises:
        SettingsError: the file is malformed, or a correlated pair has no score.
    """
    scores: dict[Pair, float] = {}
    for number, fields in _rows(path):
        where = f"{path}, line {number}"
        if len(fields) != 3:
            raise SettingsError(f"{where}: expected 'image<TAB>caption<TAB>score', found {len(fields)} columns")
        scores[_pair(fields, scores, where)] = _number(fields[2], where)
    missing = [pair for pair in judgements.correlated() if pair not in scores]
    if missing:
        raise SettingsError(
            f"{path}: expected a score of every judged pair, found none of '{missing[0][0]}' and '{missing[0][1]}' "
            f"({len(missing):,} in all); add a line 'image<TAB>caption<TAB>score' for each"
        )
    return scores


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    try:
        data = read_bytes(path)
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read ({error.strerror}); expected lines separated by tabs; check the path"
        ) from None
    text = decode_utf8(data, SettingsError, lambda line: f"{path}, line {line}")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return [(number, line.split("\t")) for number, line in enumerate(lines, start=1) if line.strip()]


def _pair(fields: Sequence[str], known: Container[Pair], where: str) -> Pair:
    pair = fields[0].strip(), fields[1].strip()
    if not pair[0]:
        raise SettingsError(f"{where}: expected the name of an image in the first column, found none")
    if "#" not in pair[1]:
        raise SettingsError(f"{where}: expected a caption named 'image#number', found '{pair[1]}'")
    if pair in known:
        raise SettingsError(f"{where}: '{pair[0]}' and '{pair[1]}' occur twice; remove one of the lines")
    return pair


def _ratings(fields: Sequence[str], where: str) -> tuple[Literal["expert", "crowd"], tuple[float, ...]]:
    if len(fields) != 5:
        raise SettingsError(
            f"{where}: expected image, caption and three ratings, or image, caption, share of yes and the numbers of "
            f"yes and no, separated by tabs; found {len(fields)} columns"
        )
    first, second, third = (_number(field, where) for field in fields[2:])
    if all(value in (1, 2, 3, 4) for value in (first, second, third)):
        return "expert", (first, second, third)
    if min(second, third) >= 0 < second + third and abs(first - second / (second + third)) < LARGEST_DEVIATION:
        return "crowd", (first,)
    raise SettingsError(
        f"{where}: expected three ratings from 1 to 4, or a share of yes with the numbers of yes and no that give it; "
        f"found {', '.join(fields[2:])}"
    )


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise SettingsError(f"{where}: expected a number, found '{text}'")
    return value
