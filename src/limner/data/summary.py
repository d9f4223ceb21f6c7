"""Counts of the contents of a collection."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from limner.data.collection import Collection
from limner.data.tally import MAX_EXAMPLES
from limner.files import is_file
from limner.media.modality import MODALITIES


@dataclass(frozen=True, slots=True)
class CollectionSummary:
    """Counts of the contents of a collection."""

    items: int
    """Number of items."""
    splits: dict[str, int]
    """Number of items by split."""
    sentences: dict[str, dict[str, int]]
    """Number of sentences by split and language; "en (generated)" counts English sentences written by a model."""
    media: dict[str, dict[str, int]]
    """Number of items with a media file, by modality and split."""
    regions: int
    """Number of described image regions."""
    phrases: int
    """Number of annotated mentions of entities in sentences."""
    missing: int
    """Number of media files that do not exist."""
    missing_examples: tuple[str, ...]
    """Paths of the first missing files."""
    features: tuple[str, ...]
    """Names of the feature tables."""


def summarise(collection: Collection) -> CollectionSummary:
    """Count the contents of a collection, and check that its media files exist."""
    splits: Counter[str] = Counter()
    sentences: dict[str, Counter[str]] = {}
    media: dict[str, Counter[str]] = {name: Counter() for name in MODALITIES}
    regions = phrases = missing = 0
    missing_examples: list[str] = []
    for item in collection.iter_items():
        splits[item.split] += 1
        sentences.setdefault(item.split, Counter()).update(
            sentence.lang + (" (generated)" if sentence.generated_by else "") for sentence in item.sentences
        )
        regions += len(item.regions)
        phrases += sum(len(sentence.phrases) for sentence in item.sentences)
        for name, path in item.media.items():
            if path is None:
                continue
            media[name][item.split] += 1
            if not is_file(file := collection.path / path):
                missing += 1
                missing_examples += [str(file)] if missing <= MAX_EXAMPLES else []
    return CollectionSummary(
        items=splits.total(),
        splits=dict(
            sorted(sorted(splits.items()), key=lambda entry: ("train", "val", "test", entry[0]).index(entry[0]))
        ),
        sentences={split: dict(sorted(counts.items())) for split, counts in sentences.items()},
        media={name: dict(counts) for name, counts in media.items()},
        regions=regions,
        phrases=phrases,
        missing=missing,
        missing_examples=tuple(missing_examples),
        features=collection.features(),
    )
