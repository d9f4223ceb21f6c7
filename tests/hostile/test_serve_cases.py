"""`limner serve` with hostile options and files: one clear line before it listens."""

from __future__ import annotations

import os

import pytest
from cases import case, check_all

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
