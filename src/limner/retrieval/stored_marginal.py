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
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from limner.data.examples import Item
from limner.errors import RunError
from limner.features.store import FeatureStore
from limner.files import atomic_write
from limner.models.protocols import Model

FOLDER = "marginals"
"""Folder of the files in a run directory."""
_KEY = "limner.marginal"
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
    tables = [part for table in features.tables for part in (table.spec.fingerprint, *table.data_files())]
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
        except (RunError, OSError) as error:
            logger.warning("%s: %s; P(w) is computed again", path, error)
    marginal = compute()
    try:
        _write(path, origin, marginal)
    except RunError as error:
        logger.warning("%s; the next search computes P(w) again", error)
    return marginal


def _read(path: Path, origin: Origin, sentences: int) -> Tensor:
    data = path.read_bytes()
    try:
        header = int.from_bytes(data[:8], "little")
        stored = json.loads(json.loads(data[8 : 8 + header])["__metadata__"][_KEY])
        known, checksum = stored["origin"], stored["sha256"]
        marginal = load(data)[_NAME]
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise RunError("damaged") from None
    changed = [part for part in origin if known.get(part) != origin[part]]
    if changed:
        raise RunError(f"made for other {' and '.join(changed)}")
    if marginal.shape != (sentences,) or _checksum(marginal) != checksum:
        raise RunError("damaged")
    return marginal


def _write(path: Path, origin: Origin, marginal: Tensor) -> None:
    metadata = {_KEY: json.dumps({"origin": origin, "sha256": _checksum(marginal)})}
    with atomic_write(path) as temporary:
        temporary.write_bytes(save({_NAME: marginal.cpu().contiguous()}, metadata))


def _checksum(values: Tensor) -> str:
    return hashlib.sha256(values.cpu().contiguous().view(torch.uint8).numpy().data).hexdigest()


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\n")
    return digest.hexdigest()
