"""Scores of the images of an index: of a sentence by its probability, of an image by the similarity of features."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from limner.data.examples import Item
from limner.errors import SettingsError
from limner.features.spec import FeatureArray
from limner.folders.annotations import AnnotationCodec, StoredAnnotations
from limner.folders.candidates import WordIndex, find_candidates
from limner.folders.record import RECORD
from limner.folders.tables import FILES, IMAGES, ImageRow, open_index
from limner.inference.scorer import require_words
from limner.media.modality import IMAGE
from limner.retrieval.all_pairs import pair_log_probs
from limner.runs.trained_model import TrainedModel
from limner.storage.lance_tables import state_of
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS

EXACT_IMAGES = 2000
"""Number of images up to which a search scores all of them."""
CANDIDATES = 1000
"""Number of images that a search in a larger index scores."""


class Snapshot:
    """State of an index at one time."""

    def __init__(self, index: Path) -> None:
        """Read the files of an index; annotations and vectors are read when they are needed.

        Raises:
            FolderError: the index is damaged.
        """
        self.version = self.version_of(index)  # first: another process may write meanwhile
        self.index = open_index(index)
        self._table = self.index.images
        digests = self._table.rows
        self.files = {path: row for path, row in self.index.files.items() if not row.error}
        self._paths: dict[int, list[str]] = {}
        for path, file in sorted(self.files.items()):
            self._paths.setdefault(digests[file.digest], []).append(path)
        self._word_index: WordIndex | None = None
        self._rows = np.array(sorted(self._paths), dtype=np.int64)

    @staticmethod
    def version_of(index: Path) -> tuple[str, ...]:
        """Return what changes with each part of the index."""
        record = index / RECORD
        return *map(state_of, (index / FILES, index / IMAGES)), str(record.stat().st_mtime_ns if record.exists() else 0)

    @cached_property
    def _features(self) -> tuple[FeatureArray, FeatureArray]:
        """Annotations and vectors of all rows of the table."""
        return self._table.features()

    def _words(self, tokenizer: Tokenizer) -> WordIndex:
        """Return the words of the captions and the tags of all rows of the table."""
        if self._word_index is None:
            self._word_index = WordIndex(tokenizer.words(text) for text in self._table.texts())
        return self._word_index

    def paths_of(self, row: int) -> list[str]:
        """Return the paths of the files with the contents of a row."""
        return self._paths[row]

    def row_of(self, path: str) -> int | None:
        """Return the row of the contents of a file; None if there is no such file."""
        file = self.files.get(path)
        return None if file is None else self._table.rows[file.digest]

    def details(self, rows: Sequence[int]) -> list[ImageRow]:
        """Read the captions and the thumbnails of rows."""
        return self._table.details(rows)

    @property
    def is_exact(self) -> bool:
        """Whether all images are scored; otherwise `CANDIDATES` of them are."""
        return len(self._rows) <= EXACT_IMAGES

    def score_sentence(
        self, trained: TrainedModel, codec: AnnotationCodec, query: str, exact: bool | None = None
    ) -> list[tuple[int, float]]:
        """Compute log P(w|I), best first.

        Args:
            trained: the captioner.
            codec: its annotations.
            query: the sentence w.
            exact: whether all images are scored, or candidates only; None for all up to `EXACT_IMAGES`.
        """
        require_words(trained, [query])
        tokens = trained.tokenizer.encode(query)
        if all(token == SPECIAL_TOKENS.unk for token in tokens):
            raise SettingsError(f"'{query}': none of its words is in the vocabulary of the model; use other words")
        if not len(self._rows):
            return []
        rows = self._rows
        if not (self.is_exact if exact is None else exact) and len(rows) > CANDIDATES:
            by_words = self._words(trained.tokenizer).scores(trained.tokenizer.words(query))[rows]
            rows = rows[find_candidates(by_words, self._features[1][rows], CANDIDATES)]
        items = [Item(str(row), "index").with_media(IMAGE, str(row)) for row in rows.tolist()]
        features = StoredAnnotations(codec.spec.kind, self._features[0])
        scores = pair_log_probs(codec.reader, [tokens], items, features)[0].numpy()
        return _ranked(rows, scores)

    def score_vector(self, vector: FeatureArray) -> list[tuple[int, float]]:
        """Compute the cosine of the vectors of all images with one vector of unit length, best first."""
        scores = self._features[1][self._rows].astype(np.float32) @ vector.astype(np.float32)
        return _ranked(self._rows, scores)


def _ranked(rows: NDArray[np.int64], scores: NDArray[np.float32]) -> list[tuple[int, float]]:
    order = np.argsort(-scores, kind="stable")
    return list(zip(rows[order].tolist(), scores[order].tolist(), strict=True))
