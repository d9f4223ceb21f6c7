"""Collections of any size: what reads their items holds a few chunks of them, never all."""

import gc
import subprocess
import sys
from pathlib import Path

import lance
import pytest

from limner.data import collection as collections
from limner.data.collection import ITEMS, Collection, write_items
from limner.data.examples import Item, ItemSentence
from limner.data.items_table import Changes
from limner.data.readers import import_collection
from limner.data.stored_items import CHUNK_ITEMS
from limner.data.summary import summarise
from limner.errors import CollectionError
from limner.storage.hashes import IdSet, RowsById

ROWS = 8_000
HELD = 3 * CHUNK_ITEMS
"""Items that may exist at once: a chunk that is read, one before it, and some."""


def many_items(rows=ROWS):
    for row in range(rows):
        split = "test" if row % 10 == 0 else "train"
        yield Item(f"{row:06d}", split, image=f"images/{row}.jpg", sentences=(ItemSentence("en", f"number {row}"),))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many") / "c"
    write_items(folder, many_items())
    return folder


def existing_items():
    return sum(type(one) is Item for one in gc.get_objects())


def held_while(items, every=3_500):
    """Largest number of items in memory while an iterator of items is read, and the number that it gave."""
    gc.collect()
    before, count, most = existing_items(), 0, 0
    for count, _ in enumerate(items, start=1):
        if count % every == 0:
            most = max(most, existing_items() - before)
    return most, count


@pytest.mark.parametrize("split", [None, "train"])
def test_items_are_read_in_chunks(path, split):
    most, count = held_while(Collection.open(path).iter_items(split))
    assert count == (ROWS if split is None else ROWS * 9 // 10)
    assert most <= HELD
    most, again = held_while(Collection.open(path, budget=1).items(split))
    assert again == count
    assert most <= HELD


def test_selections_and_access_by_index_hold_no_items(path):
    items = Collection.open(path, budget=1).items("train")
    even = items.select(lambda item: int(item.id) % 2 == 0)
    assert len(even) == sum(row % 10 != 0 and row % 2 == 0 for row in range(ROWS))
    most, _ = held_while((even[row] for row in range(0, len(even), 3)), every=2_000)
    assert most <= HELD
    assert [item.id for item in even[-2:]] == ["007996", "007998"]
    assert [item.image for item in even.media([5, 0, 5])] == [f"images/{row}.jpg" for row in (14, 2, 14)]
    with pytest.raises(IndexError):
        even[len(even)]


def test_counts_and_the_summary_hold_no_items(path, monkeypatch):
    monkeypatch.setattr(collections, "SCANNED_ROWS", 1_000)
    collection, seen = Collection.open(path), []
    assert collection.splits() == {"test": ROWS // 10, "train": ROWS * 9 // 10}
    make = collections.item_of_row

    def counting(row):
        seen.append(existing_items() if len(seen) % 3_500 == 0 else 0)
        return make(row)

    gc.collect()
    before = existing_items()
    monkeypatch.setattr(collections, "item_of_row", counting)
    summary = summarise(collection)
    assert (summary.items, summary.sentences["test"]) == (ROWS, {"en": ROWS // 10})
    assert summary.missing == ROWS
    assert len(summary.missing_examples) == 3
    assert max(seen) - before <= HELD


def test_a_lost_row_of_a_large_collection_is_found(path, tmp_path):
    write_items(tmp_path / "c", many_items(2 * CHUNK_ITEMS))
    lance.dataset(str(tmp_path / "c" / ITEMS)).delete("id = '000003'")
    with pytest.raises(CollectionError, match="of 2,048 items can be read"):
        Collection.open(tmp_path / "c", budget=1).items()


def test_writing_holds_no_items(tmp_path):
    gc.collect()
    before, seen = existing_items(), []

    def watched():
        for row, item in enumerate(many_items(6_000)):
            if row == 5_900:
                seen.append(existing_items() - before)
            yield item

    assert write_items(tmp_path / "c", watched()) == Changes(6_000, 0, 0)
    assert max(seen) <= HELD


def test_new_items_are_appended_and_repeated_ones_are_merged(tmp_path):
    path = tmp_path / "c"
    write_items(path, many_items(CHUNK_ITEMS + 5))
    more = [Item("new", "val"), Item("other", "val"), Item("new", "val", sentences=(ItemSentence("en", "later"),))]
    assert write_items(path, [*more, *many_items(3)]) == Changes(2, 0, 3)
    collection = Collection.open(path)
    assert len(collection.table.get_fragments()) == 2, "the stored rows are not written again"
    assert collection.splits()["val"] == 2
    assert [(item.id, item.texts("en")) for item in collection.items("val")] == [("new", ["later"]), ("other", [])]


def test_a_changed_item_keeps_its_place(tmp_path):
    path = tmp_path / "c"
    write_items(path, many_items(2 * CHUNK_ITEMS))
    german = [Item(f"{row:06d}", "train", sentences=(ItemSentence("de", "neu"),)) for row in (CHUNK_ITEMS + 1, 1)]
    assert write_items(path, [*german, Item("last", "train")]) == Changes(1, 2, 0)
    items = Collection.open(path).items()
    assert [items[row].texts("de") for row in (1, 2, CHUNK_ITEMS + 1)] == [["neu"], [], ["neu"]]
    assert [item.id for item in items] == [*(item.id for item in many_items(2 * CHUNK_ITEMS)), "last"]


def test_ids_are_known_by_hashes():
    ids = [f"item {number}" for number in range(200_000)]
    known = IdSet(ids[:100_000])
    assert not known.add("item 7")
    assert known.add("another")
    assert len(known) == 100_001
    assert [item_id in known for item_id in ("item 99999", "item 100000")] == [True, False]
    rows = RowsById([ids[:3], [], ids[3:], ["item 5"]])
    assert rows.find(["item 199999", "absent", "item 5"]).tolist() == [199_999, -1, 200_000]
    assert RowsById([]).find(["item 5"]).tolist() == [-1]


def jsonl(folder, rows):
    lines = [f'{{"id": "{id}", "split": "train", "image": null, "lang": "en", "text": "{text}"}}' for id, text in rows]
    (folder / "a.jsonl").write_text("\n".join(lines))
    return folder / "a.jsonl"


def test_a_source_of_any_size_is_read_in_parts(tmp_path):
    source = jsonl(tmp_path, [(f"{row:05d}", f"{word} {row}") for row in range(3_000) for word in ("first", "second")])
    whole = import_collection("jsonl", source, tmp_path / "whole")
    gc.collect()
    before = existing_items()
    parts = import_collection("jsonl", source, tmp_path / "parts", budget=1 << 20)
    assert existing_items() - before <= HELD
    assert (parts.items, parts.sentences, parts.changes) == (whole.items, whole.sentences, whole.changes)
    assert Collection.open(tmp_path / "parts").fingerprint() == Collection.open(tmp_path / "whole").fingerprint()


def test_entries_of_an_item_that_are_far_apart_are_refused(tmp_path):
    source = jsonl(tmp_path, [*((f"{row:05d}", "a dog") for row in range(1_500)), ("00003", "later")])
    with pytest.raises(CollectionError, match=r"a\.jsonl:1501: the id '00003' occurs again, 1 MiB of other .*--memory"):
        import_collection("jsonl", source, tmp_path / "c", budget=1 << 20)
    assert not (tmp_path / "c").exists()


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MANY_ROWS = 2_000_000
LIMIT = 3 << 29


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_million_rows_need_little_memory(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from memory import write_source

    write_source(tmp_path / "source.jsonl", MANY_ROWS)
    unit = 1 if sys.platform == "darwin" else 1024
    for step in ("import", "summary", "features"):
        command = [sys.executable, str(BENCHMARKS / "memory.py"), step, str(tmp_path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert int(done.stdout.split()[-1]) * unit < LIMIT, step
