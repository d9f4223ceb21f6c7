"""Tags in the captions of requests, by the rule of `Captioner.name_tags`; called in the thread that computes."""

from __future__ import annotations

from collections.abc import Sequence

from limner.data.examples import Item, StoredFeatures
from limner.decoding.ranking import Hypothesis
from limner.inference.captioner import Captioner
from limner.server.jobs import Job


class _JobFeatures:
    """A `FeatureSource` of one image."""

    def __init__(self, features: StoredFeatures | None) -> None:
        self._features = features

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        return [self._features] * len(items)


def find_tags(job: Job) -> None:
    """Compute the tags of the image of a caption, where the backbone has a classifier."""
    generator = job.request.generator
    if isinstance(generator, Captioner) and generator.tagger is not None and job.features is not None:
        (job.tags,) = generator.tagger([job.features])


def choose_hypotheses(job: Job, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """Return the hypotheses to answer with: those of the search, decoded again if the caption misses a tag."""
    generator, named = job.request.generator, job.named_tags
    if named is None or not hypotheses or not isinstance(generator, Captioner):
        return hypotheses
    (found,) = generator.name_tags([job.one], _JobFeatures(job.features), job.decoding, [hypotheses], [job.tags], named)
    return found
