"""Files appear whole, also after a power cut, and a folder has one writer."""

import os
import stat

import pytest

from limner import files
from limner.errors import CollectionError, RunError
from limner.files import locked, write_whole, written_beside


@pytest.fixture
def calls(monkeypatch):
    """What reaches the disk, and in which order."""
    made = []
    sync, replace = os.fsync, os.replace

    def fsync(handle):
        made.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    monkeypatch.setattr(files.os, "fsync", fsync)
    monkeypatch.setattr(files.os, "replace", lambda *places: (made.append("rename"), replace(*places)))
    return made


def test_contents_are_on_the_disk_before_their_name_and_their_name_before_going_on(calls, tmp_path):
    write_whole(tmp_path / "new" / "a.json", "{}")
    assert calls == ["file", "rename", "folder"]
    assert (tmp_path / "new" / "a.json").read_text() == "{}"


def test_a_write_that_stops_leaves_the_old_file_and_nothing_else(tmp_path):
    write_whole(tmp_path / "a", "old")
    with pytest.raises(KeyboardInterrupt), written_beside(tmp_path / "a") as beside:
        beside.write_text("half")
        raise KeyboardInterrupt
    with pytest.raises(RunError, match=r"a: cannot be written \(No space left.*make room.*--resume"):  # noqa: SIM117
        with written_beside(tmp_path / "a") as beside:
            beside.write_text("half")
            raise OSError(28, "No space left on device")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_folder_has_one_writer(tmp_path):
    refused = pytest.raises(RunError, match="another process is writing to it; wait for it to end")
    with locked(tmp_path, CollectionError), refused, locked(tmp_path, RunError):
        pass
    with locked(tmp_path, RunError):
        pass
