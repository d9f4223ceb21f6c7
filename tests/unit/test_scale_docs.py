"""The costs in the documentation are computed, and the manifest for Kubernetes fits its definition."""

import importlib
import json
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
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
