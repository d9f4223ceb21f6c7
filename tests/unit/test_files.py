"""Atomic file writes and locks of folders."""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

import limner
from limner import files
from limner.apps.cli.inputs import read_lines as read_sentences
from limner.data.readers.corpus_files import read_json, read_text
from limner.errors import LimnerError, RunError
from limner.features.encoders.transformers import hash_files
from limner.features.regions import read_boxes
from limner.files import LOCK_FILE, PARTIAL, atomic_write, locked, open_file, temporary_path, write_text
from limner.files.structured import read_json_file
from limner.media.audio import AudioFile
from limner.media.image import image_size, open_image
from limner.media.video import check_video
from limner.runs.recipe import load_recipe
from limner.runs.records import RunConfig, read_log
from limner.runs.trained_model import sha256
from limner.storage.tensors import read_tensors
from limner.text.embeddings import embedding_dim
from limner.text.tokenizer import Tokenizer


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
    with pytest.raises(RunError, match=r"a: cannot be written \(No space left.*permissions and .* space.*--resume"):  # noqa: SIM117
        with atomic_write(tmp_path / "a") as beside:
            beside.write_text("half")
            raise OSError(28, "No space left on device")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


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


READERS = {
    "image": (open_image, "x.png"),
    "size of an image": (image_size, "x.png"),
    "audio": (AudioFile, "x.wav"),
    "video": (check_video, "x.mp4"),
    "corpus": (read_text, "x.tsv"),
    "compressed corpus": (read_text, "x.tsv.gz"),
    "JSON of a corpus": (read_json, "x.json"),
    "boxes": (read_boxes, "x.json"),
    "sentences": (read_sentences, "x.txt"),
    "recipe": (lambda path: load_recipe(str(path), []), "x.yaml"),
    "record": (RunConfig.load, "config.json"),
    "log": (read_log, "log.jsonl"),
    "weights": (read_tensors, "x.safetensors"),
    "checksum": (sha256, "x"),
    "vocabulary": (Tokenizer.load, "x.json"),
    "word vectors": (embedding_dim, "x.vec"),
}


@pytest.fixture(params=["named pipe", "socket", "device", "folder"])
def special(request, tmp_path, monkeypatch):
    """Kind and a function that creates a special file of a name."""
    monkeypatch.chdir(tmp_path)
    opened = []

    def create(name: str) -> Path:
        if request.param == "named pipe":
            os.mkfifo(name)
        elif request.param == "socket":
            opened.append(socket.socket(socket.AF_UNIX))
            opened[0].bind(name)
        elif request.param == "device":
            os.symlink("/dev/zero", name)
        else:
            os.mkdir(name)
        return Path(name)

    yield request.param, create
    for one in opened:
        one.close()


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_refuses_special_files(reader, special):
    kind, create = special
    read, name = READERS[reader]
    with pytest.raises(LimnerError) as error:
        read(create(name))
    (line,) = str(error.value).splitlines()
    assert name in line and (kind in line or "No such device" in line)


def test_files_of_others_are_hashed_and_read_as_regular_files_only(special):
    _, create = special
    path = create("x")
    for read in (open_file, read_json_file, lambda file: hash_files([file])):
        with pytest.raises(OSError):
            read(path)


def test_a_link_to_a_file_is_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    with open_file(tmp_path / "link") as stream:
        assert stream.read() == b"text"


def test_no_module_opens_a_file_without_the_check():
    allowed = {
        "files/__init__.py": "the check itself",
        "apps/cli/experiments.py": "reads what it has just written",
        "process.py": "reads what the kernel tells of memory",
        "apps/cli/inputs.py": "reads pipes that a shell passed, which have a writer or end",
    }
    source = Path(limner.__file__).parent
    for path in sorted(source.rglob("*.py")):
        name = path.relative_to(source).as_posix()
        if name not in allowed:
            found = re.findall(r"\.read_bytes\(|\.read_text\(|\.open\(\"r", path.read_text())
            assert found == [], f"{name}: use limner.files.open_file or read_bytes"


def test_a_pipe_that_a_shell_passed_is_read():
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "w") as pipe:
        pipe.write("ein Mann\nzwei Hunde\n")
        pipe.close()
        assert read_sentences(Path(f"/dev/fd/{reading}")) == ["ein Mann", "zwei Hunde"]
