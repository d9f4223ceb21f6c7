"""What is fuzzed: how a valid example is made, and how it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from sources import SOURCES, draw, read, write

RECIPE = """description: small
data: {lang: de, max_tokens: 40}
text: &text {lowercase: true, min_count: 2}
features: {tables: [lite2], cache_mib: 16}
model: {name: mrnn, hidden_dim: 8, embedding_dim: 8, dropout: 0.5, cell: gru}
training: {epochs: 3, batch_size: 4, seed: 1, optimizer: {name: adam, lr: 0.01, betas: [0.9, 0.99]}}
decoding: {beam_size: 3, max_length: 12, length_penalty: 0.7}
evaluation: {samples: 2}
"""


class Target(NamedTuple):
    """A kind of input."""

    make: Callable[[Path], None]
    """Write a valid example into a folder."""
    read: Callable[[Path], list[object]]
    """Read the example as the program does, and return what was read; any error but a `LimnerError` is a failure."""


def _read_recipe(folder: Path) -> list[object]:
    from limner.runs.recipe import load_recipe

    return [load_recipe(str(folder / "own.yaml"), [])]


def _make_images(folder: Path) -> None:
    draw(folder, "a.jpg", "b.png", "c.gif", "d.webp", "e.tiff", "f.bmp", "g.ppm")
    Image.new("P", (9, 9)).save(folder / "h.png", transparency=0)
    exif = Image.Exif()
    exif[274] = 6
    Image.new("RGB", (9, 5)).save(folder / "i.jpg", exif=exif)
    Image.new("F", (9, 5)).save(folder / "j.tiff")


def _read_images(folder: Path) -> list[object]:
    from limner.media.image import image_size, open_image

    def decode(path: Path) -> tuple[int, int]:
        return open_image(path).size  # the pixels need not stay in memory

    return _each(*(partial(read, path) for path in sorted(folder.iterdir()) for read in (decode, image_size)))


def _each(*functions: Callable[[], object]) -> list[object]:
    """Call all functions and return their results; a `LimnerError` is a result too."""
    from limner.errors import LimnerError

    results: list[object] = []
    for function in functions:
        try:
            results.append(function())
        except LimnerError as error:
            assert "\n" not in str(error), f"more than one line: {error}"
            results.append(error)
    return results


def _make_audio(folder: Path) -> None:
    SOURCES["audio"](folder)
    for path in folder.glob("*.txt"):
        path.unlink()


def _read_audio(folder: Path) -> list[object]:
    from limner.features.encoders.logmel import LogMelBackbone

    backbone = LogMelBackbone()
    return _each(*(partial(backbone.read, path) for path in sorted(folder.iterdir())))


def _make_videos(folder: Path) -> None:
    from limner.synthetic.scenes import ClipSettings
    from limner.synthetic.storage import generate_collection

    made = folder.with_name("clips")
    collection = generate_collection(made, ClipSettings(train=1, val=0, test=0, size=32, frames=4))
    folder.mkdir(exist_ok=True)
    for item in collection.items():
        (folder / "a.mp4").write_bytes(collection.media_file(item).read_bytes())


def _read_videos(folder: Path) -> list[object]:
    from limner.media.video import FrameSampling, read_frames

    return _each(*(partial(read_frames, path, FrameSampling(count=3)) for path in sorted(folder.iterdir())))


def _make_collection(folder: Path) -> None:
    from limner.features.encoders.load import load_backbone
    from limner.features.extract import extract
    from limner.synthetic.scenes import SceneSettings
    from limner.synthetic.storage import generate_collection

    collection = generate_collection(folder, SceneSettings(train=3, val=1, test=1, size=32))
    extract(collection, load_backbone("pixels:8"))


def _make_items(folder: Path) -> None:
    _make_collection(folder)
    _remove(folder / "features")


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder)


def _read_items(folder: Path) -> list[object]:
    from limner.data.collection import Collection
    from limner.data.summary import summarise

    collection = Collection.open(folder)
    return _each(collection.items, partial(summarise, collection), collection.fingerprint)


def _make_features(folder: Path) -> None:
    made = folder.with_name("features-collection")
    _make_collection(made)
    folder.mkdir(exist_ok=True)
    (made / "features").rename(folder / "features")


def _read_features(folder: Path) -> list[object]:
    from limner.features.maintenance import repair_table
    from limner.features.store import FeatureTable

    def take(path: Path) -> object:
        table = FeatureTable(path)
        return table.take(table.ids())

    def repair(path: Path) -> object:
        return repair_table(path, FeatureTable(path).spec)

    return _each(*(partial(read, path) for path in sorted((folder / "features").iterdir()) for read in (take, repair)))


def _make_run(folder: Path) -> None:
    from limner.data.collection import Collection
    from limner.evaluation.evaluate import EvaluationOptions, evaluate
    from limner.runs.evaluations import save_evaluation
    from limner.runs.recipe import Recipe
    from limner.runs.trained_model import load_trained_model
    from limner.training.loop import train

    made = folder.with_name("run-collection")
    _make_collection(made)
    sizes = {"embedding_dim": 4, "hidden_dim": 4, "multimodal_dim": 4, "image_encoder": {"convnet_width": 4}}
    values = {"features": {"tables": ["pixels8"]}, "model": {"name": "mrnn", **sizes}}
    recipe = Recipe.parse({**values, "training": {"epochs": 1, "batch_size": 4}, "decoding": {"max_length": 6}})
    collection = Collection.open(made)
    train(recipe, collection, folder)
    options = EvaluationOptions(metrics=("bleu4",), retrieval=False)
    save_evaluation(evaluate([load_trained_model(folder)], collection, options=options), folder)


def _read_run(folder: Path) -> list[object]:
    from limner.runs.evaluations import read_evaluations
    from limner.runs.records import read_log
    from limner.runs.trained_model import load_trained_model

    return _each(
        partial(load_trained_model, folder), partial(read_log, folder / "log.jsonl"), partial(read_evaluations, folder)
    )


def _read_forged_run(folder: Path) -> list[object]:
    """Read a run whose recorded hash of the vocabulary was made to match, as a hostile run would."""
    config, tokenizer = folder / "config.json", folder / "tokenizer.json"
    try:
        values = json.loads(config.read_bytes())
        values["tokenizer_sha256"] = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
        config.write_text(json.dumps(values))
    except (OSError, ValueError, TypeError, RecursionError):
        pass  # read as it is
    return _read_run(folder)


def _make_filters(folder: Path) -> None:
    from limner.data.collection import Collection
    from limner.features.kmeans import KMeansSettings, learn_filters, save_filters

    made = folder.with_name("filters-collection")
    _make_collection(made)
    folder.mkdir(exist_ok=True)
    settings = KMeansSettings(size=12, patch=3, filters=4, grid=2, patches=60, passes=1)
    save_filters(folder / "filters.safetensors", learn_filters(Collection.open(made), settings))


def _read_filters(folder: Path) -> list[object]:
    from limner.features.encoders.load import load_backbone

    return [load_backbone(f"kmeans:{folder / 'filters.safetensors'}")]


def _make_embeddings(folder: Path) -> None:
    import struct

    write(folder / "a.txt", "2 3\nball 0.1 0.2 0.3\ndog 1 -2 3e-1\n")
    write(folder / "b.txt.gz", "ball 0.1 0.2 0.3\ndog 1 -2 3e-1\n")
    (folder / "c.bin").write_bytes(
        b"2 3\n" + b"".join(w + b" " + struct.pack("3f", 1, 2, 3) for w in (b"ball", b"dog"))
    )


def _read_embeddings(folder: Path) -> list[object]:
    from limner.text.embeddings import embedding_dim, read_embeddings

    readers = (embedding_dim, partial(read_embeddings, words=("ball", "dog")))
    return _each(*(partial(read, path) for path in sorted(folder.iterdir()) for read in readers))


TARGETS: dict[str, Target] = {
    **{f"reader-{kind}": Target(make, partial(read, kind)) for kind, make in SOURCES.items()},
    "recipe": Target(lambda folder: write(folder / "own.yaml", RECIPE), _read_recipe),
    "image": Target(_make_images, _read_images),
    "audio": Target(_make_audio, _read_audio),
    "video": Target(_make_videos, _read_videos),
    "items": Target(_make_items, _read_items),
    "features": Target(_make_features, _read_features),
    "run": Target(_make_run, _read_run),
    "forged-run": Target(_make_run, _read_forged_run),
    "filters": Target(_make_filters, _read_filters),
    "embeddings": Target(_make_embeddings, _read_embeddings),
}
"""All targets by name."""
