"""The packages `openai` and `ollama` of npm against `limner serve` with the built-in models."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from programs import PROGRAM

import limner

FOLDER = Path(__file__).parent
PHOTO = FOLDER.parents[1] / "docs" / "assets" / "photographs" / "cat.jpg"
PACKAGES = ("openai@6.49.0", "ollama@0.6.4")
NODE = 18
"""Oldest version of Node.js that the packages work with."""
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A folder with the packages."""
    node, npm = shutil.which("node"), shutil.which("npm")
    version = "" if node is None else subprocess.run([node, "--version"], capture_output=True, text=True).stdout
    if npm is None or not (match := re.match(r"v(\d+)", version)) or int(match[1]) < NODE:
        pytest.skip(
            f"the clients in JavaScript need npm and Node.js {NODE} or newer; found {version.strip() or 'none'}"
        )
    folder = tmp_path_factory.mktemp("packages")
    command = [npm, "install", "--prefix", folder, "--ignore-scripts", "--no-audit", "--no-fund", *PACKAGES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {', '.join(PACKAGES)} within five minutes")
    if any(code in done.stderr for code in ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ECONNRESET")):
        pytest.skip(f"npm cannot install {', '.join(PACKAGES)}: {done.stderr.strip()[:300]}")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def address():
    """Address of a service with the built-in models."""
    command = [*PROGRAM, "serve", "--port", "0", "--timeout", "300"]
    with subprocess.Popen(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True
    ) as service:
        try:
            yield service.stdout.readline().split()[-1]
        finally:
            service.terminate()
            service.wait(30)


@pytest.mark.parametrize("script", ["client_openai.mjs", "client_ollama.mjs"])
def test_a_client_gets_what_limner_generates(packages, address, script):
    captions = limner.load().describe([PHOTO], n_best=3)[0]
    translation = limner.load(to="de").translate(["A dog is on the beach."])[0][0].text
    expected = {"captions": [caption.text for caption in captions], "tokens": len(captions[0].tokens)}
    expected |= {"translation": translation, "version": limner.__version__}
    command = ["node", shutil.copy(FOLDER / script, packages), address, PHOTO, json.dumps(expected)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
