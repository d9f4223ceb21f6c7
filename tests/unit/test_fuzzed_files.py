"""Damaged files that fuzzing found: each is one line of error."""

import json

import pytest
from PIL import Image

from limner.data.readers import ReaderOptions, read_source
from limner.errors import BackboneError, CollectionError, LimnerError, MediaError, RunError, SettingsError
from limner.features.encoders.load import load_backbone
from limner.media.video import FrameSampling, _require_decodable, read_frames
from limner.runs.records import read_log
from limner.synthetic.scenes import ClipSettings
from limner.synthetic.storage import generate_collection
from limner.text.embeddings import read_embeddings

LINE = json.dumps({"kind": "train", "step": 1, "epoch": 1.0, "loss": 2.0})


def test_a_log_with_bytes_that_are_not_utf8(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_bytes(f"{LINE}\n".encode() + b'{"kind": "\xff"}\n' + LINE.encode())
    with pytest.raises(RunError, match=r"line 2: expected a line of the training log: not valid JSON"):
        read_log(log)
    log.write_bytes(f"{LINE}\n".encode() + b'{"kind": "\xc3')  # cut within a letter
    assert len(read_log(log)) == 1


def test_a_log_with_a_value_of_another_type_is_one_line(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(f'{{"kind": "train", "step": "x", "epoch": []}}\n{LINE}\n')
    with pytest.raises(RunError, match=r"line 1: expected a line of the training log: step: ") as caught:
        read_log(log)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("header", [b"2 " + b"9" * 5000, b"9" * 5000 + b" 3", b"2 999999999", b"2 0"])
def test_a_header_of_embeddings_with_a_number_that_is_too_large(tmp_path, header):
    (tmp_path / "a.bin").write_bytes(header + b"\na \0\0\0\0\0\0\0\0")
    with pytest.raises(SettingsError, match="line 1: ") as caught:
        read_embeddings(tmp_path / "a.bin", {"a"})
    assert len(str(caught.value)) < 400


def test_a_video_of_unknown_codec(tmp_path):
    collection = generate_collection(tmp_path / "c", ClipSettings(train=1, val=0, test=0, size=32, frames=4))
    clip = collection.media_file(collection.items()[0])
    damaged = tmp_path / "a.mp4"
    damaged.write_bytes(clip.read_bytes().replace(b"avc1", b"\0\0\0\0").replace(b"mp4v", b"\0\0\0\0"))
    with pytest.raises(MediaError, match=r"a\.mp4: "):
        read_frames(damaged, FrameSampling(count=2))


def test_frames_that_are_too_large_to_decode(tmp_path):
    with pytest.raises(LimnerError, match="frames of 100000 x 100000 pixels"):
        _require_decodable(100_000, 100_000, tmp_path)


def test_numbers_of_sentences_that_a_collection_cannot_store(tmp_path):
    for digits in (12, 5000):
        (tmp_path / "x.csv").write_text(f"id,image,lang,text,group\na,,en,a ball,{'9' * digits}\n")
        with pytest.raises(CollectionError, match=r"x\.csv:2: group: expected a whole number from -2,147,483,648 to"):
            read_source("csv", tmp_path / "x.csv", ReaderOptions(split="auto"))
        (tmp_path / "x.token.txt").write_text(f"a.jpg#{'9' * digits}\ta ball\n")
        (tmp_path / "train.txt").write_text("a.jpg\n")
        Image.new("RGB", (3, 3)).save(tmp_path / "a.jpg")
        with pytest.raises(CollectionError, match=r"token\.txt:1: number of the sentence: expected a whole number"):
            read_source("flickr", tmp_path)


def test_a_side_of_pixels_of_thousands_of_digits():
    with pytest.raises(BackboneError, match=r"^pixels:SIDE: side in pixels: expected a whole number from 1 to 1,024"):
        load_backbone(f"pixels:{'9' * 5000}")


@pytest.mark.parametrize("name", ["a" * 300 + ".jpg", "a\0b.jpg"])
def test_an_image_whose_name_no_file_can_have_is_missing(tmp_path, name):
    rows = [{"image": one, "lang": "en", "text": "a ball"} for one in (name, "there.jpg")]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Image.new("RGB", (3, 3)).save(tmp_path / "there.jpg")
    corpus = read_source("jsonl", tmp_path / "x.jsonl", ReaderOptions(split="train"))
    assert [item.id for item in corpus.items] == ["there"]
