"""JSONL and CSV tables with one sentence per row: id, split, image, lang, text, group, label."""

from __future__ import annotations

import csv
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from limner.data.readers.corpus_files import ReaderOptions, assign_split, open_lines, parse_json_line
from limner.data.readers.item_builder import ItemBuilder, SourceLocation
from limner.data.readers.values import group_in, name_in, sentences_in
from limner.errors import CollectionError, counted
from limner.files import is_file

logger = logging.getLogger(__name__)

REQUIRED = ("image", "lang", "text")
REQUIRED_WITH_LABEL = ("text", "label")
"""Required columns of a table of labelled texts."""
NAMES = ("id", "split", "image", "lang", "group", "label")
"""Columns with a name or a number, read by `name_in`."""
COLUMNS = ("id", "split", *REQUIRED, "group", "label")

Row = tuple[SourceLocation, dict[str, Any]]


def read_csv(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read a table with a header, separated by commas or semicolons, or by tabs if the file name ends in `.tsv`.

    An empty `image` denotes an item without an image, an empty `text` an item without a sentence. The default of `id`
    is the path of the image without suffix, and the number of the row in a table of labelled texts, which needs no
    columns but `text` and `label`. Without `group`, the n-th sentences of an item in each language are
    translations of each other.

    Options: `images`, the folder that the column `image` is relative to, by default the folder of the file; `split` of
    items without a split in the table; `lang` of rows without a language. For labelled texts the defaults are `train`
    and English.

    Raises:
        CollectionError: the file is malformed or columns are missing.
    """
    with closing(open_lines(source, newline="")) as lines:
        _read_csv_lines(source, lines, options, builder)


def _read_csv_lines(source: Path, lines: Iterator[str], options: ReaderOptions, builder: ItemBuilder) -> None:
    first = next(lines, "")
    # many spreadsheet programs save CSV with semicolons
    delimiter = "\t" if source.suffix == ".tsv" else ";" if ";" in first and "," not in first else ","
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    header = [name.strip() for name in next(reader)]
    if not any(header):
        raise CollectionError(
            f"{SourceLocation(source, 1)}: empty line; expected a header with the names of the columns"
        )
    _check_columns(header, SourceLocation(source, 1), options)

    def rows() -> Iterable[Row]:
        try:
            for values in reader:
                location = SourceLocation(source, reader.line_num)
                if len(values) != len(header) and values:
                    counts = f"{counted(len(values), 'value')} for {counted(len(header), 'column')}"
                    raise CollectionError(f"{location}: {counts}; put texts with {delimiter!r} in double quotes")
                if values:
                    yield location, dict(zip(header, values, strict=True))
        except csv.Error as error:
            raise CollectionError(
                f"{SourceLocation(source, reader.line_num)}: not valid CSV: {error}; correct the file"
            ) from None

    _add_rows(rows(), options.images or source.parent, options, builder)


def read_jsonl(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read a file with one JSON object per line, with the columns of `read_csv` as keys; `null` is an empty value.

    A `text` holds sentences as `sentences_in` reads them.

    Options: see `read_csv`.

    Raises:
        CollectionError: a line is malformed or keys are missing.
    """
    with closing(open_lines(source)) as lines:
        rows = (
            (location, _parse_object(line, location, options))
            for number, line in enumerate(lines, start=1)
            if line.strip()
            for location in [SourceLocation(source, number)]
        )
        _add_rows(rows, options.images or source.parent, options, builder)


def _parse_object(line: str, location: SourceLocation, options: ReaderOptions) -> dict[str, Any]:
    values = parse_json_line(line, location)
    if not isinstance(values, dict):
        raise CollectionError(f"{location}: expected an object with the keys {', '.join(REQUIRED)}")
    _check_columns(values, location, options)
    return values


def _check_columns(names: Iterable[str], location: SourceLocation, options: ReaderOptions) -> None:
    columns = list(names)
    required: tuple[str, ...] = REQUIRED if options.split else ("split", *REQUIRED)
    remedy = "; without a column 'split' set the option 'split', for example --split auto"
    if "label" in columns and "image" not in columns:
        required = REQUIRED_WITH_LABEL
    elif "image" not in columns:
        end = remedy if "split" in required and "split" not in columns else ""
        raise CollectionError(
            f"{location}: expected text and label (labelled texts), or image, lang and text (image may be empty, with "
            f"an id); found {', '.join(columns)}{end}"
        )
    if missing := [name for name in required if name not in columns]:
        raise CollectionError(
            f"{location}: columns are missing: {', '.join(missing)}; expected {', '.join(required)} (optional: "
            f"{', '.join(name for name in COLUMNS if name not in required)}), found {', '.join(columns)}"
            f"{remedy if 'split' in missing else ''}"
        )
    if repeated := [name for name, count in Counter(columns).items() if count > 1]:
        raise CollectionError(f"{location}: the column '{repeated[0]}' occurs twice; remove one of the two")


def _add_rows(rows: Iterable[Row], folder: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    missing: set[str] = set()
    unknown: set[str] = set()
    passed = builder.passed
    for number, (location, row) in enumerate(rows, start=1):
        unknown |= row.keys() - {*COLUMNS}
        if passed != builder.passed:
            passed = builder.passed
            missing.clear()
        labelled = "image" not in row
        names = {column: name_in(row.get(column), column, location) for column in NAMES}
        name, group = names["image"], names["group"]
        text = row["text"]
        texts = [] if isinstance(text, str) and not text.strip() else sentences_in(text, "text", location)
        lang = names["lang"] or options.lang or ("en" if labelled else "")
        id = names["id"] or (Path(name).with_suffix("").as_posix() if name else "")
        id = id or (f"row-{number:05d}" if labelled else "")
        split = names["split"] or (assign_split(id, options) if options.split or labelled else "")
        image = folder / name if name else None
        if image and id not in builder and (id in missing or not is_file(image)):
            if id not in missing:
                builder.skip("images that are missing", str(image), location)
            missing.add(id)
            for _ in texts:
                builder.skip("sentences whose image is missing", str(image), location)
            continue
        builder.add_item(id, location, split=split, image=image, label=names["label"] or None)
        if not group:
            builder.add_sentences(id, location, lang, texts)
        for sentence in texts if group else []:
            builder.add_sentence(id, location, lang, sentence, group_in(group, "group", location))
    if unknown:
        logger.warning("ignored columns: %s", ", ".join(sorted(unknown)))
