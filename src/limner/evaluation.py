"""Decoding and measuring a split: what validation does briefly and `limner evaluate` does in full."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from torch import Tensor

from limner.checkpoint import Checkpoint
from limner.data.batching import Examples, Pictures, PictureSource, prefetch, split_examples
from limner.data.collection import Collection
from limner.data.examples import Batch, Example, Item, collate
from limner.errors import CollectionError
from limner.hardware import native_bf16
from limner.metrics import METRICS, Score, novelty, perplexity, score_sentences, sentence_scores
from limner.metrics.ranks import rank_all, retrieval_curves, retrieval_scores
from limner.records import (
    EvaluatedItem,
    Evaluation,
    FoundPicture,
    FoundSentence,
    PictureQuery,
    Published,
    RecallCurves,
    Retrieval,
    SentenceQuery,
)
from limner.retrieval import BUDGET, log_marginal, pair_log_probs
from limner.scoring import score_examples
from limner.search import Hypothesis, SearchSettings, search
from limner.text.vocab import Tokenizer
from limner.vision.features import require_same

logger = logging.getLogger(__name__)

DEFAULT_METRICS = tuple(METRICS)
MARGINAL_PICTURES = 1000
SHOWN_QUERIES = 12
SHOWN_FOUND = 5


def describe_items(
    models: Sequence[Checkpoint],
    items: Sequence[Item],
    pictures: PictureSource | None,
    settings: SearchSettings,
    *,
    first_words: Sequence[str] | None = None,
    batch_size: int = 128,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Hypothesis]]:
    """Write sentences about each item.

    Args:
        models: one model, or several of one vocabulary as an ensemble.
        items: what to describe.
        pictures: their features.
        settings: how to search.
        first_words: for each item, words its sentence has to begin with.
        batch_size: items at once; it changes no result.
        progress: told the items that are done, and how many there are.
    """
    tokenizer = models[0].tokenizer
    prefixes = [tokenizer.encode(text) for text in first_words] if first_words is not None else None
    starts = range(0, len(items), batch_size)

    def make(start: int) -> Batch:
        some = items[start : start + batch_size]
        visuals = pictures.take(some) if pictures else [None] * len(some)
        return collate([Example(item.id, visual=seen) for item, seen in zip(some, visuals, strict=True)])

    device = next(models[0].model.parameters()).device
    found: list[list[Hypothesis]] = []
    for start, batch in zip(starts, prefetch(make, starts, 2), strict=True):
        given = prefixes[start : start + batch_size] if prefixes is not None else None
        found += search([one.model for one in models], batch.to(device), settings, given)
        if progress is not None:
            progress(len(found), len(items))
    return found


def validate(learner: Checkpoint, examples: Examples, metrics: Iterable[str]) -> dict[str, float]:
    """Measure a model on examples: perplexity of their sentences, the other metrics from real decoding."""
    wanted = list(metrics)
    values: dict[str, float] = {}
    if "perplexity" in wanted:
        values["perplexity"] = score_examples(learner.model, examples).perplexity
    decoded = [name for name in wanted if name != "perplexity"]
    if decoded:
        training = learner.model.training
        learner.model.eval()
        items = examples.items
        best = [
            found[0] for found in describe_items([learner], items, examples.pictures, learner.recipe.search)
        ]
        learner.model.train(training)
        scores = _sentence_scores(learner.tokenizer, best, items, examples.lang, decoded)
        values |= {score.name: score.value for score in scores}
    return values


def evaluate(
    models: Sequence[Checkpoint],
    collection: Collection,
    *,
    split: str | None = None,
    settings: SearchSettings | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
    retrieval: bool = True,
    marginal: int = MARGINAL_PICTURES,
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
        metrics: names of sentence metrics.
        retrieval: whether to search both ways as well (every sentence is scored with every picture).
        marginal: training pictures sampled for the normalisation of Mao et al. (2015), eq. 7.
        seed: of that sample, and of the examples shown.
        budget: bytes of working memory of the search.
        command: how this was called, for the record.
        progress: told the part of the work, what is done of it and how much it is.
    """
    began = time.perf_counter()
    first = models[0]
    recipe = first.recipe
    split, settings = split or recipe.data.test, settings or recipe.search
    note = progress or (lambda part, done, total: None)
    pictures = open_pictures(first, collection)
    examples = split_examples(
        collection, split, first.tokenizer, recipe.data.lang, pictures, max_words=1 << 30
    )
    items = examples.items
    found = describe_items(models, items, pictures, settings, progress=lambda d, n: note("describing", d, n))
    best = [hypotheses[0] for hypotheses in found]
    scores = _sentence_scores(first.tokenizer, best, items, examples.lang, metrics)
    scored = score_examples(first.model, examples)
    scores.append(perplexity(float(scored.log_probs.double().sum()), int(scored.words.sum())))
    training = _training_texts(first, collection)
    scores += novelty([first.tokenizer.decode(one.tokens) for one in best], training)
    shown = None
    searched = _with_pictures(examples, first.tokenizer) if retrieval else None
    if searched is not None and pictures is not None:
        others = sampled_items(collection, recipe.data.train, pictures, marginal, seed)
        matrix = search_scores(
            first, searched, others, budget=budget, progress=lambda d, n: note("searching", d, n)
        )
        ranks = rank_all(matrix.numpy(), searched.owners)
        scores += [
            score._replace(signature=f"{score.signature}|marginal:{len(others) or 'own'}")
            if score.name.startswith("image_to_text")
            else score
            for score in retrieval_scores(ranks, searched.owners)
        ]
        curves = RecallCurves(**retrieval_curves(ranks, searched.owners))
        shown = _shown_retrieval(
            matrix, searched, collection, ranks.image_to_text, ranks.text_to_image, curves, seed
        )
    return Evaluation(
        split=split,
        collection=str(collection.path.resolve()),
        fingerprint=collection.fingerprint(),
        command=command,
        seconds=time.perf_counter() - began,
        scores=tuple(
            score._replace(signature=f"{score.signature}|{_searched(settings)}")
            if score.name in METRICS
            else score
            for score in scores
        ),
        items=tuple(_evaluated(first.tokenizer, best, items, examples.lang, collection)),
        retrieval=shown,
        published=Published(name=recipe.published.row, values=recipe.published.values)
        if recipe.published
        else None,
    )


def open_pictures(model: Checkpoint, collection: Collection) -> Pictures | None:
    """The collection's features for a model; FeatureError where another backbone made them."""
    if not model.config.features:
        return None
    pictures = Pictures.open(collection, [spec.name for spec in model.config.features])
    for table, spec in zip(pictures.tables, model.config.features, strict=True):
        require_same(table.spec, spec, f"{collection.path}/features/{spec.name}")
    return pictures


def _with_pictures(examples: Examples, tokenizer: Tokenizer) -> Examples | None:
    """Those about items that have a picture; the others cannot be searched."""
    items = [item for item in examples.items if item.image is not None]
    if len(items) == len(examples.items):
        return examples
    absent = len(examples.items) - len(items)
    logger.warning("search is measured without the %d items that have no picture", absent)
    if not items:
        return None
    return Examples(items, tokenizer, examples.lang, examples.pictures, max_words=1 << 30)


def search_scores(
    model: Checkpoint,
    examples: Examples,
    others: Sequence[Item],
    *,
    budget: int,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Log P(w|I) - log P(w) of every sentence with every picture of the examples, (S, I).

    For a given picture this ranks sentences by eq. 7 of Mao et al. (2015); for a given sentence it ranks pictures
    by P(w|I), since P(w) is the same for all of them.

    Args:
        model: gives the probabilities.
        examples: S sentences about I items.
        others: the pictures of the marginal P(w); none for the examples' own.
        budget: bytes of working memory.
        progress: told the pictures that are done, and how many there are.

    Raises:
        CollectionError: an item has no picture.
    """
    missing = [item.id for item in examples.items if item.image is None]
    if missing:
        raise CollectionError(
            f"item '{missing[0]}' has no picture; search needs one for every item of the split"
        )
    device = next(model.model.parameters()).device
    bf16 = native_bf16(device) and model.recipe.training.precision != "fp32"
    items = [*examples.items, *others]
    scores = pair_log_probs(
        model.model, examples.targets, items, examples.pictures, budget=budget, bf16=bf16, progress=progress
    )
    own, marginal = scores[:, : len(examples.items)], scores[:, len(examples.items) :]
    return own - log_marginal(marginal if others else own).unsqueeze(1)


def sampled_items(
    collection: Collection, split: str, pictures: Pictures, count: int, seed: int
) -> list[Item]:
    """Up to `count` items of a split that have a picture, drawn by the seed; none if there is no such split."""
    if split not in collection.splits():
        return []
    items = [item for item in collection.items(split) if item.image is not None and pictures.knows(item)]
    order = np.random.default_rng(seed).permutation(len(items))[:count]
    return [items[row] for row in sorted(order)]


def _training_texts(model: Checkpoint, collection: Collection) -> list[str]:
    data = model.recipe.data
    if data.train not in collection.splits():
        return []
    texts = (text for item in collection.items(data.train) for text in item.texts(data.lang))
    return [" ".join(model.tokenizer.words(text)) for text in texts]


def _sentence_scores(
    tokenizer: Tokenizer, best: Sequence[Hypothesis], items: Sequence[Item], lang: str, metrics: Sequence[str]
) -> list[Score]:
    hypotheses = [tokenizer.decode(one.tokens) for one in best]
    references = [[" ".join(tokenizer.words(text)) for text in item.texts(lang)] for item in items]
    texts = None
    if not tokenizer.settings.lowercase and tokenizer.settings.punctuation:
        running = [tokenizer.decode(one.tokens, detokenise=True) for one in best]
        texts = (running, [item.texts(lang) for item in items])
    return score_sentences(hypotheses, references, metrics, texts=texts)


def _searched(settings: SearchSettings) -> str:
    if settings.sample is not None:
        return f"search:sample(t={settings.sample.temperature},seed={settings.sample.seed})"
    return f"search:beam{settings.beam_size},penalty{settings.length_penalty:g}"


def _evaluated(
    tokenizer: Tokenizer, best: Sequence[Hypothesis], items: Sequence[Item], lang: str, collection: Collection
) -> Iterable[EvaluatedItem]:
    references = [[" ".join(tokenizer.words(text)) for text in item.texts(lang)] for item in items]
    each = sentence_scores([tokenizer.decode(one.tokens) for one in best], references)
    for item, hypothesis, score in zip(items, best, each, strict=True):
        yield EvaluatedItem(
            id=item.id,
            image=_path(collection, item),
            references=tuple(item.texts(lang)),
            hypothesis=tokenizer.decode(hypothesis.tokens, detokenise=True),
            log_prob=hypothesis.log_prob,
            sentence_score=score,
        )


def _path(collection: Collection, item: Item) -> str | None:
    return str(collection.image_path(item).resolve()) if item.image else None


def _shown_retrieval(
    matrix: Tensor,
    examples: Examples,
    collection: Collection,
    picture_ranks: np.ndarray,
    sentence_ranks: np.ndarray,
    curves: RecallCurves,
    seed: int,
) -> Retrieval:
    random = np.random.default_rng(seed)
    items = examples.items

    def found_sentences(picture: int) -> tuple[FoundSentence, ...]:
        best = matrix[:, picture].topk(min(SHOWN_FOUND, len(matrix))).indices.tolist()
        return tuple(
            FoundSentence(text=examples.texts[row], right=examples.owners[row] == picture) for row in best
        )

    def found_pictures(sentence: int) -> tuple[FoundPicture, ...]:
        best = matrix[sentence].topk(min(SHOWN_FOUND, matrix.shape[1])).indices.tolist()
        right = examples.owners[sentence]
        return tuple(
            FoundPicture(id=items[row].id, image=_path(collection, items[row]), right=row == right)
            for row in best
        )

    return Retrieval(
        image_to_text=tuple(
            PictureQuery(
                id=items[row].id,
                image=_path(collection, items[row]),
                rank=int(picture_ranks[row]),
                top=found_sentences(row),
            )
            for row in islice(random.permutation(len(items)).tolist(), SHOWN_QUERIES)
        ),
        text_to_image=tuple(
            SentenceQuery(
                text=examples.texts[row],
                rank=int(sentence_ranks[row]),
                image_id=items[examples.owners[row]].id,
                top=found_pictures(row),
            )
            for row in islice(random.permutation(len(examples)).tolist(), SHOWN_QUERIES)
        ),
        curves=curves,
    )


def save_evaluation(evaluation: Evaluation, run: Path) -> Path:
    """Write RUN/evaluation/SPLIT.json, where the report finds it."""
    path = run / "evaluation" / f"{evaluation.split}.json"
    evaluation.save(path)
    return path
