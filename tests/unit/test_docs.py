"""The pages are complete, start with a command, and are where messages and comments say."""

import re
from pathlib import Path

import pytest

import limner
from limner.models import MODELS
from limner.runs.pretrained import PRETRAINED

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INCLUDED = {"changelog.md", "contributing.md"}
GENERATED = "reproduction"
PAGES = sorted(page.relative_to(DOCS) for page in DOCS.rglob("*.md") if page.name not in INCLUDED)


def test_the_page_of_the_models_lists_every_model():
    listed = re.findall(r"^\| `(\w+)` \| \[", (DOCS / "models.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(listed) == {settings.model_fields["name"].default for settings in MODELS}


def test_the_photographs_of_the_readme_have_the_captions_of_the_built_in_captioner():
    images, _, captions = re.search(
        r"(\| !\[.*)\n(.*)\n(.*)\n", (ROOT / "README.md").read_text(encoding="utf-8")
    ).groups()
    files = [ROOT / name for name in re.findall(r"\((.*?)\)", images)]
    assert len(files) == 4
    for captioner in (limner.load(), limner.Captioner.load(PRETRAINED / "en")):  # without torch, and with it
        described = captioner.describe(files)
        assert [n_best[0].display_text or "not sure" for n_best in described] == [
            text.strip() for text in captions.strip("|").split("|")
        ]


@pytest.mark.parametrize("page", [page for page in PAGES if page.parts[0] != GENERATED], ids=str)
def test_a_page_starts_with_a_command(page):
    title, *lines = (line for line in (DOCS / page).read_text(encoding="utf-8").splitlines() if line)
    assert title.startswith("# ")
    assert next(line for line in lines if not line.startswith("<!--")).startswith("```")


def test_every_page_is_in_the_navigation():
    named = re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted({*named, *INCLUDED}) == sorted({*map(str, PAGES), *INCLUDED})


@pytest.mark.parametrize("folder", ["src", "pretrained", "benchmarks", "recipes", "book"])
def test_pages_named_elsewhere_exist(folder):
    files = [path for suffix in ("py", "md", "yaml") for path in (ROOT / folder).rglob(f"*.{suffix}")]
    named = {name for path in files for name in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))}
    assert not {name for name in named if not (ROOT / name).is_file()}
