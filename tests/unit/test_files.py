"""Atomic file writes and locks of folders."""

import errno
import logging
import os
import signal
import stat
import subprocess
import sys

import pytest
from filelock import FileLock

from limner import files
from limner.errors import CollectionError, RunError
from limner.files import LOCK_FILE, PARTIAL, atomic_write, locked, temporary_path, write_text


@pytest.fixture
def calls(monkeypatch):
    """Names of the calls that change the disk, in order."""
    made = []
    sync, replace = os.fsync, os.replace

    def fsync(handle):
        made.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    monkeypatch.setattr(files.os, "fsync", fsync)
    monkeypatch.setattr(files.os, "replace", lambda *places: (made.append("rename"), replace(*places)))
    return made


def test_contents_are_synchronised_before_the_rename_and_the_folder_after_it(calls, tmp_path):
    write_text(tmp_path / "new" / "a.json", "{}")
    assert calls == ["file", "rename", "folder"]
    assert (tmp_path / "new" / "a.json").read_text() == "{}"


def test_an_interrupted_write_leaves_the_old_file_only(tmp_path):
    write_text(tmp_path / "a", "old")
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "a") as beside:
        beside.write_text("half")
        raise KeyboardInterrupt
    with pytest.raises(RunError, match=r"a: cannot be written \(No space left.*free disk space.*--resume"):  # noqa: SIM117
        with atomic_write(tmp_path / "a") as beside:
            beside.write_text("half")
            raise OSError(28, "No space left on device")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_folder_has_one_writer(tmp_path):
    refused = pytest.raises(RunError, match="another process is writing to it; wait until it ends")
    with locked(tmp_path, CollectionError), refused, locked(tmp_path, RunError):
        pass
    with locked(tmp_path, RunError):
        pass


def test_a_lock_file_is_hidden_and_removed_at_the_end(tmp_path):
    with locked(tmp_path, RunError):
        assert os.listdir(tmp_path) == [LOCK_FILE] == [".lock"]
    assert os.listdir(tmp_path) == []
    with pytest.raises(KeyError), locked(tmp_path, RunError):
        raise KeyError
    assert os.listdir(tmp_path) == []


def test_a_lock_file_outside_the_folder(tmp_path):
    folder, lock_file = tmp_path / "new", tmp_path / ".new.lock"
    refused = pytest.raises(RunError, match=r"new: another process is writing")
    with locked(folder, RunError, lock_file), refused, locked(folder, RunError, lock_file):
        pass
    assert os.listdir(tmp_path) == []


def test_a_killed_process_leaves_no_lock(tmp_path):
    code = """
import sys, time
from pathlib import Path
from limner.errors import RunError
from limner.files import LOCK_FILE, atomic_write, locked, write_text
with locked(Path(sys.argv[1]), RunError):
    print("locked", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(RunError, match="another process"), locked(tmp_path, RunError):
            pass
        process.send_signal(signal.SIGKILL)
    with locked(tmp_path, RunError):
        pass
    assert os.listdir(tmp_path) == []


def test_a_file_system_without_locks_is_used_with_a_warning(tmp_path, monkeypatch, caplog):
    error = OSError(errno.ENOSYS, "Function not implemented")

    def acquire(lock):
        raise error

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with caplog.at_level(logging.WARNING), locked(tmp_path, RunError):
        pass
    assert f"{tmp_path}: cannot be locked ({error}); run only one process" in caplog.text


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch, number):
    def acquire(lock):
        raise OSError(number, "refused")

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with pytest.raises(RunError, match=r"cannot be written.*permissions"), locked(tmp_path, RunError):
        pytest.fail("the block ran without a lock")


@pytest.fixture
def ended():
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def test_what_a_killed_process_left_is_removed_by_the_next_write(tmp_path, ended):
    own = temporary_path(tmp_path / "a.txt").name.removesuffix(str(os.getpid()))
    left, of_a_living_process = tmp_path / f"{own}{ended}", tmp_path / f"{own}{os.getppid()}"
    of_the_user = tmp_path / f".a.txt.{ended}"
    for file in (left, of_a_living_process, of_the_user):
        file.touch()
    write_text(tmp_path / "a.txt", "x")
    assert not left.exists()
    assert of_a_living_process.exists()
    assert of_the_user.exists()


def test_what_another_machine_writes_is_kept_until_it_is_abandoned(tmp_path, ended):
    other = tmp_path / f".a.txt{PARTIAL}0123456789ab-{ended}"
    other.touch()
    write_text(tmp_path / "a.txt", "x")
    assert other.exists()
    changed = other.stat().st_mtime - files.ABANDONED_SECONDS - 60
    os.utime(other, (changed, changed))
    write_text(tmp_path / "a.txt", "x")
    assert not other.exists()
