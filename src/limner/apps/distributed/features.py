"""Extraction of features on a Ray cluster: each unit is a range of items, whose features are fragments of the tables.

The machines share the folder of the collection. A unit writes its fragments and then its entry in the journal; the
process that runs the command commits all fragments at once. An interrupted extraction is continued by running it again:
the fragments of the finished units are committed, and the other items are computed.
"""

from __future__ import annotations

import logging
import os
import shutil
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.apps.distributed.cluster import Cluster, Journal, connected, require_folder, require_ray, run_units
from limner.data.collection import MEDIA_COLUMNS, Collection
from limner.errors import LimnerError, ResourceError, counted
from limner.features import extract
from limner.features import tables as feature_tables
from limner.features.extract import BackboneChoice, Extraction
from limner.features.maintenance import IntactRows
from limner.features.spec import FeatureSpec, require_compatible
from limner.features.store import FeatureTable
from limner.features.tables import table_path
from limner.files import atomic_write
from limner.progress import Progress

UNITS_PER_ACTOR = 8
"""Minimum number of units of an actor; for few items, units are smaller than a fragment, to balance the actors."""
MAX_UNITS = 10_000
"""Number of units above which a unit has several fragments for each table."""
_POSITIONS, _ABSENT = "positions.npy", "absent.npy"

logger = logging.getLogger(__name__)


class ExtractionOptions(NamedTuple):
    """Options of an extraction; see `limner.features.extract.extract`."""

    name: str | None = None
    splits: tuple[str, ...] | None = None
    batch_size: int = 32
    strict: bool = False
    unit_rows: int | None = None  # number of items of a unit; None for a number that suits the cluster


class FeatureJob(NamedTuple):
    """Inputs of an actor that computes units."""

    collection: Path  # absolute
    version: int  # of its items
    backbone: BackboneChoice
    specs: tuple[FeatureSpec, ...]
    options: ExtractionOptions
    unit_rows: int  # number of items of a unit; the last may have fewer
    journal: Journal
    device: str

    def open(self) -> Callable[[int], None]:
        """Open the collection and load the backbone."""
        collection = Collection.open(self.collection, version=self.version)
        backbone = self.backbone.load(collection, self.options.splits, strict=self.options.strict)
        for spec, expected in zip(backbone.specs, self.specs, strict=True):
            require_compatible(spec, expected, self.backbone.name, "install the same files on all machines")
        positions = np.load(self.journal.folder / _POSITIONS, mmap_mode="r")
        is_missing = np.load(self.journal.folder / _ABSENT, mmap_mode="r")

        def compute(unit: int) -> None:
            if self.journal.read(unit) is not None:
                return
            rows = slice(unit * self.unit_rows, (unit + 1) * self.unit_rows)
            items = collection.take(positions[rows], MEDIA_COLUMNS)
            missing_tables = dict(zip((item.id for item in items), is_missing[rows], strict=True))
            skipped: dict[str, str] = {}
            writers = [
                feature_tables.FragmentWriter(table_path(self.collection, spec.name), spec) for spec in self.specs
            ]
            errors = None if self.options.strict else skipped
            for ids, features in extract.encode_items(collection, items, backbone, self.options.batch_size, errors):
                for table, writer in enumerate(writers):
                    chosen = [row for row, item_id in enumerate(ids) if missing_tables[item_id][table]]
                    writer.add([ids[row] for row in chosen], features[writer.spec.kind][chosen])
            for writer in writers:
                writer.flush()
            fragments = {writer.spec.name: writer.fragments for writer in writers}
            self.journal.write(unit, {"items": len(items), "skipped": skipped, "fragments": fragments})

        return compute


def extract_distributed(
    collection: Collection,
    backbone: BackboneChoice,
    address: str,
    options: ExtractionOptions | None = None,
    *,
    on_progress: Progress | None = None,
    on_verified: Progress | None = None,
) -> Extraction:
    """Compute and store the features of a collection on a Ray cluster, as `extract` does on one machine.

    The folder of the collection is seen by all machines under the same path; for `address` see `connected`.
    `on_progress` counts items, `on_verified` rows of stored tables.
    """
    require_ray()
    require_folder(collection.path)
    options = options or ExtractionOptions()
    loaded = backbone.load(collection, options.splits, strict=options.strict)
    specs = tuple(extract.named_specs(loaded, options.name))
    folder = Path(os.path.abspath(collection.path)) / f".features-{specs[0].name}.units"
    paths = {spec.name: table_path(collection.path, spec.name) for spec in specs}
    with extract.locked_tables(collection, specs):
        _commit(collection, specs, folder)  # the units of an interrupted extraction
        intact = extract.intact_rows(collection, specs, on_verified)
        total, positions, is_missing = _find_missing(collection, options.splits, intact)
        present = total - len(positions)
        skipped: dict[str, str] = {}
        if len(positions):
            with connected(address) as cluster:
                files = {name: feature_tables.data_files(path) for name, path in paths.items()}
                journal = Journal.begin(folder, {"fingerprints": _fingerprints(specs), "files": files})
                for name, values in ((_POSITIONS, positions), (_ABSENT, is_missing)):
                    with atomic_write(folder / name) as temporary, temporary.open("wb") as stream:
                        np.save(stream, values)
                device, version = str(backbone.options.get("device", "cpu")), collection.version
                actors = cluster.actors(device)
                rows = options.unit_rows or _unit_rows(specs, options.batch_size, len(positions), actors)
                job = FeatureJob(folder.parent, version, backbone, specs, options, rows, journal, device)
                for result in _compute_units(cluster, job, len(positions), collection.path):
                    skipped |= result["skipped"]
                    if on_progress is not None:
                        on_progress(present + result["end"], total)
            _commit(collection, specs, folder, complete=True)
        extract.check_extraction(collection, loaded, total, total - len(skipped), skipped)
        tables = [FeatureTable(path) for path in paths.values()]
    repaired = sum(rows.damaged for rows in intact)
    return Extraction(tables, len(positions) - len(skipped), present, skipped, repaired)


def _find_missing(
    collection: Collection, splits: Sequence[str] | None, intact: Sequence[IntactRows]
) -> tuple[int, NDArray[np.int64], NDArray[np.bool_]]:
    """Find the items whose features a table lacks.

    The result is the number of items with a file, the positions of the N items with missing features, and the tables
    that lack them, (N, tables).
    """
    total, positions, absent = 0, array("q"), bytearray()
    for position, item in extract.encoded_items(collection, splits and list(dict.fromkeys(splits))):
        total += 1
        lacks = [item.id not in rows.ids for rows in intact]
        if any(lacks):
            positions.append(position)
            absent.extend(lacks)
    lacking = np.frombuffer(absent, np.bool_).reshape(-1, len(intact))
    return total, np.frombuffer(positions, np.int64), lacking


def _unit_rows(specs: Sequence[FeatureSpec], batch_size: int, count: int, actors: int) -> int:
    """Number of items of a unit in whole batches: one fragment, fewer for few items, more for very many."""
    rows = min(min(feature_tables.chunk_rows(spec) for spec in specs), -(-count // (actors * UNITS_PER_ACTOR)))
    rows = max(rows, -(-count // MAX_UNITS))
    return max(1, rows // batch_size) * batch_size


def _compute_units(cluster: Cluster, job: FeatureJob, count: int, path: Path) -> Iterator[dict[str, Any]]:
    """Compute the units; messages name files relative to the working directory of the command."""
    try:
        for unit in run_units(cluster, job, -(-count // job.unit_rows)):
            result = job.journal.require(unit)
            skipped = {item_id: _relative_paths(reason, path) for item_id, reason in result["skipped"].items()}
            yield {"skipped": skipped, "end": min(count, (unit + 1) * job.unit_rows)}
    except LimnerError as error:
        error.args = (_relative_paths(str(error), path),)
        raise


def _relative_paths(message: str, path: Path) -> str:
    """Replace absolute paths by the paths that the user gave, as actors have other working directories."""
    if path.is_absolute():
        return message
    return message.replace(os.path.abspath(path), str(path)).replace(os.path.join(os.getcwd(), ""), "")


def _commit(collection: Collection, specs: Sequence[FeatureSpec], folder: Path, complete: bool = False) -> None:
    """Add the fragments of all finished units to the tables, and remove the journal and other files.

    A missing file of a finished unit is an error if the extraction is complete. Nothing is done without a journal.
    """
    journal = Journal.find(folder)
    if journal is None:
        return shutil.rmtree(folder, ignore_errors=True)
    plan, results = journal.plan, list(journal.results())
    if plan.get("fingerprints") != _fingerprints(specs):
        logger.warning("%s: units of an interrupted extraction with other settings are discarded", folder)
        results = []
    lost = 0
    for spec in specs:
        path = table_path(collection.path, spec.name)
        fragments = (fragment for result in results for fragment in result["fragments"][spec.name])
        lost += feature_tables.commit_fragments(path, spec, fragments)
        feature_tables.remove_uncommitted(path, plan.get("files", {}).get(spec.name, ()))
    journal.remove()
    if lost and complete:
        raise ResourceError(
            f"{collection.path}: {counted(lost, 'row')} of finished units cannot be found; expected a folder that all "
            "machines of the cluster share under one path, such as one of NFS"
        )


def _fingerprints(specs: Sequence[FeatureSpec]) -> dict[str, str]:
    return {spec.name: spec.fingerprint for spec in specs}
