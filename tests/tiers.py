"""Run the tests of a tier: what `make check`, `make test`, `make test-long`, `make slow` and `make test-alone` call.

    python tests/tiers.py TIER [options and paths of pytest]

The workers of pytest-xdist share the fast tests. Each file of the others has a process of its own, so that neither what
it starts nor its end reaches the tests of another file. Every process has a deadline.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TIERS = {"fast": "not slow and not long", "long": "long and not slow", "slow": "slow"}
"""Tiers by markers; every test is in exactly one of them."""
LONG = (
    *("e2e/test_clients_libretranslate.py", "e2e/test_clients_ollama.py"),
    *("e2e/test_clients_javascript.py", "e2e/test_clients_openai.py", "e2e/test_clients_page.py"),
    *("e2e/test_openapi.py", "e2e/test_page.py"),
    *("e2e/test_search_service.py", "e2e/test_serve.py", "hostile/test_service.py"),  # services, browsers
    *("e2e/test_ray.py", "e2e/test_several_processes.py"),  # clusters, trainings of several processes
    *("e2e/test_ctrl_c.py", "hostile/test_kill.py"),  # interruptions, kills
    *("e2e/test_learns.py", "e2e/test_readme.py", "e2e/test_videos.py"),  # minutes of work
)
"""Files whose tests have the marker `long`."""
NOT_QUICK = (
    "attention_plots", "backbones", "book", "bounds", "captions_in_files", "cli", "compiled", "constrained_search",
    "correlate", "efficientnet", "large_collections", "log_bilinear_training", "phrase_based",
    "process", "published_tables", "remote_collections", "report",
    "report_translations", "reproduce", "reproduce_translation", "retrieval", "scst", "significance", "trained_model",
    "training", "translation_training",
)  # fmt: skip
"""Files of tests/unit that take more than five seconds, which `check` leaves out."""
CHECK = ("tests/unit", *(f"--ignore=tests/unit/test_{name}.py" for name in NOT_QUICK))
"""Quick tests."""
WORKERS = ("-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0")
"""One worker runs the tests of a file, and the run ends when a worker dies."""
DEADLINES = {"fast": 2400, "check": 1200, "long": 900, "slow": 7200, "alone": 900}
"""Seconds of a process of pytest: several times what two idle cores need."""
PYTEST = (sys.executable, "-m", "pytest")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests of a file in a random order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    files = {Path(__file__).parent / name for name in LONG}
    for item in items:
        if item.path in files:
            item.add_marker("long")
    if (seed := config.getoption("shuffle")) is not None:
        random.Random(seed).shuffle(items)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report: pytest.TestReport) -> None:
    """End the run when a worker of pytest-xdist dies: the others would first finish all of their files."""
    pytest.exit(str(report.longrepr), returncode=1)


def run(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> int:
    """Run a command in a process group of its own, which ends with it; return its exit status, or 1 at the deadline."""
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **(environment or {})}, process_group=0)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # pytest prints where its threads are
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        print(f"\nerror: ended at the deadline of {seconds:g} s: {' '.join(command)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        raise
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def collect(options: Sequence[str]) -> dict[str, list[str]]:
    """Return the tests that options of pytest select, by file.

    Raises:
        SystemExit: there are none, or a file cannot be imported.
    """
    quiet = [option for option in options if option not in ("-v", "-vv", "--verbose")]  # else the list is a tree
    command = (*PYTEST, "--collect-only", "-q", *quiet)
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if collected.returncode:
        sys.exit(collected.stdout + collected.stderr)
    tests: dict[str, list[str]] = {}
    for line in collected.stdout.splitlines():
        if "::" in line and not line[0].isspace():
            tests.setdefault(line.split("::")[0], []).append(line)
    if not tests:
        sys.exit(f"no tests of this tier: {' '.join(options)}")
    return tests


def run_files(tier: str, options: Sequence[str]) -> int:
    """Run each file in a process of its own and print a report; return the exit status."""
    selection = ("-m", "not slow" if tier == "alone" else TIERS[tier])
    others = [option for option in options if not (ROOT / option.split("::")[0]).exists()]
    environments: list[dict[str, str]] = [{}]
    if tier == "alone":
        environments = [{"OMP_NUM_THREADS": threads} for threads in "12"]
    report, failed = [], 0
    for file, tests in collect((*selection, *options)).items():
        for environment in environments:
            order = ("-p", "no:xdist", "--shuffle", str(random.randrange(1000))) if tier == "alone" else ()
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:
                names.write("\n".join(tests))
                names.flush()
                begin = time.monotonic()
                command = (*PYTEST, "-q", *selection, *order, *others, f"@{names.name}")
                status = run(command, DEADLINES[tier], environment)
            failed += status != 0
            result = f"failed, status {status}" if status else "passed"
            settings = [f"{name}={value}" for name, value in environment.items()]
            report.append(" ".join([f"{time.monotonic() - begin:6.1f} s  {file}: {result}", *settings, *order[2:]]))
    print("\n".join(["", *report, f"{len(report)} runs of files, {failed} failed"]))
    return int(failed > 0)


def main(tier: str, *options: str) -> int:
    """Run the tests of a tier; return the exit status."""
    if tier in ("fast", "check"):
        selection = ("-m", TIERS["fast"], *(CHECK if tier == "check" else ()))
        return run((*PYTEST, *WORKERS, *selection, *options), DEADLINES[tier])
    return run_files(tier, options)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
