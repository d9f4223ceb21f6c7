"""Feature tables: extraction, continuation, reading in any order, and compatibility checks."""

import re
import shutil
from datetime import timedelta
from pathlib import Path

import lance
import numpy as np
import pytest
from known_backbone import KnownBackbone
from PIL import Image
from test_integrity import SPEC

from limner.data.collection import ITEMS, Collection, write_items
from limner.data.dataset import Examples
from limner.data.examples import Item, ItemSentence, collate_features
from limner.decoding.scoring import score_examples
from limner.errors import CollectionError, FeatureError, MediaError, SettingsError
from limner.evaluation.evaluate import EvaluationOptions, evaluate
from limner.evaluation.retrieval import nearest_images
from limner.features import maintenance
from limner.features import tables as feature_tables
from limner.features.extract import extract
from limner.features.maintenance import compact
from limner.features.spec import in_float32
from limner.features.store import TABLE_OPTIONS, FeatureStore, FeatureTable
from limner.features.tables import TableWriter, table_path
from limner.files import locked
from limner.inference.features import (
    ControlFeatures,
    control_features,
    mean_features,
    mean_training_features,
    open_features,
)
from limner.runs.evaluations import read_evaluations, save_evaluation
from limner.runs.recipe import EvaluationSettings
from limner.runs.trained_model import load_trained_model
from limner.storage.hashes import IdSet
from limner.training.loop import train

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


@pytest.fixture(scope="module")
def right(model, tiny):
    return evaluate([model], tiny, options=EvaluationOptions(metrics=("bleu2",)))


def values(evaluation):
    return {score.name: score.value for score in evaluation.scores}


class IdFeatures:
    """The features of each item are its id."""

    def take(self, items):
        return [None if item.media_path is None else {"pooled": np.array([float(item.id)])} for item in items]


def numbered(count, text_only=()):
    return [Item(str(k), "test", image=None if k in text_only else f"{k}.png") for k in range(count)]


@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize("seed", range(5))
def test_shuffled_uses_every_image_once_and_never_an_items_own(count, seed):
    items = numbered(count)
    features = [int(one["pooled"][0]) for one in ControlFeatures.shuffled(IdFeatures(), items, seed).take(items)]
    assert sorted(features) == list(range(count))
    assert all(image != item for item, image in enumerate(features))


def test_the_seed_decides_the_shuffle():
    items = numbered(10)
    one, again, other = (ControlFeatures.shuffled(IdFeatures(), items, seed).take(items) for seed in (1, 1, 2))
    assert one == again != other


def test_items_without_an_image_remain_without_one():
    items = numbered(4, text_only={1})
    for control in (ControlFeatures.shuffled(IdFeatures(), items, 0), ControlFeatures(IdFeatures(), {}, {"pooled": 0})):
        assert [features is None for features in control.take(items)] == [False, True, False, False]


def test_a_single_image_cannot_be_shuffled():
    with pytest.raises(SettingsError, match="expected at least two items with an image, got one \\('0'\\)"):
        ControlFeatures.shuffled(IdFeatures(), numbered(2, text_only={1}), 0)


def test_the_mean_is_that_of_the_training_split_for_each_kind(model, tiny):
    features = FeatureStore.open(tiny, ["colour", "pixels16"], 64)
    mean = mean_training_features(model, tiny, features)
    rows = [
        {kind: value.astype(np.float64) for kind, value in stored.items()}
        for stored in features.take(tiny.items("train"))
    ]
    for kind in ("pooled", "maps"):
        expected = np.mean([row[kind] for row in rows], axis=0)
        np.testing.assert_allclose(mean[kind], expected, rtol=1e-3)
        np.testing.assert_array_equal(mean_features(features, tiny.items("train"), batch_size=3)[kind], mean[kind])


def test_zeros_count_as_a_present_image(model, tiny):
    items = tiny.items("test")
    shown = control_features(model, tiny, open_features(model, tiny), "zero", items, 1)
    image = collate_features(shown.take(items))
    assert image.present.all()
    assert not image.pooled.any()


def test_a_shuffled_evaluation_scores_shuffled_features(model, tiny, right):
    result = evaluate([model], tiny, options=EvaluationOptions(metrics=("bleu2",), image_control="shuffled"))
    examples = Examples.of_split(tiny, "test", model.target, open_features(model, tiny), max_tokens=80)
    shuffled = examples.with_features(ControlFeatures.shuffled(examples.features, examples.items, 1))
    assert values(result)["perplexity"] == pytest.approx(score_examples(model.model, shuffled).perplexity.value)
    assert values(result)["perplexity"] > 1.3 * values(right)["perplexity"]  # one word in four is a colour
    assert values(result)["bleu2"] < values(right)["bleu2"]
    assert values(result)["text_to_image_curve_area"] < values(right)["text_to_image_curve_area"]
    assert {one.image for one in result.items} == {one.image for one in right.items}


@pytest.mark.parametrize("control", ["mean", "zero"])
def test_constant_features_give_one_caption_and_no_retrieval(model, tiny, control):
    result = evaluate([model], tiny, options=EvaluationOptions(metrics=("bleu2",), image_control=control))
    assert len({item.hypothesis for item in result.items}) == 1
    assert result.retrieval is None  # every order would be a tie
    assert not any(name.startswith(("text_to_image", "image_to_text")) for name in values(result))


def test_a_control_is_part_of_signatures_and_file_names(model, tiny, right, tmp_path):
    result = evaluate([model], tiny, options=EvaluationOptions(metrics=("bleu2",), image_control="shuffled", seed=3))
    assert all(score.signature.endswith("|images:shuffled,seed3") for score in result.scores)
    assert not any("images:" in score.signature for score in right.scores)
    names = [save_evaluation(evaluation, tmp_path).name for evaluation in (right, result)]
    assert names == ["test.json", "test-images_shuffled.json"]
    assert len(read_evaluations(tmp_path)) == 2


@pytest.mark.parametrize(
    "text_only",
    [
        {"name": "mrnn", "variant": "RNN-base", "embedding_dim": 8, "hidden_dim": 8, "multimodal_dim": 8},
        {"name": "lbl", "variant": "LBL", "word_dim": 8},
        {"name": "ngram", "order": 2},
    ],
    ids=["RNN-base", "LBL", "ngram"],
)
def test_unused_features_have_no_effect(text_only, tiny, recipe_of, tmp_path):
    recipe = recipe_of("colour", epochs=1, metrics=["perplexity"]).model_dump(mode="json") | {"model": text_only}
    model = load_trained_model(train(type(recipe_of()).parse(recipe), tiny, tmp_path / "run"))
    with pytest.raises(SettingsError, match="image control 'shuffled': this model uses no images"):
        evaluate([model], tiny, options=EvaluationOptions(metrics=("bleu1",), image_control="shuffled"))
    result = evaluate(
        [model], tiny, options=EvaluationOptions(metrics=("bleu1",), measures=EvaluationSettings(shortlist=4))
    )
    assert values(result)["text_to_image_median_rank"] == 8  # all images tie
    features = open_features(model, tiny)
    near = nearest_images(model, tiny.items("test"), features, 4)
    colours = np.stack([stored["pooled"] for stored in features.take(tiny.items("test"))]).astype(float)
    distances = np.linalg.norm(colours[:, None] - colours, axis=2)
    np.testing.assert_allclose(np.take_along_axis(distances, near.numpy(), 1), np.sort(distances)[:, :4], atol=1e-3)


@pytest.fixture
def command(trained_on_colours, tiny, tmp_path, command_line):
    """Runs 'limner evaluate' on a copy of the run and returns its status, its folder and its messages."""
    folder = shutil.copytree(trained_on_colours, tmp_path / "run")

    def evaluate_with(*arguments):
        options = ("--model", folder, "--collection", tiny.path, "--metric", "bleu1")
        status, _, messages = command_line("evaluate", *options, *arguments)
        return status, folder, messages

    return evaluate_with


def test_the_command_applies_a_control_and_settings(command):
    changes = ["evaluation.samples=2", "decoding.max_length=9", "evaluation.shortlist=3", "--image-control", "shuffled"]
    status, folder, _ = command(*changes)
    assert status == 0
    (result,) = read_evaluations(folder)
    assert result.name == "test-beam1,penalty0,max_length9-samples2,shortlist3-images_shuffled"
    assert {"sampled_bleu1", "image_to_text_match_area"} <= set(values(result))


@pytest.mark.parametrize(
    ("arguments", "expected", "message"),
    [
        (["model.hidden_dim=3"], 1, "'model.hidden_dim=3': expected evaluation.KEY=VALUE or decoding.KEY=VALUE"),
        (["evaluation.sample=3"], 1, "evaluation.sample: unknown key"),
        (["evaluation.shortlist=9"], 1, "expected at most 8, the number of images, got 9"),
        (["--image-control", "down"], 2, "'down' is not one of 'right', 'shuffled', 'mean', 'zero'"),
    ],
)
def test_invalid_arguments_are_named(command, arguments, expected, message):
    status, folder, err = command(*arguments)
    assert status == expected
    assert message in " ".join(err.replace("│", "").split())
    assert not read_evaluations(folder)


PARTS = 4


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "c"
    writer = TableWriter(table_path(path, SPEC.name), SPEC, IdSet())
    for part in range(PARTS):
        items = [Item(f"{part}-{row}", "train", sentences=(ItemSentence("en", f"{part} {row}"),)) for row in range(5)]
        write_items(path, items)
        values = np.full((5, *SPEC.shape), part, np.float16)
        writer.add([item.id for item in items], values)
        writer.flush()
    return path


def contents(path):
    table = FeatureTable(table_path(path, SPEC.name))
    ids = [item.id for item in Collection.open(path).items()]
    return Collection.open(path).fingerprint(), Collection.open(path).splits(), table.take(ids).tolist()


def test_contents_stay_and_files_become_fewer(path, monkeypatch):
    monkeypatch.setattr(maintenance, "INDEXED_ROWS", 1)
    before, orphan = contents(path), path / ITEMS / "data" / "of-a-killed-writer.lance"
    orphan.write_bytes(b"0" * 10_000)
    tables = {table.name: table for table in compact(path, timedelta(0))}
    assert set(tables) == {"items", SPEC.name}
    for table in tables.values():
        assert (table.fragments_before, table.fragments_after) == (PARTS, 1)
        assert table.versions_removed >= PARTS
    assert tables["items"].bytes_after < tables["items"].bytes_before
    assert contents(path) == before
    assert not orphan.exists()
    (index,) = lance.dataset(str(path / ITEMS)).describe_indices()
    assert (index.field_names, index.num_rows_indexed) == (["id"], 5 * PARTS)
    write_items(path, [Item("later", "val")])
    assert Collection.open(path).splits() == {"train": 20, "val": 1}
    assert [table.fragments_after for table in compact(path, timedelta(0))] == [1, 1]


def test_young_versions_are_kept(path):
    version = lance.dataset(str(path / ITEMS)).version
    assert all(table.versions_removed == 0 for table in compact(path, timedelta(days=7)))
    assert lance.dataset(str(path / ITEMS), version=version).count_rows() == 5 * PARTS


@pytest.mark.parametrize("damage", ["zeros", "cut", "missing"])
@pytest.mark.parametrize("name", [ITEMS, f"features/{SPEC.name}.lance"])
def test_a_damaged_fragment_is_one_line_and_the_others_are_kept(path, name, damage):
    files = sorted((path / name / "data").iterdir())
    contents = {file: file.read_bytes() for file in files}
    damaged = files[1]
    if damage == "missing":
        damaged.unlink()
    else:
        size = len(contents[damaged])
        damaged.write_bytes(b"\0" * size if damage == "zeros" else contents[damaged][: size // 2])
    with pytest.raises(CollectionError, match=r"cannot be compacted .*restore a damaged file") as error:
        list(compact(path, timedelta(0)))
    assert name in str(error.value)
    assert not re.search(r"\n|\.rs:|LanceError", str(error.value))
    assert all(file.read_bytes() == contents[file] for file in files if file != damaged)


def test_a_collection_that_is_written_is_not_compacted(path):
    with (
        locked(path, CollectionError),
        pytest.raises(CollectionError, match="another process is writing to it; wait until it ends"),
    ):
        list(compact(path, timedelta(0)))
