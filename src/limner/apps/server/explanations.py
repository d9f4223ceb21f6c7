"""Explanations of the sentences of requests, computed with torch: attention, alignments, probable tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from limner.apps.server.jobs import Job, ProbableToken, image_grid
from limner.apps.server.models import trained_models
from limner.apps.server.schemas import ExplainedWord, SentenceExplanation
from limner.data.dataset import GenerationInput
from limner.data.examples import Item, StoredFeatures, collate
from limner.decoding.sentence import Sentence
from limner.decoding.torch_models import mean_log_probs
from limner.inference.explain import explain as explain_sentences
from limner.inference.explain import words_of
from limner.inference.features import new_item
from limner.layers.functional import precise
from limner.models.protocols import device_of


@torch.no_grad()
def explain_tokens(
    job: Job, tokens: Sequence[int]
) -> tuple[Sequence[tuple[float, ...] | None], Sequence[tuple[ProbableToken, ...]]]:
    """Return the attention and the probable tokens at each position of a sentence, as requested."""
    request, tokenizer = job.request, job.generator.tokenizer
    attention: Sequence[tuple[float, ...] | None] = [None] * len(tokens)
    probable: Sequence[tuple[ProbableToken, ...]] = [()] * len(tokens)
    batch = collate([job.example(tokens)])
    models = [trained.model for trained in trained_models(job.generator)]
    outputs = [model(batch.to(device_of(model))) for model in models[: None if request.probable_tokens else 1]]
    weights = outputs[0].attention if outputs[0].selected is None else outputs[0].selected
    if request.attention and job.features is not None and weights is not None:
        attention = [tuple(row) for row in weights[0].float().tolist()]
    if request.probable_tokens:
        log_probs = mean_log_probs([output.logits[0] for output in outputs])  # (T, V)
        values, ids = log_probs.topk(min(request.probable_tokens, log_probs.shape[-1]))
        probable = [
            tuple(
                ProbableToken(" " * (position > 0 and tokenizer.starts_word(token)) + tokenizer.spellings[token], value)
                for token, value in zip(*row, strict=True)
            )
            for position, row in enumerate(zip(ids.tolist(), values.tolist(), strict=True))
        ]
    return attention, probable


class _SingleImage:
    """A `FeatureSource` of one image."""

    def __init__(self, features: StoredFeatures | None) -> None:
        self.features = features

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        return [self.features] * len(items)


@torch.no_grad()
def explain_sentence(job: Job, tokens: Sequence[int]) -> SentenceExplanation:
    """Explain a sentence of a request whose image is encoded."""
    trained = trained_models(job.generator)[0]
    source = GenerationInput(new_item(job.request.image if job.image_key else None, job.id), job.request.text, ())
    sentence = Sentence(tuple(tokens), 0.0, 0.0)
    explanation = explain_sentences(trained, [source], [sentence], _SingleImage(job.features))[0]
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
    maps = {"alignment": rows(explanation.alignment), "attention": rows(attention), "gate": rows(explanation.gate)}
    return SentenceExplanation(source=explanation.source, target=target, **maps, grid_size=grid, box=box)
