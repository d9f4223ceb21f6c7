"""Captioners and translators of exported models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limner.decoding.ranking import Hypothesis
from limner.decoding.settings import DecodingSettings, change_decoding
from limner.errors import RunError, SettingsError
from limner.features.preprocessing import read_image
from limner.inference.sentences import Caption
from limner.media.image import ImageInput, describe_input
from limner.runtime.graphs import PIXELS, Graph, StepOfGraph, split_start
from limner.runtime.manifest import BACKBONE, ENCODER, Exported, read_exported
from limner.runtime.search import search
from limner.text.tokenizer import Tokenizer

BATCH_SIZE = 8
"""Images that are encoded together."""

Features = Mapping[str, NDArray[Any]]
"""Features of one image by kind: 'pooled' (D,), 'grid' (L, D), 'maps' (C, H, W)."""


class ExportedModel:
    """The parts that captioners and translators share: graphs, tokenizer, settings of decoding."""

    def __init__(self, folder: Path, exported: Exported) -> None:
        """Start the sessions of the graphs.

        Args:
            folder: exported model.
            exported: its contents.

        Raises:
            RunError: a graph or a tokenizer cannot be loaded.
            MissingExtraError: ONNX Runtime is not installed.
        """
        self.manifest = exported.manifest
        self.tokenizer = Tokenizer.load(folder / "tokenizer.json")
        self._exported = exported
        self._encoder = Graph(ENCODER, exported.files[ENCODER])
        self._step = StepOfGraph(exported)
        self._backbone: Graph | None = None

    @property
    def decoding(self) -> DecodingSettings:
        """Decoding settings of the recipe, the default of all methods."""
        return self.manifest.decoding

    def features(self, images: Sequence[ImageInput]) -> list[Features]:
        """Compute the features of images with the exported backbone.

        Raises:
            MediaError: an image cannot be read.
            RunError: the model was exported without its backbone.
        """
        manifest = self.manifest
        if not manifest.features or not images:
            return [{} for _ in images]
        if manifest.preprocessing is None:
            raise RunError(f"this model was exported without a backbone ({manifest.no_backbone}); give features")
        if self._backbone is None:
            self._backbone = Graph(BACKBONE, self._exported.files[BACKBONE])
        pixels = np.stack([read_image(image, manifest.preprocessing) for image in images])
        computed = self._backbone({PIXELS: pixels})
        for kind, values in computed.items():
            for image, row in zip(images, values, strict=True):
                if not np.isfinite(row).all():
                    name = describe_input(image)
                    raise RunError(f"{name}: the {kind} features are not finite; export the model again")
        rounded = {kind: values.astype(np.float16) for kind, values in computed.items()}  # as they are stored
        return [{kind: values[row] for kind, values in rounded.items()} for row in range(len(images))]

    def _generate(
        self,
        features: Sequence[Features | None],
        settings: DecodingSettings,
        prefixes: Sequence[str] | None,
        sources: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Hypothesis]]:
        inputs = self._collate(features)
        if sources is not None:
            inputs |= _pad(sources)
        start = split_start(self._exported, self._encoder(inputs))
        given = None if prefixes is None else [self.tokenizer.encode(text) for text in prefixes]
        ids = [str(number) for number in range(len(features))]
        return search(self._step, start, settings, ids, given, self.manifest.vocab_size)

    def _collate(self, features: Sequence[Features | None]) -> dict[str, NDArray[Any]]:
        """Stack the features of a batch; those of a missing image are zero."""
        inputs: dict[str, NDArray[Any]] = {"present": np.array([bool(one) for one in features])}
        for expected in self.manifest.features:
            rows = np.zeros((len(features), *expected.shape), np.float32)
            for row, one in zip(rows, features, strict=True):
                if not one:
                    continue
                if expected.kind not in one or one[expected.kind].shape != expected.shape:
                    found = {kind: values.shape for kind, values in one.items()}
                    raise SettingsError(f"expected {expected.kind} features of shape {expected.shape}, got {found}")
                row[:] = one[expected.kind]
            inputs[expected.kind] = rows
        return inputs


class ExportedCaptioner(ExportedModel):
    """Captions of images by an exported model; see `limner.Captioner`."""

    def describe(
        self,
        images: Sequence[ImageInput],
        *,
        prefixes: Sequence[str] | None = None,
        batch_size: int = BATCH_SIZE,
        **decoding: Any,  # noqa: ANN401
    ) -> list[list[Caption]]:
        """Generate captions of images.

        Args:
            images: paths, encoded bytes, PIL images or arrays (H, W, 3).
            prefixes: for each image the words that its caption starts with.
            batch_size: number of images that are captioned together; captions do not depend on it.
            decoding: settings of `DecodingSettings` to change, such as beam_size=5, n_best=3.

        Returns:
            The `n_best` captions of each image, best first.

        Raises:
            MediaError: an image cannot be read.
            SettingsError: a decoding setting is unknown or not allowed.
            RunError: the model was exported without its backbone.
        """
        settings = searchable(self.decoding, decoding)
        captions: list[list[Caption]] = []
        for first in range(0, len(images), batch_size):
            rows = slice(first, first + batch_size)
            given = None if prefixes is None else prefixes[rows]
            captions += self._describe(self.features(images[rows]), given, settings)
        return captions

    def describe_features(
        self,
        features: Sequence[Features],
        *,
        prefixes: Sequence[str] | None = None,
        **decoding: Any,  # noqa: ANN401
    ) -> list[list[Caption]]:
        """Generate captions of images or videos from their features; see `describe`."""
        return self._describe(features, prefixes, searchable(self.decoding, decoding))

    def _describe(
        self, features: Sequence[Features], prefixes: Sequence[str] | None, settings: DecodingSettings
    ) -> list[list[Caption]]:
        hypotheses = self._generate(features, settings, prefixes)
        return [[_caption(self.tokenizer, one) for one in n_best] for n_best in hypotheses]


def _caption(tokenizer: Tokenizer, one: Hypothesis) -> Caption:
    return Caption(tokenizer.decode(one.tokens, detokenise=True), one.log_prob, one.score, one.tokens, one.ended)


def searchable(default: DecodingSettings, changes: Mapping[str, Any]) -> DecodingSettings:
    """Return decoding settings with some values changed.

    Raises:
        SettingsError: a setting is unknown or not allowed, or asks for what only the torch path does.
    """
    settings = change_decoding(default, changes)
    if settings.sample is not None or settings.precision != "fp32":
        raise SettingsError("an exported model decodes by beam search in fp32; sampling and bf16 need the run itself")
    return settings


def _pad(sequences: Sequence[Sequence[int]]) -> dict[str, NDArray[Any]]:
    """Pad source sentences to one tensor (B, S), with the mask of their tokens."""
    lengths = np.array([len(one) for one in sequences])[:, None]
    tokens = np.zeros((len(sequences), int(lengths.max(initial=1))), np.int64)
    mask = np.arange(tokens.shape[1]) < lengths
    tokens[mask] = [token for sequence in sequences for token in sequence]
    return {"source": tokens, "source_mask": mask}


def load(folder: Path | str) -> ExportedCaptioner:
    """Load an exported model.

    Raises:
        RunError: the folder is not an exported model, or a file is damaged or of another version.
        MissingExtraError: ONNX Runtime is not installed.
    """
    folder = Path(folder)
    return ExportedCaptioner(folder, read_exported(folder))
