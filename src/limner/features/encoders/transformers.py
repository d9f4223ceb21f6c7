"""Networks in the format of the transformers library, from a folder or the Hugging Face Hub."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from limner.errors import BackboneError, did_you_mean
from limner.features.encoders.network import PretrainedNetwork
from limner.features.preprocessing import Preprocessing, parse_processor_config
from limner.files import open_file
from limner.files.structured import read_json_file

logger = logging.getLogger(__name__)

_ATTENTION = ("eager", "sdpa")
"""Attention implementations that are part of transformers and PyTorch."""

MAX_LAYERS = 1000
"""Maximum number of layers of a network: the largest vision networks have less than a hundred."""

_FAMILIAR = (
    *(f"efficientnet-lite{n}" for n in range(3)),
    "pixels:64",
    "logmel",
    "vgg16:FILE",
    "vgg19:FILE",
    "alexnet:FILE",
    "kmeans:FILE",
    "google/mobilenet_v2_1.0_224",
    "microsoft/resnet-50",
)
"""Names of backbones to suggest for a name that the hub does not have."""

_CONFIG_FILES = (
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "image_processor_config.json",
    "video_preprocessor_config.json",
    "feature_extractor_config.json",
    "tokenizer_config.json",
    "generation_config.json",
)

# res4f is the last block of the third stage of a ResNet-50: 14 x 14 x 1024.
_RESNET_LAYERS = {f"res{n + 2}{last}": f"encoder.stages.{n}" for n, last in enumerate("cdfc")}


def load_pretrained(name: str) -> PretrainedNetwork:
    """Load a network, its preprocessing and the names of its layers from a folder of transformers, or from the hub.

    Raises:
        BackboneError: the network cannot be found or loaded, or its folder refers to Python code.
    """
    folder = find_folder(name)
    module, trained_pooler = _load_module(name, folder)
    return PretrainedNetwork(
        name=Path(name).resolve().name,
        module=module,
        preprocessing=_read_preprocessing(folder),
        weights_sha256=hash_files(sorted(folder.glob("*.safetensors"))),
        source=str(Path(name).resolve()) if Path(name).is_dir() else name,
        layer_names=_RESNET_LAYERS,
        trained_pooler=trained_pooler,
    )


def find_folder(name: str) -> Path:
    """Find the folder of a network, from the hub if need be; BackboneError without a folder, or with code."""
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
            raise BackboneError(f"{folder}: no network in this folder; expected config.json and *.safetensors files")
    elif name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise BackboneError(f"{name}: no such folder; expected a folder with config.json and *.safetensors files")
    else:
        folder = download(name)
    require_safe(name, folder)
    return folder


def download(
    name: str,
    revision: str | None = None,
    patterns: Sequence[str] = ("*.json", "*.safetensors"),
    remedy: str = "give a local folder, or 'pixels' to train without a pre-trained network",
) -> Path:
    """Return the folder of a network of the hub, whose name is the commit; files that are missing are downloaded.

    Raises:
        BackboneError: the hub has no such network, cannot be reached, or has no weights in safetensors.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=[*patterns]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BackboneError(
            f"{name}: not a local folder, and not available from the hub ({reason}); {remedy}"
            f"{did_you_mean(name, _FAMILIAR)}"
        ) from None
    if not any(folder.glob("*.safetensors")):
        raise BackboneError(f"{name}: the hub has no *.safetensors weights of this network; other formats are unsafe")
    return folder


def require_safe(name: str, folder: Path) -> None:
    """Check a folder before transformers reads it; `_refuse_code` and `_refuse_layers` name the errors."""
    _refuse_code(name, folder)
    _refuse_layers(name, folder)


def _refuse_code(name: str, folder: Path) -> None:
    """Refuse a network whose configuration refers to Python code, compiled kernels or other weights from elsewhere.

    Raises:
        BackboneError: a configuration file has an `auto_map` entry or selects an attention implementation other than
            PyTorch's, the folder is a PEFT adapter, or a file is not valid JSON.
    """
    if (folder / "adapter_config.json").exists():
        raise BackboneError(
            f"{name}: has an adapter_config.json, which refers to the weights of another model; merge the adapter into "
            "its model and name the merged folder"
        )
    for file in (folder / config for config in _CONFIG_FILES):
        config = _read_json(file) if file.is_file() else None
        if _has_key(config, "auto_map"):
            raise BackboneError(
                f"{name}: its {file.name} has an 'auto_map' entry, which refers to Python code to be run with the "
                "model; Limner never runs code from model folders; choose a model of an architecture that is part of "
                "transformers"
            )
        if _has_key(config, "quantization_config"):
            raise BackboneError(
                f"{name}: its {file.name} has a 'quantization_config' entry, whose kernels are loaded from elsewhere; "
                "choose a network whose weights are not quantised"
            )
        if foreign := _foreign_attention(config):
            raise BackboneError(
                f"{name}: its {file.name} selects the attention implementation '{foreign}', whose code is loaded from "
                f"elsewhere; Limner never runs code from model folders; set it to one of {', '.join(_ATTENTION)}"
            )


def _refuse_layers(name: str, folder: Path) -> None:
    """Refuse a number of layers that would take hours to create; BackboneError."""
    for key, layers in _integers(_read_json(folder / "config.json")):
        if key.endswith(("layer", "layers", "depths", "blocks")) and layers > MAX_LAYERS:
            raise BackboneError(
                f"{name}: its config.json has {layers:,} layers ({key}), expected at most {MAX_LAYERS:,}; restore the "
                "file"
            )


def _integers(value: object, key: str = "") -> Iterator[tuple[str, int]]:
    """Yield all integers of a JSON value with their keys; the elements of a list have its key."""
    if isinstance(value, int):
        yield key, value
    pairs = (
        value.items() if isinstance(value, dict) else ((key, part) for part in value) if isinstance(value, list) else ()
    )
    for name, part in pairs:
        yield from _integers(part, name)


def _read_json(file: Path) -> Any:  # noqa: ANN401 (any JSON value)
    try:
        return read_json_file(file)
    except (OSError, ValueError) as error:
        raise BackboneError(f"{file}: not a readable JSON file: {error}") from None


def _foreign_attention(value: object) -> str | None:
    """Return an attention implementation in a configuration that is not part of PyTorch, or None."""
    if isinstance(value, dict):
        for key, nested in value.items():
            if key.endswith("attn_implementation") and isinstance(nested, str) and nested not in _ATTENTION:
                return nested
    nested_values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, map(_foreign_attention, nested_values)), None)


def _has_key(value: object, key: str) -> bool:
    if isinstance(value, dict):
        return key in value or any(_has_key(nested, key) for nested in value.values())
    return isinstance(value, list) and any(_has_key(nested, key) for nested in value)


def _load_module(name: str, folder: Path) -> tuple[nn.Module, bool]:
    """Load the vision part of a network; also return whether its pooler has trained weights."""
    model, missing = load_module(name, folder, "AutoModel", optional="pooler")
    children: dict[str, nn.Module] = dict(model.named_children())
    return children.get("vision_model", model), not missing


def load_module(
    name: str, folder: Path, kind: str, optional: str = "\0", dtype: torch.dtype = torch.float32
) -> tuple[nn.Module, list[str]]:
    """Load a network by a class of transformers, such as `AutoModel`; no code of the folder runs.

    Returns:
        The network in evaluation mode, and the missing weights whose names contain `optional`.

    Raises:
        BackboneError: the network cannot be loaded, or other weights are missing.
    """
    import transformers

    if not any(folder.glob("*.safetensors")):
        actual = next((file.name for file in folder.glob("pytorch_model*.bin")), "no weights at all")
        raise BackboneError(
            f"{name}: has no model.safetensors (found {actual}); choose a revision that has it, such as refs/pr/N of "
            "the repository's conversion, or convert the weights with the save_pretrained of transformers"
        )
    try:
        with without_output():
            model, report = getattr(transformers, kind).from_pretrained(
                folder,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # transformers raises almost any exception for sizes that do not fit each other
        reason = (" ".join(str(error).split()) or "its settings do not fit each other")[:300]
        raise BackboneError(
            f"{name}: cannot be loaded: {reason}; restore its files, or choose another network of transformers"
        ) from None
    missing = [key for key in report["missing_keys"] if optional not in key]
    if missing:
        raise BackboneError(
            f"{name}: {len(missing)} weights are missing in the file, for example '{missing[0]}'; restore it"
        )
    return model, [*report["missing_keys"]]


@contextlib.contextmanager
def without_output() -> Iterator[None]:
    """Suppress the progress bar and the warnings about unused classifier weights."""
    from transformers.utils import logging as transformers_logging

    level, bar = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bar:
            transformers_logging.enable_progress_bar()


def _read_preprocessing(folder: Path) -> Preprocessing:
    file = folder / "preprocessor_config.json"
    if not file.is_file():
        logger.warning("%s not found: using the usual preprocessing for ImageNet", file)
        return parse_processor_config({})
    config: dict[str, Any] = _read_json(file)
    return parse_processor_config(config)


def hash_files(files: Sequence[Path]) -> str:
    """Compute the SHA-256 of concatenated files."""
    digest = hashlib.sha256()
    for path in files:
        with open_file(path) as stream:
            while block := stream.read(2**20):
                digest.update(block)
    return digest.hexdigest()
