"""The pictures of items as models see them: their features, or others in place of the right ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from limner.data.collection import Collection
from limner.data.dataset import FeatureSource
from limner.data.examples import Item, StoredFeatures
from limner.errors import SettingsError
from limner.features.store import FeatureTable


class FeatureStore:
    """The feature tables a model looks at, as one: each table gives one form of picture."""

    def __init__(self, tables: Sequence[FeatureTable]) -> None:
        """Join tables; SettingsError where two give the same form, of which one would never be looked at."""
        self.tables = tuple(tables)
        names: dict[str, str] = {}
        for spec in (table.spec for table in tables):
            other = names.setdefault(spec.kind, spec.name)
            if other != spec.name:
                raise SettingsError(
                    f"features.tables: '{other}' and '{spec.name}' both are of the form '{spec.kind}'; "
                    "name one table of each form"
                )

    @classmethod
    def open(cls, collection: Collection, names: Sequence[str], cache_mib: int) -> FeatureStore:
        """Open the named feature tables of a collection.

        Args:
            collection: where they are.
            names: one for each form of picture.
            cache_mib: tables of up to this size are held in memory.

        Raises:
            FeatureError: there is none of that name.
            SettingsError: two tables give the same form.
        """
        return cls([FeatureTable.open(collection, name, cache_bytes=cache_mib << 20) for name in names])

    @property
    def forms(self) -> dict[str, tuple[int, ...]]:
        """Shape of each kind of features, as `ModelInputs.feature_shapes`."""
        return {table.spec.kind: table.spec.shape for table in self.tables}

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Features of each item's picture or sound, None for items without one."""
        seen = [row for row, item in enumerate(items) if item.media_path is not None]
        result: list[StoredFeatures | None] = [None] * len(items)
        for table in self.tables:
            values = table.take([items[row].id for row in seen])
            for row, value in zip(seen, values, strict=True):
                result[row] = {**(result[row] or {}), table.spec.kind: value}
        return result

    @property
    def table_names(self) -> tuple[str, ...]:
        """Names of the feature tables."""
        return tuple(table.spec.name for table in self.tables)

    def covers(self, item: Item) -> bool:
        """Whether the item has no picture and no sound, or one that every table holds."""
        return item.media_path is None or all(item.id in table for table in self.tables)


ImageControl = Literal["right", "shuffled", "mean", "zero"]
"""Which picture a model is shown of an item: its own, or to learn what that is worth, one that says nothing of it."""


class ControlFeatures:
    """Shows other pictures in place of the right ones: the random images of Kiros et al. (2014), for any model.

    Whoever has no picture has none here either.
    """

    def __init__(
        self, pictures: FeatureSource, others: Mapping[str, Item], fixed: StoredFeatures | None = None
    ) -> None:
        """Replace pictures.

        Args:
            pictures: the right ones.
            others: by id, the item whose picture is shown instead; items that are not there keep their own.
            fixed: what is shown of every picture, whatever `others` says.
        """
        self.pictures, self.others, self.fixed = pictures, others, fixed

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """What is shown in place of each item's picture."""
        if self.fixed is not None:
            return [None if item.media_path is None else self.fixed for item in items]
        return self.pictures.take([self.others.get(item.id, item) for item in items])

    @classmethod
    def shuffled(cls, pictures: FeatureSource, items: Sequence[Item], seed: int) -> Self:
        """Show each item that has a picture another one's, and each picture once, by the seed.

        Raises:
            SettingsError: there is one picture only, so there is no other.
        """
        shown = [item for item in items if item.media_path is not None]
        if len(shown) == 1:
            raise SettingsError(f"item '{shown[0].id}' has the only picture, so there is none to show in its place")
        ring = np.random.default_rng(seed).permutation(len(shown)).tolist()  # each gets the next one's: never its own
        return cls(pictures, {shown[a].id: shown[b] for a, b in zip(ring, [*ring[1:], *ring[:1]], strict=True)})


def mean_features(pictures: FeatureSource, items: Sequence[Item], at_once: int = 1024) -> StoredFeatures:
    """The mean of what is stored of the items' pictures, by form.

    Raises:
        SettingsError: none of them has a picture.
    """
    totals: dict[str, NDArray[np.float64]] = {}
    count = 0
    for begin in range(0, len(items), at_once):
        for seen in pictures.take(items[begin : begin + at_once]):
            if seen is None:
                continue
            count += 1
            for form, values in seen.items():
                if values is not None:
                    totals[form] = totals.get(form, 0) + values.astype(np.float64)
    if not count:
        raise SettingsError("the mean picture of the training split: there is no picture in it")
    return {form: (total / count).astype(np.float16) for form, total in totals.items()}
