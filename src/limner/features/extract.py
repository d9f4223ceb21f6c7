"""Extraction: computing the features of a collection with a backbone and storing them."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np

from limner.data.collection import MEDIA_COLUMNS, Collection
from limner.data.examples import Item
from limner.errors import FeatureError, MediaError, SettingsError, counted
from limner.features.encoders.base import Backbone, EncoderInput, encode
from limner.features.encoders.load import load_backbone, load_clip_backbone
from limner.features.maintenance import IntactRows, repair_table
from limner.features.regions import with_regions
from limner.features.spec import FeatureArray, FeatureKind, FeatureSpec
from limner.features.store import FeatureTable
from limner.features.tables import TableWriter, table_path
from limner.files import LOCK_FILE, locked
from limner.media.modality import VIDEO
from limner.process import require_memory
from limner.progress import Progress
from limner.storage.outputs import require_name
from limner.storage.places import remove_unfinished

logger = logging.getLogger(__name__)

_BATCHES_AHEAD = 3


class BackboneChoice(NamedTuple):
    """A backbone and its options for a collection, as plain values from which any process can load the backbone."""

    name: str
    """See `load_backbone`."""
    kind: str = "pooled"
    """Kind of features: pooled, grid or both."""
    options: Mapping[str, Any] = {}
    """Options of `load_backbone` except the kind."""
    sampling: Mapping[str, int] = {}
    """Frames of videos; empty for the default."""
    boxes: str | None = None
    """File of boxes, or 'collection': regions are encoded; see `with_regions`."""
    regions: int | None = None
    """Maximum number of regions per image; None for the default."""

    def load(self, collection: Collection, splits: Sequence[str] | None = None, *, strict: bool = False) -> Backbone:
        """Load the backbone for the items of some splits, or of all splits.

        Raises:
            BackboneError: see `load_backbone`.
            SettingsError: an option is unknown, or does not apply to the items.
        """
        if self.boxes is None and self.regions is not None:
            raise SettingsError(
                f"--regions {self.regions}: needs --boxes; name the file of boxes, or leave --regions out"
            )
        videos = any(item.modality is VIDEO for _, item in encoded_items(collection, splits))
        if self.sampling and not videos:
            logger.warning("--frames, --every: there are images only, and an image is a video of one frame")
        if (self.sampling or videos) and self.boxes is not None:
            raise SettingsError("--boxes: regions of videos cannot be encoded; leave it out")
        if self.sampling or videos:
            return load_clip_backbone(self.name, self.kind, self.sampling, **self.options)
        backbone = load_backbone(self.name, kind=self.kind, **self.options)
        if self.boxes is None:
            return backbone
        count = {} if self.regions is None else {"count": self.regions}
        return with_regions(backbone, collection, self.boxes, strict=strict, **count)


class Extraction(NamedTuple):
    """Result of `extract`."""

    tables: list[FeatureTable]
    """The tables, one for each kind of features."""
    added: int
    """Number of items encoded in this run."""
    present: int
    """Number of items whose features were already stored."""
    skipped: dict[str, str]
    """Error message of each item whose file could not be read, by item id."""
    repaired: int = 0
    """Number of damaged rows that were removed from the tables and computed anew."""


def extract(
    collection: Collection,
    backbone: Backbone,
    *,
    name: str | None = None,
    splits: Sequence[str] | None = None,
    batch_size: int = 32,
    strict: bool = False,
    on_progress: Progress | None = None,
    on_verified: Progress | None = None,
) -> Extraction:
    """Compute and store the features of a collection's images, videos or audio files.

    An interrupted run is continued by calling `extract` again: stored features are kept, missing features are added,
    and damaged rows are computed anew (see `repair_table`). Memory holds a few batches of inputs and one chunk of
    features, whatever the size of the collection.

    Args:
        collection: collection of the items; items without a file are ignored.
        backbone: encoder of one or several kinds of features.
        name: name of the tables; default: the backbone's. The table of a grid over the image is named `<name>.grid`.
        splits: splits to encode; default: all.
        batch_size: number of inputs per batch; videos are encoded one by one, their frames together.
        strict: raise an error for a file that cannot be read, instead of skipping it.
        on_progress: called with the number of items done and their total.
        on_verified: called with the number of rows of a stored table that are verified, and their total.

    Raises:
        FeatureError: the tables exist and were computed by another backbone, layer or preprocessing; the name is not a
            file name; or no file could be read. No table is created then.
        CollectionError: a split does not exist.
        MediaError: under `strict`, for the first file that cannot be read.
    """
    specs = named_specs(backbone, name)
    with locked_tables(collection, specs):
        intact = intact_rows(collection, specs, on_verified)
        return _extract(collection, backbone, splits, specs, intact, batch_size, strict, on_progress)


def named_specs(backbone: Backbone, name: str | None) -> list[FeatureSpec]:
    """Return the specifications of the tables that a backbone fills, under their names; see `extract`."""
    return [spec.model_copy(update={"name": _table_name(spec, name)}) for spec in backbone.specs]


@contextmanager
def locked_tables(collection: Collection, specs: Sequence[FeatureSpec]) -> Iterator[None]:
    """Lock feature tables, and remove the remains of interrupted writes; FeatureError if a table is locked."""
    with ExitStack() as locks:
        for name in sorted(spec.name for spec in specs):
            path = table_path(collection.path, name)
            locks.enter_context(locked(path, FeatureError, collection.path / f".features-{name}{LOCK_FILE}"))
            remove_unfinished(path)
        yield


def intact_rows(collection: Collection, specs: Sequence[FeatureSpec], on_verified: Progress | None) -> list[IntactRows]:
    """Verify and repair the tables of some specifications; return the rows that need not be computed."""
    return [repair_table(table_path(collection.path, spec.name), spec, on_verified) for spec in specs]


def _extract(
    collection: Collection,
    backbone: Backbone,
    splits: Sequence[str] | None,
    specs: Sequence[FeatureSpec],
    intact: Sequence[IntactRows],
    batch_size: int,
    strict: bool,
    on_progress: Progress | None,
) -> Extraction:
    """Compute the features that the tables lack; the caller holds the locks of the tables."""
    paths = [table_path(collection.path, spec.name) for spec in specs]
    skipped: dict[str, str] = {}

    def is_stored(item: Item) -> bool:
        return all(item.id in rows.ids for rows in intact)

    total = present = 0
    for _, item in encoded_items(collection, splits):
        total, present = total + 1, present + is_stored(item)
    done = present
    missing = (item for _, item in encoded_items(collection, splits) if not is_stored(item))
    writers = [TableWriter(path, spec, rows.ids) for path, spec, rows in zip(paths, specs, intact, strict=True)]
    for ids, features in encode_items(collection, missing, backbone, batch_size, None if strict else skipped):
        for writer in writers:
            writer.add(ids, features[writer.spec.kind])
        done += len(ids)
        if on_progress is not None:
            on_progress(done + len(skipped), total)
    for writer in writers:
        writer.flush()
    if on_progress is not None:
        on_progress(total, total)
    check_extraction(collection, backbone, total, done, skipped)
    repaired = sum(rows.damaged for rows in intact)
    return Extraction([FeatureTable(path) for path in paths], done - present, present, skipped, repaired)


def check_extraction(
    collection: Collection, backbone: Backbone, total: int, done: int, skipped: dict[str, str]
) -> None:
    """Raise an error if no features were computed, and warn of skipped items."""
    plural = backbone.modality.plural
    if not total:
        raise FeatureError(
            f"{collection.path}: no {plural} in the items; import them as well (Multi30k, COCO: option --images)"
        )
    first = next((f"; the first, '{item_id}': {reason}" for item_id, reason in skipped.items()), "")
    if not done:
        raise FeatureError(f"{collection.path}: none of {total} {plural} could be read{first}")
    if skipped:
        logger.warning("%s skipped%s", counted(len(skipped), f"{backbone.modality.noun} was", f"{plural} were"), first)


def encoded_items(collection: Collection, splits: Sequence[str] | None) -> Iterator[tuple[int, Item]]:
    """Read the items with a file, of some or all splits, with their positions; only the file fields are read."""
    for split in (None,) if splits is None else splits:
        for position, item in collection.numbered_items(split, MEDIA_COLUMNS):
            if item.media_path is not None:
                yield position, item


def encode_items(
    collection: Collection, items: Iterable[Item], backbone: Backbone, batch_size: int, skipped: dict[str, str] | None
) -> Iterator[tuple[list[str], dict[FeatureKind, FeatureArray]]]:
    """Compute the features of items batch by batch.

    The features of an item depend neither on the other items nor on their order, as all batches have the same size.

    Args:
        collection: collection of the items.
        items: items with a file.
        backbone: encoder of their files.
        batch_size: number of inputs per batch; videos are encoded one by one.
        skipped: receives the error messages of files that cannot be read; None raises these errors.

    Yields:
        Ids of the items of a batch, and their features by kind, (batch_size, *shape), padded to the batch size.
    """
    if backbone.modality is VIDEO:
        batch_size = 1
    for batch in _read_batches(collection, items, backbone, batch_size, skipped):
        names = [str(collection.media_file(item)) for item, _ in batch]
        features = encode(backbone, _padded([values for _, values in batch], batch_size), names)
        yield [item.id for item, _ in batch], features


def _table_name(spec: FeatureSpec, name: str | None) -> str:
    if name is None:
        return spec.name
    require_name(name, "--name", FeatureError)
    if spec.frame_by_frame:
        return f"{name}.frames"
    return f"{name}.grid" if spec.kind == "grid" and spec.regions is None else name


def _read_batches(
    collection: Collection, items: Iterable[Item], backbone: Backbone, batch_size: int, skipped: dict[str, str] | None
) -> Iterator[list[tuple[Item, EncoderInput]]]:
    """Read files in threads, a few batches ahead of the backbone: decoders release Python's lock."""

    def read(item: Item) -> EncoderInput:
        return backbone.read(collection.media_source(item))

    pending: deque[tuple[Item, Future[EncoderInput]]] = deque()
    batch: list[tuple[Item, EncoderInput]] = []
    remaining = iter(items)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            while True:
                while len(pending) < _BATCHES_AHEAD * batch_size and (item := next(remaining, None)) is not None:
                    pending.append((item, pool.submit(read, item)))
                if not pending:
                    break
                item, future = pending.popleft()
                try:
                    batch.append((item, future.result()))
                except MediaError as error:
                    if skipped is None:
                        raise
                    skipped[item.id] = str(error)
                if len(batch) == batch_size:
                    yield batch
                    batch = []
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    if batch:
        yield batch


def _padded(inputs: list[EncoderInput], batch_size: int) -> EncoderInput:
    """Stack inputs and repeat the last one to a constant batch size, so that a resumed run gives identical bits."""
    size = batch_size * sum(values.nbytes for values in inputs) // len(inputs)
    require_memory(5 * size, f"a batch of {batch_size:,} inputs", "lower batch_size (--batch-size)")  # bytes and floats
    return np.stack(inputs + [inputs[-1]] * (batch_size - len(inputs)))
