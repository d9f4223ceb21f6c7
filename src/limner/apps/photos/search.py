"""Scores of the images of an index: of a sentence by the concepts and the joint space, of an image by its features."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limner.apps.photos.tables import open_index, state_of_index
from limner.features.spec import FeatureArray
from limner.inference.image_searcher import Searcher, open_searcher, unit


class Snapshot:
    """State of an index at one time."""

    def __init__(self, index: Path, searcher: Searcher | None = None) -> None:
        """Read the files of an index; vectors are read when they are needed.

        Args:
            index: folder of the index.
            searcher: computes the scores; None for what the index was made with.

        Raises:
            FolderError: the index is damaged.
        """
        self.state = state_of_index(index)  # first: another process may write meanwhile
        self.index = open_index(index)
        self.searcher = searcher or open_searcher(self.index.record.lang, self.index.record.space)
        self.row_of = {path: self.index.rows[file.digest] for path, file in self.index.files.items() if not file.error}
        """Row of the contents of each file that can be read."""
        self.paths_of: dict[int, list[str]] = {}
        """Paths of the files with the contents of each row."""
        for path, row in sorted(self.row_of.items()):
            self.paths_of.setdefault(row, []).append(path)
        self._rows = np.array(sorted(self.paths_of), dtype=np.int64)

    @cached_property
    def _vectors(self) -> FeatureArray:
        return self.index.vectors()[self._rows]

    @cached_property
    def _projected(self) -> NDArray[np.float32]:
        return self.searcher.project(self._vectors)

    def score_sentence(self, query: str) -> list[tuple[int, float]]:
        """Compute how well a sentence describes each image, best first; SettingsError if no word of it is known."""
        return self._ranked(self.searcher.scores(query, self._vectors, self._projected))

    def score_vector(self, vector: NDArray[np.floating[Any]]) -> list[tuple[int, float]]:
        """Compute the cosine of the features of all images with a vector, best first."""
        return self._ranked(unit(self._vectors) @ unit(vector))

    def _ranked(self, scores: NDArray[np.float32]) -> list[tuple[int, float]]:
        order = np.argsort(-scores, kind="stable")
        return list(zip(self._rows[order].tolist(), scores[order].tolist(), strict=True))
