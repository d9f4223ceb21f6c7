"""Digest of trained models, by which what was computed with other weights is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import xxhash
from torch import nn

from limner.runs.trained_model import TrainedModel
from limner.storage.json_text import to_json


def model_fingerprint(models: Sequence[TrainedModel]) -> str:
    """Compute a digest of the weights, the vocabulary, the settings and the features of a model or an ensemble."""
    digest = xxhash.xxh3_128()
    for trained in models:
        digest.update(to_json(trained.config.digests(), sort_keys=True).encode())
        for name, values in sorted(cast(nn.Module, trained.model).state_dict().items()):
            digest.update(name.encode())
            digest.update(values.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
