"""Indexes of collections that are damaged, of something else, or named wrongly."""

from __future__ import annotations

from pathlib import Path

from cases import Case, case, check, for_all
from damage import folder

INDEX = "index c --model captioner"
SEARCH = "search 'a red ball' --model captioner --collection c"
RECORD = "c/indexes/captioner/all/index.json"


@for_all(
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
def test_indexes_of_collections(case: Case, work: Path) -> None:
    check(case, work)
