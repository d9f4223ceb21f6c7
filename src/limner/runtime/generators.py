"""Captioners and translators of exported models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from limner.decoding.ranking import Hypothesis
from limner.decoding.search import search
from limner.decoding.settings import DecodingSettings, change_decoding
from limner.errors import MediaError, RunError, SettingsError
from limner.features.preprocessing import read_image
from limner.inference.sentences import (
    CUT_TRANSLATIONS,
    EMPTY_TRANSLATION,
    UNKNOWN_SOURCE,
    Caption,
    MissingImage,
    Translation,
    caption_of,
    images_of_sentences,
    missing_image,
    require_source_length,
    translation_of,
    warn_of_cut_off,
    warn_of_unknown_words,
)
from limner.media.image import ImageInput, Pixels, open_image
from limner.progress import Progress
from limner.runtime.graphs import PIXELS, GraphModel, start_sessions
from limner.runtime.manifest import (
    BACKBONE,
    ENCODER,
    EXPORT_AGAIN,
    SOURCE_TOKENIZER,
    STEP,
    TOKENIZER,
    Exported,
    read_exported,
)
from limner.text.tokenizer import Tokenizer

ImageT = TypeVar("ImageT", bound=ImageInput)

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
        names = [name for name in (BACKBONE, ENCODER, STEP) if name in exported.files]
        graphs = start_sessions(folder, exported.files, names)
        self.tokenizer = Tokenizer.load(folder / TOKENIZER)
        self._backbone = graphs.get(BACKBONE)  # waited for when the first image has been read
        self._encoder = graphs[ENCODER].result()
        memory, state = ([spec.name for spec in specs] for specs in (self.manifest.memory, self.manifest.state))
        self._step = GraphModel(graphs[STEP].result(), self.manifest.vocab_size, memory, state)

    @property
    def decoding(self) -> DecodingSettings:
        """Decoding settings of the recipe, the default of all methods."""
        return self.manifest.decoding

    def read(self, image: ImageInput) -> Pixels:
        """Open an image, and resize it for the backbone.

        Raises:
            MediaError: the image cannot be read.
            RunError: the model was exported without its backbone.
        """
        if not self.manifest.features:
            open_image(image)
            return np.zeros((1, 0, 0, 3), np.uint8)
        if self.manifest.preprocessing is None:
            raise RunError(f"this model was exported without a backbone ({self.manifest.no_backbone}); give features")
        return read_image(image, self.manifest.preprocessing)

    def features_of(self, images: Sequence[Pixels]) -> list[Features]:
        """Compute the features of images, as `read` returns them, with the exported backbone.

        Raises:
            RunError: a feature is not finite.
        """
        if self._backbone is None or not images:
            return [{} for _ in images]
        computed = self._backbone.result()({PIXELS: np.stack(images)})
        for kind, values in computed.items():
            if not np.isfinite(values).all():
                raise RunError(f"{BACKBONE}: the {kind} features are not finite (NaN or infinity); {EXPORT_AGAIN}")
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
        memory = self._step.encoded(self._encoder(inputs))
        given = None if prefixes is None else [self.tokenizer.encode(text) for text in prefixes]
        ids = [str(number) for number in range(len(features))]
        return search(self._step, memory, ids, settings, given)

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
        captions = []
        for _, result in self.describe_each(images, prefixes=prefixes, batch_size=batch_size, **decoding):
            if isinstance(result, MediaError):
                raise result
            captions.append(result)
        return captions

    def describe_each(
        self,
        images: Sequence[ImageT],
        *,
        prefixes: Sequence[str] | None = None,
        batch_size: int = BATCH_SIZE,
        **decoding: Any,  # noqa: ANN401
    ) -> Iterator[tuple[ImageT, list[Caption] | MediaError]]:
        """Generate captions batch by batch; an image that cannot be read does not stop the others.

        Arguments are those of `describe`.

        Yields:
            Each image with its captions, or with the error that it cannot be read.
        """
        settings = searchable(self.decoding, decoding)
        warn_of_unknown_words(self.tokenizer, prefixes or (), "captions do not depend on them")
        cut = 0
        for first in range(0, len(images), batch_size):
            batch = images[first : first + batch_size]
            pixels = [_attempt(self.read, image) for image in batch]
            rows = [row for row, one in enumerate(pixels) if not isinstance(one, MediaError)]
            given = None if prefixes is None else [prefixes[first + row] for row in rows]
            read = [one for one in pixels if not isinstance(one, MediaError)]
            captions = dict(zip(rows, self._describe(self.features_of(read), given, settings), strict=True))
            for row, (image, one) in enumerate(zip(batch, pixels, strict=True)):
                yield image, one if isinstance(one, MediaError) else captions[row]
            cut += sum(not n_best[0].ended for n_best in captions.values())
        warn_of_cut_off(cut, len(images), "captions", settings.max_length, "raise max_length")

    def describe_features(
        self,
        features: Sequence[Features],
        *,
        prefixes: Sequence[str] | None = None,
        **decoding: Any,  # noqa: ANN401
    ) -> list[list[Caption]]:
        """Generate captions of images or videos from their features by kind; other arguments as for `describe`."""
        return self._describe(features, prefixes, searchable(self.decoding, decoding))

    def _describe(
        self, features: Sequence[Features], prefixes: Sequence[str] | None, settings: DecodingSettings
    ) -> list[list[Caption]]:
        if not features:
            return []
        hypotheses = self._generate(features, settings, prefixes)
        return [[caption_of(self.tokenizer, one) for one in n_best] for n_best in hypotheses]


class ExportedTranslator(ExportedModel):
    """Translations by an exported model; see `limner.Translator`."""

    def __init__(self, folder: Path, exported: Exported) -> None:
        """Start the sessions of the graphs; arguments and errors are those of `ExportedModel`."""
        super().__init__(folder, exported)
        self.source_tokenizer = Tokenizer.load(folder / SOURCE_TOKENIZER)

    def translate(
        self,
        sentences: Sequence[str],
        *,
        images: Sequence[ImageInput | None] | None = None,
        missing: MissingImage = "refuse",
        batch_size: int = BATCH_SIZE,
        on_progress: Progress | None = None,
        **decoding: Any,  # noqa: ANN401
    ) -> list[list[Translation]]:
        """Translate sentences; arguments, results and errors are those of `limner.Translator.translate`.

        Raises:
            RunError: an image is given, and the model was exported without its backbone.
        """
        settings = searchable(self.decoding, decoding)
        images = self._check(sentences, images, missing)
        sources = [self.source_tokenizer.encode(text) for text in sentences]
        for row, source in enumerate(sources):
            require_source_length(row, len(source))
        rows = sorted((row for row, source in enumerate(sources) if source), key=lambda row: len(sources[row]))
        warn_of_unknown_words(self.source_tokenizer, (sentences[row] for row in rows), UNKNOWN_SOURCE)
        translations = [[EMPTY_TRANSLATION] for _ in sentences]
        for first in range(0, len(rows), batch_size):
            batch = rows[first : first + batch_size]
            features = self._features([images[row] for row in batch])
            decoded = self._generate(features, settings, None, [sources[row] for row in batch])
            for row, n_best in zip(batch, decoded, strict=True):
                translations[row] = [translation_of(self.tokenizer, one) for one in n_best]
            if on_progress is not None:
                on_progress(min(first + batch_size, len(rows)), len(rows))
        cut = sum(not n_best[0].ended for n_best in translations)
        warn_of_cut_off(cut, len(sentences), "translations", settings.max_length, CUT_TRANSLATIONS)
        return translations

    def _check(
        self, sentences: Sequence[str], images: Sequence[ImageInput | None] | None, missing: MissingImage
    ) -> Sequence[ImageInput | None]:
        """Return the image of each sentence, or raise SettingsError."""
        images = images_of_sentences(sentences, images, missing)
        if not self.manifest.uses_image:
            return [None] * len(sentences)
        pairs = enumerate(zip(images, sentences, strict=True))
        without = [row for row, (image, text) in pairs if image is None and text.strip()]
        if without and missing == "refuse":
            raise SettingsError(missing_image(without[0]))
        return images

    def _features(self, images: Sequence[ImageInput | None]) -> list[Features | None]:
        """Compute the features of the images of a batch, each once."""
        pixels = [None if image is None else self.read(image) for image in images]
        computed = iter(self.features_of([one for one in pixels if one is not None]))
        return [None if one is None else next(computed) for one in pixels]


def searchable(default: DecodingSettings, changes: Mapping[str, Any]) -> DecodingSettings:
    """Return decoding settings with some values changed.

    Raises:
        SettingsError: a setting is unknown or not allowed, or needs what only the torch path does.
    """
    settings = change_decoding(default, changes)
    if settings.precision != "fp32":
        raise SettingsError("an exported model decodes in fp32; bf16 needs the run itself")
    return settings


def _pad(sequences: Sequence[Sequence[int]]) -> dict[str, NDArray[Any]]:
    """Pad source sentences to one tensor (B, S), with the mask of their tokens."""
    lengths = np.array([len(one) for one in sequences])[:, None]
    tokens = np.zeros((len(sequences), int(lengths.max(initial=1))), np.int64)
    mask = np.arange(tokens.shape[1]) < lengths
    tokens[mask] = [token for sequence in sequences for token in sequence]
    return {"source": tokens, "source_mask": mask}


def _attempt(read: Callable[[ImageInput], Pixels], image: ImageInput) -> Pixels | MediaError:
    try:
        return read(image)
    except MediaError as error:
        return error


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
    """Load an exported model.

    Raises:
        RunError: the folder is not an exported model, or a file is damaged or of another version.
        MissingExtraError: ONNX Runtime is not installed.
    """
    folder = Path(folder)
    exported = read_exported(folder)
    kind = ExportedCaptioner if exported.manifest.source_lang is None else ExportedTranslator
    return kind(folder, exported)
