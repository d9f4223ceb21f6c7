"""Named pipes, sockets, devices and folders in place of files: each is an error at once, nothing waits for them."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

import limner
from limner.apps.cli.inputs import read_lines as read_sentences
from limner.data.readers.corpus_files import read_json, read_text
from limner.errors import LimnerError
from limner.features.encoders.transformers import hash_files
from limner.features.regions import read_boxes
from limner.files import open_file
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
