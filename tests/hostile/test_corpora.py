"""Sources that are empty, damaged, contradictory or forged, to every reader of `limner import`."""

import json

from cases import case, check_all
from damage import each, every, folder, jpeg, nested, remove, truncate

KINDS = (
    *("flickr", "multi30k", "coco", "karpathy", "iapr", "visual-genome", "flickr30k-entities"),
    *("jsonl", "csv", "folder", "audio", "imdb", "rt-polarity"),
    *("webdataset", "parquet", "datasets"),
)
CSV = "id,split,image,lang,text\n"
ROW = "1,train,photos/0.jpg,en,a red square\n"

test_any_reader = check_all(
    *(case(f"import {kind} gone new", "gone", "exist") for kind in KINDS),
    *(case(f"import {kind} empty new", "empty", files={"empty": folder}) for kind in KINDS),
    *(case(f"import {kind} notes.txt new") for kind in KINDS if kind not in ("folder", "audio")),
    *(case(f"import {kind} photos new", "photos") for kind in KINDS if kind != "folder"),
    case("import flickr8k photos new", "flickr8k", "flickr"),
    case("import '' photos new", "''"),
    case("import csv captions.csv new --images gone", "gone"),
    case("import csv captions.csv new --splits photos", "splits"),
    case("import csv captions.csv new --lang ''", "lang"),
    case("import folder photos new --lang '../x'", "lang"),
    case("import folder photos", "collection", status=2),
    case("import", "kind", status=2),
)


def table(kind, name, *cases):
    return [case(f"import {kind} {name} new", *names, files={name: text}) for text, *names in cases]


test_tables = check_all(
    *table(
        "csv",
        "t.csv",
        ("", "t.csv", "empty"),
        ("\n\n\n", "t.csv", "empty"),
        ("\0\0\0\0", "t.csv"),
        (b"\xff\xfe\x00\x01", "t.csv", "UTF-8"),
        (CSV.encode() + b"1,train,photos/0.jpg,en,caf\xe9\n", "t.csv:2", "UTF-8"),
        (CSV, "t.csv", "no items"),
        ("id;split;image;lang;text\n1;train\n", "t.csv:2"),
        (CSV + "1,train\n", "t.csv:2"),
        (CSV + ROW.replace("\n", ",more,columns\n"), "t.csv:2"),
        ("id,split,image,lang,text,text\n" + ROW, "t.csv", "text"),
        ("id,image,lang,text\n1,photos/0.jpg,en,x\n", "split"),
        ("a,b,c\n1,2,3\n", "a, b, c"),
        (CSV + '1,train,photos/0.jpg,en,"unclosed\n', "t.csv"),
        (CSV + ROW + ROW.replace("train", "val"), "t.csv:3", "split", "val"),
        (CSV + ROW + ROW.replace("0.jpg", "1.jpg"), "t.csv:3", "image"),
        (CSV + ROW.replace(",en,", ",,"), "t.csv:2", "lang"),
        (CSV + ROW.replace("photos/0.jpg", "gone.jpg"), "t.csv", "missing"),
        ("id,split,image,lang,text,group\n" + ROW.replace("\n", ",x\n"), "t.csv:2", "group", "x"),
        ("id,split,image,lang,text,group\n" + ROW.replace("\n", f",{'9' * 30}\n"), "t.csv:2", "group", "999"),
        (CSV + f"1,train,photos/0.jpg,en,{'x' * 300_000}\n", "t.csv", "field"),
        (CSV + "1,train,photos/0.jpg\0.png,en,x\n", "t.csv"),
    ),
    *table(
        "jsonl",
        "t.jsonl",
        ("", "t.jsonl", "empty"),
        ("nothing\n", "t.jsonl:1", "JSON"),
        ("[]\n", "t.jsonl:1", "object"),
        ("null\n", "t.jsonl:1", "object"),
        ("{}\n", "t.jsonl:1"),
        ('{"id":1\n', "t.jsonl:1", "JSON"),
        (
            '{"id":"1","id":"2","split":"train","image":"photos/0.jpg","lang":"en","text":"x"}\n',
            "t.jsonl:1",
            "id",
            "twice",
        ),
        ('{"id":["1"],"split":"train","image":"photos/0.jpg","lang":"en","text":"x"}\n', "t.jsonl:1", "id"),
        ('{"id":"1","split":"train","image":{"a":1},"lang":"en","text":"x"}\n', "t.jsonl:1", "image"),
        ('{"id":"1","split":"train","image":"photos/0.jpg","lang":"en","text":-Infinity}\n', "t.jsonl:1", "text"),
        (nested("[", "]") + "\n", "t.jsonl:1", "64"),
        (nested('{"a":', "}", 5000).replace(":}", ":1}") + "\n", "t.jsonl:1", "64"),
        ("9" * 5000 + "\n", "t.jsonl:1"),
        ('{"id":"\\ud800","split":"train","image":"photos/0.jpg","lang":"en","text":"x"}\n', "t.jsonl:1"),
        ('{"id":"1","split":"train","image":"photos/0.jpg","lang":"en","text":"\\ud83d"}\n', "t.jsonl:1"),
        ('{"id":"1","split":"train","image":"photos/\\u0000.jpg","lang":"en","text":"x"}\n', "t.jsonl"),
    ),
)

IMAGE = {"id": 1, "file_name": "0.jpg"}
CAPTION = {"image_id": 1, "caption": "a red square"}
KARPATHY = {"filename": "0.jpg", "split": "train", "sentences": [{"raw": "a red square"}]}


def documents(kind, name, *cases, options="--images photos"):
    return [
        case(
            f"import {kind} {name} new {options}",
            *names,
            files={name: text if isinstance(text, str) else json.dumps(text)},
        )
        for text, *names in cases
    ]


test_documents = check_all(
    *documents(
        "coco",
        "captions_train.json",
        ("", "captions_train.json", "empty"),
        ("[]", "captions_train.json", "images"),
        ("{", "captions_train.json:1", "JSON"),
        ("{}", "captions_train.json", "images"),
        ({"images": []}, "captions_train.json", "annotations"),
        ({"images": [1], "annotations": []}, "images[0]", "file_name"),
        ({"images": [{"id": 1}], "annotations": []}, "images[0]", "file_name"),
        ({"images": [{**IMAGE, "id": "1"}], "annotations": []}, "images[0]", "'id'", "'1'"),
        ({"images": [IMAGE], "annotations": [{"image_id": 1}]}, "annotations[0]", "caption"),
        ({"images": [IMAGE], "annotations": [{**CAPTION, "caption": 3}]}, "annotations[0]", "caption", "3"),
        ({"images": [IMAGE, {**IMAGE, "file_name": "1.jpg"}], "annotations": [CAPTION]}, "images[1]", "id"),
        ({"images": [{**IMAGE, "file_name": "gone.jpg"}], "annotations": [CAPTION]}, "missing"),
        ({"images": [{**IMAGE, "file_name": "/etc/passwd"}], "annotations": [CAPTION]}, "missing"),
        ({"images": [{**IMAGE, "file_name": "../../../../etc/passwd"}], "annotations": [CAPTION]}, "missing"),
        ('{"images": [], "images": [], "annotations": []}', "images", "twice"),
        (nested("[", "]"), "captions_train.json", "64"),
    ),
    *documents(
        "karpathy",
        "dataset_x.json",
        ("{}", "dataset_x.json", "images"),
        ({"images": [{**KARPATHY, "split": 7}]}, "images[0]", "split"),
        ({"images": [{**KARPATHY, "split": "../evil"}]}, "../evil"),
        ({"images": [{**KARPATHY, "sentences": "x"}]}, "images[0]", "sentences"),
        ({"images": [{**KARPATHY, "sentences": [{}]}]}, "images[0]", "raw"),
        ({"images": [KARPATHY, {**KARPATHY, "split": "val"}]}, "images[1]", "split"),
        ({"images": [{**KARPATHY, "filepath": ["x"]}]}, "images[0]", "filepath"),
    ),
    *documents(
        "visual-genome",
        "region_descriptions.json",
        ("3", "region_descriptions.json", "list"),
        ([{"regions": []}], "[0]", "id"),
        ([{"id": 0}], "[0]", "regions"),
        ([{"id": 0, "regions": [{"x": 1}]}], "[0].regions[0]", "y"),
        ([{"id": 0, "regions": [{"x": 1, "y": 1, "width": "w", "height": 1, "phrase": "x"}]}], "width", "w"),
        ('[{"id": 0, "regions": [{"x": NaN, "y": 1, "width": 2, "height": 1, "phrase": "x"}]}]', "x"),
        ('[{"id": 0, "regions": [{"x": 1e400, "y": 1, "width": 2, "height": 1, "phrase": "x"}]}]', "x"),
        ([{"id": 0, "regions": [{"x": 1, "y": 1, "width": 2, "height": 1, "phrase": 3}]}], "phrase"),
    ),
    *documents(
        "flickr30k-entities",
        "e.jsonl",
        ("{}", "e.jsonl:1", "boxes"),
        ({"boxes": {}, "sentences": []}, "e.jsonl:1", "image"),
        ({"boxes": {}, "sentences": [], "image": "0.jpg", "split": "train", "width": 0, "height": 3}, "width", "0"),
        (
            {"boxes": {"1": [[1, 2]]}, "sentences": [], "image": "0.jpg", "split": "train", "width": 4, "height": 3},
            "box",
        ),
        ({"boxes": {"1": 5}, "sentences": [], "image": "0.jpg", "split": "train", "width": 4, "height": 3}, "'1' is 5"),
        (
            '{"boxes":{"1":[[NaN,1,2,3]]},"sentences":[],"image":"0.jpg","split":"train","width":4,"height":3}',
            "box",
            "nan",
        ),
        (
            {"boxes": {}, "sentences": [{"text": "x"}], "image": "0.jpg", "split": "t", "width": 4, "height": 3},
            "phrases",
        ),
    ),
)

ENTITIES = "<annotation><size><width>40</width><height>30</height></size>{}</annotation>"
BOX = "<object><name>1</name><bndbox><xmin>{}</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax></bndbox></object>"
LAUGHS = (
    "<!DOCTYPE a ["
    + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10 if n else "ha" * 10}">' for n in range(9))
    + "]><annotation>&a8;</annotation>"
)

test_corpora = check_all(
    *(
        case("import flickr f new", "f", *names, files={"f/images/1.jpg": jpeg(), "f/x.token.txt": tokens, **more})
        for tokens, more, *names in (
            ("", {"f/train.txt": "1.jpg\n"}, "x.token.txt"),
            ("1.jpg a dog\n", {"f/train.txt": "1.jpg\n"}, "x.token.txt:1", "1.jpg a dog"),
            ("1.jpg#x\ta dog\n", {"f/train.txt": "1.jpg\n"}, "x.token.txt:1"),
            ("1.jpg#0\ta dog\n", {}, "train"),
            ("1.jpg#0\ta dog\n", {"f/train.txt": ""}, "train.txt"),
            ("1.jpg#0\ta dog\n", {"f/train.txt": "1.jpg\n", "f/val.txt": "1.jpg\n"}, "1", "val"),
            ("1.jpg#0\ta dog\n", {"f/train.txt": "2.jpg\n"}, "missing"),
            ("1.jpg#0\ta dog\n", {"f/train.txt": "1.jpg\n", "f/y.token.txt": "1.jpg#0\ta dog\n"}, "y.token.txt"),
            (b"1.jpg#0\t\xff\n", {"f/train.txt": "1.jpg\n"}, "x.token.txt:1", "UTF-8"),
        )
    ),
    *(
        case("import multi30k m new", *names, files={f"m/{name}": text for name, text in files.items()})
        for files, *names in (
            ({"train.en": "a\nb\n"}, "train.images.txt"),
            ({"train.en": "a\nb\n", "train.images.txt": "1.jpg\n"}, "train.images.txt:1", "train.en"),
            ({"train.en": "a\n", "train.de": "a\nb\n", "train.images.txt": "1.jpg\n"}, "train.de"),
            ({"train.en.gz": b"\x1f\x8bbroken", "train.images.txt": "1.jpg\n"}, "train.en.gz"),
            ({"train.en.gz": b"no gzip", "train.images.txt": "1.jpg\n"}, "train.en.gz"),
        )
    ),
    *(
        case(
            "import iapr i new",
            *names,
            files={"i/annotations_complete_eng/00/1.eng": xml, "i/train.txt": "00/1\npasswd\n"},
        )
        for xml, *names in (
            ("", "1.eng", "DESCRIPTION"),
            ("<DESCRIPTION>x</DESCRIPTION>", "1.eng", "IMAGE"),
            ("<?xml version='1.0' encoding='klingon'?><IMAGE>1</IMAGE>", "1.eng", "klingon"),
            ("<DESCRIPTION>x</DESCRIPTION><IMAGE>../../../etc/passwd</IMAGE>", "missing"),
        )
    ),
    *(
        case(
            "import flickr30k-entities e new --images photos --split train",
            *names,
            files={"e/Annotations/0.xml": xml, "e/Sentences/0.txt": "[/EN#1/people A man] rides .\n"},
        )
        for xml, *names in (
            ("", "0.xml"),
            ("<a>", "0.xml", "XML"),
            (LAUGHS, "0.xml"),
            ('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation>&x;</annotation>', "0.xml"),
            (ENTITIES.format(BOX.format("x")), "0.xml", "xmin", "x"),
            (ENTITIES.format(BOX.format("nan")), "0.xml", "xmin", "nan"),
            (ENTITIES.format("").replace("40", "-40"), "0.xml", "width", "-40"),
            (ENTITIES.format("").replace("40", "inf"), "0.xml", "width", "inf"),
        )
    ),
    *(
        case("import imdb i new", *names, files={f"i/{name}": text for name, text in files.items()})
        for files, *names in (
            ({"train/pos/1.txt": ""}, "1.txt"),
            ({"train/pos/1.txt": b"\xff"}, "1.txt", "UTF-8"),
            ({"train/unsup/1.txt": "x"}, "label"),
            ({"train/1.txt": "x"}, "i"),
        )
    ),
    case("import rt-polarity r new", "r", files={"r/a.pos": "x\n", "r/b.neg": "x\n"}),
    case("import rt-polarity r new", "r", files={"r/a.pos": "x\n"}),
    case("import rt-polarity r new", "a.neg", files={"r/a.pos": "x\n", "r/a.neg": ""}),
    case("import folder f new", "0", files={"f/0.jpg": jpeg(), "f/0.png": jpeg()}),
    case("import folder f new", "0.txt", "UTF-8", files={"f/0.jpg": jpeg(), "f/0.txt": b"\xff\xfe"}),
    case("import folder f new --strict", "0.txt", "empty", files={"f/0.jpg": jpeg(), "f/0.txt": ""}),
    case("import folder f new", "a folder", files={"f/0.jpg": folder, "f/0.jpg/x": "x"}),
    case("import audio f new", "f", files={"f/0.jpg": jpeg()}),
)

test_existing_collections = check_all(
    case(
        "import csv t.csv c --split train",
        "train-00000",
        files={"t.csv": "id,image,lang,text\ntrain-00000,photos/0.jpg,en,x\n"},
    ),
    case("import csv captions.csv new", "new", files={"new/mine.txt": "x"}, status=0, creates="new"),
    case("import csv captions.csv reviews", "3 new", status=0, creates="reviews"),
    case("import csv captions.csv c", "items.lance", files={"c/items.lance/": each("data/*.lance", remove)}),
)

test_what_is_left_out_is_reported = check_all(
    case(
        "import folder f new", "orphan.txt", files={"f/0.jpg": jpeg(), "f/orphan.txt": "x\n"}, status=0, creates="new"
    ),
    case("import folder f new", "2 items", files={"f/0.jfif": jpeg(), "f/1.jpg": b"x"}, status=0, creates="new"),
    case("import folder f new", "2 items", files={"f/0.JPG": jpeg(), "f/1.JPEG": jpeg()}, status=0, creates="new"),
    case("import folder f new", files={"f/0.heic": b"x", "f/1.jpg": jpeg()}, status=0, creates="new"),
    case("import folder f new", "0.docx", files={"f/0.docx": b"x", "f/1.jpg": jpeg()}, status=0, creates="new"),
    case(
        "import csv t.csv new",
        "1 items without sentences",
        files={"t.csv": CSV + ROW + ROW.replace("a red square", "").replace("1,", "2,", 1)},
        status=0,
        creates="new",
    ),
    case(
        "import csv t.csv new",
        "other",
        files={"t.csv": CSV.replace("\n", ",other\n") + ROW.replace("\n", ",1\n")},
        status=0,
        creates="new",
    ),
    case(
        "import coco captions_train.json new --images photos",
        "skipped 1",
        files={
            "captions_train.json": json.dumps({"images": [IMAGE], "annotations": [CAPTION, {**CAPTION, "image_id": 9}]})
        },
        status=0,
        creates="new",
    ),
)


INDEX = "index c --model captioner"
SEARCH = "search 'a red ball' --model captioner --collection c"
RECORD = "c/indexes/captioner/all/index.json"

test_indexes_of_collections = check_all(
    case(INDEX, "24 images", "built", status=0, creates="c/indexes"),
    case(f"{INDEX} --json", '"images": 24', status=0, creates="c/indexes"),
    case("index c", "--model"),
    case("index c --model nowhere", "nowhere"),
    case("index c --model translator", "translat"),
    case(f"{INDEX} --split ../c", "../c"),
    case(f"{INDEX} --index notes.txt/index", "notes.txt"),
    case(f"{INDEX} --index mine --rebuild", "mine", "expected an index", files={"mine/notes.txt": "mine"}),
    case("index photos --model captioner --split test", "--split"),
    case(INDEX, "index.json", "--rebuild", files={RECORD: "{"}),
    case(SEARCH, "index.json", "--rebuild", files={RECORD: "{"}),
    case(SEARCH, "index.json", "version", "--rebuild", files={RECORD: '{"version": 7}'}),
    case(SEARCH, "index.json", "--rebuild", files={RECORD: b"\xff\x00"}),
    case(SEARCH, "captioner", "--rebuild", files={"c/indexes/captioner/all": folder}),
    case(f"{SEARCH} --index nowhere", "nowhere", "limner index"),
    case(f"{SEARCH} --exact --slack 1", "--slack"),
    case("search photos/0.jpg --model captioner --collection c --exact", "--exact"),
    case(f"{SEARCH} --exact", status=0, files={RECORD: "{"}),
)

test_compaction = check_all(
    case("compact c", "items: 1 -> 1 fragments", status=0, creates="c"),
    case("compact c --json", '"fragments_after": 1', status=0, creates="c"),
    case("compact nowhere", "nowhere", "limner import"),
    case("compact notes.txt", "notes.txt"),
    case("compact photos", "photos", "not a collection"),
    case("compact captioner", "captioner", "not a collection"),
    case("compact c --older-than -1", "--older-than", "-1", status=2),
    case("compact c --older-than nan", "--older-than", "nan", status=2),
    case("compact c --older-than week", "--older-than", "week", status=2),
    case("compact ftp://host/c", "ftp", "s3"),
    case("compact empty", "items.lance", "damaged", files={"empty/items.lance/data/a.lance": b""}),
    case(
        "compact c",
        "pixels16",
        files={"c/features/pixels16.lance/": every("_versions/*.manifest", truncate(0.5))},
        creates="c",
    ),
)
