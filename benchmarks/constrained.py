"""Compare constrained with unconstrained beam search of captions in one run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from limner.data.examples import Batch, Example, collate
from limner.decoding.automaton import Automaton
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import beam_search
from limner.models.protocols import ModelInputs
from limner.models.show_attend_tell import ShowAttendTell, ShowAttendTellSettings
from measuring import median_time, report

VOCAB, GRID, IMAGES, BEAM, LENGTH, TIMES = 2800, (100, 1280), 32, 5, 11, 5
"""Sizes of the built-in captioner, and the number of images that it describes together."""


def constrained_captions() -> None:
    """Measure the time of captions that must include words, as a multiple of the time without."""
    torch.manual_seed(0)
    settings = ShowAttendTellSettings(embedding_dim=192, hidden_dim=320, attention_dim=256)
    model = ShowAttendTell(settings, ModelInputs(VOCAB, {"grid": GRID})).eval()
    batch = _images()
    decoding = DecodingSettings(beam_size=BEAM, min_length=LENGTH, max_length=LENGTH)

    def seconds(machine: Automaton | None) -> float:
        machines: Sequence[Automaton] | None = None if machine is None else [machine] * IMAGES
        return median_time(lambda: beam_search([model], batch, decoding, constraints=machines), TIMES)

    plain = seconds(None)
    report("captions_beam", 1000 * plain / IMAGES, f"ms per caption, beam {BEAM}, batches of {IMAGES}", "-")
    kinds = {
        "one word of two": Automaton.build([[(7,), (8,)]]),
        "two words": Automaton.build([[(7,)], [(8,)]]),
    }
    for name, machine in kinds.items():
        states = f"{machine.size} states"
        report("captions_constrained", seconds(machine) / plain, f"times unconstrained: {name}, {states}", "-")


def _images() -> Batch:
    """Generate a batch of random grids without sentences."""
    random = np.random.default_rng(0)
    grids = random.random((IMAGES, *GRID), dtype=np.float32).astype(np.float16)
    return collate([Example(str(row), image={"grid": grid}) for row, grid in enumerate(grids)])
