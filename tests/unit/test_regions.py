"""Features of regions: selection and order of boxes, file formats, errors."""

import gzip
import json

import numpy as np
import pytest
from PIL import Image

from limner.data.collection import Collection, write_items
from limner.data.examples import Item, Region
from limner.errors import CollectionError, FeatureError, MediaError, SettingsError
from limner.features import extract as extraction
from limner.features.encoders import load
from limner.features.encoders.load import PixelBackbone
from limner.features.extract import extract
from limner.features.regions import (
    Box,
    Crop,
    RegionBackbone,
    WholeImageBackbone,
    read_boxes,
    select_regions,
    whole_image_spec,
    with_regions,
)
from limner.features.spec import RegionRows
from limner.features.store import FeatureTable

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
SMALL, MIDDLE, LARGE = (
    [2, 3, 4, 5],
    [20, 0, 10, 6],
    [10, 12, 30, 8],
)  # red, green and blue boxes of 20, 60 and 240 pixels


@pytest.fixture
def collection(tmp_path):
    """Black images with a red, a green and a blue rectangle, and an item without an image."""
    image = Image.new("RGB", (60, 40))
    for (left, top, width, height), colour in zip([SMALL, MIDDLE, LARGE], [RED, GREEN, BLUE], strict=True):
        image.paste(colour, (left, top, left + width, top + height))
    items = [Item("words", "train", regions=(Region((0, 0, 1, 1), "nothing"),))]
    for name in ("one", "two", "three"):
        (tmp_path / "images").mkdir(exist_ok=True)
        image.save(tmp_path / "images" / f"{name}.png")
        items.append(Item(f"item-{name}", "train", image=f"images/{name}.png"))
    write_items(tmp_path, items)
    return Collection.open(tmp_path)


@pytest.fixture
def backbone(backbone_of):
    return backbone_of()


def written(folder, contents, name="boxes.json"):
    (folder / name).write_text(contents if isinstance(contents, str) else json.dumps(contents), encoding="utf-8")
    return folder / name


def grid_of(table, *ids):
    return table.take([f"item-{name}" for name in ids]).tolist()


def test_rows_are_regions_by_size_then_padding_then_the_whole_image(collection, backbone):
    boxes = written(collection.path, {"item-one": [LARGE, SMALL, MIDDLE], "two.png": [MIDDLE]})
    (table,) = extract(collection, with_regions(backbone, collection, boxes), name="regions").tables
    (wholes,) = extract(collection, backbone).tables
    whole = wholes.take(["item-one"])[0].tolist()
    none, red, green, blue = [0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]
    assert table.spec.shape == (5, 3)
    assert grid_of(table, "one", "two", "three") == [
        [red, green, blue, none, whole],
        [green, none, none, none, whole],
        [none, none, none, none, whole],
    ]


def test_table_is_named_by_the_user_or_after_its_backbone(collection, backbone):
    boxes = written(collection.path, {"item-one": [SMALL]})
    extract(collection, with_regions(backbone, collection, boxes), name="colour_regions")
    extract(collection, with_regions(backbone, collection, boxes))
    assert collection.features() == ("colour.regions", "colour_regions")


@pytest.mark.parametrize(
    ("boxes", "selected"),
    [
        ([Box(0, 0, 9, 9), Box(0, 0, 2, 2), Box(0, 0, 5, 5)], [(0, 0, 5, 5), (0, 0, 9, 9)]),  # the largest
        ([Box(0, 0, 9, 9, 0.2), Box(0, 0, 2, 2, 0.9), Box(0, 0, 5, 5, 0.3)], [(0, 0, 2, 2), (0, 0, 5, 5)]),
        ([Box(0, 0, 9, 9, -3), Box(0, 0, 2, 2, -1), Box(0, 0, 5, 5, -2)], [(0, 0, 2, 2), (0, 0, 5, 5)]),
        ([Box(5, 0, 3, 3), Box(0, 0, 3, 3), Box(0, 5, 3, 3)], [(0, 0, 3, 3), (0, 5, 3, 8)]),  # ties: from the left
        ([Box(0, 0, 4, 4), Box(0, 0, 4, 4), Box(1, 1, 2, 2)], [(1, 1, 3, 3), (0, 0, 4, 4)]),  # one of two equal boxes
        ([Box(0, 0, 4, 4, 1), Box(0, 0, 4, 4, 9), Box(0, 0, 9, 9, 2), Box(0, 0, 2, 2, 5)],
         [(0, 0, 2, 2), (0, 0, 4, 4)]),  # the better score of two equal boxes
        ([Box(-5, -5, 8, 8), Box(15, 8, 50, 50)], [(0, 0, 3, 3), (15, 8, 20, 10)]),  # cut off at the edges
        ([Box(1.5, 2.5, 2, 2)], [(1, 2, 4, 5)]),  # every pixel that is touched
        ([Box(19.5, 9.5, 5, 5)], [(19, 9, 20, 10)]),
    ],
)  # fmt: skip
def test_selection_and_order(boxes, selected):
    assert select_regions(boxes, (20, 10), 2) == [Crop(*crop) for crop in selected]
    assert select_regions(boxes[::-1], (20, 10), 2) == [Crop(*crop) for crop in selected]


def test_clipped_boxes_are_ranked_by_their_size_within_the_image():
    assert select_regions([Box(19, 0, 1000, 5), Box(0, 0, 3, 3)], (20, 10), 1) == [Crop(0, 0, 3, 3)]


def test_a_region_is_encoded_whole_whatever_its_aspect_ratio(tmp_path, backbone):
    """With a centre crop as preprocessing, a long region is still encoded whole."""
    backbone.preprocessing = backbone.preprocessing.model_copy(update={"resize": "crop"})
    backbone.specs = (
        backbone.specs[0].model_copy(update={"preprocessing": backbone.preprocessing.model_dump(mode="json")}),
    )
    image = Image.new("RGB", (400, 40), BLUE)
    image.paste(RED, (0, 0, 100, 40))
    image.save(tmp_path / "long.png")
    regional = RegionBackbone(
        backbone, RegionRows(count=1, boxes_sha256=""), {tmp_path / "long.png": [Box(0, 0, 400, 40)]}
    )
    ((region, whole),) = regional(regional.read(tmp_path / "long.png")[None])["grid"].tolist()
    assert region == pytest.approx([0.25, 0, 0.75], abs=0.01)
    assert whole == [0, 0, 1]


def test_all_file_formats_are_equivalent(collection, backbone):
    folder = collection.path
    scored = [[1, 2, 3, 4, 0.5], [5, 6, 7, 8, 0.25]]
    both = {"item-one": scored, "two.png": [SMALL]}
    paths = [
        written(folder, both),
        written(folder, json.dumps(both, indent=2), "indented.json"),
        written(folder, [{"item-one": scored}, {"two.png": [SMALL]}], "list.json"),
    ]
    with gzip.open(folder / "boxes.json.gz", "wt", encoding="utf-8") as stream:
        json.dump(both, stream)
    paths.append(folder / "boxes.json.gz")
    for path in paths:
        boxes_read = read_boxes(path)
        assert {name: sorted(boxes) for name, boxes in boxes_read.items()} == {
            "item-one": [Box(1, 2, 3, 4, 0.5), Box(5, 6, 7, 8, 0.25)],
            "two.png": [Box(2, 3, 4, 5)],
        }
    assert len({with_regions(backbone, collection, path).specs[0].fingerprint for path in paths}) == 1


def test_visual_genome_s_regions_are_read(tmp_path):
    region = {"region_id": 7, "x": 1, "y": 2, "width": 3, "height": 4, "phrase": "a clock", "image_id": 12}
    one = {"id": 12, "regions": [region]}
    expected = {"12": [Box(1, 2, 3, 4)]}
    assert read_boxes(written(tmp_path, one)) == expected
    assert read_boxes(written(tmp_path, [one, {"id": 13, "regions": []}])) == {**expected, "13": []}


@pytest.mark.real
def test_real_regions_of_visual_genome_are_read(real_data):
    path = real_data / "regions" / "visual_genome_image1_regions.json"
    boxes_read = read_boxes(path)
    first = json.loads(path.read_text(encoding="utf-8"))["regions"][0]
    assert boxes_read.keys() == {"1"}
    assert boxes_read["1"][0] == Box(first["x"], first["y"], first["width"], first["height"])


def test_regions_of_the_collection_are_used(tmp_path, backbone):
    image = Image.new("RGB", (20, 10), BLUE)
    image.paste(GREEN, (0, 0, 5, 5))
    image.save(tmp_path / "a.png")
    write_items(tmp_path, [Item("a", "train", image="a.png", regions=(Region((0, 0, 5, 5), "a green square"),))])
    collection = Collection.open(tmp_path)
    (table,) = extract(collection, with_regions(backbone, collection, "collection", count=1)).tables
    assert table.take(["a"])[0, 0].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "name", ["item-one", "one.png", "one", "images/one.png", "flickr/images/one.png", "images/one"]
)
def test_images_are_identified_by_id_or_name(collection, backbone, name):
    boxes = written(collection.path, {name: [SMALL]})
    (table,) = extract(collection, with_regions(backbone, collection, boxes, count=1)).tables
    assert [rows[0] for rows in grid_of(table, "one", "two")] == [[1, 0, 0], [0, 0, 0]]


def test_items_that_share_an_image_share_its_boxes(tmp_path, backbone, collection):
    write_items(collection.path, [Item("other", "train", image="images/one.png")])
    collection = Collection.open(collection.path)
    boxes = written(tmp_path, {"item-one": [SMALL], "other": [MIDDLE]})
    (table,) = extract(collection, with_regions(backbone, collection, boxes, count=2)).tables
    assert table.take(["item-one", "other"])[:, :2].tolist() == [[[1, 0, 0], [0, 1, 0]]] * 2


def test_unknown_names_are_counted(collection, backbone, caplog):
    boxes = {"item-one": [SMALL], "four.png": [SMALL], "other/one.png": [SMALL], "words": [SMALL]}
    with_regions(backbone, collection, written(collection.path, boxes))
    assert "boxes.json: 3 of 4 names match no image" in caplog.text
    assert "the first: 'four.png'" in caplog.text


@pytest.mark.parametrize("boxes", [{}, {"four.png": [SMALL]}, {"item-one": []}, "collection"])
def test_boxes_without_an_image_are_an_error(collection, backbone, boxes):
    with pytest.raises(FeatureError, match=r"no box of an image in .*the ids of items \(such as 'item-one'\)"):
        with_regions(backbone, collection, boxes if boxes == "collection" else written(collection.path, boxes))


def test_an_ambiguous_name_is_refused(tmp_path, backbone):
    items = []
    for folder in ("cats", "dogs"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (9, 9)).save(tmp_path / folder / "1.png")
        items.append(Item(folder, "train", image=f"{folder}/1.png"))
    write_items(tmp_path, items)
    collection = Collection.open(tmp_path)
    with pytest.raises(CollectionError, match=r"'1\.png' matches both 'cats/1\.png' and 'dogs/1\.png'"):
        with_regions(backbone, collection, written(tmp_path, {"1.png": [SMALL]}))
    with_regions(backbone, collection, written(tmp_path, {"dogs/1.png": [SMALL]}))


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ('{"a": [[1, 2, 3]]}', r"boxes\.json: box 0 of 'a' is \[1, 2, 3\]; expected \[left"),
        ('{"a": [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]}', "box 1 of 'a'"),
        ('{"a": [[1, 2, 3, "4"]]}', "box 0 of 'a'"),
        ('{"a": [[1, 2, 3, true]]}', "box 0 of 'a'"),
        ('{"a": [[1, 2, 3, NaN]]}', "box 0 of 'a'"),
        ('{"a": [1, 2, 3, 4]}', "box 0 of 'a' is 1"),
        ('{"a": 5}', "'a' is 5; expected a value of type 'list'"),
        ('{"id": 1, "regions": [{"x": 1, "y": 2}]}', "box 0 of '1'"),
        ('[["a", [1, 2, 3, 4]]]', r"\[0\]: expected an object of images and their boxes"),
        ('{"a": [\n]', "not valid JSON"),
        ("", "the file is empty"),
    ],
)  # fmt: skip
def test_invalid_boxes_are_refused_with_their_location(tmp_path, contents, message):
    with pytest.raises(CollectionError, match=message):
        read_boxes(written(tmp_path, contents))


def test_scores_for_some_boxes_of_an_image_are_refused(collection, backbone):
    boxes = written(collection.path, {"item-one": [[*SMALL, 0.5], MIDDLE]})
    with pytest.raises(CollectionError, match=r"only some boxes of .*one\.png have a score"):
        with_regions(backbone, collection, boxes)


def test_empty_boxes_are_skipped_and_counted(collection, backbone, caplog):
    boxes = written(collection.path, {"item-one": [[1, 1, 0, 9], SMALL, [1, 1, 9, -1]]})
    (table,) = extract(collection, with_regions(backbone, collection, boxes, count=2)).tables
    assert "2 boxes have no width or no height, the first [1, 1, 0, 9] of 'item-one'" in caplog.text
    assert grid_of(table, "one")[0][:2] == [[1, 0, 0], [0, 0, 0]]
    with pytest.raises(CollectionError, match="2 boxes have no width or no height"):
        with_regions(backbone, collection, boxes, strict=True)


def test_a_box_outside_its_image_is_an_error_of_that_item(collection, backbone):
    boxes = written(collection.path, {"item-one": [SMALL, [60, 0, 5, 5]], "item-two": [SMALL]})
    done = extract(collection, with_regions(backbone, collection, boxes))
    assert done.skipped.keys() == {"item-one"}
    assert "one.png: the box [60, 0, 5, 5] lies outside the image of 60 x 40 pixels" in done.skipped["item-one"]
    with pytest.raises(MediaError, match=r"one\.png: the box \[60, 0, 5, 5\]"):
        extract(collection, with_regions(backbone, collection, boxes), name="again", strict=True)


def test_fingerprint_changes_with_the_boxes_and_their_number(collection, backbone):
    boxes = [{"item-one": [SMALL]}, {"item-one": [MIDDLE]}, {"item-two": [SMALL]}, {"item-one": [[*SMALL, 0.5]]}]
    paths = [written(collection.path, content, f"{n}.json") for n, content in enumerate(boxes)]
    prints = {with_regions(backbone, collection, path).specs[0].fingerprint for path in paths}
    prints.add(with_regions(backbone, collection, paths[0], count=3).specs[0].fingerprint)
    assert len(prints | {backbone.specs[0].fingerprint}) == 6


def test_other_boxes_are_refused(collection, backbone):
    for name, boxes in (("boxes.json", [SMALL, MIDDLE]), ("other.json", [SMALL])):
        regional = with_regions(backbone, collection, written(collection.path, {"item-one": boxes}, name))
        if name == "boxes.json":
            extract(collection, regional, name="regions")
    with pytest.raises(FeatureError, match=r"regions\.lance: expected eye regions 5x3 .*boxes_sha256"):
        extract(collection, regional, name="regions")


def test_a_new_image_is_encoded_as_one_region_with_the_same_fingerprint(collection, backbone):
    path = collection.path / "images" / "one.png"
    regional = with_regions(backbone, collection, written(collection.path, {"item-two": [SMALL]}))
    alone = WholeImageBackbone(backbone, regional.specs[0].regions)
    assert alone.specs[0].fingerprint == regional.specs[0].fingerprint
    assert whole_image_spec(regional.specs[0]).fingerprint == backbone.specs[0].fingerprint
    features, stored = (each(each.read(path)[None])["grid"] for each in (alone, regional))
    assert features.shape == (1, 5, 3)
    assert not features[0, :4].any()
    np.testing.assert_array_equal(features, stored)


def test_a_backbone_without_pooled_features_is_refused(collection):
    boxes = written(collection.path, {"item-one": [SMALL]})
    with pytest.raises(FeatureError, match=r"pixels: expected .* one pooled vector per image .* got 'maps' of images"):
        with_regions(PixelBackbone(8, "squash"), collection, boxes)


@pytest.mark.parametrize("count", [0, 101])
def test_too_few_or_too_many_regions_are_refused(collection, backbone, count):
    with pytest.raises(SettingsError, match="regions: count"):
        with_regions(backbone, collection, written(collection.path, {"item-one": [SMALL]}), count=count)


def test_the_command_creates_the_table(collection, backbone, command_line, monkeypatch):
    def run(*arguments):
        return command_line("features", collection.path, "--backbone", "eye", *arguments)

    monkeypatch.setattr(extraction, "load_backbone", lambda *given, **options: backbone)
    boxes = str(written(collection.path, {"item-one": [SMALL, MIDDLE]}))
    status, printed, _ = run("--boxes", boxes, "--regions", "1", "--name", "eye_regions")
    assert status == 0 and "3 images encoded, 0 already stored, 0 skipped" in printed.splitlines()
    assert grid_of(FeatureTable.open(collection, "eye_regions"), "one")[0][0] == [0, 1, 0]
    status, _, message = run("--regions", "3")
    assert (status, message.count("\n")) == (1, 1)
    assert "--boxes" in message


@pytest.mark.real
def test_real_regions_are_encoded_like_their_crops(real_data, tmp_path):
    network = str(real_data / "backbones" / "mobilenet_v2")
    source = min((real_data / "flickr8k" / "images").glob("*.jpg"))
    Image.open(source).convert("RGB").crop((30, 20, 230, 120)).save(tmp_path / "region.png")
    write_items(tmp_path, [Item("a", "train", image=str(source)), Item("cut", "train", image="region.png")])
    collection = Collection.open(tmp_path)
    boxes = written(tmp_path, {"a": [[30, 20, 200, 100, 0.9]]})
    network_backbone = load.load_backbone(network)
    (grid,) = extract(
        collection, with_regions(network_backbone, collection, boxes), batch_size=2, name="regions"
    ).tables
    (vectors,) = extract(collection, network_backbone, batch_size=2).tables
    (squashed,) = extract(
        collection, load.load_backbone(network, resize="squash"), batch_size=2, name="squashed"
    ).tables
    region, *_, whole = grid.take(["a"])[0]
    np.testing.assert_array_equal(whole, vectors.take(["a"])[0])
    np.testing.assert_allclose(region, squashed.take(["cut"])[0], atol=2e-2)
