"""The marked blocks of the README, run as written on a small replacement of the demo folder."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import limner
from limner.cli import app
from limner.features.store import FeatureTable

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"<!-- tested -->\n```(\w+)\n(.*?)```", re.DOTALL)
BLOCKS = BLOCK.findall(README.read_text(encoding="utf-8"))
SHELL = [block for language, block in BLOCKS if language == "bash"]
PYTHON = [block for language, block in BLOCKS if language == "python"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a small demo/, as written by 'make demo', and user photographs."""
    place = tmp_path_factory.mktemp("readme")
    settings = limner.SceneSettings(seed=1, train=40, val=6, test=40, size=64, ambiguous=1.0, max_objects=1)
    scenes = limner.generate_scenes(place / "demo" / "scenes", settings)
    limner.extract(scenes, limner.load_backbone("pixels:64"))
    run = place / "demo" / "run"
    limner.train(limner.load_recipe("scenes/demo-caption", ["training.epochs=1"]), scenes, run)
    changes = ["training.epochs=1", f"training.pretrained_image_encoder={run}"]
    limner.train(limner.load_recipe("scenes/demo-translate", changes), scenes, place / "demo" / "translation")
    (place / "my_photos").mkdir()
    for item in scenes.items("test")[:12]:
        shutil.copy(scenes.image_path(item), place / "my_photos" / f"{item.id}.jpg")
        (place / "my_photos" / f"{item.id}.txt").write_text("One sentence.\nAnother one.\n")
    return place


def shell(block: str, place: Path) -> str:
    """Run a block in bash with the 'limner' of this environment and return its output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    bash = shutil.which("bash")
    assert bash, "this test needs bash"
    done = subprocess.run(
        [bash, "-euo", "pipefail", "-c", block],
        cwd=place,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_documented_command_exists():
    documented = set(re.findall(r"^\| `limner (\w+)`", README.read_text(encoding="utf-8"), re.MULTILINE))
    there = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert documented == there
    assert len(SHELL) == 5 and len(PYTHON) == 1


def test_show_describe_score_and_search(place):
    printed = shell(SHELL[0], place)
    image = "demo/scenes/images/test-00000.jpg"
    assert (place / "sheet.png").stat().st_size > 0
    assert len(re.findall(rf"^{image}\s.*\s-\d", printed, re.MULTILINE)) == 3  # --n-best 3
    assert len(re.findall(r"^-[\d.]+\s+[\d.]+\s+There is a ", printed, re.MULTILINE)) == 2
    assert len(re.findall(r"^-[\d.]+\s+\S*test-000\d\d.jpg\s+There is a ", printed, re.MULTILINE)) == 5


def test_train_evaluate_and_report(place):
    printed = shell(SHELL[1], place)
    assert "bleu4" in printed and "perplexity" in printed
    for name in ("model.safetensors", "README.md", "evaluation/test.json", "report.html"):
        assert (place / "runs" / "second" / name).is_file()
    report = (place / "runs" / "second" / "report.html").read_text(encoding="utf-8")
    assert ">Captions: test</h2>" in report


def test_translate_and_diagnose(place):
    printed = shell(SHELL[2], place)
    assert "sentences with an ambiguous word; chance 50 %" in printed
    assert (place / "attention" / "index.html").is_file()
    assert list((place / "attention").glob("**/*.png"))
    assert (place / "demo" / "translation" / "diagnosis" / "test.json").is_file()


def test_user_images(place):
    printed = shell(SHELL[3], place)
    mine = limner.Collection.open(place / "collections" / "mine")
    assert "12 items with 24 sentences" in printed
    assert len(FeatureTable.open(mine, "efficientnet-lite2")) == 12
    assert re.findall(r"^next: limner (\w+) ", printed, re.MULTILINE) == ["features", "train", "evaluate"]
    assert (place / "runs" / "mine" / "model.safetensors").is_file()


def test_user_filters_and_a_row_of_a_published_table(place):
    printed = shell(SHELL[4], place)
    names = ["Back-off GT3", "LBL", "MLBL-B-conv-R", "MLBL-B-conv"]
    assert re.findall(r"^\| ((?:Back|LBL|MLBL)\S*(?: GT3)?) \(.*budget 0\.05\) \|", printed, re.MULTILINE) == names
    made = place / "runs" / "table1"
    assert (made / "table.md").read_text(encoding="utf-8") in printed
    assert (made / "text_to_image.png").stat().st_size > 0
    assert (place / "filters.png").stat().st_size > 0


def test_the_python_example_of_the_readme(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert len(PYTHON[0].strip().replace("\n\n", "\n").splitlines()) <= 5
    exec(compile(PYTHON[0], str(README), "exec"), {})
    assert capsys.readouterr().out.count("\n") == 1
