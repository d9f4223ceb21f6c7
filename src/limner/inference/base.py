"""Common parts of `Captioner` and `Translator`: an ensemble of models, a backbone for new images, explanations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import torch

from limner.data.dataset import FeatureSource, GenerationInput
from limner.data.examples import Batch, Example, collate
from limner.decoding.search import Trace
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import TorchModels
from limner.errors import RunError, SettingsError, counted
from limner.features.encoders.base import AnyBackbone, Backbone
from limner.generation.request import Request
from limner.generation.rules import CaptionRules
from limner.generation.sentences import compile_words, images_of_sentences
from limner.inference.explain import Explanation, explain
from limner.inference.features import BackboneFeatures, load_backbone_of, new_item
from limner.media.image import ImageInput, ImageInputs, is_image
from limner.models.protocols import Memory, device_of
from limner.progress import Progress
from limner.runs.trained_model import TrainedModel, load_trained_model
from limner.text.labels import LABEL_LANGUAGES


class GenerationModels(TorchModels):
    """The model port of `limner.generation` for models of torch."""

    def encode(self, requests: Sequence[Request]) -> list[Memory]:
        """Encode the images and source sentences of requests."""
        examples = [Example(request.id, (), request.source_tokens, request.features) for request in requests]
        return self.encode_batch(collate(examples).to(self.device))


class TextGenerator:
    """One trained model, or an ensemble whose probabilities are averaged: a `Generator` of `limner.generation`."""

    rules: CaptionRules | None = None
    """Rules that change or withhold sentences after the search; None without rules."""

    def __init__(self, models: Sequence[TrainedModel], backbone: Backbone | None = None) -> None:
        """Combine models that share their vocabularies and features.

        Args:
            models: one model, or several as an ensemble.
            backbone: computes the features of new images; None where no image will be given.

        Raises:
            RunError: the vocabularies or the features of the models differ.
        """
        require_ensemble(models)
        self.models, self.backbone, recipe = tuple(models), backbone, models[0].recipe
        self.tokenizer = models[0].tokenizer
        """Tokenizer of the generated text."""
        self.decoding = recipe.decoding
        """Decoding settings of the recipe, the default of all methods."""
        self.architecture = recipe.model.name
        """Name of the model in its recipe."""
        self.uses_image = any(model.config.features and model.model.uses_image for model in models)
        """Whether the generated text depends on the image."""
        self.parameters = sum(weight.numel() for model in models for weight in model.model.parameters())
        """Number of parameters without the backbone."""

    @classmethod
    def load(
        cls, *runs: Path | str, backbone: AnyBackbone = None, device: str = "cpu", encode_images: bool = True
    ) -> Self:
        """Load trained models.

        Args:
            runs: run directories; several are an ensemble.
            backbone: where the network is that computed the features, if it has moved since; or a backbone.
            device: 'cpu' or 'cuda'.
            encode_images: false where no image will be given; the backbone is then not loaded.

        Raises:
            RunError: a directory holds no complete model, a model has another task than the class, or the models do
                not form an ensemble.
            BackboneError: the backbone cannot be found or loaded.
        """
        return cls(*load_models(runs, backbone, device, encode_images))

    @cached_property
    def _device(self) -> torch.device:
        return device_of(self.models[0].model)

    def model(self, settings: DecodingSettings) -> GenerationModels:
        """Return the models as a step model."""
        return GenerationModels([trained.model for trained in self.models], settings.precision, self._device)

    def request(
        self,
        source: GenerationInput,
        settings: DecodingSettings,
        *,
        prefix: str = "",
        trace: Trace | None = None,
    ) -> Request:
        """Return the request for an input, see `Request`; SettingsError if the words to include are impossible."""
        tokenizer, words = self.models[0].source_tokenizer, source.must_include
        request = Request(
            self,
            source.item.id,
            settings,
            source=source,
            prefix=prefix,
            source_tokens=None if source.source is None or tokenizer is None else tokenizer.encode(source.source),
            constraint=compile_words(self.tokenizer, words) if words else None,
        )
        request.trace = trace
        return request

    def batch(
        self,
        targets: Sequence[str] | None = None,
        *,
        images: ImageInputs | None = None,
        sources: Sequence[str] | None = None,
    ) -> Batch:
        """Collate sentences and their inputs to the tensors that the models read, `models[k].model(batch)`.

        Args:
            targets: N captions or translations, of which there may be none (N = 0); None for decoding, without targets.
            images: N images, or one image of all sentences; None for none.
            sources: N source sentences of a translation model; None for another model.

        Raises:
            SettingsError: the numbers of sentences and images differ.
            MediaError: an image cannot be read.
        """
        count = 1 if images is None or is_image(images) else len(images)  # type: ignore[arg-type]  # a list
        texts = next((given for given in (targets, sources) if given is not None), [""] * count)
        if sources is not None and len(sources) != len(texts):
            raise SettingsError(f"expected {counted(len(texts), 'source sentence')}, got {len(sources):,}")
        inputs = images_of_sentences(texts, images)
        nothing: list[None] = [None] * len(texts)
        features, tokenizer = self.features_of(inputs), self.models[0].source_tokenizer
        encoded = nothing if tokenizer is None else map(tokenizer.encode, sources or [""] * len(texts))
        stored = nothing if features is None else features.take(list(map(new_item, inputs)))
        written = map(self.tokenizer.encode, targets or [""] * len(texts))
        ids = map(str, range(len(texts)))
        return collate(list(map(Example, ids, written, encoded, stored))).to(self._device)

    def features_of(self, images: Iterable[ImageInput | None]) -> FeatureSource | None:
        """Return the source of the features of new images; None without a backbone."""
        return BackboneFeatures(self.backbone, images) if self.backbone is not None else None

    def _explain(
        self,
        inputs: Sequence[GenerationInput],
        sentences: Sequence[Sentence],
        images: Iterable[ImageInput | None],
        on_progress: Progress | None,
    ) -> list[Explanation]:
        """Explain texts by the first model; SettingsError if it has no attention, alignment or gate."""
        model = self.models[0]
        explanations = explain(model, inputs, sentences, self.features_of(images), on_progress=on_progress)
        if explanations and not any(explanation.has_weights for explanation in explanations):
            raise SettingsError(
                f"model '{model.recipe.model.name}' has no attention to explain; use a model that attends to the "
                "image or to a source sentence, such as 'nmt'"
            )
        return explanations


def require_ensemble(models: Sequence[TrainedModel]) -> None:
    """Check that the probabilities of models can be averaged; RunError if their vocabularies or features differ."""
    first = models[0].config
    for config in (model.config for model in models[1:]):
        if config.tokenizer_sha256 != first.tokenizer_sha256 or (
            config.source_tokenizer_sha256 != first.source_tokenizer_sha256
        ):
            raise RunError(
                "the models of an ensemble must share one vocabulary: train them on the same collection with the same "
                "text settings and another training.seed"
            )
        if [spec.fingerprint for spec in config.features] != [spec.fingerprint for spec in first.features]:
            raise RunError(
                "the models of an ensemble must be trained on the same features; name models that are, or one --model"
            )


def load_models(
    runs: Sequence[Path | str], backbone: AnyBackbone, device: str, encode_images: bool = True
) -> tuple[list[TrainedModel], Backbone | None]:
    """Load trained models and the backbone of the first model; see `TextGenerator.load` for arguments and errors."""
    models = [load_trained_model(run, device) for run in runs]
    return models, load_backbone_of(models[0], backbone, device) if encode_images else None


def require_captioning(model: TrainedModel) -> None:
    """Check that a model generates text without a source sentence; RunError for labels and translations."""
    require_sentences(model)
    if model.source is not None:
        raise RunError(
            f"expected a captioning model, got one that translates from '{model.source.lang}': use 'limner translate' "
            "or limner.Translator"
        )


def require_sentences(model: TrainedModel) -> None:
    """Check that a model generates sentences; RunError for a model of labels, or one that only ranks."""
    if not model.recipe.model.generates:
        raise RunError(
            f"expected a model that generates sentences, got '{model.recipe.model.name}', which ranks images and "
            "sentences: use 'limner search', 'limner evaluate' or limner.Retriever"
        )
    if model.recipe.data.lang in LABEL_LANGUAGES:
        raise RunError("expected a model of sentences, got one of labels: use 'limner classify' or limner.Classifier")
