"""What the index of a collection was made with: the file `index.json`."""

from __future__ import annotations

from pathlib import Path

import xxhash

from limner.bounds import Few, Total
from limner.errors import SearchIndexError, SettingsError
from limner.features.spec import FeatureSpec
from limner.features.store import FeatureStore
from limner.files import open_file, write_text
from limner.files.structured import read_json_file
from limner.settings import Settings
from limner.storage.json_text import to_json

RECORD = "index.json"
"""File in an index that says what it was made with; it is written last."""
INDEXES = "indexes"
"""Folder of the indexes in a collection."""
VERSION = 1
"""Version of the layout of an index."""
REBUILD = "to replace it, run 'limner index' with --rebuild; to search without it, add --exact"
_BLOCK = 1 << 24


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
    checksums: dict[str, str]
    """Checksum of each file of the index."""

    @classmethod
    def load(cls, index: Path) -> CollectionIndexRecord:
        """Read the record of an index.

        Raises:
            SearchIndexError: it is missing, damaged, or of another version of Limner.
        """
        file = index / RECORD
        try:
            values = read_json_file(file)
            if isinstance(values, dict) and values.get("version") != VERSION:
                raise SearchIndexError(
                    f"{file}: expected an index of version {VERSION}, found {values.get('version')}; {REBUILD}"
                )
            return cls.parse(values)
        except FileNotFoundError:
            raise SearchIndexError(f"{index}: expected an index, found no {RECORD}; {REBUILD}") from None
        except (OSError, ValueError, TypeError, SettingsError) as error:
            reason = str(error).partition("\n")[0]
            raise SearchIndexError(f"{file}: damaged record of an index ({reason}); {REBUILD}") from None

    def save(self, index: Path) -> None:
        """Write the record; WriteError if it cannot be written."""
        write_text(index / RECORD, to_json(self.model_dump(mode="json"), indent=1) + "\n")

    def require_files(self, index: Path) -> None:
        """Verify the checksums of all files.

        Raises:
            SearchIndexError: a file is missing or damaged.
        """
        for name, expected in self.checksums.items():
            try:
                found = file_checksum(index / name)
            except OSError as error:
                raise SearchIndexError(f"{index / name}: cannot be read ({error.strerror}); {REBUILD}") from None
            if found != expected:
                raise SearchIndexError(f"{index / name}: damaged: it does not have its checksum; {REBUILD}")


def features_digest(features: FeatureStore) -> str:
    """Compute a digest of the stored features of all items, whatever the files that hold them."""
    digest = xxhash.xxh3_128()
    for table in features.tables:
        digest.update(f"{table.spec.fingerprint}\n{table.digest}\n".encode())
    return digest.hexdigest()


def file_checksum(path: Path) -> str:
    """Compute the checksum of a file; OSError if it cannot be read."""
    digest = xxhash.xxh3_128()
    with open_file(path) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def index_path(collection: Path, run: Path, split: str | None) -> Path:
    """Return the folder of the index of a model in a collection, named by the run directory and the split."""
    name = run.resolve().name
    return collection / INDEXES / (name if split is None else f"{name}.{split}")
