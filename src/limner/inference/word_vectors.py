"""Nearest neighbours among the word vectors of a model."""

from __future__ import annotations

import torch

from limner.errors import SettingsError
from limner.layers.functional import require_numbers
from limner.models.capabilities import WordEmbeddingModel
from limner.runs.trained_model import TrainedModel
from limner.text.vocab import SPECIAL_TOKENS

WITHOUT_VECTORS = "name a run of a model that has them, such as 'mrnn', 'lbl' or 'show_and_tell'"
"""What to do about a model without word vectors."""


def nearest_words(model: TrainedModel, word: str, count: int = 10) -> list[tuple[str, float]]:
    """Return the words with the nearest vectors and their Euclidean distances, nearest first.

    Args:
        model: trained model with word vectors.
        word: word of its vocabulary.
        count: number of neighbours.

    Raises:
        SettingsError: the model has no word vectors, or the word is not in its vocabulary.
        RunError: a distance is NaN.
    """
    network, entries = model.model, model.tokenizer.entries
    if not isinstance(network, WordEmbeddingModel):
        raise SettingsError(f"model '{model.recipe.model.name}' has no word vectors; {WITHOUT_VECTORS}")
    normalised = model.tokenizer.words(word)  # lowercased where the vocabulary is
    if len(normalised) == 1:
        word = normalised[0]
    if word not in entries:
        raise SettingsError(
            f"'{word}' is not among the {len(entries)} words of the vocabulary: it occurs in the training sentences "
            "too seldom or not at all; use another word"
        )
    with torch.inference_mode():
        vectors = network.word_vectors().double()  # (V, D); squares of float32 do not overflow
        row = entries.index(word)
        distances = torch.linalg.vector_norm(vectors - vectors[row], dim=1)
        require_numbers(distances, "word vectors")
        distances[[*SPECIAL_TOKENS, row]] = torch.inf
    nearest = distances.topk(min(count, len(entries) - len(SPECIAL_TOKENS) - 1), largest=False)
    return [(entries[k], d) for d, k in zip(nearest.values.tolist(), nearest.indices.tolist(), strict=True)]
