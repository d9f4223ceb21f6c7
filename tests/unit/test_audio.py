"""Log-mel features: bands and statistics with known values, independence of the sampling rate, unreadable files."""

import json
import sys

import numpy as np
import pytest
import soundfile

from limner.data.collection import Collection, write_items
from limner.data.examples import Item
from limner.data.readers import ReaderOptions, import_collection, read_source
from limner.data.summary import summarise
from limner.errors import BackboneError, CollectionError, FeatureError, MediaError, MissingExtraError, SettingsError
from limner.features.encoders import logmel
from limner.features.encoders.load import load_backbone, load_backbone_for
from limner.features.encoders.logmel import LogMelBackbone, LogMelSettings, log_mel, statistics
from limner.features.extract import extract
from limner.inference.captioner import Captioner
from limner.inference.features import BackboneFeatures
from limner.media import audio
from limner.media.modality import AUDIO, IMAGE
from limner.runs.trained_model import load_trained_model

BANDS = LogMelSettings().bands
RATE = 16000


def sine(hertz, rate=RATE, seconds=1.0, amplitude=0.5):
    return amplitude * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)


def chirp(start, end, rate=RATE):
    return 0.5 * np.sin(2 * np.pi * np.cumsum(np.linspace(start, end, rate)) / rate)


def encode(folder, samples, rate=RATE, settings=None, **how):
    soundfile.write(folder / "sound.wav", samples, rate, **{"subtype": "FLOAT", **how})
    vector = LogMelBackbone(settings).read(folder / "sound.wav")
    return {
        "mean": vector[:BANDS],
        "deviation": vector[BANDS : 2 * BANDS],
        "slope": vector[2 * BANDS : 3 * BANDS],
        "change": vector[3 * BANDS : 4 * BANDS],
        "seconds": np.exp(vector[-1]),
        "all": vector,
    }


# Features.


@pytest.mark.parametrize("hertz", [200, 1000, 3000])
def test_the_bands_of_a_sine_contain_its_power(hertz):
    settings = LogMelSettings()
    power = (10 ** log_mel(sine(hertz, amplitude=0.4), RATE, settings).astype(float) - 1) * settings.floor
    assert power.sum(1) == pytest.approx(np.full(len(power), 0.4**2 / 2), rel=0.02)


@pytest.mark.parametrize("rate", [22050, 44100, 48000])
def test_features_are_independent_of_a_sufficient_sampling_rate(rate, tmp_path):
    one, other = encode(tmp_path, chirp(300, 3000)), encode(tmp_path, chirp(300, 3000, rate), rate)
    assert np.abs(one["all"] - other["all"]).max() < 0.05 * np.abs(one["all"]).max()


def test_channels_are_averaged(tmp_path):
    mono = sine(500)
    assert encode(tmp_path, np.stack([mono, mono], 1))["all"] == pytest.approx(encode(tmp_path, mono)["all"])
    assert encode(tmp_path, np.stack([mono, -mono], 1))["mean"] == pytest.approx(0)


def test_statistics_by_hand():
    levels = np.array([[1, 5], [3, 5], [2, 5], [6, 5]], dtype=np.float32)
    mean, deviation, slope, change = statistics(levels).reshape(4, 2)
    assert mean == pytest.approx([3, 5])
    assert deviation == pytest.approx([np.sqrt((4 + 0 + 1 + 9) / 4), 0])
    # Times -1, -1/3, 1/3, 1: the sum of time * level is -1 - 1 + 2/3 + 6, of time squared 20/9.
    assert slope == pytest.approx([(4 + 2 / 3) * 9 / 20, 0])
    assert change == pytest.approx([(2 + 1 + 4) / 3, 0])


@pytest.mark.parametrize("seconds", [0.05, 0.033, 0.3])
def test_reading_in_blocks_changes_nothing(seconds, tmp_path, monkeypatch):
    samples = np.random.default_rng(1).uniform(-0.5, 0.5, 15_999)
    whole = encode(tmp_path, samples)["all"]
    monkeypatch.setattr(logmel, "_BLOCK_SECONDS", seconds)
    assert encode(tmp_path, samples)["all"] == pytest.approx(whole, abs=1e-5)


def test_the_largest_amplitude_fits_into_float16(tmp_path):
    result = encode(tmp_path, sine(1000, amplitude=1e37))
    values = LogMelBackbone()(result["all"][None])["pooled"]
    assert values.dtype == np.float16 and np.isfinite(values).all()


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 44100])
def test_mel_filters_follow_their_definition(rate):
    """Triangles with corners at equal distances on O'Shaughnessy's mel scale, 2595 log10(1 + f / 700)."""
    settings = LogMelSettings()
    window, bands = logmel._window_and_bands(rate, settings)
    length = round(settings.window * rate)
    np.testing.assert_allclose(window, 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length), atol=1e-12)
    mels = np.linspace(*(2595 * np.log10(1 + f / 700) for f in (settings.lowest, settings.highest)), BANDS + 2)
    corners = 700 * (10 ** (mels / 2595) - 1)
    expected = [
        np.interp(np.arange(length + 1) * rate / (2 * length), corners[k : k + 3], [0, 1, 0]) for k in range(BANDS)
    ]
    scale = length * np.square(window).sum()
    np.testing.assert_allclose(bands * scale, np.transpose(expected), rtol=1e-9, atol=1e-9)
    assert (bands.max(0) == 0).any() == (rate < 2 * settings.highest)


# Files that are not audio.


def written(path, content):
    path.write_bytes(content)
    return path


def broken(folder, kind):
    """Write an unreadable file of a kind."""
    path = folder / f"{kind}.wav"
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, RATE)
    match kind:
        case "missing":
            return path
        case "empty":
            return written(path, b"")
        case "text":
            return written(path, b"this is no sound")
        case "folder":
            path.mkdir()
            return path
        case "raw":
            return written(path.with_suffix(".raw"), bytes(4000))
        case "cut":
            soundfile.write(path, noise, RATE)
            return written(path, path.read_bytes()[:9000])
        case "cut flac":
            soundfile.write(path.with_suffix(".flac"), noise, RATE)
            return written(path.with_suffix(".flac"), path.with_suffix(".flac").read_bytes()[:9000])
    samples = {
        "no samples": noise[:0],
        "short": noise[:500],
        "not a number": np.where(np.arange(RATE) == 9000, np.nan, noise),
        "infinite": np.where(np.arange(RATE) == 9000, np.inf, noise),
    }
    soundfile.write(path, samples[kind], RATE, subtype="FLOAT")
    return path


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "no such audio file"),
        ("empty", "the file is empty"),
        ("text", "not a readable audio file"),
        ("folder", "expected an audio file"),
        ("raw", "not a readable audio file"),
        ("cut", r"truncated: has 9,000 of 32,044 bytes"),
        ("cut flac", "not a readable audio file|ends after"),
        ("no samples", "shorter than one window"),
        ("short", r"lasts 0\.0312 seconds \(500 samples\), shorter than one window of 0\.032 seconds"),
        ("not a number", "samples that are not finite"),
        ("infinite", "samples that are not finite"),
    ],
)
def test_unreadable_files_are_refused_with_their_path(kind, message, tmp_path):
    path = broken(tmp_path, kind)
    with pytest.raises(MediaError, match=message) as error:
        LogMelBackbone().read(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("declared", [0, 2**32 - 1, "size of the file"])
def test_a_wav_of_unknown_length_is_read(declared, tmp_path):
    soundfile.write(tmp_path / "stream.wav", sine(1000), RATE)
    content = (tmp_path / "stream.wav").read_bytes()
    size = len(content) if isinstance(declared, str) else declared
    written(tmp_path / "stream.wav", content[:4] + size.to_bytes(4, "little") + content[8:])
    assert np.exp(LogMelBackbone().read(tmp_path / "stream.wav")[-1]) == pytest.approx(1, abs=0.01)


def test_a_truncated_mp3_is_read_to_its_end(tmp_path):
    soundfile.write(tmp_path / "sound.mp3", sine(1000, seconds=3), RATE)
    whole = (tmp_path / "sound.mp3").read_bytes()
    assert np.exp(LogMelBackbone().read(tmp_path / "sound.mp3")[-1]) == pytest.approx(3, abs=0.1)
    written(tmp_path / "sound.mp3", whole[: len(whole) // 2])
    assert 1 < np.exp(LogMelBackbone().read(tmp_path / "sound.mp3")[-1]) < 2


def test_a_long_recording_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(audio, "MAX_SECONDS", 2)
    with pytest.raises(MediaError, match="lasts 3 seconds, at most 2 are read; split the recording"):
        encode(tmp_path, sine(1000, seconds=3))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bandes": 20}, "bandes: unknown key"),
        ({"lowest": 9000}, "expected lowest below highest"),
        ({"hop": 0.1}, "expected hop of at most window"),
    ],
)
def test_invalid_settings_are_refused(values, message):
    with pytest.raises(SettingsError, match=message):
        LogMelSettings.parse(values)


def test_without_soundfile_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingExtraError, match=r"reading audio files needs .* pip install 'limner\[audio\]'"):
        LogMelBackbone()


# Loading.


def test_backbone_is_loaded_by_name_and_from_specs():
    assert load_backbone("logmel").specs == LogMelBackbone().specs
    other = LogMelBackbone(LogMelSettings(bands=20, floor=1e-6))
    assert load_backbone_for(other.specs).specs == other.specs


@pytest.mark.parametrize(
    "options", [{"layer": "fc7"}, {"kind": "grid"}, {"size": 64}, {"resize": "crop"}, {"views": 2}]
)
def test_options_of_networks_are_refused(options):
    with pytest.raises(BackboneError, match=r"logmel: option .* does not apply"):
        load_backbone("logmel", **options)


# Audio files in a collection.


@pytest.fixture
def folder(tmp_path):
    """Two sounds of different lengths in subfolders, one with sentences, and a file that is neither."""
    for name, seconds in (("train/high.wav", 0.5), ("test/low.flac", 0.8)):
        (tmp_path / "source" / name).parent.mkdir(parents=True)
        soundfile.write(tmp_path / "source" / name, sine(1000, seconds=seconds), RATE)
    (tmp_path / "source" / "train" / "high.txt").write_text("A high tone.\nIt is short.\n")
    (tmp_path / "source" / "train" / "notes.md").write_text("not a sound")
    return tmp_path / "source"


def test_a_folder_of_audio_files_is_read(folder):
    reading = read_source("audio", folder)
    result = {item.id: (item.split, item.image, item.audio, item.texts("en")) for item in reading.items}
    assert result == {
        "train/high": ("train", None, str(folder / "train/high.wav"), ["A high tone.", "It is short."]),
        "test/low": ("test", None, str(folder / "test/low.flac"), []),
    }


@pytest.mark.parametrize("copy", [False, True])
def test_audio_files_are_at_the_paths_in_the_collection(folder, tmp_path, copy):
    import_collection("audio", folder, tmp_path / "c", ReaderOptions(lang="de"), copy=copy)
    collection = Collection.open(tmp_path / "c")
    for item in collection.items():
        assert collection.media_file(item).is_file()
        assert item.image is None and str(item.audio).startswith("sounds/") == copy
    assert sum(len(item.texts("de")) for item in collection.items()) == 2
    result = summarise(collection)
    assert (sum(result.media["audio"].values()), result.media["image"], result.missing) == (2, {}, 0)
    (collection.path / str(collection.items()[0].audio)).unlink()
    assert summarise(collection).missing == 1


def test_a_folder_without_audio_files_and_two_files_of_one_name(folder, tmp_path):
    (tmp_path / "nothing").mkdir()
    with pytest.raises(CollectionError, match=r"no audio files below this folder \(\.aif"):
        read_source("audio", tmp_path / "nothing")
    with pytest.raises(CollectionError, match="expected a folder"):
        read_source("audio", folder / "train/high.wav")
    soundfile.write(folder / "train" / "high.flac", sine(500), RATE)
    with pytest.raises(CollectionError, match=r"has the item id 'train/high', like .*; rename one"):
        read_source("audio", folder)


def test_audio_files_of_all_durations_are_encoded_and_unreadable_ones_skipped(folder, tmp_path):
    broken(folder, "short")
    import_collection("audio", folder, tmp_path / "c")
    collection = Collection.open(tmp_path / "c")
    done = extract(collection, LogMelBackbone())
    assert (done.added, list(done.skipped)) == (2, ["short"])
    (table,) = done.tables
    assert (table.spec.name, table.spec.kind, table.spec.shape) == ("logmel", "pooled", (4 * BANDS + 1,))
    assert LogMelSettings.parse(json.loads(table.spec.model_dump_json())["preprocessing"]) == LogMelSettings()
    (low,) = table.take(["test/low"])
    assert low[:BANDS].argmax() == log_mel(sine(1000), RATE, LogMelSettings()).mean(0).argmax()
    with pytest.raises(FeatureError, match="floor"):
        extract(collection, LogMelBackbone(LogMelSettings(floor=1e-6)))


def test_new_audio_files_are_encoded_and_text_items_are_ignored(folder):
    backbone = LogMelBackbone()
    path = folder / "train/high.wav"
    shown = BackboneFeatures(backbone).take(
        [Item("a", "new", audio=str(path)), Item("b", "new"), Item("c", "new", image=str(path))]
    )
    assert shown[1] is None
    assert shown[0]["pooled"].tolist() == shown[2]["pooled"].tolist()
    assert shown[0]["pooled"] == pytest.approx(backbone.read(path).astype(np.float16))


def test_modality_of_a_captioner_is_that_of_its_backbone(trained):
    model = load_trained_model(trained)
    assert Captioner([model], None).modality == IMAGE
    assert Captioner([model], LogMelBackbone()).modality == AUDIO


def test_an_item_may_have_an_image_and_an_audio_file(tmp_path):
    write_items(tmp_path / "c", [Item("a", "train", image="a.png", audio="a.wav")])
    (item,) = Collection.open(tmp_path / "c").items()
    assert (item.audio, item.media_path) == ("a.wav", "a.png")
    assert summarise(Collection.open(tmp_path / "c")).missing == 2
