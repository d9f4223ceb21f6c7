import gzip
import json

import pytest
from PIL import Image

from limner.apps.report.images import contact_sheet
from limner.data.collection import Collection, write_items
from limner.data.examples import Item, ItemSentence, Phrase, Region
from limner.data.items_table import Changes
from limner.data.readers import ReaderOptions, import_collection, read_source
from limner.data.readers.flickr import parse_tagged_sentence
from limner.data.summary import summarise
from limner.errors import CollectionError

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
