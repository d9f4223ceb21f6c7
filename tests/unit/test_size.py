"""The size of the program and the ways through it do not grow: the figures of benchmarks/size.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_lines_and_files_have_not_grown(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import size

    assert size.grown(size.static_figures()) == []
    assert size.grown({"files of src": size.TODAY["files of src"] + 1})


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ways_from_the_commands_to_the_models_have_not_grown(tmp_path):
    command = [sys.executable, BENCHMARKS / "size.py", "--paths", "--json", tmp_path / "size.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "size.json").read_text())["request: functions"] > 50
    assert "models/mrnn.py: MRNN.step" in done.stdout
