"""Decoding of all image formats, errors for other files, and preprocessing."""

import struct
import warnings
import zlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from limner.errors import MediaError, SettingsError
from limner.features.preprocessing import (
    Preprocessing,
    adapt_preprocessing,
    centre_crop,
    encoded_box,
    parse_processor_config,
    preprocess,
    resize_shorter_side,
)
from limner.media.image import _FORMATS, IMAGE_SUFFIXES, MAX_PIXELS, MAX_SIDE, image_size, open_image
from limner.media.modality import AUDIO, IMAGE, find_modality, modality_of


def colour_at(image, x=2, y=2):
    return np.asarray(image)[y, x].tolist()


def save(tmp_path, image, name, **options):
    path = tmp_path / name
    image.save(path, **options)
    return path


def empty_png(tmp_path, width, height):
    """An image with a declared size and no pixel data."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path = tmp_path / "bomb.png"
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts)
    return path


RED = (255, 0, 0)


@pytest.mark.parametrize(
    ("mode", "colour", "name", "expected"),
    [
        ("RGB", RED, "a.png", RED),
        ("L", 90, "a.jpg", (90, 90, 90)),
        ("1", 1, "a.png", (255, 255, 255)),
        ("CMYK", (0, 255, 255, 0), "a.jpg", RED),
        ("CMYK", (0, 255, 255, 0), "a.tiff", RED),
        ("RGBA", (255, 0, 0, 0), "transparent.png", (255, 255, 255)),
        ("RGBA", (255, 0, 0, 255), "opaque.png", RED),
        ("RGBA", (255, 0, 0, 128), "half.png", (255, 127, 127)),
        ("LA", (0, 0), "a.png", (255, 255, 255)),
        ("RGB", RED, "a.bmp", RED),
        ("RGB", RED, "a.webp", RED),
        ("F", 7.0, "a.tiff", (0, 0, 0)),
    ],
)
def test_every_mode_is_converted_to_rgb(tmp_path, mode, colour, name, expected):
    path = save(tmp_path, Image.new(mode, (8, 6), colour), name)
    image = open_image(path)
    assert image.mode == "RGB"
    assert image.size == (8, 6)
    assert np.abs(np.subtract(colour_at(image), expected)).max() <= 3


def test_transparent_palette_colour_is_composited_on_white(tmp_path):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    assert colour_at(open_image(save(tmp_path, image, "solid.png"))) == [10, 200, 30]
    assert colour_at(open_image(save(tmp_path, image, "clear.png", transparency=1))) == [255, 255, 255]


@pytest.mark.parametrize("name", ["a.heic", "a.avif", "a.HEIC", "a.jfif", "a.JPE"])
def test_formats_of_phones_and_browsers_are_read_whatever_the_case_of_the_suffix(tmp_path, name):
    if find_spec("pillow_heif") is None and name.lower() == "a.heic":
        pytest.skip("needs the extra 'heic'")
    open_image(save(tmp_path, Image.new("RGB", (2, 2)), "any.png"))  # registers the formats
    format_ = {".heic": "HEIF", ".avif": "AVIF"}.get(Path(name).suffix.lower(), "JPEG")
    path = save(tmp_path, Image.new("RGB", (64, 48), RED), name, format=format_)
    assert find_modality(path) is IMAGE
    image = open_image(path)
    assert image.size == image_size(path) == (64, 48)
    assert np.abs(np.subtract(colour_at(image), RED)).max() <= 8


def test_heic_names_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("limner.media.image._formats", lambda: ("JPEG", "PNG"))
    path = tmp_path / "photo.jpg"  # some programs give HEIC files this suffix
    path.write_bytes(b"\0\0\0\x1cftypheic" + bytes(50))
    for source in (path, path.read_bytes()):
        with pytest.raises(MediaError, match=r"pip install 'limner\[heic\]'"):
            open_image(source)


def test_sixteen_bit_grey_keeps_its_middle(tmp_path):
    values = np.array([[0, 32896, 65535]], dtype=np.uint16)
    image = open_image(save(tmp_path, Image.fromarray(values), "deep.png"))
    assert np.asarray(image)[0, :, 0].tolist() == [0, 128, 255]


def test_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, (0, 255, 0))]
    path = save(tmp_path, frames[0], "a.gif", save_all=True, append_images=frames[1:])
    assert colour_at(open_image(path)) == [255, 0, 0]


def test_exif_orientation_is_applied(tmp_path):
    image = Image.new("RGB", (8, 4), "black")
    image.paste(RED, (0, 0, 4, 4))  # the left half is red
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise: left becomes top
    upright = open_image(save(tmp_path, image, "a.png", exif=exif))
    assert upright.size == (4, 8)
    assert colour_at(upright, 1, 1) == [255, 0, 0]
    assert colour_at(upright, 1, 7) == [0, 0, 0]


def orientation_in(metadata, orientation):
    """Options of Pillow that store an orientation in EXIF, in XMP, or in both, where EXIF is decisive."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    other = orientation if metadata == "xmp" else 9 - orientation
    xmp = f'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="{other}"/>'
    png = PngInfo()
    png.add_itxt("XML:com.adobe.xmp", xmp)
    tags = {700: xmp.encode(), **({0x0112: orientation} if metadata == "both" else {})}
    in_xmp = {} if metadata == "exif" else {"xmp": xmp.encode(), "pnginfo": png, "tiffinfo": tags}
    return in_xmp if metadata == "xmp" else {"exif": exif, **in_xmp}


@pytest.mark.parametrize("metadata", ["exif", "xmp", "both"])
@pytest.mark.parametrize("name", ["a.jpg", "a.mpo", "a.png", "a.webp", "a.tif", "a.avif", "a.heic", "a.gif", "a.jp2"])
def test_the_size_of_an_image_is_the_size_that_is_decoded(tmp_path, name, metadata):
    pytest.importorskip("pillow_heif").register_heif_opener()
    image = Image.radial_gradient("L").resize((24, 16)).convert("RGB")
    turned = [(16, 24) if orientation > 4 else (24, 16) for orientation in range(1, 9)]
    options = [orientation_in(metadata, orientation) for orientation in range(1, 9)]
    if name == "a.tif":  # Pillow writes one of the two
        options = [{key: value for key, value in one.items() if key != "xmp"} for one in options]
    paths = [save(tmp_path, image, f"{number}{name}", **one) for number, one in enumerate(options)]
    decoded = [open_image(path).size for path in paths]
    assert [image_size(path) for path in paths] == decoded
    assert decoded == turned or name in ("a.gif", "a.jp2", "a.heic", "a.avif")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp"])
def test_damaged_exif_data_is_ignored(tmp_path, name):
    path = save(tmp_path, Image.new("RGB", (8, 4), RED), name, exif=b"Exif\0\0II*\0\xff\xff\xff\x7fjunk")
    assert open_image(path).size == image_size(path) == (8, 4)
    path = save(tmp_path, Image.new("RGB", (8, 4), RED), name, exif=b"Exif\0\0no EXIF")
    assert open_image(path).size == image_size(path) == (8, 4)


def test_large_jpeg_is_decoded_small_but_not_too_small(tmp_path):
    path = save(tmp_path, Image.new("RGB", (1200, 900), (10, 120, 200)), "large.jpg")
    assert open_image(path, min_side=200).size == (300, 225)  # a quarter; an eighth would fall below 200
    assert open_image(path, min_side=800).size == (1200, 900)


@pytest.mark.parametrize("side", [30_000, 10_000])
@pytest.mark.parametrize("as_error", [True, False])
def test_decompression_bomb_is_refused_before_it_is_decoded(tmp_path, side, as_error):
    path = empty_png(tmp_path, side, side)  # decoding would fail in another way: there are no pixels
    with warnings.catch_warnings():
        warnings.simplefilter("error" if as_error else "ignore")
        with pytest.raises(MediaError, match=rf"bomb\.png: too large .*{MAX_PIXELS:,} .*smaller copy"):
            open_image(path)


def test_an_image_with_a_very_long_side_is_refused_before_it_is_decoded(tmp_path):
    with pytest.raises(MediaError, match=rf"bomb\.png: too large .*1 x {MAX_SIDE + 1} pixels.*{MAX_SIDE:,} on a side"):
        open_image(empty_png(tmp_path, 1, MAX_SIDE + 1))


def test_resizing_keeps_proportions_and_bounds_strips():
    assert resize_shorter_side(Image.new("RGB", (500, 333)), 256).size == (384, 256)
    assert resize_shorter_side(Image.new("RGB", (333, 500)), 256).size == (256, 384)
    assert resize_shorter_side(Image.new("RGB", (40_000, 2)), 64).size == (1024, 64)


def test_centre_crop_takes_the_middle_and_fills_with_black():
    image = Image.fromarray(np.arange(25, dtype=np.uint8).reshape(5, 5))
    assert np.asarray(centre_crop(image, 3)).tolist() == [[6, 7, 8], [11, 12, 13], [16, 17, 18]]
    assert np.asarray(centre_crop(image, 7))[0].tolist() == [0] * 7


def test_crop_cuts_off_the_ends_and_squash_keeps_them():
    image = Image.new("RGB", (300, 100), "black")
    image.paste(RED, (0, 0, 60, 100))
    crop = preprocess(image, Preprocessing(resize="crop", size=50, short=50))
    whole = preprocess(image, Preprocessing(resize="squash", size=50, short=50))
    assert crop.shape == whole.shape == (1, 50, 50, 3)
    assert crop.max() == 0
    assert abs((whole[0, :, :, 0] > 127).mean() - 0.2) < 0.02


def test_ten_views_cut_the_middle_and_the_corners():
    rows = np.arange(8, dtype=np.uint8)
    image = Image.fromarray(np.stack([rows[:, None] * 10 + rows, *[np.zeros((8, 8), np.uint8)] * 2], -1))
    cuts = preprocess(image, Preprocessing(resize="crop", size=6, short=8, views=10, resample=0))
    assert cuts.shape == (5, 6, 6, 3)
    assert cuts[:, 0, 0, 0].tolist() == [11, 0, 2, 20, 22]


@pytest.mark.parametrize("size", [(240, 160), (160, 240)])
@pytest.mark.parametrize(
    "settings",
    [
        {"resize": "crop", "size": 80, "short": 80},
        {"resize": "crop", "size": 80, "short": 100},
        {"resize": "squash", "size": 80, "short": 80},
        {"resize": "squash", "size": 80, "short": 100},
        {"resize": "squash", "size": 80, "short": 100, "views": 10},
    ],
)
def test_encoded_box_is_the_area_of_the_centre_crop(size, settings):
    preprocessing = Preprocessing.parse(settings, "preprocessing")
    rows, columns = np.indices(size[::-1], dtype=np.uint8)
    cut = preprocess(Image.fromarray(np.stack([columns, rows, rows], -1)), preprocessing)[0, :, :, :2].astype(float)
    left, top, right, bottom = encoded_box(size, preprocessing)
    pixel = (right - left) / 80, (bottom - top) / 80
    # A resized pixel holds the mean coordinate of its source pixels; coordinate 0 is the centre of the first pixel.
    assert cut[40, 0, 0] == pytest.approx(left + (pixel[0] - 1) / 2, abs=1)
    assert cut[40, -1, 0] == pytest.approx(right - (pixel[0] + 1) / 2, abs=1)
    assert cut[0, 40, 1] == pytest.approx(top + (pixel[1] - 1) / 2, abs=1)
    assert cut[-1, 40, 1] == pytest.approx(bottom - (pixel[1] + 1) / 2, abs=1)


@pytest.mark.parametrize(
    ("config", "resize", "size", "short"),
    [
        ({}, "crop", 224, 256),
        ({"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}},
         "crop", 224, 256),
        ({"size": {"height": 224, "width": 224}}, "squash", 224, 224),
        ({"size": 224, "do_resize": True}, "squash", 224, 224),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, "crop", 224, 256),
        ({"size": {"shortest_edge": 384}, "crop_pct": None}, "squash", 384, 384),
    ],
)  # fmt: skip
def test_preprocessing_follows_the_processor_config(config, resize, size, short):
    preprocessing = parse_processor_config(config)
    assert (preprocessing.resize, preprocessing.size, preprocessing.short) == (resize, size, short)


def test_preprocessing_is_adapted_in_proportion():
    preprocessing = parse_processor_config({})
    larger = adapt_preprocessing(preprocessing, 288, None, 1)
    assert (larger.resize, larger.size, larger.short) == ("crop", 288, 329)
    squashed = adapt_preprocessing(preprocessing, None, "squash", 2)
    assert (squashed.resize, squashed.size, squashed.short, squashed.views) == ("squash", 224, 224, 2)


def test_unsupported_preprocessing_is_refused():
    with pytest.raises(SettingsError, match="views"):
        adapt_preprocessing(parse_processor_config({}), None, None, 3)
    with pytest.raises(SettingsError, match="square"):
        parse_processor_config({"size": {"height": 224, "width": 320}})


def test_image_suffixes_are_those_of_the_supported_formats():
    Image.init()
    by_suffix = Image.registered_extensions()
    assert {by_suffix.get(suffix, "AVIF") for suffix in IMAGE_SUFFIXES} == set(_FORMATS)
    assert {".jpg", ".jpeg", ".png", ".webp", ".avif", ".tif"} <= IMAGE_SUFFIXES


def test_every_image_input_type_gives_the_same_image(tmp_path):
    values = np.random.default_rng(0).integers(0, 255, (6, 9, 3), dtype=np.uint8)
    path = save(tmp_path, Image.fromarray(values), "a.png")
    for source in (path, str(path), path.read_bytes(), Image.open(path), Image.fromarray(values), values):
        np.testing.assert_array_equal(np.asarray(open_image(source)), values)
    grey = open_image(values[:, :, 0])
    assert grey.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(grey), values[:, :, :1].repeat(3, 2))
    np.testing.assert_array_equal(np.asarray(open_image(values[::-1, ::2])), values[::-1, ::2])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.zeros((4, 4, 3), np.float32), r"image array of shape \(4, 4, 3\) and type float32: expected uint8"),
        (np.zeros((3, 4, 4), np.uint8), r"shape \(3, 4, 4\).*expected uint8 values of shape \(H, W, 3\) or \(H, W\)"),
        (None, "expected a path, bytes, a Pillow image or an array, got NoneType"),
        (np.zeros(4, np.uint8), "convert the array"),
        (np.zeros((0, 4), np.uint8), "convert the array"),
        (b"", r"image of 0 bytes: the file is empty"),
        (b"not an image", "image of 12 bytes: not an image"),
        ("absent.jpg", r"absent\.jpg: no such image file"),
    ],
)
def test_an_invalid_image_in_memory_is_refused(source, message):
    with pytest.raises(MediaError, match=message):
        open_image(source)


def test_a_damaged_pillow_image_is_refused(tmp_path):
    path = save(tmp_path, Image.effect_noise((64, 64), 90), "truncated.jpg")
    path.write_bytes(path.read_bytes()[:2000])
    with Image.open(path) as lazy, pytest.raises(MediaError, match="damaged image"):
        open_image(lazy)


def test_a_pillow_image_is_not_changed():
    source = Image.new("RGB", (4, 4), RED)
    open_image(source).paste((0, 0, 0), (0, 0, 4, 4))
    assert colour_at(source) == list(RED)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a.JPG", IMAGE),
        (Path("folder/a.wav"), AUDIO),
        ("a.unknown", IMAGE),
        (b"RIFF", IMAGE),
        (np.zeros((2, 2), np.uint8), IMAGE),
        (Image.new("L", (2, 2)), IMAGE),
    ],
)
def test_the_modality_follows_from_the_suffix(source, expected):
    assert modality_of(source) == expected
