"""The end of requests whose searches are done, several together: tags in captions, confidence, and what is answered.

All functions are called in the thread that decodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from limner.decoding.ranking import Hypothesis
from limner.inference.captioner import Captioner
from limner.inference.generate import EncodedImages
from limner.models.protocols import Memory, device_of
from limner.server.batching import Cohort, concatenate, signature
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

    @property
    def memories(self) -> list[Memory]:
        """Memory of each model, one row."""
        return self.cohort.memories_of(self.job)


class Finished(NamedTuple):
    """What a request is answered with."""

    hypotheses: list[Hypothesis]
    sentences: tuple[GeneratedSentence, ...]


def classify_images(jobs: Sequence[Job]) -> None:
    """Compute the tags of the images of captions, where the backbone has a classifier."""
    groups: dict[Captioner, list[Job]] = {}
    for job in jobs:
        generator = job.request.generator
        if isinstance(generator, Captioner) and generator.rules.tagger is not None and job.features is not None:
            groups.setdefault(generator, []).append(job)
    for captioner, group in groups.items():
        assert captioner.rules.tagger is not None
        found = captioner.rules.tagger.classify([job.features for job in group])
        for job, classified in zip(group, found, strict=True):
            job.classified = classified


def groups_of(decoded: Sequence[Decoded], most: int) -> Iterator[list[Decoded]]:
    """Yield requests that can be finished together: of one model and the same settings, `most` at a time."""
    groups: dict[object, list[Decoded]] = {}
    for one in decoded:
        named = one.job.named_tags is not None
        shapes = signature(one.memories) if named else None
        key = id(one.job.request.generator), one.job.decoding.model_dump_json(), named, shapes
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
    classified = [job.classified for job in jobs if job.classified is not None]
    if named is not None and isinstance(generator, Captioner) and len(classified) == len(jobs):
        memories = concatenate([one.memories for one in group])
        device = device_of(generator.models[0].model)
        images = EncodedImages([job.one for job in jobs], [job.features for job in jobs], memories, device)
        hypotheses = generator.rules.name_tags(images, first.decoding, hypotheses, classified, named)
    return [Finished(*one) for one in zip(hypotheses, make_sentences(jobs, hypotheses), strict=True)]
