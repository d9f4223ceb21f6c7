"""Names that leave their folder, carry control characters, or name nothing; members of a collection that leave it."""

from cases import case, check_all
from damage import fifo, folder, jpeg, link

CSV = "id,split,image,lang,text\n"
IMPORT = "import csv {} new"
ROW = "train,photos/0.jpg,en,a red square\n"
TRAVERSALS = ("../../../evil", "/etc/evil", "a/b", "..", ".", "", "a\\nb", "x" * 300, "con\ttrol")

test_names_of_splits_and_tables = check_all(
    *(
        case(f"evaluate --model captioner --collection c --no-retrieval --split '{name}'", "split")
        for name in TRAVERSALS
    ),
    *(case(f"diagnose --model translator --collection c --split '{name}'", "split") for name in TRAVERSALS[:5]),
    *(case(f"features c --backbone pixels:8 --name '{name}'", "name") for name in TRAVERSALS),
    *(
        case(f"train scenes/mrnn --collection c --out new 'data.test={name}' features.tables=[pixels16]", "data.test")
        for name in TRAVERSALS[:5]
    ),
    *(
        case(f"train scenes/mrnn --collection c --out new 'features.tables=[\"{name}\"]'", "feature")
        for name in TRAVERSALS[:4]
    ),
    *(case(f"import csv captions.csv new --split '{name}'", "split") for name in ("../evil", "a/b", "..", "")),
    case("show c --split ../c --sheet new.png", "../c", "'train' (16)"),
    case("show c --split \"x' OR 'a'='a\" --sheet new.png", "OR", "'train' (16)"),
    case("search 'a red ball' --model captioner --collection c --split ../c", "../c"),
    case("gradients --model captioner --split ../../x", "../../x"),
    case("compare captioner dense --split ../config", "../config"),
    case("translate --model translator --collection c --split ../../x", "../../x"),
    case("kmeans c --out f.safetensors --split ../../x", "../../x"),
    case("features c --backbone pixels:8 --split ../../x", "../../x"),
    case("words ../../x --model captioner", "'x'"),
)

test_members_stay_in_the_collection = check_all(
    *(
        case(IMPORT.format("t.csv"), word, files={"t.csv": CSV + row})
        for row, word in (
            ("1,../../evil," + ROW.split(",", 1)[1], "split"),
            ("1,a/b," + ROW.split(",", 1)[1], "split"),
            ("1,..," + ROW.split(",", 1)[1], "split"),
            ("1,," + ROW.split(",", 1)[1], "split"),
            (f"1,{'x' * 300}," + ROW.split(",", 1)[1], "split"),
            ("," + "train,,en,text\n", "id"),
        )
    ),
    *(
        case("import csv t.csv new --copy", "not copied", files={"t.csv": CSV + f"1,train,{path},en,hi\n"})
        for path in ("/etc/passwd", "../../../../../../../../../../etc/passwd")
    ),
    case("import csv t.csv new --copy", "not copied", files={"t.csv": CSV + "1,train,notes.txt,en,hi\n"}),
    case("import csv t.csv new --copy", "missing", files={"t.csv": CSV + "1,train,p.jpg,en,hi\n", "p.jpg": fifo}),
    case(
        "import csv t.csv new --copy",
        "not copied",
        files={"t.csv": CSV + "1,train,l.jpg,en,hi\n", "l.jpg": link("/etc/passwd")},
    ),
    case("import csv t.csv new", "missing", files={"t.csv": CSV + "1,train,f.jpg,en,hi\n", "f.jpg": folder}),
    case("import folder photos photos/c", "3 items", status=0, creates="photos/c"),
    case("import folder . c2", status=0, creates="c2"),
    case("import folder c c", "c"),
    case("import folder loop new", "loop", files={"loop/a": folder, "loop/a/b": link("..")}),
    case("import folder names new", "\\x1b", files={"names/\x1b.jpg": jpeg(), "names/\x1b.png": jpeg()}),
)

test_control_characters = check_all(
    case("'des\x1b[31mcribe'", "des", status=2),
    case("describe 'a\x1b[31m.jpg' --model captioner", "a\\x1b[31m.jpg"),
    case("describe photos/0.jpg --model 'x\x1b[2J'", "x\\x1b[2J"),
    case("show 'c\x1b[2J'", "c\\x1b[2J"),
    case("show 'c\nd'", "c\\nd"),
    case("train 'scenes/\x1bmrnn' --collection c --out new", "scenes/\\x1bmrnn"),
    case("train scenes/mrnn --collection c --out new 'a\x1b=1'", "a\\x1b"),
    case("search '\x1b[31mred' --model captioner --collection c", "\\x1b[31mred"),
    case("import csv t.csv new", "\\x1b", files={"t.csv": CSV + "1,tr\x1bain,photos/0.jpg,en,x\n"}),
    case("score photos/0.jpg 'a \x1b[31mred' --model captioner", status=0),
    case(
        "import csv t.csv new",
        status=0,
        creates="new",
        files={"t.csv": CSV + "\x1b[1m" + ROW.replace("train", "1,train", 1)},
    ),
    case("translate 'a \x1b[31mred\tball' --model translator --image photos/0.jpg", status=0),
    case("words 'r\x1bed' --model captioner", status=0),
    case("doctor '\x1b'", status=2),
)
