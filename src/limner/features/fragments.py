"""Fragments of feature tables that several processes write, and the one commit that adds them to the table.

A fragment that is not committed belongs to no version of its table: readers do not see it. The table is in a folder
that all processes share, not in an object store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limner.errors import FeatureError, system_reason
from limner.features.spec import FeatureArray, FeatureSpec
from limner.features.table_format import arrow_schema, arrow_table, chunk_rows, open_features_table, table_exists
from limner.storage.json_text import to_json
from limner.storage.lance_tables import WRITE_ERRORS

Fragment = dict[str, Any]
"""Metadata of a fragment, as Lance writes them as JSON."""


class FragmentWriter:
    """Writes features as fragments of a table, without a commit.

    Attributes:
        path: folder of the table; it may be missing.
        spec: specification of the features.
        fragments: the fragments that were written.
    """

    def __init__(self, path: Path, spec: FeatureSpec) -> None:
        self.path, self.spec = path, spec
        self.fragments: list[Fragment] = []
        self._ids: list[str] = []
        self._values: list[FeatureArray] = []

    def add(self, ids: Sequence[str], values: FeatureArray) -> None:
        """Add the features of N items, (N, *shape)."""
        self._ids.extend(ids)
        self._values.extend(values)
        if len(self._ids) >= chunk_rows(self.spec):
            self.flush()

    def flush(self) -> None:
        """Write the rows that were added since the last fragment.

        Raises:
            FeatureError: they cannot be written.
        """
        if not self._ids:
            return
        from lance.fragment import write_fragments

        table = arrow_table(self.spec, self._ids, np.stack(self._values))
        mode = "append" if table_exists(self.path) else "create"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            written = write_fragments(table, str(self.path), schema=table.schema, mode=mode)
        except WRITE_ERRORS as error:
            raise FeatureError(
                f"{self.path}: cannot be written ({system_reason(error)}); finished units are kept: free disk space "
                "and run the same command again"
            ) from None
        self.fragments += [fragment.to_json() for fragment in written]
        self._ids, self._values = [], []


def commit_fragments(path: Path, spec: FeatureSpec, fragments: Iterable[Fragment]) -> int:
    """Add fragments to a table in one commit; those that it has already, and those without their files, are left out.

    Args:
        path: folder of the table; created by the commit if it is missing.
        spec: specification of the features.
        fragments: fragments that `FragmentWriter` has written.

    Returns:
        Number of rows whose files are missing.

    Raises:
        FeatureError: the table cannot be written; it is unchanged then.
    """
    import lance
    from lance.fragment import FragmentMetadata

    dataset = open_features_table(path) if table_exists(path) else None
    committed = set() if dataset is None else set(_committed_files(dataset))
    new, lost = [], 0
    for fragment in fragments:
        files = _files(fragment)
        if not all((path / "data" / file).is_file() for file in files):
            lost += fragment["physical_rows"]
        elif committed.isdisjoint(files):
            new.append(FragmentMetadata.from_json(to_json(fragment)))
    if not new:
        return lost
    try:
        if dataset is None:
            lance.LanceDataset.commit(str(path), lance.LanceOperation.Overwrite(arrow_schema(spec), new))
        else:
            lance.LanceDataset.commit(str(path), lance.LanceOperation.Append(new), read_version=dataset.version)
    except WRITE_ERRORS as error:
        raise FeatureError(
            f"{path}: cannot be written ({system_reason(error)}); finished units are kept: free disk space and run the "
            "same command again"
        ) from None
    return lost


def data_files(path: Path) -> list[str]:
    """Names of all data files in the folder of a table, those of no version and incomplete ones included."""
    return sorted(file.name for file in path.glob("data/*"))


def remove_uncommitted(path: Path, earlier: Iterable[str]) -> None:
    """Remove the files of units that ended before they were finished; the caller holds the lock of the table.

    Args:
        path: folder of the table.
        earlier: data files that were in the folder before the units were started, which are kept.
    """
    keep = set(earlier)
    if table_exists(path):
        keep.update(_committed_files(open_features_table(path)))
    for name in set(data_files(path)) - keep:
        (path / "data" / name).unlink(missing_ok=True)


def _committed_files(dataset: Any) -> Iterable[str]:  # noqa: ANN401 (Lance has no types)
    return (file.path for fragment in dataset.get_fragments() for file in fragment.data_files())


def _files(fragment: Fragment) -> list[str]:
    return [file["path"] for file in fragment["files"]]
