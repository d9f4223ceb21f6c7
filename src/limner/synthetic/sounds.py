"""Generated collection of tones, sweeps, noises and beats with English sentences that describe them.

It needs neither data nor network. All files are determined by the settings: the same seed gives the same bytes. A
sound is a function of (seed, split, index) only; the `label` of an item is the kind of its sound.

Sequences are recordings of several sounds one after the other, with a label of each frame: silence, or the sound. A
single frame of a sweep sounds like a tone, and beats have silent gaps, so that the labels depend on the frames around.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from limner.bounds import CountOrNone, SampleRate, Seconds, Window
from limner.data.examples import Item, ItemSentence
from limner.errors import extra_module
from limner.files.yaml_text import read_resource
from limner.media.modality import AUDIO
from limner.synthetic.storage import GeneratedSettings

SILENCE = "silence"
PAUSE, SOUND = (0.1, 0.3), (0.25, 0.6)
"""Shortest and longest duration of a pause and of a sound in a sequence, in seconds."""
BACKGROUND = 1e-4
"""Amplitude of the background noise of pauses."""

_KINDS = read_resource("limner.synthetic", "sounds.yaml")
QUALITIES: dict[str, dict[str, list[str]]] = {kind: entry["qualities"] for kind, entry in _KINDS.items()}
"""Qualities of each kind of sound with their two possible values."""
_FADE = 0.008  # seconds; avoids a click at the beginning and the end of a sound

Samples = NDArray[np.float64]


class SoundSettings(GeneratedSettings):
    """Size and contents of a generated collection of sounds."""

    kind = "sounds"

    train: CountOrNone = 1000
    val: CountOrNone = 100
    test: CountOrNone = 100
    seconds: Seconds = 1.0
    """Duration of a file in seconds; the sound is a part of it."""
    rate: SampleRate = 16000
    """Sampling rate in Hz."""

    @property
    def file_bytes(self) -> float:
        return 2 * self.seconds * self.rate

    def make_item(self, split: str, index: int, folder: Path) -> Item:
        sound, name = make_sound(self.seed, split, index), f"{split}-{index:05d}"
        audio = _write(folder, name, synthesise(sound, self.seconds, self.rate), self.rate)
        return Item(name, split, audio=audio, sentences=describe_sound(sound), label=sound.kind)


class SoundSequenceSettings(SoundSettings):
    """Size and contents of a generated collection of recordings of several sounds."""

    kind = "sound sequences"

    train: CountOrNone = 600
    seconds: Seconds = 2.0
    """Duration of a recording in seconds."""
    frame: Window = 0.032
    """Duration of a labelled frame in seconds, equal to the frames of the backbone `logmel:FRAMES`."""

    def make_item(self, split: str, index: int, folder: Path) -> Item:
        samples, labels = make_sequence(self, split, index)
        name = f"{split}-{index:05d}"
        return Item(name, split, audio=_write(folder, name, samples, self.rate), frame_labels=labels)


@dataclass(frozen=True, slots=True)
class Sound:
    """Parameters of a sound; times are fractions of the duration of the file."""

    kind: str  # key of `QUALITIES`
    qualities: Mapping[str, str]  # value of each quality of the kind
    start: float  # beginning of the sound
    length: float  # length of the sound
    pitch: float  # frequency in Hz; of a sweep at its beginning, of a noise the edge of its band
    final_pitch: float  # frequency in Hz at the end of a sweep
    amplitude: float  # amplitude; 1 for a full-scale sine
    seed: str  # random seed of the noise


def _write(folder: Path, name: str, samples: Samples, rate: int) -> str:
    """Write a WAV file below a folder; return its path in the collection."""
    audio = f"{AUDIO.folder}/{name}.wav"
    extra_module("soundfile", "writing sounds", "audio").write(folder / audio, samples, rate, subtype="PCM_16")
    return audio


def make_sound(seed: int, split: str, index: int) -> Sound:
    """Sample a sound; the kinds alternate, so that every split has all of them."""
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
    """Synthesise a sound as samples (seconds * rate,) from -1 to 1, with faint background noise."""
    noise = np.random.default_rng(list(sound.seed.encode()))
    samples = 1e-4 * noise.standard_normal(round(seconds * rate))
    count = round(sound.length * seconds * rate)
    begin = min(round(sound.start * seconds * rate), len(samples) - count)
    match sound.kind:
        case "tone" | "sweep":
            signal = _wave(sound, count, rate) * _fade_envelope(count, rate)
        case "noise":
            signal = _filter_noise(noise.standard_normal(count), sound, rate) * _fade_envelope(count, rate)
        case _:
            signal = _wave(sound, count, rate) * _beat_envelope(
                2 if sound.qualities["count"] == "two" else 5, count, rate
            )
    samples[begin : begin + count] += sound.amplitude * signal
    return np.clip(samples, -1, 1)


def _wave(sound: Sound, count: int, rate: int) -> Samples:
    """Sine with exponential change of frequency; a rough timbre has eight overtones."""
    pitches = np.geomspace(sound.pitch, sound.final_pitch, count)
    phase = 2 * math.pi * np.cumsum(pitches) / rate
    rough = sound.qualities.get("timbre") == "rough"
    overtones = [n for n in range(1, 10 if rough else 2) if n * sound.pitch < rate / 2]
    wave: Samples = sum((np.sin(n * phase) / n for n in overtones), np.zeros(count))
    return np.asarray(wave / np.abs(wave).max())


def _filter_noise(white: Samples, sound: Sound, rate: int) -> Samples:
    """Filter white noise: high-pass for a hissing noise, low-pass for a rumbling one."""
    spectrum = np.fft.rfft(white)
    hertz = np.fft.rfftfreq(len(white), 1 / rate)
    spectrum[(hertz < sound.pitch) if sound.qualities["colour"] == "hissing" else (hertz > sound.pitch)] = 0
    noise = np.fft.irfft(spectrum, len(white))
    return np.asarray(noise / np.abs(noise).max())


def _fade_envelope(count: int, rate: int) -> Samples:
    distance = np.minimum(np.arange(count), np.arange(count)[::-1])
    return np.clip(distance / (_FADE * rate), 0, 1)


def _beat_envelope(beats: int, count: int, rate: int) -> Samples:
    """Envelope that is 1 in the first 30 % of each beat, with faded edges, and 0 in the rest."""
    phase = np.linspace(0, beats, count, endpoint=False) % 1
    slope = _FADE * rate * beats / count
    return np.clip(np.minimum(phase, 0.3 - phase) / slope, 0, 1)


def describe_sound(sound: Sound) -> tuple[ItemSentence, ...]:
    """Three sentences about a sound: one with all qualities and two of random templates."""
    complete, *partial = _KINDS[sound.kind]["templates"]
    templates = [complete, *Random(f"{sound.seed}/words").sample(partial, 2)]
    return tuple(
        ItemSentence("en", template.format(**sound.qualities), group) for group, template in enumerate(templates)
    )


def make_sequence(settings: SoundSequenceSettings, split: str, index: int) -> tuple[Samples, tuple[str, ...]]:
    """Synthesise a recording, (seconds * rate,), with the label of each frame: the sound in the middle of the frame."""
    name, rate = f"{split}/{index}", settings.rate
    rng, noise = Random(f"{settings.seed}/{name}/sequence"), np.random.default_rng([settings.seed, index, len(split)])
    length = round(settings.seconds * rate)
    parts: list[Samples] = []
    labels: list[str] = []
    while len(labels) < length:
        pause = BACKGROUND * noise.standard_normal(round(rng.uniform(*PAUSE) * rate))
        kind = rng.randrange(len(QUALITIES))
        sound = make_sound(settings.seed, name, len(QUALITIES) * len(parts) + kind)
        samples = synthesise(replace(sound, start=0.0, length=1.0), rng.uniform(*SOUND), rate)
        parts += [pause, samples]
        labels += [SILENCE] * len(pause) + [sound.qualities.get("direction", sound.kind)] * len(samples)
    frame = round(settings.frame * rate)
    return np.concatenate(parts)[:length], tuple(labels[frame // 2 : length // frame * frame : frame])
