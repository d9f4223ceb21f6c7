"""The marked blocks of docs/clients.md, run as written against the service of its first block."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- tested -->\n```(\w+)\n(.*?)```", PAGE, re.DOTALL)
(SERVE,) = re.findall(r"<!-- tested: service -->\n```bash\n(.*?)```", PAGE, re.DOTALL)
ADDRESS = "http://127.0.0.1:8000"
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="module")
def place(runs, tmp_path_factory):
    """A folder with the models and the photograph of the page, and the address of the service."""
    place = tmp_path_factory.mktemp("clients")
    shutil.copytree(runs.captioner, place / "runs" / "captioner")
    shutil.copytree(runs.translator, place / "runs" / "translator")
    shutil.copy(runs.image, place / "photo.jpg")
    command = SERVE.replace("8000", "0").split()
    environment = {**os.environ, "PATH": PATH, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.PIPE, text=True) as service:
        try:
            said = service.stdout.readline()
            assert said.startswith("listening on http://"), said
            yield place, said.split()[-1]
        finally:
            service.terminate()
            service.wait(30)


def test_the_page_has_examples_of_every_client():
    assert [language for language, _ in BLOCKS] == ["bash", "python", "python", "python"]
    assert all(ADDRESS in block for _, block in BLOCKS)


@pytest.mark.parametrize(("language", "block"), BLOCKS, ids=["curl", "ollama", "openai", "libretranslatepy"])
def test_an_example(place, language, block):
    folder, address = place
    if language == "bash" and shutil.which("curl") is None:
        pytest.skip("this example needs curl")
    program = ["bash", "-euo", "pipefail", "-c"] if language == "bash" else [sys.executable, "-c"]
    done = subprocess.run(
        [*program, block.replace(ADDRESS, address)],
        cwd=folder, env={**os.environ, "PATH": PATH}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    phrases = ("picture", "there is", "Es gibt", "Das Bild zeigt")  # of the scenes that the models are trained on
    assert any(phrase in done.stdout for phrase in phrases), done.stdout
