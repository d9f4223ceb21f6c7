"""Validation during training: metrics of a split without retrieval."""

from __future__ import annotations

from collections.abc import Iterable

from limner.data.batching import ONE_PROCESS, Shards
from limner.data.dataset import Examples
from limner.decoding.scoring import score_examples
from limner.evaluation.hypotheses import hypothesis_statistics, label_texts
from limner.evaluation.regions import region_precision
from limner.inference.generate import generate_in_shards
from limner.metrics import REGION_METRICS, RETRIEVAL_METRICS
from limner.metrics.ranks import rank_all, recall_sum
from limner.retrieval.all_pairs import pair_log_probs
from limner.runs.trained_model import TrainedModel


def validate(
    trained: TrainedModel, examples: Examples, metrics: Iterable[str], shards: Shards = ONE_PROCESS
) -> dict[str, float]:
    """Compute metrics of a model on a split; the model is left in the mode it was in.

    Sentences are scored and decoded in the batches of one process, divided among all; the metrics are then those of one
    process.

    Args:
        trained: model to validate; sentences are decoded with the settings of its recipe.
        examples: examples of the split.
        metrics: names of metrics. `perplexity` is of the reference sentences; `map` and `localisation_map` compare
            detected regions with the annotated ones on `training.validation_images` images; `recall_sum` ranks
            sentences and images by a model that generates none; the others compare decoded sentences with the
            references.
        shards: division of the batches among processes.

    Returns:
        Value of each metric that can be computed on this machine; of several processes the first returns all of them.
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
            texts = label_texts([trained], inputs, best, examples.features)
            for metric in hypothesis_statistics(trained.tokenizer, best, inputs, sentence_metrics, texts):
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
