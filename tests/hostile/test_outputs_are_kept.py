"""Outputs over what the program did not write as that kind of file, inside runs and collections, and in odd places."""

from cases import case, check, for_all
from damage import fifo, folder, link

DESCRIBE = "describe photos/0.jpg --model captioner"
REGIONS = "regions photos/0.jpg --model dense"
TRANSLATE = "translate 'a red ball' --model translator --image photos/0.jpg"
DIAGNOSE = "diagnose --model translator --collection c --trials 10 --metric perplexity"
KMEANS = "kmeans c --size 8 --patch 4 --filters 4 --patches 100 --grid 2"
GRADIENTS = "gradients --model captioner --sentences 2 --probes 1"
WRITERS = (  # a command without the file that it writes, and the suffix of that file
    (f"{DESCRIBE} --output", ".txt"),
    (f"{DESCRIBE} --output", ".json"),
    (f"{DESCRIBE} --explain-beam", ".png"),
    (f"{TRANSLATE} --out", ".txt"),
    ("report --model captioner --out", ".html"),
    ("show c --sheet", ".png"),
    (f"{KMEANS} --out f.safetensors --sheet", ".png"),
    (f"{KMEANS} --out", ".safetensors"),
    (f"{REGIONS} --out", ".png"),
    (f"{GRADIENTS} --plot", ".png"),
    (f"{DIAGNOSE} --out", ".json"),
)


@for_all(
    *(
        case(f"{command} mine{suffix}", f"mine{suffix}", files={f"mine{suffix}": "work of weeks"})
        for command, suffix in WRITERS
    )
)
def test_files_of_the_user_are_kept(case, work):
    check(case, work)


@for_all(
    *(case(f"{command} captioner/new{suffix}", "captioner", files={}) for command, suffix in WRITERS[1:9:2]),
    *(case(f"{command} c/new{suffix}", "c/new") for command, suffix in WRITERS[2:10:2]),
    case("report --model captioner --out captioner/model.safetensors", "captioner/model.safetensors"),
    case("report --model captioner --out captioner/config.json", "captioner/config.json"),
    case(f"{DIAGNOSE} --out translator/config.json", "translator/config.json"),
    case("show c --sheet photos/0.jpg", "photos/0.jpg"),
    case("show c --sheet c/images/train-00000.jpg", "c/images/train-00000"),
    case(f"{KMEANS} --out captioner/model.safetensors", "captioner/model.safetensors"),
    case(f"{TRANSLATE} --out sentences.txt", "sentences.txt"),
    case(f"{TRANSLATE} --out captions.csv", "captions.csv"),
    case(f"{DESCRIBE} --output captioner/log.jsonl", "captioner/log.jsonl"),
    case(f"{GRADIENTS} --plot link.png", "link.png", files={"link.png": link("notes.txt")}),
)
def test_runs_and_collections_are_kept(case, work):
    check(case, work)


@for_all(
    *(case(f"{command} notes.txt/x{suffix}", "notes.txt") for command, suffix in WRITERS[::2]),
    *(
        case(f"{command} folder{suffix}", "folder", files={f"folder{suffix}": folder})
        for command, suffix in WRITERS[3:]
        if command != f"{REGIONS} --out"
    ),
    *(case(f"{command} pipe{suffix}", "pipe", files={f"pipe{suffix}": fifo}) for command, suffix in WRITERS[4::3]),
    *(case(f"{command} mine.exe", "mine.exe") for command, suffix in WRITERS if suffix in (".png", ".safetensors")),
    *(case(f"{command} {'x' * 300}{suffix}", "xxx") for command, suffix in WRITERS[::3]),
    case("report --model captioner --out ''", "--out"),
    case("show c --sheet ''", "--sheet"),
)
def test_places_that_cannot_be_written(case, work):
    check(case, work)


TRAIN = "train scenes/mrnn --collection c --out {} training.epochs=1 features.tables=[pixels16]"


@for_all(
    case(TRAIN.format("captioner"), "captioner"),
    case(TRAIN.format("c"), "c"),
    case(TRAIN.format("notes.txt"), "notes.txt"),
    case(TRAIN.format("photos"), "photos"),
    case(TRAIN.format("notes.txt/run"), "notes.txt"),
    case(TRAIN.format("fresh") + " --resume", "fresh"),
    case(TRAIN.format("photos") + " --resume", "photos"),
    case("generate scenes c --train 1 --val 1 --test 1", "c"),
    case("generate scenes captioner --train 1 --val 1 --test 1", "captioner"),
    case("generate scenes photos --train 1 --val 1 --test 1", "photos"),
    case("generate reviews notes.txt", "notes.txt"),
    case("generate reviews notes.txt/c", "notes.txt"),
    case("import csv captions.csv captioner", "captioner"),
    case("import csv captions.csv notes.txt", "notes.txt"),
    case("import csv captions.csv notes.txt/c", "notes.txt"),
    case("demo --out notes.txt", "notes.txt"),
    case("reproduce mao2015/table3 --collection c --out notes.txt --dataset flickr8k", "notes.txt"),
    case("crossvalidate lecture/reviews --collection reviews --out notes.txt", "notes.txt"),
    case("crossvalidate lecture/reviews --collection reviews --out classifier", "classifier"),
    case(f"{DESCRIBE} --attention notes.txt", "notes.txt"),
    case(f"{TRANSLATE} --attention notes.txt", "notes.txt"),
    case(f"{TRANSLATE} --attention captioner", "captioner"),
)
def test_folders_that_hold_something_else(case, work):
    check(case, work)
