"""Searches of a collection by an open index: what does not depend on the query is read once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from limner.data.collection import ITEMS
from limner.data.examples import Item
from limner.errors import SearchIndexError
from limner.retrieval.all_pairs import pair_log_probs
from limner.retrieval.index.protocol import RECORD, Found, Query, SearchOptions
from limner.retrieval.index.stored import IndexSource, OpenIndex, open_index
from limner.storage.lance_tables import state_of

if TYPE_CHECKING:
    from limner.data.collection import Collection


class IndexedCollection:
    """A collection with an open index of its images."""

    def __init__(self, collection: Collection, source: IndexSource, index: OpenIndex, state: list[str]) -> None:
        self.collection, self.index = collection, index
        self._source, self._state = source, state
        self._positions = collection.positions(source.split)

    @classmethod
    def open(cls, collection: Collection, source: IndexSource, place: Path) -> Self:
        """Open an index; arguments and errors are those of `limner.retrieval.index.stored.open_index`."""
        state = _state(collection, source, place)  # first: changes from now on are seen by `is_current`
        return cls(collection, source, open_index(place, source), state)

    def is_current(self, collection: Collection, place: Path) -> bool:
        """Whether the collection, its features and the index are those that were opened."""
        return collection.version == self.collection.version and _state(collection, self._source, place) == self._state

    def search(
        self, sentence: str, tokens: Sequence[int], count: int, options: SearchOptions
    ) -> tuple[Found, list[Item]]:
        """Find the best images for a sentence.

        Args:
            sentence: the query.
            tokens: its token ids.
            count: number of results.
            options: limits of the search.

        Returns:
            How they were found, and their items.

        Raises:
            SearchIndexError: an item is no longer where it was when the index was made.
        """

        def exact_scores(rows: NDArray[np.int64]) -> NDArray[np.float64]:
            candidates = [Item(item_id, "", image=item_id) for item_id in self._ids(rows)]  # features are found by id
            model = self._source.model.model
            return pair_log_probs(model, [tokens], candidates, self._source.features)[0].double().numpy()

        found = self.index.search(Query(sentence, tokens, exact_scores), count, options)
        return found, self._items(found.rows)

    def _ids(self, rows: NDArray[np.int64]) -> list[str]:
        ids: list[str] = self.index.ids.take(rows).to_pylist()
        return ids

    def _items(self, rows: NDArray[np.int64]) -> list[Item]:
        """Read the items of rows of the index."""
        places, ids = self.index.positions[rows], self._ids(rows)
        inside = places < len(self._positions)
        positions = places[inside] if isinstance(self._positions, range) else self._positions[places[inside]]
        unique, inverse = np.unique(positions, return_inverse=True)
        read = self.collection.take(unique)
        items = [read[row] for row in inverse.tolist()]
        if not inside.all() or [item.id for item in items] != ids:
            raise SearchIndexError(
                f"{self.collection.path}: its items are not in the order that they had when the index was made; run "
                "'limner index' with --rebuild, or add --exact to search without it"
            )
        return items


def _state(collection: Collection, source: IndexSource, place: Path) -> list[str]:
    """Return what changes with the items, the features and the index."""
    try:
        written = str((place / RECORD).stat().st_mtime_ns)
    except OSError:
        written = ""
    tables = [collection.path / ITEMS, *(table.path for table in source.features.tables)]
    return [str(collection.path), written, *map(state_of, tables)]
