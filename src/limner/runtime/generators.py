"""Captions and translations by exported models: generation with ONNX Runtime instead of torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from limner.decoding.settings import DecodingSettings
from limner.errors import RunError, SettingsError
from limner.features.encoders.published_weights import LAST, fold_normalisation, quantize_weights, read_weights
from limner.features.preprocessing import Preprocessing, read_image
from limner.features.spec import FeatureArray, FeatureKind, FeatureSpec
from limner.generation.captioning import BaseCaptioner
from limner.generation.request import Features, Request
from limner.generation.rules import CaptionRules
from limner.generation.translation import BaseTranslator
from limner.media.image import ImageInput, Pixels, open_image
from limner.media.modality import IMAGE
from limner.runs.concepts import Concepts
from limner.runtime.graphs import PIXELS, Graph, GraphModel, start_sessions
from limner.runtime.manifest import (
    BACKBONE,
    BACKBONE_PREFIX,
    ENCODER,
    EXPORT_AGAIN,
    MODEL_PREFIX,
    SOURCE_TOKENIZER,
    STEP,
    TOKENIZER,
    Exported,
    read_exported,
)
from limner.text.tokenizer import Tokenizer

ImageFeatures = Mapping[str, NDArray[Any] | None]
"""Features of one image by kind: 'pooled' (D,), 'grid' (L, D), 'maps' (C, H, W)."""


class GraphBackbone:
    """Backbone of an exported model, computed by its ONNX graph; RunError for features that are not finite."""

    modality = IMAGE

    def __init__(self, graph: Future[Graph], preprocessing: Preprocessing, specs: Sequence[FeatureSpec] = ()) -> None:
        """Create the backbone from its preprocessing and its graph, which may still be loading."""
        self._graph, self._preprocessing, self.specs = graph, preprocessing, tuple(specs)

    def read(self, source: ImageInput) -> Pixels:
        """Open an image and resize it; MediaError if it cannot be read."""
        return read_image(source, self._preprocessing)

    def __call__(self, inputs: Pixels) -> dict[FeatureKind, FeatureArray]:
        """Compute the features of results of `read`, (B, ...), as they are stored; RunError for NaN or infinity.

        The graph takes one image at a time (`Graph.each`): a larger batch is not faster, and takes more memory.
        """
        images = self._graph.result().each([{PIXELS: inputs[row : row + 1]} for row in range(len(inputs))])
        features: dict[FeatureKind, FeatureArray] = {}
        for kind in images[0]:
            values = np.concatenate([computed[kind] for computed in images]).astype(np.float16, copy=False)
            if (values.view(np.uint16) & 0x7C00 == 0x7C00).any():  # exponent of infinity and NaN
                raise RunError(f"{BACKBONE}: the {kind} features are not finite (NaN or infinity); {EXPORT_AGAIN}")
            features[cast("FeatureKind", kind)] = values
        return features


class ExportedModel:
    """Common parts of exported captioners and translators: a `Generator` of `limner.generation`."""

    def __init__(self, folder: Path, exported: Exported) -> None:
        """Start the sessions of the graphs; RunError if a graph or a tokenizer cannot be loaded."""
        self._folder, self.manifest = folder, exported.manifest
        self.lang, self.decoding = self.manifest.lang, self.manifest.decoding
        self.uses_image = self.manifest.uses_image
        """Whether sentences depend on the image."""
        names = [name for name in (BACKBONE, ENCODER, STEP) if name in exported.files]
        graphs = _start_graphs(folder, exported, names)
        self.tokenizer = Tokenizer.load(folder / TOKENIZER)
        preprocessing = self.manifest.preprocessing
        self.backbone = None if preprocessing is None else GraphBackbone(graphs[BACKBONE], preprocessing)
        encoder, step = graphs[ENCODER].result(), graphs[STEP].result()
        memory, state = ([spec.name for spec in specs] for specs in (self.manifest.memory, self.manifest.state))
        self._model = GraphModel(encoder, step, self.manifest.vocab_size, memory, state, self.manifest.features)

    @property
    def folder(self) -> Path:
        """Folder of the exported model."""
        return self._folder

    @property
    def parameters(self) -> int:
        """Number of parameters without the backbone; for graphs with weights, their size in bytes / 4."""
        if self.manifest.weights:
            weights = safetensors.numpy.load_file(self._folder / self.manifest.weights)
            return sum(values.size for values in weights.values())
        return sum((self._folder / name).stat().st_size for name in (ENCODER, STEP)) // 4

    def model(self, settings: DecodingSettings) -> GraphModel:
        """Return the graphs as a step model; SettingsError if the settings need torch."""
        if settings.precision != "fp32":
            raise SettingsError("an exported model decodes in fp32; bf16 needs the run itself")
        return self._model

    def read(self, image: ImageInput) -> Pixels:
        """Open an image, resized for the backbone; MediaError if it is damaged, RunError without a backbone."""
        if not self.manifest.features:
            open_image(image)
            return np.zeros((1, 0, 0, 3), np.uint8)
        if self.backbone is None:
            raise RunError(f"this model was exported without a backbone ({self.manifest.no_backbone}); give features")
        return self.backbone.read(image)

    def features_of(self, images: Sequence[Pixels]) -> list[ImageFeatures]:
        """Compute the features of images, as `read` returns them; RunError if one is not finite."""
        if self.backbone is None or not images:
            return [{} for _ in images]
        computed = self.backbone(np.stack(images))
        return [{kind: values[row] for kind, values in computed.items()} for row in range(len(images))]

    def features_of_requests(self, requests: Sequence[Request]) -> list[ImageFeatures | None]:
        """Return the features of the image of each request: the features port."""
        pixels = [None if request.source is None else self.read(request.source) for request in requests]
        computed = iter(self.features_of([image for image in pixels if image is not None]))
        return [None if image is None else next(computed) for image in pixels]


class ExportedCaptioner(ExportedModel, BaseCaptioner):
    """Captions of images by an exported model; see `limner.Captioner`."""

    def __init__(self, folder: Path, exported: Exported) -> None:
        """Start the sessions, and read the concepts; the arguments and errors are described at `ExportedModel`."""
        super().__init__(folder, exported)
        concepts = Concepts.load(folder)
        self.rules = CaptionRules(concepts, concepts)
        self._features: Mapping[Path, ImageFeatures] | None = None

    def source_of(self, image: ImageInput) -> ImageInput:
        """Return the image itself."""
        return image

    def features_port(self, images: Sequence[ImageInput]) -> Features:
        """Return the port that computes features with the exported backbone."""
        if self._features is None:
            return self.features_of_requests
        stored = self._features
        return lambda requests: [stored[request.source] for request in requests]

    def with_features(self, features: Mapping[Path, ImageFeatures]) -> Self:
        """Return a copy that takes the features of images or videos by their paths, and opens no file."""
        result = copy.copy(self)
        result._features = features
        return result


class ExportedTranslator(ExportedModel, BaseTranslator):
    """Translations by an exported model; see `limner.Translator`."""

    def __init__(self, folder: Path, exported: Exported) -> None:
        """Start the sessions of the graphs; the arguments and errors are described at `ExportedModel`."""
        super().__init__(folder, exported)
        self.source_tokenizer = Tokenizer.load(folder / SOURCE_TOKENIZER)

    def features_port(self, images: Sequence[ImageInput | None]) -> Features:
        """Return the port that computes features with the exported backbone."""
        return self.features_of_requests


def _start_graphs(folder: Path, exported: Exported, names: Sequence[str]) -> dict[str, Future[Graph]]:
    """Start the sessions of graphs; graphs of packaged models, without weights, are too small for several threads."""
    manifest = exported.manifest
    readers: dict[str, Callable[[], dict[str, NDArray[Any]]]] = {}
    if manifest.weights:

        @cache
        def read_model() -> dict[str, NDArray[Any]]:
            weights = safetensors.numpy.load(exported.files[manifest.weights])
            return {MODEL_PREFIX + name: values.astype(np.float32) for name, values in weights.items()}

        readers = {ENCODER: read_model, STEP: read_model}
    if manifest.backbone:

        def read_backbone() -> dict[str, NDArray[Any]]:
            weights = fold_normalisation(read_weights(manifest.backbone, manifest.backbone_sha256))
            kernels = {name: values for name, values in weights.items() if values.ndim == 4}
            return {
                BACKBONE_PREFIX + name: values if name.startswith(LAST) else quantize_weights(values)[0]
                for name, values in kernels.items()
            }

        readers[BACKBONE] = read_backbone
    return start_sessions(folder, exported.files, names, readers, 1 if manifest.weights else None)


def load_backbone_graph(folder: Path, specs: Sequence[FeatureSpec]) -> GraphBackbone | None:
    """Load the backbone of an exported model for features of `specs`, or None without one; errors as `load`."""
    exported = read_exported(folder)
    if exported.manifest.preprocessing is None:
        return None
    graphs = _start_graphs(folder, exported, [BACKBONE])
    return GraphBackbone(graphs[BACKBONE], exported.manifest.preprocessing, specs)


def load_captioner(folder: Path | str) -> ExportedCaptioner:
    """Load an exported captioner; RunError for a translator, otherwise as `load`."""
    model = load(folder)
    if not isinstance(model, ExportedCaptioner):
        raise RunError(
            f"{folder}: expected a captioning model, got one that translates from '{model.manifest.source_lang}': use "
            "'limner translate'"
        )
    return model


def load_translator(folder: Path | str) -> ExportedTranslator:
    """Load an exported translator; RunError for a captioner, otherwise as `load`."""
    model = load(folder)
    if not isinstance(model, ExportedTranslator):
        raise RunError(f"{folder}: model '{model.manifest.model}' does not translate: use 'limner describe'")
    return model


def load(folder: Path | str) -> ExportedCaptioner | ExportedTranslator:
    """Load an exported model; RunError if the folder has no such model, or a file is damaged or of another version."""
    folder = Path(folder)
    exported = read_exported(folder)
    kind = ExportedCaptioner if exported.manifest.source_lang is None else ExportedTranslator
    return kind(folder, exported)
