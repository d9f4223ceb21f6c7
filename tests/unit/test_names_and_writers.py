"""Names that become file names, members of collections, imports of a folder into itself, simultaneous writers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from limner.data import collection_writer
from limner.data.collection import Collection, write_items
from limner.data.examples import Item, ItemSentence
from limner.data.readers import NO_MEDIA, OWN_FILES, import_collection
from limner.data.readers.corpus_files import ReaderOptions, assign_split
from limner.errors import CollectionError, FeatureError, LimnerError, SettingsError
from limner.evaluation.gradients import GradientNorms
from limner.features.encoders.load import load_backbone
from limner.features.extract import extract
from limner.features.store import FeatureTable
from limner.features.tables import table_path
from limner.files import LOCK_FILE, locked
from limner.media.modality import is_audio, is_image, is_video
from limner.runs.records import Evaluation, save_evaluation
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
        assert again.tally.skipped[OWN_FILES] == (3 if copy else 0)
    assert Collection.open(photos / target).fingerprint() == fingerprint


def test_importing_a_collection_into_itself_adds_nothing(photos, tmp_path):
    import_collection("folder", photos, tmp_path / "c", copy=True)
    before = tree(tmp_path / "c")
    with pytest.raises(CollectionError, match=OWN_FILES):
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
