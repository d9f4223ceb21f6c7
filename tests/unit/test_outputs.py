"""Files that the user names for results: nothing of others is destroyed, and no result is lost."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from limner.apps import cli
from limner.apps.cli.caption_output import caption_output
from limner.errors import MediaError, SettingsError, WriteError
from limner.files import write_text
from limner.plots.figures import save_plot
from limner.storage import outputs
from limner.storage.outputs import claim_file, claim_folder, require_writable, save_output

MODEL = ("--model", "run")
ON_COLLECTION = (*MODEL, "--collection", "c")
FILES = {
    "report": ("report", *MODEL, "--out"),
    "diagnose": ("diagnose", *ON_COLLECTION, "--out"),
    "diagnose --grounding": ("diagnose", *ON_COLLECTION, "--grounding", "--out"),
    "show": ("show", "c", "--sheet"),
    "kmeans": ("kmeans", "c", "--out"),
    "kmeans --sheet": ("kmeans", "c", "--out", "new.safetensors", "--sheet"),
    "search --sheet": ("search", "a dog", "--in", "c", "--sheet"),
    "gradients": ("gradients", *MODEL, "--plot"),
    "describe": ("describe", "photo.jpg", *MODEL, "--format", "csv", "--output"),
    "describe --explain-beam": ("describe", "photo.jpg", *MODEL, "--explain-beam"),
    "translate": ("translate", "A dog .", *MODEL, "--out"),
    "translate --explain-beam": ("translate", "A dog .", *MODEL, "--explain-beam"),
}
"""Commands that write a file, without its name."""
FOLDERS = {
    "describe --attention": ("describe", "photo.jpg", *MODEL, "--attention"),
    "translate --attention": ("translate", "A dog .", *MODEL, "--attention"),
}
"""Commands that write plots to a folder."""
RUN_FOLDERS = {
    "train": ("train", "scenes/mrnn", "--collection", "c", "--out"),
    "crossvalidate": ("crossvalidate", "lecture/sentiment", "--collection", "c", "--out"),
    "demo": ("demo", "--out"),
    "reproduce": ("reproduce", "kiros2014/table1", "--collection", "c", "--out"),
}
"""Commands that write runs to a folder."""
OUTPUT_OPTIONS = {"--out", "--output", "--sheet", "--plot", "--explain-beam", "--attention"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a file of the user, a file that looks like a run, and a photograph."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("{}")
    (tmp_path / "c" / "items.lance").mkdir(parents=True)
    Image.new("RGB", (4, 4), "red").save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    """Contents of all files below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("suffix", [".jpg", ".json", ".png", ".safetensors"])
def test_no_command_replaces_a_file_of_the_user(command_line, name, suffix, folder):
    (folder / f"mine{suffix}").write_bytes(b"mine")
    before = contents(folder)
    status, printed, errors = command_line(*FILES[name], f"mine{suffix}")
    assert (status, printed) == (1, "") and errors.startswith("error: ")
    assert f"mine{suffix}" in errors and ("add --force" in errors or "expected" in errors)
    assert contents(folder) == before


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", ["run/new.json", "c/new.json", "run/deeper/new.json"])
def test_no_command_writes_into_a_run_or_a_collection(command_line, name, place, folder):
    place = place.replace(".json", ".safetensors" if name == "kmeans" else ".png" if "json" not in name else ".json")
    before = contents(folder)
    status, printed, errors = command_line(*FILES[name], place)
    assert (status, printed) == (1, "") and "is inside the" in errors and "--force" in errors
    assert contents(folder) == before


@pytest.mark.parametrize("name", FILES)
def test_no_command_writes_to_a_folder_or_a_device(command_line, name, folder):
    (folder / "empty.png").mkdir()
    os.mkfifo(folder / "pipe.png")
    kept = socket.socket(socket.AF_UNIX)
    kept.bind("socket.png")
    for place, kind in (("empty.png", "folder"), ("pipe.png", "named pipe"), ("socket.png", "socket")):
        status, printed, errors = command_line(*FILES[name], place)
        assert (status, printed) == (1, "") and f"is a {kind}" in errors
    status, _, errors = command_line(*FILES[name], "/dev/null")
    assert status == 1 and ("is a device" in errors or "expected" in errors)
    assert Path("/dev/null").is_char_device()
    kept.close()


@pytest.mark.parametrize("name", FOLDERS)
def test_plots_replace_no_image_or_page_of_the_user(command_line, name, folder):
    (folder / "plots").mkdir()
    for place, message in (("plots", "contains 1-image.png"), ("run", "is the run"), ("photo.jpg", "found a file")):
        (folder / "plots" / "1-image.png").write_bytes(b"mine")
        status, printed, errors = command_line(*FOLDERS[name], place)
        assert (status, printed) == (1, "") and message in errors


@pytest.mark.parametrize("name", RUN_FOLDERS)
def test_no_run_is_written_into_a_collection_or_over_a_file(command_line, name, folder):
    for file in ("crossvalidation.json", "translation.html", "table.md", "index.md"):
        (folder / file).write_text("mine")
    before = contents(folder)
    for place, message in (
        ("c", "is the collection"),
        ("c/new", "is inside the collection"),
        ("photo.jpg", "found a file"),
        *([] if name == "train" else [(".", "which Limner did not write")]),
    ):
        status, printed, errors = command_line(*RUN_FOLDERS[name], place)
        assert (status, printed) == (1, "") and message in errors and "--force" not in errors
    assert contents(folder) == before


def test_every_command_with_an_output_is_tested_and_has_the_option_force():
    found = set()
    for name, command in cli.build_commands().items():
        options = {option for parameter in command.params for option in parameter.opts}
        found |= {(name, option) for option in options & OUTPUT_OPTIONS}
        if name not in RUN_FOLDERS:
            assert bool(options & OUTPUT_OPTIONS) == ("--force" in options), name
    tested = {(arguments[0], arguments[-1]) for table in (FILES, FOLDERS, RUN_FOLDERS) for arguments in table.values()}
    assert found == tested | {("describe", "--sheet")}


def test_force_lifts_the_rules_for_files_only(folder):
    (folder / "notes.txt").write_text("mine")
    for place in ("notes.txt", "run/new.txt", "c/new.txt"):
        assert claim_file(Path(place), "--out", force=True) == Path(place)
    claim_folder(folder / "run", "--attention", force=True, suffixes=(".png",))
    for place in (".", "/dev/null"):
        with pytest.raises(SettingsError):
            claim_file(Path(place), "--out", force=True)


def test_a_link_into_a_run_is_inside_of_it(folder):
    (folder / "link").symlink_to(folder / "run")
    with pytest.raises(SettingsError, match="is inside the run"):
        claim_file(folder / "link" / "x.html", "--out")


def test_the_default_of_a_run_may_be_named(folder):
    write_text(folder / "run" / "report.html", "of an older version")
    default = folder / "run" / "report.html"
    assert claim_file(Path("run/report.html"), "--out", default=default)
    with pytest.raises(SettingsError, match="is inside the run"):
        claim_file(folder / "run" / "other.html", "--out", default=default)


def test_a_file_that_exists_is_not_replaced(tmp_path):
    save_plot(Figure(), tmp_path / "plot.png")
    with pytest.raises(SettingsError, match=r"plot\.png: exists; name another file, or add --force to replace it"):
        claim_file(tmp_path / "plot.png", "--out")
    assert claim_file(tmp_path / "plot.png", "--out", force=True)


def test_a_folder_with_a_log_of_another_program_is_no_run(tmp_path):
    (tmp_path / "log.jsonl").write_text("{}\n")
    assert claim_file(tmp_path / "new.html", "--out")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SettingsError, match="is inside the run"):
        claim_file(tmp_path / "new.html", "--out")


def test_an_empty_file_is_replaced(tmp_path):
    (tmp_path / "new.txt").touch()
    assert claim_file(tmp_path / "new.txt", "--out")


def test_a_place_that_cannot_be_written_is_found_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="is not a folder"):
        claim_file(tmp_path / "file" / "x.html", "--out")
    with pytest.raises(SettingsError, match="File name too long"):
        claim_file(tmp_path / ("x" * 300), "--out")

    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(outputs.tempfile, "TemporaryFile", full)
    with pytest.raises(SettingsError, match=r"--out x: cannot be written \(No space left on device\); name a place"):
        require_writable(tmp_path / "new" / "newer", "--out x")


def fail(path: Path) -> None:
    raise WriteError(f"{path}: cannot be written (No space left on device); free disk space")


def test_results_that_cannot_be_saved_name_the_file_and_leave_no_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved = save_output(tmp_path / "result.json", fail)
    with pytest.raises(WriteError, match=r"result\.json: cannot be written \(No space left on device\)"):
        saved.require()
    assert list(tmp_path.iterdir()) == []


def test_a_stream_that_fails_is_printed(tmp_path, capsys):
    (tmp_path / "captions.jsonl").symlink_to("/dev/full")
    error = pytest.raises(WriteError, match="the results were printed")
    with error, caption_output(tmp_path / "captions.jsonl", "jsonl") as write:
        for name in "ab":
            write(Path(name), MediaError(f"{name}: damaged"))
    assert [json.loads(line)["image"] for line in capsys.readouterr().out.splitlines()] == ["a", "b"]
