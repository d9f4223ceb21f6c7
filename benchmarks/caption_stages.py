"""Processor milliseconds an image of each stage of the built-in English captioner, in batches of 1, 16 and 64.

LIMNER_PHOTOS names the folder of photographs (default: Flickr8k in LIMNER_DATA, otherwise drawn ones).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from limner.generation.engine import Engine
from limner.inference.captioner import Captioner
from limner.media.modality import IMAGE
from limner.runs.pretrained import pretrained_run
from measuring import real_data, report

COUNT = 128
BATCH_SIZES = (1, 16, 64)
STAGES = {"encode": "read_and_features", "start": "encode", "step": "search_and_rules"}
"""What the stages of the engine compute, by the names of its methods."""


def timed(stage: str, spent: Counter[str]) -> Callable[..., Any]:
    """Return the method of a stage, which adds its processor seconds."""
    method = getattr(Engine, stage)

    def run(*arguments: Any) -> Any:  # noqa: ANN401
        began = time.process_time()
        try:
            return method(*arguments)
        finally:
            spent[STAGES[stage]] += time.process_time() - began

    return run


def caption_stages(draw: Callable[[Path, int], Sequence[Path]]) -> None:
    """Measure the stages of captions.

    Args:
        draw: makes a number of images in a folder, for machines without photographs.
    """
    captioner, data = Captioner.load(pretrained_run("en")), real_data()
    source = os.environ.get("LIMNER_PHOTOS") or (None if data is None else data / "flickr8k" / "images")
    with tempfile.TemporaryDirectory() as folder:
        if source is None:
            files = list(draw(Path(folder), COUNT))
        else:
            files = sorted(file for file in Path(source).iterdir() if IMAGE.matches(file.name))[:COUNT]
        captioner.describe(files[: min(BATCH_SIZES)])  # warms up
        for size in BATCH_SIZES:
            chosen, spent = files[: min(COUNT, 32 * size)], Counter[str]()
            with mock.patch.multiple(Engine, **{stage: timed(stage, spent) for stage in STAGES}):
                captioner.describe(chosen, batch_size=size)
            stages = {stage: round(1000 * seconds / len(chosen), 2) for stage, seconds in spent.items()}
            total = 1000 * spent.total() / len(chosen)
            details = {"images": len(chosen), "folder": str(source or "drawn")}
            report(f"caption_stages_{size}", total, "processor ms an image", "-", batch=size, **stages, **details)
