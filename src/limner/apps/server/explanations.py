"""Explanations of sentences: words with log-probabilities, attention, alignment and gate, and their plot."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel

from limner.apps.server.errors import NotSupportedError
from limner.apps.server.jobs import Box, Job, image_grid
from limner.data.examples import Item, StoredFeatures, collate
from limner.decoding.sentence import Sentence
from limner.inference.explain import explain, words_of
from limner.layers.functional import precise
from limner.media.image import open_image
from limner.models.protocols import device_of

Rows = list[list[float]]


class ExplainedWord(BaseModel):
    """A word of an explained sentence."""

    text: str
    log_prob: float
    """Natural logarithm of the probability of its tokens."""


class SentenceExplanation(BaseModel):
    """Attention of a model for each word of a sentence; weights have one row for each word of `target`."""

    source: tuple[str, ...]
    """Words of the source sentence; empty for a caption."""
    target: list[ExplainedWord]
    alignment: Rows | None
    """Weights over the source words."""
    attention: Rows | None
    """Weights over the image locations."""
    gate: list[float] | None
    """Gate of the image context, 0 to 1."""
    grid_size: tuple[int, int] | None
    """Rows and columns of the image locations."""
    box: Box | None
    """Left, top, right and bottom of the part of the image under the grid, as fractions of its sides."""


class _SingleImage:
    """A `FeatureSource` of one image."""

    def __init__(self, features: StoredFeatures | None) -> None:
        self.features = features

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        return [self.features] * len(items)


@torch.no_grad()
def explain_sentence(job: Job, tokens: Sequence[int]) -> SentenceExplanation:
    """Explain a sentence of a request whose image is encoded."""
    trained = job.generator.models[0]
    sentence = Sentence(tuple(tokens), 0.0, 0.0)
    explanation = explain(trained, [job.source], [sentence], _SingleImage(job.features))[0]
    batch = collate([job.example(tokens)]).to(device_of(trained.model))
    log_probs = precise(trained.model(batch).logits[0]).log_softmax(-1)  # (T, V)
    chosen = log_probs.gather(1, batch.target_out[0][:, None])[:, 0].tolist()
    target = [
        ExplainedWord(text=word.text, log_prob=sum(chosen[position] for position in word.positions))
        for word in words_of(trained.tokenizer, tokens)
    ]

    def rows(weights: NDArray[np.float64] | None) -> Any:  # noqa: ANN401
        return None if weights is None else weights[: len(target)].tolist()  # without the end of the sentence

    attention = explanation.image_weights
    grid, box = image_grid(job, 0 if attention is None else attention.shape[1])
    return SentenceExplanation(
        source=explanation.source,
        target=target,
        alignment=rows(explanation.alignment),
        attention=rows(attention),
        gate=rows(explanation.gate),
        grid_size=grid,
        box=box,
    )


def draw_attention(image: bytes, explanation: SentenceExplanation) -> bytes:
    """Plot the attention of each word over the image; return a PNG file.

    Raises:
        NotSupportedError: the model has no attention over a grid of locations.
    """
    from limner.plots.attention import heat_maps

    if explanation.attention is None or explanation.grid_size is None:
        raise NotSupportedError("format 'png': the model has no attention over image locations; request json", "format")
    opened = open_image(image)
    box = None
    if explanation.box is not None:
        left, top, right, bottom = explanation.box
        box = (left * opened.width, top * opened.height, right * opened.width, bottom * opened.height)
    words = [word.text for word in explanation.target]
    figure = heat_maps(opened, words, explanation.attention, explanation.grid_size, gates=explanation.gate, box=box)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
