"""Candidates by the nearest neighbours of a sentence in a joint space, and their exact scores: the kind `embeddings`.

The index holds the image vectors of a two-tower model in a Lance table, with the vector index of Lance (IVF_PQ) where
there are many, and a copy of that model. The nearest images of the vector of a sentence are scored by the model of the
index. Nothing is proven.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from limner.data.examples import Example, collate
from limner.errors import SearchIndexError, SettingsError
from limner.features.store import FeatureStore
from limner.models.protocols import device_of
from limner.models.two_tower import TwoTower
from limner.progress import Progress
from limner.retrieval.index.protocol import (
    CANDIDATES,
    REBUILD,
    BestImages,
    IndexedImages,
    IndexKind,
    Query,
    SearchOptions,
    features_digest,
    ranked_candidates,
)
from limner.runs.trained_model import WEIGHTS, TrainedModel, load_trained_model, model_fingerprint
from limner.storage.places import damage_raised_as, open_table

NAME = "embeddings"
VECTORS = "vectors.lance"
"""Table of an index: `row` and `vector`."""
RETRIEVER = "retriever"
"""Folder of an index with the two-tower model."""
RUN_FILES = ("config.json", "tokenizer.json", WEIGHTS)
MAX_COMPARED = 100_000
"""Number of images up to which all vectors are compared, in memory; larger tables get the vector index of Lance."""
VALUES_PER_CODE = 8
"""Number of values of a vector that its product quantisation stores in one byte."""
PROBED_SHARE = 0.3
"""Share of the partitions that a search reads."""
REFINE_FACTOR = 4
"""Number of vectors, relative to the candidates, whose distances are computed from the vectors themselves."""


def embeddings_kind(retriever: TrainedModel, features: FeatureStore | None) -> IndexKind:
    """Return the kind of index with the vectors of a two-tower model, computed from its features."""
    assert features is not None, "a two-tower model reads features"
    ingredients = f"{model_fingerprint([retriever])} {features_digest(features)}"
    return EMBEDDINGS._replace(build=partial(_build, retriever, features), ingredients=ingredients)


def require_retriever(retriever: TrainedModel) -> None:
    """Check that a model of a folder embeds sentences and images in one space; SettingsError if not."""
    if not isinstance(retriever.model, TwoTower):
        raise SettingsError(
            f"retriever: expected a model that embeds images and sentences, such as 'two_tower', got "
            f"'{retriever.recipe.model.name}'; train one with the recipe retrieval/flickr8k-two-tower"
        )
    if retriever.folder is None:
        raise SettingsError("retriever: expected a model that was loaded from its run directory")


def _build(
    retriever: TrainedModel | None,
    features: FeatureStore | None,
    folder: Path,
    model: TrainedModel,
    images: IndexedImages,
    on_progress: Progress | None,
) -> NDArray[np.int64]:
    """Write the vectors of all images, their index and a copy of the retriever; return the image of each row."""
    import lance

    assert retriever is not None and retriever.folder is not None and features is not None
    (folder / RETRIEVER).mkdir()
    for name in RUN_FILES:
        shutil.copyfile(retriever.folder / name, folder / RETRIEVER / name)
    batches = _vector_batches(retriever, images._replace(features=features), on_progress)
    first = next(batches)
    reader = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
    with damage_raised_as(lambda reason: SearchIndexError(f"{folder}: the vectors cannot be written ({reason})")):
        table = lance.write_dataset(reader, str(folder / VECTORS))
        count = images.size
        if count > MAX_COMPARED:
            size = first.schema.field("vector").type.list_size
            codes = max(1, size // VALUES_PER_CODE)
            table.create_index(
                "vector", "IVF_PQ", metric="cosine", num_partitions=round(count**0.5), num_sub_vectors=codes
            )
    return np.arange(images.size)


def _vector_batches(
    retriever: TrainedModel, images: IndexedImages, on_progress: Progress | None
) -> Iterator[pa.RecordBatch]:
    """Compute the vectors of the images batch by batch."""
    network, begin = retriever.model, 0
    assert isinstance(network, TwoTower)
    for image in images.batches(on_progress):
        with torch.inference_mode():
            vectors = network.image_vector(image.to(device_of(retriever.model))).cpu().numpy()
        values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.float32()), vectors.shape[1])
        rows = pa.array(np.arange(begin, begin + len(vectors)), pa.int64())
        yield pa.record_batch({"row": rows, "vector": values})
        begin += len(vectors)


class EmbeddingIndex:
    """Open index of image vectors."""

    def __init__(self, retriever: TrainedModel, table: Any, place: Path) -> None:  # noqa: ANN401  (Lance has no types)
        self._retriever, self._table, self._place = retriever, table, place
        self._count: int = table.count_rows()

    @classmethod
    def open(cls, folder: Path, model: TrainedModel) -> EmbeddingIndex:
        retriever = load_trained_model(folder / RETRIEVER, str(device_of(model.model)))
        with damage_raised_as(lambda reason: SearchIndexError(f"{folder}: damaged vectors ({reason}); {REBUILD}")):
            return cls(retriever, open_table(folder / VECTORS), folder)

    def __len__(self) -> int:
        return self._count

    def search(self, query: Query, count: int, options: SearchOptions) -> BestImages:
        limit = min(len(self), max(count, options.max_scored or CANDIDATES))
        rows = np.arange(len(self)) if limit == len(self) else self.candidates(query.text, limit)
        return ranked_candidates(rows, count, len(self), query.exact_scores)

    def candidates(self, sentence: str, count: int) -> NDArray[np.int64]:
        """Return the rows of the images nearest to a sentence, in ascending order."""
        network = self._retriever.model
        assert isinstance(network, TwoTower)
        batch = collate([Example("", self._retriever.tokenizer.encode(sentence))]).to(device_of(network))
        with torch.inference_mode():
            vector = network.sentence_vector(batch)[0].cpu().numpy()
        probes = {"nprobes": max(1, round(PROBED_SHARE * len(self) ** 0.5)), "refine_factor": REFINE_FACTOR}
        nearest = {"column": "vector", "q": vector, "k": count, "metric": "cosine", **probes}
        with damage_raised_as(lambda reason: SearchIndexError(f"{self._place}: damaged vectors ({reason}); {REBUILD}")):
            if len(self) <= MAX_COMPARED:
                return np.sort(np.argpartition(-(self._vectors @ vector), count - 1)[:count])
            neighbours = self._table.to_table(columns=["row", "_distance"], nearest=nearest)
        return np.sort(neighbours["row"].to_numpy())

    @cached_property
    def _vectors(self) -> NDArray[np.float32]:
        """All vectors, (N, J): reading them takes Lance as long as comparing them once."""
        vectors = self._table.to_table(columns=["vector"])["vector"].combine_chunks()
        values: NDArray[np.float32] = vectors.flatten().to_numpy().reshape(len(self), -1)
        return values


EMBEDDINGS = IndexKind(NAME, lambda model: model.uses_image, partial(_build, None, None), EmbeddingIndex.open)
"""Kind of an index with the vectors of a two-tower model, to open an index; see `embeddings_kind` to build one."""
