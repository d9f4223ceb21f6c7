"""Full disks and folders that cannot be written, for every command that writes: one line, nothing earlier damaged."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import runner
from cases import case, check_outcome, error_line
from filelock import FileLock

TRAIN = (
    "train scenes/mrnn --collection c --out {} training.epochs=1 training.batch_size=16 features.tables=[pixels16] "
    "model.image_encoder.convnet_width=4 model.hidden_dim=8 training.schedule.warmup_steps=0"
)
WRITERS = (
    "import folder photos new",
    "import folder photos new --copy",
    "import csv captions.csv c",
    "generate scenes new --train 2 --val 1 --test 1",
    "generate reviews new --train 9 --val 3 --test 3",
    "features c --backbone pixels:24",
    "kmeans c --out f.safetensors --size 16 --patch 4 --filters 8 --patches 500 --grid 2",
    TRAIN.format("new"),
    "crossvalidate lecture/reviews --collection reviews --out new --folds 2 training.epochs=1",
    "reproduce calixto2017/table2 --collection c --out new",
    "demo --out new",
    "evaluate --model captioner --collection c --split val --no-retrieval --metric bleu4",
    "diagnose --model translator --collection c --trials 10 --metric perplexity",
    "gradients --model captioner --sentences 2 --probes 1",
    "report --model captioner",
    "report --model captioner --out new.html",
    "show c --sheet new.png",
    "describe photos --model captioner --output new.csv",
    "describe photos/0.jpg --model captioner --explain-beam new.png",
    "describe photos/0.jpg --model captioner --embed",
    "index photos --model captioner --index new",
    "describe photos/0.jpg --model dense --regions 9 --sheet new.png",
    "translate 'a red ball' --model translator --image photos/0.jpg --out new.txt",
    "translate 'a red ball' --model translator --image photos/0.jpg --attention new",
    "translate --model translator --collection english --split train --write",
)
CREATED = ("created new", "created c/features/pixels24.lance")
"""What a command has begun may be left; it is continued or replaced."""
NOBODY = 65534
REFUSED = ("reproduce",)
"""Commands whose data is another; they end before they write."""


def _words(command: str) -> list[str]:
    return [word.replace("_", " ") for word in command.replace("'a red ball'", "a_red_ball").split()]


@pytest.fixture(scope="session")
def writable(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all cases with a collection to translate."""
    folder = template.with_name("hostile-disk")
    with FileLock(f"{folder}.lock"):
        if not (folder / "english").exists():
            shutil.copytree(template, folder)
            (folder / "english.csv").write_text("id,split,image,lang,text\n1,train,photos/0.jpg,en,A red ball .\n")
            for command in ("import csv english.csv english", "features english --backbone pixels:16"):
                outcome = runner.run(command.split(), folder)
                assert outcome.status == 0, outcome.stderr
    return folder


@pytest.fixture(scope="module")
def small_disk(writable: Path) -> Iterator[Path]:
    """A full file system in memory that holds the folder of all cases."""
    place = Path(tempfile.mkdtemp(prefix="limner-disk-"))
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", place]).returncode:
        place.rmdir()
        pytest.skip("only the administrator can mount a small file system")
    try:
        shutil.copytree(writable, place / "disk" / "work")
        with suppress_full(), (place / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        yield place / "disk" / "work"
    finally:
        subprocess.run(["umount", place], check=True)
        place.rmdir()


class suppress_full:
    """Ignore that the disk is full."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, error_type: object, error: object, traceback: object) -> bool:
        return isinstance(error, OSError)


def _harm(command: str, work: Path, streams: Path, **limits: int) -> list[str]:
    """Run a command that cannot write, check its message, and return the changes other than what it has begun."""
    before = runner.contents(work)
    outcome = runner.run(_words(command), work, streams=streams, **limits)
    changes = runner.changes(before, runner.contents(work))
    harm = [change for change in changes if not change.startswith(CREATED)]
    if outcome.status == 0 and "file_size" in limits:  # a file that is smaller than the limit
        return harm
    check_outcome(outcome, case(command))
    if command.split()[0] not in REFUSED:
        line = error_line(outcome)
        assert any(word in line for word in ("written", "space", "permission", "Permission", "too large", "writ")), line
    return harm


@pytest.mark.parametrize("command", WRITERS)
def test_full_disk(command: str, small_disk: Path, tmp_path: Path) -> None:
    try:
        assert _harm(command, small_disk, tmp_path) == []
    finally:  # what another command has begun is not its own
        for begun in CREATED:
            shutil.rmtree(small_disk / begun.removeprefix("created "), ignore_errors=True)


@pytest.mark.parametrize("command", WRITERS)
def test_files_are_limited(command: str, writable: Path, tmp_path: Path) -> None:
    work = Path(shutil.copytree(writable, tmp_path / "work"))
    assert _harm(command, work, tmp_path, file_size=1000) == []


@pytest.fixture(scope="module")
def read_only(writable: Path) -> Iterator[Path]:
    """A folder that the commands may read only, where another user can reach it."""
    place = Path(tempfile.mkdtemp(prefix="limner-read-only-"))
    shutil.copytree(writable, place / "work")
    for path in (place, *place.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield place / "work"
    for path in (place, *place.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.rmtree(place)


@pytest.mark.parametrize("command", WRITERS)
def test_read_only(command: str, read_only: Path, tmp_path: Path) -> None:
    limits = {"uid": NOBODY} if os.geteuid() == 0 else {}
    assert _harm(command, read_only, tmp_path, **limits) == []
