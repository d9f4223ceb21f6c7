import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from limner import process
from limner.metrics.meteor import data
from tiers import pytest_addoption, pytest_collection_modifyitems, pytest_handlecrashitem  # noqa: F401 (hooks)

OF_THE_USER = (
    *("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "GITHUB_ACTIONS", "PY_COLORS"),  # output as on a terminal
    *("COLUMNS", "TERMINAL_WIDTH"),
    *("LIMNER_API_KEYS", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"),
)
"""Environment variables that change the results of tests."""
LOCAL = "127.0.0.1,localhost"
"""Addresses of the services of the tests, which no proxy reaches."""


def pytest_configure() -> None:
    for name in OF_THE_USER:  # before the consoles are made, which read them
        os.environ.pop(name, None)
    os.environ.update(NO_PROXY=LOCAL, no_proxy=LOCAL)
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
def java() -> str:
    """Java program of this machine, which runs the oracle of METEOR."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if found is None:
        pytest.skip("the oracle of METEOR needs Java, and there is none here")
    return found


@pytest.fixture
def paraphrases() -> None:
    """Tests that ask for it read the paraphrase table, which takes three seconds."""


@pytest.fixture(autouse=True)
def _no_paraphrases(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """METEOR has no paraphrases in the other tests."""
    if "paraphrases" not in request.fixturenames:
        monkeypatch.setattr(data, "paraphrase_file", lambda lang: Path("no-paraphrases"))


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
