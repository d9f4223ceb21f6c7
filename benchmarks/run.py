"""Times what Limner promises and prints one JSON line a figure: name, value, unit, target, hardware.

    make bench              all of them
    make bench ONLY=pairs   one of them

Ratios are measured in one run on one machine. Real photographs and sentences are used where LIMNER_DATA (or
../shared/data) holds them, otherwise generated ones, and each line says which.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from limner.data.examples import Batch, Example, collate
from limner.decoding.beam_search import beam_search
from limner.decoding.settings import DecodingSettings
from limner.device import native_bf16
from limner.features.encoders.base import read_image
from limner.features.preprocessing import Preprocessing
from limner.features.spec import FeatureSpec
from limner.layers.all_pairs import PrefixTree
from limner.layers.image_encoder import ImageEncoderSettings
from limner.media.image import ImageInput, Pixels
from limner.media.modality import IMAGE
from limner.models.log_bilinear import LBL, LBLSettings
from limner.models.mrnn import MRNN, MRNNSettings
from limner.models.protocols import ModelInputs
from limner.process import keep_freed_memory
from limner.retrieval.all_pairs import MEMORY_BUDGET, pair_log_probs, tiled_log_probs
from limner.runs.records import read_log
from limner.runs.trained_model import TrainedModel, load_trained_model
from limner.training.run import TrainProgress
from measuring import CPU, median_time, product_rate, real_data, tell
from translation import translation

VOCAB, FEATURES, WORDS = 2800, 1280, 11


def paper_model() -> MRNN:
    """An m-RNN of the paper's sizes with fresh weights; how fast it is does not depend on what it learned."""
    torch.manual_seed(0)
    return MRNN(MRNNSettings(), ModelInputs(VOCAB, {"pooled": (FEATURES,)})).eval()


def pictures(count: int) -> Batch:
    """A batch of pictures without sentences."""
    random = np.random.default_rng(0)
    values = random.random((count, FEATURES), dtype=np.float32).astype(np.float16)
    return collate([Example(str(row), image={"pooled": value}) for row, value in enumerate(values)])


def describe() -> None:
    """Sentences of 11 words from stored features: one picture at a time, and in batches."""
    model = paper_model()
    settings = DecodingSettings(min_length=WORDS, max_length=WORDS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    single = pictures(1)
    seconds = median_time(lambda: beam_search([model], single, settings), 200)
    tell("describe_one", 1000 * seconds, "ms a sentence, one core", "<= 3 (the paper: 25)")
    torch.set_num_threads(threads)
    many = pictures(1000)
    seconds = median_time(lambda: beam_search([model], many, settings), 5)
    tell("describe_batch", seconds, "ms a sentence, batches of 1,000", "<= 0.3")


def texts(everything: bool = False) -> tuple[list[str], str]:
    """5,000 sentences: the real test sentences (or all there are), or words drawn by Zipf's law."""
    data = real_data()
    if data is None:
        random = np.random.default_rng(0)
        shares = 1 / np.arange(1, VOCAB - 3)
        drawn = random.choice(np.arange(4, VOCAB), size=(5000, WORDS), p=shares / shares.sum())
        return [" ".join(f"w{word}" for word in sentence) for sentence in drawn.tolist()], "drawn by Zipf's law"
    from limner.data.readers import read_source

    items = read_source("flickr", data / "flickr8k").items
    which = "Flickr8k" if everything else "Flickr8k test"
    return [text for item in items if everything or item.split == "test" for text in item.texts("en")], which


def sentences() -> tuple[list[list[int]], str]:
    """The same sentences as ids."""
    from limner.text.tokenizer import TextSettings, Tokenizer

    said, which = texts()
    tokenizer = Tokenizer.train(said, TextSettings(punctuation=False, max_size=VOCAB))
    return [tokenizer.encode(text) for text in said], which


class Stored:
    """Feature vectors in memory, as a feature table would give them."""

    def __init__(self, count: int) -> None:
        values = np.random.default_rng(0).random((count, FEATURES), dtype=np.float32)
        self.values = values.astype(np.float16)

    def take(self, rows: list[int]) -> list[dict[str, np.ndarray]]:
        return [{"pooled": self.values[row]} for row in rows]


def pairs() -> None:
    """The exact matrix of 5,000 sentences with 1,000 pictures."""
    model = paper_model()
    targets, which = sentences()
    stored, rows = Stored(1000), list(range(1000))
    batch = collate([Example("", target) for target in targets])
    prefixes = len(PrefixTree.of(batch).row)
    for bf16 in (True, False) if native_bf16(CPU) else (False,):
        shown = rows if bf16 or not native_bf16(CPU) else rows[:200]
        rate = product_rate(torch.bfloat16 if bf16 else torch.float32)
        began = time.perf_counter()
        pair_log_probs(model, targets, shown, stored, bf16=bf16)
        seconds = time.perf_counter() - began
        rate = (rate + product_rate(torch.bfloat16 if bf16 else torch.float32)) / 2
        work = 2 * prefixes * len(shown) * model.settings.multimodal_dim * VOCAB
        name = "pairs_bf16" if bf16 else "pairs_float32"
        facts = {"sentences": f"{len(targets)} ({which})", "pictures": len(shown), "prefixes": prefixes}
        facts |= {"seconds": round(seconds, 1), "product_gflops": round(rate / 1e9)}
        tell(f"{name}_share", 100 * work / seconds / rate, "% of the matrix-product rate", ">= 60", **facts)
        if bf16 or not native_bf16(CPU):
            fast = len(targets) * len(shown) / seconds
    some, seen = targets[::50], rows[:50]
    image = collate([Example("", image=value) for value in stored.take(seen)]).image
    sub = collate([Example("", target) for target in some])
    with torch.inference_mode():
        slow_seconds = median_time(lambda: tiled_log_probs(model, image, sub, MEMORY_BUDGET), 3)
    slow = len(some) * len(seen) / slow_seconds
    tell("pairs_ratio", fast / slow, "times pair by pair in float32", ">= 4", pairs_per_second=round(fast))


def additive_pairs() -> None:
    """The same matrix for MLBL-B, whose logits add: one matrix product, against the tiled general way."""
    torch.manual_seed(0)
    settings = LBLSettings(word_dim=256, init_std=0.1, image_encoder=ImageEncoderSettings(scaling="unit"))
    model = LBL(settings, ModelInputs(5000, {"pooled": (FEATURES,)})).eval()
    targets, which = sentences()
    stored, rows = Stored(1000), list(range(1000))
    seconds = median_time(lambda: pair_log_probs(model, targets, rows, stored), 3)
    fast = len(targets) * len(rows) / seconds
    some, seen = targets[::50], rows[:50]
    sub = collate([Example("", target) for target in some])
    image = collate([Example("", image=value) for value in stored.take(seen)]).image
    with torch.inference_mode():
        general = median_time(lambda: tiled_log_probs(model, image, sub, MEMORY_BUDGET), 3)
        exact = tiled_log_probs(model, image, sub, MEMORY_BUDGET)
        difference = float((pair_log_probs(model, some, seen, stored) - exact).abs().max())
    pairs_of_sub = len(some) * len(seen)
    tell(
        "additive_pairs_ratio",
        fast * general / pairs_of_sub,
        "times the tiled general path in float32",
        ">= 50",
        sentences=f"{len(targets)} ({which})",
        pictures=len(rows),
        seconds=round(seconds, 2),
        largest_difference_in_nats=float(f"{difference:.2g}"),
    )
    assert difference < 1e-4, "the product is not the general path"


def kmeans() -> None:
    """Learning 128 filters and encoding 5,500 pictures at 64 pixels with them, decoding included."""
    from limner.data.collection import Collection, write_items
    from limner.data.examples import Item
    from limner.features.encoders.kmeans import KMeansSettings, learn_filters, save_filters
    from limner.features.encoders.load import load_backbone
    from limner.features.extract import extract

    with tempfile.TemporaryDirectory() as scratch:
        folder, count, data = Path(scratch), 5500, real_data()
        files = sorted((data / "flickr8k" / "images").glob("*.jpg"))[:count] if data else _drawn_jpegs(folder, count)
        items = [Item(file.stem, "train", image=os.path.relpath(file, folder / "c")) for file in files]
        write_items(folder / "c", items)
        collection = Collection.open(folder / "c")
        began = time.perf_counter()
        save_filters(folder / "filters.safetensors", learn_filters(collection, KMeansSettings()))
        learned = time.perf_counter() - began
        extract(collection, load_backbone(f"kmeans:{folder / 'filters.safetensors'}"))
        tell(
            "kmeans",
            time.perf_counter() - began,
            "s for 5,500 pictures",
            "<= 300",
            pictures="Flickr8k" if data else "noise",
            seconds_of_learning=round(learned, 1),
        )


def features() -> None:
    """MobileNetV2 over 256-pixel JPEGs, decoding included."""
    from limner.data.collection import Collection, write_items
    from limner.data.examples import Item
    from limner.features.encoders.load import load_backbone
    from limner.features.extract import extract

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data = real_data()
        if data is not None:
            files = sorted((data / "flickr8k" / "images").glob("*.jpg"))[:640]
            network = str(data / "backbones" / "mobilenet_v2")
        else:
            files, network = _drawn_jpegs(folder, 640), _fresh_mobilenet(folder)
        items = [Item(file.stem, "train", image=os.path.relpath(file, folder / "c")) for file in files]
        write_items(folder / "c", items)
        rates = {}
        for file in files:
            file.read_bytes()  # from here on all are in the cache of the file system
        for precision in ("fp32", "auto"):
            eye = load_backbone(network, precision=precision)
            eye(np.stack([eye.read(file) for file in files[:32]]))  # what runs first is slower
            began = time.perf_counter()
            extract(Collection.open(folder / "c"), eye, name=precision)
            rates[precision] = len(files) / (time.perf_counter() - began)
        which = "Flickr8k" if data is not None else "noise"
        tell(
            "features",
            rates["auto"],
            "pictures/s",
            ">= 80",
            pictures=which,
            times_float32=round(rates["auto"] / rates["fp32"], 2),
        )


def _drawn_jpegs(folder: Path, count: int) -> list[Path]:
    random = np.random.default_rng(0)
    files = []
    for number in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (32, 43, 3), dtype=np.uint8))
        files.append(folder / f"{number:04d}.jpg")
        coarse.resize((341, 256)).save(files[-1], quality=85)
    return files


def _fresh_mobilenet(folder: Path) -> str:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    MobileNetV2ForImageClassification(MobileNetV2Config()).save_pretrained(folder / "mobilenet_v2")
    return str(folder / "mobilenet_v2")


def train() -> None:
    """Training as `limner train` does it: the m-RNN from a table held in memory and read from disk, and LBL."""
    from limner.data.collection import Collection, write_items
    from limner.data.examples import Item, Sentence
    from limner.features.extract import extract
    from limner.runs.recipe import load_recipe
    from limner.training.loop import train as train_model

    rate = product_rate(torch.bfloat16 if native_bf16(CPU) else torch.float32)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (picture,) = _drawn_jpegs(folder, 1)
        collections = {}
        for everything in (False, True):
            said, which = texts(everything)
            items = [
                Item(
                    f"{row:04d}", "train", image=f"../{picture.name}", sentences=tuple(Sentence("en", t) for t in five)
                )
                for row, five in enumerate(zip(*[iter(said)] * 5, strict=False))
            ]
            val = Item("val", "val", image=items[0].image, sentences=items[0].sentences)
            write_items(folder / which, [*items, val])
            collections[everything] = Collection.open(folder / which)
        extract(collections[False], _Noise())
        looks = ["features.tables=[noise]", f"text.max_size={VOCAB}"]
        reads = ["text.max_size=4000", "model.word_dim=256", "training.batch_size=128"]
        few = ["text.min_count=1", "training.epochs=3", "training.validate_every=3", "training.metrics=[]"]
        for name, recipe, changes in (
            ("warm", "mao2015/flickr8k", [*looks, "features.cache_mib=64"]),  # this one does not count
            ("train", "mao2015/flickr8k", [*looks, "features.cache_mib=64"]),
            ("train_from_disk", "mao2015/flickr8k", [*looks, "features.cache_mib=0"]),
            ("train_lbl", "kiros2014/adamw/lbl", reads),
        ):
            clock = _Clock()
            collection = collections[name == "train_lbl"]
            run = train_model(load_recipe(recipe, [*changes, *few]), collection, folder / name, on_progress=clock)
            lines = [line for line in read_log(run / "log.jsonl") if line.kind == "train"]
            speed = float(np.median([line.tokens_per_second or 0 for line in lines]))
            model = load_trained_model(run)
            share = 100 * 6 * _weights_a_word(model) * speed / rate
            facts = {"sentences": collection.path.name, "share_of_product_rate_percent": round(share)}
            facts |= {"vocabulary": len(model.tokenizer), "waiting_for_data_percent": round(100 * clock.waiting, 2)}
            facts |= {"batch": model.recipe.training.batch_size}
            if name != "warm":
                target = ">= 40000" if name == "train_lbl" else ">= 20000"
                tell(name, speed, "words/s of the log", target, **facts)


class _Noise:
    """A network that sees noise: its table is as large as a real one, and made at once."""

    modality = IMAGE

    def __init__(self) -> None:
        self.preprocessing = Preprocessing(resize="squash", size=8, short=8)
        stored = self.preprocessing.model_dump(mode="json")
        self.specs = (
            FeatureSpec(
                name="noise",
                kind="pooled",
                shape=(FEATURES,),
                backbone="noise",
                preprocessing=stored,
                weights_sha256="",
            ),
        )
        self.random = np.random.default_rng(0)

    def read_source(self, source: ImageInput) -> Pixels:
        return read_image(source, self.preprocessing)

    def __call__(self, pixels: Pixels) -> dict[str, np.ndarray]:
        return {"pooled": self.random.random((len(pixels), FEATURES), dtype=np.float32).astype(np.float16)}


class _Clock:
    """Tells the time between steps of an epoch apart into the steps themselves and the waiting for data."""

    def __init__(self) -> None:
        self.before: tuple[float, float, int] | None = None
        self.all = self.in_steps = 0.0

    def __call__(self, news: TrainProgress) -> None:
        now = time.perf_counter(), news.state.seconds, news.state.epoch
        if self.before is not None and self.before[2] == now[2]:
            self.all += now[0] - self.before[0]
            self.in_steps += now[1] - self.before[1]
        self.before = now

    @property
    def waiting(self) -> float:
        return 1 - self.in_steps / self.all


def _weights_a_word(model: TrainedModel) -> int:
    """Weights that every word is multiplied by: all matrices but the embedding and the picture's."""
    named = model.model.named_parameters()
    return sum(p.numel() for name, p in named if p.ndim == 2 and "embedding_1" not in name and "image" not in name)


BENCHMARKS = {
    "describe": describe,
    "pairs": pairs,
    "additive_pairs": additive_pairs,
    "features": features,
    "kmeans": kmeans,
    "train": train,
    "translation": translation,
}


def main() -> None:
    """Run one benchmark or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="?", choices=BENCHMARKS)
    chosen = parser.parse_args().only
    keep_freed_memory()  # as the commands do
    for name, run in BENCHMARKS.items():
        if chosen in (None, name):
            run()


if __name__ == "__main__":
    main()
