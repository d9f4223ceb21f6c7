"""Decoding of many inputs, such as a split of a collection, in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from limner.data.batching import Shards, batches_by_length
from limner.data.dataset import FeatureSource, GenerationInput
from limner.decoding.search import Trace
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings
from limner.generation.engine import Engine, request_batches
from limner.generation.request import Features, Request
from limner.inference.base import TextGenerator
from limner.inference.search_translations import search_translations
from limner.models.phrase_based import PhraseBased
from limner.progress import Progress
from limner.runs.trained_model import TrainedModel

GENERATION_BATCH_SIZE = 128


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
) -> list[list[Sentence]]:
    """Decode captions or translations.

    Args:
        models: one model, or several as an ensemble whose probabilities are averaged.
        inputs: images to describe, or source sentences to translate with or without images; and the words that the
            generated sentences must include.
        features: features of the images; None for models that use none.
        settings: decoding settings.
        prefixes: for each input the words that the generated sentence starts with.
        batch_size: inputs a batch, fewer where source sentences are very long or words must be included; it changes no
            result.
        on_progress: called with the number of inputs done and their total.
        trace: called with every step of the search of a single input.

    Returns:
        The `n_best` sentences of each input, best first.

    Raises:
        RunError: the vocabularies or the features of the models differ.
        SettingsError: no sentence of at most `max_length` tokens includes the required words.
    """
    generator = TextGenerator(models)
    if any(isinstance(trained.model, PhraseBased) for trained in models):
        return search_translations(models, inputs, settings, prefixes, trace, on_progress)
    starts = [""] * len(inputs) if prefixes is None else prefixes
    requests: list[Request] = [
        generator.request(source, settings, prefix=prefix, trace=trace)
        for source, prefix in zip(inputs, starts, strict=True)
    ]
    engine = Engine(features_port(features), isolated=())
    list(engine.run(request_batches(requests, batch_size), ahead=True, on_progress=on_progress))
    return [request.sentences for request in requests]


def features_port(source: FeatureSource | None) -> Features | None:
    """Return the features port of items, from stored features or a backbone; None without a source."""
    return None if source is None else lambda requests: source.take([request.source.item for request in requests])


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
    ) -> list[list[Sentence]]:
        """Decode inputs; see `generate`."""


def batches_of(model: TrainedModel, inputs: Sequence[GenerationInput], batch_size: int) -> list[list[int]]:
    """Return the rows of each batch of `generate`."""
    tokenizer = model.source_tokenizer
    lengths = [0 if tokenizer is None else len(tokenizer.encode(entry.source or "")) for entry in inputs]
    return batches_by_length(lengths, batch_size)


def generate_in_shards(
    model: TrainedModel, inputs: Sequence[GenerationInput], features: FeatureSource | None, shards: Shards
) -> list[list[Sentence]]:
    """Decode a split by its recipe, divided among processes; each returns all sentences, as of `generate`."""
    batches, settings = batches_of(model, inputs, GENERATION_BATCH_SIZE), model.recipe.decoding
    local = [generate([model], [inputs[row] for row in rows], features, settings) for rows in shards.local(batches)]
    sentences: list[list[Sentence]] = [[] for _ in inputs]
    for rows, decoded in zip(batches, shards.gather(local), strict=True):
        for row, n_best in zip(rows, decoded, strict=True):
            sentences[row] = n_best
    return sentences
