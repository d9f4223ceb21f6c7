"""The pages are complete, start with a command, and are where messages and comments say."""

import ast
import importlib
import json
import re
from pathlib import Path

import pytest
import yaml

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


PAGE = ROOT / "docs" / "scale.md"
BEGIN, END = "<!-- costs -->\n", "\n<!-- end of costs -->"


@pytest.fixture
def costs(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("costs")


@pytest.fixture
def constants(costs):
    return json.loads(costs.CONSTANTS.read_text(encoding="utf-8"))


def row(costs, constants, images):
    lines = costs.tables(constants).splitlines()
    (line,) = (line for line in lines if line.startswith(f"| {images:,} |"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_the_page_has_the_computed_costs(costs, constants):
    stated = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert stated.strip() == costs.tables(constants).strip(), "python benchmarks/costs.py prints the tables"


def test_costs_follow_from_the_constants(costs, constants):
    measured = constants["measured"]
    measured["features_core_seconds"]["value"], measured["ray_overhead"]["value"] = 0.036, 0.1
    measured["query_core_seconds"]["value"] = 0.5
    constants["assumed"]["core_hour_usd"]["value"] = 0.05
    core_hours, hours, dollars, *_, shards, query, queries = row(costs, constants, 100_000_000)
    assert (core_hours, hours, dollars) == ("1,100", "1.10", "55.0")
    assert (shards, query) == ("10", "50.0")
    assert queries == "0.694"


def test_the_manifest_fits_its_definition():
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with Ray, which is not installed")
    schema = json.loads((Path(__file__).parent / "rayjob.schema.json").read_text(encoding="utf-8"))
    manifest = yaml.safe_load((ROOT / "docs" / "assets" / "rayjob.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(manifest, schema)


def test_the_manifest_runs_a_command_that_limner_has():
    from typer.main import get_command

    from limner.apps.cli.app import app

    manifest = yaml.safe_load((ROOT / "docs" / "assets" / "rayjob.yaml").read_text(encoding="utf-8"))
    program, command, *arguments = manifest["spec"]["entrypoint"].split()
    assert program == "limner"
    context = get_command(app).get_command(None, command).make_context(command, arguments)
    assert context.params["ray"] == "auto"


ROWS = [
    [cell.strip().strip("`") for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs/security.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| threat")
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_threat_has_a_rule_a_place_and_a_test(row):
    threat, rule, place, test = row
    assert threat and rule
    assert (ROOT / "src/limner" / place).exists() or (ROOT / place).exists()
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert name in functions | {ast.unparse(node.targets[0]) for node in tree.body if isinstance(node, ast.Assign)}


def test_the_page_is_found():
    assert len(ROWS) > 30
    assert "- Security: security.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "docs/security.md" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")
