"""Commands that are killed at random points: their repetition gives the same bytes as an undisturbed command.

A point is either the n-th operation that changes a file, or a moment. Lance names its files at random, so that tables
are compared by their rows and values, and everything else by its bytes.
"""

from __future__ import annotations

import difflib
import json
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import runner

from limner.apps.photos.tables import open_index
from limner.data.collection import Collection
from limner.features.store import FeatureTable
from limner.retrieval.index.protocol import CollectionIndexRecord

pytestmark = [pytest.mark.kill, pytest.mark.timeout(3000)]
TABLE = "features/pixels16.lance"
RARE = pytest.param(50, marks=pytest.mark.slow)


def items(collection: str) -> Callable[[Path], object]:
    """Return a function that reads the items and the copied files of a collection."""

    def read(work: Path) -> object:
        files = runner.contents(work / collection / "images")
        return [repr(item) for item in Collection.open(work / collection).items()], files

    return read


def features(work: Path) -> object:
    table = FeatureTable.open(Collection.open(work / "c"), "killed")
    return table.ids(), table.take(table.ids()).tobytes(), table.spec.model_dump_json()


def run_directory(work: Path) -> object:
    """Return the bytes of a run, without the times and the command."""
    files = runner.contents(work / "run")
    log = [json.loads(line) for line in (work / "run" / "log.jsonl").read_text().splitlines()]
    for line in log:
        for name in ("seconds", "step_seconds", "tokens_per_second"):
            line.pop(name, None)
    changing = ("log.jsonl", "config.json", "README.md", "train_state.json")
    compared = {name: digest for name, digest in files.items() if not name.startswith("tensorboard/")}
    return {name: None if name.endswith(changing) else digest for name, digest in compared.items()}, log


def evaluation(work: Path) -> object:
    record = json.loads((work / "captioner/evaluation/val.json").read_text().replace(str(work), ""))
    rest = {
        name: digest for name, digest in runner.contents(work / "captioner").items() if not name.endswith("val.json")
    }
    return {**record, "seconds": None, "command": None}, rest


def index_of_folder(work: Path) -> object:
    """Return the files of an index and what is known of their contents."""
    table = open_index(work / "place")
    files = {path: row.digest.hex() for path, row in table.files.items()}
    details = {one.digest.hex(): one._replace(digest=b"") for one in table.details(list(table.rows.values()))}
    vectors = table.vectors()
    stored = {digest.hex(): vectors[row].tobytes() for digest, row in table.rows.items()}
    return (
        table.record.updating,
        sorted(files.items()),
        sorted((digest, repr(one)) for digest, one in details.items()),
        sorted(map(repr, stored.items())),
    )


def index_of_collection(work: Path) -> object:
    """Return what a new index holds: its files are equal except for the record, which names the folders."""
    place = work / "c/indexes/captioner/all"
    CollectionIndexRecord.load(place).require_files(place, every=True)
    return {name: digest for name, digest in runner.contents(place).items() if name != "index.json"}


def compacted(work: Path) -> object:
    """Return the contents of a compacted collection, the number of its fragments, and that of its data files."""
    collection = Collection.open(work / "fragments")
    table = FeatureTable.open(collection, "pixels16")
    values = table.take(table.ids()).tobytes()
    files = [len(list((work / "fragments" / name / "data").iterdir())) for name in ("items.lance", TABLE)]
    return [repr(item) for item in collection.items()], table.ids(), values, len(table.data_files()), files


class Job(NamedTuple):
    """A command that is killed."""

    command: str
    result: Callable[[Path], object]
    """Reads what the command has written, for the comparison."""
    resume: str = ""
    """Option that continues what is there already."""


TRAIN = (
    "train scenes/mrnn --collection c --out run training.epochs=2 training.batch_size=16 training.save_every=2 "
    "features.tables=[pixels16] model.image_encoder.convnet_width=4 model.embedding_dim=8 model.hidden_dim=8 "
    "model.multimodal_dim=8 training.schedule.warmup_steps=0 decoding.max_length=8"
)
JOBS = {
    "import": Job("import folder c/images new --copy --split auto", items("new")),
    "features": Job("features c --backbone pixels:8 --name killed --batch-size 4", features),
    "train": Job(TRAIN, run_directory, "--resume"),
    "evaluate": Job("evaluate --model captioner --collection c --split val --metric bleu4", evaluation),
    "back-translation": Job(
        "translate --model translator --collection english --split train --write", items("english")
    ),
    "index": Job("index c/images --model captioner --index place", index_of_folder),
    "index of a collection": Job("index c --model captioner", index_of_collection),
    "compact": Job("compact fragments --older-than 0", compacted),
    "kmeans": Job(
        "kmeans c --out f.safetensors --size 16 --patch 4 --filters 4 --patches 500 --grid 2",
        lambda work: (work / "f.safetensors").read_bytes(),
    ),
}


@pytest.fixture(scope="module")
def start(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that every attempt begins with: that of the other cases, and a collection to translate."""
    folder = tmp_path_factory.mktemp("kill") / "start"
    shutil.copytree(template, folder)
    rows = (f"{n},train,photos/{n % 3}.jpg,en,There is a green bat in the meadow {n} ." for n in range(6))
    (folder / "english.csv").write_text("\n".join(["id,split,image,lang,text", *rows]) + "\n")
    parts = []
    for part in range(3):
        lines = (f"{part}{n},train,photos/{n % 3}.jpg,en,bat {part} {n}" for n in range(4))
        (folder / f"part{part}.csv").write_text("\n".join(["id,split,image,lang,text", *lines]) + "\n")
        parts += [f"import csv part{part}.csv fragments", "features fragments --backbone pixels:16"]
    for command in ("import csv english.csv english", "features english --backbone pixels:16", *parts):
        outcome = runner.run(command.split(), folder)
        assert outcome.status == 0, outcome.stderr
    return folder


@pytest.mark.parametrize("points", [2, RARE])
@pytest.mark.parametrize("name", JOBS)
def test_what_is_killed_is_completed(name: str, points: int, start: Path, tmp_path: Path) -> None:
    job, chance = JOBS[name], random.Random(f"{name} {points}")
    whole, counter = tmp_path / "whole", tmp_path / "count"
    shutil.copytree(start, whole)
    undisturbed = runner.run(job.command.split(), whole, count_events=counter)
    assert undisturbed.status == 0, undisturbed.stderr
    before = runner.contents(start)
    assert runner.changes(before, runner.contents(whole)), (
        "the command changes nothing, so that killing it shows nothing"
    )
    expected, operations = job.result(whole), int(counter.read_text() or 0)
    killed = 0
    for point in range(points):
        work = tmp_path / f"work{point}"
        shutil.copytree(start, work)
        at = chance.randint(1, operations) if point % 2 == 0 and operations else None
        after = chance.uniform(0, undisturbed.seconds) if at is None else None
        attempt = runner.run(job.command.split(), work, kill_at=at, kill_after=after)
        killed += attempt.status == -signal.SIGKILL
        assert attempt.status in (-signal.SIGKILL, 0), attempt.stderr
        message = f"point {point}: operation {at} of {operations}, or after {after} s of {undisturbed.seconds} s"
        assert _untouched(start, work, job), message
        _complete(job, work)
        _compare(job.result(work), expected, message)
        hidden = [path for path in work.rglob(".*") if path.name not in (".lock", ".new.lock")]
        assert not hidden, (message, hidden)
        shutil.rmtree(work)
    assert killed >= points // 2


def _compare(result: object, expected: object, message: str) -> None:
    if result != expected:
        texts = (json.dumps(one, indent=1, default=str).splitlines() for one in (result, expected))
        pytest.fail("\n".join([message, *difflib.unified_diff(*texts, lineterm="", n=0)])[:3000])


def _complete(job: Job, work: Path) -> None:
    """Repeat a command; one that continues runs refuses to where nothing was saved, and kmeans to replace its file."""
    if job.resume:
        outcome = runner.run([*job.command.split(), job.resume], work)
        if outcome.status == 0:
            return
        assert "Traceback" not in outcome.stderr, outcome.stderr
    outcome = runner.run(job.command.split(), work)
    assert outcome.status == 0 or "f.safetensors: already exists" in outcome.stderr, outcome.stderr


def _untouched(start: Path, work: Path, job: Job) -> bool:
    """Whether all that a killed command should not change is unchanged, and its outputs can be read."""
    before = {path: Collection.open(start / path).items() for path in ("c", "english")}
    if job.command.startswith("translate"):
        assert len(Collection.open(work / "english").items()) == len(before["english"])
    else:
        assert before == {path: Collection.open(work / path).items() for path in before}
    kept = ("photos", "translator", "dense", "classifier", "notes.txt", "captions.csv")
    after = runner.contents(work)
    return all(after[name] == digest for name, digest in runner.contents(start).items() if name.startswith(kept))
