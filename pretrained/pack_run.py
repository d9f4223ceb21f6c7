"""Write a trained model as the package contains it: weights in float16, and graphs that read them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import onnx

from limner.apps.export.folder import backbone_of, manifest_of
from limner.apps.export.record import record_model, verify_model
from limner.decoding.settings import DecodingSettings
from limner.files import atomic_write, read_bytes
from limner.runs.trained_model import SOURCE_TOKENIZER, WEIGHTS, load_trained_model, save_trained_model
from limner.runtime.manifest import BACKBONE, ENCODER, MODEL_PREFIX, STEP, TOKENIZER, save_manifest
from limner.storage.tensors import read_tensors, require_finite, save_tensors

PLACES = ("collection", "command", "init")
"""Entries of the provenance that name folders of the machine of the training; the package leaves them out."""


def pack(run: Path, folder: Path, description: str, decoding: Mapping[str, Any]) -> None:
    """Write a trained model with weights in float16, as the package contains it.

    The description is the title of the model card, and `decoding` changes default settings, such as the beam size.

    Raises:
        RunError: a file cannot be read or written, or a weight is out of the range of float16.
    """
    trained = load_trained_model(run)
    settings = DecodingSettings.parse({**trained.recipe.decoding.model_dump(), **decoding}, where="decoding")
    recipe = trained.recipe.model_copy(update={"decoding": settings, "description": description})
    provenance = {key: value for key, value in trained.config.provenance.items() if key not in PLACES}
    config = trained.config.model_copy(update={"recipe": recipe.model_dump(mode="json"), "provenance": provenance})
    tensors = trained.model.state_dict()
    weights = {name: value.half() if value.is_floating_point() else value for name, value in tensors.items()}
    require_finite(weights, "weights in float16", remedy="train with more weight decay")
    folder.mkdir(parents=True, exist_ok=True)
    save_trained_model(folder, trained._replace(config=config, recipe=recipe))
    save_tensors(folder / WEIGHTS, weights, read_tensors(folder / WEIGHTS).facts)


def add_graphs(run: Path, backbone: bytes | None = None) -> None:
    """Add graphs to a run directory, which read the weights of the run and the backbone: an exported model.

    `backbone` is the graph of a backbone of `published_weights` with 8-bit weights, for a model that reads images.
    """
    trained = load_trained_model(run)
    network, _ = backbone_of(trained, None)
    recorded = record_model(trained.model, trained.config.features, trained.config.source_vocab_size, fold=False)
    verify_model(trained, recorded)
    weights = {MODEL_PREFIX + name for name in trained.model.state_dict()}
    files = {ENCODER: without_weights(recorded.encoder, weights), STEP: without_weights(recorded.step, weights)}
    of_package = {"weights": WEIGHTS}
    if backbone is not None:
        files[BACKBONE], spec = backbone, trained.config.features[0]
        of_package |= {"backbone": spec.backbone, "backbone_sha256": spec.weights_sha256}
    for name, data in files.items():
        with atomic_write(run / name) as beside:
            beside.write_bytes(data)
    names = [TOKENIZER, WEIGHTS, *([] if trained.source_tokenizer is None else [SOURCE_TOKENIZER])]
    files |= {name: read_bytes(run / name) for name in names}
    save_manifest(run, manifest_of(trained, recorded, files, network, "").model_copy(update=of_package))


def without_weights(graph: bytes, names: Container[str]) -> bytes:
    """Remove the values of weights from a graph; their names remain."""
    model = onnx.load_model_from_string(graph)
    for tensor in model.graph.initializer:
        if tensor.name in names:
            onnx.external_data_helper.set_external_data(tensor, location="weights")
            tensor.ClearField("raw_data")
    stripped: bytes = model.SerializeToString()
    return stripped
