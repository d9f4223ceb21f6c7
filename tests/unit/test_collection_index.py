"""Indexes of collections: built, opened, refused and used by a search."""

import json
import shutil
from datetime import timedelta

import pytest
from colour_searcher import FolderIndex
from PIL import Image

import limner
from limner.apps.photos import tables
from limner.apps.photos.record import IndexRecord
from limner.data.collection import ITEMS, Collection, write_items
from limner.errors import DamagedIndexError, SearchIndexError, SettingsError
from limner.features.maintenance import compact
from limner.features.store import FeatureTable
from limner.features.tables import TableWriter
from limner.files import locked
from limner.inference.retriever import index_path
from limner.models import ModelInputs, build_model
from limner.models.ngram import NGramSettings
from limner.retrieval.index import protocol, stored
from limner.retrieval.index.protocol import INDEXES, RECORD, SearchOptions
from limner.retrieval.index.stored import kind_for
from limner.storage import hashes
from limner.storage.hashes import FileBlocks, IdSet
from limner.training.loop import train

QUERY = "a red wall"


@pytest.fixture(scope="module")
def run(tiny, recipe_of, tmp_path_factory):
    """A trained MLBL-B; the fixture's recipe is that of an m-RNN."""
    from limner.runs.recipe import Recipe

    values = recipe_of("colour", epochs=3, validate_every=3).model_dump(mode="json")
    values["model"] = {"name": "lbl", "variant": "MLBL-B", "word_dim": 8, "init_std": 0.3}
    return train(Recipe.parse(values), tiny, tmp_path_factory.mktemp("index") / "bilinear")


@pytest.fixture
def retriever(run):
    return limner.Retriever.load(run, encode_images=False)


def test_results_with_an_index_are_those_of_a_search_of_all(retriever, own_tiny):
    expected = retriever.search_images(QUERY, own_tiny, count=9)
    assert (expected.kind, expected.scored, expected.exact) == (None, 48, True)
    built = retriever.build_index(own_tiny)
    assert (built.kind, built.images, built.is_new) == ("tangents", 48, True)
    found = retriever.search_images(QUERY, own_tiny, count=9)
    assert (found.kind, found.images, found.exact, found.gap) == ("tangents", 48, True, 0.0)
    assert [one.id for one in found.results] == [one.id for one in expected.results]
    assert [one.score for one in found.results] == pytest.approx([one.score for one in expected.results], abs=1e-4)
    assert retriever.search_images(QUERY, own_tiny, options=SearchOptions(exact=True)).kind is None


def test_an_index_of_a_split_is_used_for_that_split_only(retriever, own_tiny):
    retriever.build_index(own_tiny, split="test")
    assert (own_tiny.path / INDEXES / "bilinear" / "split-test" / RECORD).is_file()
    found = retriever.search_images(QUERY, own_tiny, split="test", count=100)
    assert (found.kind, len(found.results)) == ("tangents", 8)
    assert retriever.search_images(QUERY, own_tiny, split="val").kind is None
    with pytest.raises(SearchIndexError, match="expected an index of split 'val', found one of split 'test'"):
        retriever.search_images(QUERY, own_tiny, split="val", index=own_tiny.path / INDEXES / "bilinear" / "split-test")


def reverse_features(collection, name="colour"):
    """Store the features of each item for another one."""
    table = FeatureTable.open(collection, name)
    ids = table.ids()
    values = table.take(ids)[::-1]
    shutil.rmtree(table.path)
    writer = TableWriter(table.path, table.spec, IdSet())
    writer.add(ids, values)
    writer.flush()


def test_an_index_is_built_once_and_again_for_new_features(retriever, own_tiny):
    assert retriever.build_index(own_tiny).is_new
    assert not retriever.build_index(own_tiny).is_new
    assert retriever.search_images(QUERY, own_tiny).kind == "tangents"  # features that change after a search
    reverse_features(own_tiny)
    with pytest.raises(SearchIndexError, match=r"older features.*run 'limner index' again"):
        retriever.search_images(QUERY, own_tiny)
    assert retriever.build_index(own_tiny).is_new
    assert retriever.search_images(QUERY, own_tiny).kind == "tangents"


def test_an_index_of_another_collection_is_refused(retriever, own_tiny, tmp_path):
    other = Collection.open(shutil.copytree(own_tiny.path, tmp_path / "other"))
    reverse_features(other)
    retriever.build_index(other, path=own_tiny.path / INDEXES / "bilinear" / "all")
    with pytest.raises(SearchIndexError, match=r"features of another collection, .*other"):
        retriever.search_images(QUERY, own_tiny)


def test_compaction_and_equal_features_keep_an_index(retriever, own_tiny):
    table = FeatureTable.open(own_tiny, "colour")
    ids = table.ids()
    values, files, digest = table.take(ids), table.data_files(), table.digest
    shutil.rmtree(table.path)
    writer = TableWriter(table.path, table.spec, IdSet())
    for rows in (slice(20, None), slice(20)):  # in another order, in two fragments
        writer.add(ids[rows], values[rows])
        writer.flush()
    assert FeatureTable.open(own_tiny, "colour").digest == digest
    assert retriever.build_index(own_tiny).is_new
    list(compact(own_tiny.path, timedelta(0)))
    assert FeatureTable.open(own_tiny, "colour").data_files() != files
    assert retriever.search_images(QUERY, own_tiny).kind == "tangents"
    assert not retriever.build_index(own_tiny).is_new


def test_an_index_of_another_model_is_refused_and_kept(retriever, run, own_tiny, tmp_path):
    import torch

    built = retriever.build_index(own_tiny)
    other = limner.Retriever.load(run, encode_images=False)
    with torch.no_grad():
        other.model.model.bias.add_(torch.arange(len(other.model.tokenizer)))
    with pytest.raises(SearchIndexError, match="expected an index of this model, found one of another"):
        other.search_images(QUERY, own_tiny)
    with pytest.raises(SearchIndexError, match="--rebuild"):
        other.build_index(own_tiny)
    assert retriever.search_images(QUERY, own_tiny).kind == "tangents"
    assert other.build_index(own_tiny, rebuild=True).path == built.path
    assert other.search_images(QUERY, own_tiny).kind == "tangents"


@pytest.mark.parametrize("name", ["terms.npy", "lead.npy", "cells.safetensors", "rows.arrow", RECORD])
@pytest.mark.parametrize("damage", ["flipped", "missing", "empty"])
def test_a_damaged_file_is_named(retriever, run, own_tiny, name, damage):
    file = retriever.build_index(own_tiny).path / name
    if damage == "missing":
        file.unlink()
    else:
        contents = bytearray(file.read_bytes())
        contents[len(contents) // 2] ^= 0x80
        file.write_bytes(b"" if damage == "empty" else contents)
    fresh = limner.Retriever.load(run, encode_images=False)
    with pytest.raises(SearchIndexError, match=rf"{name}.*--rebuild"):
        fresh.search_images(QUERY, own_tiny)
    assert fresh.search_images(QUERY, own_tiny, options=SearchOptions(exact=True)).results
    fresh.build_index(own_tiny, rebuild=True)
    assert fresh.search_images(QUERY, own_tiny).kind == "tangents"


def test_items_are_read_in_parts_and_without_their_sentences(retriever, own_tiny, monkeypatch):
    expected = retriever.search_images(QUERY, own_tiny, count=9).results
    large = Collection.open(own_tiny.path, budget=1)

    def take(positions):
        raise AssertionError("whole items are read")

    monkeypatch.setattr(protocol, "IMAGES_READ_PER_BATCH", 7)
    monkeypatch.setattr(stored, "IMAGES_READ_PER_BATCH", 7)
    monkeypatch.setattr(large, "take", take)
    assert retriever.build_index(large).images == 48
    found = retriever.search_images(QUERY, Collection.open(own_tiny.path), count=9).results
    assert [one.id for one in found] == [one.id for one in expected]


def test_items_in_another_order_are_not_confused(retriever, own_tiny):
    retriever.build_index(own_tiny)
    items = list(own_tiny.items())
    assert retriever.search_images(QUERY, own_tiny).results
    shutil.rmtree(own_tiny.path / ITEMS)
    write_items(own_tiny.path, items[::-1])
    moved = Collection.open(own_tiny.path)
    with pytest.raises(SearchIndexError, match=r"not in the order .*--rebuild"):
        retriever.search_images(QUERY, moved)
    retriever.build_index(moved, rebuild=True)
    assert retriever.search_images(QUERY, moved).results


def test_indexes_of_different_runs_and_splits_have_different_folders(tmp_path):
    named = [("a", None), ("a", "b"), ("a", "all"), ("a.b", None), ("all", None), ("split-b", None)]
    assert len({index_path(tmp_path, tmp_path / run, split) for run, split in named}) == len(named)


def test_an_index_of_another_collection_is_not_replaced(retriever, own_tiny, tmp_path):
    other = Collection.open(shutil.copytree(own_tiny.path, tmp_path / "other"))
    retriever.build_index(own_tiny, path=tmp_path / "index")
    assert not retriever.build_index(other, path=tmp_path / "index").is_new  # a copy
    reverse_features(other)
    with pytest.raises(SearchIndexError, match=r"found one of .*collection; name another place with --index"):
        retriever.build_index(other, path=tmp_path / "index")
    assert retriever.search_images(QUERY, own_tiny, index=tmp_path / "index").kind == "tangents"
    assert retriever.build_index(other, path=tmp_path / "index", rebuild=True).is_new


def test_files_are_verified_by_a_sample_or_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(hashes, "BLOCK", 8)
    file, contents = tmp_path / "f", bytearray(range(250)) * 4
    file.write_bytes(contents)
    blocks, read = FileBlocks.read(file), []
    digest = hashes.xxhash.xxh3_64_hexdigest
    monkeypatch.setattr(hashes.xxhash, "xxh3_64_hexdigest", lambda block: read.append(block) or digest(block))
    assert blocks.holds(file, every=False)
    assert len(read) == hashes.SAMPLE
    assert blocks.holds(file, every=True)
    assert len(read) == hashes.SAMPLE + 125
    for damaged in (contents[:-1], contents + b"0", b"", b"\0" * 1000, contents[:-1] + b"0", b"1" + contents[1:]):
        file.write_bytes(damaged)
        assert not blocks.holds(file, every=False)
    contents[500] ^= 1
    file.write_bytes(contents)
    assert not blocks.holds(file, every=True)


def test_two_builds_at_once_are_refused_and_the_index_is_kept(retriever, own_tiny):
    place_ = retriever.build_index(own_tiny).path
    with (
        locked(place_.parent, SearchIndexError, place_.parent / ".all.lock"),
        pytest.raises(SearchIndexError, match="another process is writing to it; wait until it ends"),
    ):
        retriever.build_index(own_tiny, rebuild=True)
    assert retriever.search_images(QUERY, own_tiny).kind == "tangents"


def test_an_interrupted_build_keeps_the_index(retriever, own_tiny):
    retriever.build_index(own_tiny)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retriever.build_index(own_tiny, rebuild=True, on_progress=stop)
    assert [path.name for path in (own_tiny.path / INDEXES / "bilinear").iterdir()] == ["all"]
    assert retriever.search_images(QUERY, own_tiny).kind == "tangents"


def test_models_without_an_index_are_refused(retriever, own_tiny):
    model = build_model(NGramSettings(), ModelInputs(9))
    with pytest.raises(SettingsError, match="no index supports it"):
        kind_for(retriever.model._replace(model=model))
    assert retriever.search_images(QUERY, own_tiny).kind is None


def test_the_commands_say_how_images_were_found(run, own_tiny, command_line):
    def command(text):
        status, output, messages = command_line(*text.split())
        assert status == 0
        return output, messages

    place = f"--collection {own_tiny.path} --model {run}"
    assert "index 'tangents' of 48 images built" in command(f"index {own_tiny.path} --model {run}")[0]
    assert "these are the best of all" in " ".join(command(f"search wall {place}")[1].split())
    (first, *_) = json.loads(command(f"search wall {place} --json")[0])
    assert first["search"]["index"] == "tangents"
    assert first["search"]["exact"] is True
    (first, *_) = json.loads(command(f"search wall {place} --json --exact")[0])
    assert first["search"] == {"index": None, "images": 48, "scored": 48, "share": 1.0, "exact": True, "gap": 0.0}


COLOURS = ((240, 10, 10), (10, 240, 10), (10, 10, 240), (240, 240, 10), (10, 240, 240))
FILES, IMAGES, INDEX_RECORD = "files.lance", "images.lance", "index.json"


def save_images(folder, numbers):
    folder.mkdir(exist_ok=True)
    for number in numbers:
        Image.new("RGB", (30, 20 + number), COLOURS[number]).save(folder / f"{number}.png")


@pytest.fixture(scope="module")
def states(captioner, tmp_path_factory):
    """A folder with its index, and three copies of the index: before the last update, after it, and of other images."""
    place = tmp_path_factory.mktemp("states")
    for name, folder, numbers in (("old", "photos", [0, 1, 2]), ("new", "photos", [3]), ("other", "others", [1, 4])):
        save_images(place / folder, numbers)
        FolderIndex(place / folder).update(captioner)
        shutil.copytree(place / folder / ".limner", place / name)
    return place


@pytest.fixture
def photos(states, tmp_path):
    shutil.copytree(states / "photos", tmp_path / "photos")
    return tmp_path / "photos"


def remove(part):
    def damage(index, _):
        path = next(iter(sorted(index.glob(part))))
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def truncate(part):
    def damage(index, _):
        path = next(iter(sorted(index.glob(part))))
        path.write_bytes(path.read_bytes()[:-9])

    return damage


def replace(state, *parts):
    def damage(index, states):
        for part in parts:
            remove(part)(index, states)
            copy = shutil.copytree if (states / state / part).is_dir() else shutil.copyfile
            copy(states / state / part, index / part)

    return damage


def edit(index, _):
    text = (index / INDEX_RECORD).read_text()
    assert '"lang": "en"' in text
    (index / INDEX_RECORD).write_text(text.replace('"lang": "en"', '"lang": "de"'))


def exchange(index, _):
    """A file in place of a table, and a folder in place of the record."""
    for part in (IMAGES, INDEX_RECORD):
        remove(part)(index, _)
    (index / IMAGES).write_bytes(b"table")
    (index / INDEX_RECORD).mkdir()


DAMAGES = {
    "no files": remove(FILES),
    "no images": remove(IMAGES),
    "no record": remove(INDEX_RECORD),
    "no versions": remove(f"{IMAGES}/_versions"),
    "no newest version": remove(f"{FILES}/_versions/1*"),
    "no data": remove(f"{IMAGES}/data"),
    "no data file": remove(f"{IMAGES}/data/*.lance"),
    "half a data file": truncate(f"{IMAGES}/data/*.lance"),
    "half a version": truncate(f"{IMAGES}/_versions/1*"),
    "half a record": truncate(INDEX_RECORD),
    "older files": replace("old", FILES),
    "older images": replace("old", IMAGES),
    "older record": replace("old", INDEX_RECORD),
    "older tables": replace("old", FILES, IMAGES),
    "files of another index": replace("other", FILES),
    "images of another index": replace("other", IMAGES),
    "record of another index": replace("other", INDEX_RECORD),
    "edited record": edit,
    "files and folders exchanged": exchange,
}


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize("name", DAMAGES)
def test_parts_that_do_not_belong_together_are_named(name, photos, states, captioner, trained):
    index = photos / ".limner"
    DAMAGES[name](index, states)
    before = contents(index)
    opened = FolderIndex(photos)
    for use in (
        lambda: FolderIndex.open(photos),
        lambda: opened.search("a red wall"),
        lambda: opened.find_unchanged(trained),
        lambda: opened.require_run(trained),
        lambda: opened.update(captioner),
    ):
        with pytest.raises(DamagedIndexError, match=r"damaged.*--rebuild") as caught:
            use()
        assert "\n" not in str(caught.value)
    assert contents(index) == before
    assert opened.update(captioner, rebuild=True).described == 4
    assert len(FolderIndex.open(photos)) == 4


@pytest.mark.parametrize("command", ["search wall --in {}", "index {} --model {}", "serve --index {} --model {}"])
def test_commands_end_with_one_line(command, photos, trained, command_line):
    shutil.rmtree(photos / ".limner" / IMAGES)
    status, _, errors = command_line(*command.format(photos, trained).split())
    printed = errors.strip().splitlines()
    assert status == 1
    assert "damaged index (images.lance is gone)" in printed[-1] and "--rebuild" in printed[-1]


def test_a_part_that_vanishes_is_found_by_the_next_search(photos, captioner):
    index = FolderIndex(photos)
    assert len(index.search("a red wall")) == 4
    shutil.rmtree(index.path / FILES)
    with pytest.raises(DamagedIndexError, match=r"files\.lance is gone"):
        index.search("a red wall")


def test_tables_that_do_not_belong_together_are_found_after_an_interrupted_update(
    photos, states, captioner, monkeypatch, caplog
):
    save_images(photos, [4])
    monkeypatch.setattr("limner.apps.photos.tables.end_update", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        FolderIndex(photos).update(captioner)
    assert len(FolderIndex.open(photos)) == 5
    assert "an update is under way, or was interrupted" in caplog.text
    replace("new", IMAGES)(photos / ".limner", states)
    with pytest.raises(DamagedIndexError, match=f"{IMAGES} is older"):
        FolderIndex.open(photos)


def test_an_update_that_ends_at_any_write_is_completed_by_the_next(photos, captioner, monkeypatch):
    save_images(photos, [4])
    (photos / "1.png").unlink()
    begin = shutil.copytree(photos, photos.with_name("begin"))
    writes = count = 0

    class Killed(BaseException):
        pass

    def counted(function):
        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if count == writes:
                raise Killed
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(IndexRecord, "save", counted(IndexRecord.save))
    monkeypatch.setattr(tables.lance, "write_dataset", counted(tables.lance.write_dataset))
    monkeypatch.setattr(tables.lance.LanceDataset, "delete", counted(tables.lance.LanceDataset.delete))
    ended = False
    while not ended:
        writes, count = writes + 1, 0
        shutil.rmtree(photos)
        shutil.copytree(begin, photos)
        try:
            FolderIndex(photos).update(captioner)
            ended = True
        except Killed:
            writes, number = 0, writes
            assert len(FolderIndex.open(photos)) in (3, 4, 5)
            FolderIndex(photos).update(captioner)
            writes = number
        index = FolderIndex.open(photos)
        assert not index.record.updating
        assert sorted(match.path.name for match in index.search("a red wall")) == ["0.png", "2.png", "3.png", "4.png"]
    assert writes > 5


def test_an_index_is_searched_while_it_is_updated(photos, captioner, monkeypatch):
    """A batch that is written while the tables are opened is no damage."""
    save_images(photos, [4])
    opened, other = tables._open_table, FolderIndex(photos)

    def update_meanwhile(index, name):
        if name == IMAGES:
            monkeypatch.undo()
            other.update(captioner)
        return opened(index, name)

    monkeypatch.setattr(tables, "_open_table", update_meanwhile)
    assert len(FolderIndex.open(photos)) == 5
