"""What captions, ids and labels may be, through every reader of rows: one table of values, one table of names."""

import csv
import io
import json
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import test_shards

from limner.data.collection import Collection
from limner.data.readers import ReaderOptions, import_collection, read_source
from limner.errors import CollectionError

REFUSED = object()
"""In place of sentences: the value is an error that names file, column and row."""

JSON_VALUES = (
    ("a cow", ["a cow"]),
    ("", []),
    (" \t", []),
    (None, []),
    (float("nan"), []),
    ([], []),
    ({"raw": None}, []),
    (["a cow", None, "grass", ""], ["a cow", "grass"]),
    ({"raw": "A cow .", "tokens": ["A", "cow", "."]}, ["A cow ."]),
    ({"raw": None, "caption": "a cow"}, ["a cow"]),
    ({"sentence": "a cow", "id": 7}, ["a cow"]),
    ({"text": ["a cow", None, "grass"], "tokens": [["a"], [], []]}, ["a cow", "grass"]),
    ([{"text": "a cow"}, None, {"text": "grass"}], ["a cow", "grass"]),
    ([[{"text": "a cow"}], [{"text": "grass"}]], ["a cow", "grass"]),
    ("a\u2028cow\x0bon\x0cthe\x1cgreen\x1d\x1e\x85grass\u2029", ["a cow on the green   grass"]),
    ("a\r\ncow\rgrazes\n", ["a cow grazes"]),
    ("NUL\0 kept", ["NUL\0 kept"]),
    ("None", ["None"]),
    (0, REFUSED),
    (7, REFUSED),
    (1.5, REFUSED),
    (True, REFUSED),
    (False, REFUSED),
    ([3, 4], REFUSED),
    ([["a", "cow"], ["grass"]], REFUSED),
    ({"tokens": ["a", "cow"]}, REFUSED),
    ({"text": 3}, REFUSED),
    ({}, REFUSED),
)
ARROW_VALUES = (
    (pa.array(["a cow"], pa.large_string()), ["a cow"]),
    (pa.array(["a cow"], pa.string_view()), ["a cow"]),
    (pa.array(["a cow"]).dictionary_encode(), ["a cow"]),
    (pa.array(["a cow \U0001f404".encode()]), ["a cow \U0001f404"]),
    (pa.array([[b"a cow", None]], pa.list_(pa.large_binary())), ["a cow"]),
    (pa.array([["a cow", "grass"]], pa.list_(pa.string(), 2)), ["a cow", "grass"]),
    (pa.array([[("caption", "a cow")]], pa.map_(pa.string(), pa.string())), ["a cow"]),
    (pa.array([[("of", "a cow")]], pa.map_(pa.string(), pa.string())), REFUSED),
    (pa.array([b"caf\xe9"]), REFUSED),
    (pa.array([b"caf\xe9"]).view(pa.string()), REFUSED),
    (pa.array([date(2020, 2, 2)]), REFUSED),
    (pa.array([Decimal("1.5")]), REFUSED),
)


@pytest.fixture(scope="module")
def jpeg():
    return test_shards.jpeg()


def write_jsonl(folder, value, jpeg):
    row = {"id": "1", "split": "train", "image": "", "lang": "en", "text": value}
    (folder / "t.jsonl").write_text(json.dumps(row), encoding="utf-8")
    return folder / "t.jsonl"


def write_shard(folder, value, jpeg):
    return test_shards.shard(folder / "s.tar", [("1.jpg", jpeg), ("1.json", json.dumps({"caption": value}).encode())])


def write_list_of_shard(folder, value, jpeg):
    return test_shards.shard(folder / "s.tar", [("1.jpg", jpeg), ("1.json", json.dumps([value]).encode())])


def write_coco(folder, value, jpeg):
    (folder / "1.jpg").write_bytes(jpeg)
    annotation = {"id": 1, "image_id": 1, "caption": value}
    contents = {"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": [annotation]}
    (folder / "captions_train.json").write_text(json.dumps(contents))
    return folder


def write_karpathy(folder, value, jpeg):
    (folder / "1.jpg").write_bytes(jpeg)
    contents = {"images": [{"filename": "1.jpg", "split": "train", "sentences": [value]}]}
    (folder / "dataset.json").write_text(json.dumps(contents))
    return folder


def write_parquet(folder, value, jpeg):
    texts = value if isinstance(value, pa.Array | pa.ChunkedArray) else pa.array([value])
    parquet.write_table(pa.table({"image": [jpeg], "captions": texts}), folder / "p.parquet")
    return folder / "p.parquet"


def write_datasets(folder, value, jpeg):
    datasets = pytest.importorskip("datasets")
    texts = value if isinstance(value, pa.Array) else pa.array([value])
    rows = datasets.Dataset(pa.table({"image": pa.array([jpeg]), "captions": texts}))
    rows.save_to_disk(str(folder / "d"))
    return folder / "d"


def check(kind, source, value, expected):
    if expected is not REFUSED:
        (item,) = read_source(kind, source).items
        assert item.texts("en") == expected
        return
    with pytest.raises(CollectionError) as error:
        read_source(kind, source)
    message = str(error.value)
    assert str(source) in message and ":" in message.removeprefix(str(source)) and "\n" not in message
    assert "expected a text" in message


@pytest.mark.parametrize(("value", "expected"), JSON_VALUES)
@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("jsonl", write_jsonl),
        ("webdataset", write_shard),
        ("webdataset", write_list_of_shard),
        ("coco", write_coco),
        ("karpathy", write_karpathy),
        ("parquet", write_parquet),
    ],
)
def test_values_of_captions(tmp_path, jpeg, kind, write, value, expected):
    if write in (write_list_of_shard, write_karpathy) and isinstance(value, list) and expected != []:
        expected = expected if any(isinstance(part, dict | list) for part in value) else REFUSED  # lists of lists
    if value == {} and write is write_parquet:
        pytest.skip("Parquet has no structs without fields")
    check(kind, write(tmp_path, value, jpeg), value, expected)


@pytest.mark.parametrize(("value", "expected"), ARROW_VALUES, ids=[str(value.type) for value, _ in ARROW_VALUES])
def test_values_of_captions_in_arrow(tmp_path, jpeg, value, expected):
    check("parquet", write_parquet(tmp_path, value, jpeg), value, expected)


@pytest.mark.filterwarnings("ignore")  # of the library
def test_values_of_captions_in_data_sets(tmp_path, jpeg):
    texts = pa.array([{"raw": ["A cow .", None], "tokens": [["A"], []]}])
    check("datasets", write_datasets(tmp_path, texts, jpeg), texts, ["A cow ."])
    (tmp_path / "numbers").mkdir()
    numbers = pa.array([[0, 1]])
    check("datasets", write_datasets(tmp_path / "numbers", numbers, jpeg), numbers, REFUSED)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"])
def test_only_line_feeds_separate_sentences(tmp_path, jpeg, separator):
    text = f"a cow{separator}grazes"
    lines = f"{text}\r\ngrass\n".encode()
    expected = ["a cow grazes", "grass"]
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.jpg").write_bytes(jpeg)
    (tmp_path / "photos" / "1.txt").write_bytes(lines)
    rows = io.StringIO()
    csv.writer(rows).writerows(
        [["id", "split", "image", "lang", "text"], *([1, "train", "", "en", t] for t in (text, "grass"))]
    )
    (tmp_path / "t.csv").write_bytes(rows.getvalue().encode())
    sources = {
        "folder": tmp_path / "photos",
        "webdataset": test_shards.shard(tmp_path / "s.tar", [("1.jpg", jpeg), ("1.txt", lines)]),
        "csv": tmp_path / "t.csv",
        "parquet": write_parquet(tmp_path, [text, "grass"], jpeg),
    }
    found = {kind: [item.texts("en") for item in read_source(kind, source).items] for kind, source in sources.items()}
    assert found == {kind: [expected] for kind in sources}


NAMES = (
    ([0, 1], ["0", "1"]),
    ([0.0, 3.0], ["0", "3"]),
    ([-1, -2], ["-1", "-2"]),
    ([b"a", b"b"], ["a", "b"]),
    (["a b/c", " d "], ["a b/c", "d"]),
    ([None, ""], ["p-000000000", "p-000000001"]),
    ([float("nan"), 7.0], ["p-000000000", "7"]),
    ([1.5, 2.5], ["1.5", "2.5"]),
    ([date(2020, 2, 2), None], ["2020-02-02", "p-000000001"]),
    ([{"a": 1}, {"a": 2}], REFUSED),
    ([[1], [2]], REFUSED),
)


@pytest.mark.parametrize(("ids", "expected"), NAMES)
def test_ids_of_parquet(tmp_path, ids, expected):
    parquet.write_table(pa.table({"id": ids, "text": ["a cow", "grass"]}), tmp_path / "p.parquet")
    if expected is not REFUSED:
        assert [item.id for item in read_source("parquet", tmp_path / "p.parquet").items] == expected
        return
    with pytest.raises(CollectionError, match=r"p\.parquet:row 0: 'id' is a (struct|list)\b"):
        read_source("parquet", tmp_path / "p.parquet")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0, None, 1], ["0", None, "1"]),
        ([0.0, float("nan"), 2.0], ["0", None, "2"]),
        ([False, None, True], ["false", None, "true"]),
        (["", "cow", None], [None, "cow", None]),
    ],
)
def test_labels(tmp_path, labels, expected):
    texts = ["a cow", "grass", "sky"]
    parquet.write_table(pa.table({"text": texts, "label": labels}), tmp_path / "p.parquet")
    rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for kind, name in (("parquet", "p.parquet"), ("jsonl", "t.jsonl")):
        assert [item.label for item in read_source(kind, tmp_path / name).items] == expected


@pytest.mark.filterwarnings("ignore")  # of the library
def test_labels_have_the_names_of_their_classes(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["cow", "dog"])})
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c", "d"], "label": [0, 1, -1, None]}, features)
    data.to_parquet(str(tmp_path / "p.parquet"))
    data.save_to_disk(str(tmp_path / "d"))
    for kind, source in (("parquet", tmp_path / "p.parquet"), ("datasets", tmp_path / "d")):
        assert [item.label for item in read_source(kind, source).items] == ["cow", "dog", None, None]


def test_null_languages_splits_and_images_are_missing(tmp_path, jpeg):
    image = pa.array([{"bytes": None, "path": None}, {"bytes": jpeg, "path": None}, None])
    columns = {"image": image, "text": ["a", None, None], "lang": [float("nan"), 1.0, 1.0], "split": ["val", None, ""]}
    parquet.write_table(pa.table(columns), tmp_path / "p.parquet")
    reading = read_source("parquet", tmp_path / "p.parquet", ReaderOptions(lang="de"))
    found = [(item.image, item.split, [tuple(one[:2]) for one in item.sentences]) for item in reading.items]
    assert found == [(None, "val", [("de", "a")]), ("images/p/000000001.jpg", "train", [])]
    assert reading.tally.skipped == {"rows without an image and a text": 1}


def test_rows_of_an_item_have_groups_of_their_own(tmp_path):
    rows = [{"id": 0, "text": text, "lang": lang} for lang, text in [("en", ["a", "b"]), ("de", ["c"]), ("en", ["d"])]]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    (item,) = read_source("parquet", tmp_path / "p.parquet").items
    assert [(one.lang, one.text, one.group) for one in item.sentences] == [
        ("en", "a", 0),
        ("en", "b", 1),
        ("de", "c", 0),
        ("en", "d", 2),
    ]


def test_null_captions_of_coco_are_counted(tmp_path, jpeg):
    assert read_source("coco", write_coco(tmp_path, None, jpeg)).tally.skipped == {"empty sentences": 1}


def test_captions_of_an_import_are_lines(tmp_path, jpeg):
    """Stored sentences can be written to files of lines: what separated lines in them is a space."""
    source = write_parquet(tmp_path, ["a\u2028cow", "green\x85grass\x1don\na hill"], jpeg)
    import_collection("parquet", source, tmp_path / "c")
    (item,) = Collection.open(tmp_path / "c").items()
    assert [line for text in item.texts("en") for line in text.splitlines()] == ["a cow", "green grass on a hill"]
