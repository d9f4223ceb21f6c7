"""Evaluation of captioners of the hub on a collection, and scores of judged captions by models of the hub."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from limner.data.collection import Collection
from limner.data.examples import Item
from limner.decoding.settings import change_decoding
from limner.errors import CollectionError
from limner.evaluation.correlate import Judgements, PairScores, judged_pairs
from limner.hub.families import family_of
from limner.hub.families.joint_space import HubSpace
from limner.hub.settings import DEFAULT_LANG, HubSettings
from limner.inference.load import load_hub_captioner
from limner.inference.scorer import HubScorer
from limner.metrics import default_metrics, require_metrics, sentence_scores, sentence_statistics
from limner.progress import StageProgress
from limner.runs.records import EvaluatedItem, Evaluation
from limner.text.words import TextSettings, split_words

BATCH_SIZE = 32
"""Images that are described together."""


def evaluate_hub(
    folder: Path,
    collection: Collection,
    split: str,
    *,
    metrics: Sequence[str] = (),
    decoding: Mapping[str, Any] | None = None,
    device: str = "cpu",
    settings: Mapping[str, Any] | None = None,
    on_progress: StageProgress,
) -> Evaluation:
    """Evaluate a captioner of the hub by metrics of its captions.

    The images with a sentence in the language of the prompt are described. Words are split and lowercased as by the
    default of a recipe, so that results are comparable with runs; without `metrics`, all are computed.

    Raises:
        CollectionError: the split has no image with a sentence in the language.
        MediaError: an image cannot be read.
        BackboneError, RunError, SettingsError: see `limner.hub.generators.load`.
    """
    began, options, family = time.perf_counter(), HubSettings.parse(dict(settings or {})), family_of(folder)
    lang, texts = options.lang or DEFAULT_LANG, list[str]()
    require_metrics(metrics)
    items = [item for item in collection.items(split) if item.image is not None and item.texts(lang)]
    if not items:
        raise CollectionError(f"{collection.path}: split '{split}': no image with a sentence in '{lang}'; name --lang")
    references = [tuple(item.texts(lang)) for item in items]
    options = options if family.is_prompted else options.model_copy(update={"lang": None})
    captioner, changes = load_hub_captioner(folder, device, **options.model_dump()), dict(decoding or {})
    parameters, started = captioner.parameters, time.perf_counter()
    for begin in range(0, len(items), BATCH_SIZE):
        images = [collection.media_source(item) for item in items[begin : begin + BATCH_SIZE]]
        texts += [captions[0].text for captions in captioner.describe(images, **changes)]
        on_progress("decoding", len(texts), len(items))
    seconds = time.perf_counter() - started
    words = TextSettings(lang=lang).resolve(text for row in references for text in row)
    tokens, *tokens_of = [[" ".join(split_words(text, words)) for text in row] for row in [texts, *references]]
    signature = f"|{words.signature}|decoding:{change_decoding(captioner.decoding, changes).signature}"
    measured = sentence_statistics(tokens, tokens_of, metrics or default_metrics(lang), lang=lang)
    scores = [part.score._replace(signature=part.score.signature + signature) for part in measured]
    return Evaluation(
        split=split,
        collection=str(collection.path.resolve()),
        fingerprint=collection.fingerprint(),
        command="limner.evaluate",
        seconds=time.perf_counter() - began,
        notes=(f"{parameters:,} parameters ({options.dtype}); {seconds / len(items):.3f} s an image on {device}",),
        scores=tuple(scores),
        items=tuple(_records(collection, items, references, texts, tokens, tokens_of)),
        lang=lang,
    )


def _records(
    collection: Collection,
    items: Sequence[Item],
    references: Sequence[tuple[str, ...]],
    texts: Sequence[str],
    tokens: list[str],
    tokens_of: list[list[str]],
) -> Iterator[EvaluatedItem]:
    for row, (item, quality) in enumerate(zip(items, sentence_scores(tokens, tokens_of), strict=True)):
        yield EvaluatedItem(
            id=item.id,
            image=collection.absolute_image_path(item),
            references=references[row],
            hypothesis=texts[row],
            tokens=tokens[row],
            reference_tokens=tuple(tokens_of[row]),
            sentence_score=quality,
        )


def score_pairs_of_hub(
    folder: Path, collection: Collection, judgements: Judgements, device: str = "cpu", *, on_progress: StageProgress
) -> PairScores:
    """Score judged pairs by CLIPScore under a joint space, or by log P(w|I) under a captioner."""
    images, captions, judged = judged_pairs(collection, judgements, None, DEFAULT_LANG)
    scorer = HubScorer(folder, device)
    sources = {name: collection.media_source(item) for name, item in images.items()}
    results = scorer.score(
        [sources[image] for image, _ in judged],
        [captions[caption].text for _, caption in judged],
        on_progress=partial(on_progress, "scoring"),
    )
    name = "clip_score|w:2.5" if isinstance(scorer.model, HubSpace) else "log_prob"
    values = [getattr(result, name.partition("|")[0]) for result in results]
    scores = dict(zip(judged, values, strict=True))
    return PairScores(scores, [pair for pair in judgements.correlated() if pair not in scores], f"{name}|{folder.name}")
