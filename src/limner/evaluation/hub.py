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
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings, change_decoding
from limner.errors import CollectionError
from limner.evaluation.correlate import Judgements, PairScores, judged_pairs
from limner.evaluation.measurements import provenance
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

    The images with a sentence in the language of the captions are described. Words are split, lowercased and without
    punctuation, as of the built-in captioners and the recipe own/photos, so that results are comparable with them.

    Raises:
        CollectionError: the split has no image with a sentence in the language.
        MediaError: an image cannot be read.
        SettingsError: there is no such decoding setting.
    """
    began, lang = time.perf_counter(), captioner.lang
    changed = change_decoding(captioner.decoding, decoding or {})
    items, captions, tally = _decode(captioner, collection, split, changed, on_progress)
    pace, network = (time.perf_counter() - began) / len(items), captioner.network
    texts, references = [caption.text for caption in captions], [tuple(item.texts(lang)) for item in items]
    words = TextSettings(lang=lang, punctuation=False).resolve(text for row in references for text in row)
    tokens, *tokens_of = [[" ".join(split_words(text, words)) for text in row] for row in [texts, *references]]
    settings = _changed_settings(captioner)
    signature = "|".join(["", words.signature, f"decoding:{changed.signature}", *settings])
    measured = sentence_statistics(tokens, tokens_of, metrics or default_metrics(lang), lang=lang)
    note = f"{captioner.parameters:,} parameters ({network.settings.dtype}); {pace:.3f} s an image on {network.device}"
    return Evaluation(
        split=split,
        decoding="" if changed == captioner.decoding else changed.signature,
        measured="-".join(setting.replace(":", "_") for setting in settings),
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
        **provenance(collection, command, began),
    )


def _decode(
    captioner: HubCaptioner, collection: Collection, split: str, decoding: DecodingSettings, on_progress: StageProgress
) -> tuple[list[Item], list[Sentence], Tally]:
    """Describe the items with an image and a sentence in the language; count the others, and captions cut off."""
    lang, tally, captions, in_split = captioner.lang, Tally(), list[Sentence](), list(collection.items(split))
    items = [item for item in in_split if item.image is not None and item.texts(lang)]
    if not items:
        raise CollectionError(f"{collection.path}: split '{split}': no image with a sentence in '{lang}'; name --lang")
    tally.skip(f"items without an image, or without a sentence in '{lang}'", "", len(in_split) - len(items))
    for begin in range(0, len(items), BATCH_SIZE):
        images = [collection.media_source(item) for item in items[begin : begin + BATCH_SIZE]]
        captions += [best for best, *_ in captioner.describe(images, log_cut_off=False, **decoding.model_dump())]
        on_progress("decoding", len(captions), len(items))
    cut = sum(not caption.ended for caption in captions)
    tally.note(f"hypotheses were cut off at decoding.max_length={decoding.max_length} before their end", "", cut)
    return items, captions, tally


def _changed_settings(captioner: HubCaptioner) -> list[str]:
    """Return settings of the model that differ from the defaults, a prompt by 8 digits of its SHA-256."""
    changed = captioner.network.settings.model_dump(exclude_defaults=True)
    if "prompt" in changed:
        changed["prompt"] = hashlib.sha256(changed["prompt"].encode()).hexdigest()[:8]
    return [key if value is True else f"{key}:{value}" for key, value in changed.items()]


def score_pairs_of_hub(
    folder: Path, name: str, collection: Collection, judgements: Judgements, device: str, *, on_progress: StageProgress
) -> PairScores:
    """Score judged pairs by CLIPScore under a joint space, or by log P(w|I) under a captioner, of a name."""
    images, captions, judged = judged_pairs(collection, judgements, None, DEFAULTS.lang)
    scorer = HubScorer(folder, device)
    sources = {image: collection.media_source(item) for image, item in images.items()}
    results = scorer.score(
        [sources[image] for image, _ in judged],
        [captions[caption].text for _, caption in judged],
        on_progress=partial(on_progress, "scoring"),
    )
    signature = scorer.model.signature if isinstance(scorer.model, HubSpace) else "log_prob"
    values = [getattr(result, signature.partition("|")[0]) for result in results]
    scores = dict(zip(judged, values, strict=True))
    missing = [pair for pair in judgements.correlated() if pair not in scores]
    return PairScores(scores, missing, f"{signature}|{name}")
