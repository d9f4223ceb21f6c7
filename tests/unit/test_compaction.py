"""Compaction of collections: the same contents in fewer files."""

import re
from datetime import timedelta

import lance
import numpy as np
import pytest
from test_integrity import SPEC

from limner.data.collection import ITEMS, Collection, write_items
from limner.data.examples import Item, ItemSentence
from limner.errors import CollectionError
from limner.features import maintenance
from limner.features.maintenance import compact
from limner.features.store import FeatureTable
from limner.features.tables import TableWriter, table_path
from limner.files import locked
from limner.storage.hashes import IdSet

PARTS = 4


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "c"
    writer = TableWriter(table_path(path, SPEC.name), SPEC, IdSet())
    for part in range(PARTS):
        items = [Item(f"{part}-{row}", "train", sentences=(ItemSentence("en", f"{part} {row}"),)) for row in range(5)]
        write_items(path, items)
        values = np.full((5, *SPEC.shape), part, np.float16)
        writer.add([item.id for item in items], values)
        writer.flush()
    return path


def contents(path):
    table = FeatureTable(table_path(path, SPEC.name))
    ids = [item.id for item in Collection.open(path).items()]
    return Collection.open(path).fingerprint(), Collection.open(path).splits(), table.take(ids).tolist()


def test_contents_stay_and_files_become_fewer(path, monkeypatch):
    monkeypatch.setattr(maintenance, "INDEXED_ROWS", 1)
    before, orphan = contents(path), path / ITEMS / "data" / "of-a-killed-writer.lance"
    orphan.write_bytes(b"0" * 10_000)
    tables = {table.name: table for table in compact(path, timedelta(0))}
    assert set(tables) == {"items", SPEC.name}
    for table in tables.values():
        assert (table.fragments_before, table.fragments_after) == (PARTS, 1)
        assert table.versions_removed >= PARTS
    assert tables["items"].bytes_after < tables["items"].bytes_before
    assert contents(path) == before
    assert not orphan.exists()
    (index,) = lance.dataset(str(path / ITEMS)).describe_indices()
    assert (index.field_names, index.num_rows_indexed) == (["id"], 5 * PARTS)
    write_items(path, [Item("later", "val")])
    assert Collection.open(path).splits() == {"train": 20, "val": 1}
    assert [table.fragments_after for table in compact(path, timedelta(0))] == [1, 1]


def test_young_versions_are_kept(path):
    version = lance.dataset(str(path / ITEMS)).version
    assert all(table.versions_removed == 0 for table in compact(path, timedelta(days=7)))
    assert lance.dataset(str(path / ITEMS), version=version).count_rows() == 5 * PARTS


@pytest.mark.parametrize("damage", ["zeros", "cut", "missing"])
@pytest.mark.parametrize("name", [ITEMS, f"features/{SPEC.name}.lance"])
def test_a_damaged_fragment_is_one_line_and_the_others_are_kept(path, name, damage):
    files = sorted((path / name / "data").iterdir())
    contents = {file: file.read_bytes() for file in files}
    damaged = files[1]
    if damage == "missing":
        damaged.unlink()
    else:
        size = len(contents[damaged])
        damaged.write_bytes(b"\0" * size if damage == "zeros" else contents[damaged][: size // 2])
    with pytest.raises(CollectionError, match=r"cannot be compacted .*restore a damaged file") as error:
        list(compact(path, timedelta(0)))
    assert name in str(error.value)
    assert not re.search(r"\n|\.rs:|LanceError", str(error.value))
    assert all(file.read_bytes() == contents[file] for file in files if file != damaged)


def test_a_collection_that_is_written_is_not_compacted(path):
    with (
        locked(path, CollectionError),
        pytest.raises(CollectionError, match="another process is writing to it; wait until it ends"),
    ):
        list(compact(path, timedelta(0)))
