"""Generated sounds: reproducible bytes, sentences that agree with measurements, and the command."""

import json

import numpy as np
import pytest
import soundfile
from test_scenes import digests

from limner.data.collection import Collection
from limner.synthetic.sounds import QUALITIES, SoundSettings, describe_sound, make_sound, synthesise
from limner.synthetic.storage import generate_collection

SMALL = SoundSettings(seed=3, train=8, val=4, test=4, seconds=0.5, rate=8000)
RATE = 16000
SOUNDS = [make_sound(0, "train", index) for index in range(240)]


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return generate_collection(tmp_path_factory.mktemp("sounds") / "one", SMALL)


# The collection.


def test_the_same_settings_give_the_same_bytes(collection, tmp_path):
    again = generate_collection(tmp_path / "again", SMALL)
    assert digests(again.path) == digests(collection.path)
    assert again.items() == collection.items()
    other = generate_collection(tmp_path / "other", SMALL.model_copy(update={"seed": 4}))
    assert not set(digests(other.path).values()) & set(digests(collection.path).values())


def test_a_sound_depends_on_seed_split_and_index_only():
    assert make_sound(1, "train", 7) == make_sound(1, "train", 7)
    assert len({str(make_sound(*place)) for place in ((1, "train", 7), (2, "train", 7), (1, "test", 7))}) == 3


def test_every_split_has_every_kind_and_every_file_is_a_sound(collection):
    assert collection.splits() == {"train": 8, "val": 4, "test": 4}
    for split in collection.splits():
        assert {item.label for item in collection.items(split)} == set(QUALITIES)
    for item in collection.items():
        samples, rate = soundfile.read(collection.media_file(item))
        assert (samples.shape, rate, item.image) == ((4000,), 8000, None)
        assert 0.005 < np.abs(samples).max() < 1


# Sentences


@pytest.mark.parametrize("sound", SOUNDS[:40], ids=lambda sound: sound.seed)
def test_sentences_describe_the_synthesised_sound(sound):
    sentences = [sentence.text.lower().replace(".", "").replace(",", "").split() for sentence in describe_sound(sound)]
    wrong = {word for words in QUALITIES[sound.kind].values() for word in words} - set(sound.qualities.values())
    elsewhere = {word for kind in QUALITIES.values() for words in kind.values() for word in words}
    elsewhere -= {word for words in QUALITIES[sound.kind].values() for word in words}
    assert len(sentences) == 3
    for words in sentences:
        assert sound.kind in words
        assert not set(words) & (wrong | elsewhere | set(QUALITIES) - {sound.kind})
    assert set(sound.qualities.values()) <= set(sentences[0])


# Sentences agree with measurements of the samples


def loudness(samples):
    return np.abs(samples).max()


def duration(samples):
    """Seconds from the first to the last sample above the threshold."""
    there = np.flatnonzero(np.abs(samples) > 0.1 * np.abs(samples).max())
    return (there[-1] - there[0]) / RATE


def centre(samples):
    """The strongest frequency in Hz."""
    spectrum = np.abs(np.fft.rfft(samples))
    return np.fft.rfftfreq(len(samples), 1 / RATE)[spectrum.argmax()]


def drift(samples):
    """From the strongest frequency of the first third to that of the last, in octaves."""
    there = np.flatnonzero(np.abs(samples) > 0.1 * np.abs(samples).max())
    thirds = np.array_split(samples[there[0] : there[-1]], 3)
    return np.log2(centre(thirds[2]) / centre(thirds[0]))


def above(samples):
    """Share of the power above 1200 Hz."""
    power = np.abs(np.fft.rfft(samples)) ** 2
    return power[np.fft.rfftfreq(len(samples), 1 / RATE) > 1200].sum() / power.sum()


def overtones(samples):
    """Share of the power above 1.5 times the strongest frequency."""
    power = np.abs(np.fft.rfft(samples)) ** 2
    return power[np.fft.rfftfreq(len(samples), 1 / RATE) > 1.5 * centre(samples)].sum() / power.sum()


def beats(samples):
    """Number of onsets after 30 ms of silence."""
    loud = np.abs(samples) > 0.3 * np.abs(samples).max()
    there = np.flatnonzero(loud)
    return 1 + int((np.diff(there) > 0.03 * RATE).sum())


@pytest.mark.parametrize(
    ("kind", "quality", "measure", "border"),
    [
        *((kind, "loudness", loudness, 0.1) for kind in QUALITIES),
        ("tone", "pitch", centre, 600),
        ("beats", "pitch", centre, 600),
        ("tone", "length", duration, 0.5),
        ("tone", "timbre", lambda samples: -overtones(samples), -0.1),
        ("noise", "length", duration, 0.5),
        ("sweep", "speed", duration, 0.5),
        ("sweep", "direction", drift, 0),
        ("noise", "colour", above, 0.5),
    ],
)
def test_sentences_agree_with_measurements(kind, quality, measure, border):
    """Sounds of the first word are above the border and those of the second below; none is close to it."""
    more, less = QUALITIES[kind][quality]
    measured = {more: [], less: []}
    for sound in SOUNDS:
        if sound.kind == kind:
            measured[sound.qualities[quality]].append(measure(synthesise(sound, 1.0, RATE)))
    assert min(map(len, measured.values())) > 10
    assert max(measured[less]) < border < min(measured[more])


def test_beats_can_be_counted():
    for sound in SOUNDS:
        if sound.kind == "beats":
            assert beats(synthesise(sound, 1.0, RATE)) == {"two": 2, "five": 5}[sound.qualities["count"]]


@pytest.mark.parametrize(("seconds", "rate"), [(0.5, 8000), (1.01, 44100)])
def test_every_duration_and_sampling_rate(seconds, rate):
    for sound in SOUNDS[:40]:
        samples = synthesise(sound, seconds, rate)
        assert samples.shape == (round(seconds * rate),)
        assert np.abs(samples).max() <= 1 and np.isfinite(samples).all()


# The command.


@pytest.mark.parametrize(("kind", "backbone"), [("sounds", "logmel"), ("scenes", "pixels:64")])
def test_a_command_makes_collections(command_line, kind, backbone, tmp_path):
    sizes = ["--seed", 2, "--train", 2, "--val", 1, "--test", 1]
    status, printed, _ = command_line("generate", kind, tmp_path / "c", *sizes, "--json")
    summary = json.loads(printed)
    assert status == 0
    assert summary["splits"] == {"train": 2, "val": 1, "test": 1} == Collection.open(tmp_path / "c").splits()
    assert summary["next"].endswith(f"c --backbone {backbone}")
    status, printed, _ = command_line("show", tmp_path / "c")
    assert f"{4 if kind == 'sounds' else 0} audio files" in printed


def test_an_unknown_kind_of_generated_collection_is_named(command_line, tmp_path):
    status, _, errors = command_line("generate", "smells", tmp_path / "c")
    assert status == 1 and "KIND 'smells': expected scenes, clips, sounds, sound-sequences or reviews" in errors
    assert list(tmp_path.iterdir()) == []


def test_messages_name_audio_files(command_line, tmp_path):
    generate_collection(tmp_path / "c", SoundSettings(train=2, val=0, test=0))
    (broken,) = list((tmp_path / "c").rglob("*.flac"))[:1] or list((tmp_path / "c").rglob("*.wav"))[:1]
    broken.write_bytes(b"")
    status, printed, errors = command_line("features", tmp_path / "c", "--backbone", "logmel")
    assert status == 0
    assert "1 audio files encoded, 0 already stored, 1 skipped" in printed
    assert "picture" not in printed + errors
