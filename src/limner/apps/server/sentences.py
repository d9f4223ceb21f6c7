"""From token ids to what is answered: texts of tokens, log-probabilities, and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from limner.apps.server.events import GeneratedToken, ProbableToken
from limner.data.examples import collate
from limner.decoding.sentence import Sentence
from limner.features.preprocessing import Preprocessing, encoded_box
from limner.media.image import image_size
from limner.models.protocols import device_of
from limner.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from limner.apps.server.jobs import Job

Attention = tuple[tuple[float, ...], ...]
"""Weights over the image locations for each token."""


def token_texts(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """Return the text that each token adds to the running text of the sentence; joined they are the text.

    Where a token changes the text before it, such as a closing quotation mark, the text is kept back until it agrees
    with the whole sentence, of which the last token adds the rest.
    """
    whole = tokenizer.decode(tokens, detokenise=True)
    texts, before = [], ""
    for count in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[:count], detokenise=True)
        added = text[len(before) :] if text.startswith(before) and whole.startswith(text) else ""
        texts.append(added)
        before += added
    if texts:
        texts[-1] += whole[len(before) :]
    return texts


@torch.no_grad()
def token_attention(job: Job, sentences: Sequence[Sequence[int]]) -> list[Attention] | None:
    """Compute the attention over the image for each token of sentences of one request.

    Returns:
        For each sentence the weights of its tokens; None for a model without attention over the image.
    """
    if job.features is None or not sentences:
        return None
    trained = job.generator.models[0]
    batch = collate([job.example(tokens) for tokens in sentences]).to(device_of(trained.model))
    output = trained.model(batch)
    weights = output.attention if output.selected is None else output.selected
    if weights is None:
        return None
    return [
        tuple(tuple(row) for row in values[: len(tokens)].tolist())
        for values, tokens in zip(weights.float(), sentences, strict=True)
    ]


@torch.no_grad()
def probable_tokens(job: Job, sentences: Sequence[Sequence[int]]) -> list[list[tuple[ProbableToken, ...]]]:
    """Compute the most probable tokens at each position of sentences of one request, as many as it requests."""
    count, generator = job.request.probable_tokens, job.generator
    if not count or not any(sentences):
        return [[()] * len(tokens) for tokens in sentences]
    batch = collate([job.example(tokens) for tokens in sentences])
    logits = [one.model(batch.to(device_of(one.model))).logits.float() for one in generator.models]
    log_probs = torch.stack([one.log_softmax(-1) for one in logits]).logsumexp(0) - math.log(len(logits))  # (B, T, V)
    values, ids = log_probs.topk(min(count, log_probs.shape[-1]))
    rows = zip(values.tolist(), ids.tolist(), sentences, strict=True)
    return [
        [
            tuple(
                ProbableToken(_text_of(generator.tokenizer, token, position), value)
                for value, token in zip(values[position], ids[position], strict=True)
            )
            for position in range(len(tokens))
        ]
        for values, ids, tokens in rows
    ]


def _text_of(tokenizer: Tokenizer, token: int, position: int) -> str:
    """Return the text that a token adds, before the spaces around punctuation are removed."""
    return (" " if position and tokenizer.starts_word(token) else "") + tokenizer.spelling(token)


def generated_tokens(job: Job, sentences: Sequence[Sentence]) -> tuple[tuple[GeneratedToken, ...], ...]:
    """Return the tokens of each sentence of a request with what it requests of them."""
    sequences = [sentence.tokens for sentence in sentences]
    weights = token_attention(job, sequences) if job.request.attention else None
    attention: Sequence[Attention | None] = [None] * len(sequences) if weights is None else weights
    rows = zip(sentences, attention, probable_tokens(job, sequences), strict=True)
    return tuple(_tokens(job.generator.tokenizer, *row) for row in rows)


def _tokens(
    tokenizer: Tokenizer,
    sentence: Sentence,
    attention: Attention | None,
    probable: Sequence[tuple[ProbableToken, ...]],
) -> tuple[GeneratedToken, ...]:
    before = (0.0, *sentence.totals[:-1])
    rows = zip(token_texts(tokenizer, sentence.tokens), sentence.tokens, sentence.totals, before, strict=True)
    return tuple(
        GeneratedToken(
            text,
            token,
            total - previous,
            None if attention is None else attention[position],
            sentence.words[position].probability if sentence.words else None,
            probable[position],
        )
        for position, (text, token, total, previous) in enumerate(rows)
    )


def image_grid(job: Job) -> tuple[tuple[int, int] | None, tuple[float, float, float, float] | None]:
    """Return rows and columns of the image locations, and the part of the image that they cover as fractions."""
    specs = job.generator.models[0].config.features
    spec = next((spec for spec in specs if spec.kind == "grid" and spec.grid_size is not None), None)
    if spec is None or job.request.image is None:
        return None, None
    width, height = image_size(job.request.image)
    left, top, right, bottom = encoded_box((width, height), Preprocessing.model_validate(spec.preprocessing))
    return spec.grid_size, (left / width, top / height, right / width, bottom / height)
