"""Feature tables: what a backbone saw in each picture of a collection, stored once and read many times."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import lance
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from limner.data.collection import FEATURES, Collection
from limner.data.examples import Item
from limner.errors import FeatureError, MediaError
from limner.media.modality import ModalityName
from limner.settings import Settings

if TYPE_CHECKING:
    from limner.features.encoders.base import Backbone

logger = logging.getLogger(__name__)

Kind = Literal["pooled", "grid", "maps"]
Values = NDArray[np.float16]
Prepared = NDArray[Any]
"""One picture as a network reads it, (crops, H, W, 3), or one sound as samples."""

_SPEC_KEY = b"limner.spec"
_LANCE_ERRORS = (OSError, ValueError, RuntimeError)  # what it raises for files it cannot handle
_CHUNK_ROWS = 512
_CHUNK_BYTES = 2**27


class RegionRows(Settings):
    """A grid's rows are regions cut from the picture, then zero rows where there are fewer, then the whole picture."""

    count: int = Field(ge=1, le=100)
    """Regions of a picture at most; the grid has one row more."""
    boxes_sha256: str
    """Of the boxes the regions were chosen from."""


class FeatureSpec(Settings):
    """What the values of a table are; two tables of one fingerprint may stand for each other."""

    name: str
    """Of the table in its collection; not part of the fingerprint."""
    kind: Kind
    shape: tuple[int, ...]
    """Of one picture's values: vector (D,), grid (L, D), maps (C, H, W)."""
    backbone: str
    """Base name of the hub id, folder or weight file's network."""
    layer: str | None = None
    """Module whose output this is; none for the network's own last layer."""
    grid_size: tuple[int, int] | None = None
    """Height and width of a grid; L is their product, row by row."""
    regions: RegionRows | None = None
    """What the rows of a grid are that has no height and width."""
    preprocessing: dict[str, Any]
    weights_sha256: str
    """Of the weight file, empty for raw pixels."""
    modality: ModalityName = "image"
    """Modality of the inputs; not part of the fingerprint, since it follows from the backbone."""
    source: str | None = None
    """Where the network was when it looked, as `load_backbone` takes it; not part of the fingerprint."""

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with anything that changes the values."""
        content = self.model_dump(mode="json", exclude={"name", "source", "modality"})
        if self.regions is None:  # tables made before there were any keep their fingerprint
            del content["regions"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        layer = f" layer {self.layer}" if self.layer else ""
        form = self.kind if self.regions is None else "regions"
        return f"{self.backbone}{layer} {form} {shape} [{self.fingerprint}]"


class FeatureTable:
    """One table of features, `<collection>/features/<name>.lance`.

    A table up to `cache_bytes` is held in memory as float16; a larger one is read from disk batch by batch.
    """

    def __init__(self, path: Path, *, cache_bytes: int = 2**31) -> None:
        self.path = path
        self._dataset = _open_dataset(path)
        self.spec = _read_spec(path, self._dataset.schema)
        ids = self._dataset.to_table(columns=["id"]).column("id").to_pylist()
        self._stored = len(ids)
        self._rows = {item_id: row for row, item_id in enumerate(ids)}
        self._held: Values | None = None
        self._hold = self._stored * _row_bytes(self.spec) <= cache_bytes

    @classmethod
    def open(cls, collection: Collection, name: str, *, cache_bytes: int = 2**31) -> Self:
        """Open a table of a collection by its name.

        Raises:
            FeatureError: the collection has no such table (the error lists those it has), or it is damaged.
        """
        path = table_path(collection.path, name)
        if not path.is_dir():
            known = ", ".join(collection.features()) or "none"
            raise FeatureError(f"{path}: no such features (there are: {known}); run 'limner features' first")
        return cls(path, cache_bytes=cache_bytes)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, item_id: object) -> bool:
        return item_id in self._rows

    def ids(self) -> list[str]:
        """The ids in stored order."""
        return list(self._rows)

    def take(self, ids: Sequence[str]) -> Values:
        """Read the values of some items, in the order asked for.

        Returns:
            Values (N, *spec.shape).

        Raises:
            FeatureError: an item has no features here.
        """
        try:
            rows = np.fromiter((self._rows[item_id] for item_id in ids), dtype=np.int64, count=len(ids))
        except KeyError as missing:
            raise FeatureError(
                f"{self.path}: no {self.spec.kind} for image {missing}; run 'limner features' again to add it"
            ) from None
        if not self._hold:
            return self._take_from_disk(rows)
        if self._held is None:
            self._held = self._read_all()
        return self._held[rows]

    def _take_from_disk(self, rows: NDArray[np.int64]) -> Values:
        unique, inverse = np.unique(rows, return_inverse=True)
        table = self._dataset.take(unique.tolist(), columns=["values"])
        return _as_array(table.column("values"), self.spec.shape)[inverse]

    def _read_all(self) -> Values:
        values = np.empty((self._stored, *self.spec.shape), dtype=np.float16)
        row = 0
        for batch in self._dataset.to_batches(columns=["values"], batch_size=_chunk_rows(self.spec)):
            values[row : row + len(batch)] = _as_array(batch.column("values"), self.spec.shape)
            row += len(batch)
        return values


def table_path(collection: Path, name: str) -> Path:
    return collection / FEATURES / f"{name}.lance"


class Extraction(NamedTuple):
    """What `extract` did."""

    tables: list[FeatureTable]
    added: int
    """Pictures looked at in this run."""
    present: int
    """Pictures whose features were there already."""
    skipped: dict[str, str]
    """By item: why its picture could not be read."""


def extract(
    collection: Collection,
    backbone: Backbone,
    *,
    name: str | None = None,
    splits: Sequence[str] | None = None,
    batch_size: int = 32,
    strict: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Extraction:
    """Look at every picture of a collection once and store what was seen.

    A run that was ended in any way is continued by the next one: what is stored stays, whatever is missing is
    added. Memory holds a few batches of pictures and one chunk of results, however large the collection is.

    Args:
        collection: items without a picture are passed over.
        backbone: gives one or several tables.
        name: of the tables, instead of the backbone's; the table of a grid over the picture is called `<name>.grid`.
        splits: only the items of these.
        batch_size: pictures the network sees at once.
        strict: raise for a picture that cannot be read, instead of going on and reporting it.
        progress: called with the pictures that are done and all there are.

    Raises:
        FeatureError: the tables exist and were made by another backbone, layer or preprocessing; the name is none for
            a file; or not one picture could be looked at. No table is made then.
        CollectionError: there is no such split.
        MediaError: under `strict`, the first picture that cannot be read.
    """
    plural = backbone.modality.plural
    specs = [spec.model_copy(update={"name": _table_name(spec, name)}) for spec in backbone.specs]
    paths = [table_path(collection.path, spec.name) for spec in specs]
    items = [item for item in _items(collection, splits) if item.media_path is not None]
    known = [_known_ids(path, spec) for path, spec in zip(paths, specs, strict=True)]
    complete = set.intersection(*known)
    missing = [item for item in items if item.id not in complete]
    skipped: dict[str, str] = {}
    done = present = len(items) - len(missing)
    chunks = [_Chunk(path, spec, ids) for path, spec, ids in zip(paths, specs, known, strict=True)]
    for batch in _decoded(collection, missing, backbone, batch_size, skipped, strict):
        seen = backbone(_padded([pixels for _, pixels in batch], batch_size))
        for chunk in chunks:
            chunk.add([item.id for item, _ in batch], seen[chunk.spec.kind])
        done += len(batch)
        if progress is not None:
            progress(done + len(skipped), len(items))
    for chunk in chunks:
        chunk.commit()
    if progress is not None:
        progress(len(items), len(items))
    if not items:
        raise FeatureError(
            f"{collection.path}: no {plural} in the items; import them as well (Multi30k, COCO: option --images)"
        )
    if not done:
        first = "".join(f"; the first, '{item_id}': {reason}" for item_id, reason in list(skipped.items())[:1])
        raise FeatureError(f"{collection.path}: none of {len(items)} {plural} could be read{first}")
    if skipped:
        item_id, reason = next(iter(skipped.items()))
        logger.warning("%d %s were skipped; the first, '%s': %s", len(skipped), plural, item_id, reason)
    return Extraction([FeatureTable(path) for path in paths], done - present, present, skipped)


def _items(collection: Collection, splits: Sequence[str] | None) -> list[Item]:
    if splits is None:
        return collection.items()
    return [item for split in splits for item in collection.items(split)]


def _table_name(spec: FeatureSpec, name: str | None) -> str:
    if name is None:
        return spec.name
    if not name or name.startswith(".") or "/" in name or "\\" in name:
        raise FeatureError(
            f"'{name}': features are stored under their name, so it is not empty, does not begin with '.' and has no "
            "'/' or '\\'; call them 'mobilenet_v2', for example"
        )
    return f"{name}.grid" if spec.kind == "grid" and spec.regions is None else name


class _Chunk:
    """Rows on their way to a table; each commit is atomic, so a table is never seen half written."""

    def __init__(self, path: Path, spec: FeatureSpec, known: set[str]) -> None:
        self.path = path
        self.spec = spec
        self._known = known
        self._ids: list[str] = []
        self._values: list[Values] = []

    def add(self, ids: Sequence[str], values: Values) -> None:
        for item_id, value in zip(ids, values, strict=False):  # a padded batch has more values than ids
            if item_id not in self._known:
                self._known.add(item_id)
                self._ids.append(item_id)
                self._values.append(value)
        if len(self._ids) >= _chunk_rows(self.spec):
            self.commit()

    def commit(self) -> None:
        if not self._ids:
            return
        flat = np.stack(self._values).astype(np.float16, copy=False).reshape(-1)
        values = pa.FixedSizeListArray.from_arrays(pa.array(flat), int(np.prod(self.spec.shape)))
        table = pa.Table.from_arrays([pa.array(self._ids), values], schema=_schema(self.spec))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lance.write_dataset(table, self.path, mode="append" if _exists(self.path) else "create")
        except _LANCE_ERRORS as error:
            raise FeatureError(
                f"{self.path}: cannot be written ({error}); what was stored before is safe: "
                "make room and run the same command again"
            ) from None
        self._ids, self._values = [], []


def _decoded(
    collection: Collection,
    items: Sequence[Item],
    backbone: Backbone,
    batch_size: int,
    skipped: dict[str, str],
    strict: bool,
) -> Iterator[list[tuple[Item, Prepared]]]:
    """Decode pictures in threads, a few batches ahead of the network; Pillow works outside Python's lock."""

    def decode(item: Item) -> Prepared:
        return backbone.read(collection.media_file(item))

    waiting: deque[tuple[Item, Future[Prepared]]] = deque()
    batch: list[tuple[Item, Prepared]] = []
    rest = iter(items)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            while True:
                while len(waiting) < 3 * batch_size and (upcoming := next(rest, None)) is not None:
                    waiting.append((upcoming, pool.submit(decode, upcoming)))
                if not waiting:
                    break
                item, future = waiting.popleft()
                try:
                    batch.append((item, future.result()))
                except MediaError as error:
                    if strict:
                        raise
                    skipped[item.id] = str(error)
                if len(batch) == batch_size:
                    yield batch
                    batch = []
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    if batch:
        yield batch


def _padded(pictures: list[Prepared], batch_size: int) -> Prepared:
    """Always the same batch size, so that the same kernels run and a resumed run gives the same bits."""
    return np.stack(pictures + [pictures[-1]] * (batch_size - len(pictures)))


def _row_bytes(spec: FeatureSpec) -> int:
    return 2 * int(np.prod(spec.shape))


def _chunk_rows(spec: FeatureSpec) -> int:
    return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // _row_bytes(spec)))


def _schema(spec: FeatureSpec) -> pa.Schema:
    values = pa.list_(pa.float16(), int(np.prod(spec.shape)))
    return pa.schema(
        [pa.field("id", pa.string()), pa.field("values", values)],
        metadata={_SPEC_KEY: spec.model_dump_json()},
    )


def _as_array(column: pa.Array | pa.ChunkedArray, shape: tuple[int, ...]) -> Values:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    values: Values = column.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(-1, *shape)


def _open_dataset(path: Path) -> Any:  # noqa: ANN401 (Lance has no types)
    try:
        return lance.dataset(path)
    except _LANCE_ERRORS as error:
        raise FeatureError(
            f"{path}: not a readable feature table ({error}); delete it and run 'limner features' again"
        ) from None


def _read_spec(path: Path, schema: pa.Schema) -> FeatureSpec:
    written = (schema.metadata or {}).get(_SPEC_KEY)
    if written is None:
        raise FeatureError(f"{path}: not a feature table of Limner: it does not say what made it")
    return FeatureSpec.parse(json.loads(written), str(path))


def _exists(path: Path) -> bool:
    return any(path.glob("_versions/*"))


def _known_ids(path: Path, spec: FeatureSpec) -> set[str]:
    """What a table holds, if it was made alike; nothing where it is absent or was killed before its first commit."""
    if not _exists(path):
        return set()
    table = FeatureTable(path, cache_bytes=0)
    require_same(table.spec, spec, str(path), "use the same settings, or another name for the new features")
    return set(table.ids())


def require_same(
    stored: FeatureSpec,
    wanted: FeatureSpec,
    where: str,
    remedy: str = "remove that table and run 'limner features' with the settings of the model's own features",
) -> None:
    """Refuse features that were made differently.

    Args:
        stored: of the table, or of the features at hand.
        wanted: what is needed instead.
        where: the table or network, named in the error.
        remedy: what the user can do about it.

    Raises:
        FeatureError: names both and what differs.
    """
    if stored.fingerprint == wanted.fingerprint:
        return
    have, want = (spec.model_dump(exclude={"name", "source", "modality"}) for spec in (stored, wanted))
    differing = "; ".join(f"{key}: {have[key]} / {want[key]}" for key in have if have[key] != want[key])
    raise FeatureError(f"{where}: holds {stored}, but {wanted} was asked for ({differing}); {remedy}")
