"""Joint spaces of the hub: scores of sentences for images, and the search of images by sentences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from limner.errors import RunError, SettingsError
from limner.features.encoders.transformers import hash_files
from limner.hub.families import family_of
from limner.hub.generators import HubPixels, load_part
from limner.layers.functional import require_numbers
from limner.media.image import ImageInput

Vectors = NDArray[np.float32]


class Match(NamedTuple):
    """How well a sentence describes an image."""

    score: float
    """Score of the model: exp(s) cos + b."""
    clip_score: float
    """2.5 max(cos, 0), Hessel et al. (2021)."""


class HubSpace:
    """A joint space: what a search of a folder needs in place of `ImageSearcher`.

    Attributes:
        digest: SHA-256 of the weights, which identify the vectors.
        vector_dim: size J of the vectors.
        space: folder of the model, as an index records it.
    """

    side = 0

    def __init__(self, folder: Path, network: Any) -> None:  # noqa: ANN401  (of a family that is looked up)
        """Take a loaded network, and read its tokenizer and its preprocessing; BackboneError if it cannot."""
        self.space, self._network = str(folder.resolve()), network
        self.tokenizer = load_part(folder, "AutoTokenizer")
        self.read = HubPixels(folder).read
        self.digest = hash_files(sorted(folder.glob("*.safetensors")))

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> Self:
        """Load a folder.

        Raises:
            RunError: the model is not a joint space.
            BackboneError: a file is missing or damaged, or refers to code.
            ResourceError: there is not enough memory.
        """
        family = family_of(folder)
        if family.task != "match":
            raise RunError(f"{folder}: expected a joint space of images and sentences, such as CLIP or SigLIP")
        return cls(folder, family.load(folder, device))

    @cached_property
    def vector_dim(self) -> int:
        """Size J of the vectors."""
        return len(self._sentence("a"))

    def features_of(self, images: Sequence[Any]) -> list[dict[str, Vectors]]:
        """Compute the vectors of images, as `read` returns them; RunError if one has NaN."""
        with torch.no_grad():
            result = self._network.image_vectors(torch.from_numpy(np.stack(images)))
        require_numbers(result, "vectors of images")
        return [{"pooled": vector} for vector in _unit(result).cpu().numpy()]

    def vector_of(self, features: Any) -> Vectors:  # noqa: ANN401
        """Return the vector of an image, (J,)."""
        return np.asarray(features["pooled"])

    def project(self, vectors: NDArray[np.floating[Any]]) -> Vectors:
        """Return stored vectors (N, J), of unit length."""
        return _unit(torch.from_numpy(vectors.astype(np.float32))).numpy()

    def scores(self, sentence: str, vectors: NDArray[np.floating[Any]], projected: Vectors) -> Vectors:
        """Compute the score of a sentence and each image, (N,); SettingsError for a sentence without words."""
        if not sentence.strip():
            raise SettingsError("the query has no words; describe an image, such as 'a dog on the beach'")
        scale, bias = self._network.scale
        return np.asarray(scale * (projected @ self._sentence(sentence)) + bias, np.float32)

    def match(self, images: Sequence[ImageInput], sentences: Sequence[str]) -> list[Match]:
        """Compute the score of each sentence and the image at its position; MediaError if an image cannot be read."""
        scale, bias = self._network.scale
        cosines = [
            float(self.vector_of(self.features_of([self.read(image)])[0]) @ self._sentence(text))
            for image, text in zip(images, sentences, strict=True)
        ]
        return [Match(scale * cosine + bias, 2.5 * max(cosine, 0.0)) for cosine in cosines]

    @torch.no_grad()
    def _sentence(self, text: str) -> Vectors:
        return np.asarray(_unit(self._network.sentence_vectors(self.tokenizer, [text]))[0].cpu().numpy())


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(vectors.float(), dim=-1)
