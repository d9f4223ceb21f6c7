"""Fit the confidence on the validation split, on photographs from elsewhere and on generated images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

import elsewhere
from calibration_data import CalibrationData, auc
from limner.data.examples import Item, StoredFeatures
from limner.decoding.sentence import Sentence
from limner.inference.confidence import (
    WordEvidence,
    caption_evidence,
    confidences,
    image_evidence,
    mean_image,
    thing_evidence,
    word_evidence,
    word_evidence_at,
)
from limner.runs.calibration import Calibration, ConfidenceCalibration, StoredCalibration, TagCalibration
from limner.runs.trained_model import sha256
from limner.text.people_words import PEOPLE_WORDS
from logistic import cross_validated, expected_calibration_error, fit_logistic
from non_photographs import HELD_OUT, KINDS

LEAST_SURE, WITHHELD = 0.5, 0.05
"""Captions of a lower confidence are withheld by default, but no larger share than this of the right captions of the
validation split."""
EVENT = "the main thing of the caption, its first noun, is in the photograph"
SEEDS = range(0, 12)
"""Seeds of the generated images of each kind."""
Evidence = list[dict[str, float]]


def fit_confidence(data: CalibrationData, tags: TagCalibration | None, folder: Path | None) -> StoredCalibration:
    """Fit the regressions of the confidence, and choose the confidence below which captions are withheld.

    Args:
        data: captioner and validation images.
        tags: tags in its captions; None for none.
        folder: folder with the photographs from elsewhere; None to read what was measured before.
    """
    items = data.items("val")
    captions, images = data.describe_items(items, tags), data.take(items)
    of_captions, words = evidence_of_captions(data, captions, images)
    others = photographs_from_elsewhere(data, tags, folder)
    times = max(1, round(len(items) / max(1, len(others.right))))  # as much weight as the validation split
    generated = [image for kind in KINDS if kind not in HELD_OUT for image in data.features_of_generated(kind, SEEDS)]
    photographs = [image_evidence(one, data.statistics) for one in images] + times * others.of_images
    of_generated = [image_evidence(one, data.statistics) for one in generated]
    right = main_things_right(data, items, captions)
    print_held_out(of_captions, right, others, times)
    confidence = ConfidenceCalibration(
        event=EVENT,
        photograph=fit_logistic(photographs + of_generated, [True] * len(photographs) + [False] * len(generated)),
        caption=fit_logistic(of_captions + times * others.of_captions, right + times * others.right),
        word=fit_words(words, words_right(data, items, captions)),
        min_confidence=0.0,
    )
    found = confidences_of(data, captions, images, stored_calibration(data, tags, confidence))
    limit = min(LEAST_SURE, float(np.quantile(found[np.array(right)], WITHHELD)))
    return stored_calibration(data, tags, confidence.model_copy(update={"min_confidence": round(limit, 3)}))


def fit_words(words: Sequence[WordEvidence], right: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Fit the regression of words on whether they are in a human caption, and print how well it predicts."""
    evidence: Evidence = []
    events, groups = list[bool](), list[int]()
    for row, (known, one) in enumerate(zip(right, words, strict=True)):
        evidence += [word_evidence_at(one, position) for position in range(len(known))]
        events += known
        groups += [row] * len(known)
    held_out = cross_validated(evidence, events, groups)
    print(
        f"words in human captions: {np.mean(events):.3f}; cross-validated ECE "
        f"{expected_calibration_error(held_out, events):.3f}, AUC {auc(held_out, events):.3f}"
    )
    return fit_logistic(evidence, events)


def print_held_out(of_captions: Evidence, right: list[bool], others: elsewhere.Measured, times: int) -> None:
    """Print how well the confidence predicts right captions of which it does not know the image."""
    split, count = len(right), len(others.right)
    events = right + times * others.right
    groups = [*range(split), *(times * list(range(split, split + count)))]
    held_out = cross_validated(of_captions + times * others.of_captions, events, groups)
    for name, rows in (("validation", slice(split)), ("photographs", slice(split, split + count))):
        own, known = held_out[rows], events[rows]
        if known:
            print(
                f"main thing right, {name}: {np.mean(known):.3f} of {len(known)}; cross-validated ECE "
                f"{expected_calibration_error(own, known):.3f}, AUC {auc(own, known):.3f}, at {LEAST_SURE}: "
                f"{np.mean(own[np.array(known)] < LEAST_SURE):.2f} of right and "
                f"{np.mean(own[~np.array(known)] < LEAST_SURE):.2f} of wrong captions withheld"
            )


def main_things_right(data: CalibrationData, items: Sequence[Item], captions: Sequence[Sentence]) -> list[bool]:
    """Return whether a human caption of its item names the main thing of each caption, in any words."""
    people = PEOPLE_WORDS[data.lang]
    synonyms = {word: set[str]() for noun in data.tagger.nouns for word in noun.words}
    for noun in data.tagger.nouns:
        for word in noun.words:
            synonyms[word] |= set(noun.words)
    found = []
    for one, human in zip(captions, data.human_captions(items), strict=True):
        main = data.nouns.main(one.tokens)
        words = people if main in people else synonyms.get(main or "", {main} if main else set())
        found.append(bool(words) and data.mentions(human, sorted(words)))
    return found


def words_right(data: CalibrationData, items: Sequence[Item], captions: Sequence[Sentence]) -> list[list[bool]]:
    """Return whether each word of each caption is in a human caption of its item."""
    spelling = data.model.tokenizer.spelling
    known = [{word for one in own for word in one} for own in data.references(items)]
    return [[spelling(token) in words for token in one.tokens] for one, words in zip(captions, known, strict=True)]


def evidence_of_captions(
    data: CalibrationData, captions: Sequence[Sentence], images: Sequence[StoredFeatures]
) -> tuple[Evidence, list[WordEvidence]]:
    """Compute the evidence about captions, and about their words."""
    mean = mean_image(data.statistics.mean, [spec.kind for spec in data.plain.config.features])
    tokens = [one.tokens for one in captions]
    words = word_evidence([data.model.model], tokens, images, mean)
    things = thing_evidence(data.tagger, data.nouns, tokens, data.tagger.classify(images))
    kinds = zip(
        map(caption_evidence, words), (image_evidence(one, data.statistics) for one in images), things, strict=True
    )
    return [{**caption, **image, **thing} for caption, image, thing in kinds], words


def photographs_from_elsewhere(
    data: CalibrationData, tags: TagCalibration | None, folder: Path | None
) -> elsewhere.Measured:
    """Return the evidence about photographs from elsewhere: measured, that of an earlier run, or none."""
    path = elsewhere.TABLE.with_name(f"measured-{data.lang}.tsv")
    if folder is None:
        return elsewhere.read_or_none(path, ["outside"])
    rows = elsewhere.photographs()
    images = data.features_of_files([folder / one.file for one in rows])
    captions = data.describe_images(images, tags)
    evidence, _ = evidence_of_captions(data, captions, images)
    texts = [data.model.tokenizer.decode(one.tokens) for one in captions]
    right = [
        elsewhere.is_right(data.nouns, one.tokens, text, elsewhere.accepted(photograph.things, data.lang))
        for one, text, photograph in zip(captions, texts, rows, strict=True)
    ]
    for photograph, text, one in zip(rows, texts, right, strict=True):
        print(f"{'right' if one else 'wrong'}\t{'|'.join(photograph.things)}\t{text}")
    measured = elsewhere.Measured([image_evidence(one, data.statistics) for one in images], evidence, right)
    elsewhere.write(path, rows, measured)
    return measured


def confidences_of(
    data: CalibrationData,
    captions: Sequence[Sentence],
    images: Sequence[StoredFeatures],
    calibration: StoredCalibration,
) -> np.ndarray:
    """Compute the confidence of captions."""
    tokens = [one.tokens for one in captions]
    things = thing_evidence(data.tagger, data.nouns, tokens, data.tagger.classify(images))
    return np.array([one.probability for one in confidences([data.model], tokens, images, calibration, things)])


def stored_calibration(
    data: CalibrationData, tags: TagCalibration | None, confidence: ConfidenceCalibration
) -> StoredCalibration:
    """Combine the parts of a calibration of these weights."""
    weights = sha256(data.run / "model.safetensors")
    return StoredCalibration(
        Calibration(weights_sha256=weights, background=data.tagger.background, tags=tags, confidence=confidence),
        data.statistics,
    )
