"""The kinds of indexes, and the choice of a kind by the capabilities of a model."""

from __future__ import annotations

from limner.errors import SettingsError
from limner.retrieval.index.embeddings import embeddings_of
from limner.retrieval.index.estimated import EXPANSIONS
from limner.retrieval.index.protocol import IndexKind
from limner.retrieval.index.tangents import TANGENTS
from limner.runs.trained_model import TrainedModel

KINDS: tuple[IndexKind, ...] = (TANGENTS, EXPANSIONS, embeddings_of(None, None))
"""All kinds; a model gets the first that supports it, and the last only with a two-tower model."""


def kind_for(model: TrainedModel) -> IndexKind:
    """Return the kind of index for a model.

    Raises:
        SettingsError: no kind supports the model.
    """
    for kind in KINDS[:-1]:
        if kind.supports(model.model):
            return kind
    raise SettingsError(
        f"model '{model.recipe.model.name}': no index supports it, as it does not caption images by gradient-based "
        "probabilities; use a captioning model, or search without an index, which scores all images"
    )
