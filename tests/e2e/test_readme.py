"""The marked blocks of the README, the tour and the page of Python, run as written; small files replace the demo."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import limner
from limner.apps.cli import find_commands
from limner.features.store import FeatureTable

ROOT = Path(__file__).parents[2]
README, TOUR, PYTHON = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/tour.md", "docs/python.md")
)
NUMBER = re.compile(r"-?\d+\.\d+")


def blocks(text: str, language: str) -> list[str]:
    """Return the blocks of a page that are marked as tested."""
    return re.findall(rf"<!-- tested -->\n```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a small demo/, as written by 'make demo', and user photographs."""
    place = tmp_path_factory.mktemp("readme")
    settings = limner.SceneSettings(seed=1, train=40, val=6, test=40, size=64, ambiguous=1.0, max_objects=1)
    scenes = limner.generate_collection(place / "demo" / "scenes", settings)
    limner.extract(scenes, limner.load_backbone("pixels:64"))
    run = place / "demo" / "run"
    limner.train(limner.load_recipe("scenes/demo-caption", ["training.epochs=1"]), scenes, run)
    changes = ["training.epochs=1", f"training.pretrained_image_encoder={run}"]
    limner.train(limner.load_recipe("scenes/demo-translate", changes), scenes, place / "demo" / "translation")
    (place / "my_photos").mkdir()
    (place / "Pictures").mkdir()
    images = [scenes.image_path(item) for item in scenes.items("test")[:12]]
    for image in images:
        shutil.copy(image, place / "my_photos")
        (place / "my_photos" / f"{image.stem}.txt").write_text("One sentence.\nAnother one.\n")
    shutil.copy(images[0], place / "photo.jpg")
    for image in images[:2]:
        shutil.copy(image, place / "Pictures")
    return place


def shell(block: str, place: Path) -> str:
    """Run a block in bash with the 'limner' of this environment and return its output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    bash = shutil.which("bash")
    assert bash, "this test needs bash"
    done = subprocess.run(
        [bash, "-euo", "pipefail", "-c", block],
        cwd=place,
        env={**os.environ, "PATH": path, "HOME": str(place), "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_documented_command_exists():
    documented = set(re.findall(r"^- `limner (\w+)`:", README, re.MULTILINE))
    assert documented == set(find_commands())
    assert len(README.split()) <= 900
    assert [len(blocks(page, language)) for page in (README, TOUR) for language in ("bash", "python")] == [2, 1, 4, 1]


def test_the_built_in_captioner(place):
    printed = shell(blocks(README, "bash")[0], place)
    assert len(re.findall(r"^photo\.jpg\t", printed, re.MULTILINE)) >= 2  # in English and in German
    assert {path.name for path in (place / "Pictures").glob("*.jpg")} <= set(re.findall(r"test-\d+\.jpg", printed))


def test_user_images(place):
    printed = shell(blocks(README, "bash")[1], place)
    mine = limner.Collection.open(place / "collections" / "mine")
    assert "12 items with 24 sentences" in printed
    assert len(FeatureTable.open(mine, "efficientnet-lite2")) == 12
    assert re.findall(r"^next: limner (\w+) ", printed, re.MULTILINE) == ["features", "train", "evaluate", "report"]
    assert (place / "runs" / "mine" / "evaluation" / "test.json").is_file()
    assert re.search(r"^photo\.jpg\t\w", printed, re.MULTILINE)


def test_show_describe_score_and_search(place):
    printed = shell(blocks(TOUR, "bash")[0], place)
    image = "demo/scenes/images/test-00000.jpg"
    assert (place / "sheet.png").stat().st_size > 0
    assert len(re.findall(rf"^{image}\s.*\s-?\d", printed, re.MULTILINE)) == 3  # --n-best 3
    assert len(re.findall(r"^-[\d.]+\s+[\d.]+\s+There is a ", printed, re.MULTILINE)) == 2
    assert len(re.findall(r"^-[\d.]+\s+\S*test-000\d\d.jpg\s+There is a ", printed, re.MULTILINE)) == 5


def test_train_evaluate_and_report(place):
    printed = shell(blocks(TOUR, "bash")[1], place)
    assert "bleu4" in printed and "perplexity" in printed
    for name in ("model.safetensors", "README.md", "evaluation/test.json", "report.html"):
        assert (place / "runs" / "second" / name).is_file()
    report = (place / "runs" / "second" / "report.html").read_text(encoding="utf-8")
    assert ">Captions: test</h2>" in report


def test_translate_and_diagnose(place):
    printed = shell(blocks(TOUR, "bash")[2], place)
    assert "sentences with an ambiguous word; chance 50 %" in printed
    assert (place / "attention" / "index.html").is_file()
    assert list((place / "attention").glob("**/*.png"))
    assert (place / "demo" / "translation" / "diagnosis" / "test.json").is_file()


def test_user_filters_and_a_row_of_a_published_table(place):
    printed = shell(blocks(TOUR, "bash")[3], place)
    names = ["Back-off GT3", "LBL", "MLBL-B-conv-R", "MLBL-B-conv"]
    assert re.findall(r"^\| ((?:Back|LBL|MLBL)\S*(?: GT3)?) \(.*budget 0\.05\) \|", printed, re.MULTILINE) == names
    made = place / "runs" / "table1"
    assert (made / "table.md").read_text(encoding="utf-8") in printed
    assert (made / "text_to_image.png").stat().st_size > 0
    assert (place / "filters.png").stat().st_size > 0


@pytest.mark.parametrize("page", [README, TOUR], ids=["README.md", "tour.md"])
def test_a_python_example(page, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    (example,) = blocks(page, "python")
    assert len(example.strip().replace("\n\n", "\n").splitlines()) <= 5
    exec(compile(example, "example", "exec"), {})
    assert capsys.readouterr().out.count("\n") == 1


def test_the_page_of_python_prints_what_it_shows(tmp_path):
    shutil.copytree(ROOT / "docs" / "assets" / "photographs", tmp_path / "photos")
    pairs = re.findall(r"<!-- tested -->\n```python\n(.*?)```\n\n```text\n(.*?)```", PYTHON, re.DOTALL)
    assert len(pairs) == PYTHON.count("```python") == 8
    (tmp_path / "page.py").write_text("print('---')\n".join(code for code, _ in pairs), encoding="utf-8")
    printed = shell(f"'{sys.executable}' page.py", tmp_path).split("---\n")
    for output, (code, shown) in zip(printed, pairs, strict=True):
        assert NUMBER.sub("#", output) == NUMBER.sub("#", shown), code
        values, expected = ([float(value) for value in NUMBER.findall(text)] for text in (output, shown))
        assert values == pytest.approx(expected, abs=0.11), code  # printed with one decimal
    assert len(PYTHON.split()) <= 900
