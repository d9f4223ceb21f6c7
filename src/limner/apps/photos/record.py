"""The record of an index, by which an index of another captioner is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import xxhash

from limner.bounds import Count, Few
from limner.errors import DamagedIndexError
from limner.files import open_file, write_text
from limner.generation.captioning import BaseCaptioner
from limner.inference.image_searcher import Searcher
from limner.runs.pretrained import DEFAULT_LANG, is_pretrained
from limner.settings import Settings
from limner.storage.json_text import to_json
from limner.storage.places import load_record

RECORD = "index.json"
"""File of an index with its record."""
_BLOCK = 1 << 20
VERSION = 5
"""Version of the layout of an index."""
REBUILD = "to replace it, run 'limner index' with --rebuild"


class IndexRecord(Settings):
    """Model, features, layout and state of an index."""

    version: Few = VERSION
    """Version of the layout."""
    model: str
    """Run directory of the captioner, or `built-in:LANG`; empty for a model that was not loaded from a folder."""
    captioner: str
    """Digest of the files of the run directory; empty for a model that was not loaded from a folder."""
    lang: str
    """Language of the captions, and of the queries."""
    features: str
    """SHA-256 of the weights of the backbone of the searched features."""
    vector_dim: Count
    """Size of the pooled features of an image."""
    space: str = ""
    """Folder of the joint space of the hub whose vectors are searched; empty for the built-in search."""
    state: str = ""
    """Digest of the parts of both tables after the last update; empty while an update is under way or interrupted."""
    digest: str = ""
    """Digest of all other fields."""

    @classmethod
    def from_captioner(cls, captioner: BaseCaptioner, searcher: Searcher) -> IndexRecord:
        """Create the record of a new index, from its captioner and the searcher that computes the features."""
        model, folder = "", captioner.folder
        if folder is not None:
            model = f"built-in:{folder.name}" if is_pretrained(folder) else str(folder.resolve())
        return cls(
            model=model,
            captioner=run_digest(captioner.folder, captioner.changed),
            lang=captioner.lang,
            features=searcher.digest,
            vector_dim=searcher.vector_dim,
            space=searcher.space,
        )

    @property
    def options(self) -> str:
        """Options of 'limner index' that name the captioner; empty for the built-in English captioner."""
        if not self.model.startswith("built-in:"):
            return f" --model {self.model}" if self.model else ""
        return f" --lang {self.lang}" if self.lang != DEFAULT_LANG else ""

    @property
    def updating(self) -> bool:
        """Whether an update is under way or was interrupted."""
        return not self.state

    @classmethod
    def load(cls, index: Path) -> IndexRecord:
        """Read the record of an index; FolderError if it is missing, damaged, or of another version of Limner."""
        record = load_record(cls, index / RECORD, VERSION, DamagedIndexError, REBUILD)
        if record.digest != record._digest():
            raise damaged_error(index, f"{RECORD} does not have its digest")
        return record

    def save(self, index: Path) -> None:
        """Write the record; WriteError if it cannot be written."""
        values = {**self.model_dump(mode="json"), "digest": self._digest()}
        write_text(index / RECORD, to_json(values, indent=1) + "\n")

    def _digest(self) -> str:
        values = self.model_dump(mode="json", exclude={"digest"} if self.space else {"digest", "space"})
        return xxhash.xxh3_128_hexdigest(to_json(values, sort_keys=True).encode())


def damaged_error(index: Path, reason: str) -> DamagedIndexError:
    """Return the error of a damaged index."""
    return DamagedIndexError(f"{index}: damaged index ({reason}); {REBUILD}")


def run_digest(run: Path | None, changed: Sequence[str] = ()) -> str:
    """Compute a digest of the weights, the vocabulary and the settings in a run directory; empty for None.

    `changed` are settings with which a model was loaded (`BaseCaptioner.changed`).
    """
    digest = xxhash.xxh3_128("|".join(changed).encode())
    if run is None:
        return ""
    for file in sorted(file for file in run.iterdir() if file.suffix in (".json", ".safetensors", ".onnx")):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with open_file(file) as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()
