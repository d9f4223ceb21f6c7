"""Threads and wait policy of the commands: chosen by the size of the model unless the user decides."""

import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from limner import process
from limner.errors import TRAIN_PACKAGES
from limner.process import PARAMETERS_FOR_THREADS
from limner.runs.trained_model import load_trained_model

PROGRAM = """
import os, sys
from limner.process import prepare_threads, use_threads_for
if "command" in sys.argv:
    prepare_threads()
import torch
torch.set_num_threads(2)
counts = []
for size in (10, int(sys.argv[1]), 10):
    use_threads_for([torch.empty(size, device="meta")])
    counts.append(torch.get_num_threads())
print(os.environ.get("OMP_WAIT_POLICY"), *counts)
"""


def threads(*arguments, **variables):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")} | variables
    command = [sys.executable, "-c", PROGRAM, str(PARAMETERS_FOR_THREADS), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()


def test_a_command_chooses_the_number_of_threads_by_the_model():
    assert threads("command") == ["PASSIVE", "1", "2", "1"]


def test_environment_variables_take_priority():
    assert threads("command", OMP_NUM_THREADS="2", OMP_WAIT_POLICY="ACTIVE") == ["ACTIVE", "2", "2", "2"]


def test_other_programs_keep_their_thread_count():
    assert threads() == ["None", "2", "2", "2"]


def test_loading_a_model_chooses_its_threads(trained, monkeypatch):
    sizes = []
    monkeypatch.setattr(
        "limner.runs.trained_model.use_threads_for", lambda parameters: sizes.append(sum(p.numel() for p in parameters))
    )
    model = load_trained_model(trained).model
    assert sizes == [sum(parameter.numel() for parameter in model.parameters())]


def test_the_processor_is_named_where_the_system_tells_it(monkeypatch):
    facts = b"processor\t: 0\nmodel name\t: A Processor 3000\n\nprocessor\t: 1\nmodel name\t: A Processor 3000\n"
    monkeypatch.setattr(process, "read_bytes", lambda path: facts)
    assert process.processor_name() == f"A Processor 3000 ({platform.machine()})"

    def refuse(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(process, "read_bytes", refuse)
    assert process.processor_name() == platform.machine()


LIMNER = f"{shlex.quote(sys.executable)} -m limner"


def run(command):
    return subprocess.run(
        ["bash", "-c", command.replace("LIMNER", LIMNER)], capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_results_that_cannot_be_printed_are_one_line_of_error():
    done = run("LIMNER --version > /dev/full")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert "No space left on device" in done.stderr


def test_closed_streams_are_no_error():
    done = run("LIMNER --version <&- >&- 2>&-; echo $?; LIMNER --version >&-; echo $?; LIMNER --version 2>&-")
    assert done.stdout.splitlines()[:2] == ["0", "0"]
    assert done.stdout.splitlines()[2].startswith("limner ")
    assert done.stderr == ""


def test_an_image_on_standard_input_is_no_list_of_files(trained):
    done = run(f"printf 'GIF89a\\0\\n\\377\\n' | LIMNER describe - --model {shlex.quote(str(trained))}")
    assert done.returncode == 1
    assert done.stderr == "error: standard input: expected one file per line, got binary data; name the file itself\n"


def test_a_closed_standard_input_has_no_sentences(trained):
    done = run(f"LIMNER describe - --model {shlex.quote(str(trained))} <&-")
    assert done.returncode == 1
    assert done.stderr.startswith("error: standard input: expected one file per line")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_a_closed_pipe_prints_nothing(option):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "limner", option]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


START_PROGRAM = """
import json, sys
from limner.apps.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules} | set(sys.modules))))
"""
WITHOUT_TRAINING = f"import sys\nsys.modules.update(dict.fromkeys({sorted(TRAIN_PACKAGES)!r}))\n"
SERVICE = """
import base64
from fastapi.testclient import TestClient
from limner.apps.photos.index import FolderIndex
from limner.apps.server.app import create_app
from limner.apps.server.settings import ServerSettings
image = base64.b64encode(open(sys.argv[1], "rb").read()).decode()
with TestClient(create_app(ServerSettings.parse({}), FolderIndex.open), "http://localhost") as client:
    for path, words in (("describe", {}), ("score", {"sentences": ["a cat"]}), ("explain", {})):
        print(path, (answer := client.post("/v1/" + path, json={"image": image, **words})).status_code, answer.text)
"""
PHOTOGRAPHS = Path(__file__).parents[2] / "docs" / "assets" / "photographs"
CAT = PHOTOGRAPHS / "cat.jpg"
TABLES = {"lance", "pandas", "pyarrow"}
TRAINING = {"lightning_fabric", "tensorboard", "torch.utils.tensorboard", "limner.training"}
EVALUATION = {"sacrebleu", "pycocoevalcap", "scipy", "limner.evaluation"}
DRAWING = {"jinja2", "matplotlib", "sklearn", "limner.apps.report"}
OTHERS = {"sacremoses", "transformers", "huggingface_hub", "av", "soundfile", "limner.synthetic", "limner.data.readers"}
TORCH = {"torch", "numpy", "PIL", "tokenizers", "safetensors"}


def modules_of(*arguments, before=""):
    """Run a command after some lines of Python: its modules and what it printed."""
    command = [sys.executable, "-c", before + START_PROGRAM, *map(str, arguments)]
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


def test_only_the_named_command_is_imported(image):
    modules, _ = modules_of("describe", image)
    assert "limner.apps.cli.describe" in modules
    assert modules & {f"limner.apps.cli.{name}" for name in ("doctor", "serve", "train", "translate")} == set()


def test_translating_a_sentence_imports_no_records_of_runs_and_no_metrics():
    modules, printed = modules_of("translate", "Two dogs run.", "--to", "de")
    assert printed.startswith("Zwei Hunde ")
    assert modules & {"yaml", "rich", "limner.metrics", "limner.runs.records"} == set()


@pytest.mark.parametrize("line", ["evaluate --model missing --collection c", "translate one --model missing --write"])
def test_errors_of_arguments_are_reported_before_torch_is_imported(line):
    program = "import sys; from limner.apps.cli import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, *line.split()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "False\n") and done.stderr.startswith("error: ")


def test_a_run_that_needs_torch_names_the_extra_in_python(trained, tmp_path):
    program = (
        "import limner\nfor run in sys.argv[1:]:\n  try: limner.load(run)\n  except limner.LimnerError as e: print(e)"
    )
    command = [sys.executable, "-c", WITHOUT_TRAINING + program, trained, tmp_path / "none"]
    needs, missing = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "'limner[train]'" in needs and "none: no such run directory" in missing


def without_training(*arguments):
    """Run a command where the packages of the extra `train` cannot be imported."""
    command = [sys.executable, "-c", WITHOUT_TRAINING + START_PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [("describe", CAT), ("describe", CAT, "--lang", "de", "--tags"), ("doctor",)])
def test_the_base_installation_needs_no_package_of_the_extra_train(arguments):
    done = without_training(*arguments)
    assert done.returncode == 0, done.stderr


def test_the_service_needs_no_package_of_the_extra_train():
    command = [sys.executable, "-c", WITHOUT_TRAINING + SERVICE, CAT]
    described, scored, explained = subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert described.startswith("describe 200") and "a close up of a cat" in described
    assert all(" 501 " in answer and "limner[train]" in answer for answer in (scored, explained))


@pytest.mark.parametrize("arguments", [("recipes",), ("describe", CAT, "--model", "RUN")])
def test_commands_of_training_name_the_extra(arguments, trained):
    done = without_training(*(trained if argument == "RUN" else argument for argument in arguments))
    assert done.returncode == 1 and "error: limner" in done.stderr and "'limner[train]'" in done.stderr


def test_folders_and_collections_need_no_package_of_the_extra_train(tmp_path):
    index, sheet, made = ("--index", tmp_path / "index"), tmp_path / "sheet.png", tmp_path / "made"
    printed = ""
    for command in (
        ("index", PHOTOGRAPHS, *index),
        ("search", "a cat", "--in", PHOTOGRAPHS, *index, "--sheet", sheet),
        ("generate", "scenes", made, "--train", 1, "--val", 1, "--test", 1),
        ("show", made, "--sheet", tmp_path / "scenes.png"),
    ):
        done = without_training(*command)
        assert done.returncode == 0, done.stderr
        printed += done.stdout
    with Image.open(sheet) as image:
        assert image.width > 100 and "cat.jpg" in printed
