"""Fixtures: a folder with images, a collection and trained runs, and a copy of it for each case."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import runner
from filelock import FileLock
from PIL import Image, ImageDraw

BRIEF = "training.epochs=1 training.batch_size=16 training.validate_every=1"
CONVNET = "features.tables=[pixels16] model.image_encoder.convnet_width=4"
MRNN = f"model.embedding_dim=8 model.hidden_dim=8 model.multimodal_dim=8 {CONVNET}"
NMT = f"model.embedding_dim=8 model.hidden_dim=8 model.attention_dim=8 model.readout_dim=8 {CONVNET}"
FINISHES = (
    "training.epochs=5 training.batch_size=4 training.validate_every=5 training.optimizer.lr=0.03 "
    "training.schedule.warmup_steps=5 model.source_word_dropout=0 model.readout_dropout=0 decoding.max_length=30"
)
"""Enough training for a translator that ends its sentences, so that back-translation writes some."""
DENSE = (
    "training.metric=localisation_map training.metrics=[] training.validation_images=2 model.code_dim=8 "
    "model.embedding_dim=8 model.hidden_dim=8 model.region_size=2"
)
COMMANDS = (
    "generate scenes c --train 16 --val 4 --test 4",
    "features c --backbone pixels:16",
    f"train scenes/mrnn --collection c --out captioner {BRIEF} {MRNN}",
    f"train scenes/translate-src-img --collection c --out translator {FINISHES} {NMT}",
    f"train johnson2016/scenes --collection c --out dense {BRIEF} {DENSE} {CONVNET}",
    "import csv pairs.csv pairs",
    "train calixto2017/pbsmt --collection pairs --out phrases model.tuning.method=none",
    "generate reviews reviews --train 40 --val 10 --test 10",
    f"train lecture/reviews --collection reviews --out classifier {BRIEF}",
    "evaluate --model captioner --collection c --no-retrieval --metric bleu4",
    "export exported --model captioner",
    "export exported-translator --model translator",
)
"""What the cases damage: a collection with features, runs of five kinds, and two exported models."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("hostile")


@pytest.fixture(scope="session", autouse=True)
def _server() -> Iterator[None]:
    yield
    runner.close()


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


def _build(folder: Path) -> None:
    (folder / "photos").mkdir()
    for number in range(3):
        image = Image.new("RGB", (40, 30), (60 * number, 120, 200))
        ImageDraw.Draw(image).rectangle((5, 5, 20, 20), fill=(250, 20, 20))
        image.save(folder / "photos" / f"{number}.jpg")
    (folder / "captions.csv").write_text(
        "id,split,image,lang,text\n"
        + "".join(f"{number},train,photos/{number}.jpg,en,a red square\n" for number in range(3))
    )
    words = [(colour, thing) for colour in ("red", "blue") for thing in ("ball", "tree")]
    splits = [split for split in ("train", "val", "test") for _ in words]
    (folder / "pairs.csv").write_text(
        "id,split,image,lang,group,text\n"
        + "".join(
            f"{row},{split},,{lang},0,{article} {colour} {thing}\n"
            for row, (split, (colour, thing)) in enumerate(zip(splits, words * 3, strict=True))
            for lang, article in (("en", "a"), ("de", "ein"))
        )
    )
    (folder / "sentences.txt").write_text("a red ball\na blue tree\n")
    (folder / "notes.txt").write_text("notes of the user, to be kept\n")
    for command in COMMANDS:
        outcome = runner.run(command.split(), folder, seconds=300)
        assert outcome.status == 0, (command, outcome.stderr)
    shutil.rmtree(folder.with_name(f"{folder.name}-streams"))


@pytest.fixture
def work(template: Path, tmp_path: Path) -> Path:
    """A copy that a case may damage."""
    return Path(shutil.copytree(template, tmp_path / "work", symlinks=True))
