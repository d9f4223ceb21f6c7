"""The generated sounds: tones, sweeps, noises and beats, each with sentences in English that say what is heard.

What a fresh machine learns to describe sounds from. Everything follows from the settings: the same seed gives the
same bytes. A sound is a pure function of (seed, split, index); its `label` is its kind.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from limner.data.collection import Collection
from limner.data.examples import Item, Sentence
from limner.errors import CollectionError
from limner.media.audio import soundfile_module
from limner.progress import Progress
from limner.settings import Settings
from limner.synthetic.storage import is_there, store

__all__ = ["QUALITIES", "Sound", "SoundSettings", "generate_sounds", "make_sound", "synthesise", "tell"]

logger = logging.getLogger(__name__)

RECORD = "sounds.json"
EDITION = 1
"""Counted up whenever the same settings begin to give other sounds or sentences."""

QUALITIES: dict[str, dict[str, tuple[str, str]]] = {
    "tone": {
        "pitch": ("high", "low"),
        "length": ("long", "short"),
        "loudness": ("loud", "soft"),
        "timbre": ("pure", "rough"),
    },
    "sweep": {"direction": ("rising", "falling"), "speed": ("slow", "fast"), "loudness": ("loud", "soft")},
    "noise": {"colour": ("hissing", "rumbling"), "length": ("long", "short"), "loudness": ("loud", "soft")},
    "beats": {"count": ("two", "five"), "pitch": ("high", "low"), "loudness": ("loud", "soft")},
}
"""What is varied of each kind of sound, and the words that say which it is; each sound has one of the two."""

# Each sentence may say a part of what is heard, the first one says all of it.
_FORMS: dict[str, tuple[str, ...]] = {
    "tone": (
        "A {length}, {loudness} tone, {pitch} and {timbre}.",
        "A {pitch} tone with a {timbre} sound.",
        "One hears a {length} tone that is {loudness} and {pitch}.",
        "This is a {timbre} tone, {length} and {loudness}.",
        "A {loudness} and {pitch} tone is held for a {length} time.",
    ),
    "sweep": (
        "A {loudness} sweep, {direction} and {speed}.",
        "A {speed} sweep with a {direction} pitch.",
        "One hears a {direction} sweep that is {loudness}.",
        "This is a {loudness} sweep, {speed} and {direction}.",
        "A {loudness} and {speed} sweep, {direction} all the time.",
    ),
    "noise": (
        "A {length}, {loudness} noise, {colour} all the time.",
        "A {colour} noise for a {length} time.",
        "One hears a {colour} noise that is {loudness}.",
        "This is a {loudness} noise, {length} and {colour}.",
        "A {loudness} and {colour} noise.",
    ),
    "beats": (
        "There are {count} {loudness} beats, {pitch} in pitch.",
        "One after the other, {count} {pitch} beats.",
        "One hears {count} beats that are {loudness}.",
        "These are {loudness} beats, {count} of them.",
        "There are {loudness} and {pitch} beats.",
    ),
}
_FADE = 0.008  # seconds; without it every sound begins and ends with a click

Samples = NDArray[np.float64]


class SoundSettings(Settings):
    """What the generated sounds are."""

    seed: int = 0
    train: int = Field(default=1000, ge=0)
    """Sounds in the split 'train'; `val` and `test` likewise."""
    val: int = Field(default=100, ge=0)
    test: int = Field(default=100, ge=0)
    seconds: float = Field(default=1.0, ge=0.5, le=60)
    """Of every file; the sound itself fills a part of it."""
    rate: int = Field(default=16000, ge=8000, le=192000)
    """Samples a second."""


@dataclass(frozen=True, slots=True)
class Sound:
    """What is heard.

    Lengths are in fractions of the file's, pitches in Hz, the amplitude of a full-scale sine is 1.
    """

    kind: str
    qualities: Mapping[str, str]
    start: float
    length: float
    pitch: float
    """Of a sweep where it begins, of a noise the edge of its band."""
    pitch_after: float
    """Where a sweep ends."""
    amplitude: float
    seed: str
    """Of the noise in it."""


def generate_sounds(path: Path | str, settings: SoundSettings, progress: Progress | None = None) -> Collection:
    """Make and describe sounds as a new collection; one made by the same settings is returned as it is.

    Args:
        path: folder of the collection.
        settings: what to make.
        progress: called with (made, total) sounds.

    Raises:
        CollectionError: the folder holds something else, or the settings ask for nothing at all.
        MissingExtraError: soundfile is not installed.
    """
    path = Path(path)
    record = json.dumps({"edition": EDITION, **settings.model_dump()}, indent=1)
    if is_there(path, RECORD, record):
        logger.info("%s: already there, made by the same settings", path)
        return Collection.open(path)
    soundfile = soundfile_module("making sounds")
    with TemporaryDirectory(prefix="limner-sounds-") as scratch:
        try:
            items = _write_all(settings, Path(scratch), soundfile, progress)
        except (OSError, soundfile.SoundFileError) as error:
            raise CollectionError(
                f"{scratch}: cannot hold the sounds: {error}; make room, or set TMPDIR to another folder"
            ) from error
        if not items:
            raise CollectionError(f"{path}: the settings ask for no sound; set train, val or test")
        files = {str(item.audio): Path(scratch, str(item.audio)) for item in items}
        return store(path, items, files, Path(scratch, RECORD), record)


def _write_all(
    settings: SoundSettings,
    scratch: Path,
    soundfile: Any,  # noqa: ANN401 (soundfile is optional)
    progress: Progress | None,
) -> list[Item]:
    jobs = [(split, index) for split in ("train", "val", "test") for index in range(getattr(settings, split))]
    (scratch / "sounds").mkdir()
    items: list[Item] = []
    for split, index in jobs:
        sound, name = make_sound(settings.seed, split, index), f"{split}-{index:05d}"
        audio = f"sounds/{name}.wav"
        samples = synthesise(sound, settings.seconds, settings.rate)
        soundfile.write(scratch / audio, samples, settings.rate, subtype="PCM_16")
        items.append(Item(name, split, audio=audio, sentences=tell(sound), label=sound.kind))
        if progress:
            progress(len(items), len(jobs))
    return items


def make_sound(seed: int, split: str, index: int) -> Sound:
    """Throw a sound together; kinds take turns, so that every split has them all."""
    name = f"{seed}/{split}/{index}"
    rng = Random(name)
    kind = list(QUALITIES)[index % len(QUALITIES)]
    chosen = {quality: rng.choice(words) for quality, words in QUALITIES[kind].items()}
    high, low = rng.uniform(900, 1800), rng.uniform(150, 350)
    match kind:
        case "tone":
            pitch, after = (high, high) if chosen["pitch"] == "high" else (low, low)
            length = rng.uniform(0.7, 0.9) if chosen["length"] == "long" else rng.uniform(0.12, 0.3)
        case "sweep":
            pitch, after = (low, high) if chosen["direction"] == "rising" else (high, low)
            length = rng.uniform(0.7, 0.9) if chosen["speed"] == "slow" else rng.uniform(0.15, 0.3)
        case "noise":
            pitch = after = rng.uniform(2000, 2600) if chosen["colour"] == "hissing" else rng.uniform(250, 400)
            length = rng.uniform(0.7, 0.9) if chosen["length"] == "long" else rng.uniform(0.12, 0.3)
        case _:
            pitch, after = (high, high) if chosen["pitch"] == "high" else (low, low)
            length = rng.uniform(0.75, 0.95)
    decibels = rng.uniform(-12, -6) if chosen["loudness"] == "loud" else rng.uniform(-36, -30)
    start = rng.uniform(0, 1 - length)
    return Sound(kind, chosen, start, length, pitch, after, 10 ** (decibels / 20), name)


def synthesise(sound: Sound, seconds: float, rate: int) -> Samples:
    """The sound's samples (seconds * rate,) between -1 and 1, on a hiss too faint to be told."""
    noise = np.random.default_rng(list(sound.seed.encode()))
    samples = 1e-4 * noise.standard_normal(round(seconds * rate))
    count = round(sound.length * seconds * rate)
    begin = min(round(sound.start * seconds * rate), len(samples) - count)
    match sound.kind:
        case "tone":
            heard = _wave(sound, count, rate) * _faded(count, rate)
        case "sweep":
            heard = _wave(sound, count, rate) * _faded(count, rate)
        case "noise":
            heard = _filtered(noise.standard_normal(count), sound, rate) * _faded(count, rate)
        case _:
            heard = _wave(sound, count, rate) * _beating(2 if sound.qualities["count"] == "two" else 5, count, rate)
    samples[begin : begin + count] += sound.amplitude * heard
    return np.clip(samples, -1, 1)


def _wave(sound: Sound, count: int, rate: int) -> Samples:
    """A sine whose pitch goes evenly, in octaves, from one end to the other; a rough one has eight overtones more."""
    pitches = np.geomspace(sound.pitch, sound.pitch_after, count)
    phase = 2 * math.pi * np.cumsum(pitches) / rate
    rough = sound.qualities.get("timbre") == "rough"
    overtones = [n for n in range(1, 10 if rough else 2) if n * sound.pitch < rate / 2]
    wave: Samples = sum((np.sin(n * phase) / n for n in overtones), np.zeros(count))
    return np.asarray(wave / np.abs(wave).max())


def _filtered(white: Samples, sound: Sound, rate: int) -> Samples:
    """What of white noise is above the edge for a hiss, and below it for a rumble."""
    spectrum = np.fft.rfft(white)
    hertz = np.fft.rfftfreq(len(white), 1 / rate)
    spectrum[(hertz < sound.pitch) if sound.qualities["colour"] == "hissing" else (hertz > sound.pitch)] = 0
    noise = np.fft.irfft(spectrum, len(white))
    return np.asarray(noise / np.abs(noise).max())


def _faded(count: int, rate: int) -> Samples:
    distance = np.minimum(np.arange(count), np.arange(count)[::-1])
    return np.clip(distance / (_FADE * rate), 0, 1)


def _beating(beats: int, count: int, rate: int) -> Samples:
    """One for the first 30 % of each beat, with faded edges, and nothing between."""
    place = np.linspace(0, beats, count, endpoint=False) % 1
    slope = _FADE * rate * beats / count
    return np.clip(np.minimum(place, 0.3 - place) / slope, 0, 1)


def tell(sound: Sound) -> tuple[Sentence, ...]:
    """Three sentences about a sound: one that says everything, and two others that were drawn."""
    first, *others = _FORMS[sound.kind]
    forms = [first, *Random(f"{sound.seed}/words").sample(others, 2)]
    return tuple(Sentence("en", form.format(**sound.qualities), group) for group, form in enumerate(forms))
