"""BLEU of sampled captions: Kiros et al. (2014), section 7.1, 'Bleu Evaluation'."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from limner.data.batching import prefetch
from limner.data.dataset import Examples
from limner.data.examples import Batch, Example, collate
from limner.decoding.settings import DecodingSettings, SampleSettings
from limner.decoding.torch_models import beam_search
from limner.errors import SettingsError
from limner.metrics.base import Score
from limner.metrics.translation import BLEU_METRICS
from limner.models.protocols import device_of
from limner.runs.recipe import EvaluationSettings
from limner.runs.trained_model import TrainedModel

MAX_ORDER = 3
"""Maximum n-gram order: the paper reports BLEU-1, -2 and -3."""

ROWS_PER_BATCH = 2048
"""Approximate number of samples per batch, which bounds the memory of the logits and changes no result."""


class SampleInput(NamedTuple):
    """Input of the samples of one sentence."""

    row: int  # row of the example in its `Examples`
    id: str  # id that determines the random numbers
    prefix: tuple[int, ...]  # token ids that every sample starts with
    length: int  # number of tokens of a sample with its prefix, and of the reference
    prefix_text: str  # the words of the reference in the prefix, joined by spaces
    reference: str  # the reference after the prefix, as tokens joined by spaces

    def whole(self, text: str) -> str:
        """Return the sentence of the prefix and the text after it."""
        return f"{self.prefix_text} {text}".strip()


def sampled_scores(
    models: Sequence[TrainedModel],
    examples: Examples,
    settings: EvaluationSettings,
    decoding: DecodingSettings,
    *,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Score]:
    """Sample every sentence of a split several times and compute BLEU against the sentence itself.

    A sample is conditioned on the image and the first words of its reference, and has the length of the reference. The
    remaining words are compared with the remaining words of the reference, over the whole corpus; with
    `settings.score_prefix` the prefix words are compared too. Kiros et al. (2014), section 7.1, give neither the number
    of prefix words nor whether they are scored. Prefix words are right in every sample of every model: they raise all
    scores and shrink the differences between models, so that they are not scored by default. Sentences without words
    after the prefix are left out and counted. Of the decoding settings `ban_unknown` is used, and the temperature and
    truncation of sampling. The scores are `sampled_bleu1` … `sampled_bleu3`, the mean over the repetitions, and with
    several repetitions their sample standard deviation, `sampled_bleu1_std` ….
    """
    inputs = _sample_inputs(models[0], examples, settings.prefix_words)
    if not inputs:
        raise SettingsError(
            f"evaluation.prefix_words={settings.prefix_words}: expected sentences with more words in the split, found "
            "none; lower it"
        )
    texts = sample_texts(models, examples, inputs, settings.samples, decoding, seed, on_progress)
    references = [[sampled.reference] for sampled in inputs]
    if settings.score_prefix:
        texts = [[sampled.whole(text) for text in samples] for sampled, samples in zip(inputs, texts, strict=True)]
        references = [[sampled.whole(sampled.reference)] for sampled in inputs]
    repetitions = zip(*texts, strict=True)
    totals = [BLEU_METRICS[0].statistics(hypotheses, references).sum(axis=0) for hypotheses in repetitions]
    sampling = _signature(settings, decoding, seed, len(models), len(inputs), len(examples))
    scores = []
    for metric in BLEU_METRICS[:MAX_ORDER]:
        values = [metric.value(total) for total in totals]
        signature = f"{metric.signature(references)}|{models[0].tokenizer.settings.signature}|{sampling}"
        scores.append(Score(f"sampled_{metric.name}", float(np.mean(values)), signature))
        if len(values) > 1:
            scores.append(Score(f"sampled_{metric.name}_std", float(np.std(values, ddof=1)), signature))
    return scores


def _signature(
    settings: EvaluationSettings, decoding: DecodingSettings, seed: int, models: int, scored: int, sentences: int
) -> str:
    sampling = {} if decoding.sample is None else decoding.sample.model_dump(exclude_defaults=True, exclude={"seed"})
    parts = [
        f"sentences:{scored}",
        f"left out:{sentences - scored} too short" if scored < sentences else "",
        "length:of the reference",
        f"prefix words:{settings.prefix_words},{'scored' if settings.score_prefix else 'not scored'}",
        f"samples:{settings.samples}",
        f"seed:{seed}",
        *(f"{key}:{value:g}" for key, value in sampling.items()),
        "ban_unknown" if decoding.ban_unknown else "",
        f"models:{models}" if models > 1 else "",
    ]
    return "|".join(part for part in parts if part)


def _sample_inputs(model: TrainedModel, examples: Examples, prefix_words: int) -> list[SampleInput]:
    inputs, counts = [], dict.fromkeys(examples.owners, 0)
    subwords = model.tokenizer.settings.level == "bpe"
    for row, (owner, text) in enumerate(zip(examples.owners, examples.texts, strict=True)):
        words = model.tokenizer.words(text)
        prefix = len(model.tokenizer.encode(" ".join(words[:prefix_words]))) if subwords else prefix_words
        id_ = f"{examples.items[owner].id}#{counts[owner]}"
        counts[owner] += 1
        if len(words) > prefix_words:
            target = examples.targets[row]
            prefix_text, reference = " ".join(words[:prefix_words]), " ".join(words[prefix_words:])
            inputs.append(SampleInput(row, id_, tuple(target[:prefix]), len(target), prefix_text, reference))
    return inputs


def sample_texts(
    models: Sequence[TrainedModel],
    examples: Examples,
    inputs: Sequence[SampleInput],
    samples: int,
    decoding: DecodingSettings,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[list[str]]:
    """Sample the words after the prefix, `samples` times for each input, in random order."""
    tokenizer, device = models[0].tokenizer, device_of(models[0].model)
    texts: list[list[str]] = [[] for _ in inputs]
    groups = list(_groups(inputs, max(1, ROWS_PER_BATCH // samples)))
    sample = (decoding.sample or SampleSettings()).model_copy(update={"seed": seed})

    def make_batch(group: Sequence[int]) -> Batch:
        batch = collate([Example(inputs[k].id) for k in group])
        batch.image = examples.batch([inputs[k].row for k in group]).image
        return batch

    done = 0
    for group, batch in zip(groups, prefetch(make_batch, groups, 2), strict=True):
        length = inputs[group[0]].length
        settings = DecodingSettings(
            beam_size=samples, n_best=samples, min_length=length, max_length=length,
            ban_unknown=decoding.ban_unknown, sample=sample,
        )  # fmt: skip
        prefixes = [inputs[k].prefix for k in group]
        n_best = beam_search([model.model for model in models], batch.to(device), settings, prefixes)
        for k, prefix, hypotheses in zip(group, prefixes, n_best, strict=True):
            # Hypotheses are sorted by probability: unshuffled, repetition r would have the r-th most probable of each.
            order = np.random.default_rng([seed, *inputs[k].id.encode()]).permutation(samples)
            continuations = [hypotheses[r % len(hypotheses)].tokens[len(prefix) :] for r in order]
            texts[k] = [tokenizer.decode(tokens) for tokens in continuations]
        done += len(group)
        if on_progress is not None:
            on_progress(done, len(inputs))
    return texts


def _groups(inputs: Sequence[SampleInput], size: int) -> Iterator[list[int]]:
    """Group the indices of inputs of equal length and equal prefix length, so that a batch ends at one step."""

    def lengths(k: int) -> tuple[int, int]:
        return inputs[k].length, len(inputs[k].prefix)

    for _, group in groupby(sorted(range(len(inputs)), key=lengths), lengths):
        same = list(group)
        yield from (same[begin : begin + size] for begin in range(0, len(same), size))
