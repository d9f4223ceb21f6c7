"""Two million rows are imported, read, counted and looked up within 1.5 GiB (slow: about ten minutes)."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ROWS = 2_000_000
LIMIT = 3 << 29


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_million_rows_need_little_memory(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from memory import write_source

    write_source(tmp_path / "source.jsonl", ROWS)
    unit = 1 if sys.platform == "darwin" else 1024
    for step in ("import", "summary", "features"):
        command = [sys.executable, str(BENCHMARKS / "memory.py"), step, str(tmp_path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert int(done.stdout.split()[-1]) * unit < LIMIT, step
