"""Compare the speed of the translation models with the reference program, with equal equations and weights, in one run.

Both apply dropout of 0.5 to annotations, image features and the read-out; `encoder_dropout` and `decoder_dropout`,
which are 0.5 in the published recipes, are off.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

import plain_nmt
from limner.data.examples import Batch, Example, collate
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import beam_search
from limner.layers.image_encoder import ImageEncoderSettings
from limner.models.nmt import NMT, NMTSettings
from limner.models.protocols import ModelInputs
from limner.process import native_bf16
from limner.text.vocab import SPECIAL_TOKENS
from limner.training.losses import word_loss
from measuring import CPU, median_time, product_rate, report

VOCAB, LENGTH, BEAM = 10_000, 13, 6
STEPS = 2
"""Number of timed training steps of the reference program, which takes minutes; one more step is a warm-up."""
TASKS = {
    "text, 620/1024": ((620, 1024), 80, None, ">= 6 / >= 7"),
    "image 14x14x1024, 620/1024": ((620, 1024), 40, (196, 1024), ">= 19 / >= 20"),
    "text, 256": ((256, 256), 64, None, ">= 4 / >= 4"),
}


class ModelPair(NamedTuple):
    """Two models with the same weights, and the same batch for each."""

    ours: NMT
    plain: plain_nmt.PlainNMT
    batch: Batch
    plain_batch: plain_nmt.PlainBatch


def translation() -> None:
    """Measure training (target tokens per second) and beam search (sentences per second) at each size."""
    for name, (sizes, rows, grid, target) in TASKS.items():
        pair = _build_pair(sizes, rows, grid)
        _measure_training(name, pair, target.split(" / ")[0])
        _measure_search(name, pair, target.split(" / ")[1])


def _build_pair(sizes: tuple[int, int], rows: int, grid: tuple[int, int] | None) -> ModelPair:
    torch.manual_seed(0)
    words, hidden = sizes
    settings = NMTSettings(
        embedding_dim=words,
        hidden_dim=hidden,
        attention_dim=hidden,
        readout_dim=words,
        image=("attention",) if grid else (),
        annotation_dropout=0.5,
        readout_dropout=0.5,
        image_encoder=ImageEncoderSettings(dropout=0.5),
    )
    ours = NMT(settings, ModelInputs(VOCAB, {"grid": grid} if grid else {}, VOCAB))
    plain = plain_nmt.build(VOCAB, VOCAB, words, hidden, grid)
    plain_nmt.copy_weights(plain, ours.state_dict())
    random = np.random.default_rng(0)
    lengths = np.stack(
        [random.integers(12, 15, rows), random.integers(9, 18, rows)], 1
    )  # sorted by length, as in training
    examples = [
        Example(
            str(row),
            random.integers(len(SPECIAL_TOKENS), VOCAB, target).tolist(),
            random.integers(len(SPECIAL_TOKENS), VOCAB, source).tolist(),
            {"grid": random.random(grid, dtype=np.float32).astype(np.float16)} if grid else None,
        )
        for row, (target, source) in enumerate(lengths)
    ]
    batch = collate(examples)
    assert batch.source is not None and batch.source_mask is not None
    source_lengths = batch.source_mask.sum(1)
    plain_batch = plain_nmt.PlainBatch(
        batch.source, source_lengths, batch.target_in, batch.target_out, batch.image.grid
    )
    return ModelPair(ours, plain, batch, plain_batch)


def _measure_training(name: str, pair: ModelPair, target: str) -> None:
    """Measure training steps on one batch, with the optimizer of the papers."""
    bf16, words = native_bf16(CPU), int(pair.batch.target_mask.sum())
    ours, plain = (torch.optim.Adadelta(model.parameters()) for model in (pair.ours, pair.plain))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = word_loss(pair.ours(pair.batch), pair.batch)
        ours.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(pair.ours.parameters(), 1.0)
        ours.step()

    seconds = median_time(step, 3 * STEPS)
    reference_seconds = median_time(lambda: plain_nmt.train_step(pair.plain, plain, pair.plain_batch), STEPS)
    report(
        f"translation training, {name}",
        words / seconds,
        "target tokens/s",
        "-",
        plain=words / reference_seconds,
        bf16=bf16,
    )
    report(f"translation training, {name}, against the reference program", reference_seconds / seconds, "ratio", target)
    if name.startswith("text"):
        share = (
            6
            * words
            * _weights_per_token(pair.ours)
            / seconds
            / product_rate(torch.bfloat16 if bf16 else torch.float32)
        )
        report(f"translation training, {name}, share of the product rate", 100 * share, "%", "-")


def _measure_search(name: str, pair: ModelPair, target: str) -> None:
    """Measure beam search to a fixed length, as models with random weights do not generate </s>."""
    bf16 = native_bf16(CPU)
    with torch.no_grad():
        for model, bias in ((pair.ours, pair.ours.readout.bias), (pair.plain, pair.plain.decoder.vocabulary.bias)):
            model.eval()
            bias[[SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos, SPECIAL_TOKENS.eos]] = -1e9
    length = LENGTH
    settings = DecodingSettings(beam_size=BEAM, max_length=length, precision="bf16" if bf16 else "fp32")
    seconds = median_time(lambda: beam_search([pair.ours], pair.batch, settings), 3)
    float32_settings = settings.model_copy(update={"precision": "fp32"})
    float32_seconds = median_time(lambda: beam_search([pair.ours], pair.batch, float32_settings), 1)
    reference_seconds = median_time(lambda: plain_nmt.beam_search(pair.plain, pair.plain_batch, BEAM, length), 1)
    rows = len(pair.batch)
    report(
        f"beam {BEAM}, {name}",
        rows / seconds,
        "sentences/s",
        "-",
        plain=rows / reference_seconds,
        bf16=bf16,
        float32=rows / float32_seconds,
    )
    report(
        f"beam {BEAM}, {name}, against the reference program",
        reference_seconds / seconds,
        "ratio",
        target,
        float32=reference_seconds / float32_seconds,
    )


def _weights_per_token(model: NMT) -> int:
    """Count the weights in matrix products of every token: all except the embeddings."""
    embeddings = ("source_embedding.weight", "target_embedding.weight")
    return sum(weight.numel() for name, weight in model.named_parameters() if name not in embeddings)
