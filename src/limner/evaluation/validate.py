"""Metrics of decoded hypotheses or labels, and validation during training: metrics of a split without retrieval."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from limner.data.batching import ONE_PROCESS, Shards
from limner.data.dataset import Examples, FeatureSource, GenerationInput
from limner.decoding.scoring import score_examples
from limner.decoding.sentence import Sentence
from limner.evaluation.regions import region_precision
from limner.inference.classifier import Probabilities, expected_point, label_probabilities, predicted_labels
from limner.inference.generate import generate_in_shards
from limner.metrics import REGION_METRICS, RETRIEVAL_METRICS, MetricStatistics, sentence_statistics
from limner.metrics.ranks import rank_all, recall_sum
from limner.models.sequence_labeller import SequenceLabeller
from limner.retrieval.all_pairs import pair_log_probs
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

    Models are in evaluation mode. TrainingError if an input has another number of labels than a model that labels every
    step has outputs.
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
    """Write expected and right positions in percent of the frame's width, with 'hidden' for hidden objects."""
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


class Hypotheses(NamedTuple):
    """The best hypothesis of every input, with its references."""

    tokenizer: Tokenizer
    inputs: Sequence[GenerationInput]
    best: Sequence[Sentence]
    tokens: list[str]
    """Tokens of each hypothesis, joined by spaces."""
    references: list[list[str]]
    """Tokens of its references, joined by spaces."""
    labels: Texts | None
    """Labels with their probabilities, and the right labels; None for sentences."""

    @classmethod
    def decoded(
        cls,
        models: Sequence[TrainedModel],
        inputs: Sequence[GenerationInput],
        best: Sequence[Sentence],
        features: FeatureSource | None,
    ) -> Self:
        """Tokenise decoded hypotheses and their references once; see `label_texts` for arguments and errors."""
        tokenizer = models[0].tokenizer
        references = [[" ".join(tokenizer.words(text)) for text in entry.references] for entry in inputs]
        tokens = [hypothesis.tokenised(tokenizer) for hypothesis in best]
        return cls(tokenizer, inputs, best, tokens, references, label_texts(models, inputs, best, features))

    @property
    def texts(self) -> Texts:
        """Running text of the hypotheses and references, or their labels."""
        if self.labels is not None:
            return self.labels
        texts = [hypothesis.decoded(self.tokenizer).text for hypothesis in self.best]
        return texts, [entry.references for entry in self.inputs]

    def statistics(self, metrics: Sequence[str]) -> list[MetricStatistics]:
        """Compute the statistics of several metrics; metrics that cannot be computed on this machine are left out.

        Metrics with their own tokenisation are given running text, unless the vocabulary has no case or no punctuation.
        """
        settings = self.tokenizer.settings
        as_written = self.labels is not None or (not settings.lowercase and settings.punctuation)
        texts = self.texts if as_written else None
        statistics = sentence_statistics(self.tokens, self.references, metrics, texts=texts, lang=settings.lang)
        if settings.lang in LABEL_LANGUAGES:
            return statistics
        # Metrics of tokens, and metrics of running text that read tokens, depend on how the text was split into words.
        return [
            measured._replace(signature=f"{measured.signature}|{settings.signature}")
            if measured.metric.reads == "tokens" or texts is None
            else measured
            for measured in statistics
        ]


def validate(
    trained: TrainedModel, examples: Examples, metrics: Iterable[str], shards: Shards = ONE_PROCESS
) -> dict[str, float]:
    """Compute metrics of a model on a split; the training mode of the model is restored.

    Sentences are scored and decoded in the batches of one process, divided among all; the metrics then equal the
    metrics of one process. `perplexity` is of the reference sentences; `map` and `localisation_map` compare detected
    and annotated regions on `training.validation_images` images; `recall_sum` ranks sentences and images by a model
    that generates none; other metrics compare decoded sentences with the references. The result has each metric that
    can be computed on this machine; of several processes the first has all of them.
    """
    names = list(metrics)
    values: dict[str, float] = {}
    if "perplexity" in names:
        skip_words = trained.recipe.evaluation.skip_words
        scores = score_examples(trained.model, examples, skip_words=skip_words, shards=shards)
        values["perplexity"] = scores.perplexity.value
    sentence_metrics = [name for name in names if name not in ("perplexity", *REGION_METRICS, *RETRIEVAL_METRICS)]
    training = trained.model.training
    trained.model.eval()
    if sentence_metrics:
        inputs = examples.generation_inputs()
        n_best = generate_in_shards(trained, inputs, examples.features, shards)
        best = [hypotheses[0] for hypotheses in n_best]
        if shards.first:
            for metric in Hypotheses.decoded([trained], inputs, best, examples.features).statistics(sentence_metrics):
                values[metric.score.name] = metric.score.value
    if shards.first and any(name in RETRIEVAL_METRICS for name in names):
        log_probs = pair_log_probs(trained.model, examples.targets, examples.items, examples.features).numpy()
        values["recall_sum"] = recall_sum(rank_all(log_probs, examples.owners))
    if shards.first and any(name in REGION_METRICS for name in names):
        count = trained.recipe.training.validation_images
        regions = region_precision(trained, examples, trained.recipe.decoding, count)
        values |= {score.name: score.value for score in regions if score.name in names}
    trained.model.train(training)
    return values
