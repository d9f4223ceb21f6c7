"""Captions in image files and sidecars: what is written, what stays as it was, and what is refused."""

import csv
import io
import itertools
import json
import os
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, PngImagePlugin

from limner.apps.cli.caption_output import caption_output
from limner.apps.cli.stored_captions import StoredCaptions
from limner.apps.photos.captions import (
    caption_in_file,
    caption_of_sidecar,
    embed_caption,
    sidecar_path,
    write_packet,
    write_sidecar,
)
from limner.apps.photos.metadata import add_caption, find_captions, read_metadata
from limner.apps.report.rendering import render_page
from limner.decoding.sentence import Sentence
from limner.errors import MetadataError, RunError, SettingsError
from limner.inference.captioner import Captioner
from limner.storage.outputs import save_output

FOREIGN = (
    b'<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/"><!-- kept -->'
    b'<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about="" '
    b'xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmp:Rating="4" xmlns:own="http://example.org/own/">'
    b"<own:list><rdf:Bag><rdf:li>one</rdf:li></rdf:Bag></own:list>%s</rdf:Description></rdf:RDF></x:xmpmeta>"
    b'<?xpacket end="w"?>'
)
DESCRIBED = (
    b'<dc:description xmlns:dc="http://purl.org/dc/elements/1.1/"><rdf:Alt><rdf:li xml:lang="x-default">Grandma'
    b'</rdf:li><rdf:li xml:lang="fr">Grand-m\xc3\xa8re</rdf:li></rdf:Alt></dc:description>'
)
JPEG_XMP, EXTENDED = b"http://ns.adobe.com/xap/1.0/\0", b"http://ns.adobe.com/xmp/extension/\0"
FORMATS = ["JPEG", "PNG", "WEBP", "WEBP lossless"]


def pixels():
    values = np.random.default_rng(1).integers(0, 256, (24, 33, 3), dtype=np.uint8)
    return Image.fromarray(values)


def encoded(format_, **options):
    stream = io.BytesIO()
    name, _, lossless = format_.partition(" ")
    if lossless:
        options["lossless"] = True
    pixels().save(stream, name, **options)
    return stream.getvalue()


def opened(path):
    image = Image.open(io.BytesIO(path.read_bytes()))
    image.load()
    return image


def segment(payload, marker=0xE1):
    return bytes([0xFF, marker]) + (len(payload) + 2).to_bytes(2, "big") + payload


def chunk(name, payload):
    return len(payload).to_bytes(4, "big") + name + payload + zlib.crc32(name + payload).to_bytes(4, "big")


def with_packets(*payloads):
    data = encoded("JPEG")
    return data[:2] + b"".join(map(segment, payloads)) + data[2:]


@pytest.fixture(params=FORMATS)
def photo(request, tmp_path):
    suffix = request.param.partition(" ")[0].lower()
    path = tmp_path / f"photo.{suffix}"
    exif = Image.Exif()
    exif[0x0110] = "a camera"
    path.write_bytes(
        encoded(
            request.param,
            exif=exif.tobytes(),
            icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes(),
        )
    )
    return path


def test_a_caption_is_embedded_and_nothing_else_changes(photo):
    os.utime(photo, (10**9, 10**9))
    photo.chmod(0o640)
    before = opened(photo)
    assert embed_caption(photo, "Äpfel & <birds> in the snow", "en")
    assert caption_in_file(photo) == "Äpfel & <birds> in the snow"
    after = opened(photo)
    assert after.tobytes() == before.tobytes()
    assert after.info["icc_profile"] == before.info["icc_profile"]
    assert dict(after.getexif()) == dict(before.getexif())
    assert (photo.stat().st_mtime, photo.stat().st_mode & 0o777) == (10**9, 0o640)
    assert [path.name for path in photo.parent.iterdir()] == [photo.name]


def test_replacing_a_caption_restores_the_bytes_of_the_rest(photo):
    embed_caption(photo, "one", "en")
    once = photo.read_bytes()
    assert not embed_caption(photo, "two", "en")
    assert photo.read_bytes() == once
    assert embed_caption(photo, "two", "en", replace=True)
    assert caption_in_file(photo) == "two"
    assert embed_caption(photo, "one", "en", replace=True)
    assert photo.read_bytes() == once


def test_other_properties_of_a_packet_are_kept():
    written = add_caption(FOREIGN % b"", "a dog", "en")
    for kept in (
        b'xmp:Rating="4"',
        b"<!-- kept -->",
        b"<own:list>",
        b'<?xpacket end="w"?>',
        b"W5M0MpCehiHzreSzNTczkc9d",
    ):
        assert kept in written
    assert find_captions(written) == ["a dog"]


def test_texts_in_other_languages_are_kept():
    written = add_caption(FOREIGN % DESCRIBED, "Oma", "de").decode()
    assert "Grand-mère" in written and "Grandma" not in written
    assert written.count('xml:lang="de"') == 2  # description and alternative text


def test_a_caption_of_a_person_is_kept_unless_it_is_replaced(tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(with_packets(JPEG_XMP + FOREIGN % DESCRIBED))
    before = path.read_bytes()
    assert not embed_caption(path, "a woman", "en")
    assert path.read_bytes() == before
    exif = Image.Exif()
    exif[0x010E] = "Grandma 1950"
    path.write_bytes(encoded("JPEG", exif=exif.tobytes()))
    assert caption_in_file(path) == "Grandma 1950"
    assert not embed_caption(path, "a woman", "en")


def test_sidecars_are_merged(tmp_path):
    image = tmp_path / "photo.jpg"
    assert sidecar_path(image).name == "photo.jpg.xmp"
    sidecar_path(image).write_bytes(FOREIGN % b"")
    assert write_sidecar(image, "a dog", "en")
    assert b'xmp:Rating="4"' in sidecar_path(image).read_bytes()
    assert not write_sidecar(image, "a cat", "en")
    assert write_sidecar(image, "a cat", "en", replace=True)
    assert caption_of_sidecar(image) == "a cat"


def test_a_raw_file_and_a_jpeg_of_one_stem_have_sidecars_of_their_own(tmp_path):
    captions = {"p.jpg": "a dog", "p.cr2": "a cat", "p.CR2": "a cow"}
    (tmp_path / "p.xmp").write_bytes(FOREIGN % DESCRIBED)  # of the other name: it is read where there is no other
    for name, text in captions.items():
        assert caption_of_sidecar(tmp_path / name) == "Grandma"
        assert write_sidecar(tmp_path / name, text, "en")
    assert [caption_of_sidecar(tmp_path / name) for name in captions] == [*captions.values()]
    assert {path.name for path in tmp_path.iterdir()} == {"p.xmp", *(f"{name}.xmp" for name in captions)}
    assert (tmp_path / "p.xmp").read_bytes() == FOREIGN % DESCRIBED


HOSTILE_XML = {
    "entities": b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]><x>&b;</x>',
    "external": b'<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><x>&a;</x>',
    "no XML": b"\x00\x01\x02 not xml",
    "cut off": FOREIGN[:200],
    "no RDF": b"<x/>",
    "deep": b"<a>" * 5000 + b"</a>" * 5000,
    "UTF-16 doctype": '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE x [<!ENTITY a "b">]><x/>'.encode("utf-16"),
}


@pytest.mark.parametrize("packet", HOSTILE_XML.values(), ids=HOSTILE_XML)
def test_hostile_packets_are_refused_and_kept(packet, tmp_path):
    image = tmp_path / "photo.jpg"
    image.write_bytes(with_packets(JPEG_XMP + packet))
    sidecar_path(image).write_bytes(packet)
    before = image.read_bytes()
    for write in (embed_caption, write_sidecar):
        with pytest.raises(MetadataError, match=r"photo\.jpg.*: expected"):
            write(image, "a dog", "en", replace=True)
    assert (image.read_bytes(), sidecar_path(image).read_bytes()) == (before, packet)


def damaged_files():
    jpeg, png, webp = (encoded(name) for name in ("JPEG", "PNG", "WEBP"))
    header = encoded("PNG")[:33]
    small = JPEG_XMP + add_caption(None, "one", "en")
    return {
        "cut off JPEG": jpeg[:-20],
        "cut off segment": jpeg[:10],
        "segment of length 0": jpeg[:2] + b"\xff\xe1\x00\x00" + jpeg[2:],
        "segment beyond the end": jpeg[:2] + b"\xff\xe1\xff\xff" + jpeg[2:300],
        "two packets": with_packets(small, small),
        "extended packet": with_packets(small, EXTENDED + bytes(40)),
        "several images": jpeg[:2] + segment(b"MPF\0" + bytes(20), 0xE2) + jpeg[2:],
        "cut off PNG": png[:-14],
        "PNG without its checksum": png[:50] + bytes([png[50] ^ 1]) + png[51:],
        "PNG with two packets": header + 2 * chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0<x/>") + png[33:],
        "PNG with a raw profile": header + chunk(b"zTXt", b"Raw profile type xmp\0\0") + png[33:],
        "PNG with a bomb": header
        + chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(bytes(20 << 20)))
        + png[33:],
        "cut off WebP": webp[:-10],
        "WebP of another size": webp[:4] + struct.pack("<I", len(webp) + 20) + webp[8:],
        "GIF": encoded("GIF"),
        "TIFF": encoded("TIFF"),
        "empty": b"",
        "one byte": b"\xff",
    }


@pytest.mark.parametrize("name", damaged_files())
def test_files_that_cannot_hold_a_caption_stay_as_they_are(name, tmp_path):
    path = tmp_path / "photo.jpg"
    data = damaged_files()[name]
    path.write_bytes(data)
    with pytest.raises(MetadataError, match=r"photo\.jpg: .*(sidecar|copy)"):
        embed_caption(path, "a dog", "en", replace=True)
    assert path.read_bytes() == data


@pytest.mark.parametrize("format_", FORMATS)
def test_every_beginning_of_a_file_is_refused(format_):
    data = encoded(format_)
    for end in range(0, len(data), 7):
        with pytest.raises(MetadataError):
            write_packet(data[:end], b"<x/>")


def test_a_packet_too_large_for_a_segment_is_refused(tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(encoded("JPEG"))
    with pytest.raises(MetadataError, match=r"at most 65,504 bytes"):
        embed_caption(path, "a" * 40_000, "en")


def test_a_compressed_packet_of_a_png_file_is_read():
    data = encoded("PNG")
    packet = add_caption(None, "a dog", "en")
    stored = chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(packet))
    assert read_metadata(data[:33] + stored + data[33:]) == ("a dog", packet)


def test_bytes_after_the_image_are_kept(tmp_path):
    for format_ in ("JPEG", "PNG"):
        path = tmp_path / "photo"
        path.write_bytes(encoded(format_) + b"a film of a phone")
        embed_caption(path, "a dog", "en")
        assert path.read_bytes().endswith(b"a film of a phone")


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real.jpg").write_bytes(encoded("JPEG"))
    (tmp_path / "link.jpg").symlink_to("real.jpg")
    embed_caption(tmp_path / "link.jpg", "a dog", "en")
    assert (tmp_path / "link.jpg").is_symlink() and caption_in_file(tmp_path / "real.jpg") == "a dog"


def test_text_in_a_png_file_is_kept(tmp_path):
    info = PngImagePlugin.PngInfo()
    info.add_text("Author", "Somebody")
    path = tmp_path / "photo.png"
    path.write_bytes(encoded("PNG", pnginfo=info))
    embed_caption(path, "a dog", "en")
    assert opened(path).text["Author"] == "Somebody"


@pytest.fixture
def exiftool():
    if shutil.which("exiftool") is None:
        pytest.skip("exiftool is not installed")

    def read(path, *tags):
        command = ["exiftool", "-s3", "-charset", "filename=utf8", *(f"-{tag}" for tag in tags), str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()

    return read


def test_exiftool_reads_embedded_captions(photo, exiftool):
    embed_caption(photo, "Äpfel in the snow", "en")
    tags = ("XMP-dc:Description", "XMP-dc:Description-en", "XMP-iptcCore:AltTextAccessibility", "Warning")
    assert exiftool(photo, *tags) == ["Äpfel in the snow"] * 3


def test_exiftool_reads_sidecars(tmp_path, exiftool):
    write_sidecar(tmp_path / "photo.jpg", "Äpfel in the snow", "de")
    tags = ("XMP-dc:Description", "XMP-dc:Description-de", "XMP-iptcCore:AltTextAccessibility", "Warning")
    assert exiftool(sidecar_path(tmp_path / "photo.jpg"), *tags) == ["Äpfel in the snow"] * 3


@pytest.fixture
def photos(tmp_path):
    """A folder with two photographs, one of them in a folder inside."""
    (tmp_path / "inside").mkdir()
    for name in ("a.jpg", "inside/b.png"):
        pixels().save(tmp_path / name)
    return tmp_path


def test_describe_writes_sidecars_and_keeps_those_with_a_caption(photos, trained, command_line):
    command = ("describe", photos, "--recursive", "--model", trained, "--write", "xmp")
    status, printed, errors = command_line(*command)
    assert (status, printed.count("\n")) == (0, 2) and "captions: 2 written" in errors
    assert caption_of_sidecar(photos / "a.jpg") in printed
    assert "0 written, 2 kept" in command_line(*command)[2]
    assert "2 written" in command_line(*command, "--replace")[2]
    assert sorted(path.name for path in photos.rglob("*.xmp")) == ["a.jpg.xmp", "b.png.xmp"]


def test_no_sidecar_hides_a_caption_in_the_image(photos, trained, command_line):
    embed_caption(photos / "a.jpg", "Grandma, 1954", "en")
    status, _, errors = command_line("describe", photos, "--recursive", "--model", trained, "--write", "xmp")
    assert status == 0 and "1 kept" in errors
    assert sorted(path.name for path in photos.rglob("*.xmp")) == ["b.png.xmp"]


def test_describe_writes_texts_beside_the_images(photos, trained, command_line):
    command = ("describe", photos, "--recursive", "--model", trained, "--write")
    assert command_line(*command, "txt")[0] == 0
    text = (photos / "inside" / "b.txt").read_text()
    (photos / "a.txt").write_text("mine\n")
    assert command_line(*command, "txt")[0] == 0
    assert ((photos / "a.txt").read_text(), (photos / "inside" / "b.txt").read_text()) == ("mine\n", text)


def test_describe_writes_a_table_in_the_folder(photos, trained, command_line, caplog):
    (photos / "empty").mkdir()
    command = ("describe", photos / "empty", photos, "--recursive", "--write", "csv")
    status, _, errors = command_line(*command, "--model", trained)
    assert (
        status == 0
        and errors.endswith("captions: 2 written\n")
        and "empty: no images in this folder; name" in caplog.text
    )
    rows = list(csv.DictReader((photos / "captions.csv").open()))
    assert [row["image"] for row in rows] == ["a.jpg", "inside/b.png"] and all(row["caption"] for row in rows)
    table = (photos / "captions.csv").read_bytes()
    status, printed, errors = command_line(*command, "--lang", "de")
    assert (status, printed) == (0, "")
    assert "0 written, 2 kept, in English (en) (--replace writes German (de))" in errors
    assert (photos / "captions.csv").read_bytes() == table


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_tables_grow_and_survive_an_interruption(kind, photos, trained, command_line, monkeypatch):
    def images():
        lines = table.read_text().splitlines()
        return [json.loads(line)["image"] if kind == "jsonl" else line.partition(",")[0] for line in lines]

    table, head = photos / f"captions.{kind}", ["image"] * (kind == "csv")
    pixels().save(photos / "c.png")
    (photos / "d.png").write_bytes(b"no image")
    command = ("describe", photos, "--recursive", "--model", trained, "--batch-size", 1, "--write", kind)
    describe_each = Captioner.describe_each

    def interrupted(*arguments, **options):
        yield from itertools.islice(describe_each(*arguments, **options), 1)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Captioner, "describe_each", interrupted)
        assert command_line(*command)[0] == 130
    assert images() == [*head, "a.jpg"]
    with table.open("a") as stream:
        stream.write("c.png" if kind == "csv" else '{"image": "c.p')  # killed within a line
    status, _, errors = command_line(*command)
    unreadable = ["d.png"] * (kind == "jsonl")
    assert status == 1 and "2 written, 1 kept" in errors
    assert images() == [*head, "a.jpg", "c.png", *unreadable, "inside/b.png"]
    pixels().save(photos / "d.png")
    assert "1 written, 3 kept" in command_line(*command)[2]
    assert images() == [*head, "a.jpg", "c.png", "inside/b.png", "d.png"]
    assert "4 written" in command_line(*command, "--replace")[2]
    assert images() == [*head, "a.jpg", "c.png", "d.png", "inside/b.png"]


@pytest.mark.parametrize(
    ("kind", "foreign"), [("csv", "file;text\na.jpg;mine\n"), ("jsonl", '{"file": "a.jpg"}\n'), ("jsonl", "mine\n")]
)
def test_a_foreign_table_is_refused_without_force(kind, foreign, photos, trained, command_line):
    table = photos / f"captions.{kind}"
    table.write_text(foreign)
    command = ("describe", photos, "--model", trained, "--write", kind)
    for options in ((), ("--replace",)):
        status, printed, errors = command_line(*command, *options)
        assert (status, printed) == (1, "") and f"captions.{kind} exists" in errors and "--force" in errors
        assert table.read_text() == foreign
    assert command_line(*command, "--force")[0] == 0 and "mine" not in table.read_text()


def test_captions_that_were_corrected_stay_when_columns_are_added(photos, trained, command_line):
    table = photos / "captions.csv"
    command = ("describe", photos, "--model", trained, "--write", "csv")
    assert command_line(*command)[0] == 0
    pixels().save(photos / "c.png")
    assert command_line(*command, "--embed")[0] == 0
    rows = list(csv.DictReader(table.open()))
    assert [(row["image"], row["origin"]) for row in rows] == [("a.jpg", "model"), ("c.png", "model")]
    pixels().save(photos / "e.png")
    rows[0]["caption"] = "Grandma, and I"
    with table.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    assert "1 written, 2 kept" in command_line(*command)[2]
    assert next(csv.DictReader(table.open()))["caption"] == "Grandma, and I"


def test_tables_list_the_captions_that_are_kept_in_the_files(photos, trained, command_line):
    embed_caption(photos / "a.jpg", "Grandma, 1954", "en")
    pixels().save(photos / "c.gif")
    command = ("describe", photos, "--recursive", "--model", trained, "--embed", "--write")
    status, printed, errors = command_line(*command, "jsonl")
    assert status == 1 and printed.count("\n") == 1 and "captions: 1 written, 1 kept" in errors
    assert "c.gif: expected JPEG, PNG or WebP" in errors and caption_in_file(photos / "inside" / "b.png")
    kept, refused, generated = (json.loads(line) for line in (photos / "captions.jsonl").read_text().splitlines())
    assert (kept["image"], kept["captions"][0]["text"], kept["origin"]) == ("a.jpg", "Grandma, 1954", "file")
    assert (generated["image"], generated["origin"]) == ("inside/b.png", "model")
    assert refused["image"] == "c.gif" and "expected JPEG, PNG or WebP" in refused["error"]
    (photos / "c.gif").unlink()
    status, printed, errors = command_line(*command, "csv")  # nothing is left to describe
    assert (status, printed) == (0, "") and "0 written, 2 kept" in errors
    rows = list(csv.DictReader((photos / "captions.csv").open()))
    assert [(row["image"], row["origin"]) for row in rows] == [("a.jpg", "file"), ("inside/b.png", "file")]


def test_a_file_that_is_no_image_is_named_as_such(tmp_path, command_line):
    (tmp_path / "fake.jpg").write_text("mine")
    for options in ((), ("--embed",), ("--write", "csv")):
        status, _, errors = command_line("describe", tmp_path / "fake.jpg", *options)
        assert status == 1 and "fake.jpg: not an image" in errors and "--write xmp" not in errors
    assert "found a file; name its folder" in command_line("index", tmp_path / "fake.jpg")[2]


def test_a_missing_file_of_the_package_is_no_full_disk():
    with pytest.raises(RunError, match=r"gone\.css: missing in the package; install"):
        save_output(Path("page.html"), lambda _: render_page("matches.html", styles=("gone.css",), scripts=()))


@pytest.mark.parametrize(("kind", "embed"), [(None, True), ("xmp", False), ("txt", False)])
def test_a_caption_of_which_the_model_is_not_sure_is_not_written(tmp_path, capsys, kind, embed):
    image = tmp_path / "photo.png"
    image.write_bytes(encoded("PNG"))
    before = image.read_bytes()
    stored = StoredCaptions(kind, embed, False)
    assert stored.select([image]) == [image]
    stored.store(image, [Sentence((), -1.0, -1.0, text="a dog runs", confidence=0.1, is_sure=False)], "en")
    stored.report("en")
    assert image.read_bytes() == before
    assert list(tmp_path.iterdir()) == [image]
    assert "0 written, 1 not sure and not written" in capsys.readouterr().err


def image_files(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(encoded("PNG"))
    return [folder / name for name in names]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("txt", ["cat.png", "cat.webp"]),
        ("txt", ["a/Cat.PNG", "a/dog.png", "a/cat.tif"]),
        ("txt", ["caf\u00e9.png", "cafe\u0301.jpg"]),
    ],
)
def test_two_images_with_one_file_of_captions_are_refused_before_the_work(kind, names, tmp_path):
    files = image_files(tmp_path, *names)
    stored = StoredCaptions(kind, False, True)
    with pytest.raises(
        SettingsError, match=rf"{re.escape(str(files[0]))} and {re.escape(str(files[-1]))} .*rename"
    ) as raised:
        stored.select(files)
    assert "\n" not in str(raised.value) and len(list(tmp_path.rglob("*.*"))) == len(files)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("xmp", ["cat.jpg", "cat.png"]),
        ("txt", ["a/cat.png", "b/cat.webp"]),
        ("txt", ["cat.png", "cat.png"]),
        ("txt", ["cat.1.png", "cat.2.png"]),
        (None, ["cat.jpg", "cat.png"]),
    ],
)
def test_images_with_files_of_their_own_are_not_refused(kind, names, tmp_path):
    files = image_files(tmp_path, *names)
    assert StoredCaptions(kind, False, kind is not None).select(files) == files


def test_a_text_file_that_is_there_is_kept_in_any_case_of_its_suffix(tmp_path):
    files = image_files(tmp_path, "a.png", "b.png", "c.png")
    for name, text in (("a.TXT", "mine"), ("b.txt", "")):
        (tmp_path / name).write_text(text)
    stored = StoredCaptions("txt", False, False)
    assert stored.select(files) == files[1:]
    for file in files[1:]:
        stored.store(file, [Sentence((), -1.0, -1.0, text="a dog")], "en")
    assert {path.name: path.read_text() for path in tmp_path.glob("*.[tT]*")} == {
        "a.TXT": "mine",
        "b.txt": "a dog\n",
        "c.txt": "a dog\n",
    }


def test_a_caption_of_a_sidecar_of_the_other_name_is_kept(tmp_path):
    files = image_files(tmp_path, "a.png", "b.png")
    (tmp_path / "a.xmp").write_bytes(add_caption(None, "Grandma", "en"))
    (tmp_path / "b.xmp").write_text("damaged")  # nothing is written to it
    stored = StoredCaptions("xmp", False, False)
    assert stored.select(files) == files[1:]
    assert stored.kept == 1 and not stored.errors


@pytest.mark.parametrize(
    "packet", [b"<x:xmpmeta", FOREIGN % b"" + b"</x:xmpmeta>", b"<a>\xe4</a>", HOSTILE_XML["entities"]]
)
def test_a_damaged_packet_in_the_image_refuses_embedding_only(packet, tmp_path):
    image = tmp_path / "photo.jpg"
    image.write_bytes(with_packets(JPEG_XMP + packet))
    before = image.read_bytes()
    stored = StoredCaptions("xmp", False, False)
    assert stored.select([image]) == [image]
    stored.store(image, [Sentence((), -1.0, -1.0, text="a dog")], "en")
    assert (stored.written, stored.errors, caption_of_sidecar(image)) == (1, [], "a dog")
    embedded = StoredCaptions(None, True, True)
    assert embedded.select([image]) == []
    assert re.search(r"photo\.jpg: its XMP packet: .*; write a sidecar", str(embedded.errors[0]))
    assert image.read_bytes() == before


@pytest.mark.parametrize("replace", [False, True])
def test_a_damaged_sidecar_is_refused_by_name_before_the_work(replace, tmp_path):
    image = image_files(tmp_path, "photo.png")[0]
    sidecar_path(image).write_bytes(FOREIGN[:300])
    stored = StoredCaptions("xmp", False, replace)
    assert stored.select([image]) == []
    assert re.search(r"photo\.png\.xmp: expected XML.*; correct or remove it", str(stored.errors[0]))
    assert sidecar_path(image).read_bytes() == FOREIGN[:300]


def test_the_name_of_a_camera_in_a_sidecar_is_replaced(tmp_path):
    image = image_files(tmp_path, "photo.png")[0]
    sidecar_path(image).write_bytes(add_caption(FOREIGN % b"", "PENTAX DIGITAL CAMERA", "en"))
    assert write_sidecar(image, "a dog", "en")
    assert caption_of_sidecar(image) == "a dog" and b"PENTAX" not in sidecar_path(image).read_bytes()


def test_unreadable_files_are_counted_among_all_files(photos, trained, command_line):
    image_files(photos, "z.gif")
    write_sidecar(photos / "a.jpg", "Grandma", "en")
    (photos / "y.png").write_bytes(b"no image")
    sidecar_path(photos / "z.gif").write_bytes(b"damaged")
    command = ("describe", photos, "--recursive", "--model", trained, "--write", "xmp")
    status, _, errors = command_line(*command)
    assert status == 1 and "2 of 4 files have errors" in errors
    assert "captions: 1 written, 1 kept" in errors
    (photos / "y.png").write_bytes(encoded("PNG"))
    sidecar_path(photos / "y.png").write_bytes(b"damaged")
    assert "2 of 4 files have errors" in command_line(*command)[2]  # nothing is left to describe


@pytest.mark.parametrize("kind", ["text", "csv", "jsonl", "json"])
def test_an_abstention_is_printed_once(kind, tmp_path):
    sure = [True, False, True, False]
    captions = [Sentence((), -rank, -rank, text=f"dog {rank}", is_sure=is_sure) for rank, is_sure in enumerate(sure)]
    output = tmp_path / "captions"
    with caption_output(output, kind) as write:
        write(tmp_path / "a.png", captions)
    text = output.read_text()
    assert "dog 0" in text and "dog 2" in text and "dog 1" not in text and "dog 3" not in text
    assert "not sure" not in text and "null" not in text
    with caption_output(tmp_path / "none", kind, lang="de") as write:
        write(tmp_path / "a.png", captions[1::2])
    text = (tmp_path / "none").read_text()
    assert {"text": text.count("nicht sicher"), "csv": text.count(",,")}.get(kind, text.count("null")) == 1
