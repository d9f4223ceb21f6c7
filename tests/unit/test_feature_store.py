"""Feature tables: extraction, continuation, reading in any order, and compatibility checks."""

import re
from pathlib import Path

import numpy as np
import pytest
from known_backbone import KnownBackbone
from PIL import Image

from limner.data.collection import Collection, write_items
from limner.data.examples import Item
from limner.errors import CollectionError, FeatureError, MediaError
from limner.features import tables as feature_tables
from limner.features.extract import extract
from limner.features.spec import in_float32
from limner.features.store import TABLE_OPTIONS, FeatureTable

COUNT = 23


@pytest.fixture
def collection(tmp_path):
    """Images of one colour each, and one item without an image."""
    items = [Item("words-only", "train")]
    for n in range(COUNT):
        Image.new("RGB", (10, 8), (n, 2 * n, 3 * n)).save(tmp_path / f"{n}.png")
        items.append(Item(f"p{n}", "train" if n < 15 else "test", image=f"{n}.png"))
    write_items(tmp_path, items)
    return Collection.open(tmp_path)


class ColourBackbone(KnownBackbone):
    """The mean colour, and the pixels as a grid of 16 locations."""

    def __init__(self, kinds=("pooled",), version="1"):
        tables = {
            "pooled": {"name": "eye", "kind": "pooled", "shape": (3,)},
            "grid": {"name": "eye.grid", "kind": "grid", "shape": (16, 3)},
        }
        super().__init__(*map(tables.get, kinds), version=version)
        self.batches = []

    def __call__(self, pixels):
        self.batches.append(len(pixels))
        grid = pixels[:, 0].reshape(len(pixels), 16, 3).astype(np.float16)
        return {"pooled": grid.mean(1), "grid": grid}


def colours(numbers):
    return np.array([[n, 2 * n, 3 * n] for n in numbers], dtype=np.float16)


@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_features_are_returned_in_the_order_of_the_ids(collection, cache_bytes):
    extract(collection, ColourBackbone(), batch_size=4)
    table = FeatureTable.open(collection, "eye", cache_bytes=cache_bytes)
    order = [7, 0, 22, 7, 3]
    taken = table.take([f"p{n}" for n in order])
    assert taken.dtype == np.float16
    np.testing.assert_array_equal(taken, colours(order))
    assert table.take([]).shape == (0, 3)
    assert len(table) == COUNT
    assert "p3" in table
    assert "words-only" not in table


def test_float16_survives_the_table_bit_by_bit(tmp_path, collection):
    values = np.random.default_rng(0).normal(size=(COUNT, 3)).astype(np.float16)
    values[:3] = [[np.finfo(np.float16).max, -0.0, 6e-8], [1 / 3, -65504, 0], [1, 2, 3]]

    class Random(ColourBackbone):
        def __call__(self, pixels):
            return {"pooled": values[pixels[:, 0, 0, 0, 0]]}

    table = extract(collection, Random(), batch_size=5).tables[0]
    taken = table.take([f"p{n}" for n in range(COUNT)])
    np.testing.assert_array_equal(taken.view(np.uint16), values.view(np.uint16))


def test_one_pass_fills_two_tables(collection):
    backbone = ColourBackbone(("pooled", "grid"))
    tables = extract(collection, backbone, batch_size=8).tables
    assert [table.path.name for table in tables] == ["eye.lance", "eye.grid.lance"]
    assert backbone.batches == [8, 8, 8]  # the last batch is padded
    np.testing.assert_array_equal(tables[1].take(["p5"]), np.broadcast_to(colours([5]), (1, 16, 3)))
    assert set(collection.features()) == {"eye", "eye.grid"}


def test_name_can_be_chosen_and_is_not_part_of_the_fingerprint(collection):
    tables = extract(collection, ColourBackbone(("pooled", "grid")), name="mine").tables
    assert [table.spec.name for table in tables] == ["mine", "mine.grid"]
    assert [table.spec.fingerprint for table in tables] == [
        spec.fingerprint for spec in ColourBackbone(("pooled", "grid")).specs
    ]


def test_second_run_encodes_only_missing_items(collection):
    first, second = ColourBackbone(), ColourBackbone()
    part = extract(collection, first, splits=["train"], batch_size=5)
    assert (part.added, part.present) == (15, 0)
    rest = extract(collection, second, batch_size=5)
    assert (rest.added, rest.present) == (8, 15)
    assert len(second.batches) == 2
    assert extract(collection, ColourBackbone()).added == 0
    np.testing.assert_array_equal(rest.tables[0].take([f"p{n}" for n in range(COUNT)]), colours(range(COUNT)))


def test_interrupted_run_keeps_its_commits_and_is_continued(collection, monkeypatch):
    monkeypatch.setattr(feature_tables, "_CHUNK_ROWS", 4)

    class Stopping(ColourBackbone):
        def __call__(self, pixels):
            if len(self.batches) == 3:
                raise KeyboardInterrupt
            return super().__call__(pixels)

    with pytest.raises(KeyboardInterrupt):
        extract(collection, Stopping(("pooled", "grid")), batch_size=4)
    assert len(FeatureTable.open(collection, "eye")) == 12
    tables = extract(collection, ColourBackbone(("pooled", "grid")), batch_size=4).tables
    assert [table.ids() for table in tables] == [[f"p{n}" for n in range(COUNT)]] * 2


def test_shorter_table_is_completed_without_changing_the_other(collection):
    extract(collection, ColourBackbone(), batch_size=4)
    tables = extract(collection, ColourBackbone(("pooled", "grid")), batch_size=4).tables
    assert [len(table.ids()) for table in tables] == [COUNT, COUNT]
    assert tables[0]._dataset.count_rows() == COUNT


def test_damaged_images_are_skipped_reported_and_encoded_once_repaired(collection):
    for name in ("3.png", "9.png"):
        (collection.path / name).write_bytes(b"")
    (collection.path / "20.png").unlink()
    report = extract(collection, ColourBackbone(), batch_size=4)
    assert set(report.skipped) == {"p3", "p9", "p20"}
    assert "3.png: the file is empty" in report.skipped["p3"]
    assert report.added == COUNT - 3
    with pytest.raises(FeatureError, match="no pooled features of item 'p9'"):
        report.tables[0].take(["p1", "p9"])
    Image.new("RGB", (4, 4), (9, 18, 27)).save(collection.path / "9.png")
    repaired = extract(collection, ColourBackbone(), batch_size=4)
    assert (repaired.added, set(repaired.skipped)) == (1, {"p3", "p20"})
    np.testing.assert_array_equal(repaired.tables[0].take(["p9", "p22"]), colours([9, 22]))


def test_strict_stops_at_the_first_damaged_image(collection):
    (collection.path / "3.png").write_bytes(b"")
    with pytest.raises(MediaError, match=r"3\.png"):
        extract(collection, ColourBackbone(), strict=True)


def test_features_of_another_backbone_are_refused_and_kept(collection):
    extract(collection, ColourBackbone(version="1"))
    with pytest.raises(FeatureError, match=r"eye\.lance: expected eye pooled.*weights_sha256: 1 / 2.*another name"):
        extract(collection, ColourBackbone(version="2"))
    assert len(FeatureTable.open(collection, "eye")) == COUNT


def test_fingerprint_depends_on_everything_that_changes_the_values():
    spec = ColourBackbone().specs[0]
    changed = [
        {"backbone": "ear"},
        {"layer": "layer.3"},
        {"kind": "grid"},
        {"shape": (4,)},
        {"preprocessing": {**spec.preprocessing, "views": 2}},
        {"weights_sha256": "2"},
    ]
    prints = {spec.model_copy(update=change).fingerprint for change in changed} | {spec.fingerprint}
    assert len(prints) == 7
    assert spec.model_copy(update={"name": "other"}).fingerprint == spec.fingerprint


def test_error_about_a_missing_table_lists_the_others(collection):
    extract(collection, ColourBackbone())
    with pytest.raises(FeatureError, match=r"nose\.lance: no such feature table \(available: eye\)"):
        FeatureTable.open(collection, "nose")


def test_error_about_a_missing_table_names_the_command(collection, tmp_path):
    command = rf"run 'limner features {re.escape(str(collection.path))} --backbone pixels:32 --frames 16' first"
    with pytest.raises(FeatureError, match=command):
        FeatureTable.open(collection, "pixels32.frames")
    write_items(tmp_path / "texts", [Item("one", "train")])
    with pytest.raises(FeatureError, match="the collection has no images, videos or audio files"):
        FeatureTable.open(Collection.open(tmp_path / "texts"), "pixels48")


def test_commands_of_tables_are_those_of_the_documentation():
    page = (Path(__file__).parents[2] / "docs" / "train.md").read_text(encoding="utf-8")
    for options in TABLE_OPTIONS.values():
        assert options.removeprefix("--backbone ") + "`" in page, options


def test_few_images_are_decoded_ahead(collection):
    """Memory is bounded: decoding waits for the backbone."""
    decoded = []
    ahead = []

    class Watching(ColourBackbone):
        def read(self, path):
            decoded.append(path)
            return super().read(path)

        def __call__(self, pixels):
            ahead.append(len(decoded) - 2 * len(self.batches))
            return super().__call__(pixels)

    extract(collection, Watching(), batch_size=2)
    assert max(ahead) <= 4 * 2


def test_error_creates_no_empty_table(collection):
    with pytest.raises(CollectionError, match="foo"):
        extract(collection, ColourBackbone(), splits=["foo"])
    for image in collection.path.glob("*.png"):
        image.write_bytes(b"")
    with pytest.raises(FeatureError, match=rf"none of {COUNT} images could be read; the first, 'p0': .*empty"):
        extract(collection, ColourBackbone(("pooled", "grid")))
    assert collection.features() == ()
    assert not (collection.path / "features").exists()


def test_all_numbers_of_16_bits_are_converted():
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(256, -1)
    np.testing.assert_array_equal(in_float32(numbers[:, ::2]), numbers[:, ::2].astype(np.float32))
