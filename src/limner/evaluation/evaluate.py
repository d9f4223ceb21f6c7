"""Evaluation of a split: decoding, metrics of sentences, perplexity and image-text retrieval."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from limner.bounds import Bytes, CountOrNone, Seed
from limner.data.collection import Collection
from limner.data.dataset import Examples
from limner.data.examples import Item
from limner.data.languages import RegionItem
from limner.decoding.scoring import score_examples
from limner.decoding.settings import DecodingSettings
from limner.errors import SettingsError
from limner.evaluation.caption_score import caption_scorer, with_caption_scores
from limner.evaluation.gates import gate_scores, measure_gates
from limner.evaluation.regions import RegionOptions, evaluate_regions
from limner.evaluation.retrieval import RetrievalSettings, evaluate_retrieval, require_shortlist
from limner.evaluation.sampled_bleu import sampled_scores
from limner.evaluation.validate import Hypotheses
from limner.features.store import FeatureStore
from limner.inference.base import require_ensemble
from limner.inference.features import ImageControl, control_features, mean_training_features, open_features
from limner.inference.generate import Generate, generate
from limner.metrics import (
    CAPTION_SCORES,
    IMAGE_METRICS,
    REGION_METRICS,
    Score,
    default_metrics,
    novelty,
    require_metrics,
    sentence_scores,
)
from limner.metrics.classification import accuracy_statistics, label_f1_scores
from limner.progress import StageProgress
from limner.retrieval.all_pairs import MEMORY_BUDGET, require_budget
from limner.retrieval.marginal import MARGINAL_IMAGES, sample_items
from limner.runs.evaluations import EvaluatedItem, Evaluation, GateStatistics, ImageRegions, Retrieval
from limner.runs.recipe import EvaluationSettings
from limner.runs.records import provenance
from limner.runs.trained_model import TrainedModel
from limner.settings import Settings
from limner.storage.outputs import name_or_default
from limner.text.labels import LABEL_LANGUAGES

MAX_LABEL_SCORES = 30
"""Maximum number of labels whose F1 is reported label by label."""

logger = logging.getLogger(__name__)


class EvaluationOptions(Settings):
    """Options of an evaluation."""

    split: str | None = None
    """Split to evaluate; None for the recipe's test split."""
    decoding: DecodingSettings | None = None
    """Decoding settings; None for the recipe's."""
    measures: EvaluationSettings | None = None
    """Additional measures; None for the recipe's."""
    metrics: tuple[str, ...] | None = None
    """Names of metrics of sentences or labels, or `map` and `localisation_map` of regions; None for all metrics of the
    target."""
    retrieval: bool = True
    """Whether to evaluate image-text retrieval, which scores every sentence with every image."""
    marginal_images: CountOrNone = MARGINAL_IMAGES
    """Number of training images sampled for the normalisation of Mao et al. (2015), eq. 7."""
    image_control: ImageControl = "right"
    """Images given to the model in place of the right images, see `control_features`."""
    skip_missing: bool = False
    """Whether items whose image has no features are left out and counted instead of being an error."""
    seed: Seed = 1
    """Seed of sampled sentences, of shuffled images, and of the example queries."""
    budget: Bytes = MEMORY_BUDGET
    """Working memory of retrieval in bytes."""
    exact: bool = False
    """Whether retrieval is computed in float32 even where bfloat16 is faster."""
    regions: RegionOptions = RegionOptions()
    """Options of a dense captioner."""

    @property
    def sentence_metrics(self) -> tuple[str, ...] | None:
        """The chosen metrics of sentences or labels; None if no metrics were chosen."""
        return tuple(name for name in self.metrics if name not in IMAGE_METRICS) if self.metrics else None

    @property
    def caption_scores(self) -> list[str]:
        """The chosen scores of captions of images."""
        return [name for name in self.metrics or () if name in CAPTION_SCORES]


class _Task(NamedTuple):
    """Inputs and settings that all parts of one evaluation use."""

    models: Sequence[TrainedModel]
    collection: Collection
    examples: Examples
    features: FeatureStore | None  # features of the right images; `examples` may have the features of a control
    options: EvaluationOptions
    split: str
    decoding: DecodingSettings
    measures: EvaluationSettings
    generate: Generate
    on_progress: StageProgress

    @property
    def first(self) -> TrainedModel:
        """The first model, with which retrieval is evaluated."""
        return self.models[0]

    @property
    def has_labels(self) -> bool:
        """Whether the targets are labels."""
        return self.first.recipe.data.lang in LABEL_LANGUAGES

    @property
    def decoding_signature(self) -> str:
        """Signature of the decoding settings and the size of the ensemble."""
        size = len(self.models)
        return self.decoding.signature + (f",models{size}" if size > 1 else "")


def evaluate(
    models: Sequence[TrainedModel],
    collection: Collection,
    *,
    options: EvaluationOptions | None = None,
    command: str = "limner.evaluate",
    generate: Generate = generate,
    on_progress: StageProgress | None = None,
) -> Evaluation:
    """Evaluate models on a split: sentence metrics of decoded hypotheses, perplexity and retrieval.

    Args:
        models: one model, or an ensemble; the first model of an ensemble retrieves.
        collection: collection with the split and the features of the models.
        options: options of the evaluation.
        command: command line, for the record.
        generate: decodes the hypotheses, with the features of the right images.
        on_progress: called with the name of a part of the work, the number of units done and their total.

    Raises:
        CollectionError, FeatureError: there is no such split, or an image has no features and `skip_missing` is false.
        RunError, SettingsError: models, metrics, a shortlist, an image control or a baseline that do not fit together.
    """
    began, options = time.perf_counter(), options or EvaluationOptions()
    require_ensemble(models)
    _require_fit(models[0], options)
    task = _open(models, collection, options, generate, on_progress or (lambda part, done, total: None))
    scorer = caption_scorer(collection, task.first.recipe.data, task.examples.items) if options.caption_scores else None
    retrieval_features = task.features if options.retrieval and _supports_retrieval(task) else None
    marginal_images = [] if retrieval_features is None else _images_of_marginal(task, retrieval_features)
    control, items = options.image_control, task.examples.items
    features = control_features(task.first, collection, task.features, control, items, options.seed)
    task = task._replace(examples=task.examples.with_features(features))
    decoded = _decode(task)
    scores, gates = ([], None) if decoded is None else (_sentence_scores(task, decoded), _gates(task, decoded))
    scores += [] if gates is None else gate_scores(gates)
    retrieval_scores, retrieval = _evaluate_retrieval(task, retrieval_features, marginal_images)
    region_scores, shown_regions = _evaluate_regions(task)
    evaluation = Evaluation(
        split=task.split,
        decoding="" if task.decoding == task.first.recipe.decoding and len(models) == 1 else task.decoding_signature,
        image_control=options.image_control,
        measured=_measured(task),
        left_out=task.examples.without_features,
        notes=_notes(task, decoded),
        scores=tuple(_with_control_signature((*region_scores, *scores, *retrieval_scores), options)),
        items=() if decoded is None else tuple(_evaluated_items(task, decoded)),
        retrieval=retrieval,
        gates=gates,
        regions=shown_regions,
        **provenance(collection, command, began),
    )
    if scorer is not None:
        return with_caption_scores(evaluation, scorer, collection, options.caption_scores, task.on_progress)
    return evaluation


def _require_fit(model: TrainedModel, options: EvaluationOptions) -> None:
    """Raise SettingsError for options of regions, of sentences or of image controls that do not fit the model."""
    require_metrics(options.sentence_metrics or ())
    if options.metrics and not model.recipe.model.generates:
        raise SettingsError(
            f"metric '{options.metrics[0]}': expected a model that generates sentences, got "
            f"'{model.recipe.model.name}', which ranks images and sentences; leave out --metrics"
        )
    if options.caption_scores and (model.recipe.model.describes_regions or not model.model.uses_image):
        raise SettingsError(
            f"metric '{options.caption_scores[0]}': expected a model that describes whole images, got "
            f"'{model.recipe.model.name}'; leave it out"
        )
    baseline = options.regions.baseline
    chosen = [f"metric '{name}'" for name in options.metrics or () if name in REGION_METRICS]
    chosen += [f"region baseline '{baseline}'"] if baseline else []
    if chosen and not model.recipe.model.describes_regions:
        raise SettingsError(
            f"{chosen[0]}: expected a model that describes regions, got '{model.recipe.model.name}'; leave it out"
        )
    if baseline and options.image_control != "right":
        raise SettingsError(
            f"region baseline '{baseline}': expected image control 'right', got '{options.image_control}'; leave "
            "one of them out"
        )


def _open(
    models: Sequence[TrainedModel],
    collection: Collection,
    options: EvaluationOptions,
    generate: Generate,
    on_progress: StageProgress,
) -> _Task:
    """Open the features and the examples, and take the settings that are not given from the recipe."""
    first = models[0]
    split = name_or_default(options.split, first.recipe.data.test, "the split")
    measures = options.measures or first.recipe.evaluation
    features = open_features(first, collection)
    leave_out = options.skip_missing or first.recipe.features.missing == "leave_out"
    examples = Examples.of_split(collection, split, first.target, features, source=first.source, leave_out=leave_out)
    if examples.source is not None and measures.samples:
        raise SettingsError("evaluation.samples: not supported for translation models; set it to 0")
    decoding = options.decoding or first.recipe.decoding
    return _Task(models, collection, examples, features, options, split, decoding, measures, generate, on_progress)


def _supports_retrieval(task: _Task) -> bool:
    if task.features is None or task.examples.source is not None or task.has_labels:
        return False
    if task.first.recipe.model.describes_regions:  # `evaluate_regions` retrieves regions by their codes
        return False
    if task.options.image_control in ("mean", "zero"):
        logger.warning(
            "image control '%s': retrieval is not evaluated, because all images have the same features",
            task.options.image_control,
        )
        return False
    return True


def _notes(task: _Task, decoded: Hypotheses | None) -> tuple[str, ...]:
    """Lines about excluded items, and reasons to doubt the scores."""
    tally = task.examples.tally
    if task.first.recipe.model.scores_sentences:
        task.examples.note_unknown_tokens()
    cut = 0 if decoded is None or task.has_labels else sum(not hypothesis.ended for hypothesis in decoded.best)
    tally.note(f"hypotheses were cut off at decoding.max_length={task.decoding.max_length} before their end", "", cut)
    if task.split == task.first.recipe.data.train:
        tally.note(f"sentences are of split '{task.split}', which the model was trained on", "", len(task.examples))
    return tuple(tally.lines())


def _decode(task: _Task) -> Hypotheses | None:
    """Find the best hypothesis of every input, or None if no score needs one.

    A baseline of regions does not write the model's sentences, metrics of regions alone do not need them, and a model
    that only ranks generates none.
    """
    generates = task.first.recipe.model.generates
    regions_only = task.options.metrics and set(task.options.metrics) <= set(REGION_METRICS)
    if task.options.regions.baseline or regions_only or not generates:
        return None
    inputs, features = task.examples.generation_inputs(), task.examples.features
    on_progress = partial(task.on_progress, "decoding")
    n_best = task.generate(task.models, inputs, features, task.decoding, on_progress=on_progress)
    return Hypotheses.decoded(task.models, inputs, [hypotheses[0] for hypotheses in n_best], features)


def _sentence_scores(task: _Task, decoded: Hypotheses) -> list[Score]:
    """Compute the scores of the hypotheses, of sampled sentences, and the perplexity of the references."""
    first, measures = task.first, task.measures
    chosen = task.options.sentence_metrics
    metrics = default_metrics(first.recipe.data.lang) if chosen is None else chosen
    task.on_progress("metrics", 0, len(metrics))
    scores = [metric.score for metric in decoded.statistics(metrics)]
    task.on_progress("metrics", len(metrics), len(metrics))
    if task.has_labels:
        by_label = label_f1_scores(decoded.tokens, [entry.references for entry in decoded.inputs])
        scores += by_label if len(by_label) <= MAX_LABEL_SCORES else []
    elif first.source is None:
        scores += novelty(decoded.tokens, _training_sentences(first, task.collection))
    scores = [score._replace(signature=f"{score.signature}|decoding:{task.decoding_signature}") for score in scores]
    if measures.samples:
        scores += sampled_scores(
            task.models,
            task.examples,
            measures,
            task.decoding,
            seed=task.options.seed,
            on_progress=partial(task.on_progress, "sampling"),
        )
    if not first.recipe.model.scores_sentences:
        return scores
    further = [model.model for model in task.models[1:]]
    scored = score_examples(first.model, task.examples, further=further, skip_words=measures.skip_words)
    return [*scores, scored.perplexity]


def _gates(task: _Task, decoded: Hypotheses) -> GateStatistics | None:
    if task.examples.source is None or not task.first.model.uses_image:
        return None
    on_progress = partial(task.on_progress, "gate values")
    return measure_gates(task.first, decoded.inputs, decoded.best, task.examples.features, on_progress=on_progress)


def _images_of_marginal(task: _Task, features: FeatureStore) -> list[Item]:
    """Check the settings of retrieval, and draw the training images by which it is normalised."""
    require_shortlist(task.measures.shortlist, task.examples.items)
    require_budget(task.options.budget)
    return sample_items(task.collection, task.first.recipe.data.train, features, task.options.marginal_images)


def _evaluate_retrieval(
    task: _Task, features: FeatureStore | None, marginal_images: Sequence[Item]
) -> tuple[list[Score], Retrieval | None]:
    """Evaluate retrieval both ways, normalised with images of the training split; nothing without features."""
    if features is None:
        return [], None
    options = task.options
    return evaluate_retrieval(
        task.first,
        task.examples,
        task.collection,
        marginal_images,
        RetrievalSettings(task.measures.shortlist, options.budget, options.seed, options.exact),
        mean=mean_training_features(task.first, task.collection, features) if task.measures.shortlist else None,
        on_progress=partial(task.on_progress, "retrieval"),
    )


def _evaluate_regions(task: _Task) -> tuple[list[Score], tuple[ImageRegions, ...]]:
    """Evaluate the regions that a dense captioner detects; nothing for other models and for image controls."""
    if not task.first.recipe.model.describes_regions or task.options.image_control != "right":
        return [], ()
    changes = {} if task.options.retrieval else {"retrieval_images": 0}
    return evaluate_regions(
        task.first,
        task.examples,
        task.collection,
        task.decoding,
        task.options.regions.model_copy(update=changes),
        seed=task.options.seed,
        on_progress=partial(task.on_progress, "regions"),
    )


def _measured(task: _Task) -> str:
    """Signature of the settings that differ from the recipe's, and of the baseline of regions."""
    default, baseline = task.first.recipe.evaluation.model_dump(), task.options.regions.baseline
    changed = [f"{key}{value or 0}" for key, value in task.measures.model_dump().items() if value != default[key]]
    return ",".join([*changed, *([f"region_{baseline}"] if baseline else [])])


def _with_control_signature(scores: Iterable[Score], options: EvaluationOptions) -> Iterable[Score]:
    """Append the image control to the signature of every score, unless the images are the right images."""
    control = options.image_control
    suffix = {"right": "", "shuffled": f"|images:shuffled,seed{options.seed}"}.get(control, f"|images:{control}")
    return (score._replace(signature=score.signature + suffix) for score in scores)


def _training_sentences(model: TrainedModel, collection: Collection) -> Iterator[str]:
    """Read the sentences of the training split as tokens joined by spaces; none if the split does not exist."""
    data = model.recipe.data
    if data.train in collection.splits():
        for item in model.target.items(collection.items(data.train)):
            yield from (" ".join(model.tokenizer.words(text)) for text in item.texts(data.lang))


def _evaluated_items(task: _Task, decoded: Hypotheses) -> Iterable[EvaluatedItem]:
    tokens, references, (texts, shown_references) = decoded.tokens, decoded.references, decoded.texts
    if decoded.labels is None:
        quality = sentence_scores(tokens, references)
    else:
        quality = [100 * right / max(count, 1) for right, count in accuracy_statistics(tokens, references).tolist()]
    for row, (entry, hypothesis) in enumerate(zip(decoded.inputs, decoded.best, strict=True)):
        yield EvaluatedItem(
            id=entry.item.id,
            image=task.collection.absolute_image_path(entry.item),
            references=shown_references[row],
            source=entry.source,
            hypothesis=texts[row],
            tokens=tokens[row],
            reference_tokens=tuple(references[row]),
            log_prob=hypothesis.log_prob,
            sentence_score=quality[row],
            ids=hypothesis.tokens,
            box=entry.item.regions[0].box if isinstance(entry.item, RegionItem) else None,
        )
