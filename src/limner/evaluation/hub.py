"""Evaluation of captioners of the hub on a collection, and scores of judged captions by models of the hub."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from limner.data.collection import Collection
from limner.data.examples import Item
from limner.data.tally import Tally
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
    model: str = "",
    command: str = "limner.evaluate",
    on_progress: StageProgress,
) -> Evaluation:
    """Evaluate a captioner of the hub by metrics of its captions, all metrics unless some are named.

    The images with a sentence in the language of the captions are described. Words are split, lowercased and without
    punctuation, as of the built-in captioners and the recipe own/photos, so that results are comparable with them.
    `model` is the name or the folder that is stored with the results.

    Raises:
        CollectionError: the split has no image with a sentence in the language.
        MediaError: an image cannot be read.
        SettingsError: there is no such decoding setting.
    """
    began, lang, changes, texts = time.perf_counter(), captioner.lang, dict(decoding or {}), list[str]()
    changed, tally, cut = change_decoding(captioner.decoding, changes), Tally(), 0
    items = _described_items(collection, split, lang, tally)
    for begin in range(0, len(items), BATCH_SIZE):
        images = [collection.media_source(item) for item in items[begin : begin + BATCH_SIZE]]
        best = [captions[0] for captions in captioner.describe(images, log_cut_off=False, **changes)]
        texts += [caption.text for caption in best]
        cut += sum(not caption.ended for caption in best)
        on_progress("decoding", len(texts), len(items))
    pace, network = (time.perf_counter() - began) / len(items), captioner.network
    references = [tuple(item.texts(lang)) for item in items]
    words = TextSettings(lang=lang, punctuation=False).resolve(text for row in references for text in row)
    tokens, *tokens_of = [[" ".join(split_words(text, words)) for text in row] for row in [texts, *references]]
    settings = _changed_settings(captioner)
    signature = "".join(f"|{part}" for part in (words.signature, f"decoding:{changed.signature}", *settings))
    measured = sentence_statistics(tokens, tokens_of, metrics or default_metrics(lang), lang=lang)
    tally.note(f"hypotheses were cut off at decoding.max_length={changed.max_length} before their end", "", cut)
    note = f"{captioner.parameters:,} parameters ({network.settings.dtype}); {pace:.3f} s an image on {network.device}"
    return Evaluation(
        split=split,
        model=model,
        decoding="" if changed == captioner.decoding else changed.signature,
        measured="-".join(setting.replace(":", "_") for setting in settings),
        collection=str(collection.path.resolve()),
        fingerprint=collection.fingerprint(),
        command=command,
        seconds=time.perf_counter() - began,
        notes=(note, *tally.lines()),
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


def _described_items(collection: Collection, split: str, lang: str, tally: Tally) -> list[Item]:
    """Return the items with an image and a sentence in a language; count the others. CollectionError for none."""
    items = []
    for item in collection.items(split):
        if item.image is None or not item.texts(lang):
            tally.skip("without an image" if item.image is None else f"without a sentence in '{lang}'", item.id)
        else:
            items.append(item)
    if not items:
        raise CollectionError(f"{collection.path}: split '{split}': no image with a sentence in '{lang}'; name --lang")
    return items


def _changed_settings(captioner: HubCaptioner) -> list[str]:
    """Return settings of the model that differ from the defaults, a prompt by 8 digits of its SHA-256."""
    changed = captioner.network.settings.model_dump(exclude_defaults=True)
    if "prompt" in changed:
        changed["prompt"] = hashlib.sha256(changed["prompt"].encode()).hexdigest()[:8]
    return [key if value is True else f"{key}:{value}" for key, value in changed.items()]


def score_pairs_of_hub(
    folder: Path,
    collection: Collection,
    judgements: Judgements,
    device: str = "cpu",
    *,
    name: str,
    on_progress: StageProgress,
) -> PairScores:
    """Score judged pairs by CLIPScore under a joint space, or by log P(w|I) under a captioner.

    The signature names the model by `name`, and says where a joint space reads no prompt before the sentence.
    """
    images, captions, judged = judged_pairs(collection, judgements, None, DEFAULTS.lang)
    scorer = HubScorer(folder, device)
    sources = {name: collection.media_source(item) for name, item in images.items()}
    results = scorer.score(
        [sources[image] for image, _ in judged],
        [captions[caption].text for _, caption in judged],
        on_progress=partial(on_progress, "scoring"),
    )
    score = "clip_score" if isinstance(scorer.model, HubSpace) else "log_prob"
    scores = dict(zip(judged, [getattr(result, score) for result in results], strict=True))
    parts = [score, *(["w:2.5"] if isinstance(scorer.model, HubSpace) else []), name]
    if isinstance(scorer.model, HubSpace) and not scorer.model.prompt:
        parts.insert(2, "prompt:none")
    missing = [pair for pair in judgements.correlated() if pair not in scores]
    return PairScores(scores, missing, "|".join(parts))
