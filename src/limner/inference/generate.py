"""Decoding of many inputs in batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from limner.data.batching import bounded_batches, prefetch
from limner.data.dataset import FeatureSource, GenerationInput
from limner.data.examples import Batch, Example, collate
from limner.decoding.beam_search import Trace, beam_search
from limner.decoding.ranking import Hypothesis
from limner.decoding.settings import DecodingSettings
from limner.errors import RunError
from limner.inference.must_include import compile_words
from limner.models.protocols import device_of
from limner.progress import Progress
from limner.runs.trained_model import TrainedModel

logger = logging.getLogger(__name__)

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
    tokenizer = models[0].tokenizer
    sources = [_encode_source(models[0], one.source) for one in inputs]
    starts = None if prefixes is None else [tokenizer.encode(text) for text in prefixes]
    machines = {words: compile_words(tokenizer, *words) for words in {one.constraints for one in inputs}}
    batch_size = max(1, batch_size // max((one.size for one in machines.values()), default=1))  # a beam for each state
    lengths = [len(source or ()) for source in sources]
    batches = list(bounded_batches(sorted(range(len(inputs)), key=lengths.__getitem__), lengths, batch_size))

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


def _encode_source(model: TrainedModel, source: str | None) -> list[int] | None:
    if source is None:
        return None
    assert model.source_tokenizer is not None, "source sentences need a translation model"
    return model.source_tokenizer.encode(source)


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
            raise RunError("the models of an ensemble must be trained on the same features")
