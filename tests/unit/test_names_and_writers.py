"""Names that become file names, members of collections, imports of a folder into itself, simultaneous writers."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.table import Table

from limner.apps.cli import terminal
from limner.apps.cli.caption_output import caption_output
from limner.apps.cli.terminal import echo, print_error, print_json, printable, tab_separated
from limner.data import collection_writer
from limner.data.collection import Collection, write_items
from limner.data.examples import Item, ItemSentence
from limner.data.readers import FILES_OF_ITEMS, NO_MEDIA, import_collection
from limner.data.readers.corpus_files import ReaderOptions, assign_split
from limner.decoding.sentence import Sentence
from limner.errors import CollectionError, FeatureError, LimnerError, SettingsError
from limner.evaluation.gradients import GradientNorms
from limner.features.encoders.load import load_backbone
from limner.features.extract import extract
from limner.features.store import FeatureTable
from limner.features.tables import table_path
from limner.files import LOCK_FILE, locked
from limner.media.modality import is_audio, is_image, is_video
from limner.runs.evaluations import Evaluation, save_evaluation
from limner.storage.json_text import to_json
from limner.storage.outputs import name_or_default, require_name

EVIL = ["../../../evil", "/etc/evil", "a/b", "a\\b", ".hidden", "..", "", " ", "a\nb", "a\x1b[31m", "x" * 201, "\udcff"]


def tree(folder: Path) -> dict[str, bytes | None]:
    """Contents of every file below a folder."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


@pytest.fixture
def photos(tmp_path):
    """A folder with three images."""
    folder = tmp_path / "photos"
    (folder / "inner").mkdir(parents=True)
    for number, name in enumerate(("a.png", "b.jpg", "inner/c.png")):
        Image.new("RGB", (8, 8), (80 * number, 0, 0)).save(folder / name)
    return folder


@pytest.mark.parametrize("name", EVIL)
def test_names_that_leave_their_folder_are_refused(name):
    with pytest.raises(SettingsError, match="expected a name such as 'test'") as error:
        require_name(name, "the split")
    assert str(error.value).isprintable() and len(str(error.value)) < 200


@pytest.mark.parametrize("name", ["train", "val2014", "été", "训练", "mobilenet_v2.grid", "a b", "x" * 200])
def test_names_of_all_languages_are_allowed(name):
    assert require_name(name, "the split") == name


def test_an_empty_name_is_refused_and_not_replaced_by_the_default():
    assert name_or_default(None, "test", "the split") == "test"
    with pytest.raises(SettingsError, match="the split '': is empty"):
        name_or_default("", "test", "the split")


@pytest.mark.parametrize("split", ["../../../evil", "/evil", "a/b", "a\nb"])
def test_nothing_is_written_outside_of_a_run_or_a_collection(split, tmp_path):
    (tmp_path / "run").mkdir()
    evaluation = Evaluation(split=split, collection="c", fingerprint="f", command="limner", seconds=0)
    with pytest.raises(LimnerError, match="the split"):
        save_evaluation(evaluation, tmp_path / "run")
    with pytest.raises(LimnerError, match="the split"):
        GradientNorms.model_construct(split=split).path_in(tmp_path / "run")
    with pytest.raises(LimnerError, match="feature table"):
        table_path(tmp_path / "run", split)
    with pytest.raises(CollectionError, match="the split"):
        write_items(tmp_path / "c", [Item("a", split)])
    assert [path.name for path in tmp_path.rglob("*")] == ["run"]


def test_copied_files_stay_inside_of_the_collection(tmp_path):
    (tmp_path / "file").write_text("mine")
    for name in ("../evil", str(tmp_path / "evil")):
        with pytest.raises(CollectionError, match="inside of the collection"):
            write_items(tmp_path / "c", [Item("a", "train")], files={name: tmp_path / "file"})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_source_that_names_other_files_does_not_copy_them(photos, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    (photos / "link.jpg").symlink_to(tmp_path / "secret.txt")
    names = ["a.png", "../secret.txt", str(tmp_path / "secret.txt"), "link.jpg", "/etc/passwd"]
    rows = [f"{number},train,{name},en,a dog" for number, name in enumerate(names)]
    (photos / "captions.csv").write_text("\n".join(["id,split,image,lang,text", *rows]))
    report = import_collection("csv", photos / "captions.csv", tmp_path / "c", copy=True)
    assert (report.items, report.tally.skipped[NO_MEDIA]) == (1, 4)
    copies = [path.name for path in (tmp_path / "c" / "images").rglob("*") if path.is_file()]
    assert copies == ["a.png"]
    with pytest.raises(CollectionError, match=r"secret\.txt: begins like no image"):
        import_collection("csv", photos / "captions.csv", tmp_path / "d", copy=True, strict=True)
    assert not (tmp_path / "d").exists()


def test_media_are_known_by_their_first_bytes(tmp_path):
    file = tmp_path / "x.jpg"
    Image.new("RGB", (4, 4)).save(file)
    assert (is_image(file), is_video(file), is_audio(file)) == (True, False, False)
    for data, kinds in (
        (b"\0\0\0\x18ftypmp42", (False, True, False)),
        (b"RIFF\0\0\0\0WAVEfmt ", (False, False, True)),
        (b"root:x:0:0:root:/root", (False, False, False)),
        (2 * (b"G" + bytes(187)), (False, True, False)),
        (2 * (bytes(4) + b"G" + bytes(187)), (False, True, False)),
        (b"Good morning, this is a letter. " * 20, (False, False, False)),
        (b"", (False, False, False)),
    ):
        file.write_bytes(data)
        assert (is_image(file), is_video(file), is_audio(file)) == kinds


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("target", [".", "c"])
def test_importing_a_folder_into_itself_does_not_multiply_items(photos, target, copy):
    first = import_collection("folder", photos, photos / target, copy=copy)
    assert first.changes.added == 3
    fingerprint = Collection.open(photos / target).fingerprint()
    for _ in range(2):
        again = import_collection("folder", photos, photos / target, copy=copy)
        assert (again.changes.added, again.changes.updated) == (0, 0)
        assert again.tally.skipped[FILES_OF_ITEMS] == (3 if copy else 0)
    assert Collection.open(photos / target).fingerprint() == fingerprint


def test_importing_a_collection_into_itself_adds_nothing(photos, tmp_path):
    import_collection("folder", photos, tmp_path / "c", copy=True)
    before = tree(tmp_path / "c")
    with pytest.raises(CollectionError, match=FILES_OF_ITEMS):
        import_collection("folder", tmp_path / "c", tmp_path / "c", copy=True)
    assert tree(tmp_path / "c") == before


def test_a_collection_that_another_process_creates_meanwhile_is_extended(tmp_path, monkeypatch):
    path, original = tmp_path / "c", collection_writer.locked

    def locked_late(folder, error_type, lock_file=None):
        monkeypatch.setattr(collection_writer, "locked", original)
        write_items(path, [Item("first", "train", sentences=(ItemSentence("en", "a dog", 0),))])
        return original(folder, error_type, lock_file)

    monkeypatch.setattr(collection_writer, "locked", locked_late)
    write_items(path, [Item("second", "train")])
    assert [item.id for item in Collection.open(path).items()] == ["first", "second"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_one_process_at_a_time_writes_a_feature_table(photos, tmp_path):
    import_collection("folder", photos, tmp_path / "c")
    collection, backbone = Collection.open(tmp_path / "c"), load_backbone("pixels:4")
    lock_file = collection.path / f".features-pixels4{LOCK_FILE}"
    refused = pytest.raises(FeatureError, match=r"pixels4\.lance: another process is writing to it; wait until it ends")
    with locked(collection.path, FeatureError, lock_file), refused:
        extract(collection, backbone)
    assert extract(collection, backbone).added == 3 and extract(collection, backbone).present == 3
    assert not lock_file.exists()
    table = FeatureTable.open(collection, "pixels4")
    assert sorted(table.ids()) == ["a", "b", "inner/c"] and np.isfinite(table.take(["a"])).all()


def test_rows_that_another_process_stored_before_the_lock_are_not_stored_again(photos, tmp_path, monkeypatch):
    import_collection("folder", photos, tmp_path / "c")
    collection, backbone = Collection.open(tmp_path / "c"), load_backbone("pixels:4")
    from limner.features import extract as module

    original = module.locked

    def locked_late(*arguments):
        monkeypatch.setattr(module, "locked", original)
        extract(collection, backbone)
        return original(*arguments)

    monkeypatch.setattr(module, "locked", locked_late)
    done = extract(collection, backbone)
    assert (done.added, done.present) == (0, 3)
    assert len(Collection.open(tmp_path / "c")) == 3 == len(done.tables[0].ids())


@pytest.mark.parametrize("inside", ["", "deeper"])
def test_no_collection_is_created_in_a_run(trained_on_colours, tmp_path, inside):
    run = shutil.copytree(trained_on_colours, tmp_path / "run")
    before = sorted(run.rglob("*"))
    with pytest.raises(SettingsError, match=r"collection .*run.*: is .*the run .*; name a place outside of it$"):
        write_items(run / inside, [Item("a", "train")])
    assert sorted(run.rglob("*")) == before


def test_a_file_name_that_is_not_utf8_has_a_split():
    assert assign_split("\udcff", ReaderOptions(split="auto")) in ("train", "val", "test")


HOSTILE = "a\x1b[2J\tb\nc\r\x07\x9b31m\u202ed\u2028e\udcff"
ESCAPED = r"a\x1b[2J\tb\nc\r\x07\x9b31m\u202ed\u2028e\xff"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]")


def test_what_controls_a_terminal_is_escaped():
    assert printable(HOSTILE) == ESCAPED
    assert printable("a\tb\nc\x1b", keep="\n") == "a\\tb\nc\\x1b"
    assert printable(Path(os.fsdecode(b"caf\xe9.jpg"))) == r"caf\xe9.jpg"
    for text in ("Ein Hündchen läuft .", "一只狗", "كلب\u200f", "🐕", "C:\\photos\\x.jpg"):
        assert printable(text) == text


def test_a_field_stays_in_its_column_and_its_line():
    line = tab_separated(Path(HOSTILE), 1, HOSTILE)
    assert line.split("\t") == [ESCAPED, "1", ESCAPED] and len(line.splitlines()) == 1


@pytest.mark.parametrize("print_it", [print_error, echo, terminal.out.print, terminal.err.print])
def test_every_function_that_prints_escapes(print_it, capsys):
    print_it(HOSTILE)
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    assert "x1b[2J" in printed and not CONTROL.search(printed)
    assert print_it is not print_error or printed.count("\n") == 1


def test_cells_of_tables_are_escaped(capsys):
    table = Table("column")
    table.add_row(HOSTILE.replace("\n", ""))
    terminal.out.print(table)
    printed = capsys.readouterr().out
    assert r"\x1b[2J" in printed and not CONTROL.search(printed)


def test_json_is_valid_and_has_no_control_characters(capsys):
    print_json({"name": HOSTILE})
    printed = capsys.readouterr().out
    assert not CONTROL.search(printed) and json.loads(printed) == {"name": HOSTILE}
    assert to_json("é一") == '"é一"'
    printed.encode("utf-8")


@pytest.mark.parametrize("kind", ["text", "tsv", "csv", "json", "jsonl"])
def test_captions_of_hostile_names_are_one_record_each(kind, tmp_path):
    out = tmp_path / "captions"
    caption = Sentence((), -1.0, -1.0, text=HOSTILE)
    with caption_output(out, kind) as write:
        write(Path(HOSTILE), [caption])
    text = out.read_text(encoding="utf-8")
    assert not CONTROL.search(text)
    if kind == "json":
        assert json.loads(text)[0]["captions"][0]["text"] == HOSTILE
    elif kind == "jsonl":
        assert json.loads(text)["image"] == HOSTILE
    elif kind == "csv":
        assert next(csv.DictReader(io.StringIO(text)))["caption"] == ESCAPED
    else:
        assert text.splitlines()[-1].split("\t")[0] == ESCAPED


def test_a_command_prints_a_name_that_is_not_utf_8(tmp_path, command_line):
    place = os.path.join(os.fsencode(tmp_path), b"caf\xe9\x1b[31m")
    (line,) = command_line("show", os.fsdecode(place))[2].splitlines()
    assert r"caf\xe9\x1b[31m: " in line and "Traceback" not in line
