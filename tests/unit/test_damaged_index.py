"""The parts of the index of a folder belong together: one that is gone, older, newer or another is found at opening."""

import shutil

import pytest
from colour_searcher import FolderIndex
from PIL import Image

from limner.apps.photos import tables
from limner.apps.photos.record import IndexRecord
from limner.errors import DamagedIndexError

COLOURS = ((240, 10, 10), (10, 240, 10), (10, 10, 240), (240, 240, 10), (10, 240, 240))
FILES, IMAGES, RECORD = "files.lance", "images.lance", "index.json"


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
    text = (index / RECORD).read_text()
    assert '"lang": "en"' in text
    (index / RECORD).write_text(text.replace('"lang": "en"', '"lang": "de"'))


def exchange(index, _):
    """A file in place of a table, and a folder in place of the record."""
    for part in (IMAGES, RECORD):
        remove(part)(index, _)
    (index / IMAGES).write_bytes(b"table")
    (index / RECORD).mkdir()


DAMAGES = {
    "no files": remove(FILES),
    "no images": remove(IMAGES),
    "no record": remove(RECORD),
    "no versions": remove(f"{IMAGES}/_versions"),
    "no newest version": remove(f"{FILES}/_versions/1*"),
    "no data": remove(f"{IMAGES}/data"),
    "no data file": remove(f"{IMAGES}/data/*.lance"),
    "half a data file": truncate(f"{IMAGES}/data/*.lance"),
    "half a version": truncate(f"{IMAGES}/_versions/1*"),
    "half a record": truncate(RECORD),
    "older files": replace("old", FILES),
    "older images": replace("old", IMAGES),
    "older record": replace("old", RECORD),
    "older tables": replace("old", FILES, IMAGES),
    "files of another index": replace("other", FILES),
    "images of another index": replace("other", IMAGES),
    "record of another index": replace("other", RECORD),
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
