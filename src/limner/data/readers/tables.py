"""Plain tables, one line a sentence: JSONL and CSV with id, split, image, lang, text and group, label."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from limner.data.readers.corpus_files import Options, chosen_split, read_lines, read_text
from limner.data.readers.item_builder import Gathering, SourceLocation
from limner.errors import CollectionError

logger = logging.getLogger(__name__)

REQUIRED = ("image", "lang", "text")
COLUMNS = ("id", "split", *REQUIRED, "group", "label")

Row = tuple[SourceLocation, dict[str, str]]


def read_csv(source: Path, options: Options, gathering: Gathering) -> None:
    """Read a table with a header, separated by commas or semicolons, or by tabs when the file's name ends in `.tsv`.

    An empty `image` means no picture, an empty `text` no sentence. Without an `id`, an item is named by its picture's
    path without the ending. Without a `group`, the n-th sentences of an item in each language translate each other.

    Args:
        source: the file.
        options: `images`, the folder the `image` column is relative to, the file's own folder otherwise; `split` of
            the items that have none in the table (`auto` deals them out).
        gathering: gets the items, in the order of the lines.
    """
    text = read_text(source)
    delimiter = _delimiter(source, text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header = [name.strip() for name in next(reader)]
    _check_columns(header, SourceLocation(source, 1), options)

    def rows() -> Iterable[Row]:
        try:
            for values in reader:
                place = SourceLocation(source, reader.line_num)
                if len(values) != len(header) and values:
                    wrong = f"{len(values)} values for {len(header)} columns"
                    raise CollectionError(f"{place}: {wrong}; put texts with {delimiter!r} in double quotes")
                if values:
                    yield place, dict(zip(header, values, strict=True))
        except csv.Error as error:
            raise CollectionError(f"{SourceLocation(source, reader.line_num)}: not valid CSV: {error}") from None

    _gather(rows(), options.images or source.parent, options, gathering)


def read_jsonl(source: Path, options: Options, gathering: Gathering) -> None:
    """Read a file with one JSON object a line, with the same columns as CSV; `null` counts as empty.

    Args:
        source: the file.
        options: see `read_csv`.
        gathering: gets the items, in the order of the lines.
    """

    def rows() -> Iterable[Row]:
        for number, line in enumerate(read_lines(source), start=1):
            if line.strip():
                yield SourceLocation(source, number), _parse_object(line, SourceLocation(source, number), options)

    _gather(rows(), options.images or source.parent, options, gathering)


def _delimiter(source: Path, text: str) -> str:
    """What parts the columns; spreadsheets of many countries save 'CSV' with semicolons."""
    header = text.partition("\n")[0]
    if source.suffix == ".tsv":
        return "\t"
    return ";" if ";" in header and "," not in header else ","


def _parse_object(line: str, place: SourceLocation, options: Options) -> dict[str, str]:
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise CollectionError(f"{place}: not valid JSON: {error.msg}") from None
    if not isinstance(values, dict):
        raise CollectionError(f"{place}: expected an object with the keys {', '.join(REQUIRED)}")
    _check_columns(values, place, options)
    for key in COLUMNS:
        if not isinstance(values.get(key), str | int | None):
            raise CollectionError(f"{place}: '{key}' is {values[key]!r}; expected a text")
    return {key: "" if value is None else str(value) for key, value in values.items()}


def _check_columns(names: Iterable[str], place: SourceLocation, options: Options) -> None:
    found = list(names)
    required = REQUIRED if options.split else ("split", *REQUIRED)
    if lacking := [name for name in required if name not in found]:
        remedy = "; without a column 'split' give the option 'split', for example --split auto"
        raise CollectionError(
            f"{place}: columns are missing: {', '.join(lacking)}; expected {', '.join(required)} (and, where wanted, "
            f"{', '.join(name for name in COLUMNS if name not in required)}), found {', '.join(found)}"
            f"{remedy if 'split' in lacking else ''}"
        )
    if twice := [name for name, count in Counter(found).items() if count > 1]:
        raise CollectionError(f"{place}: the column '{twice[0]}' occurs twice")


def _gather(rows: Iterable[Row], folder: Path, options: Options, gathering: Gathering) -> None:
    turns: Counter[tuple[str, str]] = Counter()
    missing: set[str] = set()
    unknown: set[str] = set()
    for place, row in rows:
        unknown |= row.keys() - {*COLUMNS}
        name, lang, text = row["image"].strip(), row["lang"].strip(), row["text"]
        id = row.get("id", "").strip() or (Path(name).with_suffix("").as_posix() if name else "")
        split = row.get("split", "").strip() or (chosen_split(id, options) if options.split else "")
        image = folder / name if name else None
        if image and id not in gathering and (id in missing or not image.is_file()):
            if id not in missing:
                gathering.skip("pictures that are not there", str(image), place)
            missing.add(id)
            gathering.skip("sentences whose picture is not there", str(image), place)
            continue
        gathering.item(id, place, split=split, image=image, label=row.get("label", "").strip() or None)
        if text.strip():
            gathering.sentence(id, place, lang, text, _group(row, place, turns[id, lang]))
            turns[id, lang] += 1
    if unknown:
        logger.warning("columns that were not read: %s", ", ".join(sorted(unknown)))


def _group(row: dict[str, str], place: SourceLocation, default: int) -> int:
    text = row.get("group", "").strip()
    try:
        return int(text) if text else default
    except ValueError:
        raise CollectionError(f"{place}: the group is '{text}'; expected a whole number") from None
