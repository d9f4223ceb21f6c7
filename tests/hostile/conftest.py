"""Fixtures: a folder with images, a collection and trained runs, and a copy of it for each case."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from PIL import Image, ImageDraw

BRIEF = ["training.epochs=1", "training.batch_size=16", "training.validate_every=1"]
CONVNET = ["features.tables=[pixels16]", "model.image_encoder.convnet_width=4"]
SMALL_MRNN = ["model.embedding_dim=8", "model.hidden_dim=8", "model.multimodal_dim=8", *CONVNET]
SMALL_NMT = ["model.embedding_dim=8", "model.hidden_dim=8", "model.attention_dim=8", *CONVNET]


def _limner(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "limner", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (arguments, done.stderr)


def _build(folder: Path) -> None:
    """Create what the cases damage: photographs, captions, a collection with features, and runs of four kinds."""
    (folder / "photos").mkdir()
    for number in range(3):
        image = Image.new("RGB", (40, 30), (60 * number, 120, 200))
        ImageDraw.Draw(image).rectangle((5, 5, 20, 20), fill=(250, 20, 20))
        image.save(folder / "photos" / f"{number}.jpg")
    (folder / "captions.tsv").write_text("".join(f"{number}.jpg\ta red square\n" for number in range(3)))
    (folder / "sentences.txt").write_text("a red ball\na blue tree\n")
    (folder / "notes.txt").write_text("notes of the user, to be kept\n")
    _limner(folder, "generate", "scenes", "c", *["--train", "16", "--val", "4", "--test", "4"])
    _limner(folder, "features", "c", "--backbone", "pixels:16")
    train = ("--collection", "c", "--out")
    _limner(folder, "train", "scenes/mrnn", *train, "captioner", *BRIEF, *SMALL_MRNN)
    _limner(folder, "train", "scenes/translate-src-img", *train, "translator", *BRIEF, *SMALL_NMT)
    _limner(folder, "generate", "reviews", "reviews", *["--train", "40", "--val", "10", "--test", "10"])
    _limner(folder, "train", "lecture/reviews", "--collection", "reviews", "--out", "classifier", *BRIEF)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all cases start from; the workers share it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "hostile"
    with FileLock(f"{folder}.lock"):
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            _build(folder)
            (folder / "ready").touch()
    return folder


@pytest.fixture
def work(template: Path, tmp_path: Path) -> Path:
    """A copy that a case may damage."""
    return Path(shutil.copytree(template, tmp_path / "work", symlinks=True))
