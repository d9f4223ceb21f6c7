"""Labels of sentences, images, clips or sounds, and their probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from limner.data.dataset import FeatureSource, GenerationInput
from limner.data.examples import collate
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import mean_log_probs
from limner.errors import LimnerError, MediaError, RunError, SettingsError
from limner.features.encoders.base import Backbone
from limner.generation.sentences import warn_of_unknown_words
from limner.inference.base import TextGenerator
from limner.inference.explain import hypothesis_batches
from limner.inference.features import new_item
from limner.inference.generate import generate
from limner.media.image import ImageInput, require_list
from limner.media.modality import names_file
from limner.models.protocols import device_of
from limner.runs.trained_model import TrainedModel
from limner.text.labels import LABEL, LABEL_LANGUAGES, TRACK, Point, PredictedLabel, cell_centres
from limner.text.vocab import SPECIAL_TOKENS

Probabilities = NDArray[np.float64]

LABEL_BATCH_SIZE = 64


@torch.no_grad()
def label_probabilities(
    models: Sequence[TrainedModel],
    inputs: Sequence[GenerationInput],
    hypotheses: Sequence[Sentence],
    features: FeatureSource | None,
    *,
    batch_size: int = LABEL_BATCH_SIZE,
) -> list[Probabilities]:
    """Compute P(y_t | x, y_1, ..., y_{t-1}) of every label at every step of decoded labels.

    Args:
        models: one model, or several whose probabilities are averaged, in evaluation mode.
        inputs: N inputs.
        hypotheses: decoded labels of each input, y_1, ..., y_T.
        features: features of the inputs; None for models that use none.
        batch_size: inputs a batch, fewer where they are long; it changes no result.

    Returns:
        Probabilities (T, V) of each input, special tokens included.
    """
    results: dict[int, Probabilities] = {}
    for rows, examples in hypothesis_batches(models[0], inputs, hypotheses, features, batch_size):
        batch = collate(examples).to(device_of(models[0].model))
        values = mean_log_probs([model.model(batch).logits for model in models]).double().exp().cpu().numpy()
        for row, probabilities in zip(rows, values, strict=True):
            results[row] = probabilities[: len(hypotheses[row].tokens)]
    return [results[row] for row in range(len(inputs))]


def predicted_labels(
    entries: Sequence[str], hypothesis: Sentence, probabilities: Probabilities
) -> list[PredictedLabel]:
    """Return the T decoded labels by their entries in the vocabulary, with their probabilities, of (T, V)."""
    return [
        PredictedLabel(entries[token], float(row[token]))
        for token, row in zip(hypothesis.tokens, probabilities, strict=True)
    ]


def expected_point(entries: Sequence[str], probabilities: Probabilities) -> Point:
    """Compute the expected position: the mean of the cells' centres, weighted by their probabilities (V,)."""
    centres = cell_centres(entries)
    cells = np.isfinite(centres[:, 0])
    weights = probabilities[cells]
    x, y = (weights @ centres[cells] / max(weights.sum(), 1e-12)).tolist()
    return x, y


def all_labels(entries: Iterable[str], probabilities: Probabilities) -> list[PredictedLabel]:
    """Return all labels of one step with their probabilities (V,), the most probable first."""
    pairs = [PredictedLabel(label, float(value)) for label, value in zip(entries, probabilities, strict=True)]
    return sorted(pairs, key=lambda pair: -pair.probability)


MAX_STEPS = 10_000
"""Maximum number of labels of one input."""


class StepLabel(NamedTuple):
    """Label of one step, or of a whole input."""

    labels: tuple[PredictedLabel, ...]
    """All labels with their probabilities, the most probable first."""
    position: Point | None = None
    """Expected position as shares of the width and height of the frame; None unless the labels are positions."""

    @property
    def label(self) -> str:
        """The most probable label."""
        return self.labels[0].label

    @property
    def probability(self) -> float:
        """Probability of the most probable label."""
        return self.labels[0].probability


class Classification(NamedTuple):
    """Labels of one input."""

    steps: tuple[StepLabel, ...]
    """The label of the input, or the labels of its tokens or frames."""

    @property
    def label(self) -> str:
        """The label of the input, or of its first step if every step has a label."""
        return self.steps[0].label

    @property
    def probability(self) -> float:
        """Probability of `label`."""
        return self.steps[0].probability


class Classifier(TextGenerator):
    """A model trained on labels (`data.lang: label`, `frame_labels` or `track`), or an ensemble of several."""

    def __init__(self, models: Sequence[TrainedModel], backbone: Backbone | None = None) -> None:
        """Combine models that share their labels and inputs, see `TextGenerator`.

        Raises:
            RunError: the vocabularies or features of the models differ, or they generate sentences.
        """
        super().__init__(models, backbone)
        if models[0].recipe.data.lang not in LABEL_LANGUAGES:
            raise RunError(
                f"expected a model of labels, got one that generates sentences in '{models[0].recipe.data.lang}': use "
                "'limner describe' or 'limner translate', or train one with data.lang=label"
            )

    @property
    def reads_sentences(self) -> bool:
        """Whether the inputs are sentences rather than files."""
        return self.models[0].source is not None

    @property
    def has_step_labels(self) -> bool:
        """Whether every step of an input has a label, rather than the whole input."""
        return self.models[0].recipe.data.lang != LABEL

    @property
    def predicts_positions(self) -> bool:
        """Whether the labels are positions of an object."""
        return self.models[0].recipe.data.lang == TRACK

    def classify(self, inputs: Sequence[ImageInput], *, batch_size: int = LABEL_BATCH_SIZE) -> list[Classification]:
        """Compute the labels of sentences or files.

        Args:
            inputs: sentences; or paths of images, clips or sounds, whichever the model was trained on.
            batch_size: number of inputs that are processed together; the labels do not depend on it.

        Raises:
            SettingsError: a sentence has no words, or is the name of a file.
            MediaError: a file cannot be read.
        """
        sources, features = self._inputs(inputs), None if self.reads_sentences else self.features_of(inputs)
        settings = DecodingSettings(max_length=self._max_steps(sources))
        hypotheses = [best for best, *_ in generate(self.models, sources, features, settings, batch_size=batch_size)]
        entries, special = self.tokenizer.entries, len(SPECIAL_TOKENS)
        results = []
        for values in label_probabilities(self.models, sources, hypotheses, features, batch_size=batch_size):
            steps = (
                StepLabel(
                    tuple(all_labels(entries[special:], row[special:])),
                    expected_point(entries, row) if self.predicts_positions else None,
                )
                for row in values
            )
            results.append(Classification(tuple(steps)))
        return results

    def classify_each(
        self, inputs: Sequence[ImageInput], *, batch_size: int = LABEL_BATCH_SIZE
    ) -> list[Classification | LimnerError]:
        """Compute the labels of each input; an input that cannot be read does not stop the others.

        Args:
            inputs: inputs to classify, see `classify`.
            batch_size: number of inputs that are computed together.

        Returns:
            For each input its labels, or the error that it cannot be read.
        """
        require_list(inputs, "input")
        results: list[Classification | LimnerError | None] = [self._input_error(source) for source in inputs]
        rows = [row for row, error in enumerate(results) if error is None]
        size = len(rows) if self.reads_sentences else batch_size  # sentences at once: unknown words are reported once
        for start in range(0, len(rows), size or 1):
            batch = rows[start : start + size]
            try:
                labels: Sequence[Classification | LimnerError] = self.classify(
                    [inputs[row] for row in batch], batch_size=batch_size
                )
            except MediaError as error:
                labels = self.classify_each([inputs[row] for row in batch], batch_size=1) if len(batch) > 1 else [error]
            for row, result in zip(batch, labels, strict=True):
                results[row] = result
        return [result for result in results if result is not None]

    def _input_error(self, source: ImageInput) -> LimnerError | None:
        """Return the error of an input that is not the sentence or file that the model expects; None if valid."""
        language = self.models[0].source
        if language is None:
            if isinstance(source, str | Path) and not Path(source).is_file():
                return MediaError(f"'{source}': no such file; this model classifies files, not sentences")
            return None
        text = str(source)
        if names_file(text):
            return SettingsError(
                f"'{text}': expected a sentence, as this model classifies sentences, got the name of a file; give the "
                "sentence itself, or a text file with one sentence per line as --file"
            )
        if not language.tokenizer.words(text):
            return SettingsError(f"expected a sentence of at least one word, got '{text}'")
        return None

    def _inputs(self, inputs: Sequence[ImageInput]) -> list[GenerationInput]:
        require_list(inputs, "input")
        language = self.models[0].source
        for source in inputs:
            if error := self._input_error(source):
                raise error
        if language is None:
            return [GenerationInput(new_item(source), None, ()) for source in inputs]
        texts = [str(source) for source in inputs]
        warn_of_unknown_words(language.tokenizer, texts, "the label does not depend on which words these are")
        return [GenerationInput(new_item(None, text), text, ()) for text in texts]

    def _max_steps(self, inputs: Sequence[GenerationInput]) -> int:
        """Return the maximum number of labels: tokens of the longest sentence, or locations."""
        language = self.models[0].source
        if language is not None:
            return max([1, *(len(language.tokenizer.encode(source.source or "")) for source in inputs)])
        shapes = [spec.shape for spec in self.models[0].config.features]
        return min(MAX_STEPS, max([1, *(shape[0] for shape in shapes if len(shape) > 1)]))
