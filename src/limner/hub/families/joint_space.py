"""Joint spaces of images and sentences: CLIP (Radford et al., 2021), SigLIP (Zhai et al., 2023), and their kin."""

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
from limner.generation.sentences import images_of_sentences
from limner.hub.inputs import HubPixels, load_part
from limner.hub.networks import DEFAULTS, HubModel
from limner.hub.settings import HubSettings
from limner.layers.functional import require_numbers
from limner.media.image import ImageInputs
from limner.progress import Progress

Vectors = NDArray[np.float32]
CLIP_PROMPT = "A photo depicts "
BATCH_SIZE = 32
"""Sentences that are encoded together."""


class Match(NamedTuple):
    """How well a sentence describes an image."""

    score: float
    """Score of the model: exp(s) cos + b."""
    clip_score: float
    """2.5 max(cos, 0); of CLIP with `CLIP_PROMPT` before the sentence, CLIPScore of Hessel et al. (2021)."""


class HubSpace(HubModel):
    """Two towers that a folder of images is searched by, in place of `ImageSearcher`.

    Attributes:
        digest: SHA-256 of the weights, which identify the vectors.
        space: folder of the model, as an index records it.
        read: opens an image, and returns the input of the network, (3, H, W), or the image, (H, W, 3), of a network
            that keeps its proportions; MediaError if it cannot be read.
    """

    model_types = ("chinese_clip", "clip", "metaclip_2", "siglip", "siglip2")
    task, kind, side = "match", "AutoModel", 0

    def __init__(self, folder: Path, device: str = "cpu", settings: HubSettings = DEFAULTS) -> None:
        super().__init__(folder, device, settings)
        self.tokenizer, self._processor = load_part(folder, "AutoTokenizer"), None
        if self.config.model_type == "siglip2":
            self._processor = load_part(folder, "AutoImageProcessor", backend="pil")
        self.read = HubPixels(folder if self._processor is None else None).read
        self.space, self.digest = str(folder.resolve()), hash_files(sorted(folder.glob("*.safetensors")))
        bias = getattr(self.network, "logit_bias", None)
        self._scale, self._bias = self.network.logit_scale.exp().item(), 0.0 if bias is None else bias.item()

    @property
    def signature(self) -> str:
        """Name and settings of `Match.clip_score`, which is the published one where the prompt is read."""
        return f"clip_score|w:2.5{'' if self.config.model_type == 'clip' else '|prompt:none'}"

    @cached_property
    def vector_dim(self) -> int:
        """Size J of the vectors."""
        return int(self.sentence_vectors(["a"]).shape[1])

    def features_of(self, images: Sequence[Any]) -> list[dict[str, Vectors]]:
        """Compute the vectors of images, as `read` returns them; RunError if one has NaN."""
        if self._processor is None:
            inputs = {"pixel_values": torch.from_numpy(np.stack(images))}
        else:
            inputs = self._processor([*images], return_tensors="pt")
        with torch.no_grad():
            output = self.network.get_image_features(**self.to_device(inputs))
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
        return np.asarray(self._scale * (projected @ self.sentence_vectors([sentence])[0]) + self._bias, np.float32)

    def similarities(self, vector: Vectors, vectors: NDArray[np.floating[Any]], projected: Vectors) -> Vectors:
        """Compute the cosine of an image and each image, (N,)."""
        return np.asarray(projected @ self.project(vector[None])[0], np.float32)

    def score(self, images: ImageInputs, sentences: Sequence[str], on_progress: Progress | None = None) -> list[Match]:
        """Compute the score of each sentence and its image; one image is the image of all; MediaError if unreadable."""
        inputs = images_of_sentences(sentences, images)
        known: dict[int, Vectors] = {}
        for done, image in enumerate(inputs, 1):
            if id(image) not in known:
                known[id(image)] = self.vector_of(self.features_of([self.read(image)])[0])
            if on_progress is not None:
                on_progress(done, len(inputs))
        vectors = np.stack([known[id(image)] for image in inputs])
        prompt = CLIP_PROMPT if self.config.model_type == "clip" else ""
        cosines = (vectors * self.sentence_vectors(sentences)).sum(1)
        prompted = (vectors * self.sentence_vectors([prompt + text for text in sentences])).sum(1)
        scores = zip(self._scale * cosines + self._bias, 2.5 * prompted.clip(min=0), strict=True)
        return [Match(*map(float, pair)) for pair in scores]

    @torch.no_grad()
    def sentence_vectors(self, sentences: Sequence[str]) -> Vectors:
        """Compute the vectors of sentences, (N, J), for SigLIP padded without a mask; SettingsError for no words."""
        if not all(text.strip() for text in sentences):
            raise SettingsError("the sentence has no words; describe an image, such as 'a dog on the beach'")
        is_siglip = self.config.model_type.startswith("siglip")
        options = {"padding": "max_length" if is_siglip else True, "truncation": True, "return_tensors": "pt"}
        options["max_length"], vectors = self.config.text_config.max_position_embeddings, []
        for begin in range(0, len(sentences), BATCH_SIZE):
            batch = self.tokenizer([*sentences[begin : begin + BATCH_SIZE]], **options)
            mask = None if is_siglip else batch["attention_mask"].to(self.device)
            output = self.network.get_text_features(batch["input_ids"].to(self.device), attention_mask=mask)
            vectors.append(_unit(output.pooler_output))
        return np.concatenate(vectors)


def _unit(vectors: torch.Tensor) -> Vectors:
    return np.asarray(normalize(vectors.float(), dim=-1).cpu().numpy())
