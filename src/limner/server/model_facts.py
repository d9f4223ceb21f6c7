"""Facts about a served model that other programs list: size, digest, kind."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import cache
from typing import NamedTuple

from limner.models.capabilities import WordEmbeddingModel
from limner.server.models import ServedModel
from limner.storage.json_text import to_json

_UNITS = ((10**9, "B"), (10**6, "M"), (10**3, "K"))


class ModelFacts(NamedTuple):
    """Facts about a served model."""

    architecture: str
    """Name of the model in its recipe."""
    parameters: int
    """Number of parameters, of all languages and all models of an ensemble, without the backbone."""
    size: int
    """Size of the parameters in bytes."""
    vocabulary: int
    """Number of tokens of the default language."""
    max_length: int
    """Largest number of tokens of a generated sentence."""
    digest: str
    """SHA-256 of the settings and vocabularies."""
    has_word_vectors: bool

    @property
    def parameter_size(self) -> str:
        """Number of parameters, such as 4.1M."""
        for size, unit in _UNITS:
            if self.parameters >= size:
                return f"{self.parameters / size:.1f}{unit}"
        return str(self.parameters)


@cache
def facts_of(served: ServedModel) -> ModelFacts:
    """Return the facts about a served model."""
    trained = [model for generator in served.by_lang.values() for model in generator.models]
    parameters = [one for model in trained for one in model.model.parameters()]
    first = trained[0]
    digests = [[served.created, model.config.digests()] for model in trained]
    return ModelFacts(
        first.recipe.model.name,
        sum(one.numel() for one in parameters),
        sum(one.numel() * one.element_size() for one in parameters),
        len(first.tokenizer),
        first.recipe.decoding.max_length,
        hashlib.sha256(to_json(digests, sort_keys=True).encode()).hexdigest(),
        isinstance(first.model, WordEmbeddingModel),
    )


def rfc3339(seconds: float | None = None) -> str:
    """Return a time in seconds since 1970, by default now, as other programs write it."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
