"""Folders of images with hostile files, names and indexes."""

from __future__ import annotations

import shutil
from pathlib import Path

from cases import case, check, check_all
from damage import fifo, link

INDEX = "index photos --model captioner"
SEARCH = "search 'a red ball' --in photos"
XMP = '<x:xmpmeta xmlns:x="adobe:ns:meta/">{}</x:xmpmeta>'

test_folders = check_all(
    case(INDEX, "3 images", status=0, creates="photos/.limner"),
    case(
        INDEX, "3 images", files={"photos/pipe.jpg": fifo, "photos/loop": link(".")}, status=0, creates="photos/.limner"
    ),
    case("index photos/0.jpg --model captioner", "photos/0.jpg", "folder"),
    case("index nowhere --model captioner", "nowhere", "folder"),
    case("index empty --model captioner", "empty", "no image", files={"empty/notes.txt": "x"}),
    case("index photos --model captioner --lang de", "captioner"),
    case("index photos --model captioner --index notes.txt/index", "--index"),
    case(SEARCH, "limner index photos"),
    case(f"{SEARCH} --model captioner", "--model", "--collection"),
    case("search 'a red ball' --in nowhere", "nowhere", "folder"),
    case("search 'a red ball' --in photos --collection c", "--collection"),
    case("search 'a red ball' --collection c --model captioner --sheet s.png", "--in FOLDER"),
    case("search 'a red ball'", "--in FOLDER"),
    case(SEARCH, "index.json", "--rebuild", files={"photos/.limner/index.json": "{"}),
    case(SEARCH, "index.json", "version", "--rebuild", files={"photos/.limner/index.json": '{"version": 7}'}),
    case(INDEX, "index.json", "--rebuild", files={"photos/.limner/index.json": b"\xff\x00"}),
    case("describe photos/0.jpg --model captioner --replace", "--write"),
    case(
        "describe photos/0.jpg --model captioner --write xmp",
        "0.jpg.xmp",
        "DOCTYPE",
        files={"photos/0.jpg.xmp": '<!DOCTYPE x [<!ENTITY a "b">]>' + XMP.format("&a;")},
    ),
    case(
        "describe photos/0.jpg --model captioner --write xmp --replace",
        "0.jpg.xmp",
        "RDF",
        files={"photos/0.jpg.xmp": XMP.format("")},
    ),
    case("describe anim.gif --model captioner --embed", "anim.gif", "JPEG", files={"anim.gif": b"GIF89a"}),
)


def test_an_index_of_another_model_is_named(work: Path) -> None:
    check(case(INDEX, status=0, creates="photos/.limner"), work)
    shutil.copytree(work / "captioner", work / "other")
    check(case("index photos --model other", "3 unchanged", status=0, creates="photos/.limner"), work)
    check(case("index photos --model dense", "photos/.limner", "captioner", "--model", "--rebuild"), work)
    check(case(SEARCH, "photos/0.jpg", status=0), work)
