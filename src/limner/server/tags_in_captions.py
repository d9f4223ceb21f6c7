"""Tags in the captions of requests: the rule of `limner.inference.tagged_captions`, between two joint searches."""

from __future__ import annotations

from limner.decoding.ranking import Hypothesis
from limner.inference.captioner import Captioner
from limner.inference.must_include import compile_words
from limner.inference.tagged_captions import choose_named, required_words
from limner.server.jobs import Job


def find_tags(job: Job) -> None:
    """Compute the tags of the image of a caption, where the backbone has a classifier."""
    generator = job.request.generator
    if not isinstance(generator, Captioner) or generator.tagger is None or job.features is None:
        return
    (job.tags,) = generator.tagger([job.features])
    if _required(job, ()) is None:  # no caption needs a tag: tokens are delivered as they are decided
        job.named_tags = None


def require_tag(job: Job, hypotheses: list[Hypothesis]) -> bool:
    """Whether a caption misses the most probable tag; the job then requires it, and is to be decoded once more."""
    required = None if job.plain is not None or not hypotheses else _required(job, hypotheses[0].tokens)
    if required is None:
        return False
    job.plain, job.constraint = hypotheses, compile_words(job.request.generator.tokenizer, (required,))
    return True


def choose_hypotheses(job: Job, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """Return the hypotheses to answer with, and end the search for a caption that names the tag."""
    if job.plain is not None and job.named_tags is not None:
        hypotheses = choose_named(job.request.generator.models[0], job.plain, hypotheses, job.tags[0], job.named_tags)
    job.named_tags = job.plain = None
    return hypotheses


def _required(job: Job, tokens: tuple[int, ...]) -> str | None:
    if job.named_tags is None:
        return None
    tokenizer = job.request.generator.tokenizer
    return required_words(tokenizer, tokens, job.tags, job.named_tags, job.decoding.max_length)
