"""What an index was made with, by which an index of another model is refused, and what it stores of an image.

It stores annotations that the captioner computes of the features, in fewer places: a grid of 100 locations with 1,280
features each takes 256 KB in float16. A model with a projection reads the projected features only, and a coarser grid
of them: see docs/folders.md for what that costs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
import xxhash
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from limner.bounds import Count, Few
from limner.data.examples import Item, StoredFeatures
from limner.errors import DamagedIndexError, FeatureError
from limner.features.spec import FeatureArray, FeatureKind, FeatureSpec
from limner.files import read_bytes, write_text
from limner.inference.captioner import Captioner
from limner.layers.image_encoder import GridEncoder, ImageEncoder, mean_over_locations, project, scale
from limner.models import Model
from limner.runs.pretrained import is_pretrained, pretrained_run
from limner.runs.trained_model import TrainedModel, model_fingerprint
from limner.settings import Settings
from limner.storage.json_text import to_json
from limner.storage.lance_tables import load_record

GRID_SIDE = 5
"""Rows and columns of the stored annotations, at most."""
VECTOR_SIDE = 8
"""Rows and columns of the maps that similar images are found by, at most."""


class AnnotationCodec:
    """Computes the stored annotations and the vectors of images, and holds the model that reads the annotations."""

    def __init__(self, trained: TrainedModel, grid_side: int = GRID_SIDE) -> None:
        """Prepare the annotations of a model.

        Args:
            trained: captioning model with features of images.
            grid_side: rows and columns of the stored annotations of a grid, at most.

        Raises:
            FeatureError: the model reads no features of images, or several kinds at once.
        """
        encoders = [m for m in cast(nn.Module, trained.model).modules() if isinstance(m, ImageEncoder | GridEncoder)]
        if len(encoders) != 1 or not trained.model.uses_image:
            raise FeatureError(
                f"model '{trained.recipe.model.name}': expected a captioner with one image encoder for an index of "
                "images; use a model that describes images, such as the built-in captioner"
            )
        self._encoder = encoders[0]
        self.spec: FeatureSpec = next(spec for spec in trained.config.features if spec.kind == self._encoder.kind)
        self._grid_side, self._model = grid_side, trained.model
        self._reader: Model | None = None
        with torch.inference_mode():
            blank = torch.zeros(1, *self.spec.shape)
            self.shape: tuple[int, ...] = tuple(self._annotations(blank).shape[1:])
            self.vector_dim: int = self._vectors(blank).shape[1]

    @property
    def _projects(self) -> bool:
        """Whether the projection is applied before storing; an encoder that averages a grid projects the mean."""
        return isinstance(self._encoder, GridEncoder) or self._encoder.kind == "pooled"

    @property
    def reader(self) -> Model:
        """A copy of the model whose image encoder reads stored annotations."""
        if self._reader is None:
            self._reader = copy.deepcopy(self._model)
            for module in cast(nn.Module, self._reader).modules():
                if isinstance(module, ImageEncoder | GridEncoder) and self._projects:
                    module.settings = module.settings.model_copy(update={"scaling": "none"})
                    module.projection = None
        return self._reader

    @torch.inference_mode()
    def encode(self, features: Mapping[FeatureKind, FeatureArray]) -> tuple[FeatureArray, FeatureArray]:
        """Compute what is stored of B images.

        Args:
            features: features of the backbone by kind, each (B, ...).

        Returns:
            Annotations (B, *shape), and the pooled features (B, vector_dim), by which similar images are found.
        """
        device = next(iter(self._model.state_dict().values())).device
        stored = torch.from_numpy(features[self.spec.kind]).float().to(device)
        annotations, vectors = self._annotations(stored), self._vectors(stored)
        return annotations.cpu().numpy().astype(np.float16), vectors.cpu().numpy().astype(np.float16)

    def _annotations(self, stored: Tensor) -> Tensor:
        kind = self._encoder.kind
        if kind == "maps":
            return stored
        if kind == "grid" and not self._projects and self._encoder.grid_rnn is None:
            return mean_over_locations(stored)[:, None]  # all that the encoder reads of it
        if self._projects:
            stored = project(scale(stored, self._encoder.settings.scaling), self._encoder.projection)
        size = self.spec.grid_size
        if kind != "grid" or size is None or max(size) <= self._grid_side:
            return stored
        side = (min(size[0], self._grid_side), min(size[1], self._grid_side))
        maps = stored.transpose(1, 2).reshape(len(stored), -1, *size)  # (B, D, H, W)
        return adaptive_avg_pool2d(maps, side).flatten(2).transpose(1, 2)

    def _vectors(self, stored: Tensor) -> Tensor:
        if stored.ndim == 3:
            stored = mean_over_locations(stored)
        elif stored.ndim == 4:
            size = (min(stored.shape[2], VECTOR_SIDE), min(stored.shape[3], VECTOR_SIDE))
            stored = adaptive_avg_pool2d(stored, size).flatten(1)
        return stored


class StoredAnnotations:
    """Annotations of an index as the features of items, whose ids are the numbers of the rows; a `FeatureSource`."""

    def __init__(self, kind: str, values: FeatureArray) -> None:
        """Provide the annotations (N, *shape) of N images as features of a kind."""
        self._kind, self._values = kind, values

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Return the annotations of items."""
        return [{self._kind: self._values[int(item.id)]} for item in items]


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
