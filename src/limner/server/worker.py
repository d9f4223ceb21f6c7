"""The thread that computes: features, decoding and everything else that runs torch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from limner.data.dataset import GenerationInput
from limner.decoding.hypotheses import Hypothesis
from limner.decoding.settings import DecodingSettings
from limner.inference.base import change_decoding
from limner.inference.captioner import Captioner
from limner.inference.generate import generate
from limner.inference.must_include import words_of_inputs
from limner.inference.new_images import new_item
from limner.inference.translator import Translator
from limner.server.events import Event, FinalEvent, GeneratedSentence, GeneratedToken, TokenEvent
from limner.server.models import ServedModel
from limner.server.settings import ServerSettings
from limner.text.tokenizer import Tokenizer

Result = TypeVar("Result")


@dataclass(eq=False)
class Job:
    """A request that the worker decodes."""

    served: ServedModel
    generator: Captioner | Translator
    image: bytes | None
    one: GenerationInput
    decoding: DecodingSettings
    prefix: str
    attention: bool
    deliver: Callable[[Event | BaseException], None] = lambda event: None
    cancelled: bool = False


def make_job(
    served: ServedModel,
    generator: Captioner | Translator,
    image: bytes | None,
    text: str | None,
    decoding: Mapping[str, Any],
    prefix: str,
    must_include: Sequence[str],
    attention: bool,
) -> Job:
    """Check a request and decode its image."""
    settings = change_decoding(generator.decoding, decoding)
    (words,) = words_of_inputs(generator.tokenizer, must_include, 1)
    item = new_item(image, None if text is None else text)
    return Job(served, generator, image, GenerationInput(item, text, (), words), settings, prefix, attention)


class Worker:
    """A thread with a queue of jobs."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.seconds_per_request = 0.1
        self._queue: queue.SimpleQueue[Job | Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the jobs that are queued."""
        self._queue.put(None)
        self._thread.join()

    def submit(self, job: Job) -> None:
        """Queue a job; its events are delivered from the thread."""
        self._queue.put(job)

    def call(self, function: Callable[[], Result]) -> Future[Result]:
        """Queue a function; its result comes with the future."""
        future: Future[Result] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)

        self._queue.put(run)
        return future

    def _run(self) -> None:
        while (one := self._queue.get()) is not None:
            if not isinstance(one, Job):
                one()
            elif not one.cancelled:
                try:
                    self._decode(one)
                except BaseException as error:
                    one.deliver(error)

    def _decode(self, job: Job) -> None:
        generator = job.generator
        images = [] if job.image is None else [job.image]
        prefixes = [job.prefix] if job.prefix else None
        features = generator.features_of(images)
        (n_best,) = generate(generator.models, [job.one], features, job.decoding, prefixes=prefixes)
        sentences = tuple(_sentence(generator.tokenizer, one) for one in n_best)
        for index, token in enumerate(sentences[0].tokens):
            job.deliver(TokenEvent(index, *token[:4]))
        job.deliver(FinalEvent(job.served.name, generator.models[0].recipe.data.lang, sentences))


def _sentence(tokenizer: Tokenizer, one: Hypothesis) -> GeneratedSentence:
    texts, before = [], ""
    for count in range(1, len(one.tokens) + 1):
        text = tokenizer.decode(one.tokens[:count], detokenise=True)
        texts.append(text[len(before) :] if text.startswith(before) else "")
        before = text if text.startswith(before) else before
    tokens = tuple(GeneratedToken(text, token, 0.0) for text, token in zip(texts, one.tokens, strict=True))
    return GeneratedSentence(tokenizer.decode(one.tokens, detokenise=True), one.log_prob, one.score, one.ended, tokens)
