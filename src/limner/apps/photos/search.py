"""Scores of the images of an index: of a sentence by its probability, of an image by the similarity of features.

Of a large index, candidates are scored: images that share words with the query, and images similar to those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from limner.apps.photos.record import AnnotationCodec, StoredAnnotations
from limner.apps.photos.tables import open_index, state_of_index
from limner.data.examples import Item
from limner.errors import SettingsError
from limner.features.spec import FeatureArray
from limner.inference.scorer import require_words
from limner.media.modality import IMAGE
from limner.retrieval.all_pairs import pair_log_probs
from limner.runs.concepts import Concepts
from limner.runs.trained_model import TrainedModel
from limner.text.vocab import SPECIAL_TOKENS

EXACT_SEARCH_IMAGES = 2000
"""Number of images up to which a search scores all of them."""
CANDIDATES = 1000
"""Number of images that a search in a larger index scores."""
SEEDS = 50
"""Number of the best images by words whose mean is the vector that further candidates are similar to."""


class Snapshot:
    """State of an index at one time."""

    def __init__(self, index: Path) -> None:
        """Read the files of an index; annotations and vectors are read when they are needed.

        Raises:
            FolderError: the index is damaged.
        """
        self.state = state_of_index(index)  # first: another process may write meanwhile
        self.index = open_index(index)
        self.row_of = {path: self.index.rows[file.digest] for path, file in self.index.files.items() if not file.error}
        """Row of the contents of each file that can be read."""
        self.paths_of: dict[int, list[str]] = {}
        """Paths of the files with the contents of each row."""
        for path, row in sorted(self.row_of.items()):
            self.paths_of.setdefault(row, []).append(path)
        self._word_index: WordIndex | None = None
        self._rows = np.array(sorted(self.paths_of), dtype=np.int64)

    @cached_property
    def _features(self) -> tuple[FeatureArray, FeatureArray]:
        """Annotations and vectors of all rows of the table."""
        return self.index.features()

    @property
    def is_exact(self) -> bool:
        """Whether all images are scored; otherwise `CANDIDATES` of them are."""
        return len(self._rows) <= EXACT_SEARCH_IMAGES

    def score_sentence(
        self,
        trained: TrainedModel,
        codec: AnnotationCodec,
        query: str,
        exact: bool | None = None,
        concepts: Concepts | None = None,
    ) -> list[tuple[int, float]]:
        """Compute log P(w|I), plus log p(c|I) of each concept c that the sentence names, best first.

        Args:
            trained: the captioner.
            codec: its annotations.
            query: the sentence w.
            exact: whether all images are scored, or candidates only; None for all up to `EXACT_SEARCH_IMAGES`.
            concepts: concepts of the captioner; None for the log-probabilities alone.
        """
        require_words(trained, [query])
        tokens = trained.tokenizer.encode(query)
        if all(token == SPECIAL_TOKENS.unk for token in tokens):
            raise SettingsError(f"'{query}': none of its words is in the vocabulary of the model; use other words")
        if not len(self._rows):
            return []
        rows, words = self._rows, trained.tokenizer.words
        if not (self.is_exact if exact is None else exact) and len(rows) > CANDIDATES:
            self._word_index = self._word_index or WordIndex(map(words, self.index.texts()))
            by_words = self._word_index.scores(words(query))[rows]
            rows = rows[find_candidates(by_words, self._features[1][rows], CANDIDATES)]
        items = [Item(str(row), "index").with_media(IMAGE, str(row)) for row in rows.tolist()]
        features = StoredAnnotations(codec.spec.kind, self._features[0])
        scores = pair_log_probs(codec.reader, [tokens], items, features)[0].numpy()
        if concepts is not None:
            scores = scores + concepts.log_probs(query, self._features[1][rows].astype(np.float32))
        return _ranked(rows, scores)

    def score_vector(self, vector: FeatureArray) -> list[tuple[int, float]]:
        """Compute the cosine of the vectors of all images with one vector, best first."""
        return _ranked(self._rows, unit(self._features[1][self._rows]) @ unit(vector))


def unit(vectors: FeatureArray) -> NDArray[np.float32]:
    """Scale vectors (..., D) to unit length."""
    values = vectors.astype(np.float32)
    return np.asarray(values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-12), np.float32)


def _ranked(rows: NDArray[np.int64], scores: NDArray[np.float32]) -> list[tuple[int, float]]:
    order = np.argsort(-scores, kind="stable")
    return list(zip(rows[order].tolist(), scores[order].tolist(), strict=True))


class WordIndex:
    """The words of the caption and the tags of each image, weighted by their rarity."""

    def __init__(self, texts: Iterable[Sequence[str]]) -> None:
        """Count words.

        Args:
            texts: the words of each of N images.
        """
        self._images: dict[str, list[int]] = {}
        self._count = 0
        for row, words in enumerate(texts):
            self._count += 1
            for word in set(words):
                self._images.setdefault(word, []).append(row)

    def scores(self, query: Sequence[str]) -> NDArray[np.float32]:
        """Sum log(N / n) over the words of a query that each image has, where n images have the word, (N,)."""
        scores = np.zeros(self._count, dtype=np.float32)
        for word in set(query):
            if images := self._images.get(word):
                scores[images] += math.log((1 + self._count) / len(images))
        return scores


def find_candidates(scores: NDArray[np.float32], vectors: FeatureArray, count: int) -> NDArray[np.int64]:
    """Return the images that a query is compared with: half of them by words, the others by similarity to the best.

    Args:
        scores: score of each image by words, (N,); an image with 0 shares none.
        vectors: vectors of the images, (N, D).
        count: number of candidates, less than N.

    Returns:
        Indices of the images, (count,); all images where none shares a word with the query.
    """
    order = np.argsort(-scores, kind="stable")
    shared = order[: min(count // 2, int((scores > 0).sum()))]
    if not len(shared):
        return order
    seeds = shared[:SEEDS]
    directions = unit(vectors)
    similarity = directions @ (scores[seeds, None] * directions[seeds]).sum(0)
    similarity[shared] = np.inf
    return np.argsort(-similarity, kind="stable")[:count]
