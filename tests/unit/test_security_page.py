"""The table of threats names code and tests that exist."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
