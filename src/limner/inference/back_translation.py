"""Back-translation: sentences that nobody translated get a translation by a model, and it is marked as such.

Calixto et al. (2017), section 4, after Sennrich et al. (2016): a model of the other direction makes source sentences
for what people wrote, and these pairs join the training data.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from limner.data.collection import Collection, write_items
from limner.data.dataset import GenerationInput
from limner.data.examples import Item, Sentence
from limner.decoding.beam_search import DecodingSettings
from limner.errors import FeatureError
from limner.features.sources import FeatureStore
from limner.inference.generate import answer, open_features
from limner.inference.translator import MOST_TOKENS, languages
from limner.progress import Progress, part_of
from limner.runs.trained_model import TrainedModel, sha256

WRITE_BATCH_SIZE = 10_000
"""Sentences between two writes, each of which stores the whole collection anew; a killed run loses at most so many."""

logger = logging.getLogger(__name__)


class Made(NamedTuple):
    """A sentence that people wrote, and what a model made of it."""

    item: Item
    written: Sentence
    text: str
    """Empty where the sentence has no words or far too many, its picture no features, or the translation has no words
    or came to no end."""


class Outcome(NamedTuple):
    """How many sentences a back-translation made, and how many it left out since `Made.text` was empty."""

    made: int
    left_out: int


def name_of(run: Path | str) -> str:
    """How a run signs its translations: the folder's name and the first 12 digits of its weights' SHA-256.

    Raises:
        RunError: the folder holds no weights.
    """
    return f"{Path(run).resolve().name}:{sha256(Path(run) / 'model.safetensors')[:12]}"


def back_translate(
    models: Sequence[TrainedModel],
    collection: Collection,
    *,
    generated_by: str,
    split: str | None = None,
    limit: int | None = None,
    settings: DecodingSettings | None = None,
    batch_size: int = 128,
    at_once: int = WRITE_BATCH_SIZE,
    progress: Progress | None = None,
) -> Outcome:
    """Add to a collection what `translations` makes, as sentences of the same groups that say who made them.

    What is written stays: a run that was killed goes on where it was, for what has a translation is passed over.

    Args:
        models: one model, or an ensemble.
        collection: what to read, and where to write.
        generated_by: who translates, see `name_of`.
        split: as of `translations`, and so are the others.
        limit: at most so many sentences.
        settings: how to search.
        batch_size: sentences translated together.
        at_once: sentences between two writes.
        progress: told the sentences that are done, and how many there are.

    Raises:
        CollectionError: another process is writing, the disk refuses, or there is no such split.
        FeatureError: the models look at pictures, and the collection lacks their features.
        SettingsError: the models do not translate.
    """
    lang = languages(models[0])[1]
    made = left_out = 0
    for found in translations(
        models,
        collection,
        split=split,
        limit=limit,
        settings=settings,
        batch_size=batch_size,
        at_once=at_once,
        progress=progress,
    ):
        kept = [one for one in found if one.text]
        if kept:
            write_items(collection.path, _items(kept, lang, generated_by))
        made, left_out = made + len(kept), left_out + len(found) - len(kept)
    return Outcome(made, left_out)


def translations(
    models: Sequence[TrainedModel],
    collection: Collection,
    *,
    split: str | None = None,
    limit: int | None = None,
    settings: DecodingSettings | None = None,
    batch_size: int = 128,
    at_once: int = WRITE_BATCH_SIZE,
    progress: Progress | None = None,
) -> Iterator[list[Made]]:
    """Translate the sentences of a split that people wrote and whose group holds no translation.

    Args:
        models: one model, or an ensemble; the recipe tells the languages.
        collection: where the sentences are, and the features of models that look at pictures.
        split: none for the one the model learned from.
        limit: at most so many sentences.
        settings: how to search; none for the recipe's.
        batch_size: sentences translated together; it changes no result.
        at_once: sentences that are handed over together.
        progress: told the sentences that are done, and how many there are.

    Yields:
        About `at_once` sentences at a time, all of an item together.

    Raises:
        CollectionError: there is no such split.
        FeatureError: the models look at pictures, and the collection lacks their features.
        SettingsError: the models do not translate.
    """
    first = models[0]
    source, lang = languages(first)
    items = collection.items(split or first.recipe.data.train)
    wanted = [(item, sentence) for item in items for sentence in untranslated(item, source.lang, lang)][:limit]
    _warn_of_shared_groups(wanted, source.lang)
    pictures = open_features(first, collection)
    unseen = _unseen(wanted, pictures)
    if unseen and first.recipe.features.missing != "leave_out":
        raise FeatureError(
            f"{collection.path}: {len(unseen)} pictures of sentences to translate have no features, the first is "
            f"'{min(unseen)}'; 'limner features' adds them, and says which pictures cannot be read and why"
        )
    done = 0
    for some in _portions(wanted, at_once):
        note = None if progress is None else part_of(progress, done, len(wanted))
        readable = [
            0 < len(source.tokenizer.encode(sentence.text)) <= MOST_TOKENS and item.id not in unseen
            for item, sentence in some
        ]
        asked = [
            GenerationInput(item, sentence.text, ()) for (item, sentence), ok in zip(some, readable, strict=True) if ok
        ]
        found = answer(models, asked, pictures, settings or first.recipe.decoding, batch_size=batch_size, progress=note)
        texts = (first.tokenizer.decode(best.tokens, detokenise=True) if best.ended else "" for best, *_ in found)
        yield [Made(*one, next(texts) if ok else "") for one, ok in zip(some, readable, strict=True)]
        done += len(some)


def untranslated(item: Item, source: str, target: str) -> list[Sentence]:
    """Sentences that people wrote in one language and that have no translation into the other, whoever made it."""
    there = {sentence.group for sentence in item.sentences if sentence.lang == target}
    return [
        sentence
        for sentence in item.sentences
        if sentence.lang == source and not sentence.generated_by and sentence.group not in there
    ]


def _warn_of_shared_groups(wanted: Sequence[tuple[Item, Sentence]], lang: str) -> None:
    """Each sentence of a group would be paired with the translations of all of them."""
    shared = [place for place, count in Counter((item.id, one.group) for item, one in wanted).items() if count > 1]
    if shared:
        item, group = shared[0]
        logger.warning(
            "%d groups hold several sentences in '%s', the first is group %d of item '%s': they count as translations "
            "of one another; give sentences that are not a group of their own",
            len(shared),
            lang,
            group,
            item,
        )


def _unseen(wanted: Sequence[tuple[Item, Sentence]], pictures: FeatureStore | None) -> set[str]:
    """Items whose pictures have no features."""
    return set() if pictures is None else {item.id for item, _ in wanted if not pictures.covers(item)}


def _portions(wanted: Sequence[tuple[Item, Sentence]], size: int) -> Iterator[list[tuple[Item, Sentence]]]:
    """So many sentences at a time, or a few more: all of an item are written together."""
    some: list[tuple[Item, Sentence]] = []
    for item, sentence in wanted:
        if len(some) >= size and some[-1][0] is not item:
            yield some
            some = []
        some.append((item, sentence))
    if some:
        yield some


def _items(made: Iterable[Made], lang: str, generated_by: str) -> list[Item]:
    """What to write: items that hold the new sentences only."""
    new: dict[str, Item] = {}
    for item, written, text in made:
        known = new.get(item.id)
        before = known.sentences if known is not None else ()
        sentence = Sentence(lang, text, written.group, generated_by)
        new[item.id] = Item(item.id, item.split, sentences=(*before, sentence))
    return list(new.values())
