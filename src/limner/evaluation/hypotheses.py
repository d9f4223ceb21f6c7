"""Metric statistics of decoded hypotheses, and decoded labels as texts with probabilities."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from limner.data.dataset import FeatureSource, GenerationInput
from limner.decoding.sentence import Sentence
from limner.inference.label_probabilities import Probabilities, expected_point, label_probabilities, predicted_labels
from limner.metrics import MetricStatistics, sentence_statistics
from limner.models.sequence_labeller import SequenceLabeller
from limner.runs.trained_model import TrainedModel
from limner.text.labels import HIDDEN, LABEL_LANGUAGES, TRACK, PredictedLabel, position_text, write_predictions
from limner.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


def label_texts(
    models: Sequence[TrainedModel],
    inputs: Sequence[GenerationInput],
    best: Sequence[Sentence],
    features: FeatureSource | None,
) -> Texts | None:
    """Write decoded labels with their probabilities and the right labels; None for models of sentences.

    Args:
        models: one model, or an ensemble, in evaluation mode.
        inputs: inputs with their references.
        best: decoded labels of each input.
        features: features of the inputs; None for models that use none.

    Raises:
        TrainingError: an input has another number of labels than outputs of a model that labels every step.
    """
    if models[0].recipe.data.lang not in LABEL_LANGUAGES:
        return None
    if isinstance(models[0].model, SequenceLabeller):
        for entry, hypothesis in zip(inputs, best, strict=True):
            if entry.references and hypothesis.ended:
                models[0].model.require_labels(entry.item.id, len(entry.references[0].split()), len(hypothesis.tokens))
    entries = models[0].tokenizer.entries
    if unfinished := sum(not hypothesis.ended for hypothesis in best):
        logger.warning(
            "%d of %d inputs have more labels than decoding.max_length; raise it to the number of steps of the longest "
            "input",
            unfinished,
            len(best),
        )
    probabilities = label_probabilities(models, inputs, best, features)
    if models[0].recipe.data.lang == TRACK:
        return _track_texts(entries, inputs, best, probabilities)
    texts = [
        write_predictions(predicted_labels(entries, hypothesis, values))
        for hypothesis, values in zip(best, probabilities, strict=True)
    ]
    return texts, [entry.references for entry in inputs]


def _track_texts(
    entries: Sequence[str],
    inputs: Sequence[GenerationInput],
    best: Sequence[Sentence],
    probabilities: Sequence[Probabilities],
) -> Texts:
    """Write expected and right positions in percent of the frame's width; positions of hidden objects say so."""
    texts: list[str] = []
    references: list[tuple[str, ...]] = []
    for entry, hypothesis, values in zip(inputs, best, probabilities, strict=True):
        width, height = entry.item.frame_size or (1, 1)
        aspect = height / width
        predictions = []
        for token, row in zip(hypothesis.tokens, values, strict=True):
            x, y = expected_point(entries, row)
            predictions.append(PredictedLabel(position_text((x, aspect * y)), float(row[token])))
        texts.append(write_predictions(predictions))
        labels = entry.item.frame_labels or ("",) * len(entry.item.positions)
        right = [
            position_text((x, aspect * y), hidden=label == HIDDEN)
            for (x, y), label in zip(entry.item.positions, labels, strict=True)
        ]
        references.append((" ".join(right),))
    return texts, references


Texts = tuple[list[str], list[tuple[str, ...]]]
"""Hypotheses and their references as running text."""


def hypothesis_statistics(
    tokenizer: Tokenizer,
    best: Sequence[Sentence],
    inputs: Sequence[GenerationInput],
    metrics: Sequence[str],
    texts: Texts | None = None,
) -> list[MetricStatistics]:
    """Compute the statistics of several metrics; metrics that cannot be computed on this machine are left out.

    Metrics with their own tokenisation are given running text, unless the vocabulary has no case or no punctuation.

    Args:
        tokenizer: tokenizer of the hypotheses.
        best: one hypothesis of each input.
        inputs: inputs with their references.
        metrics: names of metrics.
        texts: running text of the hypotheses and references; None to join the tokens by the tokenizer.
    """
    tokens = [tokenizer.decode(hypothesis.tokens, copied=hypothesis.copied) for hypothesis in best]
    references = [[" ".join(tokenizer.words(text)) for text in entry.references] for entry in inputs]
    if texts is None and not tokenizer.settings.lowercase and tokenizer.settings.punctuation:
        running_text = [
            tokenizer.decode(hypothesis.tokens, detokenise=True, copied=hypothesis.copied) for hypothesis in best
        ]
        texts = (running_text, [entry.references for entry in inputs])
    statistics = sentence_statistics(tokens, references, metrics, texts=texts, lang=tokenizer.settings.lang)
    if tokenizer.settings.lang in LABEL_LANGUAGES:
        return statistics
    # Metrics of tokens, and metrics of running text that read tokens, depend on how the text was split into words.
    return [
        measured._replace(signature=f"{measured.signature}|{tokenizer.settings.signature}")
        if measured.metric.reads == "tokens" or texts is None
        else measured
        for measured in statistics
    ]
