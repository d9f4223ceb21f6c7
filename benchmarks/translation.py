"""Translation: Limner's models against the plain program of the same equations and weights, in one run.

Both drop annotations, pictures and the read-out at 0.5, neither what recurrent products read: `encoder_dropout` and
`decoder_dropout`, which the printed recipes have at 0.5, are not measured.
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
"""Training steps of which the median is taken, after one that does not count: the plain program takes minutes."""
TASKS = {
    "text, 620/1024": ((620, 1024), 80, None, ">= 6 / >= 7"),
    "picture 14x14x1024, 620/1024": ((620, 1024), 40, (196, 1024), ">= 19 / >= 20"),
    "text, 256": ((256, 256), 64, None, ">= 4 / >= 4"),
}


class Both(NamedTuple):
    """The two programs with the same weights, and what they read."""

    ours: NMT
    plain: plain_nmt.PlainNMT
    batch: Batch
    given: plain_nmt.PlainBatch


def translation() -> None:
    """Training and beam search of each size, with and without pictures, target words and sentences a second."""
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
    plain_nmt.take(plain, ours.state_dict())
    random = np.random.default_rng(0)
    lengths = np.stack(
        [random.integers(12, 15, rows), random.integers(9, 18, rows)], 1
    )  # sorted by length, as in training
    examples = [
        Example(
            str(row),
            random.integers(len(SPECIAL_TOKENS), VOCAB, said).tolist(),
            random.integers(len(SPECIAL_TOKENS), VOCAB, read).tolist(),
            {"grid": random.random(grid, dtype=np.float32).astype(np.float16)} if grid else None,
        )
        for row, (said, read) in enumerate(lengths)
    ]
    batch = collate(examples)
    assert batch.source is not None and batch.source_mask is not None
    lengths_read = batch.source_mask.sum(1)
    given = plain_nmt.PlainBatch(batch.source, lengths_read, batch.target_in, batch.target_out, batch.image.grid)
    return Both(ours, plain, batch, given)


def _tell_training(name: str, both: Both, target: str) -> None:
    """The same batch, again and again, with the optimizer of the papers."""
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
    slowly = median_time(lambda: plain_nmt.train_step(both.plain, plain, both.given), STEPS)
    tell(f"translation training, {name}", words / seconds, "target words/s", "-", plain=words / slowly, bf16=bf16)
    tell(f"translation training, {name}, against the plain program", slowly / seconds, "ratio", target)
    if name.startswith("text"):
        share = (
            6 * words * _weights_a_word(both.ours) / seconds / product_rate(torch.bfloat16 if bf16 else torch.float32)
        )
        tell(f"translation training, {name}, share of the product rate", 100 * share, "%", "-")


def _tell_search(name: str, both: Both, target: str) -> None:
    """Sentences of a fixed length, since weights that learned nothing do not know where to end."""
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
    slowly = median_time(lambda: plain_nmt.beam_search(both.plain, both.given, BEAM, length), 1)
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
    """Weights that every word is multiplied by: all matrices but the embeddings."""
    embeddings = ("source_embedding.weight", "target_embedding.weight")
    return sum(weight.numel() for name, weight in model.named_parameters() if name not in embeddings)
