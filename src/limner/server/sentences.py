"""From token ids to what is answered: texts of tokens, log-probabilities, and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from limner.data.examples import collate
from limner.decoding.ranking import Hypothesis
from limner.inference.captioner import Captioner
from limner.inference.confidence import Confidence
from limner.inference.sentences import unsure_text
from limner.models.protocols import device_of
from limner.server.events import GeneratedSentence, GeneratedToken, ProbableToken
from limner.server.jobs import Job
from limner.text.tokenizer import Tokenizer

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
    trained = job.request.generator.models[0]
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
    count, generator = job.request.probable_tokens, job.request.generator
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


def make_sentences(jobs: Sequence[Job], hypotheses: Sequence[list[Hypothesis]]) -> list[tuple[GeneratedSentence, ...]]:
    """Return the hypotheses of requests of one model as they are answered; called in the thread that decodes."""
    generator = jobs[0].request.generator
    confidences: Sequence[Sequence[Confidence | None]] = [[None] * len(n_best) for n_best in hypotheses]
    if isinstance(generator, Captioner) and generator.rules.has_confidence:
        classified = [job.classified for job in jobs if job.classified is not None]
        features = [job.features for job in jobs]
        known = classified if len(classified) == len(jobs) else None
        confidences = generator.rules.confidences(hypotheses, features, known, jobs[0].decoding)
    found = []
    for job, n_best, of_job in zip(jobs, hypotheses, confidences, strict=True):
        tokens = [one.tokens for one in n_best]
        weights = token_attention(job, tokens) if job.request.attention else None
        attention: Sequence[Attention | None] = [None] * len(tokens) if weights is None else weights
        rows = zip(n_best, attention, probable_tokens(job, tokens), of_job, strict=True)
        sentences = (make_sentence(generator.tokenizer, *row, min_confidence=job.min_confidence) for row in rows)
        found.append(tuple(_with_likely_tags(job, one) for one in sentences))
    return found


def _with_likely_tags(job: Job, one: GeneratedSentence) -> GeneratedSentence:
    """Add what is answered in place of a caption of which the model is not sure."""
    generator = job.request.generator
    if one.is_sure or not isinstance(generator, Captioner):
        return one
    return one._replace(unsure=unsure_text(generator.rules.likely_tags(job.tags, one.is_sure)))


def make_sentence(
    tokenizer: Tokenizer,
    one: Hypothesis,
    attention: Attention | None,
    probable: Sequence[tuple[ProbableToken, ...]],
    confidence: Confidence | None,
    *,
    min_confidence: float,
) -> GeneratedSentence:
    """Return a hypothesis as it is answered."""
    texts = token_texts(tokenizer, one.tokens)
    tokens = tuple(
        GeneratedToken(
            text,
            token,
            total - before,
            None if attention is None else attention[position],
            None if confidence is None else confidence.words[position].probability,
            probable[position],
        )
        for position, (text, token, total, before) in enumerate(
            zip(texts, one.tokens, one.totals, (0.0, *one.totals[:-1]), strict=True)
        )
    )
    text = tokenizer.decode(one.tokens, detokenise=True, copied=one.copied)
    sentence = GeneratedSentence(text, one.log_prob, one.score, one.ended, tokens)
    if confidence is None:
        return sentence
    return sentence._replace(confidence=confidence.probability, is_sure=confidence.probability >= min_confidence)
