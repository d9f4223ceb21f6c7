"""Choose which tags captions must name: nouns on the training split, thresholds on validation by CIDEr."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np

from calibration_data import CalibrationData, Rules
from choose_rules import choose_rules
from limner.inference.tagged_captions import mean_log_prob, name_tags
from limner.runs.calibration import TagCalibration

BACKGROUNDS = (0.0, 0.0002, 0.0004, 0.0006, 0.0008, 0.0012, 0.0016)
"""Probabilities that every class has in every image, of which validation chooses one."""
THRESHOLDS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7)
"""Probabilities of tags of which validation CIDEr chooses one."""
LOSSES = (0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
"""Losses of log-probability per token of which validation CIDEr chooses one."""
SUBJECT_LOSSES = (-1000.0, 0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0)
"""Losses of log-probability per token by starting with a tag of which validation CIDEr chooses one."""
MIN_CASES, MIN_CASES_OF_KIND, MIN_PRECISION = 5, 20, 0.5
"""Nouns that people use for a smaller share of the training images with this tag are left out; those of fewer images
are judged by the nouns of the same kind, where these have enough."""
PROBABLE = 0.5
"""Probability of the tags by which nouns are judged."""


class Setting(NamedTuple):
    """Thresholds of tags in captions; see `TagCalibration`."""

    threshold: float
    max_loss: float
    subject_loss: float
    certain: float


class Effect(NamedTuple):
    """What a setting does to the captions of the validation split."""

    cider: float
    changed: int
    """Number of captions that name a tag instead of what they had."""
    subjects: int
    """Number of those that start with it."""


def choose_tags(data: CalibrationData) -> TagCalibration:
    """Choose the background, the rules, the nouns, and the thresholds of tags in captions."""
    data.tagger.background = choose_background(data)
    left_out = unused_nouns(data)
    rules = choose_rules(data)
    plain = TagCalibration(threshold=1, max_loss=0, certain=1, left_out=left_out, **rules.as_settings())
    setting = choose_setting(data, rules, left_out)
    return plain if setting is None else plain.model_copy(update=setting._asdict())


def choose_background(data: CalibrationData) -> float:
    """Choose the background with which the probability of the best tag predicts best that a person names it."""
    items = data.items("val")
    captions = data.human_captions(items)
    losses = {}
    for background in BACKGROUNDS:
        data.tagger.background = background
        probabilities = data.noun_probabilities(items)
        best, top = probabilities.argmax(1), probabilities.max(1).clip(1e-3, 1 - 1e-3)
        named = [data.mentions(own, data.tagger.nouns[one].words) for own, one in zip(captions, best, strict=True)]
        losses[background] = -float(np.log(np.where(named, top, 1 - top)).mean())
    print(f"log loss of the best tag by background: {losses}")
    return min(losses, key=losses.__getitem__)


def unused_nouns(data: CalibrationData) -> tuple[str, ...]:
    """Return the nouns that the captions of training images with a probable tag seldom have."""
    top = data.noun_probabilities(data.train)
    best, peak = top.argmax(1), top.max(1)
    texts = [" ".join(f" {' '.join(one)} " for one in own) for own in data.references(data.train)]
    words = data.plain.tokenizer.words
    left_out, kinds = [], dict[str, list[bool]]()
    cases: list[list[bool]] = []
    for number, noun in enumerate(data.tagger.nouns):
        rows = np.flatnonzero((best == number) & (peak >= PROBABLE))
        spelled = [f" {' '.join(words(word))} " for word in noun.words]
        used = [any(word in texts[row] for word in spelled) for row in rows]
        cases.append(used)
        kinds.setdefault(noun.kind, []).extend(used)
    for noun, used in zip(data.tagger.nouns, cases, strict=True):
        own = len(used) >= MIN_CASES
        evidence = used if own else kinds[noun.kind]
        if len(evidence) >= (MIN_CASES if own else MIN_CASES_OF_KIND) and np.mean(evidence) < MIN_PRECISION:
            left_out.append(noun.word)
    shown = {kind: f"{np.mean(used):.2f} of {len(used)}" for kind, used in kinds.items() if used}
    print(f"tags named by people, by kind: {shown}; {len(left_out)} nouns left out")
    return tuple(dict.fromkeys(left_out))


def choose_setting(data: CalibrationData, rules: Rules, left_out: tuple[str, ...]) -> Setting | None:
    """Choose thresholds of tags: of those with which CIDEr does not fall, some that name most tags; None if it falls.

    Captions are decoded three times: without tags, with the tag where the search has it, and starting with the tag.
    """
    items = data.items("val")
    decoded, tags = data.decode(items), data.tags(items)
    images, plain = data.apply_rules(items, decoded, rules)
    widest = TagCalibration(threshold=min(THRESHOLDS), max_loss=0, certain=0, left_out=left_out)
    within, subject = (
        name_tags([data.model], images, data.settings, plain, tags, one)
        for one in (widest, widest.model_copy(update={"subject_loss": 1000.0}))
    )
    top = np.array([found[0].probability if found else 0.0 for found in tags])
    scores = [data.cider(data.texts(one), items) for one in (plain, within, subject)]
    levels = [np.array([mean_log_prob(data.plain, n_best[0]) for n_best in one]) for one in (plain, within, subject)]
    differs = np.array([a[0].tokens != b[0].tokens for a, b in zip(plain, within, strict=True)])
    least = min(data.cider(data.texts(one), items).mean() for one in (decoded, plain))

    def try_out(setting: Setting) -> Effect:
        starts = levels[1] - levels[2] <= setting.subject_loss
        lost = levels[0] - np.where(starts, levels[2], levels[1])
        use = (top >= setting.threshold) & differs & ((lost <= setting.max_loss) | (top >= setting.certain))
        mixed = np.where(use, np.where(starts, scores[2], scores[1]), scores[0])
        return Effect(float(mixed.mean()), int(use.sum()), int((use & starts & (levels[1] != levels[2])).sum()))

    settings = [Setting(*one) for one in product(THRESHOLDS, LOSSES, SUBJECT_LOSSES, [*THRESHOLDS, 1.0])]
    effects = {one: try_out(one) for one in settings}
    allowed = [one for one in settings if one.certain >= one.threshold and effects[one].cider >= least]
    if not allowed:
        return None
    # Of the settings with which CIDEr does not fall, one that names most tags, and most of them as the subject.
    chosen = max(allowed, key=lambda one: (effects[one][1:], -one.certain, one.subject_loss))
    print(f"CIDEr without tags {least:.2f}; settings that name most tags:")
    for one in allowed:
        if effects[one].changed >= effects[chosen].changed - 1:
            print(f"  {one} {effects[one]}")
    return chosen
