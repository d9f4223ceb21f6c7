"""Small valid sources of every reader; a new reader needs an entry here, which a test checks."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
from PIL import Image, ImageDraw

ENTITY = """<annotation><filename>77.jpg</filename><size><width>20</width><height>10</height><depth>3</depth></size>
<object><name>5</name><bndbox><xmin>2</xmin><ymin>1</ymin><xmax>6</xmax><ymax>5</ymax></bndbox></object>
<object><name>6</name><scene>1</scene><nobndbox>1</nobndbox></object></annotation>"""
TOPIC = """<DOC>
<DOCNO>annotations/00/25.eng</DOCNO>
<TITLE>Café &amp; more</TITLE>
<DESCRIPTION>a café &amp; a bar; two palms;</DESCRIPTION>
<IMAGE>images/00/25.jpg</IMAGE>
</DOC>
"""
REGION = {"region_id": 1, "image_id": 1, "x": 1, "y": 2, "width": 5, "height": 4, "phrase": "a red ball"}


def write(path: Path, contents: object) -> None:
    """Write text, or a value as JSON, compressed if the suffix says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (contents if isinstance(contents, str) else json.dumps(contents)).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def draw(folder: Path, *names: str) -> None:
    """Draw small images."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image = Image.new("RGB", (20, 10), (len(name) * 9 % 256, 80, 120))
        ImageDraw.Draw(image).ellipse((2, 2, 9, 8), fill=(250, 20, 20))
        image.save(folder / name)


def _flickr(folder: Path) -> None:
    write(folder / "x.token.txt", "".join(f"{name}.jpg#{n}\t{name} says {n} .\n" for name in "abc" for n in range(2)))
    write(folder / "splits" / "train.txt", "b.jpg\n")
    write(folder / "splits" / "test.txt", "a.jpg\n")
    draw(folder / "images", "a.jpg", "b.jpg")


def _multi30k(folder: Path) -> None:
    write(folder / "train.en.gz", "A dog.\nTwo cats.\n")
    write(folder / "train.de.gz", "Ein Hund.\nZwei Katzen.\n")
    write(folder / "train.images.txt", "10.jpg\n20.jpg\n")
    write(folder / "val.en", "A cow.\n")
    write(folder / "val.de", "Eine Kuh.\n")
    write(folder / "val.images.txt", "30.jpg\n")


def _coco(folder: Path) -> None:
    images = [{"id": 7, "file_name": "a.jpg", "height": 10, "width": 20}, {"id": 8, "file_name": "b.jpg"}]
    captions = [{"id": 1, "image_id": 7, "caption": "A cup."}, {"id": 2, "image_id": 8, "caption": "Gone."}]
    write(folder / "annotations" / "captions_val2014.json", {"images": images, "annotations": captions})
    draw(folder / "val2014", "a.jpg", "b.jpg")


def _karpathy(folder: Path) -> None:
    sentences = [{"raw": "A dog.", "tokens": ["a", "dog"], "sentid": 0}]
    images = [{"filename": f"{n}.jpg", "filepath": "images", "split": "val", "sentences": sentences} for n in "ab"]
    write(folder / "dataset_x.json", {"images": images, "dataset": "x"})
    draw(folder / "images", "a.jpg", "b.jpg")


def _iapr(folder: Path) -> None:
    write(folder / "annotations_complete_eng" / "00" / "25.eng", TOPIC)
    write(folder / "annotations_complete_ger" / "00" / "25.ger", TOPIC.replace("two palms", "zwei Palmen"))
    write(folder / "iaprtc12_train_list.txt", "00/25\n")
    draw(folder / "images", "00/25.jpg")


def _visual_genome(folder: Path) -> None:
    write(folder / "region_descriptions.json", [{"id": 1, "regions": [REGION, {**REGION, "region_id": 2}]}])
    write(folder / "image_data.json", [{"image_id": 1, "width": 20, "height": 10}])
    draw(folder / "VG_100K", "1.jpg")


def _entities(folder: Path) -> None:
    write(folder / "Annotations" / "77.xml", ENTITY)
    write(folder / "Sentences" / "77.txt", "[/EN#5/people Two men] wear [/EN#6/clothing/other red hats] .\n")
    draw(folder / "flickr30k-images", "77.jpg")


def _jsonl(folder: Path) -> None:
    row = {"id": "a", "split": "train", "image": "a.jpg", "lang": "en", "text": "a ball"}
    write(folder / "x.jsonl", "\n".join(json.dumps({**row, "id": one, "text": f"{one} ball"}) for one in "ab"))
    draw(folder, "a.jpg")


def _csv(folder: Path) -> None:
    write(folder / "x.csv", 'id,split,image,lang,text\na,train,a.jpg,en,a ball\nb,val,,en,"a ""red"", ball"\n')
    draw(folder, "a.jpg")


def _folder(folder: Path) -> None:
    draw(folder, "a.jpg", "b.png", "c.gif")
    for name in "abc":
        write(folder / f"{name}.txt", f"a picture of {name}\nanother one\n")


def _audio(folder: Path) -> None:
    import numpy as np
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    soundfile.write(folder / "a.wav", 0.1 * np.sin(np.arange(8000) / 9), 16_000)
    soundfile.write(folder / "b.flac", 0.1 * np.sin(np.arange(8000) / 5), 16_000)
    write(folder / "a.txt", "a high tone\n")
    write(folder / "b.txt", "a low tone\n")


def _imdb(folder: Path) -> None:
    for split in ("train", "test"):
        write(folder / split / "pos" / "0_9.txt", "a fine film")
        write(folder / split / "neg" / "0_2.txt", "a dull film")


def _rt_polarity(folder: Path) -> None:
    write(folder / "rt-polarity.pos", "a fine film\ngood fun\n")
    write(folder / "rt-polarity.neg", "a dull film\nno fun\n")


def _webdataset(folder: Path) -> None:
    draw(folder, "a.jpg", "b.jpg")
    with tarfile.open(folder / "0.tar", "w") as archive:
        for name in "ab":
            archive.add(folder / f"{name}.jpg", f"{name}.jpg")
            write(folder / "t", f"{name} ball" if name == "a" else {"caption": "b ball"})
            archive.add(folder / "t", f"{name}.txt" if name == "a" else f"{name}.json")
    for name in ("a.jpg", "b.jpg", "t"):
        (folder / name).unlink()


def _table_rows(folder: Path) -> list[dict[str, object]]:
    draw(folder, "a.jpg")
    data = (folder / "a.jpg").read_bytes()
    (folder / "a.jpg").unlink()
    return [{"id": name, "image": {"bytes": data, "path": None}, "text": f"{name} ball"} for name in "ab"]


def _parquet(folder: Path) -> None:
    parquet.write_table(pa.Table.from_pylist(_table_rows(folder)), folder / "x.parquet")


def _datasets(folder: Path) -> None:
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    schema = pa.schema({"id": pa.string(), "image": image, "text": pa.string()})
    table = pa.Table.from_pylist(_table_rows(folder), schema)
    with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    string = {"dtype": "string", "_type": "Value"}
    write(folder / "dataset_info.json", {"features": {"id": string, "image": {"_type": "Image"}, "text": string}})
    state = {"_data_files": [{"filename": "data.arrow"}], "_fingerprint": "0", "_split": None}
    more = {"_format_columns": None, "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False}
    write(folder / "state.json", {**state, **more})


SOURCES: dict[str, Callable[[Path], None]] = {
    "flickr": _flickr,
    "multi30k": _multi30k,
    "coco": _coco,
    "karpathy": _karpathy,
    "iapr": _iapr,
    "visual-genome": _visual_genome,
    "flickr30k-entities": _entities,
    "jsonl": _jsonl,
    "csv": _csv,
    "webdataset": _webdataset,
    "parquet": _parquet,
    "datasets": _datasets,
    "folder": _folder,
    "audio": _audio,
    "imdb": _imdb,
    "rt-polarity": _rt_polarity,
}
"""Functions that write a small valid source of each reader into a folder."""
SPLIT = {"jsonl", "csv", "folder", "audio", "imdb", "rt-polarity", "visual-genome", "flickr30k-entities"}
"""Readers that are given a split for items without one."""
FILES = {"jsonl": "x.jsonl", "csv": "x.csv"}
"""Name of the file that is the source, of readers of files."""


def read(kind: str, folder: Path) -> list[object]:
    """Read the items of a source as `limner import` does."""
    from limner.data.readers import ReaderOptions, read_source

    options = ReaderOptions(split="auto") if kind in SPLIT else None
    return [*read_source(kind, folder / FILES[kind] if kind in FILES else folder, options).items]
