"""`limner train --devices 2`: the results of one process, one writer, resumption at another number, and failures."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import limner
from limner.runs.records import read_log
from limner.storage.tensors import load_tensors
from limner.training.loop import train

RECIPE = """
model: {name: mrnn, embedding_dim: 12, hidden_dim: 16, multimodal_dim: 16, dropout: DROPOUT}
features: {tables: [pixels16]}
decoding: {beam_size: 2, max_length: 8}
training: {epochs: EPOCHS, batch_size: 25, optimizer: {name: sgd, lr: 0.1}, clip_norm: 1.0, l2: 0.0001, precision: fp32,
  metrics: [perplexity, bleu4]}
"""

CHANGED = """
import os, signal, sys, time
from pathlib import Path
from limner.apps.cli import main
from limner.training.state import TrainState

add_step = TrainState.add_step
def add_step_and_act(self, *arguments):
    add_step(self, *arguments)
    if self.step == 7 and os.environ.get("LOCAL_RANK", "0") == "NUMBER":
        ACTION
TrainState.add_step = add_step_and_act
main()
"""
"""The command; one of its processes does something after step 7, which is in the middle of the second epoch."""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A small collection of scenes with features; its 120 sentences are no multiple of the batch size."""
    settings = limner.SceneSettings(seed=1, train=24, val=5, test=2, size=32, max_objects=1)
    scenes = limner.generate_collection(tmp_path_factory.mktemp("data") / "scenes", settings)
    limner.extract(scenes, limner.load_backbone("pixels:16"))
    return scenes


def recipe(folder: Path, epochs: int, dropout: float = 0.0) -> Path:
    """Write the recipe."""
    path = folder / f"{epochs}-{dropout}.yaml"
    path.write_text(RECIPE.replace("EPOCHS", str(epochs)).replace("DROPOUT", str(dropout)))
    return path


def command(recipe: Path, scenes, out: Path, *options: str) -> list[str]:
    """Command line of a training on the CPU."""
    arguments = ["train", str(recipe), "--collection", str(scenes.path), "--out", str(out), "--device", "cpu"]
    return ["-m", "limner", *arguments, *options]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    """Start a program of Python with one thread a process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *arguments], env=environment, text=True, **pipes)


def start_changed(folder: Path, rank: int, action: str, arguments: list[str]) -> subprocess.Popen[str]:
    """Start a command whose process of a rank does something after step 7."""
    script = folder / "changed.py"
    script.write_text(CHANGED.replace("NUMBER", str(rank)).replace("ACTION", action))
    return start([str(script), *arguments[2:]])


def finish(program: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit status, output and errors of a program."""
    output, errors = program.communicate(timeout=300)
    return program.returncode, output, errors


def wait_for_epoch(program: subprocess.Popen[str], run: Path) -> None:
    """Wait for the first line of the log."""
    while program.poll() is None and not (run / "log.jsonl").exists():
        time.sleep(0.05)


def assert_close(one: Path, other: Path, tolerance: float) -> None:
    """Check that the saved weights of two runs are equal up to rounding."""
    ours, theirs = (load_tensors(run / "model.safetensors") for run in (one, other))
    for name, weights in ours.items():
        assert float((weights - theirs[name]).norm()) <= tolerance * max(1.0, float(weights.norm())), name


def test_two_processes_train_the_model_of_one(scenes, tmp_path):
    """Weights, log and decoded sentences; the two programs run at the same time."""
    path = recipe(tmp_path, 2)
    program = start(command(path, scenes, tmp_path / "two", "--devices", "2", "--json"))
    train(limner.load_recipe(str(path), []), scenes, tmp_path / "one", device="cpu")
    status, output, errors = finish(program)
    assert status == 0, errors
    assert json.loads(output)["processes"] == 2, "one process prints"
    assert_close(tmp_path / "one", tmp_path / "two", 1e-6)
    logs = [read_log(tmp_path / name / "log.jsonl") for name in ("one", "two")]
    assert len(logs[0]) == len(logs[1]) == 4
    for ours, theirs in zip(*logs, strict=True):
        assert (ours.step, ours.kind) == (theirs.step, theirs.kind)
        values = [[line.loss or 0.0, line.perplexity or 0.0, *line.metrics.values()] for line in (ours, theirs)]
        assert values[0] == pytest.approx(values[1], rel=1e-4)


def test_an_interrupted_training_is_resumed_bit_for_bit(scenes, tmp_path):
    """With dropout, whose random numbers every process has for itself; the signal reaches the first process alone."""
    path, run, sent = recipe(tmp_path, 12, 0.3), tmp_path / "run", tmp_path / "sent"
    whole = start(command(path, scenes, tmp_path / "whole", "--devices", "2"))
    wait = f"while os.getppid() == {os.getpid()} and not Path({str(sent)!r}).exists(): time.sleep(0.01)"
    program = start_changed(tmp_path, 0, wait, command(path, scenes, run, "--devices", "2"))
    wait_for_epoch(program, run)
    program.send_signal(signal.SIGTERM)
    sent.touch()
    status, _, errors = finish(program)
    assert status == 130, errors
    assert errors.count("interrupted") == 1
    assert finish(whole)[0] == 0
    status, _, errors = finish(start(command(path, scenes, run, "--devices", "2", "--resume")))
    assert status == 0, errors
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_the_death_of_a_process_ends_all_with_one_message_and_one_process_continues(scenes, tmp_path):
    path, run = recipe(tmp_path, 4), tmp_path / "run"
    die = "os.kill(os.getpid(), signal.SIGKILL)"
    status, _, errors = finish(start_changed(tmp_path, 1, die, command(path, scenes, run, "--devices", "2")))
    assert status == 1 and (run / "log.jsonl").exists()
    assert errors.count("error") == 1 and "one of the 2 processes has ended" in " ".join(errors.split())
    loaded = limner.load_recipe(str(path), [])
    train(loaded, scenes, run, device="cpu", resume=True)
    train(loaded, scenes, tmp_path / "whole", device="cpu")
    assert_close(run, tmp_path / "whole", 1e-4)


def test_an_error_in_another_process_is_printed_once(scenes, tmp_path):
    """The second process fails in the middle of an epoch, where the first waits for it."""
    broken = (
        "import os; import limner.training.processes as p; from limner.errors import TrainingError\n"
        "def fail(self, batch): raise TrainingError('no more rows')\n"
        "if os.environ.get('LOCAL_RANK') == '1': p.Processes.rows = fail\n"
        "from limner.apps.cli import main; main()\n"
    )
    script = tmp_path / "program.py"
    script.write_text(broken)
    _, _, *arguments = command(recipe(tmp_path, 2), scenes, tmp_path / "run", "--devices", "2")
    status, _, errors = finish(start([str(script), *arguments]))
    assert status == 1
    assert errors.count("error") == 1 and "process 2 of 2: no more rows" in " ".join(errors.split())


def test_two_machines_are_connected_by_torchrun(scenes, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path, run = recipe(tmp_path, 1), tmp_path / "run"
    place = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    nodes = [
        start(["-m", "torch.distributed.run", *place, "--node-rank", str(rank), *command(path, scenes, run, "--json")])
        for rank in range(2)
    ]
    (first, output, errors), (second, nothing, _) = map(finish, nodes)
    assert (first, second, nothing) == (0, 0, ""), errors
    assert json.loads(output)["processes"] == 2
    train(limner.load_recipe(str(path), []), scenes, tmp_path / "one", device="cpu")
    assert_close(run, tmp_path / "one", 1e-6)
