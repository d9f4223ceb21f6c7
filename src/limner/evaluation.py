"""Decoding and measuring a split: what validation does briefly and `limner evaluate` does in full."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from limner.attention import gate_scores, measure_gates
from limner.checkpoint import Checkpoint
from limner.data.batching import (
    Control,
    ControlPictures,
    Examples,
    Pictures,
    PictureSource,
    Query,
    cut,
    mean_picture,
    prefetch,
    split_examples,
)
from limner.data.collection import Collection
from limner.data.examples import Batch, Example, Item, Seen, collate
from limner.errors import CheckpointError, SettingsError
from limner.metrics import METRICS, Counted, Score, count_sentences, novelty, require_metrics, sentence_scores
from limner.models.protocols import device_of
from limner.recipe import EvaluationSettings
from limner.records import EvaluatedItem, Evaluation
from limner.retrieval import MARGINAL_PICTURES, Searched, measure_search, sampled_items
from limner.sampling import sampled_scores
from limner.scoring import BUDGET, score_examples
from limner.search import Hypothesis, SearchSettings, search
from limner.shortlist import looks, require_shortlist
from limner.text.vocab import Tokenizer
from limner.vision.features import require_same

DEFAULT_METRICS = tuple(METRICS)

logger = logging.getLogger(__name__)


def describe_items(
    models: Sequence[Checkpoint],
    items: Sequence[Item],
    pictures: PictureSource | None,
    settings: SearchSettings,
    *,
    sources: Sequence[str] | None = None,
    first_words: Sequence[str] | None = None,
    batch_size: int = 128,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Hypothesis]]:
    """Write sentences about each item, or translate one of each.

    Args:
        models: one model, or several of one vocabulary as an ensemble.
        items: what to describe.
        pictures: their features.
        settings: how to search.
        sources: for each item the sentence to translate, with models that translate.
        first_words: for each item, words its sentence has to begin with.
        batch_size: items at once, fewer where sentences are very long; it changes no result.
        progress: told the items that are done, and how many there are.

    Raises:
        CheckpointError: the models cannot describe together.
    """
    require_ensemble(models)
    tokenizer = models[0].tokenizer
    prefixes = [tokenizer.encode(text) for text in first_words] if first_words is not None else None
    read: list[list[int]] | list[None] = [None] * len(items)
    order = list(range(len(items)))
    if sources is not None:
        source = models[0].source_tokenizer
        assert source is not None, "only translation models are given source sentences"
        read = [source.encode(text) for text in sources]
        order.sort(key=lambda row: len(read[row] or ()))
    groups = list(cut(order, [len(tokens or ()) for tokens in read], batch_size))

    def make(rows: Sequence[int]) -> Batch:
        some = [items[row] for row in rows]
        visuals = pictures.take(some) if pictures else [None] * len(some)
        return collate([Example(items[row].id, (), read[row], seen) for row, seen in zip(rows, visuals, strict=True)])

    device, done = device_of(models[0].model), 0
    found: list[list[Hypothesis]] = [[] for _ in items]
    for rows, batch in zip(groups, prefetch(make, groups, 2), strict=True):
        given = [prefixes[row] for row in rows] if prefixes is not None else None
        for row, hypotheses in zip(
            rows, search([one.model for one in models], batch.to(device), settings, given), strict=True
        ):
            found[row] = hypotheses
        done += len(rows)
        if progress is not None:
            progress(done, len(items))
    return found


def answer(
    models: Sequence[Checkpoint],
    queries: Sequence[Query],
    pictures: PictureSource | None,
    settings: SearchSettings,
    **options: Any,  # noqa: ANN401
) -> list[list[Hypothesis]]:
    """`describe_items` for what examples ask, see `Examples.queries`."""
    texts = [query.source for query in queries if query.source is not None]
    items = [query.item for query in queries]
    return describe_items(models, items, pictures, settings, sources=texts or None, **options)


def validate(learner: Checkpoint, examples: Examples, metrics: Iterable[str]) -> dict[str, float]:
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
        asked = examples.queries()
        best = [found[0] for found in answer([learner], asked, examples.pictures, learner.recipe.search)]
        learner.model.train(training)
        scores = _sentence_scores(learner.tokenizer, best, asked, decoded)
        values |= {score.name: score.value for score in scores}
    return values


def evaluate(
    models: Sequence[Checkpoint],
    collection: Collection,
    *,
    split: str | None = None,
    settings: SearchSettings | None = None,
    measure: EvaluationSettings | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
    retrieval: bool = True,
    marginal: int = MARGINAL_PICTURES,
    pictures: Control = "right",
    leave_out: bool = False,
    seed: int = 1,
    budget: int = BUDGET,
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
        pictures: what the model is shown in place of each picture, see `shown_pictures`.
        leave_out: go on without the pictures that have no features, as the recipe may say too; they are counted.
        seed: of that sample, of the examples shown, of sampled sentences and of shuffled pictures.
        budget: bytes of working memory of the search.
        command: how this was called, for the record.
        progress: told the part of the work, what is done of it and how much it is.

    Raises:
        CheckpointError: the models cannot describe together.
        CollectionError: there is no such split.
        FeatureError: a picture has no features, and `leave_out` is false.
        SettingsError: an unknown metric, a shortlist of more pictures than there are, or a control of pictures for
            a model that looks at none.
    """
    began = time.perf_counter()
    require_metrics(metrics)
    require_ensemble(models)
    first, data = models[0], models[0].recipe.data
    split, settings, measure = split or data.test, settings or first.recipe.search, measure or first.recipe.evaluation
    note = progress or (lambda part, done, total: None)
    features = open_pictures(first, collection)
    leave_out = leave_out or first.recipe.visual.missing == "leave_out"
    examples = split_examples(collection, split, first.tokenizer, data.lang, features, 1 << 30, leave_out, first.source)
    if examples.source is not None and measure.samples:
        raise SettingsError("evaluation.samples: of translations nothing is sampled; leave it 0")
    searched_in = features if retrieval and _searchable(examples, features, pictures) else None
    if searched_in is not None:
        require_shortlist(measure.shortlist, examples.items)
    examples = examples.showing(shown_pictures(first, collection, features, pictures, examples.items, seed))
    asked = examples.queries()
    found = answer(models, asked, examples.pictures, settings, progress=partial(note, "describing"))
    best = [hypotheses[0] for hypotheses in found]
    how = settings.signature + (f",models{len(models)}" if len(models) > 1 else "")
    scores = _described_scores(first, best, asked, metrics, _training_texts(first, collection), how)
    if measure.samples:
        scores += sampled_scores(models, examples, measure, settings, seed=seed, progress=partial(note, "sampling"))
    scores.append(score_examples(first.model, examples, skip_words=measure.skip_words).perplexity)
    gates = None
    if examples.source is not None and looks(first.model):
        gates = measure_gates(first, asked, best, examples.pictures, progress=partial(note, "reading the gate"))
        scores += [] if gates is None else gate_scores(gates)
    searched = Searched((), None)
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
            progress=told,
        )
    return Evaluation(
        split=split,
        search="" if settings == first.recipe.search and len(models) == 1 else how,
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


def _searchable(examples: Examples, features: Pictures | None, pictures: Control) -> bool:
    """Whether sentences and pictures can be searched for each other."""
    if features is None or examples.source is not None:  # a translation is told by its source, not by the picture
        return False
    if pictures in ("mean", "zero"):
        logger.warning("pictures '%s': search is left out, for all are alike and every order is a tie", pictures)
        return False
    return True


def _search(
    model: Checkpoint,
    examples: Examples,
    collection: Collection,
    features: Pictures,
    shortlist: int | None,
    marginal: int,
    *,
    seed: int,
    **options: Any,  # noqa: ANN401
) -> Searched:
    """`measure_search` beside pictures sampled from the training split; a shortlist is made with its mean picture."""
    others = sampled_items(collection, model.recipe.data.train, features, marginal, seed)
    mean = mean_of_training(model, collection, features) if shortlist else None
    return measure_search(model, examples, collection, others, shortlist=shortlist, mean=mean, seed=seed, **options)


def _changes(measure: EvaluationSettings, usual: EvaluationSettings) -> str:
    before = usual.model_dump()
    return ",".join(f"{key}{value or 0}" for key, value in measure.model_dump().items() if value != before[key])


def _signed(scores: Iterable[Score], pictures: Control, seed: int) -> Iterable[Score]:
    """Every figure says when the pictures were not the right ones."""
    note = {"right": "", "shuffled": f"|pictures:shuffled,seed{seed}"}.get(pictures, f"|pictures:{pictures}")
    return (score._replace(signature=score.signature + note) for score in scores)


def shown_pictures(
    model: Checkpoint,
    collection: Collection,
    pictures: Pictures | None,
    control: Control,
    items: Sequence[Item],
    seed: int,
) -> PictureSource | None:
    """The pictures that a model is shown of a split.

    Args:
        model: it tells which split it was trained on, and whether it looks at pictures.
        collection: where that split is.
        pictures: the right ones; None where the model has no features.
        control: 'right' for these; 'shuffled' for another item's, by the seed; 'mean' for the mean of the training
            split's features and 'zero' for zeros, the same for every item that has a picture.
        items: the items of the split.
        seed: of the shuffling.

    Raises:
        SettingsError: there is a control, and the model looks at no pictures.
        CollectionError: the mean is asked for, and the collection has no training split.
    """
    if control == "right":
        return pictures
    if pictures is None or not looks(model.model):
        raise SettingsError(f"pictures: '{control}', but this model looks at no pictures; evaluate it with 'right'")
    if control == "shuffled":
        return ControlPictures.shuffled(pictures, items, seed)
    if control == "mean":
        return ControlPictures(pictures, {}, mean_of_training(model, collection, pictures))
    nothing = {form: np.zeros(shape, dtype=np.float16) for form, shape in pictures.forms.items()}
    return ControlPictures(pictures, {}, nothing)


def mean_of_training(model: Checkpoint, collection: Collection, pictures: Pictures) -> Seen:
    """The mean picture of the split a model was trained on, by form.

    Raises:
        CollectionError: the collection has no such split.
    """
    items = collection.items(model.recipe.data.train)
    return mean_picture(pictures, [item for item in items if item.medium is not None and pictures.knows(item)])


def require_ensemble(models: Sequence[Checkpoint]) -> None:
    """Refuse models that cannot describe together.

    Raises:
        CheckpointError: their vocabularies or features differ.
    """
    first = models[0].config
    for other in (model.config for model in models[1:]):
        if other.tokenizer_sha256 != first.tokenizer_sha256 or (
            other.source_tokenizer_sha256 != first.source_tokenizer_sha256
        ):
            raise CheckpointError(
                "the models of an ensemble must share one vocabulary: train them on the same collection "
                "with the same text settings (another training.seed is enough to make them differ)"
            )
        if [spec.fingerprint for spec in other.features] != [spec.fingerprint for spec in first.features]:
            raise CheckpointError("the models of an ensemble must look at the same features")


def open_pictures(model: Checkpoint, collection: Collection, cache_mib: int | None = None) -> Pictures | None:
    """The collection's features for a model; FeatureError where another backbone made them.

    Args:
        model: it tells which.
        collection: where they are.
        cache_mib: tables of up to this size are held in memory; none for what the recipe says.
    """
    if not model.config.features:
        return None
    names = [spec.name for spec in model.config.features]
    pictures = Pictures.open(collection, names, model.recipe.visual.cache_mib if cache_mib is None else cache_mib)
    for table, spec in zip(pictures.tables, model.config.features, strict=True):
        require_same(table.spec, spec, f"{collection.path}/features/{spec.name}")
    return pictures


def _training_texts(model: Checkpoint, collection: Collection) -> list[str]:
    data = model.recipe.data
    if data.train not in collection.splits() or data.source_lang is not None:
        return []
    texts = (text for item in collection.items(data.train) for text in item.texts(data.lang))
    return [" ".join(model.tokenizer.words(text)) for text in texts]


def count_answers(
    tokenizer: Tokenizer, best: Sequence[Hypothesis], asked: Sequence[Query], metrics: Sequence[str]
) -> list[Counted]:
    """What metrics count of the sentences found, one by one; metrics that cannot run here are left out.

    Those that tokenise by themselves read running text, unless the vocabulary has no case or no punctuation.
    """
    said = [tokenizer.decode(one.tokens) for one in best]
    references = [[" ".join(tokenizer.words(text)) for text in query.references] for query in asked]
    texts = None
    if not tokenizer.settings.lowercase and tokenizer.settings.punctuation:
        running = [tokenizer.decode(one.tokens, detokenise=True) for one in best]
        texts = (running, [query.references for query in asked])
    return count_sentences(said, references, metrics, texts=texts, lang=tokenizer.settings.lang)


def _sentence_scores(
    tokenizer: Tokenizer, best: Sequence[Hypothesis], asked: Sequence[Query], metrics: Sequence[str]
) -> list[Score]:
    return [counted.score for counted in count_answers(tokenizer, best, asked, metrics)]


def _described_scores(
    model: Checkpoint,
    best: Sequence[Hypothesis],
    asked: Sequence[Query],
    metrics: Sequence[str],
    training: Sequence[str],
    how: str,
) -> list[Score]:
    """What the sentences found are worth, and how new descriptions are; signed with how they were searched for."""
    scores = _sentence_scores(model.tokenizer, best, asked, metrics)
    if model.source is None:
        scores += novelty([model.tokenizer.decode(one.tokens) for one in best], training)
    return [score._replace(signature=f"{score.signature}|search:{how}") for score in scores]


def _evaluated(
    tokenizer: Tokenizer, best: Sequence[Hypothesis], asked: Sequence[Query], collection: Collection
) -> Iterable[EvaluatedItem]:
    tokens = [tokenizer.decode(one.tokens) for one in best]
    references = [[" ".join(tokenizer.words(text)) for text in query.references] for query in asked]
    each = sentence_scores(tokens, references)
    for query, hypothesis, said, pieces, score in zip(asked, best, tokens, references, each, strict=True):
        yield EvaluatedItem(
            id=query.item.id,
            image=collection.image_file(query.item),
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
