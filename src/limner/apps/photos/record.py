"""What an index was made with: the file `index.json`, by which an index of another model is refused."""

from __future__ import annotations

from pathlib import Path

import xxhash

from limner.apps.photos.annotations import AnnotationCodec
from limner.bounds import Count, Few
from limner.errors import DamagedIndexError
from limner.features.spec import FeatureSpec
from limner.files import read_bytes, write_text
from limner.inference.captioner import Captioner
from limner.runs.pretrained import is_pretrained, pretrained_run
from limner.runs.trained_model import model_fingerprint
from limner.settings import Settings
from limner.storage.json_text import to_json
from limner.storage.lance_tables import load_record

RECORD = "index.json"
"""File in an index with the settings it was made with."""
BUILT_IN = "built-in:"
"""Beginning of the name of a built-in captioner; its language code follows."""
VERSION = 4
"""Version of the layout of an index."""
REBUILD = "to replace it, run 'limner index' with --rebuild"


class IndexRecord(Settings):
    """Model, features, layout and state of an index."""

    version: Few = VERSION
    """Version of the layout."""
    model: str
    """Run directory of the captioner, or `built-in:LANG`; empty for a model that was not loaded from a folder."""
    name: str
    """Name of the model, for messages."""
    fingerprint: str
    """Digest of the weights, the vocabulary, the settings and the features, which determine scores."""
    concepts: str | None = None
    """Digest of the concepts, which choose captions; null for none."""
    run_digest: str = ""
    """Digest of the files of the run directory; equal files are the same model, which need not be loaded then."""
    lang: str
    """Language of the captions."""
    features: FeatureSpec
    """Features that the annotations were computed of."""
    shape: tuple[Count, ...]
    """Shape of the annotations of an image."""
    vector_dim: Count
    """Size of the vector that similar images are found by."""
    state: str = ""
    """Digest of the parts of both tables after the last update; empty while an update is under way or interrupted."""
    digest: str = ""
    """Digest of all other fields."""

    @classmethod
    def of(cls, captioner: Captioner, codec: AnnotationCodec) -> IndexRecord:
        """Describe a new index of a captioner and its annotations."""
        trained = captioner.models[0]
        return cls(
            model=model_place(captioner),
            name=trained.recipe.description or trained.recipe.model.name,
            fingerprint=model_fingerprint(captioner.models),
            run_digest=captioner_digest(captioner),
            concepts=concepts_digest(captioner),
            lang=trained.recipe.data.lang,
            features=codec.spec,
            shape=codec.shape,
            vector_dim=codec.vector_dim,
        )

    @property
    def updating(self) -> bool:
        """Whether an update is under way or was interrupted."""
        return not self.state

    @property
    def run(self) -> Path:
        """Run directory of the captioner; SettingsError if there is no built-in captioner of the language."""
        built_in, _, lang = self.model.partition(BUILT_IN)
        return Path(self.model) if built_in or not lang else pretrained_run(lang)

    @classmethod
    def load(cls, index: Path) -> IndexRecord:
        """Read the record of an index; FolderError if it is missing, damaged, or of another version of Limner."""
        record = load_record(cls, index / RECORD, VERSION, DamagedIndexError, REBUILD)
        if record.digest != record._digest():
            raise damaged(index, f"{RECORD} does not have its digest")
        return record

    def save(self, index: Path) -> None:
        """Write the record; WriteError if it cannot be written."""
        values = {**self.model_dump(mode="json"), "digest": self._digest()}
        write_text(index / RECORD, to_json(values, indent=1) + "\n")

    def _digest(self) -> str:
        values = self.model_dump(mode="json", exclude={"digest"})
        return xxhash.xxh3_128_hexdigest(to_json(values, sort_keys=True).encode())


def damaged(index: Path, reason: str) -> DamagedIndexError:
    """Return the error of a damaged index."""
    return DamagedIndexError(f"{index}: damaged index ({reason}); {REBUILD}")


def model_place(captioner: Captioner) -> str:
    """Return the run directory of a captioner, or `built-in:LANG`; empty if it was not loaded from a folder."""
    folder = captioner.models[0].folder
    if folder is None:
        return ""
    return f"{BUILT_IN}{folder.name}" if is_pretrained(folder) else str(folder.resolve())


def concepts_digest(captioner: Captioner) -> str | None:
    """Compute a digest of the concepts of a captioner; None if it has none."""
    concepts = captioner.rules.concepts
    if concepts is None:
        return None
    digest = xxhash.xxh3_128(concepts.file.model_dump_json().encode())
    digest.update(concepts.weight.tobytes())
    return digest.hexdigest()


def captioner_digest(captioner: Captioner) -> str:
    """Compute the digest of the run directory of a captioner; empty if it was not loaded from a folder."""
    folder = captioner.models[0].folder
    return "" if folder is None else run_digest(folder)


def run_digest(run: Path) -> str:
    """Compute a digest of the weights, the vocabulary and the settings in a run directory, without loading them."""
    digest = xxhash.xxh3_128()
    for file in sorted(file for file in run.iterdir() if file.suffix in (".json", ".safetensors")):
        contents = read_bytes(file)
        digest.update(f"{file.name}\0{len(contents)}\0".encode() + contents)
    return digest.hexdigest()
