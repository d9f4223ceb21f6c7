"""Back-translation: synthetic source sentences for target sentences without a translation.

Calixto et al. (2017), section 4, after Sennrich et al. (2016): a model of the reverse direction translates the
sentences that people wrote, and the resulting pairs are added to the training data.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from limner.data.collection import Collection, write_items
from limner.data.collection_writer import remove_interrupted_writes
from limner.data.dataset import GenerationInput
from limner.data.examples import Item, ItemSentence
from limner.decoding.settings import DecodingSettings
from limner.errors import FeatureError, counted
from limner.features.store import FeatureStore
from limner.generation.sentences import MAX_SOURCE_TOKENS
from limner.inference.features import open_features
from limner.inference.generate import Generate, generate
from limner.inference.translator import languages
from limner.progress import Progress, offset_progress
from limner.runs.trained_model import TrainedModel, sha256
from limner.storage.outputs import name_or_default

WRITE_BATCH_SIZE = 10_000
"""Number of sentences between two writes of the collection; a killed run loses at most this number."""

logger = logging.getLogger(__name__)


class BackTranslation(NamedTuple):
    """A sentence of a collection and its machine translation."""

    item: Item
    sentence: ItemSentence
    text: str
    """Translation; empty where the sentence is empty or too long, its image has no features, or the translation is
    empty or was cut off at `max_length`."""


class BackTranslationCounts(NamedTuple):
    """Outcome of a back-translation."""

    translated: int
    """Number of sentences added to the collection."""
    left_out: int
    """Number of sentences whose translation is empty."""


class BackTranslationSettings(NamedTuple):
    """Selection of the sentences to translate, and decoding."""

    split: str | None = None
    """Split to translate; None for the training split of the model."""
    limit: int | None = None
    """Maximum number of sentences; None for all."""
    decoding: DecodingSettings | None = None
    """Decoding settings; None for the settings of the recipe."""
    batch_size: int = 128
    """Sentences a batch; it changes no result."""
    write_batch_size: int = WRITE_BATCH_SIZE
    """Number of sentences between two writes."""


DEFAULT_SETTINGS = BackTranslationSettings()


def run_name(run: Path | str) -> str:
    """Return the mark of a run: its directory's name and 12 digits of its weights' SHA-256; RunError without them."""
    return f"{Path(run).resolve().name}:{sha256(Path(run) / 'model.safetensors')[:12]}"


def back_translate(
    models: Sequence[TrainedModel],
    collection: Collection,
    *,
    generated_by: str,
    settings: BackTranslationSettings = DEFAULT_SETTINGS,
    generate: Generate = generate,
    on_progress: Progress | None = None,
) -> BackTranslationCounts:
    """Add machine translations to a collection, in the groups of the sentences they translate.

    Sentences that have a translation are skipped, so an interrupted back-translation can be repeated; the repetition
    also removes unfinished files.

    Args:
        models: one translation model, or an ensemble.
        collection: sentences to translate, and the features of models that use images.
        generated_by: name that the translations are marked with, see `run_name`.
        settings: selection and decoding.
        generate: decodes the sentences.
        on_progress: called with the number of sentences done and their total.

    Raises:
        CollectionError: there is no such split, or the collection cannot be written.
        FeatureError: the models use images, and the collection lacks their features.
        SettingsError: the models are not translation models.
    """
    lang = languages(models[0])[1]
    translated = left_out = 0
    for batch in translate_untranslated(
        models, collection, settings=settings, generate=generate, on_progress=on_progress
    ):
        complete = [translation for translation in batch if translation.text]
        if complete:
            write_items(collection.path, _items(complete, lang, generated_by))
        translated, left_out = translated + len(complete), left_out + len(batch) - len(complete)
    if not translated:
        remove_interrupted_writes(collection.path)
    return BackTranslationCounts(translated, left_out)


def translate_untranslated(
    models: Sequence[TrainedModel],
    collection: Collection,
    *,
    settings: BackTranslationSettings = DEFAULT_SETTINGS,
    generate: Generate = generate,
    on_progress: Progress | None = None,
) -> Iterator[list[BackTranslation]]:
    """Translate the human-written sentences of a split whose group has no translation.

    The recipe of the first model gives the languages. See `back_translate` for arguments and errors.

    Yields:
        About `settings.write_batch_size` translations; the translations of one item are in the same batch.
    """
    first = models[0]
    language, lang = languages(first)
    encode = language.tokenizer.encode
    items = collection.items(name_or_default(settings.split, first.recipe.data.train, "the split"))
    pairs = [(item, sentence) for item in items for sentence in untranslated(item, language.lang, lang)]
    pairs = pairs[: settings.limit]
    _warn_of_shared_groups(pairs, language.lang)
    features = open_features(first, collection)
    without_features = _without_features(first, collection, pairs, features)
    done = 0
    for batch in _batches(pairs, settings.write_batch_size):
        inputs = [
            GenerationInput(item, sentence.text, ())
            if item.id not in without_features and 0 < len(encode(sentence.text)) <= MAX_SOURCE_TOKENS
            else None
            for item, sentence in batch
        ]
        hypotheses = generate(
            models,
            [source for source in inputs if source is not None],
            features,
            settings.decoding or first.recipe.decoding,
            batch_size=settings.batch_size,
            on_progress=None if on_progress is None else offset_progress(on_progress, done, len(pairs)),
        )
        texts = (
            first.tokenizer.decode(best.tokens, detokenise=True, copied=best.copied) if best.ended else ""
            for best, *_ in hypotheses
        )
        yield [
            BackTranslation(*pair, "" if source is None else next(texts))
            for pair, source in zip(batch, inputs, strict=True)
        ]
        done += len(batch)


def untranslated(item: Item, source: str, target: str) -> list[ItemSentence]:
    """Return the human-written sentences in language `source` whose group has no sentence in language `target`."""
    translated = {sentence.group for sentence in item.sentences if sentence.lang == target}
    return [
        sentence
        for sentence in item.sentences
        if sentence.lang == source and not sentence.generated_by and sentence.group not in translated
    ]


def _warn_of_shared_groups(pairs: Sequence[tuple[Item, ItemSentence]], lang: str) -> None:
    """Log groups with several source sentences, as each is paired with all translations of the group."""
    counts = Counter((item.id, sentence.group) for item, sentence in pairs)
    shared = [key for key, count in counts.items() if count > 1]
    if shared:
        item, group = shared[0]
        logger.warning(
            "%d groups have several sentences in '%s', for example group %d of item '%s': they count as translations "
            "of one another; give sentences that are not translations groups of their own",
            len(shared),
            lang,
            group,
            item,
        )


def _without_features(
    model: TrainedModel,
    collection: Collection,
    pairs: Sequence[tuple[Item, ItemSentence]],
    features: FeatureStore | None,
) -> set[str]:
    """Return the ids of items whose images have no features; FeatureError unless the recipe leaves them out."""
    missing = set() if features is None else {item.id for item, _ in pairs if not features.covers(item)}
    if missing and model.recipe.features.missing != "leave_out":
        raise FeatureError(
            f"{collection.path}: {counted(len(missing), 'image')} of sentences to translate without features, for "
            f"example '{min(missing)}'; run 'limner features', which also reports images that cannot be read"
        )
    return missing


def _batches(pairs: Iterable[tuple[Item, ItemSentence]], size: int) -> Iterator[list[tuple[Item, ItemSentence]]]:
    """Cut pairs into batches of at least `size`, without separating the sentences of an item."""
    batch: list[tuple[Item, ItemSentence]] = []
    for item, sentence in pairs:
        if len(batch) >= size and batch[-1][0] is not item:
            yield batch
            batch = []
        batch.append((item, sentence))
    if batch:
        yield batch


def _items(translations: Iterable[BackTranslation], lang: str, generated_by: str) -> list[Item]:
    """Return items with the new sentences only, which `write_items` merges into the stored items."""
    new: dict[str, Item] = {}
    for item, sentence, text in translations:
        before = new[item.id].sentences if item.id in new else ()
        translation = ItemSentence(lang, text, sentence.group, generated_by)
        new[item.id] = Item(item.id, item.split, sentences=(*before, translation))
    return list(new.values())
