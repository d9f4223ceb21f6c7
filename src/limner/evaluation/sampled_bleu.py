"""BLEU of sampled descriptions: Kiros et al. (2014), section 7.1, 'Bleu Evaluation'."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from limner.data.batching import prefetch
from limner.data.dataset import Examples
from limner.data.examples import Batch, Example, collate
from limner.decoding.beam_search import beam_search
from limner.decoding.settings import DecodingSettings, SampleSettings
from limner.errors import SettingsError
from limner.metrics.base import Score
from limner.metrics.bleu import BLEU_METRICS
from limner.models.protocols import device_of
from limner.runs.recipe import EvaluationSettings
from limner.runs.trained_model import TrainedModel

ORDERS = 3
"""Longest n-grams: the paper prints BLEU-1, -2 and -3."""

ROWS_PER_BATCH = 2048
"""Sentences sampled at once, about: it bounds the logits of a step and changes no result."""


class Start(NamedTuple):
    """What a sample begins with, and what it is measured by."""

    row: int
    """Of the pair, in its `Examples`."""
    id: str
    """Which decides the draws."""
    given: tuple[int, ...]
    """Ids of the words that are given."""
    length: int
    """Ids in all, given ones included: as many as the reference has."""
    rest: str
    """The reference after the given words, as tokens joined by blanks."""


def sampled_scores(
    models: Sequence[TrainedModel],
    examples: Examples,
    settings: EvaluationSettings,
    how: DecodingSettings,
    *,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[Score]:
    """Sample every sentence of a split anew, several times, and score the samples against it.

    A sample is given the picture and the first words of its reference, and goes on exactly as long as the reference
    does. What follows the given words is compared with what follows them in the reference, over the whole corpus.

    Args:
        models: one model, or an ensemble.
        examples: the pairs; sentences that have no more words than are given are left out and counted.
        settings: `samples` and `prefix_words`.
        how: whether <unk> may be said; where it samples, its temperature and what it draws among hold here too.
        seed: of the draws.
        progress: told the sentences that are done, and how many there are.

    Returns:
        `sampled_bleu1` … `sampled_bleu3`, the mean over the repetitions, and `sampled_bleu1_std` … their standard
        deviation (of a sample: divided by one less), where there is more than one.

    Raises:
        SettingsError: no sentence is longer than the words that are given.
    """
    starts = _starts(models[0], examples, settings.prefix_words)
    if not starts:
        raise SettingsError(
            f"evaluation.prefix_words: {settings.prefix_words}, and no sentence of the split has more words to go on with"
        )
    texts = sample_texts(models, examples, starts, settings.samples, how, seed, progress)
    references = [[start.rest] for start in starts]
    totals = [BLEU_METRICS[0].statistics(said, references).sum(axis=0) for said in zip(*texts, strict=True)]
    where = _signature(settings, how, seed, len(models), len(starts), len(examples))
    scores = []
    for metric in BLEU_METRICS[:ORDERS]:
        values = [metric.value(total) for total in totals]
        signature = f"{metric.signature(references)}|{where}"
        scores.append(Score(f"sampled_{metric.name}", float(np.mean(values)), signature))
        if len(values) > 1:
            scores.append(Score(f"sampled_{metric.name}_std", float(np.std(values, ddof=1)), signature))
    return scores


def _signature(
    settings: EvaluationSettings, how: DecodingSettings, seed: int, models: int, scored: int, sentences: int
) -> str:
    drawn = {} if how.sample is None else how.sample.model_dump(exclude_defaults=True, exclude={"seed"})
    parts = [
        f"sentences:{scored}",
        f"left out:{sentences - scored} too short" if scored < sentences else "",
        "length:of the reference",
        f"given words:{settings.prefix_words},not scored",
        f"samples:{settings.samples}",
        f"seed:{seed}",
        *(f"{key}:{value:g}" for key, value in drawn.items()),
        "ban_unknown" if how.ban_unknown else "",
        f"models:{models}" if models > 1 else "",
    ]
    return "|".join(part for part in parts if part)


def _starts(model: TrainedModel, examples: Examples, prefix_words: int) -> list[Start]:
    starts, numbers = [], dict.fromkeys(examples.owners, 0)
    pieces = model.tokenizer.settings.level == "bpe"
    for row, (owner, text) in enumerate(zip(examples.owners, examples.texts, strict=True)):
        words = model.tokenizer.words(text)
        given = len(model.tokenizer.encode(" ".join(words[:prefix_words]))) if pieces else prefix_words
        id_ = f"{examples.items[owner].id}#{numbers[owner]}"
        numbers[owner] += 1
        if len(words) > prefix_words:
            rest = " ".join(words[prefix_words:])
            starts.append(Start(row, id_, tuple(examples.targets[row][:given]), len(examples.targets[row]), rest))
    return starts


def sample_texts(
    models: Sequence[TrainedModel],
    examples: Examples,
    starts: Sequence[Start],
    samples: int,
    how: DecodingSettings,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[str]]:
    """What is said after the given words, `samples` times of each start, in an order that says nothing."""
    tokenizer, device = models[0].tokenizer, device_of(models[0].model)
    texts: list[list[str]] = [[] for _ in starts]
    groups = list(_groups(starts, max(1, ROWS_PER_BATCH // samples)))
    sample = (how.sample or SampleSettings()).model_copy(update={"seed": seed})

    def make(places: Sequence[int]) -> Batch:
        shown = examples.batch([starts[place].row for place in places]).image
        batch = collate([Example(starts[place].id) for place in places])
        batch.image = shown
        return batch

    done = 0
    for places, batch in zip(groups, prefetch(make, groups, 2), strict=True):
        length = starts[places[0]].length
        settings = DecodingSettings(
            beam_size=samples, n_best=samples, min_length=length, max_length=length,
            ban_unknown=how.ban_unknown, sample=sample,
        )  # fmt: skip
        given = [starts[place].given for place in places]
        found = beam_search([one.model for one in models], batch.to(device), settings, given)
        for place, words, hypotheses in zip(places, given, found, strict=True):
            # They come sorted by probability: in that order, repetition k would be the k-th likeliest of each.
            order = np.random.default_rng([seed, *starts[place].id.encode()]).permutation(samples)
            said = [hypotheses[k % len(hypotheses)].tokens[len(words) :] for k in order]
            texts[place] = [tokenizer.decode(tokens) for tokens in said]
        done += len(places)
        if progress is not None:
            progress(done, len(starts))
    return texts


def _groups(starts: Sequence[Start], size: int) -> Iterator[list[int]]:
    """Places of starts of one length and as many given ids, so that no row waits for another."""

    def kind(place: int) -> tuple[int, int]:
        return starts[place].length, len(starts[place].given)

    group: list[int] = []
    for place in sorted(range(len(starts)), key=kind):
        if group and (len(group) == size or kind(place) != kind(group[0])):
            yield group
            group = []
        group.append(place)
    if group:
        yield group
