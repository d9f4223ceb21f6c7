"""Counts of the contents of a collection."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

from limner.data.collection import Collection
from limner.data.examples import Item
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
    unverified: tuple[str, ...]
    """Names of the tables without readable checksums, see `Collection.unverified`."""


def summarise(collection: Collection, *, examples: int = 3) -> CollectionSummary:
    """Count the contents of a collection, and check that its media files exist.

    Args:
        collection: the collection.
        examples: maximum number of missing files to name.
    """
    items = collection.items()
    sentences: dict[str, Counter[str]] = {item.split: Counter() for item in items}
    for item in items:
        sentences[item.split].update(one.lang + (" (generated)" if one.generated_by else "") for one in item.sentences)
    files = [(name, item.split, path) for item in items for name, path in _media_files(item)]
    paths = [str(collection.path / path) for _, _, path in files]
    missing = [path for path in paths if not os.path.isfile(path)]
    return CollectionSummary(
        items=len(items),
        splits=dict(sorted(Counter(item.split for item in items).items(), key=lambda entry: _rank(entry[0]))),
        sentences={split: dict(sorted(counts.items())) for split, counts in sentences.items()},
        media={name: dict(Counter(split for other, split, _ in files if other == name)) for name in MODALITIES},
        regions=sum(len(item.regions) for item in items),
        phrases=sum(len(sentence.phrases) for item in items for sentence in item.sentences),
        missing=len(missing),
        missing_examples=tuple(missing[:examples]),
        features=collection.features(),
        unverified=collection.unverified(),
    )


def _rank(split: str) -> tuple[int, str]:
    """Key that orders splits as train, val, test, and others by name."""
    usual = ("train", "val", "test")
    return (usual.index(split) if split in usual else len(usual), split)


def _media_files(item: Item) -> list[tuple[str, str]]:
    """Modality and relative path of every media file of an item."""
    return [(name, path) for name in MODALITIES if (path := getattr(item, name)) is not None]
