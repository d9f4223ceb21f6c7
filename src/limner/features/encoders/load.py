"""Loading what looks at pictures: networks of `transformers`, VGG-19, AlexNet, filters of k-means, or `pixels`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import nn

from limner.device import find_device, native_bf16
from limner.errors import BackboneError, FeatureError
from limner.features.encoders.base import Backbone
from limner.features.encoders.classic import CLASSIC, load_classic
from limner.features.encoders.kmeans import KMeansBackbone
from limner.features.encoders.logmel import LogMelBackbone, LogMelSettings
from limner.features.encoders.networks import Forms, JoinedBackbone, NetworkBackbone, PixelBackbone
from limner.features.preprocessing import Preprocessing, adapt_preprocessing, parse_processor_config
from limner.features.regions import WholeBackbone, whole_spec
from limner.features.store import FeatureSpec, RegionRows, require_same

__all__ = ["Backbone", "load_backbone", "load_backbone_for"]

logger = logging.getLogger(__name__)

_CONFIGS = (
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "image_processor_config.json",
    "video_preprocessor_config.json",
    "feature_extractor_config.json",
    "tokenizer_config.json",
    "generation_config.json",
)


def load_backbone(
    name: str,
    *,
    layer: str | None = None,
    kind: Forms = "pooled",
    size: int | None = None,
    resize: Literal["crop", "squash"] | None = None,
    views: int = 1,
    precision: str = "auto",
    device: str = "cpu",
) -> Backbone:
    """Load a network that looks at pictures.

    Args:
        name: a hub id (`microsoft/resnet-50`), a folder in `transformers` format, `vgg19:FILE` or
            `alexnet:FILE` with torchvision's weights, `kmeans:FILE` for filters that `limner kmeans` learned, or
            `pixels` / `pixels:64` for the pictures themselves.
        layer: whose output is read, as `named_modules` calls it (`encoder.stages.2`) or as papers do
            (`res4f`, `conv5_4`, `fc7`); none: the last layer and the network's pooler.
        kind: 'pooled', 'grid' or 'both' (pixels and what k-means filters see are always maps).
        size: side of the network's input, in pixels; none: what it was trained for.
        resize: 'crop' or 'squash'; none: what the network was trained with ('squash' for pixels).
        views: 1, 2 (mirror image too) or 10, averaged.
        precision: 'auto' (bf16 where the hardware is fast at it), 'bf16' or 'fp32'.
        device: 'cpu' or 'cuda'.

    Raises:
        BackboneError: there is no such network, file or layer, or it cannot look at this size.
        SettingsError: `resize` or `views` is none of the above, or the device cannot be used.
    """
    if kind not in ("pooled", "grid", "both"):
        raise BackboneError(f"kind '{kind}': expected 'pooled', 'grid' or 'both'")
    family, _, rest = name.partition(":")
    if family == "pixels":
        if layer is not None or kind != "pooled" or views != 1:
            raise BackboneError(f"{name}: pixels are maps, without layers and views; leave layer, kind and views out")
        return PixelBackbone(size or _pixel_size(name, rest), resize or "squash")
    if name == "logmel":
        if layer is not None or kind != "pooled" or views != 1 or size is not None or resize is not None:
            raise BackboneError(f"{name}: gives one vector a sound; leave layer, kind, size, resize and views out")
        return LogMelBackbone()
    if family in ("kmeans", *CLASSIC) and not rest:
        raise BackboneError(f"'{name}': names no file; write it after the colon, {family}:FILE")
    if family == "kmeans":
        if layer is not None or kind != "pooled" or views != 1 or size is not None or resize is not None:
            raise BackboneError(
                f"{name}: the filters' file says how pictures are seen; leave layer, kind, size, resize and views out"
            )
        return KMeansBackbone(Path(rest))
    if family in CLASSIC:
        base, own_pooler = family, True
        network: nn.Module = load_classic(family, Path(rest))
        weights, recipe = [Path(rest)], parse_processor_config({})
        source = f"{family}:{Path(rest).resolve()}"
    else:
        folder = _find_folder(name)
        base = Path(name).resolve().name
        network, own_pooler = _load_transformer(name, folder)
        weights, recipe = sorted(folder.glob("*.safetensors")), _read_preprocessor(folder)
        source = str(Path(name).resolve()) if Path(name).is_dir() else name
    torch_device = find_device(device)
    return NetworkBackbone(
        base,
        network,
        layer=layer,
        forms=kind,
        preprocessing=adapt_preprocessing(recipe, size, resize, views),
        weights_sha256=_hash_files(weights),
        source=source,
        own_pooler=own_pooler,
        bf16=_wants_bf16(precision, torch_device),
        device=torch_device,
    )


def load_backbone_for(
    specs: Sequence[FeatureSpec], name: str | None = None, *, precision: str = "auto", device: str = "cpu"
) -> Backbone:
    """Load the network that made some features, so that a new picture is seen the way the stored ones were.

    Nobody knows the boxes of a new picture: of features of regions it has the row of the whole picture alone.

    Args:
        specs: of the features a model was trained on; they may be of several layers or networks, as long as all see
            a picture cut and scaled alike.
        name: where the network is, if it has moved since; see `load_backbone`.
        precision: see `load_backbone`.
        device: see `load_backbone`.

    Raises:
        BackboneError: the network is needed and not given, cannot be loaded, or the features differ in how a picture
            is cut and scaled for them.
        FeatureError: what is loaded from `name` is another network than the one that made the features.
    """
    for spec in specs[1:]:
        if spec.preprocessing != specs[0].preprocessing:
            raise BackboneError(
                f"the features '{specs[0].name}' and '{spec.name}' were made from pictures cut or scaled differently, "
                "so the model cannot look at a new picture; make both with the same size, resize and views"
            )
    apart: dict[tuple[str | None, str | None, RegionRows | None], list[FeatureSpec]] = {}
    for spec in specs:
        apart.setdefault((spec.source, spec.layer, spec.regions), []).append(spec)
    eyes = [_load_one(group, name, precision, device) for group in apart.values()]
    return eyes[0] if len(eyes) == 1 else JoinedBackbone(eyes)


def _load_one(specs: Sequence[FeatureSpec], name: str | None, precision: str, device: str) -> Backbone:
    """One layer of one network, for its vector, its grid or both."""
    first = specs[0]
    if first.regions is not None:
        return WholeBackbone(_load_one([whole_spec(first)], name, precision, device), first.regions)
    if first.backbone == "logmel":
        return LogMelBackbone(LogMelSettings.parse(first.preprocessing, f"features '{first.name}'"))
    recipe = Preprocessing.parse(first.preprocessing, f"features '{first.name}'")
    if first.backbone == "kmeans":
        return _load_filters_like(first, name)
    if first.kind == "maps":
        return PixelBackbone(recipe.size, recipe.resize)
    where = name or first.source
    if where is None or (name is None and Path(where).is_absolute() and not Path(where).exists()):
        raise BackboneError(
            f"the features were made by '{first.backbone}', which is not where it was ({where}): "
            "say where it is (--backbone)"
        )
    if where.partition(":")[0] == "pixels":
        raise FeatureError(
            f"{where}: holds maps of pixels, but {first} was asked for; "
            "say where the network of the model's features is (--backbone)"
        )
    backbone = load_backbone(
        where,
        layer=first.layer,
        kind="both" if len(specs) > 1 else first.kind,
        size=recipe.size,
        resize=recipe.resize,
        views=recipe.views,
        precision=precision,
        device=device,
    )
    made = {spec.kind: spec for spec in backbone.specs}
    for spec in specs:
        require_same(made[spec.kind], spec, where, "say where the network of the model's features is (--backbone)")
    return backbone


def _load_filters_like(spec: FeatureSpec, name: str | None) -> Backbone:
    """The filters of k-means that made some maps, where they were or where the user says they are."""
    remedy = "say where the filters of the model's features are (--backbone kmeans:FILE)"
    where = name or spec.source or ""
    family, _, file = where.partition(":")
    if family != "kmeans":
        found = f"to take this file say kmeans:{where}" if Path(where).is_file() else remedy
        raise BackboneError(f"{where or 'no file'}: the features were made by filters of k-means; {found}")
    if not Path(file).is_file():
        raise BackboneError(f"{file}: no such file, and the features were made by its filters of k-means; {remedy}")
    backbone = KMeansBackbone(Path(file))
    require_same(backbone.specs[0], spec, where, remedy)
    return backbone


def _pixel_size(name: str, text: str) -> int:
    if not text:
        return 64
    if not text.isdecimal() or not 0 < int(text) <= 1024:
        raise BackboneError(f"{name}: expected a side of 1 to 1024 pixels after the colon, as in 'pixels:64'")
    return int(text)


def _find_folder(name: str) -> Path:
    """The folder of a network: the one that is named, or the hub's copy on this machine."""
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
            raise BackboneError(f"{folder}: no network in it; expected config.json and *.safetensors files")
        _refuse_code(name, folder)
        return folder
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise BackboneError(f"{name}: no such folder; expected a folder with config.json and *.safetensors files")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BackboneError(
            f"{name}: neither a folder here nor reachable on the hub ({reason}); "
            "give a local folder, or 'pixels' to learn without a pre-trained network"
        ) from None
    if not any(folder.glob("*.safetensors")):
        raise BackboneError(f"{name}: the hub has no *.safetensors weights of it, and others are not loaded")
    _refuse_code(name, folder)
    return folder


def _refuse_code(name: str, folder: Path) -> None:
    """Refuse a model whose configuration names Python code, which transformers would offer to run.

    Raises:
        BackboneError: a configuration file has an `auto_map` entry, or is not valid JSON.
    """
    for file in (folder / config for config in _CONFIGS):
        if not file.is_file():
            continue
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BackboneError(f"{file}: not a readable JSON file: {error}") from None
        if _has_key(config, "auto_map"):
            raise BackboneError(
                f"{name}: its {file.name} has an 'auto_map' entry, which refers to Python code to be run with the "
                "model; Limner never runs code from model folders; choose a model of an architecture that is part of "
                "transformers"
            )


def _has_key(value: object, key: str) -> bool:
    if isinstance(value, dict):
        return key in value or any(_has_key(nested, key) for nested in value.values())
    return isinstance(value, list) and any(_has_key(nested, key) for nested in value)


def _load_transformer(name: str, folder: Path) -> tuple[nn.Module, bool]:
    """The vision part of a network, and whether its pooler's weights are trained ones."""
    from transformers import AutoModel

    try:
        with _quiet_transformers():
            model, report = AutoModel.from_pretrained(
                folder,
                dtype=torch.float32,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise BackboneError(f"{name}: cannot be loaded: {error}") from None
    missing = [key for key in report["missing_keys"] if "pooler" not in key]
    if missing:
        raise BackboneError(f"{name}: the weight file lacks {len(missing)} entries, for example '{missing[0]}'")
    network: nn.Module = getattr(model, "vision_model", model)
    return network, not report["missing_keys"]


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Loading draws a bar and lists the classifier's weights, which are not needed here."""
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


def _read_preprocessor(folder: Path) -> Preprocessing:
    file = folder / "preprocessor_config.json"
    if not file.is_file():
        logger.warning("%s is missing: ImageNet's usual preprocessing is taken", file)
        return parse_processor_config({})
    try:
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BackboneError(f"{file}: cannot be read: {error}") from None
    return parse_processor_config(config)


def _hash_files(files: Sequence[Path]) -> str:
    """SHA-256 of the files one after the other; of a single file, its own."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            while block := stream.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def _wants_bf16(precision: str, device: torch.device) -> bool:
    if precision not in ("auto", "bf16", "fp32"):
        raise BackboneError(f"precision '{precision}': expected 'auto', 'bf16' or 'fp32'")
    return native_bf16(device) if precision == "auto" else precision == "bf16"
