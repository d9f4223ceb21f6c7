"""What the index of a collection was made with: the file `index.json`."""

from __future__ import annotations

from pathlib import Path

import xxhash

from limner.bounds import Few, Total
from limner.errors import SearchIndexError
from limner.features.spec import FeatureSpec
from limner.features.store import FeatureStore
from limner.files import write_text
from limner.settings import Settings
from limner.storage.checksums import FileBlocks
from limner.storage.json_text import to_json
from limner.storage.lance_tables import load_record

RECORD = "index.json"
"""File in an index that says what it was made with; it is written last."""
INDEXES = "indexes"
"""Folder of the indexes in a collection."""
ALL, SPLIT = "all", "split-"
"""Name of the folder of an index of all splits, and the beginning of that of one split, in the folder of a model."""
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
    """Digest of what the index is built of besides, such as a two-tower model and its features."""
    images: Total
    """Number of images."""
    files: dict[str, FileBlocks]
    """Size and checksums of each file of the index."""

    @classmethod
    def load(cls, index: Path) -> CollectionIndexRecord:
        """Read the record of an index.

        Raises:
            SearchIndexError: it is missing, damaged, or of another version of Limner.
        """
        return load_record(cls, index / RECORD, VERSION, SearchIndexError, REBUILD)

    def save(self, index: Path) -> None:
        """Write the record; WriteError if it cannot be written."""
        write_text(index / RECORD, to_json(self.model_dump(mode="json"), indent=1) + "\n")

    def require_files(self, index: Path, *, every: bool) -> None:
        """Verify the files of the index: all of each, or its size and a sample of its blocks (`FileBlocks`).

        Raises:
            SearchIndexError: a file is missing or damaged.
        """
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


def index_path(collection: Path, run: Path, split: str | None) -> Path:
    """Return the folder of the index of a model in a collection, named by the run directory and the split.

    Models of equal names have the same folder; the record says of which of them the index is.
    """
    return collection / INDEXES / run.resolve().name / (ALL if split is None else f"{SPLIT}{split}")
