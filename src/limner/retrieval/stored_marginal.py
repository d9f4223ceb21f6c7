"""Marginal probabilities P(w) kept in the run directory, so that they are computed once per model and collection.

A stored file names what it was computed from: the weights of the model, the sentences, the images and their features. A
file of anything else, or a damaged one, is replaced.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from limner.data.examples import Item
from limner.errors import RunError
from limner.features.store import FeatureStore
from limner.models.protocols import Model
from limner.storage.tensors import read_tensors, save_tensors

FOLDER = "marginals"
"""Folder of the files in a run directory."""
_KEY = "origin"
_NAME = "log_marginal"

logger = logging.getLogger(__name__)

Origin = dict[str, str]
"""What a marginal was computed from: a SHA-256 for each part."""


def marginal_path(run: Path, collection: Path, split: str | None) -> Path:
    """Return the file of the marginals of a split of a collection, or of the whole collection, in a run directory."""
    place = json.dumps([str(collection.resolve()), split])
    return run / FOLDER / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.safetensors"


def marginal_origin(
    model: Model, settings: str, targets: Sequence[Sequence[int]], others: Sequence[Item], features: FeatureStore
) -> Origin:
    """Compute the fingerprints of everything that a marginal depends on.

    Args:
        model: model of P(w|I).
        settings: settings of the model in JSON.
        targets: S sentences as token ids.
        others: items of the images of the marginal.
        features: features of the images.
    """
    weights = hashlib.sha256(json.dumps([version("limner"), settings]).encode())
    for name, value in model.state_dict().items():
        content = value.detach().cpu().contiguous()
        weights.update(f"{name} {content.dtype} {tuple(content.shape)} ".encode())
        weights.update(content.view(-1).view(torch.uint8).numpy().data)
    tables = [part for table in features.tables for part in (table.spec.fingerprint, table.digest)]
    return {
        "weights": weights.hexdigest(),
        "sentences": _digest(" ".join(map(str, target)) for target in targets),
        "images": _digest(f"{item.id} {item.media_path}" for item in others),
        "features": _digest(tables),
    }


def stored_log_marginal(path: Path, origin: Origin, sentences: int, compute: Callable[[], Tensor]) -> Tensor:
    """Read log P(w) of each sentence from a file, or compute and store it.

    Args:
        path: file of the marginals.
        origin: what the marginals are computed from.
        sentences: S, the number of sentences.
        compute: function that computes log P(w), (S,).

    Returns:
        Natural logarithms, (S,).
    """
    if path.exists():
        try:
            return _read(path, origin, sentences)
        except RunError as error:
            logger.warning("%s; P(w) is computed again", error)
    marginal = compute()
    try:
        save_tensors(path, {_NAME: marginal}, {_KEY: origin})
    except RunError as error:
        logger.warning("%s; the next search computes P(w) again", error)
    return marginal


def _read(path: Path, origin: Origin, sentences: int) -> Tensor:
    stored = read_tensors(path, remedy="it is replaced")
    known, marginal = stored.facts.get(_KEY), stored.tensors.get(_NAME)
    if not isinstance(known, dict) or marginal is None:
        raise RunError(f"{path}: not written by this version of Limner")
    changed = [part for part in origin if known.get(part) != origin[part]]
    if changed:
        raise RunError(f"{path}: made for other {' and '.join(changed)}")
    if marginal.shape != (sentences,):
        raise RunError(f"{path}: damaged: expected {sentences:,} values, found {marginal.numel():,}")
    return marginal


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\n")
    return digest.hexdigest()
