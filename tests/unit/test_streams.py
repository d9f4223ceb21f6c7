"""Standard streams that are closed, that end early, or that cannot be written to."""

import os
import shlex
import subprocess
import sys

import pytest

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
