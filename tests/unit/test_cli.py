"""The command line as a shell sees it, without any model."""

import json
import re
import shutil
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest
import typer

from limner import cli
from limner.data.collection import write_items
from limner.data.examples import Item, Sentence

COMMANDS = typer.main.get_command(cli.app).commands
DOCS = Path(__file__).parents[2] / "docs"


def run(capsys, monkeypatch, *arguments: object) -> tuple[int, str, str]:
    """Call the command line in this process: its exit status, output and messages."""
    monkeypatch.setattr(sys, "argv", ["limner", *map(str, arguments)])
    monkeypatch.setattr(cli.err, "_file", sys.stderr)
    with pytest.raises(SystemExit) as exit:
        cli.main()
    printed = capsys.readouterr()
    return int(exit.value.code or 0), printed.out, printed.err


@pytest.fixture
def collection(tmp_path) -> Path:
    items = [Item(f"{n}", "train", sentences=(Sentence("en", f"Sentence {n}."),)) for n in range(3)]
    write_items(tmp_path / "collection", items)
    return tmp_path / "collection"


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["describe", "--help"]])
def test_help_imports_nothing_heavy(arguments):
    heavy = ("torch", "transformers", "lance", "pyarrow", "matplotlib", "numpy", "PIL")
    program = (
        "import sys; from limner.cli import app; app(sys.argv[1:], standalone_mode=False); "
        f"sys.exit(' '.join(name for name in {heavy} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert done.stderr.strip() == ""
    assert "Usage: " in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_it_would_accept(name):
    command = COMMANDS[name]
    example = re.search(r"Example: `limner (.+?)`", command.help or "")
    assert example, f"'limner {name} --help' has no example"
    words = [a or b for a, b in re.findall(r'"(.+?)"|(\S+)', example[1])]
    assert words[0] == name
    command.make_context(name, words[1:])  # raises a usage error for what the command does not take


@pytest.mark.parametrize("name", COMMANDS)
def test_the_documentation_names_every_option(name):
    section = (DOCS / "cli.md").read_text(encoding="utf-8").split(f"\n## {name}\n")[1].split("\n## ")[0]
    options = [option for parameter in COMMANDS[name].params for option in parameter.opts]
    told = [option for option in options if option.startswith("--") and option not in ("--help", "--json")]
    assert [option for option in told if f"`{option}`" not in section] == []
    assert f"```bash\nlimner {name} " in section


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_speak_json(name):
    assert "--json" in [option for parameter in COMMANDS[name].params for option in parameter.opts]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["show", "nowhere"], "nowhere"),
        (["import", "csv", "nothing.csv", "made"], "nothing.csv"),
        (["import", "tape", ".", "made"], "'tape'"),
        (["train", "no/such", "--data", "nowhere", "--out", "run"], "'no/such'"),
        (["train", "scenes/mrnn", "--data", "nowhere", "--out", "run", "model.hiden_dim=3"], "model.mrnn.hiden_dim"),
        (["train", "scenes/mrnn", "--data", "nowhere", "--out", "run", "epochs"], "'epochs'"),
        (["describe", "nowhere", "picture.jpg"], "nowhere"),
        (["report", "nowhere"], "nowhere"),
    ],
)  # fmt: skip
def test_what_the_user_can_mend_is_one_line(arguments, named, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    status, printed, told = run(capsys, monkeypatch, *arguments)
    lines = told.strip().splitlines()
    assert status == 1
    assert len(lines) == 1 and lines[0].startswith("error: "), told
    assert named in lines[0]
    assert printed == ""
    assert list(tmp_path.iterdir()) == []


def test_brackets_in_a_message_are_not_markup(capsys, monkeypatch, tmp_path):
    status, _, told = run(capsys, monkeypatch, "show", tmp_path / "[bold]here")
    assert status == 1
    assert "[bold]here" in told


def test_show_as_json(collection, capsys, monkeypatch):
    status, printed, _ = run(capsys, monkeypatch, "show", collection, "--json")
    found = json.loads(printed)
    assert status == 0
    assert found["splits"] == {"train": 3}
    assert found["sentences"] == {"train": {"en": 3}}


def test_import_as_json_counts_and_changes_nothing_the_second_time(tmp_path, capsys, monkeypatch):
    (tmp_path / "table.csv").write_text("id,split,image,lang,text\na,train,,en,One.\na,train,,de,Eins.\n")
    arguments = ["import", "csv", tmp_path / "table.csv", tmp_path / "made", "--json"]
    first, second = (json.loads(run(capsys, monkeypatch, *arguments)[1]) for _ in range(2))
    assert (first["items"], first["sentences"], first["added"]) == (1, 2, 1)
    assert (second["added"], second["updated"], second["unchanged"]) == (0, 0, 1)


def test_ctrl_c_ends_without_a_traceback(collection, capsys, monkeypatch):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("limner.data.collection.Collection.open", stop)
    status, printed, told = run(capsys, monkeypatch, "show", collection)
    assert (status, printed) == (130, "")
    assert "Traceback" not in told


def test_search_runs_where_it_is_told_to(trained, tiny, capsys, monkeypatch):
    arguments = ["search", trained, "a green wall", "--data", tiny.path, "--split", "test", "--json"]
    status, printed, _ = run(capsys, monkeypatch, *arguments, "--device", "cpu")
    assert status == 0 and json.loads(printed)[0]["id"] in ("test1", "test5")
    status, _, told = run(capsys, monkeypatch, *arguments, "--device", "abacus")
    assert status == 1 and "abacus" in told


def test_evaluate_goes_on_without_a_broken_picture_when_told_to(trained, own_tiny, tmp_path, capsys, monkeypatch):
    write_items(own_tiny.path, [Item("broken", "test", image="none.png", sentences=(Sentence("en", "a wall"),))])
    model = shutil.copytree(trained, tmp_path / "run")
    arguments = ["evaluate", model, "--data", own_tiny.path, "--metric", "bleu1", "--no-retrieval", "--json"]
    status, _, told = run(capsys, monkeypatch, *arguments)
    assert status == 1 and "broken" in told
    status, printed, _ = run(capsys, monkeypatch, *arguments, "--leave-out")
    assert status == 0 and json.loads(printed)["left_out"] == 1


@pytest.mark.parametrize("name", ["folder.png", "sheet", "sheet.txt"])
def test_a_contact_sheet_needs_the_name_of_a_picture(tiny, name, capsys, monkeypatch, tmp_path):
    (tmp_path / "folder.png").mkdir()
    status, _, told = run(capsys, monkeypatch, "show", tiny.path, "--sheet", tmp_path / name)
    assert status == 1
    assert re.fullmatch(rf"error: .*{name}: .*; name a \.png\n", told)


def test_names_are_shown_as_they_are(capsys, monkeypatch, tmp_path):
    status, _, told = run(capsys, monkeypatch, "show", tmp_path / ":dog:")
    assert status == 1
    assert ":dog:" in told


def test_features_of_no_picture_end_in_an_error(capsys, monkeypatch, tmp_path):
    write_items(tmp_path / "c", [Item("gone", "train", image="gone.png")])
    status, _, told = run(capsys, monkeypatch, "features", tmp_path / "c", "--backbone", "pixels:8")
    assert status == 1
    assert "none of 1 images could be read" in told and "gone.png" in told


def test_a_run_is_a_folder(capsys, monkeypatch, tmp_path):
    (tmp_path / "run").write_text("mine")
    status, _, told = run(capsys, monkeypatch, "train", "scenes/mrnn", "--data", tmp_path, "--out", tmp_path / "run")
    assert status == 1
    assert told.strip().endswith("run: is a file; name a folder")


def test_the_devices_there_are(trained, capsys, monkeypatch):
    status, _, told = run(capsys, monkeypatch, "score", trained, "x.png", "a wall", "--device", "gpu")
    assert status == 1
    assert told == "error: device 'gpu': no such device; say cpu, cuda or cuda:N\n"


def test_fewer_than_no_pictures_of_the_marginal(trained, tiny, capsys, monkeypatch):
    status, _, told = run(capsys, monkeypatch, "evaluate", trained, "--data", tiny.path, "--marginal", -1)
    assert status == 2
    assert "--marginal" in told


def test_the_version_is_told_and_the_module_runs():
    done = subprocess.run([sys.executable, "-m", "limner", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"limner {metadata.version('limner')}\n")


@pytest.fixture
def recipe_file(recipe_of, tmp_path):
    """Writes small recipes: recipe_file(values of the model, **training)."""

    def write(model, **training):
        recipe = recipe_of("colour", epochs=2, **training).model_dump(mode="json")
        (tmp_path / "recipe.yaml").write_text(json.dumps({**recipe, "model": model}))  # JSON is YAML
        return tmp_path / "recipe.yaml"

    return write


MRNN = {"name": "mrnn", "embedding_dim": 8, "hidden_dim": 12, "multimodal_dim": 16}


def test_a_training_that_goes_on_with_validation_data_says_when_its_perplexity_was_measured(
    tiny, recipe_file, tmp_path, capsys, monkeypatch
):
    recipe = recipe_file(MRNN, fuse=1)
    status, told, _ = run(capsys, monkeypatch, "train", recipe, "--data", tiny.path, "--out", tmp_path / "run")
    assert status == 0
    assert re.search(r"perplexity [\d.]+ before, then 1 epoch on training and validation data", told)
    assert "(perplexity" not in told


def test_a_model_that_counts_has_no_epochs_to_tell_of(tiny, recipe_file, tmp_path, capsys, monkeypatch):
    recipe = recipe_file({"name": "ngram", "order": 2})
    status, told, _ = run(
        capsys, monkeypatch, "train", recipe, "features.tables=[]", "--data", tiny.path, "--out", tmp_path / "run"
    )
    assert status == 0
    # Of 32 pictures, two each, and one more.
    assert re.search(r"run: counted 65 sentences \(perplexity .*\) after", told)


def test_filters_are_never_overwritten(collection, tmp_path, capsys, monkeypatch):
    out = tmp_path / "filters.safetensors"
    out.write_bytes(b"dear to someone")
    status, _, told = run(capsys, monkeypatch, "kmeans", collection, "--out", out)
    assert status == 1 and "filters.safetensors: is there already" in told
    assert out.read_bytes() == b"dear to someone"


def test_filters_are_a_safetensors_file(collection, tmp_path, capsys, monkeypatch):
    status, _, told = run(capsys, monkeypatch, "kmeans", collection, "--out", tmp_path / "f.bin")
    assert status == 1 and "name it" in told and "f.safetensors" in told.replace("\n", "")


def test_the_python_page_says_where_names_are_imported_from():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    told = [
        (module, name)
        for module, names in re.findall(r"^from (\S+) import (.+)$", page, re.MULTILINE)
        for name in names.split(", ")
    ]
    named = re.findall(r"^::: (limner\.[a-z_.]+)\.([A-Za-z]\w*)$", page, re.MULTILINE)
    whole = {("limner.models", "protocols")}  # a page of its own, all of it
    assert set(named) - whole == set(told)
    assert [one for one in told if not hasattr(import_module(one[0]), one[1])] == []


@pytest.mark.parametrize("page", ["words.md", "evaluate.md", "data.md"])
def test_modules_named_in_prose_come_with_their_import(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert re.findall(r"`limner\.[a-z_]+\.[a-z_.]+", text) == []
