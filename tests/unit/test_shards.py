"""Import of WebDataset shards, Parquet files and data sets of Hugging Face."""

import io
import json
import os
import signal
import tarfile

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from limner.data.collection import Collection
from limner.data.readers import ReaderOptions, import_collection, read_source
from limner.errors import CollectionError, RunError, SettingsError
from limner.runs.records import RunConfig, read_log
from limner.training.context import SIGNALS, Interruption
from limner.training.loop import train


def jpeg(colour="red"):
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(stream, "JPEG")
    return stream.getvalue()


def shard(path, members):
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            entry = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            entry.size = entry.size or len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def import_(kind, source, target, **options):
    report = import_collection(kind, source, target, ReaderOptions(**options), budget=1 << 20)
    return report, Collection.open(target)


def test_shards_of_img2dataset(tmp_path):
    caption = json.dumps({"caption": "a blue wall", "url": "http://host/x", "key": "000000001"}).encode()
    members = [("000000000.jpg", jpeg()), ("000000000.txt", b"a red wall\nred"), ("000000000.json", caption)]
    shard(tmp_path / "00000.tar", [*members, ("000000001.jpg", jpeg("blue")), ("000000001.json", caption)])
    shard(tmp_path / "00001.tar", [("000000002.jpg", b"no image"), ("000000003.txt", b"text"), ("a.cls", b"7")])
    report, collection = import_("webdataset", tmp_path, tmp_path / "c", split="auto")
    found = {item.id: (item.image, item.texts("en")) for item in collection.items()}
    assert found == {
        "000000000": ("images/00000/000000000.jpg", ["a red wall", "red"]),
        "000000001": ("images/00000/000000001.jpg", ["a blue wall"]),
    }
    assert (tmp_path / "c" / found["000000001"][0]).read_bytes() == jpeg("blue")
    assert report.tally.skipped == {
        "images that cannot be read": 1,
        "samples without an image, or with several of other names": 1,
    }
    again, _ = import_("webdataset", tmp_path, tmp_path / "c", split="auto")
    assert again.changes == (0, 0, 2)


@pytest.mark.parametrize(
    ("names", "expected", "skipped", "noted"),
    [
        # A name ends at its first dot, as WebDataset reads it.
        ("cow.2019.05.jpg cow.2019.05.txt", {"cow": 1}, 0, 0),
        ("cow.a.jpg cow.a.txt cow.b.jpg cow.b.txt cow.jpg cow.txt", {"cow": 1}, 0, 4),
        ("v1.0/cow.jpg v1.0/cow.txt", {"v1.0/cow": 1}, 0, 0),
        ("cow.a.jpg cow.a.json", {"cow": 0}, 0, 1),
        ("cow.a.jpg", {"cow": 0}, 0, 0),
        ("cow.image.png cow.caption.txt", {"cow": 1}, 0, 0),
        ("cow.rgb.jpg cow.txt", {"cow": 1}, 0, 0),
        ("cow.jpg cow.caption.txt", {"cow": 1}, 0, 0),
        ("cow.jpg cow.en.txt cow.de.txt", {"cow": 0}, 0, 2),
        ("cow.jpg cow.mask.png cow.txt", {"cow": 1}, 0, 1),
        ("cow.jpg cow.ocr.txt cow.txt", {"cow": 1}, 0, 1),
        ("cow.jpg cow.boxes.json", {"cow": 0}, 0, 1),
        ("cow.left.jpg cow.right.jpg cow.txt", {}, 1, 0),
        # Letters, folders and members of other kinds.
        ("./cow.JPG ./cow.TXT", {"cow": 1}, 0, 0),
        ("a/cow.jpg a/cow.txt b/cow.jpg b/cow.txt", {"a/cow": 1, "b/cow": 1}, 0, 0),
        ("cow.gif cow.txt", {"cow": 1}, 0, 0),
        ("cow.jpg cow.png cow.txt cow.cls cow.npy README", {"cow": 1}, 0, 4),
        ("._cow.jpg cow.jpg .cow.txt __MACOSX/._cow.txt", {"cow": 0}, 0, 3),
        ("cow.txt hen.mp3 hen.txt", {}, 2, 1),
        ("cow.jpg hen.jpg cow.txt hen.txt", {"cow": 0, "hen": 0}, 2, 0),
    ],
)
def test_names_of_members(tmp_path, names, expected, skipped, noted):
    data = {"txt": b"a cow", "json": b'{"caption": "a cow"}'}
    members = [(name, data.get(name.lower().rpartition(".")[2], jpeg())) for name in names.split()]
    members = [(name, b"[[1, 2]]" if "boxes" in name else value) for name, value in members]
    path = shard(tmp_path / "s.tar", [*members, ("ok.jpg", jpeg())])
    reading = read_source("webdataset", path)
    assert {item.id: len(item.sentences) for item in reading.items} == {**expected, "ok": 0}
    assert sum(reading.tally.skipped.values()) == skipped
    assert sum(count for reason, count in reading.tally.noted.items() if "not read" in reason) == noted


@pytest.mark.parametrize("names", ["cow.jpg cow.jpg", "cow.jpg hen.jpg cow.jpg", "cow.a.jpg cow.a.JPG"])
def test_a_sample_that_occurs_twice_is_refused(tmp_path, names):
    path = shard(tmp_path / "s.tar", [(name, jpeg()) for name in names.split()])
    with pytest.raises(CollectionError, match=r"s\.tar:cow\S*: .*occurs twice in the shard"):
        import_("webdataset", path, tmp_path / "c")


def link(name, kind):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, "/etc/passwd"
    return entry


def large(name):
    entry = tarfile.TarInfo(name)
    entry.size = 1 << 40
    return entry


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ("../a.jpg", "a path outside of the shard"),
        ("/a.jpg", "a path outside of the shard"),
        (link("a.jpg", tarfile.SYMTYPE), "a link, a device"),
        (link("a.jpg", tarfile.LNKTYPE), "a link, a device"),
        (link("a.jpg", tarfile.FIFOTYPE), "a link, a device"),
        (large("a.jpg"), "has 1,099,511,627,776 bytes"),
        (large("a.txt"), "expected at most 1,048,576"),
        ("a\x1b/b.jpg", "cannot be printed"),
    ],
)
def test_hostile_shards_are_refused(tmp_path, member, message):
    path = tmp_path / "s.tar"
    with path.open("wb") as file:
        entry = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
        file.write(entry.tobuf() + b"\0" * 1024)
    with pytest.raises(CollectionError, match=message) as error:
        import_("webdataset", path, tmp_path / "c")
    assert "s.tar" in str(error.value) and "\n" not in str(error.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.tar"]


def test_a_truncated_shard_is_refused(tmp_path):
    path = shard(tmp_path / "s.tar", [("a.jpg", jpeg()), ("b.jpg", jpeg())])
    path.write_bytes(path.read_bytes()[:1200])
    with pytest.raises(CollectionError, match=r"s\.tar: damaged or no tar file"):
        import_("webdataset", path, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_parquet_with_images_as_hugging_face_stores_them(tmp_path):
    rows = [
        {"image": {"bytes": jpeg(), "path": None}, "caption": ["a red wall", "red"], "split": "train"},
        {"image": {"bytes": jpeg("blue"), "path": "x.jpg"}, "caption": ["blue"], "split": "test"},
        {"image": {"bytes": b"none", "path": None}, "caption": ["broken"], "split": "test"},
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "part.parquet")
    report, collection = import_("parquet", tmp_path / "part.parquet", tmp_path / "c")
    assert collection.splits() == {"train": 1, "test": 1}
    (item,) = collection.items("train")
    assert (item.id, item.image) == ("part-000000000", "images/part/000000000.jpg")
    assert item.texts("en") == ["a red wall", "red"]
    assert (tmp_path / "c" / item.image).read_bytes() == jpeg()
    assert report.tally.skipped == {"images that cannot be read": 1}


def test_parquet_with_paths_and_labels(tmp_path):
    (tmp_path / "a.jpg").write_bytes(jpeg())
    rows = [{"key": "1", "image_path": "a.jpg", "text": "rot", "lang": "de", "label": 3}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    _, collection = import_("parquet", tmp_path, tmp_path / "c")
    (item,) = collection.items()
    assert (item.id, item.image, item.texts("de"), item.label) == ("1", "../a.jpg", ["rot"], "3")


@pytest.mark.parametrize(
    ("rows", "message"),
    [([{"a": 1}], r"p\.parquet:row 0: expected a column image"), (None, r"p\.parquet: damaged or no Parquet file")],
)
def test_other_parquet_files_are_refused(tmp_path, rows, message):
    if rows:
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    else:
        (tmp_path / "p.parquet").write_bytes(b"PAR1 no table")
    with pytest.raises(CollectionError, match=message):
        import_("parquet", tmp_path / "p.parquet", tmp_path / "c")


@pytest.mark.filterwarnings("ignore")  # of the library
def test_data_sets_with_splits(tmp_path):
    datasets = pytest.importorskip("datasets")
    data = {"image": [{"bytes": jpeg(), "path": None}], "text": ["a red wall"]}
    features = datasets.Features({"image": datasets.Image(), "text": datasets.Value("string")})
    parts = {name: datasets.Dataset.from_dict(data, features) for name in ("train", "validation")}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "d"))
    _, collection = import_("datasets", tmp_path / "d", tmp_path / "c")
    assert collection.splits() == {"train": 1, "val": 1}
    assert [item.texts("en") for item in collection.items()] == [["a red wall"]] * 2
    with pytest.raises(CollectionError, match="no data set that save_to_disk wrote"):
        import_("datasets", tmp_path / "c", tmp_path / "e")


def weights(run):
    return (run / "model.safetensors").read_bytes()


def epochs_of(run):
    return [line.epoch for line in read_log(run / "log.jsonl") if line.kind == "train"]


def test_more_epochs_extend_a_finished_training_as_if_they_had_been_planned(tiny, recipe_of, tmp_path):
    whole = train(recipe_of(epochs=3, model={"dropout": 0.3}), tiny, tmp_path / "whole")
    run = train(recipe_of(epochs=2, model={"dropout": 0.3}), tiny, tmp_path / "run")
    train(recipe_of(epochs=3, model={"dropout": 0.3}), tiny, run, resume=True)
    assert weights(run) == weights(whole)
    assert epochs_of(run) == epochs_of(whole)
    assert RunConfig.load(run / "config.json").recipe["training"]["epochs"] == 3
    with pytest.raises(RunError, match=r"recipe\.training\.epochs was 3 and is now 2"):  # the longer one is recorded
        train(recipe_of(epochs=2, model={"dropout": 0.3}), tiny, run, resume=True)


def test_more_patience_extends_a_training_that_stopped_early(tiny, recipe_of, tmp_path):
    still = {"optimizer": {"name": "sgd", "lr": 1e-30}}  # no validation is better than the first
    run = train(recipe_of(epochs=5, patience=1, **still), tiny, tmp_path / "run")
    assert epochs_of(run) == [1, 2]
    train(recipe_of(epochs=5, patience=2, **still), tiny, run, resume=True)
    assert epochs_of(run) == [1, 2, 3]
    train(recipe_of(epochs=5, **still), tiny, run, resume=True)
    assert epochs_of(run) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"schedule": {"name": "cosine"}},
            "the learning rate of the schedule 'cosine' depends on the number of epochs",
        ),
        ({"train_on_val_epochs": 1}, "training on the validation split follows the last epoch"),
    ],
)
def test_a_training_that_cannot_be_extended_names_init(settings, message, tiny, recipe_of, tmp_path):
    run = train(recipe_of(epochs=1, **settings), tiny, tmp_path / "run")
    before = weights(run)
    with pytest.raises(RunError, match=rf"{message}; .*'--init {run}' and name another --out"):
        train(recipe_of(epochs=2, **settings), tiny, run, resume=True)
    assert weights(run) == before


def test_resuming_a_folder_that_does_not_exist_is_an_error(tiny, recipe_of, tmp_path):
    (tmp_path / "second").mkdir()
    with pytest.raises(RunError, match=r"secnod: no such run to resume; .*; did you mean 'second'\?"):
        train(recipe_of(epochs=1), tiny, tmp_path / "secnod", resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["second"]


def test_an_unknown_device_is_an_error_before_the_run_is_created(tiny, recipe_of, tmp_path):
    with pytest.raises(SettingsError, match="device 'abacus': expected cpu, cuda or cuda:N"):
        train(recipe_of(epochs=1), tiny, tmp_path / "run", device="abacus")
    assert not (tmp_path / "run").exists()


def test_the_command_trains_on_the_device(tiny, monkeypatch, command_line, tmp_path):
    def trains(*_, device, **__):
        raise SettingsError(f"trains on {device.device}")

    monkeypatch.setattr("limner.training.loop.train", trains)
    arguments = ["train", "scenes/mrnn", "--collection", tiny.path, "--out", tmp_path / "run", "--device", "cuda:1"]
    assert "trains on cuda:1" in command_line(*arguments)[2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_deferred_and_ctrl_c_is_raised_then(number: int) -> None:
    with Interruption() as interruption:
        assert not interruption.requested
        os.kill(os.getpid(), number)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_previous_handler_is_restored() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interruption():
        assert all(signal.getsignal(number) not in before for number in SIGNALS)
    assert [signal.getsignal(number) for number in SIGNALS] == before
