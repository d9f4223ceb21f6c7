import gzip
import json

import numpy as np
import pytest
from PIL import Image

from limner.apps.report.images import contact_sheet
from limner.data.collection import Collection, write_items
from limner.data.examples import Item, ItemSentence, Phrase, Region
from limner.data.items_table import Changes
from limner.data.readers import ReaderOptions, import_collection, read_source
from limner.data.readers.flickr import parse_tagged_sentence
from limner.data.summary import summarise
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

TRAIN = ReaderOptions(split="train")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def draw(path, size):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "white").save(path)


ANNOTATION = """<annotation>
	<filename>77.jpg</filename>
	<size><width>200</width><height>100</height><depth>3</depth></size>
	<object>
		<name>5</name><name>6</name>
		<bndbox><xmin>20</xmin><ymin>10</ymin><xmax>60</xmax><ymax>50</ymax></bndbox>
	</object>
	<object><name>5</name><bndbox><xmin>100</xmin><ymin>0</ymin><xmax>240</xmax><ymax>100</ymax></bndbox></object>
	<object><name>8</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></object>
	<object><name>6</name><bndbox><xmin>9</xmin><ymin>9</ymin><xmax>9</xmax><ymax>12</ymax></bndbox></object>
	<object><name>7</name><scene>1</scene><nobndbox>1</nobndbox></object>
</annotation>"""
TAGGED = (
    "[/EN#5/people Two men] wear [/EN#6/clothing/other red hats] in [/EN#7/scene the sun] .\n"
    "[/EN#5/people Two men] pose .\n"
)
SENTENCES = (
    ItemSentence(
        "en",
        "Two men wear red hats in the sun .",
        0,
        phrases=(
            Phrase(0, "Two men", "5", ("people",)),
            Phrase(3, "red hats", "6", ("clothing", "other")),
            Phrase(6, "the sun", "7", ("scene",)),
        ),
    ),
    ItemSentence("en", "Two men pose .", 1, phrases=(Phrase(0, "Two men", "5", ("people",)),)),
)
MEN = Region((10.0, 5.0, 20.0, 20.0), "Two men", "5", ("people",))  # the stored image has half the size
REGIONS = {
    MEN,
    MEN._replace(box=(50.0, 0.0, 50.0, 50.0)),  # clipped at the right edge
    Region((10.0, 5.0, 20.0, 20.0), "red hats", "6", ("clothing", "other")),
}
SKIPPED = {
    "boxes of entities that no phrase names": 1,
    "boxes without width or height": 1,
    "parts of boxes beyond the edge of the image (the boxes are clipped)": 1,
}


@pytest.fixture
def entities(tmp_path):
    source = tmp_path / "entities"
    write(source / "Annotations" / "77.xml", ANNOTATION)
    write(source / "Sentences" / "77.txt", TAGGED)
    write(source / "test.txt", "77\n")
    draw(source / "images" / "77.jpg", (100, 50))
    return source


def test_flickr30k_entities_in_its_original_form(entities):
    reading = read_source("flickr30k-entities", entities)
    (item,) = reading.items
    assert (item.id, item.split, item.sentences) == ("77", "test", SENTENCES)
    assert set(item.regions) == REGIONS and len(item.regions) == len(REGIONS)
    assert item.boxes("5") == [(10.0, 5.0, 20.0, 20.0), (50.0, 0.0, 50.0, 50.0)]
    assert item.boxes("7") == [] == item.boxes("")
    assert reading.tally.skipped == SKIPPED
    with pytest.raises(CollectionError, match=r"77\.xml: '77: entity"):
        read_source("flickr30k-entities", entities, strict=True)


def json_line(**change):
    sentences = [
        {
            "text": sentence.text,
            "phrases": [
                {"entity": p.entity, "types": list(p.types), "first": p.first, "text": p.text} for p in sentence.phrases
            ],
        }
        for sentence in SENTENCES
    ]
    boxes = {"5": [[20, 10, 40, 40], [100, 0, 140, 100]], "6": [[20, 10, 40, 40], [9, 9, 0, 3]], "8": [[1, 1, 1, 1]]}
    entry = {"image": "77_ab.jpg", "split": "val", "width": 200, "height": 100, "boxes": boxes, "scene": ["7"]}
    return json.dumps(entry | {"sentences": sentences} | change) + "\n"


@pytest.mark.parametrize("name", ["images.jsonl", "images.jsonl.gz"])
def test_json_lines_hold_the_same(tmp_path, name):
    source = write(tmp_path / name, json_line() + json_line(image="78_cd.jpg"))
    draw(tmp_path / "images" / "77_ab.jpg", (100, 50))
    reading = read_source("flickr30k-entities", source)
    (item,) = reading.items
    assert (item.id, item.split, item.sentences, set(item.regions)) == ("77_ab", "val", SENTENCES, REGIONS)
    assert reading.tally.skipped == SKIPPED | {"images that are missing (with their sentences and boxes)": 1}


def test_lists_and_options_replace_the_splits_of_json_lines(tmp_path):
    source = write(tmp_path / "images.jsonl", json_line() + json_line(image="78.jpg"))
    for name in ("77_ab", "78"):
        draw(tmp_path / "images" / f"{name}.jpg", (100, 50))
    write(tmp_path / "lists" / "test.txt", "77_ab.jpg\n")
    reading = read_source("flickr30k-entities", source, ReaderOptions(splits=tmp_path / "lists"))
    assert [(item.id, item.split) for item in reading.items] == [("77_ab", "test")]
    assert reading.tally.skipped["images in none of the lists of splits"] == 1
    assert [item.split for item in read_source("flickr30k-entities", source, TRAIN).items] == ["train", "train"]


def test_the_original_form_matches_the_longer_names_of_flickr8k(entities, tmp_path):
    draw(tmp_path / "flickr8k" / "77_0a1b.jpg", (100, 50))
    options = ReaderOptions(images=tmp_path / "flickr8k")
    (item,) = read_source("flickr30k-entities", entities, options).items
    assert (item.id, item.split) == ("77_0a1b", "test")


def test_annotations_without_sentences_name_the_file(entities):
    write(entities / "Annotations" / "79.xml", ANNOTATION)
    with pytest.raises(CollectionError, match=r"79\.txt: does not exist; expected the sentences of .*79\.xml"):
        read_source("flickr30k-entities", entities)


def test_a_phrase_at_another_position_is_skipped(tmp_path):
    phrase = {"entity": "1", "types": ["people"], "first": 1, "text": "A man"}
    line = json_line(sentences=[{"text": "A man rides .", "phrases": [phrase, phrase | {"first": 0}]}], boxes={})
    draw(tmp_path / "images" / "77_ab.jpg", (100, 50))
    reading = read_source("flickr30k-entities", write(tmp_path / "images.jsonl", line))
    assert reading.items[0].sentences[0].phrases == (Phrase(0, "A man", "1", ("people",)),)
    assert reading.tally.skipped == {"phrases that are not at their position in the sentence": 1}


def test_tagged_sentences_without_phrases_and_with_entities_without_types():
    assert parse_tagged_sentence("Dogs run .") == ("Dogs run .", ())
    tagged = parse_tagged_sentence("On [/EN#0 it] and [/EN#1/a/b two  words] .")
    assert tagged == ("On it and two words .", (Phrase(1, "it", "0"), Phrase(3, "two words", "1", ("a", "b"))))


def region(number, x, y, width, height, phrase):
    values = {"x": x, "y": y, "width": width, "height": height, "phrase": phrase}
    return {"region_id": number, "image_id": 1} | values


GENOME = [
    {
        "id": 1,
        "regions": [
            region(1, 40, 20, 40, 20, "the clock is  green "),
            region(2, -10, 60, 30, 60, "a tree"),
            region(3, 300, 0, 5, 5, "a sign"),
            region(4, 0, 0, 5, 5, " "),
        ],
    },
    {"id": 2, "regions": []},
]


@pytest.fixture
def genome(tmp_path):
    source = tmp_path / "genome"
    write(source / "region_descriptions.json", json.dumps(GENOME))
    draw(source / "VG_100K" / "1.jpg", (200, 100))
    return source


def test_visual_genome(genome):
    reading = read_source("visual-genome", genome, TRAIN)
    (item,) = reading.items
    clock, tree = Region((40.0, 20.0, 40.0, 20.0), "the clock is green"), Region((0.0, 60.0, 20.0, 40.0), "a tree")
    assert (item.id, item.split, item.sentences, item.regions) == ("1", "train", (), (clock, tree))
    assert reading.tally.skipped == {
        "boxes outside their image": 1,
        "regions without a description": 1,
        "parts of boxes beyond the edge of the image (the boxes are clipped)": 1,
        "images that are missing (with their regions)": 1,
    }


def test_visual_genome_scales_boxes_by_the_size_of_the_original_image(genome):
    write(genome / "image_data.json", json.dumps([{"image_id": 1, "width": 400, "height": 400}]))
    (item,) = read_source("visual-genome", genome).items
    assert item.regions[0].box == (20.0, 5.0, 20.0, 5.0)
    assert item.regions[1].box == (0.0, 15.0, 10.0, 15.0)


def test_visual_genome_of_one_image_with_lists_of_splits(genome, tmp_path):
    one = write(tmp_path / "one_regions.json", json.dumps(GENOME[0]))
    write(tmp_path / "lists" / "test.txt", "1.jpg\n")
    options = ReaderOptions(images=genome / "VG_100K", splits=tmp_path / "lists")
    assert [item.split for item in read_source("visual-genome", one, options).items] == ["test"]


def test_the_import_stores_counts_and_repeats(entities, tmp_path):
    report = import_collection("flickr30k-entities", entities, tmp_path / "c")
    assert (report.regions, report.phrases) == (3, 4)
    assert "2 sentences, 3 regions, 4 phrases" in report.lines()[0]
    (item,) = Collection.open(tmp_path / "c").items()
    assert item.sentences == SENTENCES and set(item.regions) == REGIONS
    assert import_collection("flickr30k-entities", entities, tmp_path / "c").changes == Changes(0, 0, 1)
    counts = summarise(Collection.open(tmp_path / "c"))
    assert (counts.regions, counts.phrases) == (3, 4)


def test_phrases_are_added_to_sentences_without_them_and_change_the_fingerprint(tmp_path):
    plain = tuple(sentence._replace(phrases=()) for sentence in SENTENCES)
    write_items(tmp_path / "c", [Item("77", "test", sentences=plain)])
    before = Collection.open(tmp_path / "c").fingerprint()
    assert write_items(tmp_path / "c", [Item("77", "test", sentences=SENTENCES)]) == Changes(0, 1, 0)
    after = Collection.open(tmp_path / "c")
    assert after.items()[0].sentences == SENTENCES
    assert after.fingerprint() != before
    assert write_items(tmp_path / "c", [Item("77", "test", sentences=plain)]) == Changes(0, 0, 1)


def test_the_contact_sheet_draws_boxes(entities, tmp_path):
    import_collection("flickr30k-entities", entities, tmp_path / "c")
    collection = Collection.open(tmp_path / "c")
    plain, boxes = (contact_sheet(collection, boxes=drawn).crop((28, 28, 268, 208)) for drawn in (False, True))
    assert plain.tobytes() != boxes.tobytes()
    assert plain.getpixel((120, 90)) == (255, 255, 255)


@pytest.mark.real
def test_the_original_files_and_the_json_lines_of_flickr30k_entities_agree(real_data, tmp_path):
    folder = real_data / "flickr30k_entities"
    names = {path.stem for path in (folder / "sample").glob("*.xml")}
    with gzip.open(folder / "flickr8k_images.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = "".join(line for line in file if json.loads(line)["image"].partition("_")[0] in names)
    options = ReaderOptions(images=real_data / "flickr8k" / "images", split="train")
    original = read_source("flickr30k-entities", folder / "sample", options).items
    by_id = {
        item.id: item for item in read_source("flickr30k-entities", write(tmp_path / "12.jsonl", lines), options).items
    }
    assert len(original) == len(by_id) == 12
    for item in original:
        assert item.sentences == by_id[item.id].sentences and set(item.regions) == set(by_id[item.id].regions)


@pytest.mark.real
def test_the_regions_of_an_image_of_visual_genome(real_data, tmp_path):
    draw(tmp_path / "images" / "1.jpg", (800, 600))
    options = ReaderOptions(images=tmp_path / "images")
    (item,) = read_source("visual-genome", real_data / "regions", options).items
    assert len(item.regions) == 262
    assert item.regions[0] == Region((421.0, 57.0, 82.0, 139.0), "the clock is green in colour")


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
