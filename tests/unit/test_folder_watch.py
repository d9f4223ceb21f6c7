"""`limner index --watch`: which changes count, and what is done about each."""

import shutil
import sys
import time

import pytest
from PIL import Image

from limner.apps.cli import main
from limner.apps.photos.scan import watch_folder

watchfiles = pytest.importorskip("watchfiles")
ADDED, DELETED = watchfiles.Change.added, watchfiles.Change.deleted


@pytest.fixture
def stream(monkeypatch):
    """Replace the changes of the system: each function in the list is called, and its result is a change or None."""
    steps = []

    def watch(folder, *, watch_filter, yield_on_timeout, **options):
        assert yield_on_timeout, "the first changes are None, so that those before the start are found"
        for step in steps:
            change = step()
            if change is None:
                yield set()
            elif watch_filter(change[0], str(change[1])):
                yield {change}

    monkeypatch.setattr(watchfiles, "watch", watch)
    return steps


@pytest.fixture
def folder(tmp_path):
    photos = tmp_path / "photos"
    save(photos / "red.png", (250, 20, 20))
    return photos


def save(path, colour):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (60, 50), colour).save(path)
    return path


def changes_that_count(folder, stream, *changes, **options):
    """Return which changes lead to an update; the first one is that of the start."""
    stream += [lambda: None, *(lambda change=change: change for change in changes)]
    return sum(1 for _ in watch_folder(folder, **options)) - 1


def test_the_first_update_is_that_of_the_start(folder, stream):
    stream += [lambda: None] * 4
    assert sum(1 for _ in watch_folder(folder)) == 1


def test_images_and_folders_count(folder, stream):
    (folder / "holiday.2024").mkdir()
    root = folder.resolve()
    changes = [(ADDED, root / "red.png"), (ADDED, root / "holiday.2024"), (DELETED, root / "trip.2023")]
    assert changes_that_count(folder, stream, *changes) == 3


def test_other_files_hidden_ones_and_the_index_do_not_count(folder, stream):
    root, index = folder.resolve(), folder / "own index"
    (index / "data").mkdir(parents=True)
    (root / "notes.txt").touch()
    (root / "README").touch()
    names = ("notes.txt", "README", ".limner/x.png", "inside/.hidden.png", "own index/data", "own index/a.png")
    assert changes_that_count(folder, stream, *((ADDED, root / name) for name in names), skip=index) == 0


def test_the_index_follows_the_folder(folder, stream, trained, monkeypatch, capsys):
    root = folder.resolve()

    def empty():
        shutil.move(folder / "red.png", folder.parent / "red.png")
        (folder / "green.png").unlink()
        return DELETED, root / "red.png"

    def restore():
        shutil.move(folder.parent / "red.png", folder / "red.png")
        return ADDED, root / "red.png"

    stream += [
        lambda: save(folder / "green.png", (20, 250, 20)) and None,  # before the folder is watched
        lambda: None,
        empty,
        restore,
        lambda: (ADDED, root / "red.png"),
    ]
    monkeypatch.setattr(sys, "argv", ["limner", "index", str(folder), "--model", str(trained), "--watch"])
    clock = time.time_ns
    monkeypatch.setattr("limner.apps.photos.update.time.time_ns", lambda: clock() + 10**10)  # no file is new
    with pytest.raises(SystemExit) as ended:
        main()
    printed, errors = capsys.readouterr()
    assert not ended.value.code
    counts = [line.partition(": ")[2] for line in printed.splitlines()]
    assert counts == ["1 images (1 new)", "2 images (1 new, 1 unchanged)", "1 images (1 removed, 1 unchanged)"]
    assert "no image in this folder; nothing was changed" in errors


def test_a_damaged_index_ends_the_command(folder, stream, trained, command_line):
    def damage():
        shutil.rmtree(folder / ".limner" / "files.lance")
        return ADDED, folder.resolve() / "red.png"

    stream += [damage, lambda: pytest.fail("the command goes on")]
    status, _, errors = command_line("index", folder, "--model", trained, "--watch")
    assert status == 1 and "damaged index (files.lance is gone)" in errors
