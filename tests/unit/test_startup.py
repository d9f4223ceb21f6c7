"""Modules that a command imports, in a new process: those that it does not use must not slow it down."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from limner.apps import cli

PROGRAM = """
import json, sys
from limner.apps.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules} | set(sys.modules))))
"""
TABLES = {"lance", "pandas", "pyarrow"}
TRAINING = {"lightning_fabric", "tensorboard", "torch.utils.tensorboard", "limner.training"}
EVALUATION = {"sacrebleu", "pycocoevalcap", "scipy", "limner.evaluation"}
DRAWING = {"jinja2", "matplotlib", "sklearn", "limner.apps.report"}
OTHERS = {"sacremoses", "transformers", "huggingface_hub", "av", "soundfile", "limner.synthetic", "limner.data.readers"}
TORCH = {"torch", "numpy", "PIL", "tokenizers", "safetensors"}


def modules_of(*arguments):
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1])), done.stdout


@pytest.fixture
def image(tiny):
    return tiny.image_path(tiny.items("test")[0])


def test_describing_an_image_imports_nothing_that_it_does_not_use(trained, image):
    modules, printed = modules_of("describe", image, "--model", trained)
    assert printed.startswith(f"{image}\t")
    assert modules & (TABLES | TRAINING | EVALUATION | DRAWING | OTHERS) == set()
    assert modules >= TORCH


@pytest.mark.parametrize("arguments", [(), ("--help",), ("describe", "--help"), ("train", "--help")])
def test_help_imports_neither_torch_nor_numpy(arguments):
    modules, printed = modules_of(*arguments)
    assert "Usage: " in printed
    assert modules & (TORCH | TABLES | TRAINING | EVALUATION | DRAWING | OTHERS | {"yaml"}) == set()


def test_importing_the_package_imports_no_dependencies():
    program = "import sys, limner; print([name for name in ('torch', 'numpy', 'pydantic') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_only_the_named_command_is_built():
    program = sys.modules["limner.apps.cli.app"]  # the package has an `app` of its own
    everything = list(cli.app.registered_commands)
    for arguments in (["describe", "search"], ["--verbose", "describe"]):
        named = program._with_named_command(arguments)
        assert list(typer.main.get_command(named).commands) == ["describe"]
    for arguments in ([], ["--help"], ["unknown"]):
        assert program._with_named_command(arguments) is cli.app
    assert cli.app.registered_commands == everything


@pytest.mark.parametrize("line", ["evaluate --model missing --collection c", "translate one --model missing --write"])
def test_errors_of_arguments_are_reported_before_torch_is_imported(line):
    program = "import sys; from limner.apps.cli import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, *line.split()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "False\n") and done.stderr.startswith("error: ")


def test_a_folder_is_indexed_and_searched_without_torch(tmp_path):
    photographs = Path(__file__).parents[2] / "docs" / "assets" / "photographs"
    modules, _ = modules_of("index", photographs, "--index", tmp_path / "index")
    assert "torch" not in modules
    modules, printed = modules_of("search", "a cat", "--in", photographs, "--index", tmp_path / "index", "--count", 1)
    assert "torch" not in modules and "cat.jpg" in printed
