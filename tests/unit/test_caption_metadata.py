"""Which captions of persons are read from image files and sidecars, and which texts of cameras and programs are not."""

import csv
import io
import json
import shutil
import struct
import subprocess
import zlib
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import test_shards
from PIL import Image, PngImagePlugin

from limner.apps.photos.captions import caption_in_file, caption_of_sidecar, write_sidecar
from limner.apps.photos.metadata import add_caption, find_captions
from limner.data.collection import Collection
from limner.data.readers import ReaderOptions, import_collection, read_source
from limner.errors import CollectionError
from limner.media.image import opened_image

TEXT = "Zoë's café in März"
QUOTED = "“Zoë” – 5 €"
JAPANESE = "海辺の犬と子供"
PIXEL = dict.fromkeys((256, 257, 259, 262, 277, 278), (3, 1)) | {258: (3, 8), 273: (4, 8), 279: (4, 1)}
DESCRIPTION, XP_TITLE, XP_COMMENT, XP_SUBJECT, IPTC, XMP = 270, 40091, 40092, 40095, 33723, 700
XMP_UUID = bytes.fromhex("be7acfcb97a942e89c71999491e3afac")


def directory(entries, start, order):
    """An image file directory at a position: `entries` have the type and the value by the tag."""
    fields, values = struct.pack(order + "H", len(entries)), b""
    values_start = start + 2 + 12 * len(entries) + 4
    for tag, (kind, value) in sorted(entries.items()):
        count = len(value) if isinstance(value, bytes) else 1
        data = value if isinstance(value, bytes) else struct.pack(order + {3: "H", 4: "I"}[kind], value)
        fields += struct.pack(order + "HHI", tag, kind, count)
        fields += data.ljust(4, b"\0") if len(data) <= 4 else struct.pack(order + "I", values_start + len(values))
        values += data if len(data) > 4 else b""
    return fields + bytes(4) + values


def tiff(entries=(), comment=None, order="<"):
    """A TIFF file of one pixel, which is EXIF data as well."""
    entries, header = PIXEL | dict(entries), {"<": b"II*\0\x08\0\0\0", ">": b"MM\0*\0\0\0\x08"}[order]
    if comment is None:
        return header + directory(entries, 8, order)
    start = 8 + len(directory(entries | {34665: (4, 0)}, 8, order))
    return header + directory(entries | {34665: (4, start)}, 8, order) + directory({37510: (7, comment)}, start, order)


def saved(format_, **options):
    if format_ == "HEIF":
        pytest.importorskip("pillow_heif")
        with opened_image(tiff()):  # as Limner opens images, which registers the format
            pass
    stream = io.BytesIO()
    Image.new("RGB", (16, 16)).save(stream, format_, **options)
    return stream.getvalue()


def exif(format_, **options):
    return saved(format_, exif=b"Exif\0\0" + tiff(**options))


def described(value, kind=2, order="<"):
    return {"entries": {DESCRIPTION: (kind, value)}, "order": order}


def iptc(value, charset=b""):
    return b"".join(
        b"\x1c" + tag + struct.pack(">H", len(data)) + data
        for tag, data in (*([(b"\x01\x5a", charset)] if charset else []), (b"\x02\x78", value))
    )


def jpeg_iptc(record):
    resource = (
        b"Photoshop 3.0\x008BIM\x04\x04\0\0" + struct.pack(">I", len(record)) + record + b"\0" * (len(record) % 2)
    )
    data = saved("JPEG")
    return data[:2] + b"\xff\xed" + struct.pack(">H", len(resource) + 2) + resource + data[2:]


def png(*chunks, at_end=False):
    data = saved("PNG")
    where = -12 if at_end else 33  # before IEND, or after IHDR
    inserted = b"".join(
        struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", zlib.crc32(name + payload))
        for name, payload in chunks
    )
    return data[:where] + inserted + data[where:]


def packet(text=TEXT):
    return add_caption(None, text, "en")


def hexadecimal(data):
    return b"\nxmp\n" + str(len(data)).encode() + b"\n" + data.hex().encode()


CAPTIONS = {
    "TIFF, EXIF in UTF-8": (lambda: tiff(**described(TEXT.encode() + b"\0")), TEXT),
    "TIFF, big-endian, Latin-1": (lambda: tiff(**described(TEXT.encode("latin-1") + b"\0", order=">")), TEXT),
    "TIFF, IPTC": (lambda: tiff({IPTC: (7, iptc(TEXT.encode()))}), TEXT),
    "TIFF, XMP": (lambda: tiff({XMP: (1, packet())}), TEXT),
    "TIFF, XP comment": (lambda: tiff({XP_COMMENT: (1, TEXT.encode("utf-16-le") + b"\0\0")}), TEXT),
    "JPEG, Windows-1252": (lambda: exif("JPEG", **described(QUOTED.encode("cp1252") + b"\0")), QUOTED),
    "JPEG, UTF-8 of EXIF 3": (lambda: exif("JPEG", **described(JAPANESE.encode() + b"\0", 129)), JAPANESE),
    "JPEG, big-endian UTF-8 of EXIF 3": (
        lambda: exif("JPEG", **described(JAPANESE.encode() + b"\0", 129, ">")),
        JAPANESE,
    ),
    "JPEG, text as bytes": (lambda: exif("JPEG", **described(TEXT.encode(), 7)), TEXT),
    "JPEG, padding": (lambda: exif("JPEG", **described(b"  " + TEXT.encode() + b"   \0\0rest\0")), TEXT),
    "JPEG, XP title": (lambda: exif("JPEG", entries={XP_TITLE: (1, JAPANESE.encode("utf-16-le"))}), JAPANESE),
    "JPEG, XP subject": (lambda: exif("JPEG", entries={XP_SUBJECT: (1, TEXT.encode("utf-16-le"))}), TEXT),
    "JPEG, comment in ASCII": (lambda: exif("JPEG", comment=b"ASCII\0\0\0Two dogs  "), "Two dogs"),
    "JPEG, comment in UTF-8": (lambda: exif("JPEG", comment=bytes(8) + TEXT.encode()), TEXT),
    "JPEG, comment without code": (lambda: exif("JPEG", comment=b"Two dogs on a beach"), "Two dogs on a beach"),
    "JPEG, comment in UTF-16": (lambda: exif("JPEG", comment=b"UNICODE\0" + TEXT.encode("utf-16-le")), TEXT),
    "JPEG, comment in UTF-16-BE": (lambda: exif("JPEG", comment=b"UNICODE\0" + TEXT.encode("utf-16-be")), TEXT),
    "JPEG, Unicode comment in UTF-8": (lambda: exif("JPEG", comment=b"UNICODE\0" + TEXT.encode() + b"\0"), TEXT),
    "JPEG, short comment in UTF-16": (
        lambda: exif("JPEG", comment=b"UNICODE\0" + "海边的狗".encode("utf-16-le")),
        "海边的狗",
    ),
    "JPEG, comment with BOM": (lambda: exif("JPEG", comment=b"UNICODE\0" + JAPANESE.encode("utf-16")), JAPANESE),
    "JPEG, comment in JIS": (lambda: exif("JPEG", comment=b"JIS\0\0\0\0\0" + JAPANESE.encode("iso2022_jp")), JAPANESE),
    "JPEG, IPTC in UTF-8": (lambda: jpeg_iptc(iptc(JAPANESE.encode(), b"\x1b%G")), JAPANESE),
    "JPEG, IPTC in UTF-8 without code": (lambda: jpeg_iptc(iptc(TEXT.encode())), TEXT),
    "JPEG, IPTC in Latin-1": (lambda: jpeg_iptc(iptc(TEXT.encode("latin-1"))), TEXT),
    "JPEG, XMP in UTF-16": (lambda: saved("JPEG", xmp=packet().decode().encode("utf-16")), TEXT),
    "JPEG, XMP with a rest": (lambda: saved("JPEG", xmp=packet() + b"</rdf:RDF></x:xmpmeta>"), TEXT),
    "JPEG, name of the camera in EXIF": (
        lambda: saved("JPEG", exif=b"Exif\0\0" + tiff(**described(b"VIVITAR DIGITAL CAMERA\0")), xmp=packet()),
        TEXT,
    ),
    "HEIF, EXIF": (lambda: exif("HEIF", **described(TEXT.encode() + b"\0")), TEXT),
    "HEIF, XMP": (lambda: saved("HEIF", xmp=packet()), TEXT),
    "AVIF, EXIF": (lambda: exif("AVIF", **described(TEXT.encode() + b"\0")), TEXT),
    "AVIF, XMP": (lambda: saved("AVIF", xmp=packet()), TEXT),
    "WebP, EXIF": (lambda: exif("WEBP", **described(TEXT.encode() + b"\0")), TEXT),
    "WebP, XMP": (lambda: saved("WEBP", xmp=packet()), TEXT),
    "PNG, EXIF": (lambda: exif("PNG", **described(TEXT.encode() + b"\0")), TEXT),
    "PNG, EXIF at the end": (lambda: png((b"eXIf", tiff(**described(TEXT.encode() + b"\0"))), at_end=True), TEXT),
    "PNG, tEXt": (lambda: png((b"tEXt", b"Description\0" + TEXT.encode("latin-1"))), TEXT),
    "PNG, tEXt in UTF-8 at the end": (lambda: png((b"tEXt", b"description\0" + TEXT.encode()), at_end=True), TEXT),
    "PNG, IPTC": (
        lambda: png(
            (b"zTXt", b"Raw profile type iptc\0\0" + zlib.compress(hexadecimal(b"8BIM" + iptc(TEXT.encode()))))
        ),
        TEXT,
    ),
    "PNG, zTXt": (lambda: png((b"zTXt", b"Description\0\0" + zlib.compress(TEXT.encode("latin-1")))), TEXT),
    "PNG, iTXt": (lambda: png((b"iTXt", b"Description\0\0\0de\0\0" + JAPANESE.encode())), JAPANESE),
    "PNG, XMP at the end": (lambda: png((b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + packet()), at_end=True), TEXT),
    "PNG, raw XMP": (lambda: png((b"tEXt", b"Raw profile type xmp\0" + hexadecimal(packet()))), TEXT),
    "GIF, XMP": (lambda: saved("GIF")[:-1] + b"!\xff\x0bXMP DataXMP" + packet() + bytes(258) + b";", TEXT),
    "JPEG 2000, XMP": (
        lambda: saved("JPEG2000") + struct.pack(">I", 24 + len(packet())) + b"uuid" + XMP_UUID + packet(),
        TEXT,
    ),
}


@pytest.mark.parametrize("name", CAPTIONS)
def test_a_caption_is_read_wherever_programs_store_it(name, tmp_path):
    contents, expected = CAPTIONS[name]
    path = tmp_path / "photo"
    path.write_bytes(contents())
    assert caption_in_file(path) == expected


MACHINE_TEXTS = [
    "", "   ", "\0\0\0", "NIKON DSC D90", "MINOLTA DIGITAL CAMERA", "<Digimax S500 / Kenox S500 / Cyber 530>",
    "Exif_JPEG_PICTURE", "DCIM\\101GOPRO\\GOPR4711.JPG", "IMG_20240229_101530", "P1020304", "Sunset at sea.tiff",
    "default", "Screenshot", "My beautiful picture", "untitled", "Created with GIMP 2.10",
    "Processed with VSCO with b1 preset", "File written by Adobe Photoshop 4.0", "oznorWO", "oplus_2097184",
    "\x01\x02\x7f\x10", "ÿÿÿÿÿÿ", "????", "2019:07:01 10:00", '{"sensor_type":"rear","mirror":false}',
    "ImageJ=1.53t\nimages=5", '<?xml version="1.0"?><OME/>', "[[1, 2], [3, 4]]",
    "a castle, oil painting\nNegative prompt: blurry\nSteps: 30, Sampler: DPM++ 2M, Seed: 1", "c2FtcGxl0FtcGxl",
    "LEAD Technologies Inc. V1.01", "Shot on OnePlus", "..."
]  # fmt: skip


@pytest.mark.parametrize("text", MACHINE_TEXTS)
def test_a_text_of_a_camera_or_program_is_no_caption(text, tmp_path):
    path = tmp_path / "photo.tif"
    path.write_bytes(tiff(**described(text.encode() + b"\0")))
    assert caption_in_file(path) == ""
    path.write_bytes(saved("JPEG", comment=b"COG/104161/12695734 by hand"))
    assert caption_in_file(path) == ""


SHORT_TEXTS = [
    "Oma", "猫", "妈妈", "Grandma 1950", "2019年夏", "Created by Anna in 1987", "The camera of my father", "Å",
    "Sony, my cat", "[from left] Max, Eva", "[1950, Oma]", "<b>Oma</b>", "Company photo", "A dog.",
    "Image of the Virgin", "1984", "H2O", "U2 360", "\N{DOG FACE}",
]  # fmt: skip


@pytest.mark.parametrize("text", SHORT_TEXTS)
def test_a_short_text_of_a_person_is_a_caption(text, tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(exif("JPEG", **described(text.encode() + b"\0")))
    assert caption_in_file(path) == text


def test_the_names_of_the_camera_and_the_program_are_no_captions(tmp_path):
    path = tmp_path / "photo.jpg"
    for tag in (271, 272, 305):
        path.write_bytes(
            exif("JPEG", entries={DESCRIPTION: (2, b"Orbital Snapper\0"), tag: (2, b"ORBITAL SNAPPER \0")})
        )
        assert caption_in_file(path) == ""
    for text, caption in (
        (b"Orbital DS-9 Snapper camera\0", ""),
        (b"Orbital Snapper in orbit\0", "Orbital Snapper in orbit"),
    ):
        entries = {DESCRIPTION: (2, text), 271: (2, b"Orbital Co.\0"), 272: (2, b"Snapper DS-9\0")}
        path.write_bytes(exif("JPEG", entries=entries))
        assert caption_in_file(path) == caption


@pytest.mark.parametrize("value", [(3, 5), (4, 70000), (7, bytes(range(40))), (1, b"\xff\xd8\xff\xe0\0\x10")])
def test_binary_values_are_no_captions(value, tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(exif("JPEG", entries={DESCRIPTION: value}))
    assert caption_in_file(path) == ""


def test_damaged_metadata_do_not_hide_captions_elsewhere(tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(saved("JPEG", exif=b"Exif\0\0" + tiff(**described(TEXT.encode() + b"\0")), xmp=b"<x><y>\xff"))
    assert caption_in_file(path) == TEXT
    data = jpeg_iptc(iptc(TEXT.encode()))
    path.write_bytes(data[:2] + b"\xff\xe1\0\x10Exif\0\0II*\0\xff\xff\xff\xff" + data[2:])
    assert caption_in_file(path) == TEXT


def rdf(body):
    return (
        '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:dc="http://purl.org/dc/elements/1.1/" '
        f'xmlns:xmpMM="http://ns.adobe.com/xap/1.0/mm/" xmlns:tiff="http://ns.adobe.com/tiff/1.0/">{body}</rdf:RDF>'
    )


def text(value, lang="x-default"):
    return f'<dc:description><rdf:Alt><rdf:li xml:lang="{lang}">{value}</rdf:li></rdf:Alt></dc:description>'


NESTED = f"<rdf:Description>{text('a logo')}</rdf:Description>"
PACKETS = {
    "attribute": ('<rdf:Description dc:description="a dog"/>', ["a dog"]),
    "second description": (f"<rdf:Description/><rdf:Description>{text('a dog')}</rdf:Description>", ["a dog"]),
    "history": (
        f"<rdf:Description><xmpMM:History><rdf:Seq><rdf:li rdf:parseType='Resource'>{text('before')}</rdf:li></rdf:Seq>"
        f"</xmpMM:History>{text('a dog')}</rdf:Description>",
        ["a dog"],
    ),
    "ingredients": (
        f"<rdf:Description><xmpMM:Ingredients><rdf:Bag><rdf:li>{NESTED}</rdf:li></rdf:Bag></xmpMM:Ingredients>"
        f"<xmpMM:DerivedFrom>{NESTED}</xmpMM:DerivedFrom></rdf:Description>",
        [],
    ),
    "ingredient with attributes": (
        "<rdf:Description><xmpMM:Pantry><rdf:Bag><rdf:li><rdf:Description dc:description='a logo'/></rdf:li></rdf:Bag>"
        "</xmpMM:Pantry></rdf:Description>",
        [],
    ),
    "another subject": (
        f'<rdf:Description rdf:about=""/><rdf:Description rdf:about="logo.png">{text("a logo")}</rdf:Description>',
        [],
    ),
    "same subject": (
        f"<rdf:Description rdf:about='p.jpg'/><rdf:Description rdf:about='p.jpg'>{text('a dog')}</rdf:Description>",
        ["a dog"],
    ),
    "UUID": (
        f"<rdf:Description rdf:about=''/><rdf:Description rdf:about='uuid:7'>{text('a dog')}</rdf:Description>",
        ["a dog"],
    ),
    "default last": (
        "<rdf:Description><dc:description><rdf:Alt><rdf:li xml:lang='fr'>chien</rdf:li><rdf:li xml:lang='X-DEFAULT'>dog"
        "</rdf:li></rdf:Alt></dc:description></rdf:Description>",
        ["dog", "chien"],
    ),
    "plain text": ("<rdf:Description><dc:description> a<!-- no --> dog</dc:description></rdf:Description>", ["a dog"]),
    "qualified value": (
        "<rdf:Description><dc:description rdf:parseType='Resource'><rdf:value>a dog</rdf:value><dc:type>no</dc:type>"
        "</dc:description></rdf:Description>",
        ["a dog"],
    ),
    "copy of EXIF": ("<rdf:Description tiff:ImageDescription='a dog'/>", ["a dog"]),
    "title": ("<rdf:Description><dc:title>Anna</dc:title></rdf:Description>", []),
}


@pytest.mark.parametrize("name", PACKETS)
def test_only_descriptions_of_the_image_count(name):
    body, expected = PACKETS[name]
    assert find_captions(rdf(body).encode()) == expected
    assert find_captions(f'<x:xmpmeta xmlns:x="adobe:ns:meta/">{rdf(body)}</x:xmpmeta>'.encode()) == expected


def test_a_caption_is_not_written_into_an_ingredient():
    body, _ = PACKETS["ingredients"]
    written = add_caption(rdf(body).encode(), "a dog", "en").decode()
    assert find_captions(written.encode()) == ["a dog"]
    assert written.count("a logo") == 2


@pytest.mark.parametrize("lang", ["de", "De"])
def test_languages_are_replaced_whatever_their_case(lang):
    texts = "".join(text(f"old {lang}", lang) for lang in ("X-Default", "DE", "de-AT", "En"))
    before = rdf(f"<rdf:Description>{texts}</rdf:Description>")
    written = add_caption(before.encode(), "Hund", lang).decode()
    assert "old X-Default" not in written and "old DE" not in written
    assert written.count("old de-AT") == 1 and written.count("old En") == 1
    assert find_captions(written.encode())[0] == "Hund"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("name", ["photo.jpg.XMP", "photo.jpg.Xmp", "photo.jpg.xmp"])
def test_a_sidecar_of_any_encoding_and_case_is_read_and_merged(encoding, name, tmp_path):
    image, sidecar = tmp_path / "photo.jpg", tmp_path / name
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    sidecar.write_bytes(
        (mark + rdf(f"<rdf:Description tiff:Make='kept'>{text(JAPANESE)}</rdf:Description>")).encode(encoding)
    )
    assert caption_of_sidecar(image) == JAPANESE
    assert not write_sidecar(image, "a dog", "en")
    assert write_sidecar(image, "a dog", "en", replace=True)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert caption_of_sidecar(image) == "a dog" and b"kept" in sidecar.read_bytes()


def test_exiftool_writes_captions_that_are_read(tmp_path):
    if shutil.which("exiftool") is None:
        pytest.skip("exiftool is not installed")
    formats = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "tif": "TIFF", "avif": "AVIF"}
    formats |= {"gif": "GIF", "jp2": "JPEG2000"}
    files = {}
    for tag, kinds in {"XMP-dc:Description": formats, "EXIF:ImageDescription": list(formats)[:5]}.items():
        files[tag] = [tmp_path / f"{tag[:3]}.{kind}" for kind in kinds]
        for file in files[tag]:
            file.write_bytes(saved(formats[file.suffix[1:]]))
        command = ["exiftool", "-q", "-overwrite_original", "-charset", "exif=utf8", f"-{tag}={TEXT}", *files[tag]]
        subprocess.run(command, check=True, timeout=60)
    assert {file.name: caption_in_file(file) for group in files.values() for file in group} == {
        file.name: TEXT for group in files.values() for file in group
    }


def test_a_png_text_that_pillow_writes_is_read(tmp_path):
    info = PngImagePlugin.PngInfo()
    info.add_itxt("Description", JAPANESE, zip=True)
    (tmp_path / "photo.png").write_bytes(saved("PNG", pnginfo=info))
    assert caption_in_file(tmp_path / "photo.png") == JAPANESE


def test_beginnings_of_packets_without_an_end_are_searched_once(tmp_path):
    """A search for the end from each beginning would take minutes."""
    path = tmp_path / "photo.gif"
    path.write_bytes(saved("GIF") + b"<x:xmpmeta" * 300_000)
    assert caption_in_file(path) == ""


REFUSED = object()
"""In place of sentences: the value is an error that names file, column and row."""

JSON_VALUES = (
    ("a cow", ["a cow"]),
    ("", []),
    (" \t", []),
    (None, []),
    (float("nan"), []),
    ([], []),
    ({"raw": None}, []),
    (["a cow", None, "grass", ""], ["a cow", "grass"]),
    ({"raw": "A cow .", "tokens": ["A", "cow", "."]}, ["A cow ."]),
    ({"raw": None, "caption": "a cow"}, ["a cow"]),
    ({"sentence": "a cow", "id": 7}, ["a cow"]),
    ({"text": ["a cow", None, "grass"], "tokens": [["a"], [], []]}, ["a cow", "grass"]),
    ([{"text": "a cow"}, None, {"text": "grass"}], ["a cow", "grass"]),
    ([[{"text": "a cow"}], [{"text": "grass"}]], ["a cow", "grass"]),
    ("a\u2028cow\x0bon\x0cthe\x1cgreen\x1d\x1e\x85grass\u2029", ["a cow on the green   grass"]),
    ("a\r\ncow\rgrazes\n", ["a cow grazes"]),
    ("NUL\0 kept", ["NUL\0 kept"]),
    ("None", ["None"]),
    (0, REFUSED),
    (7, REFUSED),
    (1.5, REFUSED),
    (True, REFUSED),
    (False, REFUSED),
    ([3, 4], REFUSED),
    ([["a", "cow"], ["grass"]], REFUSED),
    ({"tokens": ["a", "cow"]}, REFUSED),
    ({"text": 3}, REFUSED),
    ({}, REFUSED),
)
ARROW_VALUES = (
    (pa.array(["a cow"], pa.large_string()), ["a cow"]),
    (pa.array(["a cow"], pa.string_view()), ["a cow"]),
    (pa.array(["a cow"]).dictionary_encode(), ["a cow"]),
    (pa.array(["a cow \U0001f404".encode()]), ["a cow \U0001f404"]),
    (pa.array([[b"a cow", None]], pa.list_(pa.large_binary())), ["a cow"]),
    (pa.array([["a cow", "grass"]], pa.list_(pa.string(), 2)), ["a cow", "grass"]),
    (pa.array([[("caption", "a cow")]], pa.map_(pa.string(), pa.string())), ["a cow"]),
    (pa.array([[("of", "a cow")]], pa.map_(pa.string(), pa.string())), REFUSED),
    (pa.array([b"caf\xe9"]), REFUSED),
    (pa.array([b"caf\xe9"]).view(pa.string()), REFUSED),
    (pa.array([date(2020, 2, 2)]), REFUSED),
    (pa.array([Decimal("1.5")]), REFUSED),
)


@pytest.fixture(scope="module")
def jpeg():
    return test_shards.jpeg()


def write_jsonl(folder, value, jpeg):
    row = {"id": "1", "split": "train", "image": "", "lang": "en", "text": value}
    (folder / "t.jsonl").write_text(json.dumps(row), encoding="utf-8")
    return folder / "t.jsonl"


def write_shard(folder, value, jpeg):
    return test_shards.shard(folder / "s.tar", [("1.jpg", jpeg), ("1.json", json.dumps({"caption": value}).encode())])


def write_list_of_shard(folder, value, jpeg):
    return test_shards.shard(folder / "s.tar", [("1.jpg", jpeg), ("1.json", json.dumps([value]).encode())])


def write_coco(folder, value, jpeg):
    (folder / "1.jpg").write_bytes(jpeg)
    annotation = {"id": 1, "image_id": 1, "caption": value}
    contents = {"images": [{"id": 1, "file_name": "1.jpg"}], "annotations": [annotation]}
    (folder / "captions_train.json").write_text(json.dumps(contents))
    return folder


def write_karpathy(folder, value, jpeg):
    (folder / "1.jpg").write_bytes(jpeg)
    contents = {"images": [{"filename": "1.jpg", "split": "train", "sentences": [value]}]}
    (folder / "dataset.json").write_text(json.dumps(contents))
    return folder


def write_parquet(folder, value, jpeg):
    texts = value if isinstance(value, pa.Array | pa.ChunkedArray) else pa.array([value])
    parquet.write_table(pa.table({"image": [jpeg], "captions": texts}), folder / "p.parquet")
    return folder / "p.parquet"


def write_datasets(folder, value, jpeg):
    datasets = pytest.importorskip("datasets")
    texts = value if isinstance(value, pa.Array) else pa.array([value])
    rows = datasets.Dataset(pa.table({"image": pa.array([jpeg]), "captions": texts}))
    rows.save_to_disk(str(folder / "d"))
    return folder / "d"


def check(kind, source, value, expected):
    if expected is not REFUSED:
        (item,) = read_source(kind, source).items
        assert item.texts("en") == expected
        return
    with pytest.raises(CollectionError) as error:
        read_source(kind, source)
    message = str(error.value)
    assert str(source) in message and ":" in message.removeprefix(str(source)) and "\n" not in message
    assert "expected a text" in message


@pytest.mark.parametrize(("value", "expected"), JSON_VALUES)
@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("jsonl", write_jsonl),
        ("webdataset", write_shard),
        ("webdataset", write_list_of_shard),
        ("coco", write_coco),
        ("karpathy", write_karpathy),
        ("parquet", write_parquet),
    ],
)
def test_values_of_captions(tmp_path, jpeg, kind, write, value, expected):
    if write in (write_list_of_shard, write_karpathy) and isinstance(value, list) and expected != []:
        expected = expected if any(isinstance(part, dict | list) for part in value) else REFUSED  # lists of lists
    if value == {} and write is write_parquet:
        pytest.skip("Parquet has no structs without fields")
    check(kind, write(tmp_path, value, jpeg), value, expected)


@pytest.mark.parametrize(("value", "expected"), ARROW_VALUES, ids=[str(value.type) for value, _ in ARROW_VALUES])
def test_values_of_captions_in_arrow(tmp_path, jpeg, value, expected):
    check("parquet", write_parquet(tmp_path, value, jpeg), value, expected)


@pytest.mark.filterwarnings("ignore")  # of the library
def test_values_of_captions_in_data_sets(tmp_path, jpeg):
    texts = pa.array([{"raw": ["A cow .", None], "tokens": [["A"], []]}])
    check("datasets", write_datasets(tmp_path, texts, jpeg), texts, ["A cow ."])
    (tmp_path / "numbers").mkdir()
    numbers = pa.array([[0, 1]])
    check("datasets", write_datasets(tmp_path / "numbers", numbers, jpeg), numbers, REFUSED)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"])
def test_only_line_feeds_separate_sentences(tmp_path, jpeg, separator):
    text = f"a cow{separator}grazes"
    lines = f"{text}\r\ngrass\n".encode()
    expected = ["a cow grazes", "grass"]
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.jpg").write_bytes(jpeg)
    (tmp_path / "photos" / "1.txt").write_bytes(lines)
    rows = io.StringIO()
    csv.writer(rows).writerows(
        [["id", "split", "image", "lang", "text"], *([1, "train", "", "en", t] for t in (text, "grass"))]
    )
    (tmp_path / "t.csv").write_bytes(rows.getvalue().encode())
    sources = {
        "folder": tmp_path / "photos",
        "webdataset": test_shards.shard(tmp_path / "s.tar", [("1.jpg", jpeg), ("1.txt", lines)]),
        "csv": tmp_path / "t.csv",
        "parquet": write_parquet(tmp_path, [text, "grass"], jpeg),
    }
    found = {kind: [item.texts("en") for item in read_source(kind, source).items] for kind, source in sources.items()}
    assert found == {kind: [expected] for kind in sources}


NAMES = (
    ([0, 1], ["0", "1"]),
    ([0.0, 3.0], ["0", "3"]),
    ([-1, -2], ["-1", "-2"]),
    ([b"a", b"b"], ["a", "b"]),
    (["a b/c", " d "], ["a b/c", "d"]),
    ([None, ""], ["p-000000000", "p-000000001"]),
    ([float("nan"), 7.0], ["p-000000000", "7"]),
    ([1.5, 2.5], ["1.5", "2.5"]),
    ([date(2020, 2, 2), None], ["2020-02-02", "p-000000001"]),
    ([{"a": 1}, {"a": 2}], REFUSED),
    ([[1], [2]], REFUSED),
)


@pytest.mark.parametrize(("ids", "expected"), NAMES)
def test_ids_of_parquet(tmp_path, ids, expected):
    parquet.write_table(pa.table({"id": ids, "text": ["a cow", "grass"]}), tmp_path / "p.parquet")
    if expected is not REFUSED:
        assert [item.id for item in read_source("parquet", tmp_path / "p.parquet").items] == expected
        return
    with pytest.raises(CollectionError, match=r"p\.parquet:row 0: 'id' is a (struct|list)\b"):
        read_source("parquet", tmp_path / "p.parquet")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0, None, 1], ["0", None, "1"]),
        ([0.0, float("nan"), 2.0], ["0", None, "2"]),
        ([False, None, True], ["false", None, "true"]),
        (["", "cow", None], [None, "cow", None]),
    ],
)
def test_labels(tmp_path, labels, expected):
    texts = ["a cow", "grass", "sky"]
    parquet.write_table(pa.table({"text": texts, "label": labels}), tmp_path / "p.parquet")
    rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for kind, name in (("parquet", "p.parquet"), ("jsonl", "t.jsonl")):
        assert [item.label for item in read_source(kind, tmp_path / name).items] == expected


@pytest.mark.filterwarnings("ignore")  # of the library
def test_labels_have_the_names_of_their_classes(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["cow", "dog"])})
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c", "d"], "label": [0, 1, -1, None]}, features)
    data.to_parquet(str(tmp_path / "p.parquet"))
    data.save_to_disk(str(tmp_path / "d"))
    for kind, source in (("parquet", tmp_path / "p.parquet"), ("datasets", tmp_path / "d")):
        assert [item.label for item in read_source(kind, source).items] == ["cow", "dog", None, None]


def test_null_languages_splits_and_images_are_missing(tmp_path, jpeg):
    image = pa.array([{"bytes": None, "path": None}, {"bytes": jpeg, "path": None}, None])
    columns = {"image": image, "text": ["a", None, None], "lang": [float("nan"), 1.0, 1.0], "split": ["val", None, ""]}
    parquet.write_table(pa.table(columns), tmp_path / "p.parquet")
    reading = read_source("parquet", tmp_path / "p.parquet", ReaderOptions(lang="de"))
    found = [(item.image, item.split, [tuple(one[:2]) for one in item.sentences]) for item in reading.items]
    assert found == [(None, "val", [("de", "a")]), ("images/p/000000001.jpg", "train", [])]
    assert reading.tally.skipped == {"rows without an image and a text": 1}


def test_rows_of_an_item_have_groups_of_their_own(tmp_path):
    rows = [{"id": 0, "text": text, "lang": lang} for lang, text in [("en", ["a", "b"]), ("de", ["c"]), ("en", ["d"])]]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    (item,) = read_source("parquet", tmp_path / "p.parquet").items
    assert [(one.lang, one.text, one.group) for one in item.sentences] == [
        ("en", "a", 0),
        ("en", "b", 1),
        ("de", "c", 0),
        ("en", "d", 2),
    ]


def test_null_captions_of_coco_are_counted(tmp_path, jpeg):
    assert read_source("coco", write_coco(tmp_path, None, jpeg)).tally.skipped == {"empty sentences": 1}


def test_captions_of_an_import_are_lines(tmp_path, jpeg):
    """Stored sentences can be written to files of lines: what separated lines in them is a space."""
    source = write_parquet(tmp_path, ["a\u2028cow", "green\x85grass\x1don\na hill"], jpeg)
    import_collection("parquet", source, tmp_path / "c")
    (item,) = Collection.open(tmp_path / "c").items()
    assert [line for text in item.texts("en") for line in text.splitlines()] == ["a cow", "green grass on a hill"]
