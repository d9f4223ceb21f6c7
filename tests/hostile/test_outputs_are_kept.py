"""Outputs over what the program did not write as that kind of file, inside runs and collections, and in odd places."""

from cases import case, check, for_all

TRANSLATE = "translate 'a red ball' --model translator --image photos/0.jpg"

TRAIN = "train scenes/mrnn --collection c --out {} training.epochs=1 features.tables=[pixels16]"


@for_all(
    case(TRAIN.format("captioner"), "captioner"),
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
    case("crossvalidate lecture/reviews --collection reviews --out classifier", "classifier"),
    case(f"{TRANSLATE} --attention captioner", "captioner"),
)
def test_folders_that_hold_something_else(case, work):
    check(case, work)
