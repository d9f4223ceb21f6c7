"""Work on a Ray cluster of several nodes gives what one process gives, and survives the loss of a node."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from ray_cluster import DAMAGED, ByValue, LocalCluster, photographs

from hub_models import save_model
from limner.apps import cli
from limner.apps.distributed.cluster import connected, run_units
from limner.apps.distributed.features import ExtractionOptions, extract_distributed
from limner.apps.distributed.sentences import generator_on
from limner.data.collection import Collection
from limner.data.dataset import Examples
from limner.errors import MediaError, ResourceError
from limner.features.extract import BackboneChoice, extract
from limner.features.store import FeatureTable
from limner.inference.features import open_features
from limner.inference.generate import generate
from limner.runs.trained_model import load_trained_model

pytest.importorskip("ray", reason="Ray is not installed: pip install 'limner[scale]'")
pytestmark = pytest.mark.filterwarnings("ignore")

COUNT, UNIT_ROWS = 120, 4
OPTIONS = ExtractionOptions(name="ray", batch_size=4, unit_rows=UNIT_ROWS)
PIXELS = BackboneChoice("pixels:8")


@pytest.fixture(scope="module")
def cluster():
    cluster = LocalCluster()
    yield cluster
    cluster.cluster.shutdown()


@pytest.fixture
def collection(tmp_path):
    return photographs(tmp_path / "collection", COUNT)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def actors(pid: int) -> list[int]:
    """The actors among the processes that a process has started: Ray gives them a title."""
    with suppress(OSError):  # a process that ends meanwhile
        own = [pid] if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::MapWorker") else []
        return own + [actor for child in children(pid) for actor in actors(child)]
    return []


def wait_for(condition, seconds=60):
    """Return what the condition returns when it is true."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, "the condition is not met in time"
        time.sleep(0.05)
    return result


def assert_equal(one: FeatureTable, two: FeatureTable) -> None:
    assert one.ids() == two.ids()
    np.testing.assert_array_equal(one.take(one.ids()).view(np.uint16), two.take(one.ids()).view(np.uint16))
    assert len(set(two.ids())) == len(two.ids())


def test_a_killed_node_loses_nothing_and_repeats_nothing(cluster, collection):
    whole = extract(collection, PIXELS.load(collection), name="whole", batch_size=4)
    assert_a_kill_loses_nothing(cluster, collection, whole, after=3)


@pytest.mark.slow
@pytest.mark.parametrize("after", range(1, 11))
def test_ten_points_of_killing_a_node(cluster, collection, after):
    whole = extract(collection, PIXELS.load(collection), name="whole", batch_size=4)
    assert_a_kill_loses_nothing(cluster, collection, whole, after=after)


class Gated(NamedTuple):
    """A backbone whose actors do not finish a unit after the first ones before a file is there."""

    gate: Path
    units: int
    command: int
    name = PIXELS.name
    options = PIXELS.options

    def load(self, *arguments, **options):
        if os.getpid() != self.command:
            from limner.apps.distributed.cluster import Journal

            write = Journal.write

            def write_behind_gate(journal, unit, result):
                while unit >= self.units and not self.gate.exists():
                    time.sleep(0.05)
                write(journal, unit, result)

            Journal.write = write_behind_gate
        return PIXELS.load(*arguments, **options)


def assert_a_kill_loses_nothing(cluster, collection, whole, after):
    gate = collection.path.parent / "gate"
    backbone = ByValue(Gated(gate, after + 4, os.getpid()))  # outcomes arrive some units late

    def kill(done, total):
        if done >= after * UNIT_ROWS and not gate.exists():
            cluster.kill_node()
            gate.touch()

    try:
        found = extract_distributed(collection, backbone, cluster.address, OPTIONS, on_progress=kill)
    finally:
        cluster.replace_nodes()
    assert gate.exists()
    assert_equal(whole.tables[0], found.tables[0])
    assert found.skipped == whole.skipped
    assert found.added == whole.added == COUNT - 1
    data = {file.name for file in (found.tables[0].path / "data").iterdir()}
    assert data == set(found.tables[0].data_files())  # no file of a unit that was lost
    assert not list(collection.path.glob(".features-*"))


def test_a_unit_that_ends_every_actor_ends_the_command(cluster, tmp_path, monkeypatch):
    """Such as one that needs more memory than there is; Ray alone would start it again without end."""

    class Fatal(NamedTuple):
        attempts: Path
        device: str = "cpu"

        def open(self):
            def compute(unit):
                if unit == 1:
                    with self.attempts.open("a") as file:
                        file.write("x")
                    os._exit(1)

            return compute

    monkeypatch.setattr("limner.apps.distributed.cluster.RETRIES", 2)
    finished = []
    with connected(cluster.address) as found, pytest.raises(ResourceError, match=r"an actor ended .*finished units"):
        finished.extend(run_units(found, ByValue(Fatal(tmp_path / "attempts")), 3))
    assert 1 not in finished
    assert len((tmp_path / "attempts").read_text()) <= 3


def test_the_loss_of_the_node_of_this_machine_is_one_line_of_error():
    """Ray ends the process that is connected to the node."""

    class Fatal:
        device = "cpu"

        def open(self):
            def compute(unit):
                if unit == 1:
                    os.kill(os.getppid(), signal.SIGKILL)  # the node, whose actors are its children
                    time.sleep(60)

            return compute

    finished = []
    lost = r"^--ray local: the connection to the cluster is lost, .*finished units are kept: .* the same command again$"
    with pytest.raises(ResourceError, match=lost), connected("local") as found:
        finished.extend(run_units(found, ByValue(Fatal()), 3))
    assert 1 not in finished


def test_ctrl_c_ends_the_command_and_its_cluster(collection):
    command = [sys.executable, "-m", "limner", "features", str(collection.path), "--backbone", "pixels:8"]
    with subprocess.Popen([*command, "--ray", "local"], stderr=subprocess.PIPE, text=True) as process:
        driver = wait_for(lambda: children(process.pid))
        wait_for(lambda: any("raylet" in Path(f"/proc/{pid}/cmdline").read_text() for pid in children(driver[0])))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted" in errors and "Traceback" not in errors
    assert not Path(f"/proc/{driver[0]}").exists()


def test_a_damaged_image_is_named_as_without_ray(cluster, collection, monkeypatch):
    monkeypatch.chdir(collection.path.parent)
    relative = Collection.open(Path("collection"))
    with pytest.raises(MediaError) as without:
        extract(relative, PIXELS.load(relative), name="without", strict=True)
    with pytest.raises(MediaError) as with_ray:
        extract_distributed(relative, PIXELS, cluster.address, OPTIONS._replace(strict=True))
    assert str(with_ray.value) == str(without.value)
    assert f"collection/{DAMAGED}.jpg" in str(without.value)

    skipped = extract_distributed(relative, PIXELS, cluster.address, OPTIONS).skipped
    assert skipped == extract(relative, PIXELS.load(relative), name="without").skipped


DRIVER = """
import os, sys
from limner.data.collection import Collection
from limner.apps.distributed.cluster import connected, run_units
from limner.apps.distributed.features import ExtractionOptions, extract_distributed
from limner.errors import MediaError
from limner.features.extract import BackboneChoice

def kill(done, total):
    if done >= 20:
        os._exit(9)
options = ExtractionOptions(name="ray", batch_size=4, unit_rows=4)
extract_distributed(Collection.open(sys.argv[1]), BackboneChoice("pixels:8"), sys.argv[2], options, on_progress=kill)
"""


def test_an_extraction_whose_driver_is_killed_is_continued(cluster, collection):
    whole = extract(collection, PIXELS.load(collection), name="whole", batch_size=4)
    ended = subprocess.run([sys.executable, "-c", DRIVER, str(collection.path), cluster.address], capture_output=True)
    assert ended.returncode == 9, ended.stderr.decode()
    wait_for(lambda: not actors(os.getpid()))  # Ray ends those of the driver; until then they write files
    finished = len(list(collection.path.glob(".features-ray.units/[0-9]*.json")))
    assert finished >= 5
    assert not (collection.path / "features" / "ray.lance" / "_versions").exists()  # nothing is committed
    found = extract_distributed(collection, PIXELS, cluster.address, OPTIONS)
    assert found.present >= 4 * 5  # the finished units are not computed again
    (table,) = found.tables
    ids = whole.tables[0].ids()
    assert sorted(table.ids()) == sorted(ids)
    np.testing.assert_array_equal(table.take(ids), whole.tables[0].take(ids))
    assert {file.name for file in (table.path / "data").iterdir()} == set(table.data_files())


@pytest.mark.parametrize("kind", ["captioner", "translator"])
def test_sentences_decoded_on_a_cluster_are_those_of_one_process(cluster, runs, tmp_path, kind):
    """Bit for bit at the same number of threads; otherwise the same tokens, and scores within 1e-5."""
    model = load_trained_model(getattr(runs, kind))
    scenes = Collection.open(runs.captioner.parent / "scenes")
    features = open_features(model, scenes)
    examples = Examples.of_split(scenes, "train", model.target, features, source=model.source)
    inputs = examples.generation_inputs()[:14]
    settings = model.recipe.decoding
    with generator_on(cluster.address, [getattr(runs, kind)], scenes.path, tmp_path / "units", "cpu") as on_cluster:
        of_cluster = on_cluster([model], inputs, features, settings, batch_size=4)
    assert not (tmp_path / "units").exists()
    for threads in (1, 2):  # an actor has one
        torch.set_num_threads(threads)
        expected = generate([model], inputs, features, settings, batch_size=4)
        if threads == 1:
            assert of_cluster == expected
        for found, hypotheses in zip(of_cluster, expected, strict=True):
            scores = {hypothesis.tokens: hypothesis.score for hypothesis in hypotheses}  # ties may change places
            assert {hypothesis.tokens: hypothesis.score for hypothesis in found} == pytest.approx(scores, abs=1e-5)
            assert found[0].score == pytest.approx(hypotheses[0].score, abs=1e-5)


@pytest.mark.parametrize("kind", ["run", "hub"])
def test_captions_of_a_cluster_are_those_of_one_process(cluster, runs, tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    model, written = runs.captioner, []
    if kind == "hub":
        model = tmp_path / "blip"
        save_model("blip", model, max_length=8)
    for name, options in (("alone", []), ("ray", ["--ray", cluster.address])):
        Path(name).mkdir()
        for number, image in enumerate(runs.images):
            shutil.copy(image, Path(name, f"{number}.png"))
        Path(name, "broken.png").write_bytes(b"")
        output = ["--output", f"{name}/captions.csv"]
        command = ["describe", name, "--model", str(model), *output, "--batch-size", "2", *options]
        monkeypatch.setattr(sys, "argv", ["limner", *command])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 1  # one image cannot be read
        written.append((Path(name, "captions.csv").read_text(), capsys.readouterr().err.replace(name, "NAME")))
    (captions, errors), (of_cluster, errors_of_cluster) = written
    assert of_cluster == captions.replace("alone", "ray")
    named = [line for line in errors.splitlines() if "broken.png" in line]
    assert named
    assert [line for line in errors_of_cluster.splitlines() if "broken.png" in line] == named
