"""Threads and wait policy of the commands: chosen by the size of the model unless the user decides."""

import os
import platform
import shlex
import subprocess
import sys

import pytest

from limner import process
from limner.process import PARAMETERS_FOR_THREADS
from limner.runs.trained_model import load_trained_model

PROGRAM = """
import os, sys
from limner.process import prepare_threads, use_threads_for
if "command" in sys.argv:
    prepare_threads()
import torch
torch.set_num_threads(2)
counts = []
for size in (10, int(sys.argv[1]), 10):
    use_threads_for([torch.empty(size, device="meta")])
    counts.append(torch.get_num_threads())
print(os.environ.get("OMP_WAIT_POLICY"), *counts)
"""


def threads(*arguments, **variables):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")} | variables
    command = [sys.executable, "-c", PROGRAM, str(PARAMETERS_FOR_THREADS), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()


def test_a_command_chooses_the_number_of_threads_by_the_model():
    assert threads("command") == ["PASSIVE", "1", "2", "1"]


def test_environment_variables_take_priority():
    assert threads("command", OMP_NUM_THREADS="2", OMP_WAIT_POLICY="ACTIVE") == ["ACTIVE", "2", "2", "2"]


def test_other_programs_keep_their_thread_count():
    assert threads() == ["None", "2", "2", "2"]


def test_loading_a_model_chooses_its_threads(trained, monkeypatch):
    sizes = []
    monkeypatch.setattr(
        "limner.runs.trained_model.use_threads_for", lambda parameters: sizes.append(sum(p.numel() for p in parameters))
    )
    model = load_trained_model(trained).model
    assert sizes == [sum(parameter.numel() for parameter in model.parameters())]


def test_the_processor_is_named_where_the_system_tells_it(monkeypatch):
    facts = b"processor\t: 0\nmodel name\t: A Processor 3000\n\nprocessor\t: 1\nmodel name\t: A Processor 3000\n"
    monkeypatch.setattr(process, "read_bytes", lambda path: facts)
    assert process.processor_name() == f"A Processor 3000 ({platform.machine()})"

    def refuse(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(process, "read_bytes", refuse)
    assert process.processor_name() == platform.machine()


LIMNER = f"{shlex.quote(sys.executable)} -m limner"


def run(command):
    return subprocess.run(
        ["bash", "-c", command.replace("LIMNER", LIMNER)], capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_results_that_cannot_be_printed_are_one_line_of_error():
    done = run("LIMNER --version > /dev/full")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert "No space left on device" in done.stderr


def test_closed_streams_are_no_error():
    done = run("LIMNER --version <&- >&- 2>&-; echo $?; LIMNER --version >&-; echo $?; LIMNER --version 2>&-")
    assert done.stdout.splitlines()[:2] == ["0", "0"]
    assert done.stdout.splitlines()[2].startswith("limner ")
    assert done.stderr == ""


def test_an_image_on_standard_input_is_no_list_of_files(trained):
    done = run(f"printf 'GIF89a\\0\\n\\377\\n' | LIMNER describe - --model {shlex.quote(str(trained))}")
    assert done.returncode == 1
    assert done.stderr == "error: standard input: expected one file per line, got binary data; name the file itself\n"


def test_a_closed_standard_input_has_no_sentences(trained):
    done = run(f"LIMNER describe - --model {shlex.quote(str(trained))} <&-")
    assert done.returncode == 1
    assert done.stderr.startswith("error: standard input: expected one file per line")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_a_closed_pipe_prints_nothing(option):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "limner", option]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
