"""Feature tables of a collection, stored in Lance, and their combination into one source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from limner.data.collection import MEDIA_COLUMNS
from limner.data.examples import Item, StoredFeatures
from limner.data.languages import RegionItem
from limner.errors import FeatureError, SettingsError, did_you_mean
from limner.features.preprocessing import Preprocessing, encoded_box
from limner.features.spec import FeatureArray
from limner.features.tables import (
    COLUMNS,
    DamagedTableError,
    chunk_rows,
    damaged_rows,
    damaged_table,
    open_features_table,
    read_spec,
    row_bytes,
    table_path,
    to_array,
)
from limner.media.image import image_size
from limner.storage.hashes import CHECKSUM, RowsById, infinite_rows
from limner.storage.places import damage_raised_as

if TYPE_CHECKING:
    import pyarrow as pa

    from limner.data.collection import Collection

_SCANNED_IDS = 65_536
_MOBILENET, _LITE2 = "--backbone google/mobilenet_v2_1.0_224", "--backbone efficientnet-lite2"
TABLE_OPTIONS = {
    "mobilenet_v2": f"{_MOBILENET} --name mobilenet_v2",
    "mobilenet_v2.grid": f"{_MOBILENET} --kind both --size 448 --name mobilenet_v2",
    "mobilenet_v2.frames": f"{_MOBILENET} --kind grid --frames 16 --name mobilenet_v2",
    "efficientnet-lite2": _LITE2,
    "efficientnet-lite2.grid": f"{_LITE2} --kind both --size 300 --resize squash",
    "lite2": f"{_LITE2} --kind both --size 300 --resize squash --views 2 --name lite2",
    "lite2.grid": f"{_LITE2} --kind both --size 300 --resize squash --views 2 --name lite2",
    "lite2_16.grid": f"{_LITE2} --layer stage5 --kind grid --size 256 --resize squash --name lite2_16",
    "lite2_256": f"{_LITE2} --size 256 --resize squash --name lite2_256",
    "mobilenet_v2_regions": f"{_MOBILENET} --boxes FILE --name mobilenet_v2_regions",
    "vgg16": "--backbone vgg16:FILE --name vgg16",
    "vgg19": "--backbone vgg19:FILE --name vgg19",
    "vgg19.grid": "--backbone vgg19:FILE --kind both --name vgg19",
    "vgg19_regions": "--backbone vgg19:FILE --boxes FILE --regions 4 --name vgg19_regions",
    "resnet50_res4f.grid": "--backbone microsoft/resnet-50 --layer res4f --kind grid --name resnet50_res4f",
    "kmeans": "--backbone kmeans:FILTERS",
    "pixels64": "--backbone pixels:64",
    "pixels96": "--backbone pixels:96",
    "pixels32.frames": "--backbone pixels:32 --frames 16",
    "logmel": "--backbone logmel",
    "logmel_frames": "--backbone logmel:62",
}
"""Options of `limner features` by the name of the table that a recipe reads."""


class FeatureTable:
    """Features of one kind, by item id: the Lance table `<collection>/features/<name>.lance`.

    A table of at most `cache_bytes` is held in memory as float16; a larger one is read from disk for each batch.

    Attributes:
        path: folder of the table.
        spec: specification of the features.
    """

    def __init__(self, path: Path, *, cache_bytes: int = 2**31) -> None:
        """Open a table; FeatureError if it is damaged, or was not written by Limner."""
        self.path = path
        self._dataset = open_features_table(path)
        self.spec = read_spec(path, self._dataset.schema)
        with damage_raised_as(self._damaged, self.path):
            self._rows = RowsById(self._id_batches())
        self._cache: FeatureArray | None = None
        self._cacheable = len(self._rows) * row_bytes(self.spec) <= cache_bytes

    @classmethod
    def open(cls, collection: Collection, name: str, *, cache_bytes: int = 2**31) -> Self:
        """Open a table of a collection by its name; FeatureError if it is missing or damaged."""
        path = table_path(collection.path, name)
        if not path.is_dir():
            available = ", ".join(collection.features()) or "none"
            remedy = f"run '{table_command(name, collection.path) or 'limner features'}' first"
            if not any(item.media_path for item in collection.iter_items(columns=MEDIA_COLUMNS)):
                remedy = "the collection has no images, videos or audio files; train a model without features on it"
            similar = did_you_mean(name, collection.features())
            raise FeatureError(f"{path}: no such feature table (available: {available}); {remedy}{similar}")
        return cls(path, cache_bytes=cache_bytes)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._rows

    def ids(self) -> list[str]:
        """Read the ids of the items in stored order."""
        with damage_raised_as(self._damaged, self.path):
            return [item_id for batch in self._id_batches() for item_id in batch]

    def take(self, ids: Sequence[str]) -> FeatureArray:
        """Read the features of items, (N, *spec.shape), in the order of `ids`; FeatureError if an item has none."""
        rows = self._rows.find(ids)
        if (rows < 0).any():
            raise FeatureError(
                f"{self.path}: no {self.spec.kind} features of item '{ids[int(np.argmin(rows))]}'; run 'limner "
                "features' again to add them"
            )
        if not self._cacheable:
            unique, inverse = np.unique(rows, return_inverse=True)
            with damage_raised_as(self._damaged, self.path):
                return self._verified(self._dataset.take(unique.tolist(), columns=COLUMNS))[inverse]
        if self._cache is None:
            self._cache = self._read_all()
        return self._cache[rows]

    def data_files(self) -> list[str]:
        """Names of the files that hold the stored features."""
        return [file.path for fragment in self._dataset.get_fragments() for file in fragment.data_files()]

    @cached_property
    def digest(self) -> str:
        """A digest of the rows by their checksums, whatever their order and files: compaction does not change it."""
        count, total, parity = 0, np.uint64(0), np.uint64(0)
        with damage_raised_as(self._damaged, self.path), np.errstate(over="ignore"):
            for batch in self._dataset.to_batches(columns=[CHECKSUM], batch_size=_SCANNED_IDS, batch_readahead=1):
                checksums = np.asarray(batch.column(0).fill_null(0), np.uint64)
                count, total = count + len(checksums), total + checksums.sum(dtype=np.uint64)
                parity ^= np.bitwise_xor.reduce(checksums, initial=np.uint64(0))
        return f"{count:x}-{int(total):016x}-{int(parity):016x}"

    def _id_batches(self) -> Iterator[list[str]]:
        for batch in self._dataset.to_batches(columns=["id"], batch_size=_SCANNED_IDS, batch_readahead=1):
            yield batch.column(0).to_pylist()

    def _read_all(self) -> FeatureArray:
        count = len(self._rows)
        values = np.empty((count, *self.spec.shape), dtype=np.float16)
        row = 0
        with damage_raised_as(self._damaged, self.path):
            for batch in self._dataset.to_batches(columns=COLUMNS, batch_size=chunk_rows(self.spec)):
                if len(batch):
                    values[row : row + len(batch)] = self._verified(batch)
                    row += len(batch)
        if row != count:
            raise self._damaged(f"{row:,} of {count:,} rows can be read")
        return values

    def _verified(self, rows: pa.Table | pa.RecordBatch) -> FeatureArray:
        """Return the values of rows; raise DamagedTableError if they do not have their checksums or are not finite."""
        values = to_array(rows.column("values"), self.spec.shape)
        if bad := damaged_rows(rows, values, self.spec):
            reason = "not finite (NaN or infinity)" if infinite_rows(values) else "not the values that were stored"
            item_id = rows.column("id")[bad[0]].as_py()
            raise self._damaged(f"the {self.spec.kind} features of item '{item_id}' are {reason}")
        return values

    def _damaged(self, reason: str) -> DamagedTableError:
        return damaged_table(self.path, reason)


class FeatureStore:
    """Several feature tables of one collection as one `FeatureSource`, each table of another kind.

    Attributes:
        tables: the tables.
        folder: the collection.
    """

    def __init__(self, tables: Sequence[FeatureTable], folder: Path) -> None:
        self.tables, self.folder = tuple(tables), folder
        names: dict[str, str] = {}
        for spec in (table.spec for table in tables):
            other = names.setdefault(spec.kind, spec.name)
            if other != spec.name:
                raise SettingsError(
                    f"features.tables: expected one table of each kind, got '{other}' and '{spec.name}' of kind "
                    f"'{spec.kind}'; remove one of them"
                )

    @classmethod
    def open(cls, collection: Collection, names: Sequence[str], cache_mib: int) -> Self:
        """Open feature tables of a collection, one of each kind; tables of at most `cache_mib` are held in memory.

        Raises:
            FeatureError: the collection has no table of a name, or the table is damaged.
            SettingsError: two tables are of the same kind.
        """
        tables = [FeatureTable.open(collection, name, cache_bytes=cache_mib << 20) for name in names]
        return cls(tables, collection.path)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of the features of one item, by kind."""
        return {table.spec.kind: table.spec.shape for table in self.tables}

    @property
    def table_names(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(table.spec.name for table in self.tables)

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Read the features of items by kind, None without an image; FeatureError if an item has none in a table."""
        rows = [row for row, item in enumerate(items) if item.media_path is not None]
        features: list[StoredFeatures | None] = [None] * len(items)
        for table in self.tables:
            values = table.take([items[row].id for row in rows])
            for row, value in zip(rows, values, strict=True):
                features[row] = {**(features[row] or {}), table.spec.kind: value}
        return features

    def covers(self, item: Item) -> bool:
        """Whether every table has features of the item; true as well for items without an image or audio file."""
        return item.media_path is None or all(item.id in table for table in self.tables)


class RegionStore(FeatureStore):
    """Feature tables whose features of a `RegionItem` include its `box` in fractions of the encoded image."""

    def __init__(self, tables: Sequence[FeatureTable], folder: Path) -> None:
        super().__init__(tables, folder)
        self._encoded_parts: dict[str, tuple[float, float, float, float]] = {}

    def covers(self, item: Item) -> bool:
        """Whether every table has features of the item, or of the image of a region."""
        return super().covers(item.whole if isinstance(item, RegionItem) else item)

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Read the features of items; a region has the features of its image and its box."""
        features = super().take([item.whole if isinstance(item, RegionItem) else item for item in items])
        return [
            {**values, "box": self.relative_box(item)}
            if isinstance(item, RegionItem) and values is not None
            else values
            for item, values in zip(items, features, strict=True)
        ]

    def relative_box(self, item: RegionItem) -> NDArray[np.float32]:
        """Box of a region in fractions of the encoded image: centre, width, height, (4,); MediaError if unreadable."""
        return relative_box(item.regions[0].box, self.encoded_part(item))

    def encoded_part(self, item: Item) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the part of an image that its features are computed of, in pixels."""
        assert item.image is not None, f"item '{item.id}' has no image"
        if item.image not in self._encoded_parts:
            preprocessing = Preprocessing.parse(self.tables[0].spec.preprocessing, self.table_names[0])
            self._encoded_parts[item.image] = encoded_box(image_size(self.folder / item.image), preprocessing)
        return self._encoded_parts[item.image]


def feature_store(of_regions: bool) -> type[FeatureStore]:
    """Return the class of the features of images, or of their regions."""
    return RegionStore if of_regions else FeatureStore


def relative_box(box: Sequence[float], encoded: tuple[float, float, float, float]) -> NDArray[np.float32]:
    """Convert left, top, width and height in pixels to centre, width and height in fractions of the encoded part."""
    origin, size = np.array(encoded[:2]), np.array(encoded[2:]) - encoded[:2]
    first = ((np.array(box[:2]) - origin) / size).clip(0, 1)
    last = ((np.array(box[:2]) + box[2:] - origin) / size).clip(0, 1)
    relative: NDArray[np.float32] = np.concatenate([(first + last) / 2, last - first]).astype(np.float32)
    return relative


def pixel_box(box: Sequence[float], encoded: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    """Convert a box in fractions of the encoded part of an image to left, top, width and height in pixels."""
    width, height = encoded[2] - encoded[0], encoded[3] - encoded[1]
    x, y, w, h = box
    return (encoded[0] + (x - w / 2) * width, encoded[1] + (y - h / 2) * height, w * width, h * height)


def table_command(name: str, collection: Path | str) -> str | None:
    """Return the command that makes a table of a collection; None for a table without a known command."""
    options = TABLE_OPTIONS.get(name)
    return None if options is None else f"limner features {collection} {options}"
