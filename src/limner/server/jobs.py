"""Requests as the worker decodes them: checked, with the image read and preprocessed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from limner.data.dataset import GenerationInput
from limner.data.examples import Example, StoredFeatures
from limner.decoding.automaton import Automaton
from limner.decoding.settings import DecodingSettings, change_decoding
from limner.errors import SettingsError
from limner.features.encoders.base import EncoderInput
from limner.inference.captioner import Captioner
from limner.inference.must_include import compile_words, words_of_inputs
from limner.inference.new_images import image_name, new_item
from limner.inference.tags import ClassifiedImage, Tag
from limner.inference.translator import Translator
from limner.runs.calibration import TagCalibration
from limner.server.events import Event
from limner.server.features import FeatureCache
from limner.server.images import require_size
from limner.server.models import ServedModel
from limner.server.settings import ServerSettings


class RequestRules(NamedTuple):
    """Tags in a caption, and abstention; without effect where the captioner has no calibration of them."""

    name_tags: bool = True
    """Whether the caption names the most probable tag of its image."""
    min_confidence: float | None = None
    """Confidence below which the captioner abstains; None for that of its calibration."""


class GenerationRequest(NamedTuple):
    """What a route requests."""

    served: ServedModel
    generator: Captioner | Translator
    image: bytes | None = None
    text: str | None = None
    """Source sentence; None for a caption."""
    decoding: Mapping[str, Any] = {}
    prefix: str = ""
    must_include: Sequence[str] = ()
    attention: bool = False
    probable_tokens: int = 0
    """Number of probable tokens to return at each position."""
    rules: RequestRules = RequestRules()
    """Tags in the caption, and abstention."""
    withholds: bool = False
    """Whether no token is delivered of a caption of which the captioner is not sure."""


@dataclass(eq=False)
class Job:
    """A request that the worker decodes."""

    request: GenerationRequest
    one: GenerationInput
    decoding: DecodingSettings
    prefix: list[int]
    source: list[int] | None
    constraint: Automaton
    image_key: str | None
    """Name of the image in the cache of features; None without an image or a backbone."""
    pixels: EncoderInput | None
    """Preprocessed image; None where its features are cached."""
    features: StoredFeatures | None = None
    deliver: Callable[[Event | BaseException], None] = lambda event: None
    cancelled: bool = False
    streams: bool = True
    """Whether tokens are delivered before the end."""
    classified: ClassifiedImage | None = None
    """What is in the image, where the backbone has a classifier; known when the image is encoded."""
    named_tags: TagCalibration | None = None
    """Tags that the caption names; None where it names none."""
    min_confidence: float = 0.0
    """Confidence below which the captioner abstains."""

    @property
    def tags(self) -> tuple[Tag, ...]:
        """The most probable tags of the image; none where the backbone has no classifier."""
        return () if self.classified is None else self.classified.tags

    @property
    def holds_tokens(self) -> bool:
        """Whether tokens are delivered at the end only: the caption may be withheld, or replaced by one with a tag."""
        generator = self.request.generator
        withheld = self.request.withholds and isinstance(generator, Captioner) and generator.rules.has_confidence
        return withheld or self.named_tags is not None

    @property
    def has_passes_after_search(self) -> bool:
        """Whether the model computes more when the search is done, which is done for several requests together."""
        generator = self.request.generator
        return self.named_tags is not None or (isinstance(generator, Captioner) and generator.rules.has_confidence)

    def example(self, tokens: Sequence[int] = ()) -> Example:
        """Return the example of the model with some target tokens."""
        return Example(self.one.item.id, tokens, self.source, self.features)


def take_jobs(jobs: deque[Job], most: int) -> list[Job]:
    """Remove and return the first jobs that are not cancelled."""
    taken: list[Job] = []
    while jobs and len(taken) < most:
        job = jobs.popleft()
        if not job.cancelled:
            taken.append(job)
    return taken


def make_job(request: GenerationRequest, cache: FeatureCache, settings: ServerSettings) -> Job:
    """Check a request, and read its image unless its features are cached; called in a thread that reads images.

    Raises:
        ImageTooLargeError: the image has too many pixels.
        MediaError: the image cannot be decoded.
        SettingsError: a decoding setting, the prefix, the text or the words to include are not allowed.
    """
    generator, image = request.generator, request.image
    decoding = change_decoding(generator.decoding, request.decoding)
    (words,) = words_of_inputs(generator.tokenizer, request.must_include, 1)
    source = None
    if isinstance(generator, Translator):
        image = image if generator.uses_image else None
        generator.inputs([request.text or ""], [image], "text")  # checks the length
        source = generator.source.tokenizer.encode(request.text or "")
    prefix = generator.tokenizer.encode(request.prefix) if request.prefix else []
    if len(prefix) > decoding.max_length:
        raise SettingsError(f"prefix: expected at most {decoding.max_length} tokens, got {len(prefix)}; shorten it")
    if image is not None:
        require_size(image, settings)
    key, pixels, backbone = None, None, generator.backbone
    if image is not None and backbone is not None:
        key = image_name(image)
        if not cache.has(backbone, key):
            pixels = backbone.read(image)
    one = GenerationInput(new_item(image, request.text), request.text, (), words)
    machine = compile_words(generator.tokenizer, words)
    job = Job(request, one, decoding, prefix, source, machine, key, pixels)
    if isinstance(generator, Captioner):
        job.min_confidence = generator.rules.least_confidence(request.rules.min_confidence)
        if request.rules.name_tags and not prefix and not words:
            job.named_tags = generator.rules.named_tags(decoding)
    return job
