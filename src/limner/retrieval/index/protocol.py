"""Protocol of all kinds of index, options and results of a search, and the record of an index, `index.json`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from limner.bounds import Few, Total
from limner.data.dataset import FeatureSource
from limner.data.examples import ImageFeatures, Item, collate_features
from limner.data.stored_items import StoredItems
from limner.errors import SearchIndexError
from limner.features.spec import FeatureSpec
from limner.features.store import FeatureStore
from limner.files import write_text
from limner.models.protocols import Model
from limner.progress import Progress
from limner.runs.trained_model import TrainedModel
from limner.settings import Settings
from limner.storage.hashes import FileBlocks
from limner.storage.json_text import to_json
from limner.storage.places import load_record

IMAGES_READ_PER_BATCH = 1024
CANDIDATES = 200
"""Default number of images that a search without a proof scores."""

ExactScores = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""Function that computes the exact scores of some rows of an index for the sentence of a search."""


class SearchOptions(NamedTuple):
    """Limits of the number of images that a search scores."""

    exact: bool = False
    """Whether all images are scored, without an index."""
    max_scored: int | None = None
    """Maximum number of images that are scored; None for as many as the result needs."""
    slack: float = 0.0
    """Maximum difference in log-probability by which an image that is left out may exceed the last result."""


class Query(NamedTuple):
    """A sentence to search for."""

    text: str
    tokens: Sequence[int]
    """Token ids of the model, without special tokens."""
    exact_scores: ExactScores
    """Scores of rows of the index by the model, for an index that cannot compute them."""


class BestImages(NamedTuple):
    """Best images of an index for a sentence."""

    rows: NDArray[np.int64]  # (K,) rows of the index, best first
    scores: NDArray[np.float64]  # (K,)
    scored: int
    """Number of images whose score was computed."""
    exact: bool
    """Whether no other image of the index has a higher score, by proof or because all images were scored. Equal scores
    keep the order of the collection in the kind `tangents`, where they are equal to `tangents.RESOLUTION` decimal
    places, and the order of the rows of the index in other kinds."""
    gap: float | None
    """Maximum difference in log-probability by which an image that was left out exceeds the last result; None if no
    bound is known."""


class ImageIndex(Protocol):
    """An open index."""

    def __len__(self) -> int:
        """Return the number of images."""

    def search(self, query: Query, count: int, options: SearchOptions) -> BestImages:
        """Find the best `count` images for a sentence, within the limits of the options."""


def ranked_candidates(rows: NDArray[np.int64], count: int, images: int, exact_scores: ExactScores) -> BestImages:
    """Rank candidate rows of an index by their exact scores."""
    scores = exact_scores(rows)
    best = np.argsort(-scores, kind="stable")[:count]
    complete = len(rows) == images
    return BestImages(rows[best], scores[best], len(rows), complete, 0.0 if complete else None)


def items_without_sentences(items: Sequence[Item], rows: Sequence[int]) -> Sequence[Item]:
    """Return the items at some indices, without the sentences of stored items, which an index does not need."""
    return items.media(rows) if isinstance(items, StoredItems) else [items[row] for row in rows]


class IndexedImages(NamedTuple):
    """Images of a new index, in the order of its rows; their items are read as they are needed."""

    items: Sequence[Item]
    """Items of the split."""
    positions: NDArray[np.int64]
    """Positions of the images among the items."""
    features: FeatureSource

    @property
    def size(self) -> int:
        """Number of images."""
        return len(self.positions)

    def batches(self, on_progress: Progress | None = None) -> Iterator[ImageFeatures]:
        """Read the features of all images, `IMAGES_READ_PER_BATCH` at a time."""
        for begin in range(0, self.size, IMAGES_READ_PER_BATCH):
            batch = items_without_sentences(self.items, self.positions[begin : begin + IMAGES_READ_PER_BATCH].tolist())
            yield collate_features(self.features.take(batch))
            if on_progress is not None:
                on_progress(begin + len(batch), self.size)

    def write_vectors(
        self, path: Path, compute: Callable[[ImageFeatures], Tensor], on_progress: Progress | None
    ) -> NDArray[np.float32]:
        """Compute a vector of each image, and write them to a file that is mapped into memory, (N, D)."""
        vectors, begin = None, 0
        for image in self.batches(on_progress):
            values = compute(image).cpu().numpy()
            if vectors is None:
                vectors = np.lib.format.open_memmap(path, "w+", np.float32, (self.size, values.shape[1]))
            vectors[begin : begin + len(values)] = values
            begin += len(values)
        assert vectors is not None, "an index has images"
        return vectors


class IndexKind(NamedTuple):
    """A kind of index, with the functions that build and open it."""

    name: str
    supports: Callable[[Model], bool]
    """Whether a model has the capability that the kind needs."""
    build: Callable[[Path, TrainedModel, IndexedImages, Progress | None], NDArray[np.int64]]
    """Function that writes the files of an index to an empty folder, and returns the image of each row."""
    open: Callable[[Path, TrainedModel], ImageIndex]
    """Function that opens the files of an index, whose checksums were verified."""
    ingredients: str = ""
    """Digest of further inputs of an index, besides the model and its features, such as another model."""


RECORD = "index.json"
"""File of an index with its `CollectionIndexRecord`; it is written last."""
INDEXES = "indexes"
"""Folder of the indexes in a collection."""
ALL, SPLIT = "all", "split-"
"""In the folder of a model: folder of the index of all splits, and prefix of the folder for a single split."""
VERSION = 3
"""Version of the layout of an index."""
REBUILD = "to replace it, run 'limner index' with --rebuild; to search without it, add --exact"


class CollectionIndexRecord(Settings):
    """Kind, model, features and files of an index."""

    version: Few = VERSION
    """Version of the layout."""
    kind: str
    """Kind of the index."""
    model: str
    """Run directory of the model, for messages; empty for a model that was not loaded from a folder."""
    fingerprint: str
    """Digest of the weights, the vocabulary, the settings and the features of the model."""
    collection: str
    """Folder of the collection when the index was made, for messages."""
    split: str | None
    """Split whose images are in the index; null for all."""
    features: tuple[FeatureSpec, ...]
    """Features of the images."""
    features_digest: str
    """Digest of the rows of the feature tables."""
    ingredients: str = ""
    """Digest of further inputs of the index, such as a two-tower model and its features."""
    images: Total
    """Number of images."""
    files: dict[str, FileBlocks]
    """Size and checksums of each file of the index."""

    @classmethod
    def load(cls, index: Path) -> CollectionIndexRecord:
        """Read the record of an index; SearchIndexError if it is missing, damaged, or of another version of Limner."""
        return load_record(cls, index / RECORD, VERSION, SearchIndexError, REBUILD)

    def save(self, index: Path) -> None:
        """Write the record; WriteError if it cannot be written."""
        write_text(index / RECORD, to_json(self.model_dump(mode="json"), indent=1) + "\n")

    def require_files(self, index: Path, *, every: bool) -> None:
        """Verify the files of the index, or a sample of their blocks (`FileBlocks`); SearchIndexError if damaged."""
        for name, blocks in self.files.items():
            try:
                intact = blocks.holds(index / name, every)
            except OSError as error:
                raise SearchIndexError(f"{index / name}: cannot be read ({error.strerror}); {REBUILD}") from None
            if not intact:
                raise SearchIndexError(f"{index / name}: damaged: it does not have its checksum; {REBUILD}")


def features_digest(features: FeatureStore) -> str:
    """Compute a digest of the stored features of all items, whatever the files that hold them."""
    digest = xxhash.xxh3_128()
    for table in features.tables:
        digest.update(f"{table.spec.fingerprint}\n{table.digest}\n".encode())
    return digest.hexdigest()
