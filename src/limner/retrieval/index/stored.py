"""Indexes on disk: building, opening with all checks, and searches of a collection by them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from limner.data.collection import ITEMS
from limner.data.examples import Item
from limner.errors import SearchIndexError, SettingsError, WriteError, system_reason
from limner.features.store import FeatureStore
from limner.files import locked, sync
from limner.progress import Progress
from limner.retrieval.all_pairs import pair_log_probs
from limner.retrieval.index.cells import blocks
from limner.retrieval.index.embeddings import EMBEDDINGS
from limner.retrieval.index.estimated import EXPANSIONS
from limner.retrieval.index.protocol import (
    IMAGES_READ_PER_BATCH,
    REBUILD,
    RECORD,
    BestImages,
    CollectionIndexRecord,
    IndexedImages,
    IndexKind,
    Query,
    SearchOptions,
    features_digest,
    items_without_sentences,
)
from limner.retrieval.index.tangents import TANGENTS
from limner.runs.trained_model import TrainedModel, model_fingerprint
from limner.storage.hashes import FileBlocks
from limner.storage.places import is_remote, state_of

if TYPE_CHECKING:
    from limner.data.collection import Collection

KINDS: tuple[IndexKind, ...] = (TANGENTS, EXPANSIONS, EMBEDDINGS)
"""All kinds of index; a model gets the first kind that supports it, and the last kind only with a two-tower model."""


def kind_for(model: TrainedModel) -> IndexKind:
    """Return the kind of index for a model; SettingsError if no kind supports it."""
    for kind in KINDS[:-1]:
        if kind.supports(model.model):
            return kind
    raise SettingsError(
        f"model '{model.recipe.model.name}': no index supports it, as it does not caption images by gradient-based "
        "probabilities; use a captioning model, or search without an index, which scores all images"
    )


ROWS = "rows.arrow"
"""File of an index with the id of the item of each row, and its position among the items."""


class IndexSource(NamedTuple):
    """Inputs of an index."""

    model: TrainedModel
    collection: Path
    split: str | None
    features: FeatureStore


def build_index(
    folder: Path,
    source: IndexSource,
    items: Sequence[Item],
    *,
    kind: IndexKind | None = None,
    rebuild: bool = False,
    on_progress: Progress | None = None,
) -> tuple[CollectionIndexRecord, bool]:
    """Build an index, unless it exists for the same model and features.

    An index of other features of the same model is replaced. The new index is written to a temporary folder and
    renamed.

    Args:
        folder: folder of the index.
        source: model and features.
        items: items of the split in stored order; items without an image or features are left out.
        kind: kind of the index; None for the kind that fits the model.
        rebuild: whether any index in the folder is replaced.
        on_progress: called with the number of images done and their total.

    Returns:
        Record of the index, and whether it was built now.

    Raises:
        SettingsError: no index supports the model, or the folder has other content, or is in an object store.
        SearchIndexError: another process writes to the folder; or it has a damaged index, or an index of another model
            or collection, and `rebuild` is false.
        WriteError: the folder cannot be written; an existing index is unchanged.
    """
    kind = kind or kind_for(source.model)
    if _is_index(folder) and not rebuild and (record := _current_record(folder, kind, source)) is not None:
        return record, False
    positions, ids = _searchable(items, source.features)
    if not len(positions):
        raise SearchIndexError(
            f"{source.collection}: no image with features for an index; name another split, or run 'limner features'"
        )
    images = IndexedImages(items, positions, source.features)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.parent, SearchIndexError, folder.parent / f".{folder.name}.lock"):
            temporary = folder.with_name(f".{folder.name}.partial")
            shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
            temporary.mkdir()
            try:
                order = kind.build(temporary, source.model, images, on_progress)
                _write_rows(temporary / ROWS, ids.take(pa.array(order)), positions[order])
                record = _record(kind, source, len(positions), temporary)
                record.save(temporary)
                _replace(folder, temporary)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except (OSError, pa.ArrowException) as error:
        raise WriteError(
            f"{folder}: cannot be written ({system_reason(error)}); free disk space, or name another place with --index"
        ) from None
    return record, True


def _current_record(folder: Path, kind: IndexKind, source: IndexSource) -> CollectionIndexRecord | None:
    """Return the record of an index of this kind and these features; None for another index.

    Raises:
        SearchIndexError: there is a damaged index, or an index of another model or split.
    """
    record = CollectionIndexRecord.load(folder)
    _require_model_and_split(folder, record, source)
    if record.features_digest != (digest := features_digest(source.features)) and _is_other_collection(record, source):
        raise SearchIndexError(
            f"{folder}: expected an index of {source.collection}, found one of {record.collection}; name another place "
            "with --index, or replace it with --rebuild"
        )
    made_of = record.kind, record.ingredients, record.features_digest
    if made_of != (kind.name, kind.ingredients, digest):
        return None
    record.require_files(folder, every=True)
    return record


def _searchable(items: Sequence[Item], features: FeatureStore) -> tuple[NDArray[np.int64], pa.ChunkedArray]:
    """Return the positions of the items with an image and features, and their ids."""
    positions, ids = [np.empty(0, np.int64)], []
    for rows in blocks(len(items), IMAGES_READ_PER_BATCH):
        batch = items_without_sentences(items, range(rows.start, rows.stop))
        usable = [row for row, item in enumerate(batch) if item.media_path is not None and features.covers(item)]
        positions.append(rows.start + np.array(usable, np.int64))
        ids.append(pa.array([batch[row].id for row in usable], pa.string()))
    return np.concatenate(positions), pa.chunked_array(ids, pa.string())


def _is_index(folder: Path) -> bool:
    """Whether a folder has an index; SettingsError for other content, or where no folder can be made."""
    if is_remote(folder):
        raise SettingsError(
            f"{folder}: an index is in a folder, which a search maps into memory, not in an object store; name a "
            "folder with --index"
        )
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if (folder / RECORD).is_file() or (folder / ROWS).is_file():
        return True
    raise SettingsError(f"{folder}: expected an index, or no folder, found something else; name another place")


def _require_model_and_split(folder: Path, record: CollectionIndexRecord, source: IndexSource) -> None:
    if record.fingerprint != model_fingerprint([source.model]):
        model_name = record.model or "a model without a folder"
        raise SearchIndexError(
            f"{folder}: expected an index of this model, found one of another, {model_name}, or of its weights before "
            f"they changed; {REBUILD}; to keep both, name another place with --index"
        )
    if record.split != source.split:
        expected, actual = (
            "all splits" if split is None else f"split '{split}'" for split in (source.split, record.split)
        )
        raise SearchIndexError(f"{folder}: expected an index of {expected}, found one of {actual}; {REBUILD}")


def _require_features(folder: Path, record: CollectionIndexRecord, source: IndexSource) -> None:
    if record.features_digest == features_digest(source.features):
        return
    other = _is_other_collection(record, source)
    made_of = f"the features of another collection, {record.collection}" if other else "older features"
    raise SearchIndexError(
        f"{folder}: made of {made_of}, not the present features of {source.collection}; run 'limner index' again, or "
        "add --exact to search without it"
    )


def _is_other_collection(record: CollectionIndexRecord, source: IndexSource) -> bool:
    """Whether an index was made of another collection; a collection that was moved is the same."""
    return record.collection != str(source.collection.resolve())


def _record(kind: IndexKind, source: IndexSource, images: int, folder: Path) -> CollectionIndexRecord:
    run = source.model.folder
    return CollectionIndexRecord(
        kind=kind.name,
        ingredients=kind.ingredients,
        model="" if run is None else str(run.resolve()),
        fingerprint=model_fingerprint([source.model]),
        collection=str(source.collection.resolve()),
        split=source.split,
        features=source.model.config.features,
        features_digest=features_digest(source.features),
        images=images,
        files={
            str(file.relative_to(folder)): FileBlocks.read(file) for file in sorted(folder.rglob("*")) if file.is_file()
        },
    )


def _replace(folder: Path, temporary: Path) -> None:
    """Rename a complete index to its place, and remove the replaced index."""
    for file in temporary.rglob("*"):
        sync(file)
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    try:
        temporary.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _write_rows(path: Path, ids: pa.ChunkedArray, positions: NDArray[np.int64]) -> None:
    table = pa.table({"id": ids, "position": pa.array(positions, pa.int64())})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


class IndexedCollection:
    """A collection with an open index of its images."""

    def __init__(self, collection: Collection, source: IndexSource, folder: Path) -> None:
        """Open an index and check that it belongs to a model, a collection and its features.

        The size and a sample of each large file are verified, in time that does not depend on the number of images.

        Raises:
            SearchIndexError: the index is missing or damaged, or was made with another model, collection or features.
        """
        self._state = _state(collection, source, folder)  # first: changes from now on are seen by `is_current`
        self.collection, self._source = collection, source
        self.record = record = CollectionIndexRecord.load(folder)
        kinds = {kind.name: kind for kind in KINDS}
        if record.kind not in kinds:
            raise SearchIndexError(
                f"{folder}: expected an index of {', '.join(kinds)}, found '{record.kind}'; {REBUILD}"
            )
        _require_model_and_split(folder, record, source)
        _require_features(folder, record, source)
        record.require_files(folder, every=False)
        self._rows = pa.ipc.open_file(pa.memory_map(str(folder / ROWS))).read_all()
        self._index = kinds[record.kind].open(folder, source.model)
        self._positions = collection.positions(source.split)

    def is_current(self, collection: Collection, folder: Path) -> bool:
        """Whether the collection, its features and the index are unchanged since they were opened."""
        return collection.version == self.collection.version and _state(collection, self._source, folder) == self._state

    def search(
        self, sentence: str, tokens: Sequence[int], count: int, options: SearchOptions
    ) -> tuple[BestImages, list[Item]]:
        """Find the best images for a sentence, with their items; SearchIndexError if an item has moved."""

        def exact_scores(rows: NDArray[np.int64]) -> NDArray[np.float64]:
            candidates = [Item(item_id, "", image=item_id) for item_id in self._ids(rows)]  # features are found by id
            model = self._source.model.model
            return pair_log_probs(model, [tokens], candidates, self._source.features)[0].double().numpy()

        query = Query(sentence, tokens, exact_scores)
        matches = self._index.search(query, min(count, self.record.images), options)
        return matches, self._items(matches.rows)

    def _ids(self, rows: NDArray[np.int64]) -> list[str]:
        ids: list[str] = self._rows["id"].take(rows).to_pylist()
        return ids

    def _items(self, rows: NDArray[np.int64]) -> list[Item]:
        """Read the items of rows of the index."""
        places, ids = self._rows["position"].take(rows).to_numpy(), self._ids(rows)
        inside = places < len(self._positions)
        positions = places[inside] if isinstance(self._positions, range) else self._positions[places[inside]]
        unique, inverse = np.unique(positions, return_inverse=True)
        read = self.collection.take(unique)
        items = [read[row] for row in inverse.tolist()]
        if not inside.all() or [item.id for item in items] != ids:
            raise SearchIndexError(
                f"{self.collection.path}: its items are not in the order that they had when the index was made; run "
                "'limner index' with --rebuild, or add --exact to search without it"
            )
        return items


def _state(collection: Collection, source: IndexSource, folder: Path) -> list[str]:
    """Return values that change with the items, the features and the index."""
    try:
        written = str((folder / RECORD).stat().st_mtime_ns)
    except OSError:
        written = ""
    tables = [collection.path / ITEMS, *(table.path for table in source.features.tables)]
    return [str(collection.path), written, *map(state_of, tables)]
