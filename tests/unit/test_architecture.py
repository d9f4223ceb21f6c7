"""Structure of the package: layers, sizes of functions, names of classes."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "limner"
MAX_ROOT_MODULES = 8
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8
LINT_IMPORTS = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"

# Exceptions to the limits, as 'path:name'; empty lists are the goal.
LONG_FUNCTIONS: set[str] = set()
MANY_PARAMETERS = {"retrieval/marginal.py:normalised_log_probs"}
REPEATED_CLASS_NAMES: set[str] = set()


def definitions(kinds):
    """All definitions of the package of some node types, with their path relative to the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds):
                yield path.relative_to(PACKAGE), node


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def parameters(function):
    arguments = function.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def test_the_root_of_the_package_has_few_modules():
    assert len(list(PACKAGE.glob("*.py"))) <= MAX_ROOT_MODULES


def first_line(path, node):
    """First counted line of a function: the options of a command and their texts in its docstring do not count."""
    if path.parts[:2] != ("apps", "cli"):
        return node.lineno
    return node.body[0].end_lineno + 1 if ast.get_docstring(node) else node.body[0].lineno


def test_functions_are_short():
    long = {
        f"{path}:{node.name}"
        for path, node in definitions(FUNCTIONS)
        if node.end_lineno - first_line(path, node) + 1 > MAX_FUNCTION_LINES
    }
    assert sorted(long - LONG_FUNCTIONS) == []


def test_functions_have_few_parameters_outside_the_command_line():
    many = {
        f"{path}:{node.name}"
        for path, node in definitions(FUNCTIONS)
        if path.parts[:2] != ("apps", "cli") and len(parameters(node)) > MAX_PARAMETERS
    }
    assert sorted(many - MANY_PARAMETERS) == []


def test_class_names_are_unique():
    paths = defaultdict(list)
    for path, node in definitions(ast.ClassDef):
        paths[node.name].append(str(path))
    repeated = {name: where for name, where in paths.items() if len(where) > 1}
    assert {name: where for name, where in repeated.items() if name not in REPEATED_CLASS_NAMES} == {}


@pytest.fixture
def lint(tmp_path):
    """Copy of the package, and a function that runs import-linter on it."""
    shutil.copytree(PACKAGE, tmp_path / "limner", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-c", LINT_IMPORTS, "--config", str(ROOT / "pyproject.toml"), "--no-cache"]

    def run():
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    return tmp_path / "limner", run


def test_forbidden_imports_break_the_contracts(lint):
    package, run = lint
    allowed = run()
    assert allowed.returncode == 0, allowed.stdout
    for file, module in (("text/vocab.py", "limner.data"), ("apps/report/page.py", "limner.apps.diagnosis")):
        path = package / file
        path.write_text(path.read_text(encoding="utf-8") + f"\nimport {module}\n", encoding="utf-8")
    forbidden = run()
    assert forbidden.returncode == 1
    assert "limner.text is not allowed to import limner.data" in forbidden.stdout
    assert "limner.apps.report is not allowed to import limner.apps.diagnosis" in forbidden.stdout


PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_files_and_names_of_the_page_exist():
    named = re.findall(r"`([\w/]+\.py)(?:: (\w+))?`", PAGE)
    assert len(named) > 20
    for path, function in named:
        assert function in (PACKAGE / path).read_text(encoding="utf-8")


def test_the_tree_of_the_page_is_the_order_of_the_layers():
    tree = PAGE.split("src/limner/\n")[1].split("```")[0]
    rows = [re.split(r"\s{2,}", line.strip())[0] for line in tree.splitlines() if not line.startswith("    ")]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    assert [row.replace("/", "") for row in rows] == [row.replace(" |", "") for row in contracts[0]["layers"]]
    apps = [line.split()[0] for line in tree.splitlines() if line.startswith("    ")]
    assert apps == [name for row in contracts[1]["layers"] for name in row.split(" | ")]


def test_the_table_of_capabilities_is_complete():
    source = (PACKAGE / "models" / "protocols.py").read_text(encoding="utf-8")
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("| protocol |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(
        re.findall(r"@runtime_checkable\nclass (\w+)\(Protocol\)", source)
    )


@pytest.mark.parametrize("folder", ["benchmarks", "book", "pretrained"])
def test_what_scripts_import_of_the_package_exists(folder):
    imports = {
        (node.module, alias.name)
        for path in (ROOT / folder).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("limner")
        for alias in node.names
    }
    for module, name in imports:
        if not hasattr(import_module(module), name):
            import_module(f"{module}.{name}")
