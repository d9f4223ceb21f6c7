"""Measure the speed of Limner and print one JSON line per result: name, value, unit, target, hardware.

    make bench                  all benchmarks
    make bench ONLY=all_pairs   one benchmark

Both sides of a ratio are measured in one run on one machine. The data are photographs and sentences in LIMNER_DATA (or
../shared/data) if that folder exists, otherwise generated; each result names them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from backbone import built_in_backbone
from candidates import candidates, expansion_search
from caption_stages import caption_stages
from constrained import constrained_captions
from ddp import ddp
from folders import folders
from limner.data.examples import Batch, Example, ImageFeatures, collate, collate_features
from limner.decoding.scoring import sentence_log_probs
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import beam_search
from limner.features.preprocessing import Preprocessing, read_image
from limner.features.spec import FeatureSpec
from limner.layers.all_pairs import PrefixTree
from limner.layers.image_encoder import ImageEncoderSettings
from limner.media.image import ImageInput, Pixels
from limner.media.modality import IMAGE
from limner.models import build_model
from limner.models.log_bilinear import LBL, LBLSettings
from limner.models.mrnn import MRNN, MRNNSettings
from limner.models.protocols import Model, ModelInputs
from limner.process import keep_freed_memory, native_bf16
from limner.retrieval.all_pairs import pair_log_probs
from limner.runs.records import read_log
from limner.runs.trained_model import TrainedModel, load_trained_model
from limner.training.context import TrainProgress
from measuring import CPU, median_time, product_rate, random_jpegs, real_data, report
from memory import memory
from meteor import meteor
from peers import peers
from phrase_based import phrase_based
from ray_features import ray_features
from recurrent import cells, soft_attention
from runtime import runtime
from scst import self_critical
from search import search
from serve import serve

VOCAB, FEATURES, LENGTH = 2800, 1280, 11
"""Vocabulary size, size of the pooled features, and sentence length in tokens."""


def paper_model() -> MRNN:
    """Build an m-RNN of the paper's sizes; its speed does not depend on the values of the weights."""
    torch.manual_seed(0)
    return MRNN(MRNNSettings(), ModelInputs(VOCAB, {"pooled": (FEATURES,)})).eval()


def image_batch(count: int) -> Batch:
    """Generate a batch of random pooled features without sentences."""
    random = np.random.default_rng(0)
    values = random.random((count, FEATURES), dtype=np.float32).astype(np.float16)
    return collate([Example(str(row), image={"pooled": value}) for row, value in enumerate(values)])


def captions() -> None:
    """Measure greedy decoding of captions of 11 tokens from stored features, for one image and in batches."""
    model = paper_model()
    settings = DecodingSettings(min_length=LENGTH, max_length=LENGTH)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    single = image_batch(1)
    seconds = median_time(lambda: beam_search([model], single, settings), 200)
    report("captions_single", 1000 * seconds, "ms per caption, one core", "<= 3 (the paper: 25)")
    torch.set_num_threads(threads)
    many = image_batch(1000)
    seconds = median_time(lambda: beam_search([model], many, settings), 5)
    report("captions_batch", seconds, "ms per caption, batches of 1,000", "<= 0.3")


def load_texts(all_splits: bool = False) -> tuple[list[str], str]:
    """Load or generate sentences.

    Args:
        all_splits: whether to return all sentences of Flickr8k instead of the 5,000 of its test split.

    Returns:
        Sentences, and the name of their source: Flickr8k, or 5,000 sentences of words drawn by Zipf's law.
    """
    data = real_data()
    if data is None:
        random = np.random.default_rng(0)
        shares = 1 / np.arange(1, VOCAB - 3)
        drawn = random.choice(np.arange(4, VOCAB), size=(5000, LENGTH), p=shares / shares.sum())
        return [" ".join(f"w{word}" for word in sentence) for sentence in drawn.tolist()], "drawn by Zipf's law"
    from limner.data.readers import read_source

    items = read_source("flickr", data / "flickr8k").items
    origin = "Flickr8k" if all_splits else "Flickr8k test"
    return [text for item in items if all_splits or item.split == "test" for text in item.texts("en")], origin


def load_sentences() -> tuple[list[list[int]], str]:
    """Return the sentences of `load_texts` as token ids, and the name of their source."""
    from limner.text.tokenizer import Tokenizer
    from limner.text.words import TextSettings

    texts, origin = load_texts()
    tokenizer = Tokenizer.train(texts, TextSettings(punctuation=False, max_size=VOCAB))
    return [tokenizer.encode(text) for text in texts], origin


class RandomFeatures:
    """Random pooled features in memory, as a `FeatureSource` of row numbers."""

    def __init__(self, count: int) -> None:
        """Generate the features of `count` images."""
        values = np.random.default_rng(0).random((count, FEATURES), dtype=np.float32)
        self.values = values.astype(np.float16)

    def take(self, rows: list[int]) -> list[dict[str, np.ndarray]]:
        """Return the features of some rows."""
        return [{"pooled": self.values[row]} for row in rows]


def all_pairs() -> None:
    """Measure the exact log-probabilities of 5,000 sentences given 1,000 images, for the m-RNN."""
    model = paper_model()
    targets, origin = load_sentences()
    stored, rows = RandomFeatures(1000), list(range(1000))
    batch = collate([Example("", target) for target in targets])
    prefixes = len(PrefixTree.of(batch).row)
    for bf16 in (True, False) if native_bf16(CPU) else (False,):
        images = rows if bf16 or not native_bf16(CPU) else rows[:200]
        rate = product_rate(torch.bfloat16 if bf16 else torch.float32)
        start = time.perf_counter()
        pair_log_probs(model, targets, images, stored, bf16=bf16)
        seconds = time.perf_counter() - start
        rate = (rate + product_rate(torch.bfloat16 if bf16 else torch.float32)) / 2
        work = 2 * prefixes * len(images) * model.settings.multimodal_dim * VOCAB
        name = "all_pairs_bf16" if bf16 else "all_pairs_float32"
        details = {"sentences": f"{len(targets)} ({origin})", "images": len(images), "prefixes": prefixes}
        details |= {"seconds": round(seconds, 1), "product_gflops": round(rate / 1e9)}
        report(f"{name}_share", 100 * work / seconds / rate, "% of the matrix-product rate", ">= 60", **details)
        if bf16 or not native_bf16(CPU):
            fast = len(targets) * len(images) / seconds
    target_sample, row_sample = targets[::50], rows[:50]
    image = collate([Example("", image=value) for value in stored.take(row_sample)]).image
    sentences = collate([Example("", target) for target in target_sample])
    with torch.inference_mode():
        slow_seconds = median_time(lambda: pairwise_log_probs(model, image, sentences), 3)
    slow = len(target_sample) * len(row_sample) / slow_seconds
    report(
        "all_pairs_ratio",
        fast / slow,
        "times the speed of pairwise scoring in float32",
        ">= 4",
        pairs_per_second=round(fast),
    )


def pairwise_log_probs(model: Model, image: ImageFeatures, sentences: Batch) -> Tensor:
    """Compute the log-probability of every sentence given every image, (S, I), image by image."""
    count = len(sentences)
    batches = [replace(sentences, image=image.select(torch.full((count,), k))) for k in range(len(image.present))]
    return torch.stack([sentence_log_probs(model(pairs), pairs) for pairs in batches], 1)


def additive_all_pairs() -> None:
    """Measure the same matrix for MLBL-B, whose normalisers are one matrix product, against pairwise scoring."""
    torch.manual_seed(0)
    settings = LBLSettings(word_dim=256, init_std=0.1, image_encoder=ImageEncoderSettings(scaling="unit"))
    model = LBL(settings, ModelInputs(5000, {"pooled": (FEATURES,)})).eval()
    targets, origin = load_sentences()
    stored, rows = RandomFeatures(1000), list(range(1000))
    seconds = median_time(lambda: pair_log_probs(model, targets, rows, stored), 3)
    fast = len(targets) * len(rows) / seconds
    target_sample, row_sample = targets[::50], rows[:50]
    sentences = collate([Example("", target) for target in target_sample])
    image = collate([Example("", image=value) for value in stored.take(row_sample)]).image
    with torch.inference_mode():
        general = median_time(lambda: pairwise_log_probs(model, image, sentences), 3)
        exact = pairwise_log_probs(model, image, sentences)
        difference = float((pair_log_probs(model, target_sample, row_sample, stored) - exact).abs().max())
    sampled_pairs = len(target_sample) * len(row_sample)
    report(
        "additive_all_pairs_ratio",
        fast * general / sampled_pairs,
        "times the speed of pairwise scoring in float32",
        ">= 50",
        sentences=f"{len(targets)} ({origin})",
        images=len(rows),
        seconds=round(seconds, 2),
        max_difference_nats=float(f"{difference:.2g}"),
    )
    assert difference < 1e-4, "all-pairs scores must equal pairwise scores"


def kmeans() -> None:
    """Measure learning 128 k-means filters and encoding 5,500 images of 64 pixels, including JPEG decoding."""
    from limner.data.collection import Collection, write_items
    from limner.data.examples import Item
    from limner.features.encoders.load import load_backbone
    from limner.features.extract import extract
    from limner.features.kmeans import KMeansSettings, learn_filters, save_filters

    with tempfile.TemporaryDirectory() as scratch:
        folder, count, data = Path(scratch), 5500, real_data()
        files = sorted((data / "flickr8k" / "images").glob("*.jpg"))[:count] if data else random_jpegs(folder, count)
        items = [Item(file.stem, "train", image=os.path.relpath(file, folder / "c")) for file in files]
        write_items(folder / "c", items)
        collection = Collection.open(folder / "c")
        start = time.perf_counter()
        save_filters(folder / "filters.safetensors", learn_filters(collection, KMeansSettings()))
        learning_seconds = time.perf_counter() - start
        extract(collection, load_backbone(f"kmeans:{folder / 'filters.safetensors'}"))
        report(
            "kmeans",
            time.perf_counter() - start,
            "s for 5,500 images",
            "<= 300",
            images="Flickr8k" if data else "noise",
            learning_seconds=round(learning_seconds, 1),
        )


def features() -> None:
    """Measure MobileNetV2 features of JPEGs of 256 pixels, including JPEG decoding, in bf16 and in float32."""
    from limner.data.collection import Collection, write_items
    from limner.data.examples import Item
    from limner.features.encoders.load import load_backbone
    from limner.features.extract import extract

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        data = real_data()
        if data is not None:
            files = sorted((data / "flickr8k" / "images").glob("*.jpg"))[:640]
            mobilenet = str(data / "backbones" / "mobilenet_v2")
        else:
            files, mobilenet = random_jpegs(folder, 640), _random_mobilenet(folder)
        items = [Item(file.stem, "train", image=os.path.relpath(file, folder / "c")) for file in files]
        write_items(folder / "c", items)
        for file in files:
            file.read_bytes()  # load all files into the file system cache
        rates = {}
        for precision in ("fp32", "auto"):
            network = load_backbone(mobilenet, precision=precision)
            network(np.stack([network.read(file) for file in files[:32]]))  # warm-up
            start, used = time.perf_counter(), time.process_time()
            extract(Collection.open(folder / "c"), network, name=f"features_{precision}")
            rates[precision] = len(files) / (time.perf_counter() - start)
        report(
            "features",
            rates["auto"],
            "images/s",
            ">= 80",
            images="Flickr8k" if data is not None else "noise",
            speedup_over_float32=round(rates["auto"] / rates["fp32"], 2),
            processor_ms_an_image=round(1000 * (time.process_time() - used) / len(files), 1),
        )


def _random_mobilenet(folder: Path) -> str:
    """Save a MobileNetV2 with random weights and return its folder."""
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    MobileNetV2ForImageClassification(MobileNetV2Config()).save_pretrained(folder / "mobilenet_v2")
    return str(folder / "mobilenet_v2")


def training() -> None:
    """Measure training of the m-RNN, with features cached in memory or read from disk, and of LBL."""
    from limner.data.collection import Collection, write_items
    from limner.data.examples import Item, ItemSentence
    from limner.features.extract import extract
    from limner.runs.recipe import load_recipe
    from limner.training.loop import train as train_model

    rate = product_rate(torch.bfloat16 if native_bf16(CPU) else torch.float32)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (image,) = random_jpegs(folder, 1)
        collections = {}
        for all_splits in (False, True):
            texts, origin = load_texts(all_splits)
            items = [
                Item(
                    f"{row:04d}",
                    "train",
                    image=f"../{image.name}",
                    sentences=tuple(ItemSentence("en", t) for t in five),
                )
                for row, five in enumerate(zip(*[iter(texts)] * 5, strict=False))
            ]
            val = Item("val", "val", image=items[0].image, sentences=items[0].sentences)
            write_items(folder / origin, [*items, val])
            collections[all_splits] = Collection.open(folder / origin)
        extract(collections[False], _NoiseBackbone())
        multimodal = ["features.tables=[noise]", f"text.max_size={VOCAB}"]
        text_only = ["text.max_size=4000", "model.word_dim=256", "training.batch_size=128"]
        common = ["text.min_count=1", "training.epochs=3", "training.validate_every=3", "training.metrics=[]"]
        for name, recipe, changes in (
            ("warm_up", "mao2015/flickr8k", [*multimodal, "features.cache_mib=64"]),  # not reported
            ("train", "mao2015/flickr8k", [*multimodal, "features.cache_mib=64"]),
            ("train_from_disk", "mao2015/flickr8k", [*multimodal, "features.cache_mib=0"]),
            ("train_lbl", "kiros2014/adamw/lbl", text_only),
        ):
            timer = _StepTimer()
            collection = collections[name == "train_lbl"]
            run = train_model(load_recipe(recipe, [*changes, *common]), collection, folder / name, on_progress=timer)
            lines = [line for line in read_log(run / "log.jsonl") if line.kind == "train"]
            speed = float(np.median([line.tokens_per_second or 0 for line in lines]))
            model = load_trained_model(run)
            share = 100 * 6 * _weights_per_token(model) * speed / rate
            details = {"sentences": collection.path.name, "share_of_product_rate_percent": round(share)}
            details |= {"vocabulary": len(model.tokenizer), "waiting_for_data_percent": round(100 * timer.waiting, 2)}
            details |= {"batch": model.recipe.training.batch_size}
            if name != "warm_up":
                target = ">= 40000" if name == "train_lbl" else ">= 20000"
                report(name, speed, "tokens/s in the training log", target, **details)


class _NoiseBackbone:
    """Backbone that returns random pooled features, of the size of MobileNetV2's."""

    modality = IMAGE

    def __init__(self) -> None:
        """Build the specification of the features."""
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

    def read(self, source: ImageInput) -> Pixels:
        """Read the pixels of an image."""
        return read_image(source, self.preprocessing)

    def __call__(self, pixels: Pixels) -> dict[str, np.ndarray]:
        """Return random features of a batch of images."""
        return {"pooled": self.random.random((len(pixels), FEATURES), dtype=np.float32).astype(np.float16)}


class _StepTimer:
    """Progress callback that measures which share of an epoch's time is spent waiting for data."""

    def __init__(self) -> None:
        """Start without measurements."""
        self.previous: tuple[float, float, int] | None = None  # wall time, time in steps, epoch
        self.total = self.in_steps = 0.0

    def __call__(self, progress: TrainProgress) -> None:
        """Add the time since the previous step of the same epoch."""
        now = time.perf_counter(), progress.state.seconds, progress.state.epoch
        if self.previous is not None and self.previous[2] == now[2]:
            self.total += now[0] - self.previous[0]
            self.in_steps += now[1] - self.previous[1]
        self.previous = now

    @property
    def waiting(self) -> float:
        """Share of the time outside of training steps, 0 to 1."""
        return 1 - self.in_steps / self.total


def _weights_per_token(model: TrainedModel) -> int:
    """Count the weights in matrix products of every token: all matrices except the embedding and the image's."""
    named = model.model.named_parameters()
    return sum(p.numel() for name, p in named if p.ndim == 2 and "embedding_1" not in name and "image" not in name)


def dense_captions() -> None:
    """Measure the dense captions of one image of 224 pixels: features by EfficientNet-Lite2, regions, sentences."""
    from limner.features.encoders.load import load_backbone
    from limner.runs.recipe import load_recipe

    backbone = load_backbone("efficientnet-lite2", layer="stage5", kind="grid", size=224, resize="squash")
    settings = load_recipe("johnson2016/flickr30k-entities", []).model
    torch.manual_seed(0)
    model = build_model(settings, ModelInputs(VOCAB, {"grid": backbone.specs[0].shape})).eval()
    decoding = DecodingSettings(min_length=6, max_length=6)
    image = np.random.default_rng(0).integers(0, 256, (224, 224, 3)).astype(np.uint8)
    counts = []

    def describe() -> None:
        features = collate_features(
            [{kind: values[0] for kind, values in backbone(backbone.read(image)[None]).items()}]
        )
        (regions,) = model.detect(features)
        batch = collate([Example(str(row), image={"pooled": code.numpy()}) for row, code in enumerate(regions.codes)])
        beam_search([model], batch, decoding)
        counts.append(len(regions.codes))

    seconds = median_time(describe, 10)
    report("dense_captions", seconds, f"s for the {counts[-1]} regions of an image at 224 pixels", "<= 1")


BENCHMARKS = {
    "captions": captions,
    "caption_stages": lambda: caption_stages(random_jpegs),
    "constrained_captions": constrained_captions,
    "all_pairs": all_pairs,
    "additive_all_pairs": additive_all_pairs,
    "candidates": candidates,
    "expansion_search": expansion_search,
    "features": features,
    "backbone": lambda: built_in_backbone(random_jpegs),
    "kmeans": kmeans,
    "memory": memory,
    "training": training,
    "ddp": ddp,
    "cells": cells,
    "soft_attention": soft_attention,
    "dense_captions": dense_captions,
    "scst": lambda: self_critical(*load_texts()),
    "meteor": meteor,
    "phrase_based": phrase_based,
    "peers": peers,
    "ray": lambda: ray_features(random_jpegs),
    "serve": serve,
    "runtime": runtime,
    "folders": lambda: folders(random_jpegs),
    "search": search,
}


def main() -> None:
    """Run the benchmark named on the command line, or all benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", choices=BENCHMARKS, help="benchmark to run; default: all")
    selected = parser.parse_args().name
    keep_freed_memory()  # as the limner command does
    for name, run in BENCHMARKS.items():
        if selected in (None, name):
            run()


if __name__ == "__main__":
    main()
