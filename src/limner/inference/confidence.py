"""Confidence of captions and of their words.

For a caption w of an image I the model gives log P(w|I). A caption that the model would give to any image has a high
log P(w) as well, so the evidence includes their difference. P(w) is the probability for the mean image: one vector, the
mean of the pooled features of the training images, as the only location. It costs one more pass over the words of the
captions, which reads each beginning that several of them share once. log P(w|I) is that of the search, where it has
recorded it.

A caption of something that is no photograph can be probable. Whether an image is one shows in its pooled features,
standardised by the training images: those of photographs lie mostly in the first principal directions of the training
images, those of diagrams, text and noise mostly outside of them.

The classifier of the tags reads the same features, and is evidence as well: the probability that the main thing of the
caption, its first noun, is in the image, and that of the best tag if the caption does not name it.

Logistic regressions, fitted by `pretrained/calibrate.py` on the validation split and on photographs from elsewhere,
turn the evidence into probabilities:

    confidence = P(photograph | features) P(event | evidence about the caption, photograph)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limner.data.examples import Example, StoredFeatures, collate
from limner.decoding.torch_models import mean_log_probs, select
from limner.features.encoders.efficientnet import pooled_vector
from limner.inference.caption_nouns import CaptionNouns
from limner.inference.tags import ClassifiedImage, Tagger
from limner.models.protocols import Model, device_of
from limner.runs.calibration import FeatureStatistics, StoredCalibration
from limner.runs.trained_model import TrainedModel
from limner.text.vocab import SPECIAL_TOKENS

CONSTANT = "constant"
"""Name of the intercept among the coefficients."""
THINGS = frozenset({"subject", "unnamed_tag"})
"""Names of the evidence of the classifier about what a caption names; see `thing_evidence`."""
LEAST_PROBABILITY = 0.01
"""Smallest probability, and distance from 1, of which the evidence is the log-odds."""


class WordEvidence(NamedTuple):
    """Evidence about each of T tokens of a caption, the end of the sentence included; (T,)."""

    log_prob: NDArray[np.float64]
    """log P(w_t | w_1 … w_{t-1}, I)."""
    log_ratio: NDArray[np.float64]
    """log P(w_t | w_1 … w_{t-1}, I) - log P(w_t | w_1 … w_{t-1})."""


class WordConfidence(NamedTuple):
    """Confidence of a word, or of a token where the vocabulary has subwords."""

    word: str
    probability: float
    """Calibrated probability that a person would use the word in a caption of the image."""
    log_ratio: float
    """log P(w_t|I) - log P(w_t), both given the words before."""


def mean_image(vector: Sequence[float] | NDArray[Any], kinds: Sequence[str]) -> StoredFeatures:
    """Return the features of the mean image: the mean vector, as a grid of one location where the model reads grids."""
    values = np.asarray(vector, np.float16)
    return {kind: values[None] if kind == "grid" else values for kind in kinds}


@torch.no_grad()
def word_evidence(
    models: Sequence[Model],
    captions: Sequence[Sequence[int]],
    images: Sequence[StoredFeatures | None],
    mean: StoredFeatures,
    searched: Sequence[Sequence[float] | None] | None = None,
) -> list[WordEvidence]:
    """Compute the evidence about the words of captions.

    Args:
        models: one model, or several as an ensemble.
        captions: token ids of N captions, without special tokens.
        images: features of their images.
        mean: features of the mean image, see `mean_image`.
        searched: log P(w_t | w_1 … w_{t-1}, I) of the tokens of each caption, where a search of the same models has
            computed it; see `Sentence.token_log_probs`.
    """
    given = [None if one is None else np.asarray(one, float) for one in searched or [None] * len(captions)]
    missing = [row for row, one in enumerate(given) if one is None]
    if missing:
        values = _log_probs(models, [captions[row] for row in missing], [images[row] for row in missing])
        for row, own in zip(missing, values, strict=True):
            given[row] = own[: 1 + len(captions[row])]
    marginal = shared_log_probs(models, captions, mean)
    return [WordEvidence(own, own - other) for own, other in zip(given, marginal, strict=True) if own is not None]


@torch.no_grad()
def shared_log_probs(
    models: Sequence[Model], captions: Sequence[Sequence[int]], image: StoredFeatures
) -> list[NDArray[np.float64]]:
    """Compute the log-probabilities (T + 1,) of the tokens of captions of one image, the end of the sentence included.

    A beginning that several captions share is read once, and so is the image.
    """
    batch = collate([Example("", (), None, image)]).to(device_of(models[0]))
    memories = [model.encode(batch) for model in models]
    states = [model.start(memory) for model, memory in zip(models, memories, strict=True)]
    sentences = [(*caption, SPECIAL_TOKENS.eos) for caption in captions]
    found = [np.zeros(len(sentence)) for sentence in sentences]
    begun = [(number, 0) for number in range(len(sentences))]  # sentences, and the row of their first `position` tokens
    inputs = batch.target_in.new_full((1,), SPECIAL_TOKENS.bos)
    for position in range(max(map(len, sentences), default=0)):
        steps = [model.step(inputs, *both) for model, *both in zip(models, memories, states, strict=True)]
        tokens = [sentences[number][position] for number, _ in begun]
        rows = [row for _, row in begun]
        chosen = mean_log_probs([logits for logits, _ in steps])[rows, tokens].tolist()
        following: dict[tuple[int, int], int] = {}
        still_begun = []
        for (number, row), token, value in zip(begun, tokens, chosen, strict=True):
            found[number][position] = value
            if position + 1 < len(sentences[number]):
                still_begun.append((number, following.setdefault((row, token), len(following))))
        begun = still_begun
        if begun:
            states = select([state for _, state in steps], inputs.new_tensor([row for row, _ in following]))
            inputs = inputs.new_tensor([token for _, token in following])
    return found


def _log_probs(
    models: Sequence[Model], captions: Sequence[Sequence[int]], images: Sequence[StoredFeatures | None]
) -> NDArray[np.float64]:
    """Compute the log-probability of every token given its image, (N, T)."""
    pairs = enumerate(zip(captions, images, strict=True))
    examples = [Example(str(number), caption, None, image) for number, (caption, image) in pairs]
    batch = collate(examples).to(device_of(models[0]))
    log_probs: Tensor = mean_log_probs([model(batch).logits for model in models])
    chosen: NDArray[np.float64] = log_probs.gather(2, batch.target_out[..., None])[..., 0].double().cpu().numpy()
    return chosen


def caption_evidence(words: WordEvidence) -> dict[str, float]:
    """Return the evidence about a caption by name: means over its tokens, and the least probable token."""
    return {
        "log_prob": float(words.log_prob.mean()),
        "log_ratio": float(words.log_ratio.mean()),
        "lowest_log_prob": float(words.log_prob.min()),
    }


def word_evidence_at(words: WordEvidence, position: int) -> dict[str, float]:
    """Return the evidence about one token by name."""
    return {"log_prob": float(words.log_prob[position]), "log_ratio": float(words.log_ratio[position])}


def image_evidence(image: StoredFeatures, statistics: FeatureStatistics) -> dict[str, float]:
    """Return the evidence that an image is a photograph like those of the training, by name."""
    return {"outside": statistics.outside(pooled_vector(image))}


def thing_evidence(
    tagger: Tagger, nouns: CaptionNouns, captions: Sequence[Sequence[int]], images: Sequence[ClassifiedImage]
) -> list[dict[str, float]]:
    """Return the evidence of a classifier about what captions name, by name.

    Args:
        tagger: classifier of what is in an image.
        nouns: nouns of the language of the captions.
        captions: token ids of N captions, without special tokens.
        images: their images.
    """
    named = [[one.word for one in nouns.of_caption(caption)] for caption in captions]
    subjects = [nouns.main(caption) or "" for caption in captions]
    words = sorted(set(subjects))
    probabilities = tagger.word_probabilities(images, words)
    found = []
    for row, (subject, own, tags) in enumerate(zip(subjects, named, (one.tags for one in images), strict=True)):
        probability = min(1 - LEAST_PROBABILITY, max(LEAST_PROBABILITY, probabilities[row, words.index(subject)]))
        missed = bool(tags) and not set(own) & {part for word in tags[0].words for part in (word, *word.split())}
        found.append(
            {
                "subject": math.log(probability / (1 - probability)),
                "unnamed_tag": tags[0].probability if missed else 0.0,
            }
        )
    return found


def logistic(coefficients: Mapping[str, float], evidence: Mapping[str, float]) -> float:
    """Compute 1 / (1 + exp(-z)) of the sum z of the evidence times its coefficients and the constant."""
    total = sum(value * (1 if name == CONSTANT else evidence[name]) for name, value in coefficients.items())
    return 1 / (1 + math.exp(-min(500.0, max(-500.0, total))))


class Confidence(NamedTuple):
    """Confidence of a caption."""

    probability: float
    """Calibrated probability of the event that `ConfidenceCalibration.event` describes."""
    log_ratio: float
    """log P(w|I) - log P(w)."""
    words: tuple[WordConfidence, ...]


def confidences(
    models: Sequence[TrainedModel],
    captions: Sequence[Sequence[int]],
    images: Sequence[StoredFeatures],
    calibration: StoredCalibration,
    things: Sequence[Mapping[str, float]] | None = None,
    searched: Sequence[Sequence[float] | None] | None = None,
) -> list[Confidence]:
    """Compute the confidence of captions.

    Args:
        models: one model, or several as an ensemble.
        captions: token ids of N captions, without special tokens.
        images: features of their images.
        calibration: calibration of the confidence, of the first model.
        things: result of `thing_evidence`, where the calibration needs it.
        searched: log-probabilities of the tokens that a search has computed; see `word_evidence`.
    """
    settings, tokenizer = calibration.settings.confidence, models[0].tokenizer
    assert settings is not None, "a calibration without confidence"
    mean = mean_image(calibration.statistics.mean, [spec.kind for spec in models[0].config.features])
    found = []
    evidence = word_evidence([one.model for one in models], captions, images, mean, searched)
    evidence_of = {id(image): image_evidence(image, calibration.statistics) for image in images}
    more: Sequence[Mapping[str, float]] = [{}] * len(captions) if things is None else things
    for caption, words, image, own in zip(captions, evidence, images, more, strict=True):
        of_image = evidence_of[id(image)]
        photograph = logistic(settings.photograph, of_image)
        each = tuple(
            WordConfidence(
                tokenizer.spelling(token),
                photograph * logistic(settings.word, word_evidence_at(words, position)),
                float(words.log_ratio[position]),
            )
            for position, token in enumerate(caption)
        )
        probability = photograph * logistic(settings.caption, {**caption_evidence(words), **of_image, **own})
        found.append(Confidence(probability, float(words.log_ratio.sum()), each))
    return found
