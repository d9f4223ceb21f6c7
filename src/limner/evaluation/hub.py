"""Evaluation of models of the hub on a collection, and scores of judged captions by models of the hub."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from limner.data.collection import Collection
from limner.data.dataset import GenerationInput, translation_inputs
from limner.data.tally import Tally
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings, change_decoding
from limner.errors import CollectionError, SettingsError
from limner.evaluation.caption_score import caption_scorer, with_caption_scores
from limner.evaluation.correlate import Judgements, PairScores, judged_pairs
from limner.evaluation.retrieval import retrieval_record
from limner.hub.families.joint_space import HubSpace
from limner.hub.generators import HubCaptioner, HubTranslator
from limner.hub.networks import DEFAULTS, HubModel
from limner.inference.load import load_hub
from limner.metrics import CAPTION_SCORES, IMAGE_METRICS, default_metrics, ranks, sentence_scores, sentence_statistics
from limner.progress import StageProgress
from limner.runs.evaluations import EvaluatedItem, Evaluation
from limner.runs.recipe import DataSettings
from limner.runs.records import provenance
from limner.text.words import TextSettings, split_words

BATCH_SIZE = 32
"""Inputs that are decoded together."""


class HubTask(NamedTuple):
    """Inputs of an evaluation."""

    collection: Collection
    inputs: Sequence[GenerationInput]
    lang: str
    tally: Tally
    on_progress: StageProgress


def evaluate_hub(
    model: HubCaptioner | HubTranslator | HubSpace,
    collection: Collection,
    split: str,
    metrics: Sequence[str] = (),
    decoding: Mapping[str, Any] | None = None,
    *,
    lang: str | None = None,
    source_lang: str | None = None,
    on_progress: StageProgress,
) -> Evaluation:
    """Evaluate a model of the hub: metrics of captions or translations, all unless some are named, or retrieval.

    Words of captions are split as in the recipe own/photos, lowercased and without punctuation; words of
    translations stay as they are written. `lang` and `source_lang` are the languages of the sentences and their
    sources in the collection; default: the languages of the model.

    Raises:
        CollectionError: the split has no image with a sentence, or no sentence with a translation, in the languages.
        MediaError: an image cannot be read.
        SettingsError: there is no such decoding setting, or a metric or setting of sentences is for a joint space.
    """
    began, lang = time.perf_counter(), str(lang or getattr(model, "lang", DEFAULTS.lang))
    source = (source_lang or model.source_lang) if isinstance(model, HubTranslator) else None
    inputs, tally = _inputs(collection, split, lang, source)
    task = HubTask(collection, inputs, lang, tally, on_progress)
    of_captions, items = [name for name in metrics if name in CAPTION_SCORES], [entry.item for entry in inputs]
    scorer = caption_scorer(collection, DataSettings(lang=lang), items) if of_captions else None
    if isinstance(model, HubSpace):
        if metrics or decoding:
            raise SettingsError(f"{[*metrics, *(decoding or {})][0]}: a joint space writes no sentence; leave it out")
        network: HubModel = model
        results = _retrieve(model, task)
    else:
        network = model.network
        results = _generate(model, task, change_decoding(model.decoding, decoding or {}), metrics)
    pace, settings = (time.perf_counter() - began) / len(inputs), network.settings
    note = f"{network.parameters:,} parameters ({settings.dtype}); {pace:.3f} s an item on {network.device}"
    evaluation = Evaluation(
        split=split,
        measured="-".join(setting.replace(":", "_") for setting in settings.changed),
        notes=(note, *tally.lines()),
        lang=lang,
        **results,
        **provenance(collection, "limner.evaluate", began),
    )
    if scorer is None:
        return evaluation
    return with_caption_scores(evaluation, scorer, collection, of_captions, on_progress)


def _inputs(collection: Collection, split: str, lang: str, source: str | None) -> tuple[list[GenerationInput], Tally]:
    """Return the images with a sentence, or the source sentences with a translation; the other items are counted."""
    in_split, tally = list(collection.items(split)), Tally()
    what = f"an image and a sentence in '{lang}'; name --lang"
    if source is None:
        described = [item for item in in_split if item.image is not None and item.texts(lang)]
        inputs = [GenerationInput(item, None, tuple(item.texts(lang))) for item in described]
    else:
        inputs = translation_inputs(in_split, source, lang)
        what = f"a sentence in '{source}' with a translation in '{lang}'; name --source-lang and --lang"
    if not inputs:
        raise CollectionError(f"{collection.path}: split '{split}': no item has {what}")
    skipped = len(in_split) - len({entry.item.id for entry in inputs})
    tally.skip(f"items without {what.partition(';')[0]}", "", skipped)
    return inputs, tally


def _generate(
    model: HubCaptioner | HubTranslator, task: HubTask, decoding: DecodingSettings, metrics: Sequence[str]
) -> dict[str, Any]:
    """Describe or translate the inputs; return the fields of the evaluation."""
    inputs, translates, sentences = task.inputs, isinstance(model, HubTranslator), list[Sentence]()
    for begin in range(0, len(inputs), BATCH_SIZE):
        batch = inputs[begin : begin + BATCH_SIZE]
        if isinstance(model, HubTranslator):
            results = model.translate([entry.source or "" for entry in batch], **decoding.model_dump())
        else:
            images = [task.collection.media_source(entry.item) for entry in batch]
            results = model.describe(images, log_cut_off=False, **decoding.model_dump())
        sentences += [best for best, *_ in results]
        task.on_progress("decoding", len(sentences), len(inputs))
    cut = sum(not sentence.ended for sentence in sentences)
    task.tally.note(f"hypotheses were cut off at decoding.max_length={decoding.max_length} before their end", "", cut)
    texts, references = [sentence.text for sentence in sentences], [entry.references for entry in inputs]
    words = TextSettings(lang=task.lang, lowercase=not translates, punctuation=translates)
    words = words.resolve(text for row in references for text in row)
    tokens, *tokens_of = [[" ".join(split_words(text, words)) for text in row] for row in [texts, *references]]
    signature = "|".join(["", words.signature, f"decoding:{decoding.signature}", *model.network.settings.changed])
    written, chosen = (
        (texts, references) if translates else None,
        [name for name in metrics if name not in IMAGE_METRICS],
    )
    metrics = chosen if metrics else default_metrics(task.lang)
    measured = sentence_statistics(tokens, tokens_of, metrics, texts=written, lang=task.lang)
    return {
        "decoding": "" if decoding == model.decoding else decoding.signature,
        "scores": tuple(part.score._replace(signature=part.score.signature + signature) for part in measured),
        "items": tuple(
            EvaluatedItem(
                id=entry.item.id,
                image=task.collection.absolute_image_path(entry.item),
                references=entry.references,
                source=entry.source,
                hypothesis=texts[row],
                tokens=tokens[row],
                reference_tokens=tuple(tokens_of[row]),
                sentence_score=quality,
            )
            for row, (entry, quality) in enumerate(zip(inputs, sentence_scores(tokens, tokens_of), strict=True))
        ),
    }


def _retrieve(model: HubSpace, task: HubTask) -> dict[str, Any]:
    """Rank the images for each sentence, and the sentences for each image; return the fields of the evaluation."""
    vectors = []
    for begin in range(0, len(task.inputs), BATCH_SIZE):
        images = [task.collection.media_source(entry.item) for entry in task.inputs[begin : begin + BATCH_SIZE]]
        vectors += [features["pooled"] for features in model.features_of([model.read(image) for image in images])]
        task.on_progress("encoding", len(vectors), len(task.inputs))
    sentences = [text for entry in task.inputs for text in entry.references]
    owners = [row for row, entry in enumerate(task.inputs) for _ in entry.references]
    all_ranks = ranks.rank_all(model.sentence_vectors(sentences) @ np.stack(vectors).T, owners)
    suffix = "|".join(["|score:cosine", *model.settings.changed])
    scores = ranks.retrieval_scores(all_ranks, owners)
    return {
        "scores": tuple(score._replace(signature=score.signature + suffix) for score in scores),
        "retrieval": retrieval_record(all_ranks),
    }


def score_pairs_of_hub(
    folder: Path, name: str, collection: Collection, judgements: Judgements, device: str, *, on_progress: StageProgress
) -> PairScores:
    """Score judged pairs by CLIPScore under a joint space, or by log P(w|I) under a captioner; `name` is recorded."""
    images, captions, judged = judged_pairs(collection, judgements, None, DEFAULTS.lang)
    scorer = load_hub(folder, tasks=("describe", "match"), device=device)
    sources = {image: collection.media_source(item) for image, item in images.items()}
    results = scorer.score(
        [sources[image] for image, _ in judged],
        [captions[caption].text for _, caption in judged],
        on_progress=partial(on_progress, "scoring"),
    )
    signature = scorer.signature if isinstance(scorer, HubSpace) else "log_prob"
    values = [getattr(result, signature.partition("|")[0]) for result in results]
    scores = dict(zip(judged, values, strict=True))
    missing = [pair for pair in judgements.correlated() if pair not in scores]
    return PairScores(scores, missing, f"{signature}|{name}")
