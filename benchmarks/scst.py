"""Measure self-critical training against its two decodings alone."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric

from limner.data.dataset import Examples
from limner.data.examples import Batch, Item, ItemSentence
from limner.data.languages import TargetLanguage
from limner.decoding.torch_models import beam_search
from limner.models.mrnn import MRNN, MRNNSettings
from limner.models.protocols import ModelInputs
from limner.process import native_bf16
from limner.runs.recipe import Recipe
from limner.runs.trained_model import ModelConfig, TrainedModel
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS
from limner.text.words import TextSettings
from limner.training.context import Interruption, Optimization, RunLog, TrainingContext
from limner.training.epoch import train_epoch
from limner.training.optimizers import build_optimizer
from limner.training.processes import Processes
from limner.training.scst import SelfCritical
from limner.training.state import TrainState
from measuring import CPU, median_time, report

BATCH, LENGTH, FEATURES, ITEMS, VOCAB = 32, 11, 1280, 512, 2800


class ItemFeatures:
    """Random pooled features in memory, by the number of the item."""

    def __init__(self, count: int) -> None:
        """Generate the features of `count` items."""
        self.values = np.random.default_rng(0).random((count, FEATURES), dtype=np.float32).astype(np.float16)

    def take(self, items: Sequence[Item]) -> list[dict[str, np.ndarray]]:
        """Return the features of some items."""
        return [{"pooled": self.values[int(item.id)]} for item in items]


def self_critical(texts: Sequence[str], origin: str) -> None:
    """Measure images per second of self-critical training of the m-RNN, CIDEr reward, and of its decodings alone.

    Args:
        texts: reference sentences, five for each image.
        origin: name of their source.
    """
    precision = "bf16" if native_bf16(CPU) else "fp32"
    for samples in (1, 5):  # the recipe draws one
        with tempfile.TemporaryDirectory() as scratch:
            run = _training(texts, samples, precision, Path(scratch))
            objective = SelfCritical(run)
            train_epoch(run, objective)  # fills the cache of reference vectors, as the first epoch does
            batches = [objective.batch(rows) for rows in objective.epoch_batches(0)]
            decoding = median_time(lambda objective=objective, batches=batches: _decode(objective, batches), 3)
            training = median_time(lambda run=run, objective=objective: train_epoch(run, objective), 3)
            run.log.close()
        details = {"images_per_second": round(ITEMS / training), "decodings_alone": round(ITEMS / decoding)}
        details |= {"samples": samples, "batch": BATCH, "tokens": LENGTH, "references": origin, "precision": precision}
        report("scst", 100 * decoding / training, "% of the images/s of its decodings", ">= 60", **details)


def _decode(objective: SelfCritical, batches: Sequence[Batch]) -> None:
    """Draw samples of every image and decode it greedily, as a training step does."""
    model, settings = objective.run.trained.model, objective.decoding(0)
    assert settings.sample is not None
    count = objective.settings.samples
    sample = settings.sample.model_copy(update={"greedy_first": False})
    sampling = settings.model_copy(update={"beam_size": count, "n_best": count, "sample": sample})
    greedy = settings.model_copy(update={"beam_size": 1, "n_best": 1, "sample": None})
    model.eval()
    for batch in batches:
        beam_search([model], batch, sampling)
        beam_search([model], batch, greedy)


def _training(texts: Sequence[str], samples: int, precision: str, out: Path) -> TrainingContext:
    """Set up the training of an m-RNN of the paper's sizes; sentences have a fixed length."""
    tokenizer = Tokenizer.train(texts, TextSettings(punctuation=False, max_size=VOCAB))
    groups = list(zip(*[iter(texts)] * 5, strict=False))
    items = [
        Item(str(row), "train", sentences=tuple(ItemSentence("en", text) for text in groups[row % len(groups)]))
        for row in range(ITEMS)
    ]
    examples = Examples(items, TargetLanguage("en", tokenizer), ItemFeatures(ITEMS))
    recipe = Recipe.parse(
        {
            "text": {"punctuation": False, "max_size": VOCAB},
            "model": {"name": "mrnn"},
            "training": {
                "objective": "scst",
                "metric": "cider",
                "batch_size": BATCH,
                "scst": {"samples": samples},
                "optimizer": {"name": "adamw", "lr": 1e-6},
                "clip_norm": 5.0,
                "precision": precision,
            },
            "decoding": {"max_length": LENGTH, "ban_unknown": True},
        }
    )
    torch.manual_seed(0)
    model = MRNN(MRNNSettings(), ModelInputs(len(tokenizer), {"pooled": (FEATURES,)}))
    model.softmax.bias.data[SPECIAL_TOKENS.eos] = -30.0  # no sentence ends before its maximum length
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed" if precision == "bf16" else "32-true")
    optimizer = build_optimizer(model.named_parameters(), recipe.training)
    optimization = Optimization(fabric, *fabric.setup(model, optimizer), optimizer, None)
    config = ModelConfig(recipe=recipe.model_dump(mode="json"), provenance={"init": "-"}, vocab_size=len(tokenizer))
    state = TrainState()
    trained = TrainedModel(model, tokenizer, config, recipe, None)
    records = (out, state, RunLog(out, state), Interruption())
    collection: Any = None  # the objective does not read it
    return TrainingContext(trained, examples, examples, *records, optimization, collection, Processes(fabric), None)
