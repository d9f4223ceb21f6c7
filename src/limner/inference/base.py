"""Common parts of `Captioner` and `Translator`: an ensemble of models, a backbone for new images, explanations."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, Self

from limner.data.dataset import FeatureSource, GenerationInput
from limner.decoding.ranking import Derivation, Hypothesis
from limner.decoding.settings import DecodingSettings
from limner.errors import RunError, SettingsError
from limner.features.encoders.base import Backbone
from limner.inference.explain import Explanation, explain
from limner.inference.generate import require_ensemble
from limner.inference.new_images import BackboneFeatures, load_backbone_of
from limner.inference.sentences import Translation
from limner.media.image import ImageInput
from limner.progress import Progress
from limner.runs.trained_model import TrainedModel, load_trained_model
from limner.text.labels import LABEL_LANGUAGES
from limner.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class GeneratedText(Protocol):
    """A caption or a translation."""

    @property
    def ids(self) -> tuple[int, ...]: ...
    @property
    def log_prob(self) -> float: ...
    @property
    def score(self) -> float: ...
    @property
    def ended(self) -> bool: ...


class TextGenerator:
    """Base class of models that generate text: one trained model, or an ensemble whose probabilities are averaged."""

    def __init__(self, models: Sequence[TrainedModel], backbone: Backbone | None = None) -> None:
        """Combine models that share their vocabularies and features.

        Args:
            models: one model, or several as an ensemble.
            backbone: computes the features of new images; None where no image will be given.

        Raises:
            RunError: the vocabularies or the features of the models differ.
        """
        require_ensemble(models)
        self.models, self.backbone = tuple(models), backbone
        self._features: FeatureSource | None = None

    @classmethod
    def load(
        cls, *runs: Path | str, backbone: str | None = None, device: str = "cpu", encode_images: bool = True
    ) -> Self:
        """Load trained models.

        Args:
            runs: run directories; several are an ensemble.
            backbone: where the network is that computed the features, if it has moved since the training.
            device: 'cpu' or 'cuda'.
            encode_images: false where no image will be given; the backbone is then not loaded.

        Raises:
            RunError: a directory holds no complete model, a model has another task than the class, or the models do
                not form an ensemble.
            BackboneError: the backbone cannot be found or loaded.
        """
        return cls(*load_models(runs, backbone, device, encode_images))

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the generated text."""
        return self.models[0].tokenizer

    @property
    def decoding(self) -> DecodingSettings:
        """Decoding settings of the recipe, the default of all methods."""
        return self.models[0].recipe.decoding

    @property
    def uses_image(self) -> bool:
        """Whether the generated text depends on the image."""
        return any(model.config.features and model.model.uses_image for model in self.models)

    def features_of(self, images: Iterable[ImageInput | None]) -> FeatureSource | None:
        """Return the source of the features of new images; None without a backbone."""
        if self._features is not None:
            return self._features
        return BackboneFeatures(self.backbone, images) if self.backbone is not None else None

    def with_features(self, features: FeatureSource) -> Self:
        """Return a copy that takes the features of images, by their paths, from a source instead of its backbone."""
        result = copy.copy(self)
        result._features = features
        return result

    def _explain(
        self,
        inputs: Sequence[GenerationInput],
        generated: Sequence[GeneratedText],
        images: Iterable[ImageInput | None],
        on_progress: Progress | None,
    ) -> list[Explanation]:
        """Explain generated texts by the first model.

        Raises:
            SettingsError: the model has no attention, alignment or gate.
        """
        model = self.models[0]
        hypotheses = [
            Hypothesis(one.ids, one.log_prob, one.score, one.ended, derivation=_derivation(one)) for one in generated
        ]
        explanations = explain(model, inputs, hypotheses, self.features_of(images), on_progress=on_progress)
        if explanations and not any(one.has_weights for one in explanations):
            raise SettingsError(
                f"model '{model.recipe.model.name}' has no attention to explain; use a model that attends to the "
                "image or to a source sentence, such as 'nmt'"
            )
        return explanations


def _derivation(one: GeneratedText) -> Derivation | None:
    return one.derivation if isinstance(one, Translation) else None


def load_models(
    runs: Sequence[Path | str], backbone: str | None, device: str, encode_images: bool = True
) -> tuple[list[TrainedModel], Backbone | None]:
    """Load trained models and the backbone of the first; arguments and errors are those of `TextGenerator.load`."""
    models = [load_trained_model(run, device) for run in runs]
    return models, load_backbone_of(models[0], backbone, device) if encode_images else None


def require_ranking(model: TrainedModel) -> None:
    """Check that a model scores sentences for images, whether it generates them or not.

    Raises:
        RunError: it is a model of labels or a translation model.
    """
    if model.recipe.model.generates:
        require_captioning(model)


def require_captioning(model: TrainedModel) -> None:
    """Check that a model generates text without a source sentence.

    Raises:
        RunError: it is a model of labels or a translation model.
    """
    require_sentences(model)
    if model.source is not None:
        raise RunError(
            f"expected a captioning model, got one that translates from '{model.source.lang}': use 'limner translate' "
            "or limner.Translator"
        )


def require_sentences(model: TrainedModel) -> None:
    """Check that a model generates sentences.

    Raises:
        RunError: it is a model of labels, or one that only ranks.
    """
    if not model.recipe.model.generates:
        raise RunError(
            f"expected a model that generates sentences, got '{model.recipe.model.name}', which ranks images and "
            "sentences: use 'limner search', 'limner evaluate' or limner.Retriever"
        )
    if model.recipe.data.lang in LABEL_LANGUAGES:
        raise RunError("expected a model of sentences, got one of labels: use 'limner classify' or limner.Classifier")
