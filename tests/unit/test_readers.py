import gzip
import json
from collections import Counter

import pytest
from PIL import Image

from limner.data.collection import Collection
from limner.data.examples import ItemSentence
from limner.data.items_table import Changes
from limner.data.readers import ReaderOptions, import_collection, read_source
from limner.data.readers.corpus_files import assign_split
from limner.errors import CollectionError
from limner.text.words import TextSettings, split_words

AUTO = ReaderOptions(split="auto")


def write(path, text, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(encoding)) if path.suffix == ".gz" else text.encode(encoding))
    return path


def draw(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (len(name), sum(name.encode()) % 256, 0)).save(path)


def table(reading):
    return {item.id: (item.split, [tuple(sentence)[:3] for sentence in item.sentences]) for item in reading.items}


TOKENS = "".join(f"{name}.jpg#{n}\t{name} says {n} .\n" for name in ("b", "a", "gone", "loose") for n in range(2))


@pytest.fixture
def flickr(tmp_path):
    source = tmp_path / "source"
    write(source / "Flickr8k.token.txt", TOKENS)
    write(source / "splits" / "train.txt", "b.jpg\n")
    write(source / "splits" / "test.txt", "a.jpg\n")
    draw(source / "images", "a.jpg", "b.jpg", "loose.jpg")
    return source


def test_flickr(flickr):
    reading = read_source("flickr", flickr)
    assert table(reading) == {
        "b": ("train", [("en", "b says 0 .", 0), ("en", "b says 1 .", 1)]),
        "a": ("test", [("en", "a says 0 .", 0), ("en", "a says 1 .", 1)]),
    }
    assert reading.tally.skipped == {"sentences whose image is missing": 2, "sentences whose image is in no split": 2}
    assert reading.tally.examples["sentences whose image is missing"] == ("gone.jpg",)


def test_flickr_in_the_layout_of_the_download(tmp_path):
    write(tmp_path / "Flickr8k.token.txt", TOKENS)
    write(tmp_path / "Flickr_8k.trainImages.txt", "a.jpg\r\n")
    write(tmp_path / "Flickr_8k.devImages.txt", "b.jpg\r\n")
    draw(tmp_path / "Flicker8k_Dataset", "a.jpg", "b.jpg")
    assert {item.id: item.split for item in read_source("flickr", tmp_path).items} == {"a": "train", "b": "val"}


def test_flickr30k_by_its_file_with_lists_without_endings(tmp_path):
    tokens = write(tmp_path / "results_20130124.token", TOKENS)
    write(tmp_path / "lists" / "flickr30k_train.txt", "a\n")
    draw(tmp_path / "pictures", "a.jpg")
    options = ReaderOptions(images=tmp_path / "pictures", splits=tmp_path / "lists", lang="de")
    (item,) = read_source("flickr", tokens, options).items
    assert (item.id, item.split, item.texts("de")) == ("a", "train", ["a says 0 .", "a says 1 ."])


def test_strict_reading_fails_at_the_first_skipped_entry(flickr):
    with pytest.raises(CollectionError, match=r"Flickr8k\.token\.txt:5: 'gone\.jpg': sentences whose image"):
        read_source("flickr", flickr, strict=True)


def test_two_lists_of_a_split_are_refused(flickr):
    write(flickr / "splits/test_list.txt", "a.jpg")
    with pytest.raises(CollectionError, match="the split 'test' has two lists"):
        read_source("flickr", flickr)


MULTI30K = {
    "task1/train.en.gz": "A dog.\nTwo\u2028 cats.\n",
    "task1/train.de.gz": "Ein Hund.\nZwei Katzen.\n",
    "task1/train.images.txt": "10.jpg\n20.jpg\n",
    "task1/test_2016_flickr.en.gz": "A cow.\n",
    "task1/test_2016_flickr.de.gz": "Eine Kuh.\n",
    "task1/test_2016_flickr.images.txt": "30.jpg\n",
    "task2/train.1.en.gz": "A brown dog.\nCats.\n",
    "task2/train.2.en.gz": "A pet.\nPets.\n",
    "task2/train.1.de.gz": "Ein Tier.\nTiere.\n",
    "task2/train.images.txt": "10.jpg\n20.jpg\n",
    "task2/test_2016.1.de": "Die Kuh.\n",
    "task2/test_2016.images.txt": "30.jpg\n",
    "task2/README.md": "About.\n",
}


@pytest.fixture
def multi30k(tmp_path):
    for name, text in MULTI30K.items():
        write(tmp_path / "m" / name, text)
    return tmp_path / "m"


def test_multi30k_task1_lines_translate_each_other(multi30k):
    assert table(read_source("multi30k", multi30k / "task1")) == {
        "10": ("train", [("de", "Ein Hund.", 0), ("en", "A dog.", 0)]),
        "20": ("train", [("de", "Zwei Katzen.", 0), ("en", "Two cats.", 0)]),
        "30": ("test", [("de", "Eine Kuh.", 0), ("en", "A cow.", 0)]),
    }


def test_multi30k_task2_descriptions_are_separate_groups(multi30k):
    items = read_source("multi30k", multi30k / "task2").items
    assert [item.id for item in items] == ["10", "20", "30"]
    groups = [sentence.group for sentence in items[0].sentences]
    assert len(groups) == len(set(groups)) == 3


def test_multi30k_tasks_share_their_items(multi30k, tmp_path):
    import_collection("multi30k", multi30k / "task1", tmp_path / "apart")
    assert import_collection("multi30k", multi30k / "task2", tmp_path / "apart").changes == Changes(0, 3, 0)
    import_collection("multi30k", multi30k, tmp_path / "together")
    apart, together = (Collection.open(tmp_path / name) for name in ("apart", "together"))
    assert apart.fingerprint() == together.fingerprint()
    sentences = together.items("test")[0].sentences
    translated = {sentence.text for sentence in sentences if sentence.group == 0}
    assert translated == {"A cow.", "Eine Kuh."}


def test_multi30k_finds_images_by_their_number_on_flickr(multi30k, tmp_path):
    draw(tmp_path / "p", "10_0a1b2c.jpg", "20.jpg", "30_aa.jpg", "30_bb.jpg", "100_ff.jpg")
    reading = read_source("multi30k", multi30k / "task1", ReaderOptions(images=tmp_path / "p"))
    images = {item.id: item.image and item.image.rpartition("/")[2] for item in reading.items}
    assert images == {"10": "10_0a1b2c.jpg", "20": "20.jpg", "30": None}
    assert reading.tally.skipped == {"images that are missing (their sentences are kept as text)": 1}


def test_multi30k_with_lists_of_splits(multi30k, tmp_path):
    draw(tmp_path / "p", "10_0a1b2c.jpg", "20_cc.jpg")
    write(tmp_path / "s" / "test.txt", "10_0a1b2c.jpg\n")
    options = ReaderOptions(images=tmp_path / "p", splits=tmp_path / "s")
    reading = read_source("multi30k", multi30k / "task1", options)
    assert {item.id: item.split for item in reading.items} == {"10": "test"}
    assert reading.tally.skipped == {"images in none of the lists of splits": 2}


def test_multi30k_image_in_two_splits_is_an_error_that_names_both_lines(multi30k):
    write(multi30k / "task1" / "test_2016_flickr.images.txt", "20.jpg\n")
    message = r"test_2016_flickr\.images\.txt:1: id '20' occurs twice: .*'train' in .*train\.images\.txt:2"
    with pytest.raises(CollectionError, match=message):
        read_source("multi30k", multi30k / "task1")


def test_coco(tmp_path):
    contents = {
        "images": [{"id": 7, "file_name": "COCO_val2014_07.jpg"}, {"id": 8, "file_name": "COCO_val2014_08.jpg"}],
        "annotations": [
            {"image_id": 7, "caption": "A cup.\n"},
            {"image_id": 8, "caption": "Gone."},
            {"image_id": 7, "caption": "A white\n cup."},
            {"image_id": 9, "caption": "Nobody knows."},
        ],
    }
    write(tmp_path / "annotations" / "captions_val2014.json", json.dumps(contents))
    draw(tmp_path / "val2014", "COCO_val2014_07.jpg")
    reading = read_source("coco", tmp_path)
    assert table(reading) == {"COCO_val2014_07": ("val", [("en", "A cup.", 0), ("en", "A white cup.", 1)])}
    assert sorted(reading.tally.skipped.values()) == [1, 1, 1]
    assert read_source("coco", tmp_path, AUTO).items[0].split == assign_split("COCO_val2014_07", AUTO)


CATS_AND_DOGS = ("cats/001.jpg", "dogs/001.jpg")


def coco_of(tmp_path, *names):
    contents = {
        "images": [{"id": number, "file_name": name} for number, name in enumerate(names)],
        "annotations": [{"image_id": number, "caption": f"From {name}."} for number, name in enumerate(names)],
    }
    return write(tmp_path / "captions_val2014.json", json.dumps(contents))


def karpathy_of(tmp_path, *names):
    images = [{"filename": name, "split": "val", "sentences": [{"raw": f"From {name}."}]} for name in names]
    return write(tmp_path / "dataset_x.json", json.dumps({"images": images}))


def karpathy_with_folders_of(tmp_path, *names):
    apart = [name.rpartition("/") for name in names]
    images = [
        {"filepath": folder, "filename": name, "split": "val", "sentences": [{"raw": f"From {folder}/{name}."}]}
        for folder, _, name in apart
    ]
    return write(tmp_path / "dataset_x.json", json.dumps({"images": images}))


def flickr_of(tmp_path, *names):
    write(tmp_path / "splits" / "val.txt", "\n".join(names))
    return write(tmp_path / "x.token.txt", "\n".join(f"{name}#0\tFrom {name}." for name in names))


def multi30k_of(tmp_path, *names):
    write(tmp_path / "val.images.txt", "\n".join(names))
    write(tmp_path / "val.en", "\n".join(f"From {name}." for name in names))
    return tmp_path


def iapr_of(tmp_path, *names):
    for name in names:
        place = tmp_path / "annotations_complete_eng" / name.replace(".jpg", ".eng")
        write(place, ANNOTATION.format(number=name.removesuffix(".jpg"), text=f"From {name}."))
    write(tmp_path / "iaprtc12_val_list.txt", "\n".join(name.removesuffix(".jpg") for name in names))
    return tmp_path


SOURCES = {
    "coco": coco_of,
    "karpathy": karpathy_of,
    "karpathy with folders": karpathy_with_folders_of,
    "flickr": flickr_of,
    "multi30k": multi30k_of,
    "iapr": iapr_of,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_two_images_of_the_same_name_are_an_error_that_names_both(tmp_path, kind):
    draw(tmp_path / "images", *CATS_AND_DOGS)
    source = SOURCES[kind](tmp_path, *CATS_AND_DOGS)
    message = r"'\S*dogs/001\S*' has the item id '001', like '\S*cats/001\S*' in .*; rename one"
    with pytest.raises(CollectionError, match=message):
        read_source(kind.partition(" ")[0], source)


@pytest.mark.parametrize("kind", [kind for kind in SOURCES if kind != "multi30k"])
def test_a_name_with_a_folder_finds_the_image_in_that_folder(tmp_path, kind):
    draw(tmp_path / "images", *CATS_AND_DOGS)
    (item,) = read_source(kind.partition(" ")[0], SOURCES[kind](tmp_path, "dogs/001.jpg")).items
    assert item.image == str(tmp_path / "images" / "dogs" / "001.jpg")
    assert item.texts("en")[0].startswith("From dogs/001.jpg")


@pytest.mark.parametrize("kind", ["coco", "karpathy", "flickr", "multi30k"])
def test_a_name_that_matches_two_images_is_an_error(tmp_path, kind):
    draw(tmp_path / "images", *CATS_AND_DOGS)
    source, options = SOURCES[kind](tmp_path, "001.jpg"), ReaderOptions(images=tmp_path / "images")
    with pytest.raises(CollectionError, match=r"'001\.jpg' may be \S*cats/001\.jpg or \S*dogs/001\.jpg; specify"):
        read_source(kind, source, options)
    draw(tmp_path / "images", "001.jpg")  # right where the name leads
    (item,) = read_source(kind, source, options).items
    assert item.image == str(tmp_path / "images" / "001.jpg")


def test_a_name_with_another_folder_finds_nothing(tmp_path):
    draw(tmp_path / "images", "cats/001.jpg")
    source = coco_of(tmp_path, "dogs/001.jpg", "val2014/002.jpg")
    draw(tmp_path / "images", "002.jpg")  # below the folder that the name begins with
    reading = read_source("coco", source)
    assert [item.id for item in reading.items] == ["002"]
    assert reading.tally.examples["images that are missing"] == ("dogs/001.jpg",)


def test_karpathy(tmp_path):
    def image(name, split, *texts):
        return {"filename": name, "split": split, "sentences": [{"raw": text, "tokens": []} for text in texts]}

    images = [image("a.jpg", "restval", "One.", "Two."), image("b.jpg", "test", "Three."), image("c.jpg", "val", "")]
    write(tmp_path / "dataset_coco.json", json.dumps({"images": images}))
    draw(tmp_path / "images", "a.jpg", "b.jpg")
    reading = read_source("karpathy", tmp_path)
    first = ("train", [("en", "One.", 0), ("en", "Two.", 1)])
    assert table(reading) == {"a": first, "b": ("test", [("en", "Three.", 0)])}
    assert reading.tally.skipped == {"images that are missing": 1}


ANNOTATION = """<DOC>
<DOCNO>annotations/{number}.eng</DOCNO>
<TITLE>Café & more</TITLE>
<DESCRIPTION>{text}</DESCRIPTION>
<IMAGE>images/{number}.jpg</IMAGE>
</DOC>
"""


def test_iapr(tmp_path):
    expected = {"00/25": "a café & a bar; two palms;", "00/26": "a man;", "01/1000": "a hill; a lake;"}
    for number, text in expected.items():
        annotation = ANNOTATION.format(number=number, text=text)
        write(tmp_path / f"annotations_complete_eng/{number}.eng", annotation, "latin-1")
    for number, text in {"00/25": "ein Café; zwei Palmen", "01/1000": "ein Hügel mit See"}.items():
        annotation = ANNOTATION.format(number=number, text=text)
        write(tmp_path / f"annotations_complete_ger/{number}.ger", annotation, "latin-1")
    draw(tmp_path / "images", "00/25.jpg", "01/1000.jpg")
    write(tmp_path / "iaprtc12_train_list.txt", "00/25\n00/26\n")
    write(tmp_path / "iaprtc12_test_list.txt", "01/1000\n")
    reading = read_source("iapr", tmp_path)
    aligned = [("en", "a café & a bar", 0), ("en", "two palms", 1), ("de", "ein Café", 0), ("de", "zwei Palmen", 1)]
    apart = [("en", "a hill", 0), ("en", "a lake", 1), ("de", "ein Hügel mit See", 2)]
    assert table(reading) == {"25": ("train", aligned), "1000": ("test", apart)}
    assert reading.tally.skipped == {"images that are missing": 1}


def test_whole_descriptions_of_iapr_are_one_sentence_with_semicolons_as_tokens(tmp_path):
    """Kiros et al. (2014) print descriptions with " ; " (Figures 3 to 7); Mao et al. (2015) split them."""
    draw(tmp_path / "images", "00/25.jpg")
    write(tmp_path / "iaprtc12_train_list.txt", "00/25\n")
    for folder, ending, text in (("eng", "eng", "a café;two palms;"), ("ger", "ger", "ein Café")):
        annotation = ANNOTATION.format(number="00/25", text=text)
        write(tmp_path / f"annotations_complete_{folder}/00/25.{ending}", annotation, "latin-1")
    whole = read_source("iapr", tmp_path, ReaderOptions(descriptions="whole"))
    assert table(whole) == {"25": ("train", [("en", "a café ; two palms ;", 0), ("de", "ein Café", 0)])}
    for settings in ({"tokenise": "moses"}, {"tokenise": "unicode"}):
        words = split_words(whole.items[0].sentences[0].text, TextSettings.parse(settings))
        assert words == ["a", "café", ";", "two", "palms", ";"]
    split = read_source("iapr", tmp_path, ReaderOptions(descriptions="split"))
    assert split.items == read_source("iapr", tmp_path).items
    assert [text for _, text, _ in table(split)["25"][1]] == ["a café", "two palms", "ein Café"]
    with pytest.raises(CollectionError, match="'csv' does not support the option 'descriptions'"):
        read_source("csv", tmp_path, ReaderOptions(descriptions="whole"))


def rows(*values):
    return "\n".join(["id,split,image,lang,text", *values]) + "\n"


@pytest.fixture
def dog(tmp_path):
    draw(tmp_path, "p/dog.png")
    return tmp_path


def test_csv(dog):
    text = rows("1,train,p/dog.png,en,a dog", '1,train,p/dog.png,de,"ein Hund, süß"', "1,train,p/dog.png,en,a pet")
    text += "2,val,,fr,un chat\n\n3,val,p/gone.png,en,gone\n4,val,,,\n"
    reading = read_source("csv", write(dog / "t.csv", "\ufeff" + text))
    assert table(reading) == {
        "1": ("train", [("en", "a dog", 0), ("de", "ein Hund, süß", 0), ("en", "a pet", 1)]),
        "2": ("val", [("fr", "un chat", 0)]),
        "4": ("val", []),
    }
    assert reading.items[0].image == str(dog / "p/dog.png")
    assert reading.items[1].image is None
    assert reading.tally.skipped == {"images that are missing": 1, "sentences whose image is missing": 1}


def test_tables_agree(dog):
    records = [
        {"id": 1, "split": "train", "image": "dog.png", "lang": "en", "text": "a dog", "group": 4, "label": "x"},
        {"id": 2, "split": "train", "image": None, "lang": "en", "text": "a cat", "group": 0, "label": None},
    ]
    lines = "\n".join(json.dumps(record) for record in records)
    tabs = "id\tsplit\timage\tlang\ttext\tgroup\tlabel\n"
    tabs += "1\ttrain\tdog.png\ten\ta dog\t4\tx\n2\ttrain\t\ten\ta cat\t\t\n"
    options = ReaderOptions(images=dog / "p")
    first = read_source("jsonl", write(dog / "t.jsonl", lines), options).items
    assert first == read_source("csv", write(dog / "t.tsv", tabs), options).items
    assert first[0].label == "x"
    assert first[0].sentences == (ItemSentence("en", "a dog", 4),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,split,image,text\n1,train,,x\n", r"t\.csv:1: columns are missing: lang; expected split, image"),
        ("id,image,text\n1,,x\n", r"columns are missing: split, lang; .*; without a column 'split' .* --split auto"),
        (
            "sentence,class\nfine,good\n",
            r"t\.csv:1: expected text and label \(labelled texts\), or image, lang and text "
            r"\(image may be empty, with an id\); found sentence, class",
        ),
        ("split,text\n1,x\n", r"text and label .*; found split, text$"),
    ],
)
def test_invalid_csv_files_are_refused(tmp_path, text, message):
    with pytest.raises(CollectionError, match=message):
        read_source("csv", write(tmp_path / "t.csv", text))


def test_a_table_without_ids_and_splits_uses_image_names_and_assigned_splits(dog):
    path = write(dog / "t.csv", "image,lang,text\np/dog.png,en,a dog\np/dog.png,en,a pet\n")
    expected = [("en", "a dog", 0), ("en", "a pet", 1)]
    assert table(read_source("csv", path, ReaderOptions(split="val"))) == {"p/dog": ("val", expected)}
    lines = (
        '{"image": "p/dog.png", "lang": "en", "text": "a dog"}\n{"image": "p/dog.png", "lang": "en", "text": "a pet"}'
    )
    path = write(dog / "t.jsonl", lines)
    assert table(read_source("jsonl", path, ReaderOptions(split="auto"))) == {
        "p/dog": (assign_split("p/dog", AUTO), expected)
    }
    path = write(dog / "own.csv", rows("1,val,,en,a", "2,,,en,b"))
    assert table(read_source("csv", path, ReaderOptions(split="test"))) == {
        "1": ("val", [("en", "a", 0)]),
        "2": ("test", [("en", "b", 0)]),
    }


def test_a_table_separated_by_semicolons(tmp_path):
    path = write(tmp_path / "t.csv", "id;split;image;lang;text\n1;train;;en;A dog, running.\n")
    assert table(read_source("csv", path)) == {"1": ("train", [("en", "A dog, running.", 0)])}


def test_folder(tmp_path):
    draw(tmp_path, "b.png", "train/a.jpg", "dev/c.jpg", "other/d.JPG", ".hidden/e.jpg")
    write(tmp_path / "train" / "a.txt", "ein Tier\nnoch eines\n")
    assert table(read_source("folder", tmp_path, ReaderOptions(lang="de", split="test"))) == {
        "b": ("test", []),
        "dev/c": ("val", []),
        "other/d": ("test", []),
        "train/a": ("train", [("de", "ein Tier", 0), ("de", "noch eines", 1)]),
    }


def test_an_empty_text_file_of_an_image_is_skipped(tmp_path):
    draw(tmp_path, "a.png", "b.png")
    write(tmp_path / "a.txt", " \n")
    write(tmp_path / "b.txt", "a dog\n")
    reading = read_source("folder", tmp_path)
    assert table(reading) == {"a": ("train", []), "b": ("train", [("en", "a dog", 0)])}
    assert reading.tally.skipped == {"empty text files (the images are kept)": 1}


def test_a_folder_without_images_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(
        CollectionError, match=r"no images and no videos below this folder .*; specify a folder of images or videos"
    ):
        read_source("folder", tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "s.wav").write_bytes(b"")
    with pytest.raises(
        CollectionError,
        match="no images and no videos below this folder, but audio files; choose a reader of audio files",
    ):
        read_source("folder", tmp_path)


def test_an_import_with_other_splits_is_an_error_with_a_remedy(tmp_path):
    draw(tmp_path / "p", *(f"{n}.png" for n in range(20)))
    import_collection("folder", tmp_path / "p", tmp_path / "c", AUTO)
    with pytest.raises(CollectionError, match=r"its split is .*\(repeat --split auto if it was used before\)"):
        import_collection("folder", tmp_path / "p", tmp_path / "c")


@pytest.mark.parametrize("copy", [False, True])
def test_import_is_idempotent_and_image_paths_exist(flickr, tmp_path, copy):
    target = tmp_path / "deep" / "collection"
    progress_calls = []
    progress = lambda done, total: progress_calls.append((done, total))  # noqa: E731
    report = import_collection("flickr", flickr, target, copy=copy, on_progress=progress)
    assert (report.items, report.sentences, report.changes) == (2, 4, Changes(2, 0, 0))
    assert any("skipped 2 sentences whose image is missing" in line for line in report.lines())
    collection = Collection.open(target)
    again = import_collection("flickr", flickr, target, copy=copy)
    assert again.changes == Changes(0, 0, 2)
    assert Collection.open(target).fingerprint() == collection.fingerprint()
    for item in collection.items():
        assert collection.image_path(item).samefile(flickr / "images" / f"{item.id}.jpg") is not copy
        assert collection.image_path(item).read_bytes() == (flickr / "images" / f"{item.id}.jpg").read_bytes()
        assert item.image.startswith("images/") is copy
    assert progress_calls == ([(1, 2), (2, 2)] if copy else [])


def test_import_by_reference_through_a_link(flickr, tmp_path):
    (tmp_path / "real" / "place").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "place")
    import_collection("flickr", flickr, tmp_path / "link" / "c")
    collection = Collection.open(tmp_path / "link" / "c")
    assert all(collection.image_path(item).is_file() for item in collection.items())


def test_an_interrupted_import_leaves_no_files(flickr, tmp_path):
    def interrupt(done, total):
        raise KeyboardInterrupt

    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        import_collection("flickr", flickr, tmp_path / "c", copy=True, on_progress=interrupt)
    assert sorted(tmp_path.iterdir()) == before


def test_automatic_splits_depend_on_image_names_only() -> None:
    ids = [f"photo{number}" for number in range(2000)]
    splits = Counter(assign_split(id, AUTO) for id in ids)
    assert splits.keys() == {"train", "val", "test"}
    assert 0.77 < splits["train"] / 2000 < 0.83
    assert min(splits["val"], splits["test"]) > 150
    assert assign_split("photo7", ReaderOptions()) == "train"
    assert assign_split("photo7", ReaderOptions(split="museum")) == "museum"
