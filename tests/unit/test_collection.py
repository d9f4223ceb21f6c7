import hashlib
import json
import os
import shutil
from dataclasses import replace

import lance
import pytest
from PIL import Image, ImageChops

from limner.apps.report.images import contact_sheet, draw_tiles
from limner.data.collection import ITEMS, Collection, write_items
from limner.data.examples import Item, ItemSentence, Region
from limner.data.items_table import Changes, item_of_row
from limner.data.summary import summarise
from limner.errors import CollectionError

DOG = Item(
    "dog",
    "train",
    image="pictures/dog.jpg",
    sentences=(ItemSentence("en", "a dog", 0), ItemSentence("de", "ein Hund – „süß“", 0)),
    regions=(Region((0.1, 2.0, 30.5, 4.0), "its nose"),),
    label="animal",
)
TEXT = Item("text", "val", sentences=(ItemSentence("fr", "un chat", 3),))
CLIP = Item("clip's", "val", video="clips/1.mp4")


@pytest.fixture
def path(tmp_path):
    write_items(tmp_path / "c", [DOG, TEXT, CLIP])
    return tmp_path / "c"


def versions(path):
    return len(lance.dataset(str(path / ITEMS)).versions())


def hidden(folder):
    return [name for name in os.listdir(folder) if name.startswith(".")]


def test_items_come_back_as_they_were_in_stored_order(path):
    dog, *others = Collection.open(path).items()
    assert others == [TEXT, CLIP]
    assert replace(dog, regions=()) == replace(DOG, regions=())
    assert dog.regions[0].box == pytest.approx(DOG.regions[0].box)


def test_splits_and_members(path):
    collection = Collection.open(str(path))
    assert len(collection) == 3
    assert collection.splits() == {"train": 1, "val": 2}
    assert [item.id for item in collection.items("val")] == ["text", "clip's"]
    assert collection.image_path(DOG) == path / "pictures/dog.jpg"
    assert collection.media_file(CLIP) == path / "clips/1.mp4"
    with pytest.raises(CollectionError, match="'text' has no image"):
        collection.image_path(TEXT)


@pytest.mark.parametrize("split", ["test", "it's"])
def test_an_empty_split_is_an_error_that_lists_the_others(path, split):
    with pytest.raises(
        CollectionError, match=rf"no items in split '{split}'.*'train' \(1\), 'val' \(2\).*data\.val.*--split auto"
    ):
        Collection.open(path).items(split)


def test_writing_again_changes_nothing(path):
    fingerprint = Collection.open(path).fingerprint()
    assert write_items(path, [DOG, TEXT]) == Changes(0, 0, 2)
    assert versions(path) == 1
    assert Collection.open(path).fingerprint() == fingerprint


def test_sentences_unite_by_language_text_and_group(path):
    more = replace(DOG, sentences=(DOG.sentences[0], ItemSentence("en", "a dog", 1), ItemSentence("cs", "pes", 0)))
    assert write_items(path, [more, Item("new", "train")]) == Changes(1, 1, 0)
    items = Collection.open(path).items()
    assert [item.id for item in items] == ["dog", "text", "clip's", "new"]
    assert items[0].sentences == (*DOG.sentences, *more.sentences[1:])
    assert items[0].regions == tuple(Collection.open(path).items()[0].regions)
    assert len(items[0].regions) == 1
    assert versions(path) == 2


def test_an_item_written_twice_at_once_is_united(tmp_path):
    twice = [Item("a", "x", sentences=(ItemSentence("en", text),)) for text in ("one", "two", "one")]
    assert write_items(tmp_path / "c", twice) == Changes(1, 0, 0)
    assert Collection.open(tmp_path / "c").items()[0].texts("en") == ["one", "two"]


def test_an_image_may_move_but_not_change_its_name(path):
    assert write_items(path, [replace(DOG, image="../elsewhere/dog.jpg")]).updated == 1
    assert Collection.open(path).items("train")[0].image == "../elsewhere/dog.jpg"
    with pytest.raises(CollectionError, match=r"item 'dog': its image is 'dog\.jpg' .* and 'cat\.jpg'"):
        write_items(path, [replace(DOG, image="pictures/cat.jpg")])
    with pytest.raises(CollectionError, match=r"its video is '1\.mp4'"):
        write_items(path, [replace(CLIP, video="clips/2.mp4")])


@pytest.mark.parametrize("change", [{"split": "test"}, {"label": "pet"}])
def test_conflicting_items_are_refused_and_nothing_is_written(path, change):
    before = sorted(path.rglob("*"))
    with pytest.raises(CollectionError, match="item 'dog'"):
        write_items(path, [Item("new", "train"), replace(DOG, **change)])
    assert sorted(path.rglob("*")) == before and len(Collection.open(path)) == 3


def test_an_open_collection_is_a_snapshot(path):
    before = Collection.open(path)
    write_items(path, [Item("new", "train")])
    assert len(before.items()) == 3
    assert len(Collection.open(path).items()) == 4


def test_the_fingerprint_depends_on_contents_and_not_on_folders(path, tmp_path):
    shutil.move(path, tmp_path / "moved")
    moved = Collection.open(tmp_path / "moved").fingerprint()
    write_items(tmp_path / "d", [replace(DOG, image="../pictures/dog.jpg"), TEXT, CLIP])
    assert Collection.open(tmp_path / "d").fingerprint() == moved
    for item in (replace(TEXT, split="test"), replace(TEXT, sentences=(ItemSentence("fr", "un chat", 4),))):
        write_items(tmp_path / "e", [DOG, item, CLIP])
        assert Collection.open(tmp_path / "e").fingerprint() != moved
        shutil.rmtree(tmp_path / "e")


def test_a_folder_with_other_files_becomes_a_collection(tmp_path):
    (tmp_path / "pictures").mkdir()
    write_items(tmp_path, [DOG])
    assert sorted(os.listdir(tmp_path)) == [ITEMS, "pictures"]


def test_nothing_to_write_is_refused(tmp_path):
    with pytest.raises(CollectionError, match="no items"):
        write_items(tmp_path / "c", [])
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("exists", [False, True])
def test_a_failed_write_leaves_the_collection_unchanged(path, tmp_path, exists, file_size_limit):
    target = path if exists else tmp_path / "new"
    with file_size_limit(200), pytest.raises(CollectionError, match=r"cannot be written .*repeat the command"):
        write_items(target, [Item(str(number), "train") for number in range(1000)])
    assert hidden(tmp_path) == [] == hidden(path)
    assert (len(Collection.open(path)) == 3) if exists else not target.exists()


@pytest.mark.parametrize("exists", [True, False])
def test_a_collection_has_one_writer_and_keeps_no_lock_file(path, tmp_path, exists):
    target = path if exists else tmp_path / "new"

    def write_within(done, total):
        with pytest.raises(CollectionError, match=rf"{target.name}: another process is writing to it"):
            write_items(target, [Item("other", "train")])

    image = tmp_path / "p.png"
    Image.new("RGB", (4, 4)).save(image)
    write_items(target, [replace(TEXT, image="p.png")], files={"p.png": image}, on_progress=write_within)
    assert (target / "p.png").read_bytes() == image.read_bytes()
    assert sorted(os.listdir(tmp_path)) == sorted({"c", target.name, "p.png"})
    assert sorted(os.listdir(target)) == [ITEMS, "p.png"]


def test_temporary_folders_of_an_interrupted_write_are_removed(tmp_path):
    (tmp_path / ".c.partial-0123abcd").mkdir()
    (tmp_path / ".c.lock").touch()
    write_items(tmp_path / "c", [TEXT])
    assert hidden(tmp_path) == []


def test_a_different_file_of_the_same_size_and_time_is_not_overwritten(path, tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(name.encode())
        os.utime(tmp_path / name, (1, 1))
    write_items(path, [DOG], files={"p.png": tmp_path / "a.png"})
    with pytest.raises(CollectionError, match=r"p\.png: exists and differs from .*b\.png"):
        write_items(path, [DOG], files={"p.png": tmp_path / "b.png"})


def test_another_process_that_adds_a_version_meanwhile_is_no_damage(path, monkeypatch):
    dataset = lance.dataset

    def late(uri, **options):
        monkeypatch.setattr(lance, "dataset", dataset)
        opened = dataset(uri, **options)
        assert opened.schema
        write_items(path, [Item("meanwhile", "train")])
        return opened

    monkeypatch.setattr(lance, "dataset", late)
    assert len(Collection.open(path)) == 3
    assert len(Collection.open(path)) == 4


def test_summary_counts(path):
    (path / "features" / "pixels.lance").mkdir(parents=True)
    write_items(path, [Item("cat", "train", image="cat.jpg", sentences=(ItemSentence("en", "a cat"),))])
    Image.new("RGB", (4, 4)).save(path / "cat.jpg")
    counts = summarise(Collection.open(path))
    assert counts.splits == {"train": 2, "val": 2}
    assert counts.sentences == {"train": {"de": 1, "en": 2}, "val": {"fr": 1}}
    assert (counts.media["image"], sum(counts.media["video"].values()), counts.regions) == ({"train": 2}, 1, 1)
    missing = str(path / "pictures/dog.jpg"), str(path / "clips/1.mp4")
    assert (counts.missing, set(counts.missing_examples)) == (2, set(missing))
    assert counts.features == ("pixels",)


def test_contact_sheet_draws_tiles_for_damaged_images(tmp_path):
    (tmp_path / "c").mkdir()
    Image.new("RGB", (640, 200), "#ff0000").save(tmp_path / "c" / "red.png")
    (tmp_path / "c" / "broken.jpg").write_bytes(b"\xff\xd8 not a picture")
    long = ItemSentence("en", "a very long sentence " * 300_000)
    items = [Item("a", "x", image="red.png", sentences=(long,)), Item("b", "x", image="broken.jpg")]
    write_items(tmp_path / "c", [*items, Item("gone", "x", image="gone.jpg"), Item("words", "x")])
    sheet = contact_sheet(Collection.open(tmp_path / "c"), "x")
    assert sheet.getpixel((28 + 120, 28 + 90)) == (255, 0, 0)
    tile = sheet.crop((28 + 260, 28, 28 + 500, 28 + 180))
    assert len(tile.getcolors(maxcolors=43200)) > 1
    assert tile.getpixel((2, 2)) == (222, 219, 212)


def test_a_long_note_is_one_line_below_the_caption():
    tile = (Image.new("RGB", (240, 180)), "a dog")
    plain, noted = draw_tiles([tile]), draw_tiles([tile], ["photos/inside/dog.jpg  -0.12" * 9])
    left, top, right, bottom = ImageChops.difference(noted.crop((0, 0, *plain.size)), plain).getbbox()
    assert noted.height == plain.height + 18
    assert left >= 28 and right <= 28 + 260 and top >= 28 + 180 + 8 + 18 and bottom <= top + 18


@pytest.mark.parametrize("column", ["lang", "text"])
def test_a_sentence_without_language_or_text_is_named(column):
    row = {"id": "a", "split": "x", "image": None, "video": None, "label": None, "regions": None}
    row["sentences"] = [{"lang": "en", "text": "a ball", "group": 0, column: None}]
    with pytest.raises(CollectionError, match="item 'a': expected sentences with a language and a text"):
        item_of_row(row)


def test_contact_sheet_without_images(path):
    write_items(path, [replace(TEXT, id="other", split="texts")])
    with pytest.raises(CollectionError, match="split 'texts' has no images"):
        contact_sheet(Collection.open(path), "texts")


def test_files_of_an_interrupted_table_write_are_removed(path):
    left = path / ITEMS / "data" / ".tmpAbCdEf"
    left.write_bytes(b"half a file")
    write_items(path, [replace(TEXT, sentences=(ItemSentence("fr", "un chien", 4),))])
    assert not left.exists()
    assert len(Collection.open(path)) == 3


WRITTEN = ItemSentence("en", "a sweet dog", 0, generated_by="de-en:0123456789ab")


def test_paths_to_files_elsewhere_are_short_unless_a_link_changes_their_meaning(tmp_path):
    photo = tmp_path / "photos" / "dog.jpg"
    photo.parent.mkdir()
    Image.new("RGB", (2, 2)).save(photo)
    collections, far = tmp_path / "collections", tmp_path / "far" / "away"
    far.mkdir(parents=True)
    write_items(collections / "mine", [Item("dog", "train", image="../../photos/dog.jpg")])
    (far / "link").symlink_to(collections / "mine")
    for folder, expected in (
        (collections / "mine", photo),
        (far / "link", far / "link" / ".." / ".." / "photos" / "dog.jpg"),
    ):
        opened = Collection.open(folder)
        path = opened.media_file(opened.items()[0])
        assert path == expected and path.exists()


def test_splits_are_summarised_in_the_usual_order(tmp_path):
    write_items(tmp_path, [Item(split, split) for split in ("test", "fold1", "val", "train")])
    assert list(summarise(Collection.open(tmp_path)).splits) == ["train", "val", "test", "fold1"]


def test_the_generating_model_of_a_sentence_is_stored(path):
    assert write_items(path, [replace(DOG, sentences=(WRITTEN,))]) == Changes(0, 1, 0)
    dog = Collection.open(path).items("train")[0]
    assert dog.sentences == (*DOG.sentences, WRITTEN)
    assert [sentence.generated_by for sentence in dog.sentences] == ["", "", WRITTEN.generated_by]
    assert dog.texts("en") == ["a dog"]
    assert write_items(path, [replace(DOG, sentences=(WRITTEN,))]) == Changes(0, 0, 1)


def test_a_human_written_sentence_replaces_the_same_generated_sentence(path):
    """Otherwise the pair would be trained on twice."""
    same = DOG.sentences[0]._replace(generated_by="run")
    assert write_items(path, [replace(DOG, sentences=(same,))]) == Changes(0, 0, 1)
    write_items(path, [replace(DOG, sentences=(WRITTEN,))])
    write_items(path, [replace(DOG, sentences=(WRITTEN._replace(generated_by=""),))])
    assert Collection.open(path).items("train")[0].sentences == (*DOG.sentences, WRITTEN._replace(generated_by=""))


def test_the_fingerprint_of_human_written_sentences_is_stable(tmp_path):
    write_items(tmp_path / "c", [TEXT])
    contents = ["text", "val", None, None, [["fr", "un chat", 3]], [], None]
    assert Collection.open(tmp_path / "c").fingerprint() == hashlib.sha256(json.dumps(contents).encode()).hexdigest()
