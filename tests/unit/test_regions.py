"""Features of regions: which boxes are taken, in which order they stand, and what is said of those that do not fit."""

import gzip
import hashlib
import json
import sys

import numpy as np
import pytest
from PIL import Image

from limner import cli
from limner.data.collection import Collection, write_items
from limner.data.examples import Item, Region
from limner.errors import CollectionError, FeatureError, MediaError, SettingsError
from limner.features import store
from limner.features.encoders import load
from limner.features.encoders.pixels import PixelBackbone
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
SMALL, MIDDLE, LARGE = [2, 3, 4, 5], [20, 0, 10, 6], [10, 12, 30, 8]  # a red, a green and a blue box of 20, 60, 240


@pytest.fixture
def collection(tmp_path):
    """Black pictures with a red, a green and a blue rectangle, and an item without a picture."""
    picture = Image.new("RGB", (60, 40))
    for (left, top, width, height), colour in zip([SMALL, MIDDLE, LARGE], [RED, GREEN, BLUE], strict=True):
        picture.paste(colour, (left, top, left + width, top + height))
    items = [Item("words", "train", regions=(Region((0, 0, 1, 1), "nothing"),))]
    for name in ("one", "two", "three"):
        (tmp_path / "pictures").mkdir(exist_ok=True)
        picture.save(tmp_path / "pictures" / f"{name}.png")
        items.append(Item(f"item-{name}", "train", image=f"pictures/{name}.png"))
    write_items(tmp_path, items)
    return Collection.open(tmp_path)


@pytest.fixture
def eye(eye_of):
    return eye_of()


def written(folder, contents, name="boxes.json"):
    (folder / name).write_text(contents if isinstance(contents, str) else json.dumps(contents), encoding="utf-8")
    return folder / name


def grid_of(table, *ids):
    return table.take([f"item-{name}" for name in ids]).tolist()


def test_rows_are_the_regions_by_size_then_zero_rows_then_the_whole(collection, eye):
    boxes = written(collection.path, {"item-one": [LARGE, SMALL, MIDDLE], "two.png": [MIDDLE]})
    (table,) = extract(collection, with_regions(eye, collection, boxes), name="regions").tables
    (wholes,) = extract(collection, eye).tables
    whole = wholes.take(["item-one"])[0].tolist()
    none, red, green, blue = [0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]
    assert table.spec.shape == (5, 3)
    assert grid_of(table, "one", "two", "three") == [
        [red, green, blue, none, whole],
        [green, none, none, none, whole],
        [none, none, none, none, whole],
    ]


def test_table_is_called_as_the_user_says_or_after_its_backbone(collection, eye):
    boxes = written(collection.path, {"item-one": [SMALL]})
    extract(collection, with_regions(eye, collection, boxes), name="colour_regions")
    extract(collection, with_regions(eye, collection, boxes))
    assert collection.features() == ("colour.regions", "colour_regions")


@pytest.mark.parametrize(
    ("boxes", "chosen"),
    [
        ([Box(0, 0, 9, 9), Box(0, 0, 2, 2), Box(0, 0, 5, 5)], [(0, 0, 5, 5), (0, 0, 9, 9)]),  # the largest
        ([Box(0, 0, 9, 9, 0.2), Box(0, 0, 2, 2, 0.9), Box(0, 0, 5, 5, 0.3)], [(0, 0, 2, 2), (0, 0, 5, 5)]),
        ([Box(0, 0, 9, 9, -3), Box(0, 0, 2, 2, -1), Box(0, 0, 5, 5, -2)], [(0, 0, 2, 2), (0, 0, 5, 5)]),
        ([Box(5, 0, 3, 3), Box(0, 0, 3, 3), Box(0, 5, 3, 3)], [(0, 0, 3, 3), (0, 5, 3, 8)]),  # ties: from the left
        ([Box(0, 0, 4, 4), Box(0, 0, 4, 4), Box(1, 1, 2, 2)], [(1, 1, 3, 3), (0, 0, 4, 4)]),  # one of two that are one
        ([Box(0, 0, 4, 4, 1), Box(0, 0, 4, 4, 9), Box(0, 0, 9, 9, 2), Box(0, 0, 2, 2, 5)],
         [(0, 0, 2, 2), (0, 0, 4, 4)]),  # the better score of two that are one
        ([Box(-5, -5, 8, 8), Box(15, 8, 50, 50)], [(0, 0, 3, 3), (15, 8, 20, 10)]),  # cut off at the edges
        ([Box(1.5, 2.5, 2, 2)], [(1, 2, 4, 5)]),  # every pixel that is touched
        ([Box(19.5, 9.5, 5, 5)], [(19, 9, 20, 10)]),
    ],
)  # fmt: skip
def test_choice_and_order(boxes, chosen):
    assert select_regions(boxes, (20, 10), 2) == [Crop(*crop) for crop in chosen]
    assert select_regions(boxes[::-1], (20, 10), 2) == [Crop(*crop) for crop in chosen]


def test_cut_off_boxes_are_sized_by_what_is_left_of_them():
    assert select_regions([Box(19, 0, 1000, 5), Box(0, 0, 3, 3)], (20, 10), 1) == [Crop(0, 0, 3, 3)]


def test_a_region_is_seen_whole_whatever_its_proportions(tmp_path, eye):
    """A network that cuts the middle out of pictures is shown all of a long region."""
    eye.preprocessing = eye.preprocessing.model_copy(update={"resize": "crop"})
    eye.specs = (eye.specs[0].model_copy(update={"preprocessing": eye.preprocessing.model_dump(mode="json")}),)
    picture = Image.new("RGB", (400, 40), BLUE)
    picture.paste(RED, (0, 0, 100, 40))
    picture.save(tmp_path / "long.png")
    looking = RegionBackbone(eye, RegionRows(count=1, boxes_sha256=""), {tmp_path / "long.png": [Box(0, 0, 400, 40)]})
    ((region, whole),) = looking(looking.read(tmp_path / "long.png")[None])["grid"].tolist()
    assert region == pytest.approx([0.25, 0, 0.75], abs=0.01)
    assert whole == [0, 0, 1]


def test_all_forms_of_a_file_are_read_alike(collection, eye):
    folder = collection.path
    scored = [[1, 2, 3, 4, 0.5], [5, 6, 7, 8, 0.25]]
    both = {"item-one": scored, "two.png": [SMALL]}
    lines = '{"two.png": [[2, 3.0, 4, 5]]}\n\n{"item-one": [[5, 6, 7, 8, 0.25]]}\n{"item-one": [[1, 2, 3, 4, 0.5]]}\n'
    paths = [
        written(folder, both),
        written(folder, json.dumps(both, indent=2), "indented.json"),
        written(folder, lines, "boxes.jsonl"),
        written(folder, [{"item-one": scored}, {"two.png": [SMALL]}], "list.json"),
    ]
    with gzip.open(folder / "boxes.json.gz", "wt", encoding="utf-8") as stream:
        json.dump(both, stream)
    paths.append(folder / "boxes.json.gz")
    for path in paths:
        found = read_boxes(path)
        assert {name: sorted(boxes) for name, boxes in found.items()} == {
            "item-one": [Box(1, 2, 3, 4, 0.5), Box(5, 6, 7, 8, 0.25)],
            "two.png": [Box(2, 3, 4, 5)],
        }
    assert len({with_regions(eye, collection, path).specs[0].fingerprint for path in paths}) == 1


def test_visual_genome_s_regions_are_read(tmp_path):
    region = {"region_id": 7, "x": 1, "y": 2, "width": 3, "height": 4, "phrase": "a clock", "image_id": 12}
    one = {"id": 12, "regions": [region]}
    wanted = {"12": [Box(1, 2, 3, 4)]}
    assert read_boxes(written(tmp_path, one)) == wanted
    assert read_boxes(written(tmp_path, [one, {"id": 13, "regions": []}])) == {**wanted, "13": []}


@pytest.mark.real
def test_real_regions_of_visual_genome_are_read(real_data):
    path = real_data / "regions" / "visual_genome_image1_regions.json"
    found = read_boxes(path)
    first = json.loads(path.read_text(encoding="utf-8"))["regions"][0]
    assert found.keys() == {"1"}
    assert found["1"][0] == Box(first["x"], first["y"], first["width"], first["height"])


def test_the_collection_s_own_regions_are_taken(tmp_path, eye):
    picture = Image.new("RGB", (20, 10), BLUE)
    picture.paste(GREEN, (0, 0, 5, 5))
    picture.save(tmp_path / "a.png")
    write_items(tmp_path, [Item("a", "train", image="a.png", regions=(Region((0, 0, 5, 5), "a green square"),))])
    collection = Collection.open(tmp_path)
    (table,) = extract(collection, with_regions(eye, collection, "collection", count=1)).tables
    assert table.take(["a"])[0, 0].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "name", ["item-one", "one.png", "one", "pictures/one.png", "flickr/pictures/one.png", "pictures/one"]
)
def test_pictures_are_known_by_id_or_by_name(collection, eye, name):
    boxes = written(collection.path, {name: [SMALL]})
    (table,) = extract(collection, with_regions(eye, collection, boxes, count=1)).tables
    assert [rows[0] for rows in grid_of(table, "one", "two")] == [[1, 0, 0], [0, 0, 0]]


def test_items_that_share_a_picture_share_its_boxes(tmp_path, eye, collection):
    write_items(collection.path, [Item("other", "train", image="pictures/one.png")])
    collection = Collection.open(collection.path)
    boxes = written(tmp_path, {"item-one": [SMALL], "other": [MIDDLE]})
    (table,) = extract(collection, with_regions(eye, collection, boxes, count=2)).tables
    assert table.take(["item-one", "other"])[:, :2].tolist() == [[[1, 0, 0], [0, 1, 0]]] * 2


def test_names_of_other_pictures_are_counted(collection, eye, caplog):
    boxes = {"item-one": [SMALL], "four.png": [SMALL], "other/one.png": [SMALL], "words": [SMALL]}
    with_regions(eye, collection, written(collection.path, boxes))
    assert "boxes.json: 3 of 4 names match no image" in caplog.text
    assert "the first: 'four.png'" in caplog.text


@pytest.mark.parametrize("boxes", [{}, {"four.png": [SMALL]}, {"item-one": []}, "collection"])
def test_no_box_for_any_picture_is_an_error(collection, eye, boxes):
    with pytest.raises(FeatureError, match=r"no box of an image in .*the ids of items \(such as 'item-one'\)"):
        with_regions(eye, collection, boxes if boxes == "collection" else written(collection.path, boxes))


def test_a_name_that_two_pictures_bear_is_refused(tmp_path, eye):
    items = []
    for folder in ("cats", "dogs"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (9, 9)).save(tmp_path / folder / "1.png")
        items.append(Item(folder, "train", image=f"{folder}/1.png"))
    write_items(tmp_path, items)
    collection = Collection.open(tmp_path)
    with pytest.raises(CollectionError, match=r"'1\.png' matches both 'cats/1\.png' and 'dogs/1\.png'"):
        with_regions(eye, collection, written(tmp_path, {"1.png": [SMALL]}))
    with_regions(eye, collection, written(tmp_path, {"dogs/1.png": [SMALL]}))


@pytest.mark.parametrize(
    ("contents", "told"),
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
        ('{"a": []}\n{"b": [}', r"boxes\.json:2: not valid JSON"),
        ('{"a": [\n]', "not valid JSON"),
        ("", "the file is empty"),
    ],
)  # fmt: skip
def test_what_is_no_box_is_refused_by_place(tmp_path, contents, told):
    with pytest.raises(CollectionError, match=told):
        read_boxes(written(tmp_path, contents))


def test_scores_for_some_boxes_of_a_picture_are_refused(collection, eye):
    boxes = written(collection.path, {"item-one": [[*SMALL, 0.5], MIDDLE]})
    with pytest.raises(CollectionError, match=r"only some boxes of .*one\.png have a score"):
        with_regions(eye, collection, boxes)


def test_boxes_of_no_size_are_left_out_and_counted(collection, eye, caplog):
    boxes = written(collection.path, {"item-one": [[1, 1, 0, 9], SMALL, [1, 1, 9, -1]]})
    (table,) = extract(collection, with_regions(eye, collection, boxes, count=2)).tables
    assert "2 boxes have no width or no height, the first [1, 1, 0, 9] of 'item-one'" in caplog.text
    assert grid_of(table, "one")[0][:2] == [[1, 0, 0], [0, 0, 0]]
    with pytest.raises(CollectionError, match="2 boxes have no width or no height"):
        with_regions(eye, collection, boxes, strict=True)


def test_a_box_outside_its_picture_is_told_with_both(collection, eye):
    boxes = written(collection.path, {"item-one": [SMALL, [60, 0, 5, 5]], "item-two": [SMALL]})
    done = extract(collection, with_regions(eye, collection, boxes))
    assert done.skipped.keys() == {"item-one"}
    assert "one.png: the box [60, 0, 5, 5] lies outside the image of 60 x 40 pixels" in done.skipped["item-one"]
    with pytest.raises(MediaError, match=r"one\.png: the box \[60, 0, 5, 5\]"):
        extract(collection, with_regions(eye, collection, boxes), name="again", strict=True)


def test_fingerprint_changes_with_the_boxes_and_their_number(collection, eye):
    boxes = [{"item-one": [SMALL]}, {"item-one": [MIDDLE]}, {"item-two": [SMALL]}, {"item-one": [[*SMALL, 0.5]]}]
    paths = [written(collection.path, content, f"{n}.json") for n, content in enumerate(boxes)]
    prints = {with_regions(eye, collection, path).specs[0].fingerprint for path in paths}
    prints.add(with_regions(eye, collection, paths[0], count=3).specs[0].fingerprint)
    assert len(prints | {eye.specs[0].fingerprint}) == 6


def test_tables_without_regions_keep_the_fingerprint_they_had(eye):
    spec = eye.specs[0]
    content = {
        "kind": "pooled",
        "shape": [3],
        "backbone": "eye",
        "layer": None,
        "grid_size": None,
        "preprocessing": eye.preprocessing.model_dump(mode="json"),
        "weights_sha256": "1",
    }
    assert spec.fingerprint == hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def test_a_stopped_run_goes_on_and_other_boxes_are_refused(collection, eye, monkeypatch):
    monkeypatch.setattr(store, "_CHUNK_ROWS", 1)
    boxes = written(collection.path, {"item-one": [SMALL, MIDDLE], "item-three": [LARGE]})
    whole = extract(collection, with_regions(eye, collection, boxes), batch_size=1, name="whole").tables[0]
    looking = with_regions(eye, collection, boxes)
    looks = []

    class Stopping:
        modality, specs, read = looking.modality, looking.specs, looking.read

        def __call__(self, prepared):
            if looks:
                raise KeyboardInterrupt
            looks.append(len(prepared))
            return looking(prepared)

    with pytest.raises(KeyboardInterrupt):
        extract(collection, Stopping(), batch_size=1, name="regions")
    assert len(FeatureTable.open(collection, "regions")) == 1
    done = extract(collection, looking, batch_size=1, name="regions")
    assert (done.present, done.added) == (1, 2)
    assert grid_of(done.tables[0], "one", "two", "three") == grid_of(whole, "one", "two", "three")
    other = written(collection.path, {"item-one": [SMALL]}, "other.json")
    with pytest.raises(FeatureError, match=r"regions\.lance: expected eye regions 5x3 .*boxes_sha256"):
        extract(collection, with_regions(eye, collection, other), name="regions")


def test_the_network_always_sees_batches_of_one_size_and_no_zero_rows(collection, eye_of):
    sizes = []

    class Counting(eye_of):
        def __call__(self, pixels):
            sizes.append(len(pixels))
            return super().__call__(pixels)

    boxes = written(collection.path, {"item-one": [SMALL, MIDDLE, LARGE], "item-two": [SMALL]})
    extract(collection, with_regions(Counting(), collection, boxes), batch_size=4)
    assert sizes == [4, 4]  # four regions and three wholes, and one whole more that fills the batch of three pictures


def test_a_new_picture_shows_only_its_whole_with_the_fingerprint_of_the_model_s_features(collection, eye):
    path = collection.path / "pictures" / "one.png"
    looking = with_regions(eye, collection, written(collection.path, {"item-two": [SMALL]}))
    alone = WholeImageBackbone(eye, looking.specs[0].regions)
    assert alone.specs[0].fingerprint == looking.specs[0].fingerprint
    assert whole_image_spec(looking.specs[0]).fingerprint == eye.specs[0].fingerprint
    seen, stored = (each(each.read(path)[None])["grid"] for each in (alone, looking))
    assert seen.shape == (1, 5, 3)
    assert not seen[0, :4].any()
    np.testing.assert_array_equal(seen, stored)


def test_what_gives_no_vector_cannot_look_at_regions(collection):
    boxes = written(collection.path, {"item-one": [SMALL]})
    with pytest.raises(FeatureError, match=r"pixels: expected .* one pooled vector per image .* got 'maps' of images"):
        with_regions(PixelBackbone(8, "squash"), collection, boxes)


@pytest.mark.parametrize("count", [0, 101])
def test_too_few_or_too_many_regions_are_refused(collection, eye, count):
    with pytest.raises(SettingsError, match="regions: count"):
        with_regions(eye, collection, written(collection.path, {"item-one": [SMALL]}), count=count)


def test_the_command_makes_the_table(collection, eye, capsys, monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["limner", "features", str(collection.path), "--backbone", "eye", *arguments])
        monkeypatch.setattr(cli.err, "_file", sys.stderr)
        with pytest.raises(SystemExit) as exit:
            cli.main()
        printed = capsys.readouterr()
        return exit.value.code or 0, printed.out, printed.err

    monkeypatch.setattr(load, "load_backbone", lambda *given, **options: eye)
    boxes = str(written(collection.path, {"item-one": [SMALL, MIDDLE]}))
    status, printed, _ = run("--boxes", boxes, "--regions", "1", "--name", "eye_regions")
    assert (status, printed.splitlines()[-1]) == (0, "3 images encoded, 0 already stored, 0 skipped")
    assert grid_of(FeatureTable.open(collection, "eye_regions"), "one")[0][0] == [0, 1, 0]
    status, _, told = run("--regions", "3")
    assert (status, told.count("\n")) == (1, 1)
    assert "--boxes" in told


@pytest.mark.real
def test_real_regions_are_seen_as_their_cut_out_pictures_would_be(real_data, tmp_path):
    network = str(real_data / "backbones" / "mobilenet_v2")
    source = min((real_data / "flickr8k" / "images").glob("*.jpg"))
    Image.open(source).convert("RGB").crop((30, 20, 230, 120)).save(tmp_path / "region.png")
    write_items(tmp_path, [Item("a", "train", image=str(source)), Item("cut", "train", image="region.png")])
    collection = Collection.open(tmp_path)
    boxes = written(tmp_path, {"a": [[30, 20, 200, 100, 0.9]]})
    seeing = load.load_backbone(network)
    (grid,) = extract(collection, with_regions(seeing, collection, boxes), batch_size=2, name="regions").tables
    (vectors,) = extract(collection, seeing, batch_size=2).tables
    (squashed,) = extract(
        collection, load.load_backbone(network, resize="squash"), batch_size=2, name="squashed"
    ).tables
    region, *_, whole = grid.take(["a"])[0]
    np.testing.assert_array_equal(whole, vectors.take(["a"])[0])
    np.testing.assert_allclose(region, squashed.take(["cut"])[0], atol=2e-2)
