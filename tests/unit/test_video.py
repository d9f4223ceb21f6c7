"""Reading videos, their features, and captions of them."""

import math
import struct
import sys
from fractions import Fraction

import numpy as np
import pytest
from PIL import Image

from limner.apps.report.attention import attended_panels
from limner.apps.report.images import Thumbnails, contact_sheet, film_strip, open_stills
from limner.data.collection import Collection, write_items
from limner.data.examples import Item, ItemSentence
from limner.data.readers import read_source
from limner.errors import BackboneError, FeatureError, MediaError, MissingExtraError, SettingsError
from limner.features.encoders.base import Backbone
from limner.features.encoders.clips import ClipBackbone, ImageOfClipBackbone
from limner.features.encoders.load import PixelBackbone, load_backbone_for, load_clip_backbone
from limner.features.extract import extract
from limner.features.spec import FeatureSpec
from limner.media.image import open_image
from limner.media.modality import IMAGE, VIDEO, find_modality
from limner.media.video import FrameSampling, read_frames

av = pytest.importorskip("av")


def level(frame: Image.Image) -> int:
    """Number of a frame written by `write_video`, from its mean grey level."""
    return round((float(np.asarray(frame).mean()) - 20) / 10)


def write_video(path, count=12, *, times=None, size=(48, 32), codec="libx264", corner=False, step=10, options=None):
    """Write frames of grey level 20, 30, 40 …; `times` are presentation times in units of 1/10 second."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10, options=options)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, 10)
        for number in range(count):
            image = Image.new("RGB", size, (round(20 + step * number),) * 3)
            if corner:
                image.paste((255, 0, 0), (0, 0, size[0] // 3, size[1] // 3))
            frame = av.VideoFrame.from_image(image)
            frame.pts = number if times is None else times[number]
            frame.time_base = Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def write_sound(path):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16000
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return path


class MeanColour:
    """A backbone of images: the mean colour in hundredths, (3,)."""

    modality = IMAGE
    specs = (
        FeatureSpec(
            name="colour", kind="pooled", shape=(3,), backbone="colour", preprocessing={"a": 1}, weights_sha256="x"
        ),
    )

    def read(self, source):
        return np.asarray(open_image(source).resize((4, 4)))

    def __call__(self, inputs):
        return {"pooled": inputs.mean((1, 2)).astype(np.float16) / 100}


# Frames.


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"count": 1}, [6]),
        ({"count": 3}, [2, 6, 10]),
        ({"count": 12}, list(range(12))),
        ({"count": 40}, list(range(12))),
        ({"count": 40, "every": 5}, [0, 5, 10]),
        ({"count": 2, "every": 2}, [2, 8]),
    ],
)
def test_frames_are_evenly_spaced(tmp_path, sampling, expected):
    frames = read_frames(write_video(tmp_path / "a.mp4"), FrameSampling(**sampling))
    assert [level(frame) for frame in frames] == expected
    assert frames[0].size == (48, 32) and frames[0].mode == "RGB"


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_frames_of_a_variable_rate_are_chosen_by_time(tmp_path, suffix):
    """Frame 3 is shown from 0.3 to 2 s, the others for a tenth of a second."""
    times = [0, 1, 2, 3, 20, 21, 22, 23]
    frames = read_frames(write_video(tmp_path / f"a{suffix}", 8, times=times), FrameSampling(count=4))
    assert [level(frame) for frame in frames] == [3, 5]


def test_long_videos_are_decoded_from_key_frames(tmp_path):
    """With a key frame every 12 frames, most of the 240 frames are skipped."""
    path = write_video(tmp_path / "a.mp4", 240, size=(32, 32), step=0.9, options={"g": "12"})
    frames = read_frames(path, FrameSampling(count=6))
    greys = [float(np.asarray(frame).mean()) for frame in frames]
    assert greys == pytest.approx([20 + 0.9 * (20 + 40 * k) for k in range(6)], abs=2)


def test_rotation_is_applied(tmp_path):
    path = write_video(tmp_path / "a.mp4", 3, corner=True)
    content = bytearray(path.read_bytes())
    start = content.index(b"tkhd") + 4 + 40  # the display matrix of the track header
    matrix = struct.unpack(">9i", content[start : start + 36])
    assert matrix[0] == matrix[4] == 65536
    content[start : start + 36] = struct.pack(">9i", 0, 65536, 0, -65536, 0, 0, 32 * 65536, 0, 1 << 30)  # clockwise
    path.write_bytes(content)
    (frame,) = read_frames(path, FrameSampling(count=1))
    assert frame.size == (32, 48)
    red = np.asarray(frame, int)[..., 0] - np.asarray(frame, int)[..., 2] > 100
    rows, columns = np.nonzero(red)
    assert rows.mean() < 16 and columns.mean() > 16  # the corner at the top left is at the top right


def test_every_container_that_is_written_is_read(tmp_path):
    for name, codec in (("a.mkv", "libx264"), ("a.avi", "mpeg4"), ("a.webm", "libvpx")):
        frames = read_frames(write_video(tmp_path / name, codec=codec), FrameSampling(count=3))
        assert [level(frame) for frame in frames] == [2, 6, 10], name


def test_unreadable_files_are_errors_with_a_remedy(tmp_path):
    good = write_video(tmp_path / "good.mp4")
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "text.mp4").write_text("no video at all " * 100)
    (tmp_path / "cut.mp4").write_bytes(good.read_bytes()[:200])
    long = write_video(tmp_path / "long.mkv", 12, codec="mpeg4").read_bytes()
    (tmp_path / "head.mkv").write_bytes(long[:64])
    write_sound(tmp_path / "sound.mp4")
    for name, reason in (
        ("empty.mp4", r"0 bytes.*remove it"),
        ("text.mp4", r"not a readable video file.*convert it"),
        ("cut.mp4", r"not a readable video file.*copy it again"),
        ("head.mkv", r"remove"),
        ("sound.mp4", r"sound only.*remove the file"),
        ("none.mp4", r"no such video file.*check the path"),
    ):
        with pytest.raises(MediaError, match=rf"{name}: .*{reason}"):
            read_frames(tmp_path / name, FrameSampling())
    with pytest.raises(MediaError, match=r"cannot be read|not a readable"):
        read_frames(tmp_path, FrameSampling())


def test_a_truncated_file_is_an_error(tmp_path):
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as container:
        stream = container.add_stream("libx264", rate=10, options={"g": "4"})
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        random = np.random.default_rng(0)
        for _ in range(12):
            noise = random.integers(0, 255, (64, 64, 3)).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noise, format="rgb24")))
        container.mux(stream.encode(None))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(MediaError, match=r"a\.mp4: (truncated|damaged|not a readable).*copy it again"):
        read_frames(path, FrameSampling())


def test_without_pyav_the_extra_is_named(tmp_path, monkeypatch):
    path = write_video(tmp_path / "a.mp4", 2)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match=r"reading video files .*pip install 'limner\[video\]'"):
        read_frames(path, FrameSampling())


def test_videos_are_a_modality(tmp_path):
    assert find_modality("a.MP4") is VIDEO
    item = Item("a", "train", video="a.mp4")
    assert item.modality is VIDEO and item.media_path == "a.mp4"
    with pytest.raises(MediaError, match="no such video"):
        VIDEO.open(tmp_path / "a.mp4")


# Features.


def clips(tmp_path, count=3) -> Collection:
    items = []
    tmp_path.mkdir(exist_ok=True)
    for number in range(count):
        write_video(tmp_path / f"{number}.mp4", 4 + number)
        items.append(Item(str(number), "train", video=f"{number}.mp4", sentences=(ItemSentence("en", "a clip"),)))
    Image.new("RGB", (8, 8), (90, 90, 90)).save(tmp_path / "photo.png")
    items.append(Item("photo", "train", image="photo.png"))
    write_items(tmp_path, items)
    return Collection.open(tmp_path)


def test_one_row_per_frame_and_their_mean(tmp_path):
    collection = clips(tmp_path)
    backbone = ClipBackbone(MeanColour(), FrameSampling(count=5), ("pooled", "grid"))
    done = extract(collection, backbone)
    pooled, grid = done.tables
    assert (pooled.spec.name, grid.spec.name, grid.spec.shape) == ("colour", "colour.frames", (5, 3))
    rows = grid.take(["0", "1", "photo"]).astype(float)[..., 0]
    expected = [[0.2, 0.3, 0.4, 0.5, 0], [0.2, 0.3, 0.4, 0.5, 0.6], [0.9, 0, 0, 0, 0]]  # an image is one frame
    np.testing.assert_allclose(rows, expected, atol=0.02)
    np.testing.assert_allclose(pooled.take(["0", "1", "photo"])[..., 0], [0.35, 0.4, 0.9], atol=0.02)


def test_means_over_frames_are_compatible_with_images_and_frames_are_not(tmp_path):
    image = MeanColour.specs[0]
    pooled, grid = ClipBackbone(MeanColour(), FrameSampling(count=5), ("pooled", "grid")).specs
    assert pooled.fingerprint == image.fingerprint
    assert grid.fingerprint not in (image.fingerprint, pooled.fingerprint)
    assert grid.modality == "video" and str(grid).startswith("colour frames 5x3")
    stored = FeatureSpec.model_validate_json(grid.model_dump_json())
    assert stored == grid
    collection = clips(tmp_path)
    extract(collection, ClipBackbone(MeanColour(), FrameSampling(count=5), ("pooled",)))
    with pytest.raises(FeatureError, match=r"the mean over 2 frames, got the mean over 5 frames; use the same"):
        extract(collection, ClipBackbone(MeanColour(), FrameSampling(count=2), ("pooled",)))


def test_pixels_of_frames_are_maps(tmp_path):
    backbone = load_clip_backbone("pixels:8", "pooled", {"count": 5})
    (spec,) = backbone.specs
    assert (spec.name, spec.kind, spec.shape) == ("pixels8.frames", "maps", (5, 3, 8, 8))
    (table,) = extract(clips(tmp_path), backbone).tables
    values = table.take(["0"])[0].astype(float).mean((1, 2, 3))
    np.testing.assert_allclose(values, [20, 30, 40, 50, 0], atol=2)
    again = load_backbone_for([spec])
    assert again.specs[0].fingerprint == spec.fingerprint
    read = again.read(tmp_path / "0.mp4")
    np.testing.assert_array_equal(again(read[None])["maps"], table.take(["0"]))


def test_unreadable_videos_are_skipped_and_named(tmp_path):
    collection = clips(tmp_path)
    (tmp_path / "1.mp4").write_bytes(b"")
    done = extract(collection, ClipBackbone(MeanColour(), FrameSampling(count=2)))
    assert done.added == 3 and list(done.skipped) == ["1"] and "0 bytes" in done.skipped["1"]


def test_wrong_backbones_of_frames_are_refused():
    with pytest.raises(SettingsError, match="expected pooled, grid or both"):
        load_clip_backbone("pixels:8", "maps", {})
    with pytest.raises(SettingsError, match="frames: count"):
        load_clip_backbone("pixels:8", "grid", {"count": 0})
    with pytest.raises(BackboneError, match=r"logmel: .*audio files"):
        load_clip_backbone("logmel", "pooled", {})


def encode(backbone: Backbone, path):
    return backbone(backbone.read(path)[None])


def test_a_model_of_images_reads_videos(tmp_path):
    write_video(tmp_path / "a.mp4", 5)
    write_video(tmp_path / "b.mp4", 1)
    read_frames(tmp_path / "b.mp4", FrameSampling())[0].save(tmp_path / "b.png")
    mean = encode(ImageOfClipBackbone(MeanColour()), tmp_path / "a.mp4")["pooled"]
    np.testing.assert_allclose(mean[0, 0], 0.4, atol=0.01)
    pixels = ImageOfClipBackbone(PixelBackbone(8, "squash"))
    assert pixels.specs[0].shape == (3, 8, 8)
    assert math.isclose(encode(pixels, tmp_path / "a.mp4")["maps"].mean(), 40, abs_tol=2)  # the middle frame
    frame, image = (encode(pixels, tmp_path / name)["maps"] for name in ("b.mp4", "b.png"))
    np.testing.assert_array_equal(frame, image)


# Import and pictures.


def test_a_folder_may_hold_images_and_videos(tmp_path):
    write_video(tmp_path / "clip.mp4", 2)
    (tmp_path / "clip.txt").write_text("A grey clip.\nIt gets brighter.\n")
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.png")
    clip, photo = read_source("folder", tmp_path).items
    assert (clip.video, clip.image, photo.image) == (str(tmp_path / "clip.mp4"), None, str(tmp_path / "photo.png"))
    assert clip.texts("en") == ["A grey clip.", "It gets brighter."]


def test_a_table_may_name_videos(tmp_path):
    write_video(tmp_path / "clip.mp4", 2)
    (tmp_path / "a.csv").write_text("split,image,lang,text\ntrain,clip.mp4,en,a clip\n")
    (item,) = read_source("csv", tmp_path / "a.csv").items
    assert item.video == str(tmp_path / "clip.mp4") and item.image is None


def test_key_frames_are_drawn(tmp_path):
    path = write_video(tmp_path / "a.mp4")
    stills = open_stills(path)
    assert [level(frame) for frame in stills] == [1, 4, 7, 10]
    assert film_strip(stills, 24).size == (4 * 24 + 3 * 2, 16)
    url = Thumbnails(10**6)(str(path), 96)
    assert url is not None and url.startswith("data:image/jpeg")
    assert contact_sheet(clips(tmp_path / "c")).width > 200
    (tmp_path / "bad.mp4").write_bytes(b"x")
    assert Thumbnails(10**6)(str(tmp_path / "bad.mp4"), 96) is None


def test_attention_lights_the_frames(tmp_path):
    """Of a strip of 2 x 2 places, the frame with all the weight is brighter than the others."""
    path = write_video(tmp_path / "a.mp4", 3)
    (spec,) = ClipBackbone(MeanColour(), FrameSampling(count=4)).specs
    strip, panel = attended_panels(path, [[0.0, 1.0, 0.0, 0.0]], [spec], side=60)
    assert strip.size == panel.size
    values = np.asarray(panel.convert("L"), float)
    half = values.shape[1] // 2
    assert values[: values.shape[0] // 2 - 2, half + 2 :].mean() > values[: values.shape[0] // 2 - 2, : half - 2].mean()
    assert attended_panels(path, [[0.5, 0.5]], [spec], side=60) == []
