"""Parquet files and local data sets of Hugging Face `datasets`: one row an item, read in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from limner.data.readers.corpus_files import SPLIT_ALIASES, ReaderOptions, assign_split, find_files
from limner.data.readers.item_builder import ItemBuilder, SourceLocation
from limner.errors import CollectionError, MediaError
from limner.files import is_file, require_regular
from limner.media.image import image_size
from limner.storage.lance_tables import damage_as

BATCH_ROWS = 64
"""Rows that are read together; each may hold an image."""
IDS, IMAGES, TEXTS = ("id", "key"), ("image", "image_path", "file_name"), ("text", "caption", "sentences", "captions")
"""Names of the columns that are read, in the order of preference."""
_SUFFIXES = {b"\xff\xd8": "jpg", b"\x89P": "png", b"RI": "webp", b"GI": "gif"}


def read_parquet(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read Parquet files, a folder of them or one.

    Columns: `id` or `key`; `image`, a path or bytes, or a struct with both as Hugging Face writes it; `text`,
    `caption`, `sentences` or `captions`, one text or a list; `split`, `lang` and `label`. Bytes of images are written
    into the folder `images` of the collection; paths are relative to `options.images` or the folder of the file.

    Raises:
        CollectionError: a file is damaged, or lacks these columns.
    """
    import pyarrow.parquet as parquet

    for path in find_files(source, ["*.parquet"], "Parquet files"):
        with damage_as(partial(_damaged, path)):
            require_regular(path)
            file = parquet.ParquetFile(path)
            names = [name for name in file.schema_arrow.names if name in _COLUMNS]
            batches = file.iter_batches(batch_size=BATCH_ROWS, columns=names)
            _add_rows(path, _rows(batches), options, builder, options.images or path.parent)


def read_datasets(source: Path, options: ReaderOptions, builder: ItemBuilder) -> None:
    """Read a folder that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote; columns as in `read_parquet`.

    The splits of a `DatasetDict` are those of the items.

    Raises:
        CollectionError: the extra `datasets` is not installed, or the folder has no such data set.
    """
    try:
        import datasets
    except ImportError:
        raise CollectionError(
            f"{source}: data sets need the extra 'datasets'; run 'pip install limner[datasets]'"
        ) from None
    with damage_as(lambda reason: CollectionError(f"{source}: no data set that save_to_disk wrote ({reason})")):
        loaded = datasets.load_from_disk(str(source))
        parts = dict(loaded) if isinstance(loaded, dict) else {"": loaded}
        for split, part in parts.items():
            batches = part.with_format("arrow").iter(batch_size=BATCH_ROWS)
            rows = ({"split": _split(split), **row} if split else row for row in _rows(batches))
            _add_rows(source / split, rows, options, builder, options.images or source)


def _damaged(path: Path, reason: str) -> CollectionError:
    return CollectionError(f"{path}: damaged or no Parquet file ({reason}); write the file again")


_COLUMNS = (*IDS, *IMAGES, *TEXTS, "split", "lang", "label")


def _split(name: str) -> str:
    return SPLIT_ALIASES.get(name, {"validation": "val"}.get(name, name))


def _rows(batches: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for row in batch.to_pylist():
            yield {name: value for name, value in row.items() if name in _COLUMNS}


def _add_rows(
    path: Path, rows: Iterable[dict[str, Any]], options: ReaderOptions, builder: ItemBuilder, folder: Path
) -> None:
    for number, row in enumerate(rows):
        location = SourceLocation(path, f"row {number:,}")
        texts, image = _first(row, TEXTS), _first(row, IMAGES)
        if texts is None and image is None:
            raise CollectionError(
                f"{location}: expected a column {', '.join((*IMAGES, *TEXTS[:-1]))} or {TEXTS[-1]}, found "
                f"{', '.join(row) or 'none of them'}; rename the columns"
            )
        id = str(_first(row, IDS) or f"{path.stem}-{number:09d}")
        split = str(row.get("split") or "") or assign_split(id, options)
        try:
            stored = None if image is None else _image(image, f"{path.stem}/{number:09d}", folder, builder)
        except MediaError as error:
            builder.skip("images that cannot be read", str(error), location)
            continue
        label = row.get("label")
        builder.add_item(id, location, split=split, image=stored, label=None if label is None else str(label))
        lang = str(row.get("lang") or options.lang or "en")
        for group, text in enumerate(texts if isinstance(texts, list) else [texts] if texts else []):
            builder.add_sentence(id, location, lang, str(text), group)


def _first(row: dict[str, Any], names: tuple[str, ...]) -> Any:  # noqa: ANN401
    return next((row[name] for name in names if row.get(name) is not None), None)


def _image(value: Any, name: str, folder: Path, builder: ItemBuilder) -> str:  # noqa: ANN401
    """Return the path of an image, whose bytes are written into the collection if the row has them.

    Raises:
        MediaError: it is missing, or no image.
    """
    data = value.get("bytes") if isinstance(value, dict) else value if isinstance(value, bytes) else None
    if data is not None:
        image_size(data)
        file = f"images/{name}.{_SUFFIXES.get(data[:2], 'jpg')}"
        builder.write_file(file, data)
        return file
    path = folder / str(value.get("path") if isinstance(value, dict) else value)
    if not is_file(path):
        raise MediaError(f"{path}: no such file")
    return str(path)
