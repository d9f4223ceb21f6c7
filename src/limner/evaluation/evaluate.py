"""Decoding and measuring a split: what validation does briefly and `limner evaluate` does in full."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from limner.data.collection import Collection
from limner.data.dataset import Examples, GenerationInput
from limner.decoding.hypotheses import Hypothesis
from limner.decoding.scoring import score_examples
from limner.decoding.settings import DecodingSettings
from limner.errors import SettingsError
from limner.evaluation.gates import gate_scores, measure_gates
from limner.evaluation.hypothesis_statistics import hypothesis_statistics
from limner.evaluation.retrieval import RetrievalEvaluation, RetrievalSettings, evaluate_retrieval
from limner.evaluation.sampled_bleu import sampled_scores
from limner.features.controls import ImageControl
from limner.features.store import FeatureStore
from limner.inference.collection_features import control_features, mean_training_features, open_features
from limner.inference.generate import generate, require_ensemble
from limner.metrics import METRICS, Score, novelty, require_metrics, sentence_scores
from limner.retrieval.all_pairs import MEMORY_BUDGET
from limner.retrieval.marginal import MARGINAL_IMAGES, sample_items
from limner.retrieval.shortlist import require_shortlist
from limner.runs.recipe import EvaluationSettings
from limner.runs.records import EvaluatedItem, Evaluation
from limner.runs.trained_model import TrainedModel
from limner.text.tokenizer import Tokenizer

DEFAULT_METRICS = tuple(METRICS)

logger = logging.getLogger(__name__)


def validate(learner: TrainedModel, examples: Examples, metrics: Iterable[str]) -> dict[str, float]:
    """Measure a model on examples: perplexity of their sentences, the other metrics from real decoding."""
    wanted = list(metrics)
    values: dict[str, float] = {}
    if "perplexity" in wanted:
        skip_words = learner.recipe.evaluation.skip_words
        values["perplexity"] = score_examples(learner.model, examples, skip_words=skip_words).perplexity.value
    decoded = [name for name in wanted if name != "perplexity"]
    if decoded:
        training = learner.model.training
        learner.model.eval()
        asked = examples.generation_inputs()
        best = [found[0] for found in generate([learner], asked, examples.features, learner.recipe.decoding)]
        learner.model.train(training)
        scores = _sentence_scores(learner.tokenizer, best, asked, decoded)
        values |= {score.name: score.value for score in scores}
    return values


def evaluate(
    models: Sequence[TrainedModel],
    collection: Collection,
    *,
    split: str | None = None,
    settings: DecodingSettings | None = None,
    measure: EvaluationSettings | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
    retrieval: bool = True,
    marginal: int = MARGINAL_IMAGES,
    pictures: ImageControl = "right",
    leave_out: bool = False,
    seed: int = 1,
    budget: int = MEMORY_BUDGET,
    command: str = "limner.evaluate",
    progress: Callable[[str, int, int], None] | None = None,
) -> Evaluation:
    """Describe, score and search one split, and measure all of it.

    Args:
        models: one model, or an ensemble (which describes; scoring and search are the first model's).
        collection: where the split is.
        split: none for the recipe's test split.
        settings: how to search; none for the recipe's.
        measure: what else to measure; none for what the recipe says.
        metrics: names of sentence metrics.
        retrieval: whether to search both ways as well (every sentence is scored with every picture).
        marginal: training pictures sampled for the normalisation of Mao et al. (2015), eq. 7.
        pictures: what the model is shown in place of each picture, see `control_features`.
        leave_out: go on without the pictures that have no features, as the recipe may say too; they are counted.
        seed: of that sample, of the examples shown, of sampled sentences and of shuffled pictures.
        budget: bytes of working memory of the search.
        command: how this was called, for the record.
        progress: told the part of the work, what is done of it and how much it is.

    Raises:
        RunError: the models cannot describe together.
        CollectionError: there is no such split.
        FeatureError: a picture has no features, and `leave_out` is false.
        SettingsError: an unknown metric, a shortlist of more pictures than there are, or a control of pictures for
            a model that looks at none.
    """
    began = time.perf_counter()
    require_metrics(metrics)
    require_ensemble(models)
    first, data = models[0], models[0].recipe.data
    split, settings, measure = split or data.test, settings or first.recipe.decoding, measure or first.recipe.evaluation
    note = progress or (lambda part, done, total: None)
    features = open_features(first, collection)
    leave_out = leave_out or first.recipe.features.missing == "leave_out"
    examples = Examples.of_split(collection, split, first.target, features, source=first.source, leave_out=leave_out)
    if examples.source is not None and measure.samples:
        raise SettingsError("evaluation.samples: of translations nothing is sampled; leave it 0")
    searched_in = features if retrieval and _searchable(examples, features, pictures) else None
    if searched_in is not None:
        require_shortlist(measure.shortlist, examples.items)
    examples = examples.with_features(control_features(first, collection, features, pictures, examples.items, seed))
    asked = examples.generation_inputs()
    found = generate(models, asked, examples.features, settings, on_progress=partial(note, "describing"))
    best = [hypotheses[0] for hypotheses in found]
    how = settings.signature + (f",models{len(models)}" if len(models) > 1 else "")
    scores = _described_scores(first, best, asked, metrics, _training_texts(first, collection), how)
    if measure.samples:
        scores += sampled_scores(models, examples, measure, settings, seed=seed, progress=partial(note, "sampling"))
    scores.append(score_examples(first.model, examples, skip_words=measure.skip_words).perplexity)
    gates = None
    if examples.source is not None and first.model.uses_image:
        gates = measure_gates(first, asked, best, examples.features, on_progress=partial(note, "reading the gate"))
        scores += [] if gates is None else gate_scores(gates)
    searched = RetrievalEvaluation((), None)
    if searched_in is not None:
        told = partial(note, "searching")
        searched = _search(
            first,
            examples,
            collection,
            searched_in,
            measure.shortlist,
            marginal,
            budget=budget,
            seed=seed,
            on_progress=told,
        )
    return Evaluation(
        split=split,
        decoding="" if settings == first.recipe.decoding and len(models) == 1 else how,
        pictures=pictures,
        measured=_changes(measure, first.recipe.evaluation),
        collection=str(collection.path.resolve()),
        fingerprint=collection.fingerprint(),
        command=command,
        seconds=time.perf_counter() - began,
        left_out=examples.without_features,
        scores=tuple(_signed((*scores, *searched.scores), pictures, seed)),
        items=tuple(_evaluated(first.tokenizer, best, asked, collection)),
        retrieval=searched.shown,
        gates=gates,
    )


def _searchable(examples: Examples, features: FeatureStore | None, pictures: ImageControl) -> bool:
    """Whether sentences and pictures can be searched for each other."""
    if features is None or examples.source is not None:  # a translation is told by its source, not by the picture
        return False
    if pictures in ("mean", "zero"):
        logger.warning("pictures '%s': search is left out, for all are alike and every order is a tie", pictures)
        return False
    return True


def _search(
    model: TrainedModel,
    examples: Examples,
    collection: Collection,
    features: FeatureStore,
    shortlist: int | None,
    marginal: int,
    *,
    seed: int,
    budget: int,
    on_progress: Callable[[int, int], None],
) -> RetrievalEvaluation:
    """`evaluate_retrieval` beside images sampled from the training split; a shortlist needs its mean features."""
    others = sample_items(collection, model.recipe.data.train, features, marginal, seed)
    mean = mean_training_features(model, collection, features) if shortlist else None
    settings = RetrievalSettings(shortlist, budget, seed)
    return evaluate_retrieval(model, examples, collection, others, settings, mean=mean, on_progress=on_progress)


def _changes(measure: EvaluationSettings, usual: EvaluationSettings) -> str:
    before = usual.model_dump()
    return ",".join(f"{key}{value or 0}" for key, value in measure.model_dump().items() if value != before[key])


def _signed(scores: Iterable[Score], pictures: ImageControl, seed: int) -> Iterable[Score]:
    """Every figure says when the pictures were not the right ones."""
    note = {"right": "", "shuffled": f"|pictures:shuffled,seed{seed}"}.get(pictures, f"|pictures:{pictures}")
    return (score._replace(signature=score.signature + note) for score in scores)


def _training_texts(model: TrainedModel, collection: Collection) -> list[str]:
    data = model.recipe.data
    if data.train not in collection.splits() or data.source_lang is not None:
        return []
    texts = (text for item in collection.items(data.train) for text in item.texts(data.lang))
    return [" ".join(model.tokenizer.words(text)) for text in texts]


def _sentence_scores(
    tokenizer: Tokenizer, best: Sequence[Hypothesis], asked: Sequence[GenerationInput], metrics: Sequence[str]
) -> list[Score]:
    return [counted.score for counted in hypothesis_statistics(tokenizer, best, asked, metrics)]


def _described_scores(
    model: TrainedModel,
    best: Sequence[Hypothesis],
    asked: Sequence[GenerationInput],
    metrics: Sequence[str],
    training: Sequence[str],
    how: str,
) -> list[Score]:
    """What the sentences found are worth, and how new descriptions are; signed with how they were searched for."""
    scores = _sentence_scores(model.tokenizer, best, asked, metrics)
    if model.source is None:
        scores += novelty([model.tokenizer.decode(one.tokens) for one in best], training)
    return [score._replace(signature=f"{score.signature}|decoding:{how}") for score in scores]


def _evaluated(
    tokenizer: Tokenizer, best: Sequence[Hypothesis], asked: Sequence[GenerationInput], collection: Collection
) -> Iterable[EvaluatedItem]:
    tokens = [tokenizer.decode(one.tokens) for one in best]
    references = [[" ".join(tokenizer.words(text)) for text in query.references] for query in asked]
    each = sentence_scores(tokens, references)
    for query, hypothesis, said, pieces, score in zip(asked, best, tokens, references, each, strict=True):
        yield EvaluatedItem(
            id=query.item.id,
            image=collection.absolute_image_path(query.item),
            references=query.references,
            source=query.source,
            hypothesis=tokenizer.decode(hypothesis.tokens, detokenise=True),
            tokens=said,
            reference_tokens=tuple(pieces),
            log_prob=hypothesis.log_prob,
            sentence_score=score,
            ids=hypothesis.tokens,
        )


def save_evaluation(evaluation: Evaluation, run: Path) -> Path:
    """Write RUN/evaluation/SPLIT.json (or SPLIT-SEARCH.json), where the report finds it.

    One of fewer figures does not take the place of one of more: it becomes …-part.json.
    """
    path = run / "evaluation" / f"{evaluation.name}.json"
    if path.exists():
        there = {score.name for score in Evaluation.load(path).scores}
        if {score.name for score in evaluation.scores} < there:
            path = path.with_name(f"{evaluation.name}-part.json")
    evaluation.save(path)
    return path
