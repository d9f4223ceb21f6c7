"""Names that leave their folder, carry control characters, or name nothing; members of a collection that leave it."""

import pytest
from cases import case, check, check_all
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


SCORED = "correlate judged.txt --scores scores.tsv"
MODELLED = "correlate judged.txt --model captioner --collection c"
EXPERT = "".join(f"{image}.jpg\t{image + 1}.jpg#0\t{1 + image % 4}\t1\t{1 + image % 3}\n" for image in range(12))
CROWD = "".join(
    f"{image}.jpg\t{image + 1}.jpg#0\t{image % 3 / 2}\t{image % 3}\t{2 - image % 3}\n" for image in range(12)
)
SCORES = "".join(f"{image}.jpg\t{image + 1}.jpg#0\t{image % 5}.5\n" for image in range(12))
FIRST = "0.jpg\t1.jpg#0\t"


def judged(contents, *names, command=SCORED, status=1):
    """Case of a damaged file of judgements."""
    return case(command, *names, files={"judged.txt": contents, "scores.tsv": SCORES}, status=status)


def scored(contents, *names, status=1):
    """Case of a damaged file of scores."""
    return case(SCORED, *names, files={"judged.txt": EXPERT, "scores.tsv": contents}, status=status)


test_judgements = check_all(
    judged(EXPERT, "kendall_tau_c", "12 pairs of 12 images", "judgements:expert", status=0),
    judged(CROWD, "kendall_tau_b", "judgements:crowd", status=0),
    judged(EXPERT.replace("\n", "\r\n\r\n"), "12 pairs", status=0),
    judged("\ufeff" + EXPERT, "12 pairs", status=0),
    case(SCORED, "judged.txt", "cannot be read", "check the path"),
    judged("", "judged.txt", "empty"),
    judged("\n \n", "judged.txt", "empty"),
    judged(b"\xff\xfe\x00", "judged.txt, line 1", "UTF-8"),
    judged(f"{EXPERT}\udcff".encode(errors="surrogateescape"), "judged.txt, line 13", "UTF-8"),
    judged(EXPERT.replace("\t", " "), "line 1", "separated by tabs", "1 column"),
    judged(EXPERT[:-3], "line 12", "found 4 columns"),
    judged(FIRST + "1\t2\t5\n", "line 1", "from 1 to 4", "1, 2, 5"),
    judged(FIRST + "1\t2.5\t3\n", "line 1", "from 1 to 4", "2.5"),
    judged(FIRST + "1\t-1\t3\n", "line 1", "from 1 to 4", "-1"),
    judged(FIRST + "1\tgood\t3\n", "line 1", "expected a number", "'good'"),
    judged(FIRST + "nan\t0\t3\n", "line 1", "expected a number", "'nan'"),
    judged(FIRST + "0.9\t1\t2\n", "line 1", "share of yes", "0.9, 1, 2"),
    judged(FIRST + "0\t0\t0\n", "line 1", "share of yes"),
    judged(FIRST + f"1e999\t{'9' * 400}\t1\n", "line 1", "expected a number", "'1e999'"),
    judged("0.jpg\t1.jpg\t1\t1\t1\n", "line 1", "image#number", "'1.jpg'"),
    judged("\t1.jpg#0\t1\t1\t1\n", "line 1", "name of an image"),
    judged(EXPERT + EXPERT, "line 13", "twice", "'0.jpg' and '1.jpg#0'"),
    judged(EXPERT + CROWD.replace("\t1.jpg", "\t2.jpg"), "line 13", "experts and shares"),
    judged(FIRST + "2\t2\t2\n", "ratings that differ"),
    *(judged(damage, "judged.txt") for damage in (folder, fifo, link("/dev/zero"), link("judged.txt"))),
    judged(EXPERT, "c: has no judged pair", command=MODELLED),
    judged(EXPERT, "--model", command=f"{MODELLED} --scores scores.tsv"),
    judged(EXPERT, "gone", command="correlate judged.txt --model gone --collection c"),
    judged(EXPERT, "gone", command="correlate judged.txt --model captioner --collection gone"),
    judged(EXPERT, "captioning model", command="correlate judged.txt --model translator --collection c"),
    judged(EXPERT, "--scores", "--collection", command="correlate judged.txt --model captioner"),
)

test_scores = check_all(
    case(SCORED, "scores.tsv", "cannot be read", files={"judged.txt": EXPERT}),
    scored("", "scores.tsv", "12 in all", "add a line"),
    scored(SCORES[:100], "scores.tsv"),
    scored(b"\x00\xff", "scores.tsv, line 1", "UTF-8"),
    scored(EXPERT, "scores.tsv, line 1", "found 5 columns"),
    scored(SCORES.replace("\t", ","), "line 1", "1 column"),
    scored(SCORES.replace("1.5", "inf", 1), "line 2", "expected a number", "'inf'"),
    scored(SCORES.replace("1.5", "", 1), "line 2", "expected a number"),
    scored(SCORES.replace("1.5", "1,5", 1), "line 2", "expected a number", "'1,5'"),
    scored(SCORES + SCORES, "line 13", "twice"),
    scored(SCORES.replace("4.jpg#0", "4.jpg#1"), "'3.jpg' and '4.jpg#0'", "1 in all"),
    scored(EXPERT.replace("\t1\t1\n", "\n"), "scores.tsv"),
    *(scored(damage, "scores.tsv") for damage in (folder, fifo, link("/dev/zero"), link("scores.tsv"))),
)


@pytest.mark.parametrize("value", ["1e308", "-1e308", "5e-324"])
def test_scores_of_any_size_have_a_rank(value, work):
    check(scored(SCORES.replace("4.5", value), "12 pairs", status=0), work)
