"""Indexes and compaction of collections that are damaged, of something else, or named wrongly."""

from cases import case, check_all
from damage import every, folder, truncate

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
