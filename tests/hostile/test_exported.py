"""Exported models that are missing, damaged, forged or of another kind, and places that they are not written to."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from cases import case, check, check_all
from damage import change_json, fifo, flip, folder, link, nested, remove, truncate, zeros

DESCRIBE = "describe photos/0.jpg --model exported"
TRANSLATE = "translate 'a red ball' --model exported-translator --image photos/0.jpg"
MANIFEST = "exported/generation.json"

test_graphs_and_tokenizers = check_all(
    case(DESCRIBE, "photos/0.jpg", status=0),
    case(TRANSLATE, status=0),
    *(
        case(DESCRIBE, name, "limner export", files={f"exported/{name}": damage})
        for name in ("backbone.onnx", "encoder.onnx", "step.onnx", "tokenizer.json")
        for damage in (remove, truncate(0.5), flip(0.5), zeros, "", b"\x08\x07" * 50)
    ),
    *(
        case(DESCRIBE, "step.onnx", files={"./exported/step.onnx": remove, "exported/step.onnx": damage})
        for damage in (fifo, folder, link("/dev/zero"), link("step.onnx"))
    ),
    case(TRANSLATE, "source_tokenizer.json", files={"exported-translator/source_tokenizer.json": remove}),
    case(f"{TRANSLATE} --beam-size 0", "--beam-size", status=2),
)

test_manifests = check_all(
    case(DESCRIBE, "exported", files={MANIFEST: remove}),
    case(DESCRIBE, "generation.json", "limner export", files={MANIFEST: "{"}),
    case(DESCRIBE, "generation.json", "limner export", files={MANIFEST: b"\xff\x00"}),
    case(DESCRIBE, "generation.json", "limner export", files={MANIFEST: nested("[", "]")}),
    case(DESCRIBE, "generation.json", "format 2", files={MANIFEST: '{"format": 7}'}),
    *(
        case(DESCRIBE, "generation.json", "digest", files={MANIFEST: change_json(**change)})
        for change in ({"vocab_size": 5}, {"unknown": 1}, {"state": []}, {"files": {"../../etc/passwd": "0"}})
    ),
)

test_other_models_and_images = check_all(
    case("describe photos/0.jpg --model nowhere", "nowhere"),
    case("describe photos/0.jpg --model exported-translator", "exported-translator", "limner translate"),
    case("translate 'a red ball' --model exported", "exported", "limner describe"),
    case("describe photos/0.jpg --model exported --model captioner", "exported", "ensemble"),
    case("describe photos/0.jpg --model exported --must-include dog", "--must-include", "dog"),
    case("describe photos/0.jpg --model exported --attention plots", "--attention", "exported"),
    case("describe photos/0.jpg --model exported --device cuda", "--device", "exported"),
    case("describe photos/9.jpg --model exported", "photos/9.jpg"),
    case("describe notes.jpg --model exported", "notes.jpg", files={"notes.jpg": "no image"}),
    case("describe photos/0.jpg --model exported --beam-size 2 --n-best 3", "--n-best"),
    case("score photos/0.jpg 'a red ball' --model exported", "exported"),
    case("export new --model exported", "exported"),
)

test_export = check_all(
    case("export new --model nowhere", "nowhere"),
    case("export new --model dense", "regions"),
    case("export new --model classifier", "labels"),
    case("export new --model captioner --format torchscript", "--format", status=2),
    case("export new --model captioner --backbone nowhere", "nowhere"),
    case("export new --model captioner --lang de", "lang"),
    case("export notes.txt --model captioner", "notes.txt"),
    case("export photos --model captioner", "photos", "new folder"),
    case("export captioner --model captioner", "captioner"),
    case("export notes.txt/new --model captioner", "notes.txt"),
    case("export /proc/new --model captioner", "/proc/new"),
    case("export exported --model captioner", "exported", "notes.txt", files={"exported/notes.txt": "mine"}),
    case("export exported --model captioner", "step.onnx", status=0, creates="exported"),
    case("export new --model captioner", "model.safetensors", files={"captioner/model.safetensors": truncate(0.5)}),
)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_folder_that_is_not_writable_is_found_before_the_work(work):
    import runner

    (work / "locked").mkdir(mode=0o555)
    for path in (work, *work.rglob("*")):
        path.chmod(path.stat().st_mode | 0o555)
    outcome = runner.run(["export", "locked/new", "--model", "captioner"], work, uid=65534)
    assert outcome.status == 1 and "locked/new" in outcome.stderr and outcome.stderr.count("\n") == 1


pytest.importorskip("fastapi", reason="the extra serve is not installed")

SERVE = "serve --model captioner --port 0"
INDEX = "photos/.limner/index.json"


test_serve = check_all(
    case("serve --port 0 --model nowhere", "nowhere"),
    case("serve --port 0 --model photos", "photos"),
    case("serve --port 0 --model notes.txt", "notes.txt"),
    case("serve --port 0 --model classifier", "classifier", "labels"),
    case("serve --port 0 --model captioner --model captioner", "captioner", "rename"),
    case(SERVE, "config.json", files={"captioner/config.json": "{"}),
    case("serve --model captioner --port 70000", "--port", "70000", status=2),
    case("serve --model captioner --port -1", "--port", status=2),
    case("serve --model captioner --port high", "--port", "high", status=2),
    case(f"{SERVE} --host 203.0.113.1", "203.0.113.1", "--host"),
    case(f"{SERVE} --host no.such.host.invalid", "no.such.host.invalid", "--host"),
    case(f"{SERVE} --workers 0", "--workers", status=2),
    case(f"{SERVE} --max-queue 0", "--max-queue", status=2),
    case(f"{SERVE} --max-body -5", "--max-body", status=2),
    case(f"{SERVE} --timeout nan", "--timeout", status=2),
    case(f"{SERVE} --device tpu", "tpu", "cpu"),
    case(f"{SERVE} --key-file nowhere.txt", "nowhere.txt", "keys"),
    case(f"{SERVE} --key-file photos", "photos", "keys"),
    case(f"{SERVE} --key-file empty.txt", "empty.txt", "API key", files={"empty.txt": "# keys\n\n"}),
    case(f"{SERVE} --key-file keys.txt", "API key", "ASCII", files={"keys.txt": "two words\n"}),
    case(f"{SERVE} --key-file keys.txt", "keys.txt", files={"keys.txt": b"\xff\xfe"}),
    case(f"{SERVE} --key-file pipe", "pipe", files={"pipe": lambda path: os.mkfifo(path)}),
    case(f"{SERVE} --index nowhere", "nowhere"),
    case(f"{SERVE} --index photos", "photos", "limner index"),
    case(f"{SERVE} --index photos", "index.json", "--rebuild", files={INDEX: "{"}),
    case(f"{SERVE} --index photos", "index.json", "version", files={INDEX: '{"version": 7}'}),
    case(f"{SERVE} --workers 2 --key-file nowhere.txt", "nowhere.txt"),
    case("serve --port 0 --workers 2 --model nowhere", "nowhere"),
    case(f"{SERVE} --workers 2 --index photos", "photos", "limner index"),
)


INDEXING = "index photos --model captioner"
FOLDER_SEARCH = "search 'a red ball' --in photos"
XMP = '<x:xmpmeta xmlns:x="adobe:ns:meta/">{}</x:xmpmeta>'

test_folders = check_all(
    case(INDEXING, "3 images", status=0, creates="photos/.limner"),
    case(
        INDEXING,
        "3 images",
        files={"photos/pipe.jpg": fifo, "photos/loop": link(".")},
        status=0,
        creates="photos/.limner",
    ),
    case("index photos/0.jpg --model captioner", "photos/0.jpg", "folder"),
    case("index nowhere --model captioner", "nowhere", "folder"),
    case("index empty --model captioner", "empty", "no image", files={"empty/notes.txt": "x"}),
    case("index photos --model captioner --lang de", "captioner"),
    case("index photos --model captioner --index notes.txt/index", "--index"),
    case(FOLDER_SEARCH, "limner index photos"),
    case(f"{FOLDER_SEARCH} --model captioner", "--model", "--collection"),
    case("search 'a red ball' --in nowhere", "nowhere", "folder"),
    case("search 'a red ball' --in photos --collection c", "--collection"),
    case("search 'a red ball' --collection c --model captioner --sheet s.png", "--in FOLDER"),
    case("search 'a red ball'", "--in FOLDER"),
    case(FOLDER_SEARCH, "index.json", "--rebuild", files={"photos/.limner/index.json": "{"}),
    case(FOLDER_SEARCH, "index.json", "version", "--rebuild", files={"photos/.limner/index.json": '{"version": 7}'}),
    case(INDEXING, "index.json", "--rebuild", files={"photos/.limner/index.json": b"\xff\x00"}),
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
    check(case(INDEXING, status=0, creates="photos/.limner"), work)
    shutil.copytree(work / "captioner", work / "other")
    check(case("index photos --model other", "3 unchanged", status=0, creates="photos/.limner"), work)
    check(case("index photos --model dense", "photos/.limner", "captioner", "--model", "--rebuild"), work)
    check(case(FOLDER_SEARCH, "photos/0.jpg", status=0), work)
