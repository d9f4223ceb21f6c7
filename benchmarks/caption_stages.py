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

from limner.data.dataset import GenerationInput
from limner.data.examples import Item, StoredFeatures
from limner.inference.captioner import Captioner
from limner.inference.generate import encode_images, generate_captions
from limner.inference.new_images import new_item
from limner.media.modality import IMAGE
from limner.runs.pretrained import pretrained_run
from measuring import real_data, report

COUNT = 128
BATCH_SIZES = (1, 16, 64)


class _Kept:
    """Features that have been computed; a `FeatureSource`."""

    def __init__(self, features: Sequence[StoredFeatures | None]) -> None:
        self._features = features

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        return list(self._features)


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
            files = sorted(one for one in Path(source).iterdir() if IMAGE.matches(one.name))[:COUNT]
        _measure(captioner, files[: min(BATCH_SIZES)])  # warms up
        for size in BATCH_SIZES:
            chosen = files[: min(COUNT, 32 * size)]
            spent = Counter[str]()
            for start in range(0, len(chosen), size):
                spent.update(_measure(captioner, chosen[start : start + size]))
            stages = {stage: round(1000 * seconds / len(chosen), 2) for stage, seconds in spent.items()}
            total = 1000 * spent.total() / len(chosen)
            details = {"images": len(chosen), "folder": str(source or "drawn")}
            report(f"caption_stages_{size}", total, "processor ms an image", "-", batch=size, **stages, **details)


def _measure(captioner: Captioner, files: Sequence[Path]) -> dict[str, float]:
    """Caption a batch as `Captioner.describe` does; return the processor seconds of each stage."""
    spent, since = dict[str, float](), time.process_time()

    def end(stage: str) -> None:
        nonlocal since
        now = time.process_time()
        spent[stage], since = now - since, now

    rules, settings = captioner.rules, captioner.decoding
    inputs = [GenerationInput(new_item(file), None, ()) for file in files]
    features = captioner.features_of(files)
    assert features is not None, "the built-in captioner has a backbone"
    kept = _Kept(features.take([one.item for one in inputs]))
    end("read_and_features")
    images = encode_images(captioner.models, inputs, kept, settings)
    end("encode")
    hypotheses = generate_captions(captioner.models, images, settings)
    end("search")
    if rules.tagger is not None:
        classified = rules.tagger.classify(images.features)
        end("classify")
        named = rules.named_tags(settings)
        if named is not None:
            hypotheses = rules.name_tags(images, settings, hypotheses, classified, named)
            end("name_tags")
        if rules.has_confidence:
            rules.confidences(hypotheses, images.features, classified, settings)
            end("confidence")
    return spent
