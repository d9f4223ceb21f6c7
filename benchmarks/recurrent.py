"""Recurrent cells against `nn.LSTM`, and captions with soft attention from stored grids."""

from __future__ import annotations

from typing import get_args

import numpy as np
import torch
from torch import nn

from limner.data.examples import Example, collate
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import beam_search
from limner.layers import stack
from limner.layers.cells import CellName
from limner.layers.stack import RecurrentLayers, RecurrentSettings
from limner.models.protocols import ModelInputs
from limner.models.show_attend_tell import ShowAttendTell, ShowAttendTellSettings
from measuring import median_time, report

ROWS, STEPS, HIDDEN = 64, 20, 512
GRID, VOCAB, LENGTH = (196, 512), 2800, 11


def cells() -> None:
    """Measure forward and backward passes of every cell, by its equations, relative to `nn.LSTM`."""
    torch.manual_seed(0)
    inputs = torch.randn(ROWS, STEPS, HIDDEN)
    lstm = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
    reference = median_time(lambda: lstm(inputs)[0].square().mean().backward(), 9)
    has_kernel, stack.has_kernel = stack.has_kernel, lambda cell, inputs: False
    try:
        for name in get_args(CellName):
            layers = RecurrentLayers(HIDDEN, HIDDEN, RecurrentSettings.parse({"cell": name}))
            seconds = median_time(lambda layers=layers: layers(inputs)[0].square().mean().backward(), 9)
            report(f"cell {name}, B {ROWS}, T {STEPS}, H {HIDDEN}", seconds / reference, "times nn.LSTM", "<= 3")
    finally:
        stack.has_kernel = has_kernel
    for shape in ((ROWS, STEPS, HIDDEN), (64, 100, 256), (64, 100, 128), (16, 100, 128)):
        _kernels(*shape)


def _kernels(rows: int, steps: int, hidden: int) -> None:
    """Measure the gain of torch's kernels over the equations."""
    inputs, has_kernel = torch.randn(rows, steps, hidden), stack.has_kernel
    for name in ("tanh", "relu", "lstm", "gru"):
        layers = RecurrentLayers(hidden, hidden, RecurrentSettings.parse({"cell": name}))
        seconds = []
        try:
            for chosen in (has_kernel, lambda cell, inputs: False):
                stack.has_kernel = chosen
                seconds.append(median_time(lambda layers=layers: layers(inputs)[0].square().mean().backward(), 9))
        finally:
            stack.has_kernel = has_kernel
        label = f"cell {name} by torch's kernel, B {rows}, T {steps}, H {hidden}"
        report(label, seconds[1] / seconds[0], "times as fast as the equations", "-")


def soft_attention() -> None:
    """Measure greedy captions of 11 tokens by Show, Attend and Tell with soft attention from grids of 14x14x512."""
    torch.manual_seed(0)
    settings = ShowAttendTellSettings(embedding_dim=512, hidden_dim=512, attention_dim=512)
    model = ShowAttendTell(settings, ModelInputs(VOCAB, {"grid": GRID})).eval()
    random, count = np.random.default_rng(0), 100
    grids = random.random((count, *GRID), dtype=np.float32).astype(np.float16)
    batch = collate([Example(str(row), image={"grid": grid}) for row, grid in enumerate(grids)])
    decoding = DecodingSettings(min_length=LENGTH, max_length=LENGTH)
    seconds = median_time(lambda: beam_search([model], batch, decoding), 5)
    report("soft attention, greedy, 14x14x512, H 512", count / seconds, "images/s", ">= 100")
