import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from limner import process
from limner.metrics.meteor import find_java


def pytest_configure() -> None:
    # METEOR takes seconds for each evaluation, also in child processes: only tests with the fixture `java` compute it.
    os.environ["JAVA_HOME"] = str(Path(__file__).parent / "no-java")
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)  # one process for each core
    # A background shell ignores SIGINT for its children; tests that send it need the default handler.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of the real development data (photographs, sentences, a network); not part of the project."""
    folder = Path(os.environ.get("LIMNER_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data is not at {folder}; set LIMNER_DATA")
    return folder


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> str:
    """Java program of this machine, which METEOR needs."""
    monkeypatch.delenv("JAVA_HOME")
    found = find_java()
    if found is None:
        pytest.skip("METEOR needs Java, and there is none here")
    return found


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands that run in the process of the tests do not change the number of threads of other tests."""
    monkeypatch.setattr(process, "_choose_threads", False)
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
