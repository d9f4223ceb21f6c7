"""Speed of translation: Limner's models and the reference program, with the same equations and weights, in one run.

Both apply dropout of 0.5 to annotations, image features and the read-out; `encoder_dropout` and `decoder_dropout`,
which are 0.5 in the published recipes, are off.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

import plain_nmt
from limner.data.examples import Batch, Example, collate
from limner.decoding.beam_search import beam_search
from limner.decoding.settings import DecodingSettings
from limner.device import native_bf16
from limner.layers.image_encoder import ImageEncoderSettings
from limner.models.nmt import NMT, NMTSettings
from limner.models.protocols import ModelInputs
from limner.text.vocab import SPECIAL_TOKENS
from limner.training.losses import word_loss
from measuring import CPU, median_time, product_rate, tell

VOCAB, WORDS, BEAM = 10_000, (8, 13), 6
STEPS = 2
"""Number of timed training steps of the reference program, which takes minutes; one more step is a warm-up."""
TASKS = {
    "text, 620/1024": ((620, 1024), 80, None, ">= 6 / >= 7"),
    "image 14x14x1024, 620/1024": ((620, 1024), 40, (196, 1024), ">= 19 / >= 20"),
    "text, 256": ((256, 256), 64, None, ">= 4 / >= 4"),
}


class Both(NamedTuple):
    """Two models with the same weights, and the same batch for each."""

    ours: NMT
    plain: plain_nmt.PlainNMT
    batch: Batch
    plain_batch: plain_nmt.PlainBatch


def translation() -> None:
    """Measure training (target tokens a second) and beam search (sentences a second) of each size."""
    for name, (sizes, rows, grid, target) in TASKS.items():
        both = _both(sizes, rows, grid)
        _tell_training(name, both, target.split(" / ")[0])
        _tell_search(name, both, target.split(" / ")[1])


def _both(sizes: tuple[int, int], rows: int, grid: tuple[int, int] | None) -> Both:
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
    lengths_read = batch.source_mask.sum(1)
    plain_batch = plain_nmt.PlainBatch(batch.source, lengths_read, batch.target_in, batch.target_out, batch.image.grid)
    return Both(ours, plain, batch, plain_batch)


def _tell_training(name: str, both: Both, target: str) -> None:
    """Repeat one training step on one batch, with the optimizer of the papers."""
    bf16, words = native_bf16(CPU), int(both.batch.target_mask.sum())
    ours, plain = (torch.optim.Adadelta(model.parameters()) for model in (both.ours, both.plain))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = word_loss(both.ours(both.batch), both.batch)
        ours.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(both.ours.parameters(), 1.0)
        ours.step()

    seconds = median_time(step, 3 * STEPS)
    slowly = median_time(lambda: plain_nmt.train_step(both.plain, plain, both.plain_batch), STEPS)
    tell(f"translation training, {name}", words / seconds, "target tokens/s", "-", plain=words / slowly, bf16=bf16)
    tell(f"translation training, {name}, against the plain program", slowly / seconds, "ratio", target)
    if name.startswith("text"):
        share = (
            6 * words * _weights_a_word(both.ours) / seconds / product_rate(torch.bfloat16 if bf16 else torch.float32)
        )
        tell(f"translation training, {name}, share of the product rate", 100 * share, "%", "-")


def _tell_search(name: str, both: Both, target: str) -> None:
    """Decode sentences of a fixed length, since untrained weights do not end a sentence."""
    bf16 = native_bf16(CPU)
    with torch.no_grad():
        for model, bias in ((both.ours, both.ours.readout.bias), (both.plain, both.plain.decoder.vocabulary.bias)):
            model.eval()
            bias[[SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos, SPECIAL_TOKENS.eos]] = -1e9
    length = WORDS[1]
    settings = DecodingSettings(beam_size=BEAM, max_length=length, precision="bf16" if bf16 else "fp32")
    seconds = median_time(lambda: beam_search([both.ours], both.batch, settings), 3)
    exact = settings.model_copy(update={"precision": "fp32"})
    exactly = median_time(lambda: beam_search([both.ours], both.batch, exact), 1)
    slowly = median_time(lambda: plain_nmt.beam_search(both.plain, both.plain_batch, BEAM, length), 1)
    rows = len(both.batch)
    tell(
        f"beam {BEAM}, {name}",
        rows / seconds,
        "sentences/s",
        "-",
        plain=rows / slowly,
        bf16=bf16,
        float32=rows / exactly,
    )
    tell(f"beam {BEAM}, {name}, against the plain program", slowly / seconds, "ratio", target, float32=slowly / exactly)


def _weights_a_word(model: NMT) -> int:
    """Count the weights that every token is multiplied by: all but the embeddings."""
    embeddings = ("source_embedding.weight", "target_embedding.weight")
    return sum(weight.numel() for name, weight in model.named_parameters() if name not in embeddings)
