"""Runs, feature tables, collections and recipes that are damaged or forged, and outputs over something else."""

import math

import torch
from cases import case, check_all
from damage import change_json, change_tensors, each, fifo, fill, flip, folder, link, nested, remove, truncate, zeros

DESCRIBE = "describe photos/0.jpg --model captioner"
TRANSLATE = "translate 'a red ball' --model translator --image photos/0.jpg"
CLASSIFY = "classify good --model classifier"
WEIGHTS = "captioner/model.safetensors"
CONFIG = "captioner/config.json"
TOKENIZER = "captioner/tokenizer.json"

test_weights = check_all(
    *(
        case(DESCRIBE, "captioner", files={WEIGHTS: damage})
        for damage in (
            remove,
            truncate(0),
            truncate(0.01),
            truncate(0.9),
            flip(0),
            flip(0.1),
            flip(0.999),
            zeros,
            change_tensors(fill(math.nan)),
            change_tensors(fill(math.inf), keep_header=True),
            change_tensors(fill(1), keep_header=True),
            change_tensors(dict.popitem, keep_header=False),
            change_tensors(lambda tensors: tensors.update(extra=torch.zeros(2))),
            change_tensors(lambda tensors: tensors.update({next(iter(tensors)): torch.zeros(1, 1)})),
        )
    ),
    *(
        case(DESCRIBE, "captioner", files={f"./{WEIGHTS}": remove, WEIGHTS: damage})
        for damage in (fifo, folder, link("/dev/zero"), link("model.safetensors"), b"\xff" * 8 + b"{}", b"PK\3\4")
    ),
    case(TRANSLATE, "translator", files={"translator/model.safetensors": flip(0.5)}),
    case(CLASSIFY, "classifier", files={"classifier/model.safetensors": zeros}),
    case("describe photos/0.jpg --model dense --regions 9", "dense", files={"dense/model.safetensors": truncate(0.5)}),
    case("gradients --model captioner", "captioner", files={WEIGHTS: flip(0.5)}),
    *(
        case("report --model captioner", "captioner", files={WEIGHTS: damage})
        for damage in (change_tensors(fill(math.nan)), truncate(0.5), zeros)
    ),
)

test_configurations = check_all(
    *(
        case(DESCRIBE, "captioner", files={file: damage})
        for file in (CONFIG, TOKENIZER)
        for damage in (
            remove,
            truncate(0.5),
            zeros,
            "",
            "[]",
            "null",
            "{}",
            "{",
            '{"a": 1, "a": 2}',
            nested("[", "]"),
            b"\xff\xfe",
        )
    ),
    case(DESCRIBE, "captioner", files={CONFIG: change_json(recipe={})}),
    case(DESCRIBE, "captioner", files={CONFIG: change_json(recipe__model__name="../../evil")}),
    case(DESCRIBE, "captioner", files={CONFIG: change_json(recipe__model__hidden_dim=10**9)}),
    case(DESCRIBE, "captioner", files={CONFIG: change_json(recipe__model__hidden_dim=9)}),
    case(DESCRIBE, "captioner", files={CONFIG: change_json(recipe__model__hidden_dim="8; rm")}),
    case(DESCRIBE, "captioner", files={CONFIG: change_json(recipe__decoding__beam_size=10**12)}),
    case(TRANSLATE, "translator", files={"translator/tokenizer.json": "{}"}),
    case(CLASSIFY, "classifier", files={"classifier/config.json": truncate(0.5)}),
    case("report --model captioner", "tokenizer.json", files={TOKENIZER: truncate(0.5)}),
    case("describe photo --recursive --model captioner", "photo", "no such file"),
    case("compare captioner captioner", "captioner", files={"captioner/evaluation/test.json": truncate(0.5)}),
    case("compare captioner captioner", "captioner", files={"captioner/evaluation/test.json": nested("[", "]")}),
)

EVALUATE = "evaluate --model captioner --collection c --no-retrieval --metric bleu4"
DATA = "data/*.lance"

test_tables = check_all(
    *(
        case(EVALUATE, "pixels16", files={"c/features/pixels16.lance/": each(pattern, damage)})
        for pattern, damage in (
            (DATA, flip(0.3)),
            (DATA, zeros),
            (DATA, truncate(0.5)),
            (DATA, remove),
            ("_versions/*", truncate(0.5)),
            ("_versions/*", zeros),
        )
    ),
    *(
        case(command, "items", files={"c/items.lance/": each(pattern, damage)})
        for command in ("show c", EVALUATE)
        for pattern, damage in ((DATA, truncate(0.5)), (DATA, zeros), (DATA, remove), ("_versions/*", zeros))
    ),
)

TRAIN = "train recipe.yaml --collection c --out new"

test_recipes = check_all(
    *(
        case(TRAIN, *names, files={"recipe.yaml": text})
        for text, *names in (
            ("", "recipe.yaml"),
            ("[]", "recipe.yaml"),
            ("3", "recipe.yaml"),
            ("a: [", "recipe.yaml"),
            ("a: 1\na: 2\n", "recipe.yaml", "a"),
            ("\t- x", "recipe.yaml"),
            (b"\xff\xfe\xff", "recipe.yaml", "UTF-8"),
            (b"\0\0\0", "recipe.yaml"),
            ("!!python/object/apply:os.system ['touch evil']", "recipe.yaml"),
            ("model: !!python/name:os.system", "recipe.yaml"),
            ("a: &a [*a]", "recipe.yaml"),
            (nested("[", "]"), "recipe.yaml"),
            ("base: recipe.yaml", "recipe.yaml"),
            ("base: ../../../etc/passwd", "passwd"),
            ("base: [scenes/mrnn]", "base"),
            ("base: scenes/mrnn\nmodel: 3", "model"),
            ("base: scenes/mrnn\nmodel: {name: evil}", "evil"),
            ("base: scenes/mrnn\ntraning: {}", "traning"),
            ("base: scenes/mrnn\ntraining: {epochs: 1e999}", "epochs"),
            ("base: scenes/mrnn\nfeatures: {tables: ['../../x']}", "feature"),
        )
    ),
    case(TRAIN, "recipe.yaml", files={"recipe.yaml": fifo}),
    case(TRAIN, "recipe.yaml", files={"recipe.yaml": folder}),
    case(TRAIN, "recipe.yaml", files={"recipe.yaml": link("/dev/zero")}),
)

test_other_inputs = check_all(
    *(
        case(command, *names, files={f"media/1.{suffix}": data})
        for command, suffix, names in (
            ("import audio media new --copy", "wav", ("media", "not copied")),
            ("import folder media new --copy", "mp4", ("media", "not copied")),
        )
        for data in (b"", b"\0" * 400, b"not media", b"<html>")
    ),
    case("classify ''", "model"),
    case("classify --model classifier --file gone.txt", "gone.txt"),
    case("classify --model classifier --file empty.txt", "empty.txt", files={"empty.txt": ""}),
    case("classify --model classifier --file odd.txt", "odd.txt", "UTF-8", files={"odd.txt": b"\xff\xfe"}),
    case("classify --model classifier --file pipe.txt", "pipe.txt", files={"pipe.txt": fifo}),
    case("classify good --model captioner", "expected a model of labels"),
    case("compare captioner gone", "gone"),
    case("compare captioner classifier", "classifier"),
    case("compare captioner dense --metric evil", "evaluation"),
    case("crossvalidate scenes/mrnn --collection c --out new", "pixels64"),
    case("crossvalidate evil --collection reviews --out new", "evil"),
    case("crossvalidate lecture/reviews --collection gone --out new", "gone"),
    case("crossvalidate lecture/reviews --collection reviews --out new --split ''", "''"),
    case("gradients --model gone", "gone"),
    case("gradients --model captioner --split ''", "split", "empty"),
    case("diagnose --model translator --collection c --split ''", "split", "empty"),
    case("translate --model translator --collection c --split ''", "''"),
    case("compare captioner dense --split ''", "split", "empty"),
    case("search 'a red ball' --model captioner --collection c --split ''", "''"),
    case("features c --backbone pixels:8 --split ''", "''"),
    case("features c --backbone pixels:8 --ray ''", "--ray", "HOST:PORT"),
    case("features c --backbone pixels:8 --ray 127.0.0.1:1", "127.0.0.1:1", "ray start"),
    case("kmeans c --out f.safetensors --split ''", "''"),
    case("show c --split '' --sheet new.png", "''"),
    case("reproduce evil --collection c --out new", "evil"),
    case("recipes evil", "evil"),
    case("doctor extra", "extra", status=2),
    case("translate 'a red ball' --model translator --image photos", "photos"),
    case("translate 'a red ball' --model captioner --image photos/0.jpg", "does not translate"),
    case("import csv captions.csv captioner/c", "captioner"),
    case("generate scenes captioner/c --train 1 --val 1 --test 1", "captioner"),
)

RUN = "train scenes/mrnn --collection c --out {} training.epochs=1 features.tables=[pixels16]"

test_folders_that_hold_something_else = check_all(
    case(RUN.format("captioner"), "captioner"),
    case(RUN.format("photos"), "photos"),
    case(RUN.format("notes.txt/run"), "notes.txt"),
    case(RUN.format("fresh") + " --resume", "fresh"),
    case(RUN.format("photos") + " --resume", "photos"),
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
