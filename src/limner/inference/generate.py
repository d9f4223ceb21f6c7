"""Decoding of many inputs in batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from limner.data.batching import Shards, bounded_batches, prefetch
from limner.data.dataset import FeatureSource, GenerationInput
from limner.data.examples import Batch, Example, StoredFeatures, collate
from limner.decoding.ranking import Hypothesis
from limner.decoding.search import Trace, search
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import TorchModels, beam_search, select
from limner.errors import RunError
from limner.inference.must_include import compile_words
from limner.inference.search_translations import search_translations
from limner.models.phrase_based import PhraseBased
from limner.models.protocols import Memory, device_of
from limner.progress import Progress
from limner.runs.trained_model import TrainedModel

logger = logging.getLogger(__name__)

GENERATION_BATCH_SIZE = 128


class EncodedImages(NamedTuple):
    """Images to caption that are encoded once, for several searches and for the evidence about their captions."""

    inputs: list[GenerationInput]
    features: list[StoredFeatures | None]
    memories: list[Memory]
    """Memory of each model, a row for each input."""
    device: torch.device

    def take(self, rows: Sequence[int]) -> EncodedImages:
        """Return some of the images; one may be taken several times."""
        return EncodedImages(
            [self.inputs[row] for row in rows],
            [self.features[row] for row in rows],
            select(self.memories, torch.tensor(rows, device=self.device, dtype=torch.long)),
            self.device,
        )


def encode_images(
    models: Sequence[TrainedModel],
    inputs: Sequence[GenerationInput],
    features: FeatureSource | None,
    settings: DecodingSettings,
) -> EncodedImages:
    """Encode images to caption.

    Args:
        models: one captioner, or several as an ensemble.
        inputs: at least one image to describe, with the words that its caption must include or must not have.
        features: features of the images; None for models that use none.
        settings: decoding settings of the searches.
    """
    items = [one.item for one in inputs]
    images = features.take(items) if features is not None else [None] * len(items)
    batch = collate([Example(item.id, (), None, image) for item, image in zip(items, images, strict=True)])
    device = device_of(models[0].model)
    memories = TorchModels([one.model for one in models], settings.precision, device).encode(batch.to(device))
    return EncodedImages(list(inputs), list(images), memories, device)


def generate_captions(
    models: Sequence[TrainedModel],
    images: EncodedImages,
    settings: DecodingSettings,
    prefixes: Sequence[str] | None = None,
) -> list[list[Hypothesis]]:
    """Decode captions of encoded images together, fewer at a time where words must be included.

    Args:
        models: the models that have encoded the images.
        images: the images.
        settings: decoding settings.
        prefixes: for each image the words that its caption starts with.

    Returns:
        The `n_best` hypotheses of each image, best first.

    Raises:
        SettingsError: no sentence of at most `max_length` tokens includes the words that it must.
    """
    tokenizer = models[0].tokenizer
    starts = None if prefixes is None else [tokenizer.encode(text) for text in prefixes]
    machines = {words: compile_words(tokenizer, *words) for words in {one.constraints for one in images.inputs}}
    count = len(images.inputs)
    beams = max((one.size for one in machines.values()), default=1)  # a beam for each state
    size = max(1, max(GENERATION_BATCH_SIZE, 2 * count) // beams)
    ensemble = TorchModels([one.model for one in models], settings.precision, images.device)
    found: list[list[Hypothesis]] = []
    for start in range(0, count, size):
        rows = range(start, min(start + size, count))
        part = images if len(rows) == count else images.take(rows)
        found += search(
            ensemble,
            part.memories,
            [one.item.id for one in part.inputs],
            settings,
            None if starts is None else [starts[row] for row in rows],
            [machines[one.constraints] for one in part.inputs],
        )
    return found


def generate(
    models: Sequence[TrainedModel],
    inputs: Sequence[GenerationInput],
    features: FeatureSource | None,
    settings: DecodingSettings,
    *,
    prefixes: Sequence[str] | None = None,
    batch_size: int = GENERATION_BATCH_SIZE,
    on_progress: Progress | None = None,
    trace: Trace | None = None,
) -> list[list[Hypothesis]]:
    """Decode captions or translations.

    Args:
        models: one model, or several as an ensemble whose probabilities are averaged.
        inputs: images to describe, or source sentences to translate with or without images; and the words that the
            generated sentences must include or must not have.
        features: features of the images; None for models that use none.
        settings: decoding settings.
        prefixes: for each input the words that the generated sentence starts with.
        batch_size: inputs a batch, fewer where source sentences are very long or words must be included; it changes no
            result.
        on_progress: called with the number of inputs done and their total.
        trace: called with every step of the search; see `beam_search`.

    Returns:
        The `n_best` hypotheses of each input, best first.

    Raises:
        RunError: the vocabularies or the features of the models differ.
        SettingsError: no sentence of at most `max_length` tokens includes the words that it must.
    """
    require_ensemble(models)
    if any(isinstance(one.model, PhraseBased) for one in models):
        return search_translations(models, inputs, settings, prefixes, trace, on_progress)
    tokenizer, sources = models[0].tokenizer, _encode_sources(models[0], inputs)
    starts = None if prefixes is None else [tokenizer.encode(text) for text in prefixes]
    machines = {words: compile_words(tokenizer, *words) for words in {one.constraints for one in inputs}}
    batch_size = max(1, batch_size // max((one.size for one in machines.values()), default=1))  # a beam for each state
    batches = _batches(sources, batch_size)

    def make_batch(rows: Sequence[int]) -> Batch:
        items = [inputs[row].item for row in rows]
        images = features.take(items) if features is not None else [None] * len(items)
        return collate(
            [Example(item.id, (), sources[row], image) for row, item, image in zip(rows, items, images, strict=True)]
        )

    device, done = device_of(models[0].model), 0
    hypotheses: list[list[Hypothesis]] = [[] for _ in inputs]
    for rows, batch in zip(batches, prefetch(make_batch, batches, 2), strict=True):
        given = None if starts is None else [starts[row] for row in rows]
        constraints = [machines[inputs[row].constraints] for row in rows]
        decoded = beam_search([one.model for one in models], batch.to(device), settings, given, trace, constraints)
        for row, n_best in zip(rows, decoded, strict=True):
            hypotheses[row] = n_best
        done += len(rows)
        if on_progress is not None:
            on_progress(done, len(inputs))
    return hypotheses


class Generate(Protocol):
    """`generate` in this process, or elsewhere with the same results."""

    def __call__(
        self,
        models: Sequence[TrainedModel],
        inputs: Sequence[GenerationInput],
        features: FeatureSource | None,
        settings: DecodingSettings,
        *,
        batch_size: int = ...,
        on_progress: Progress | None = ...,
    ) -> list[list[Hypothesis]]:
        """Decode inputs; see `generate`."""
        ...


def batches_of(model: TrainedModel, inputs: Sequence[GenerationInput], batch_size: int) -> list[list[int]]:
    """Return the rows of each batch of `generate` for inputs without words that must be included."""
    return _batches(_encode_sources(model, inputs), batch_size)


def generate_in_shards(
    model: TrainedModel, inputs: Sequence[GenerationInput], features: FeatureSource | None, shards: Shards
) -> list[list[Hypothesis]]:
    """Decode the inputs of a split by the settings of the recipe, with the batches divided among processes.

    The batches are those of `generate`, and so are the hypotheses; every process returns all of them.
    """
    batches, settings = _batches(_encode_sources(model, inputs), GENERATION_BATCH_SIZE), model.recipe.decoding
    own = [generate([model], [inputs[row] for row in rows], features, settings) for rows in shards.own(batches)]
    hypotheses: list[list[Hypothesis]] = [[] for _ in inputs]
    for rows, decoded in zip(batches, shards.gather(own), strict=True):
        for row, n_best in zip(rows, decoded, strict=True):
            hypotheses[row] = n_best
    return hypotheses


def _encode_sources(model: TrainedModel, inputs: Sequence[GenerationInput]) -> list[list[int] | None]:
    return [None if one.source is None else _encode_source(model, one.source) for one in inputs]


def _encode_source(model: TrainedModel, source: str) -> list[int]:
    assert model.source_tokenizer is not None, "source sentences need a translation model"
    return model.source_tokenizer.encode(source)


def _batches(sources: Sequence[Sequence[int] | None], batch_size: int) -> list[list[int]]:
    """Group inputs of similar length into batches of bounded memory."""
    lengths = [len(source or ()) for source in sources]
    return list(bounded_batches(sorted(range(len(sources)), key=lengths.__getitem__), lengths, batch_size))


def require_ensemble(models: Sequence[TrainedModel]) -> None:
    """Check that the probabilities of models can be averaged.

    Raises:
        RunError: the vocabularies or the features differ.
    """
    first = models[0].config
    for other in (model.config for model in models[1:]):
        if other.tokenizer_sha256 != first.tokenizer_sha256 or (
            other.source_tokenizer_sha256 != first.source_tokenizer_sha256
        ):
            raise RunError(
                "the models of an ensemble must share one vocabulary: train them on the same collection with the same "
                "text settings and another training.seed"
            )
        if [spec.fingerprint for spec in other.features] != [spec.fingerprint for spec in first.features]:
            raise RunError(
                "the models of an ensemble must be trained on the same features; name models that are, or one --model"
            )
