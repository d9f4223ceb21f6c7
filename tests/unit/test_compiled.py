"""The cache of compiled functions follows the sources of all functions that are compiled into them."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import limner

pytest.importorskip("numba")

INNER = """from limner.compiled import compiled

@compiled
def inner(x):
    return x + {}
"""
OUTER = """from inner import inner
from limner.compiled import compiled

@compiled
def outer(x):
    return 10 * inner(x)
"""


def outer_of_1(folder, **environment):
    """Value of outer(1) in a new process."""
    code = "from outer import outer; print(outer(1))"
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return int(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout)


def caches(folder):
    return sorted(path.name for path in folder.glob("compiled-*"))


def test_a_change_of_a_called_function_in_another_file_is_compiled(tmp_path):
    (tmp_path / "inner.py").write_text(INNER.format(1))
    (tmp_path / "outer.py").write_text(OUTER)
    assert outer_of_1(tmp_path) == 20
    (before,) = caches(tmp_path / "__pycache__")
    assert list((tmp_path / "__pycache__" / before).rglob("outer.outer*.nbc"))
    (tmp_path / "inner.py").write_text(INNER.format(2))
    assert outer_of_1(tmp_path) == 30
    (after,) = caches(tmp_path / "__pycache__")  # that of the earlier sources was deleted
    assert after != before


def test_the_cache_is_in_the_folder_of_the_user(tmp_path):
    (tmp_path / "inner.py").write_text(INNER.format(1))
    (tmp_path / "outer.py").write_text(OUTER)
    assert outer_of_1(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == 20
    assert len(caches(tmp_path / "cache")) == 1
    assert not (tmp_path / "__pycache__").exists()


def test_compiled_functions_call_those_of_their_own_folder_only():
    root = Path(limner.__file__).parent
    trees = {path: ast.parse(path.read_text()) for path in root.rglob("*.py")}
    compiled = {
        ".".join(["limner", *path.relative_to(root).with_suffix("").parts]): path
        for path, tree in trees.items()
        if any("compiled" in map(ast.unparse, getattr(one, "decorator_list", ())) for one in tree.body)
    }
    assert len(compiled) > 5
    for path in compiled.values():
        modules = {one.module for one in ast.walk(trees[path]) if isinstance(one, ast.ImportFrom)}
        assert {compiled[name].parent for name in modules & compiled.keys()} <= {path.parent}
