"""Tensors in safetensors files with a checksum in their header, verified when a file is read.

The header has one entry `limner`, a JSON object with the checksum of names, types, shapes, values and facts; a single
entry because safetensors writes several in random order. Files of other programs have no checksum; their values are
only required to be finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from limner.errors import LimnerError, RunError, system_reason
from limner.files import atomic_write, require_regular
from limner.files.structured import parse_json
from limner.storage.json_text import to_json

_ENTRY = "limner"
RESTORE = "restore the file or train again"
"""Remedy for damaged weights of a trained model."""


class TensorFile(NamedTuple):
    """Contents of a safetensors file."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    """Metadata written with the tensors."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any] | None = None) -> None:
    """Write tensors, their checksum and plain facts to a safetensors file atomically, or raise RunError."""
    stored = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    record = {"checksum": _checksum(stored, facts or {}), **(facts or {})}
    with atomic_write(path, SafetensorError) as beside:
        save_file(stored, beside, metadata={_ENTRY: to_json(record)})
        beside.chmod(0o644)  # safetensors creates files that only their owner may read


def read_tensors(path: Path, error_type: type[LimnerError] = RunError, remedy: str = RESTORE) -> TensorFile:
    """Read safetensors and verify the checksum; `error_type` for damage, NaN or infinity."""
    try:
        require_regular(path)
        with safe_open(path, framework="pt") as stored:
            metadata = dict(stored.metadata() or {})
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (not a dict)
        facts = dict(parse_json(metadata.get(_ENTRY, "{}")))
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise error_type(f"{path}: missing or damaged ({system_reason(error)}); {remedy}") from None
    expected = facts.pop("checksum", None)
    if expected is not None and expected != _checksum(tensors, facts):
        raise error_type(f"{path}: damaged: its values do not have the checksum in its header; {remedy}")
    require_finite(tensors, str(path), error_type, remedy)
    return TensorFile(tensors, facts)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file by name; RunError if it is missing or damaged, or not all values are finite."""
    return read_tensors(path).tensors


def require_finite(
    tensors: Mapping[str, Tensor], where: str, error_type: type[LimnerError] = RunError, remedy: str = RESTORE
) -> None:
    """Check that tensors contain neither NaN nor infinity; the error names the first tensor that does."""
    for name, values in tensors.items():
        if not values.is_floating_point() or not values.numel():
            continue
        low, high = values.aminmax()  # NaN propagates
        if not (torch.isfinite(low) and torch.isfinite(high)):
            count = int((~torch.isfinite(values)).sum())
            raise error_type(
                f"{where}: tensor '{name}' has {count:,} of {values.numel():,} values that are not finite (NaN or "
                f"infinity); {remedy}"
            )


def _checksum(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    """Compute the checksum of tensors and facts, independent of the order of the tensors."""
    digest = xxhash.xxh3_128(to_json(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        values = tensors[name]
        digest.update(f"\0{name} {values.dtype} {tuple(values.shape)}\0".encode())
        if values.numel():
            digest.update(values.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
