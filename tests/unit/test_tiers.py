"""The runs of the tests: each test is in one of them, and a process that dies or hangs ends its run with a report."""

import os
import re
import time
from itertools import groupby, product
from pathlib import Path

import pytest

import tiers

TESTS = Path(tiers.__file__).parent


@pytest.mark.parametrize(("slow", "long"), [*product((False, True), repeat=2)])
def test_every_test_is_in_one_tier(slow, long):
    assert sum(eval(expression, {"slow": slow, "long": long}) for expression in tiers.TIERS.values()) == 1


def test_named_files_exist():
    named = [*tiers.LONG, *(f"unit/test_{name}.py" for name in tiers.NOT_QUICK)]
    assert [name for name in named if not (TESTS / name).is_file()] == []


@pytest.fixture
def write_tests(tmp_path, monkeypatch):
    """Function that writes files of tests where pytest has our hooks and none of the options of this run."""
    for name in [name for name in os.environ if name.startswith("PYTEST")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setattr(tiers, "ROOT", tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # their imports take seconds
    options = "addopts = -p tiers -p xdist.plugin\nmarkers =\n    long\n    slow\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{options}")

    def write(**files: str) -> None:
        for name, body in files.items():
            (tmp_path / f"test_{name}.py").write_text(body)

    return write


def test_a_worker_that_dies_ends_the_run_with_a_report(write_tests, monkeypatch, capfd):
    waits = "import time, pytest\n@pytest.mark.parametrize('n', range(1000))\ndef test_wait(n): time.sleep(1)\n"
    dies = "import os\ndef test_before(): pass\ndef test_dies(): os._exit(1)\ndef test_after(): pass\n"
    write_tests(dies=dies, waits=waits)
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "2")
    begin = time.monotonic()
    assert tiers.main("fast") == 1
    assert time.monotonic() - begin < 200  # of some ten; the other file takes 1,000
    output = capfd.readouterr().out
    assert "crashed while running" in output and "test_dies" in output


def test_a_process_that_hangs_is_ended_with_what_it_started_at_the_deadline(capfd):
    assert tiers.run(["sh", "-c", "sleep 600 & echo $!; wait"], seconds=1) == 1
    output, errors = capfd.readouterr()
    assert "ended at the deadline of 1 s" in errors
    state = Path(f"/proc/{int(output)}/stat")
    end = time.monotonic() + 30
    while state.exists() and state.read_text().split()[2] != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)


def test_files_run_one_by_one_and_the_failing_one_fails_the_run(write_tests, capfd):
    mark = "import pytest\npytestmark = pytest.mark.long\n"
    write_tests(dies=f"{mark}import os\ndef test_dies(): os._exit(3)\n", good=f"{mark}def test_good(): pass\n")
    assert tiers.main("long") == 1
    output = capfd.readouterr().out
    assert "test_dies.py: failed, status 3" in output
    assert "test_good.py: passed" in output
    assert "2 runs of files, 1 failed" in output


def test_alone_each_file_has_processes_of_its_own_with_one_and_two_threads_and_a_random_order(write_tests, capfd):
    body = """import os, sys, pytest
@pytest.mark.parametrize("number", range(9))
def test_alone(number):
    assert [name for name in ("test_one", "test_other") if name in sys.modules] == [__name__]
    with open("ran.txt", "a") as file:
        print(__name__, os.environ["OMP_NUM_THREADS"], os.getpid(), number, file=file)
"""
    write_tests(one=body, other=body)
    assert tiers.main("alone") == 0
    assert "4 runs of files, 0 failed" in capfd.readouterr().out
    ran = [line.split() for line in (tiers.ROOT / "ran.txt").read_text().splitlines()]
    processes = {process: [line[3] for line in ran if line[2] == process] for _, _, process, _ in ran}
    assert [key for key, _ in groupby(line[:2] for line in ran)] == [
        *map(list, product(("test_one", "test_other"), "12"))
    ]
    assert [sorted(order) for order in processes.values()] == [list("012345678")] * 4
    assert any(order != sorted(order) for order in processes.values())
    makefile = (TESTS.parent / "Makefile").read_text()
    assert re.search(r"^test-alone:.*\n\t.* tests/tiers\.py alone", makefile, re.MULTILINE)
