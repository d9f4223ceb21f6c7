"""Evaluation of captioners of the hub on a collection, and scores of judged captions by models of the hub."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from limner.data.collection import Collection
from limner.decoding.settings import change_decoding
from limner.errors import CollectionError
from limner.evaluation.correlate import Judgements, PairScores, judged_pairs
from limner.hub.families.joint_space import HubSpace
from limner.hub.generators import HubCaptioner
from limner.hub.networks import DEFAULTS
from limner.inference.scorer import HubScorer
from limner.metrics import default_metrics, sentence_scores, sentence_statistics
from limner.progress import StageProgress
from limner.runs.records import EvaluatedItem, Evaluation
from limner.text.words import TextSettings, split_words

BATCH_SIZE = 32
"""Images that are described together."""


def evaluate_hub(
    captioner: HubCaptioner,
    collection: Collection,
    split: str,
    metrics: Sequence[str] = (),
    decoding: Mapping[str, Any] | None = None,
    *,
    command: str = "limner.evaluate",
    on_progress: StageProgress,
) -> Evaluation:
    """Evaluate a captioner of the hub by metrics of its captions, all metrics unless some are named.

    The images with a sentence in the language of the captions are described. Words are split and lowercased as by the
    default of a recipe, so that results are comparable with runs.

    Raises:
        CollectionError: the split has no image with a sentence in the language.
        MediaError: an image cannot be read.
        SettingsError: there is no such decoding setting.
    """
    began, lang, changes, texts = time.perf_counter(), captioner.lang, dict(decoding or {}), list[str]()
    items = [item for item in collection.items(split) if item.image is not None and item.texts(lang)]
    if not items:
        raise CollectionError(f"{collection.path}: split '{split}': no image with a sentence in '{lang}'; name --lang")
    for begin in range(0, len(items), BATCH_SIZE):
        images = [collection.media_source(item) for item in items[begin : begin + BATCH_SIZE]]
        texts += [captions[0].text for captions in captioner.describe(images, **changes)]
        on_progress("decoding", len(texts), len(items))
    pace, network = (time.perf_counter() - began) / len(items), captioner.network
    references = [tuple(item.texts(lang)) for item in items]
    words = TextSettings(lang=lang).resolve(text for row in references for text in row)
    tokens, *tokens_of = [[" ".join(split_words(text, words)) for text in row] for row in [texts, *references]]
    signature = f"|{words.signature}|decoding:{change_decoding(captioner.decoding, changes).signature}"
    measured = sentence_statistics(tokens, tokens_of, metrics or default_metrics(lang), lang=lang)
    note = f"{captioner.parameters:,} parameters ({network.settings.dtype}); {pace:.3f} s an image on {network.device}"
    return Evaluation(
        split=split,
        collection=str(collection.path.resolve()),
        fingerprint=collection.fingerprint(),
        command=command,
        seconds=time.perf_counter() - began,
        notes=(note,),
        scores=tuple(part.score._replace(signature=part.score.signature + signature) for part in measured),
        items=tuple(
            EvaluatedItem(
                id=item.id,
                image=collection.absolute_image_path(item),
                references=references[row],
                hypothesis=texts[row],
                tokens=tokens[row],
                reference_tokens=tuple(tokens_of[row]),
                sentence_score=quality,
            )
            for row, (item, quality) in enumerate(zip(items, sentence_scores(tokens, tokens_of), strict=True))
        ),
        lang=lang,
    )


def score_pairs_of_hub(
    folder: Path, collection: Collection, judgements: Judgements, device: str = "cpu", *, on_progress: StageProgress
) -> PairScores:
    """Score judged pairs by CLIPScore under a joint space, or by log P(w|I) under a captioner."""
    images, captions, judged = judged_pairs(collection, judgements, None, DEFAULTS.lang)
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
