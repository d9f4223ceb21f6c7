"""Export of a trained model to a folder of graphs for `limner.load`, or of its language model to an ARPA file."""

from __future__ import annotations

import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import nn

from limner.apps.export.record import (
    OPSET,
    RecordedGraphs,
    ShapesByName,
    record_backbone,
    record_model,
    verify_backbone,
    verify_model,
)
from limner.errors import SettingsError, extra_module
from limner.features.encoders.base import RecordableBackbone
from limner.features.encoders.load import load_backbone_for
from limner.files import read_bytes, sync, write_error
from limner.layers.stack import BidirectionalLayers, RecurrentLayer, has_kernel
from limner.models import Model
from limner.models.phrase_based import PhraseBased
from limner.models.protocols import ConditionalLMSettings, CountBasedModel, PairRanker
from limner.runs.concepts import FILE as CONCEPTS
from limner.runs.concepts import WEIGHTS as CONCEPT_WEIGHTS
from limner.runs.trained_model import SOURCE_TOKENIZER as RUN_SOURCE_TOKENIZER
from limner.runs.trained_model import TrainedModel, load_trained_model
from limner.runtime.manifest import (
    BACKBONE,
    ENCODER,
    FORMAT,
    MANIFEST,
    SOURCE_TOKENIZER,
    STEP,
    TOKENIZER,
    FeatureInput,
    Manifest,
    TensorSpec,
    file_checksum,
    is_exported,
    save_manifest,
)
from limner.storage.outputs import claim_folder, require_outside, require_writable
from limner.text.labels import LABEL_LANGUAGES
from limner.text.vocab import SPECIAL_TOKENS

CARD = "README.md"
"""Model card of a run, which is copied to the exported model."""
FILES = (BACKBONE, ENCODER, STEP, TOKENIZER, SOURCE_TOKENIZER, MANIFEST, CARD, CONCEPTS, CONCEPT_WEIGHTS)
"""Names of all files of an exported model."""


class Export(NamedTuple):
    """Outcome of an export."""

    folder: Path
    files: dict[str, int]  # size of each file in bytes
    difference: float  # largest difference of a log-probability between the graphs and the model
    no_backbone: str  # why there is no backbone; empty if there is one, or if the model reads no features


def claim_export(out: Path) -> Path:
    """Check before the work that a model may be exported to a folder, which is new, empty or an exported model."""
    claim_folder(out, "OUT")
    names = {entry.name for entry in out.iterdir()} if out.exists() else set()
    if names and not (is_exported(out) and names <= set(FILES)):
        foreign_file = min(names - set(FILES), default=min(names))
        raise SettingsError(f"OUT {out}: contains {foreign_file}, and is no exported model; name a new folder")
    return out


def export(run: Path | str, out: Path | str, *, backbone: str | None = None) -> Export:
    """Export a trained model as ONNX graphs with its vocabularies and settings of decoding.

    The graphs are compared with the model before anything is written: a new folder, or an exported model that is
    replaced. `backbone` is the new place of the network that computed the features, if it has moved since the training.
    """
    run, out = Path(run), claim_export(Path(out))
    for module in ("onnx", "onnxruntime"):
        extra_module(module, "exporting a model", "export")
    trained = load_trained_model(run)
    name = trained.recipe.model.name
    if reason := refusal(trained.recipe.model, trained.model, labels=trained.recipe.data.lang in LABEL_LANGUAGES):
        raise SettingsError(f"model '{name}' cannot be exported: {reason}; choose a neural captioner or translator")
    network, reason = backbone_of(trained, backbone)
    recorded = record_model(trained.model, trained.config.features, trained.config.source_vocab_size)
    difference = verify_model(trained, recorded)
    files = {ENCODER: recorded.encoder, STEP: recorded.step, TOKENIZER: read_bytes(run / "tokenizer.json")}
    if trained.source_tokenizer is not None:
        files[SOURCE_TOKENIZER] = read_bytes(run / RUN_SOURCE_TOKENIZER)
    if network is not None:
        files[BACKBONE] = record_backbone(network)
        verify_backbone(network, files[BACKBONE])
    copied = {name: read_bytes(run / name) for name in (CARD, CONCEPTS, CONCEPT_WEIGHTS) if (run / name).is_file()}
    _write_folder(out, files | copied, manifest_of(trained, recorded, files, network, reason))
    sizes = {file.name: file.stat().st_size for file in sorted(out.iterdir())}
    return Export(out, sizes, difference, reason)


def export_language_model(run: Path | str, out: Path | str) -> int:
    """Write the language model of a phrase-based run; return the number of its n-grams."""
    out = Path(out)
    what = f"OUT {out}"
    if os.path.lexists(out):
        raise SettingsError(f"{what}: exists; name a new file, because nothing in an ARPA file tells who wrote it")
    require_outside(out, what, can_force=False)
    require_writable(out.parent, what)
    trained = load_trained_model(Path(run))
    if not isinstance(trained.model, PhraseBased):
        raise SettingsError(
            f"{run}: model '{trained.recipe.model.name}' has no n-gram language model; name a phrase-based run, or "
            "choose --format onnx"
        )
    extra_module("numba", "phrase-based translation", "smt")
    from limner.smt.arpa import write_arpa

    model = trained.model.language_model()
    write_arpa(model, trained.tokenizer.entries, out)
    return len(model.firsts)


def refusal(settings: ConditionalLMSettings, model: Model, *, labels: bool) -> str:
    """Return the reason why a model cannot be exported; empty if it can."""
    if labels:
        return "it gives labels, not sentences"
    if settings.describes_regions:
        return "it finds regions, whose number differs between images"
    if isinstance(model, PairRanker):
        return "it ranks images and sentences, and generates none"
    if isinstance(model, PhraseBased):
        return "it has a search of its own"
    if isinstance(model, CountBasedModel):
        return "its probabilities are looked up in tables of counts"
    if settings.has_growing_state:
        return "its state grows with the sentence"
    if "sample" in (settings.hard_attention or ""):
        return "its locations are drawn at random (model.test_attention=sample)"
    modules = list(cast(nn.Module, model).modules())
    encoders = [module for module in modules if isinstance(module, BidirectionalLayers)]
    if settings.translates and not encoders and any(isinstance(module, RecurrentLayer) for module in modules):
        return "its source sentences are read word by word, in a loop of any length"
    cells = [layer.cell for encoder in encoders for layer in encoder.forwards if isinstance(layer, RecurrentLayer)]
    if loops := [type(cell).__name__ for cell in cells if not has_kernel(cell, torch.zeros(0))]:
        return f"ONNX has no operator of its encoder's {loops[0]} for sentences of any length"
    return ""


def backbone_of(trained: TrainedModel, name: str | None) -> tuple[RecordableBackbone | None, str]:
    """Load the backbone of a model in fp32; None with the reason where it cannot be a graph."""
    specs = trained.config.features
    if not specs or not trained.model.uses_image:
        return None, ""
    reason = f"features '{specs[0].name}' of {specs[0].modality}s"
    if specs[0].modality != "image" or any(spec.regions or spec.frames for spec in specs):
        return None, reason
    loaded = load_backbone_for(specs, name, precision="fp32")
    if not isinstance(loaded, RecordableBackbone):
        return None, f"features '{specs[0].name}' of backbone '{specs[0].backbone}'"
    return loaded, ""


def manifest_of(
    trained: TrainedModel,
    recorded: RecordedGraphs,
    files: dict[str, bytes],
    network: RecordableBackbone | None,
    no_backbone: str,
) -> Manifest:
    """Describe the graphs of a model, and all files beside them; without a backbone, with the reason."""
    recipe, config = trained.recipe, trained.config
    features = tuple(
        FeatureInput(kind=spec.kind, shape=spec.shape, table=spec.name, fingerprint=spec.fingerprint)
        for spec in config.features
    )
    return Manifest(
        format=FORMAT,
        limner=version("limner"),
        opset=OPSET,
        model=recipe.model.name,
        lang=recipe.data.lang,
        source_lang=recipe.data.source_lang,
        uses_image=bool(config.features) and trained.model.uses_image,
        vocab_size=config.vocab_size,
        special_tokens=SPECIAL_TOKENS._asdict(),
        decoding=recipe.decoding,
        features=features,
        preprocessing=None if network is None else network.preprocessing,
        no_backbone=no_backbone,
        memory=_tensors(recorded.memory),
        state=_tensors(recorded.state),
        files={name: file_checksum(data) for name, data in files.items()},
    )


def _tensors(shapes: ShapesByName) -> tuple[TensorSpec, ...]:
    types = {torch.float32: "float32", torch.int64: "int64", torch.bool: "bool"}
    return tuple(
        TensorSpec.parse({"name": name, "dtype": types[dtype], "shape": shape})
        for name, (dtype, shape) in shapes.items()
    )


def _write_folder(out: Path, files: dict[str, bytes], manifest: Manifest) -> None:
    """Write all files to a temporary folder, and rename it."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name[:100]}.", dir=out.parent) as parent:
            beside = Path(parent) / "new"
            beside.mkdir()
            for name, data in files.items():
                (beside / name).write_bytes(data)
                sync(beside / name)
            save_manifest(beside, manifest)
            if out.exists():
                os.rename(out, Path(parent) / "old")
            os.rename(beside, out)
            sync(out.parent)
    except OSError as error:
        raise write_error(out, error) from None
