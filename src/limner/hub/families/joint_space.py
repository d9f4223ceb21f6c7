"""Joint spaces of images and sentences: CLIP (Radford et al., 2021) and SigLIP (Zhai et al., 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from limner.errors import SettingsError
from limner.features.encoders.transformers import hash_files
from limner.hub.inputs import HubPixels, load_part
from limner.hub.networks import HubModel
from limner.layers.functional import require_numbers
from limner.media.image import ImageInput

Vectors = NDArray[np.float32]


class Match(NamedTuple):
    """How well a sentence describes an image."""

    score: float
    """Score of the model: exp(s) cos + b."""
    clip_score: float
    """2.5 max(cos, 0); of CLIP with "A photo depicts " before the sentence, CLIPScore of Hessel et al. (2021)."""


class HubSpace(HubModel):
    """Two towers that a folder of images is searched by, in place of `ImageSearcher`.

    Attributes:
        digest: SHA-256 of the weights, which identify the vectors.
        space: folder of the model, as an index records it.
        read: opens an image, and returns the input of the network, (3, H, W); MediaError if it cannot be read.
    """

    model_types, task, kind, side = ("clip", "siglip"), "match", "AutoModel", 0

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        super().__init__(folder, device)
        self.tokenizer, self.read = load_part(folder, "AutoTokenizer"), HubPixels(folder).read
        self.space, self.digest = str(folder.resolve()), hash_files(sorted(folder.glob("*.safetensors")))
        bias = getattr(self.network, "logit_bias", None)
        self._scale, self._bias = self.network.logit_scale.exp().item(), 0.0 if bias is None else bias.item()

    @cached_property
    def vector_dim(self) -> int:
        """Size J of the vectors."""
        return len(self._sentence("a"))

    def features_of(self, images: Sequence[Any]) -> list[dict[str, Vectors]]:
        """Compute the vectors of images, as `read` returns them; RunError if one has NaN."""
        with torch.no_grad():
            output = self.network.get_image_features(torch.from_numpy(np.stack(images)).to(self.device))
        require_numbers(output.pooler_output, "vectors of images")
        return [{"pooled": vector} for vector in _unit(output.pooler_output)]

    def vector_of(self, features: Any) -> Vectors:  # noqa: ANN401
        """Return the vector of an image, (J,)."""
        return np.asarray(features["pooled"])

    def project(self, vectors: NDArray[np.floating[Any]]) -> Vectors:
        """Return stored vectors (N, J), of unit length."""
        return _unit(torch.from_numpy(vectors.astype(np.float32)))

    def scores(self, sentence: str, vectors: NDArray[np.floating[Any]], projected: Vectors) -> Vectors:
        """Compute the score of a sentence and each image, (N,); SettingsError for a sentence without words."""
        return np.asarray(self._scale * (projected @ self._sentence(sentence)) + self._bias, np.float32)

    def match(self, images: Sequence[ImageInput], sentences: Sequence[str]) -> list[Match]:
        """Compute the score of each sentence and the image at its position; MediaError if an image cannot be read."""
        vectors = [self.vector_of(self.features_of([self.read(image)])[0]) for image in images]
        prompt = "A photo depicts " if self.config.model_type == "clip" else ""
        matches = []
        for vector, text in zip(vectors, sentences, strict=True):
            cosine, prompted = (float(vector @ self._sentence(start + text)) for start in ("", prompt))
            matches.append(Match(self._scale * cosine + self._bias, 2.5 * max(prompted, 0.0)))
        return matches

    @torch.no_grad()
    def _sentence(self, text: str) -> Vectors:
        """Compute the vector of a sentence, (J,); SigLIP pads it to the length of its training, without a mask."""
        if not text.strip():
            raise SettingsError("the sentence has no words; describe an image, such as 'a dog on the beach'")
        is_siglip, longest = self.config.model_type == "siglip", self.config.text_config.max_position_embeddings
        padding = "max_length" if is_siglip else True
        batch = self.tokenizer([text], padding=padding, truncation=True, max_length=longest, return_tensors="pt")
        mask = None if is_siglip else batch["attention_mask"].to(self.device)
        output = self.network.get_text_features(batch["input_ids"].to(self.device), attention_mask=mask)
        return np.asarray(_unit(output.pooler_output)[0])


def _unit(vectors: torch.Tensor) -> Vectors:
    return np.asarray(normalize(vectors.float(), dim=-1).cpu().numpy())


FAMILY = HubSpace
