"""Parquet files, and data sets of Hugging Face `datasets` or in memory: one row an item, read in batches."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from limner.data.readers.corpus_files import SPLIT_ALIASES, ReaderOptions, assign_split, find_files
from limner.data.readers.item_builder import ItemBuilder, SourceLocation
from limner.data.readers.values import is_missing, name_in, sentences_in
from limner.errors import CollectionError, MediaError, did_you_mean
from limner.files import is_file, require_regular
from limner.files.structured import StructureError, parse_json
from limner.media.image import image_size
from limner.storage.places import damage_raised_as

Rows = Iterable[Mapping[str, Any]] | Mapping[str, Iterable[Mapping[str, Any]]]
"""A data set in memory: rows with named columns, possibly by split."""
BATCH_ROWS = 64
"""Rows that are read together; each may hold an image."""
logger = logging.getLogger(__name__)
IDS, IMAGES, TEXTS = ("id", "key"), ("image", "image_path", "file_name"), ("text", "caption", "sentences", "captions")
"""Names of the columns that are read, in the order of preference."""
_SUFFIXES = {b"\xff\xd8": "jpg", b"\x89P": "png", b"RI": "webp", b"GI": "gif"}


def read_parquet(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read Parquet files, a folder of them or one.

    Columns: `id` or `key`; `image`, a path or bytes, or a struct with both as Hugging Face writes it; `text`,
    `caption`, `sentences` or `captions`, as `sentences_in` reads them; `split`, `lang` and `label`, as `name_in` reads
    them, or numbers of the names of a `ClassLabel`. Bytes of images are written into the folder `images` of the
    collection; paths are relative to `options.images` or the folder of the file.

    Raises:
        CollectionError: a file is damaged, lacks these columns, or these functions cannot read a value.
    """
    import pyarrow.parquet as parquet

    for path in find_files(source, ["*.parquet"], "Parquet files"):
        with damage_raised_as(partial(_damaged, path)):
            require_regular(path)
            file = parquet.ParquetFile(path)
            names = [name for name in file.schema_arrow.names if name in _COLUMNS]
            batches = file.iter_batches(batch_size=BATCH_ROWS, columns=names)
            rows = _rows(path, batches, _class_names(file.schema_arrow))
            _add_rows(path, rows, options, builder, options.images or path.parent)


def read_datasets(source: Path | Rows, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read a folder that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote; columns as in `read_parquet`.

    The splits of a `DatasetDict` become the splits of the items. Or read rows in memory: a list of dicts, a `Dataset`,
    or one of them by split, in which images may be Pillow images too.

    Raises:
        CollectionError: the extra `datasets` is not installed, or the folder has no such data set.
    """
    if not isinstance(source, Path):
        for split, rows in source.items() if isinstance(source, Mapping) else (("", source),):
            _add_rows(Path(split or "rows"), rows, options, builder, options.images or Path(), _split(split))
        return
    try:
        import datasets
    except ImportError:
        raise CollectionError(
            f"{source}: data sets need the extra 'datasets'; run 'pip install limner[datasets]'"
        ) from None
    with damage_raised_as(lambda reason: CollectionError(f"{source}: no data set that save_to_disk wrote ({reason})")):
        loaded = datasets.load_from_disk(str(source))
        parts = dict(loaded) if isinstance(loaded, dict) else {"": loaded}
        for split, part in parts.items():
            batches = part.with_format("arrow").iter(batch_size=BATCH_ROWS)
            rows = _rows(source / split, batches, _class_names(part.features.arrow_schema))
            _add_rows(source / split, rows, options, builder, options.images or source, _split(split))


def _damaged(path: Path, reason: str) -> CollectionError:
    return CollectionError(f"{path}: damaged or no Parquet file ({reason}); write the file again")


_USES = (IDS, IMAGES, TEXTS, ("split",), ("lang",), ("label",))
_COLUMNS = tuple(column for columns in _USES for column in columns)


def _split(name: str) -> str:
    return SPLIT_ALIASES.get(name, {"validation": "val"}.get(name, name))


def _class_names(schema: Any) -> dict[str, list[str]]:  # noqa: ANN401
    """Names of the classes of each column of type `ClassLabel`, which `datasets` stores beside the schema."""
    stored = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        features = parse_json(stored).get("info", {}).get("features", {})
        return {name: list(features[name]["names"]) for name in features if features[name]["_type"] == "ClassLabel"}
    except (StructureError, AttributeError, KeyError, TypeError):  # written by another program
        return {}


def _rows(path: Path, batches: Iterable[Any], class_names: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
    first = 0
    for batch in batches:
        batch = batch.select([name for name in batch.schema.names if name in _COLUMNS])
        for name in batch.schema.names:
            with damage_raised_as(partial(_damaged_rows, path, first, first + batch.num_rows, name)):
                batch.column(name).validate(full=True)
        first += batch.num_rows
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            for name, names in class_names.items():
                if isinstance(value := row.get(name), int):  # -1: without a class
                    row[name] = None if value == -1 else names[value] if 0 <= value < len(names) else value
            yield row


def _damaged_rows(path: Path, first: int, end: int, column: str, reason: str) -> CollectionError:
    rows = SourceLocation(path, f"rows {first:,} to {end - 1:,}")
    return CollectionError(f"{rows}: '{column}' is damaged ({reason}); expected a text in UTF-8, or valid values")


def _add_rows(
    path: Path,
    rows: Iterable[Mapping[str, Any]],
    options: ReaderOptions,
    builder: ItemBuilder,
    folder: Path,
    default_split: str = "",
) -> None:
    ignored: set[str] = set()
    for number, row in enumerate(rows):
        location = SourceLocation(path, f"row {number:,}")
        for name in sorted(set(map(str, row)) - {*_COLUMNS} - ignored):
            if similar := did_you_mean(name, (column for use in _USES if not row.keys() & {*use} for column in use)):
                raise CollectionError(f"{location}: unknown column '{name}'{similar} Rename it, or leave it out")
            ignored.add(name)
        (text_column, texts), (_, image) = _first(row, TEXTS), _first(row, IMAGES)
        if not row.keys() & {*IMAGES, *TEXTS}:
            raise CollectionError(
                f"{location}: expected a column {', '.join((*IMAGES, *TEXTS[:-1]))} or {TEXTS[-1]}, found "
                f"{', '.join(row) or 'none of them'}; rename the columns"
            )
        names = {column: name_in(row.get(column), column, location) for column in (*IDS, "split", "lang", "label")}
        id = next((names[column] for column in IDS if names[column]), f"{path.stem}-{number:09d}")
        if texts is None and image is None:
            builder.skip("rows without an image and a text", id, location)
            continue
        split = names["split"] or default_split or assign_split(id, options)
        try:
            stored = _image(image, f"{path.stem}/{number:09d}", folder, location, builder)
        except MediaError as error:
            builder.skip("images that cannot be read", str(error), location)
            continue
        sentences = sentences_in(texts, text_column, location)
        builder.add_item(id, location, split=split, image=stored, label=names["label"] or None)
        builder.add_sentences(id, location, names["lang"] or options.lang or "en", sentences)
    if ignored:
        logger.warning("ignored columns: %s", ", ".join(sorted(ignored)))


def _first(row: Mapping[str, Any], columns: tuple[str, ...]) -> tuple[str, Any]:
    """Return the first of some columns that is not null in a row, and its value."""
    return next(((name, row[name]) for name in columns if not is_missing(row.get(name))), ("", None))


def _image(value: Any, name: str, folder: Path, location: SourceLocation, builder: ItemBuilder) -> str | None:  # noqa: ANN401
    """Return the path of an image, whose bytes are written into the collection if the row has them."""
    if isinstance(value, Image.Image):
        value.save(encoded := io.BytesIO(), "PNG")
        value = encoded.getvalue()
    value = str(value) if isinstance(value, Path) else value
    data, path_value = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, value)
    if isinstance(data, bytes):
        image_size(data)
        file = f"images/{name}.{_SUFFIXES.get(data[:2], 'jpg')}"
        builder.write_file(file, data)
        return file
    if not (file := name_in(path_value, "image", location)):
        return None
    path = folder / file
    if not is_file(path):
        raise MediaError(f"{path}: no such file")
    return str(path)
