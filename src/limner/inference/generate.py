"""What models answer: they are shown pictures, given sentences, and searched for the best they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from limner.data.batching import bounded_batches, prefetch
from limner.data.collection import Collection
from limner.data.dataset import FeatureSource, GenerationInput
from limner.data.examples import Batch, Example, Item, StoredFeatures, collate
from limner.decoding.beam_search import DecodingSettings, Hypothesis, beam_search
from limner.errors import RunError, SettingsError
from limner.features.sources import ControlFeatures, FeatureStore, ImageControl, mean_features
from limner.features.store import require_same
from limner.metrics import MetricStatistics, sentence_statistics
from limner.models.protocols import device_of
from limner.runs.trained_model import TrainedModel
from limner.text.tokenizer import Tokenizer


def open_features(model: TrainedModel, collection: Collection, cache_mib: int | None = None) -> FeatureStore | None:
    """The collection's features for a model; FeatureError where another backbone made them.

    Args:
        model: it tells which.
        collection: where they are.
        cache_mib: tables of up to this size are held in memory; none for what the recipe says.
    """
    if not model.config.features:
        return None
    names = [spec.name for spec in model.config.features]
    pictures = FeatureStore.open(collection, names, model.recipe.features.cache_mib if cache_mib is None else cache_mib)
    for table, spec in zip(pictures.tables, model.config.features, strict=True):
        require_same(table.spec, spec, f"{collection.path}/features/{spec.name}")
    return pictures


def control_features(
    model: TrainedModel,
    collection: Collection,
    pictures: FeatureStore | None,
    control: ImageControl,
    items: Sequence[Item],
    seed: int,
) -> FeatureSource | None:
    """The pictures that a model is shown of a split.

    Args:
        model: it tells which split it was trained on, and whether it looks at pictures.
        collection: where that split is.
        pictures: the right ones; None where the model has no features.
        control: 'right' for these; 'shuffled' for another item's, by the seed; 'mean' for the mean of the training
            split's features and 'zero' for zeros, the same for every item that has a picture.
        items: the items of the split.
        seed: of the shuffling.

    Raises:
        SettingsError: there is a control, and the model looks at no pictures.
        CollectionError: the mean is asked for, and the collection has no training split.
    """
    if control == "right":
        return pictures
    if pictures is None or not model.model.uses_image:
        raise SettingsError(f"pictures: '{control}', but this model looks at no pictures; evaluate it with 'right'")
    if control == "shuffled":
        return ControlFeatures.shuffled(pictures, items, seed)
    if control == "mean":
        return ControlFeatures(pictures, {}, mean_training_features(model, collection, pictures))
    nothing = {form: np.zeros(shape, dtype=np.float16) for form, shape in pictures.forms.items()}
    return ControlFeatures(pictures, {}, nothing)


def mean_training_features(model: TrainedModel, collection: Collection, pictures: FeatureStore) -> StoredFeatures:
    """The mean picture of the split a model was trained on, by form.

    Raises:
        CollectionError: the collection has no such split.
    """
    items = collection.items(model.recipe.data.train)
    return mean_features(pictures, [item for item in items if item.medium is not None and pictures.covers(item)])


def require_ensemble(models: Sequence[TrainedModel]) -> None:
    """Refuse models that cannot describe together.

    Raises:
        RunError: their vocabularies or features differ.
    """
    first = models[0].config
    for other in (model.config for model in models[1:]):
        if other.tokenizer_sha256 != first.tokenizer_sha256 or (
            other.source_tokenizer_sha256 != first.source_tokenizer_sha256
        ):
            raise RunError(
                "the models of an ensemble must share one vocabulary: train them on the same collection "
                "with the same text settings (another training.seed is enough to make them differ)"
            )
        if [spec.fingerprint for spec in other.features] != [spec.fingerprint for spec in first.features]:
            raise RunError("the models of an ensemble must look at the same features")


def describe_items(
    models: Sequence[TrainedModel],
    items: Sequence[Item],
    pictures: FeatureSource | None,
    settings: DecodingSettings,
    *,
    sources: Sequence[str] | None = None,
    prefixes: Sequence[str] | None = None,
    batch_size: int = 128,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Hypothesis]]:
    """Write sentences about each item, or translate one of each.

    Args:
        models: one model, or several of one vocabulary as an ensemble.
        items: what to describe.
        pictures: their features.
        settings: how to search.
        sources: for each item the sentence to translate, with models that translate.
        prefixes: for each item, words its sentence has to begin with.
        batch_size: items at once, fewer where sentences are very long; it changes no result.
        progress: told the items that are done, and how many there are.

    Raises:
        RunError: the models cannot describe together.
    """
    require_ensemble(models)
    tokenizer = models[0].tokenizer
    prefixes = [tokenizer.encode(text) for text in prefixes] if prefixes is not None else None
    read: list[list[int]] | list[None] = [None] * len(items)
    order = list(range(len(items)))
    if sources is not None:
        source = models[0].source_tokenizer
        assert source is not None, "only translation models are given source sentences"
        read = [source.encode(text) for text in sources]
        order.sort(key=lambda row: len(read[row] or ()))
    groups = list(bounded_batches(order, [len(tokens or ()) for tokens in read], batch_size))

    def make(rows: Sequence[int]) -> Batch:
        some = [items[row] for row in rows]
        images = pictures.take(some) if pictures else [None] * len(some)
        return collate([Example(items[row].id, (), read[row], seen) for row, seen in zip(rows, images, strict=True)])

    device, done = device_of(models[0].model), 0
    found: list[list[Hypothesis]] = [[] for _ in items]
    for rows, batch in zip(groups, prefetch(make, groups, 2), strict=True):
        given = [prefixes[row] for row in rows] if prefixes is not None else None
        for row, hypotheses in zip(
            rows, beam_search([one.model for one in models], batch.to(device), settings, given), strict=True
        ):
            found[row] = hypotheses
        done += len(rows)
        if progress is not None:
            progress(done, len(items))
    return found


def answer(
    models: Sequence[TrainedModel],
    queries: Sequence[GenerationInput],
    pictures: FeatureSource | None,
    settings: DecodingSettings,
    **options: Any,  # noqa: ANN401
) -> list[list[Hypothesis]]:
    """`describe_items` for what examples ask, see `Examples.generation_inputs`."""
    texts = [query.source for query in queries if query.source is not None]
    items = [query.item for query in queries]
    return describe_items(models, items, pictures, settings, sources=texts or None, **options)


def hypothesis_statistics(
    tokenizer: Tokenizer, best: Sequence[Hypothesis], asked: Sequence[GenerationInput], metrics: Sequence[str]
) -> list[MetricStatistics]:
    """What metrics count of the sentences found, one by one; metrics that cannot run here are left out.

    Those that tokenise by themselves read running text, unless the vocabulary has no case or no punctuation.
    """
    said = [tokenizer.decode(one.tokens) for one in best]
    references = [[" ".join(tokenizer.words(text)) for text in query.references] for query in asked]
    texts = None
    if not tokenizer.settings.lowercase and tokenizer.settings.punctuation:
        running = [tokenizer.decode(one.tokens, detokenise=True) for one in best]
        texts = (running, [query.references for query in asked])
    return sentence_statistics(said, references, metrics, texts=texts, lang=tokenizer.settings.lang)
