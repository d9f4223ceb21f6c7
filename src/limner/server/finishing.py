"""The end of requests whose searches are done, several together: tags in captions, confidence, and what is answered.

All functions are called in the thread that decodes. `GenerationInput`s of different images are distinguished by their
paths, which are checksums of the content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from limner.data.examples import Item, StoredFeatures
from limner.decoding.ranking import Hypothesis
from limner.inference.captioner import Captioner
from limner.server.batching import Cohort
from limner.server.errors import InvalidRequestError
from limner.server.events import GeneratedSentence
from limner.server.jobs import Job
from limner.server.sentences import make_sentences

ROWS_TOGETHER = 256
"""Hypotheses of requests that are finished together, which bounds the memory of their logits."""


class Decoded(NamedTuple):
    """A request whose search is done."""

    cohort: Cohort
    job: Job
    hypotheses: list[Hypothesis]


class Finished(NamedTuple):
    """What a request is answered with."""

    hypotheses: list[Hypothesis]
    sentences: tuple[GeneratedSentence, ...]


class _JobFeatures:
    """A `FeatureSource` of the images of some requests."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._features = {job.one.item.media_path: job.features for job in jobs}

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        return [self._features[item.media_path] for item in items]


def find_tags(jobs: Sequence[Job]) -> None:
    """Compute the tags of the images of captions, where the backbone has a classifier."""
    groups: dict[Captioner, list[Job]] = {}
    for job in jobs:
        generator = job.request.generator
        if isinstance(generator, Captioner) and generator.rules.tagger is not None and job.features is not None:
            groups.setdefault(generator, []).append(job)
    for captioner, group in groups.items():
        assert captioner.rules.tagger is not None
        for job, tags in zip(group, captioner.rules.tagger([job.features for job in group]), strict=True):
            job.tags = tags


def groups_of(decoded: Sequence[Decoded], most: int) -> Iterator[list[Decoded]]:
    """Yield requests that can be finished together: of one model and the same settings, `most` at a time."""
    groups: dict[object, list[Decoded]] = {}
    for one in decoded:
        key = id(one.job.request.generator), one.job.decoding.model_dump_json(), one.job.named_tags is None
        groups.setdefault(key, []).append(one)
    for group in groups.values():
        size = min(most, max(1, ROWS_TOGETHER // group[0].job.decoding.beam_size))
        for start in range(0, len(group), size):
            yield group[start : start + size]


def finish(group: Sequence[Decoded]) -> list[Finished]:
    """Compute the sentences of requests of one group: those of the search, decoded again if a caption misses a tag.

    Raises:
        InvalidRequestError: a request has no sentence with the words that it must include.
    """
    jobs = [one.job for one in group]
    first, hypotheses = jobs[0], [one.hypotheses for one in group]
    generator, named = first.request.generator, first.named_tags
    if not all(hypotheses):
        raise InvalidRequestError(
            "must_include: every sentence with these words has probability zero under the model; give other words",
            "must_include",
        )
    if named is not None and isinstance(generator, Captioner):
        inputs, tags = [job.one for job in jobs], [job.tags for job in jobs]
        hypotheses = generator.rules.name_tags(inputs, _JobFeatures(jobs), first.decoding, hypotheses, tags, named)
    return [Finished(*one) for one in zip(hypotheses, make_sentences(jobs, hypotheses), strict=True)]
