"""One vector for a text or an image."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from limner.inference.new_images import new_item
from limner.models.capabilities import WordEmbeddingModel
from limner.server.errors import InvalidRequestError, NotSupportedError
from limner.server.models import ServedModel


@torch.no_grad()
def embed(served: ServedModel, inputs: Sequence[str | bytes]) -> list[list[float]]:
    """Compute the mean word vector of each text, and the pooled features of each image.

    Raises:
        NotSupportedError: the model has no word vectors, or no features of images.
        InvalidRequestError: a text has no words.
    """
    return [_of_text(served, one) if isinstance(one, str) else _of_image(served, one) for one in inputs]


def _of_text(served: ServedModel, text: str) -> list[float]:
    trained = served.trained()
    if not isinstance(trained.model, WordEmbeddingModel):
        raise NotSupportedError(f"model '{served.name}' has no word vectors; serve another run for embeddings", "model")
    ids = trained.tokenizer.encode(text)
    if not ids:
        raise InvalidRequestError(f"input: expected a text of at least one word, got '{text}'", "input")
    vectors = trained.model.word_vectors()
    return [float(value) for value in vectors[torch.tensor(ids, device=vectors.device)].float().mean(0)]


def _of_image(served: ServedModel, image: bytes) -> list[float]:
    features = served.generator().features_of([image])
    stored = None if features is None else features.take([new_item(image)])[0]
    if stored is None:
        raise NotSupportedError(f"model '{served.name}' reads no images; serve another run for embeddings", "model")
    if (pooled := stored.get("pooled")) is not None:
        return [float(value) for value in pooled]
    if (grid := stored.get("grid")) is None:
        raise NotSupportedError(f"model '{served.name}' has no image vectors; serve another run", "model")
    return [float(value) for value in grid.mean(0, dtype="float32")]
