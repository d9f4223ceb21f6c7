"""Generated collection of recordings of several sounds one after the other, with a label of each frame.

A frame is silent, or part of a tone, a rising or falling sweep, a noise or beats. A single frame of a sweep sounds like
a tone, and beats have silent gaps, so that the labels depend on the frames around. A recording is a function of (seed,
split, index) only.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np

from limner.bounds import CountOrNone, SampleRate, Seconds, Seed, Window
from limner.data.collection import Collection
from limner.data.examples import Item
from limner.errors import CollectionError
from limner.media.audio import Samples, soundfile_module
from limner.progress import Progress
from limner.settings import Settings
from limner.storage.json_text import to_json
from limner.synthetic.sounds import QUALITIES, make_sound, synthesise
from limner.synthetic.storage import draw_collection, matches_record, require_room

RECORD = "sound_sequences.json"
EDITION = 1
"""Version of the generated files, increased when the same settings give other recordings or labels."""
SILENCE = "silence"
PAUSE, SOUND = (0.1, 0.3), (0.25, 0.6)
"""Shortest and longest duration of a pause and of a sound, in seconds."""
BACKGROUND = 1e-4
"""Amplitude of the background noise of pauses."""


class SoundSequenceSettings(Settings):
    """Size and contents of the generated collection."""

    seed: Seed = 0
    """Random seed."""
    train: CountOrNone = 600
    """Number of recordings in the split 'train'."""
    val: CountOrNone = 100
    """Number of recordings in the split 'val'."""
    test: CountOrNone = 100
    """Number of recordings in the split 'test'."""
    seconds: Seconds = 2.0
    """Duration of a recording in seconds."""
    rate: SampleRate = 16000
    """Sampling rate in Hz."""
    frame: Window = 0.032
    """Duration of a labelled frame in seconds, that of the frames of the backbone `logmel:FRAMES`."""


def generate_sound_sequences(
    path: Path | str, settings: SoundSequenceSettings, on_progress: Progress | None = None
) -> Collection:
    """Generate a collection of recordings; an existing collection of the same settings is opened unchanged.

    Args:
        path: folder of the collection.
        settings: size and contents of the collection.
        on_progress: called with the number of recordings written and their total number.

    Raises:
        CollectionError: the folder has other contents, or the settings specify no recordings.
        MissingExtraError: soundfile is not installed.
    """
    path = Path(path)
    record = to_json({"edition": EDITION, **settings.model_dump()}, indent=1)
    if matches_record(path, RECORD, record):
        return Collection.open(path)
    require_room(path, settings.train + settings.val + settings.test, 2 * settings.seconds * settings.rate)
    soundfile_module("writing sounds")
    jobs = [
        partial(_write_item, settings, split, index)
        for split in ("train", "val", "test")
        for index in range(getattr(settings, split))
    ]
    if not jobs:
        raise CollectionError(f"{path}: the settings specify no recordings; set train, val or test")
    return draw_collection(path, jobs, RECORD, record, on_progress)


def _write_item(settings: SoundSequenceSettings, split: str, index: int, folder: Path) -> Item:
    samples, labels = make_sequence(settings, split, index)
    name = f"{split}-{index:05d}"
    (folder / "sounds").mkdir(exist_ok=True)
    audio = f"sounds/{name}.wav"
    soundfile_module("writing sounds").write(folder / audio, samples, settings.rate, subtype="PCM_16")
    return Item(name, split, audio=audio, frame_labels=labels)


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
