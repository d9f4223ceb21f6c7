"""The pages are complete, start with a command, and are where messages and comments say."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from limner.apps.cli.app import app
from limner.models import MODELS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INCLUDED = {"changelog.md", "contributing.md"}
GENERATED = "reproduction"
PAGES = sorted(page.relative_to(DOCS) for page in DOCS.rglob("*.md") if page.name not in INCLUDED)


def test_the_page_of_the_models_lists_every_model():
    listed = re.findall(r"^\| `(\w+)` \| \[", (DOCS / "models.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(listed) == {settings.model_fields["name"].default for settings in MODELS}


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


def written_commands(text: str) -> list[list[str]]:
    """Return the words of every 'limner …' command in the bash blocks of a page."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    words = (shlex.split(line, comments=True) for line in lines if re.match(r"limner |.*\| limner ", line))
    return [line[line.index("limner") + 1 :] for line in words]


@pytest.mark.parametrize("page", [Path("../README.md"), *PAGES], ids=str)
def test_commands_and_options_of_a_page_exist(page):
    commands = get_command(app).commands
    missing = set()
    for name, *words in written_commands((DOCS / page).read_text(encoding="utf-8")):
        if name.startswith("--"):
            continue
        known = {
            option for parameter in commands[name].params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        named = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        missing |= {(name, option) for option in named - known - {"--help", "--verbose"}}
    assert not missing
