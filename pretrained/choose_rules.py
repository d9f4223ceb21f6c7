"""Choose what captions must not have, so that validation CIDEr does not fall: denied words, people, repetitions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from calibration_data import CalibrationData, Hypotheses, Rules
from limner.data.examples import Item
from limner.inference.unseen_words import is_known_word
from limner.text.people_words import PEOPLE_WORDS

SHARES_DENIED = (0.002, 0.005, 0.01, 0.02, 0.05)
"""Shares of the training images with a word of which validation CIDEr chooses one; see `denied_words`."""
MIN_CASES_OF_WORD, MIN_LIMIT = 50, 0.005
"""Words of fewer images, and those of which such images have a lower probability, are never denied."""
SHARES_OF_PEOPLE = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
"""Shares of the training images in which two people mention people of which validation CIDEr chooses one."""
PEOPLE_PROBABILITIES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Probabilities of people beside a likely thing of which validation CIDEr chooses one."""
MIN_PEOPLE = 2
"""Number of people who must use a word for an image to have it."""


def choose_rules(data: CalibrationData) -> Rules:
    """Choose the rules one after the other."""
    items = data.items("val")
    plain = data.decode(items)
    rules = choose_denied(data, items, plain)
    rules = choose_repeats(data, items, plain, rules)
    rules = choose_people(data, items, plain, rules)
    return choose_min_people_probability(data, items, plain, rules)


def choose_denied(data: CalibrationData, items: Sequence[Item], plain: Hypotheses) -> Rules:
    """Choose the largest share of `denied_words` with which CIDEr does not fall."""
    probabilities = probabilities_of_words(data)
    limits = {share: denied_words(probabilities, share) for share in SHARES_DENIED}
    tried = (
        (f"{len(limits[share])} words denied below the quantile {share}", Rules(limits[share])) for share in limits
    )
    return strictest(data, items, plain, tried, Rules())


def choose_repeats(data: CalibrationData, items: Sequence[Item], plain: Hypotheses, rules: Rules) -> Rules:
    """Choose whether captions repeat nouns and words: not if CIDEr does not fall without."""
    tried = [("no repetitions", rules._replace(no_repeats=True))]
    return strictest(data, items, plain, tried, rules, cider_of(data, items, plain, rules))


def choose_people(data: CalibrationData, items: Sequence[Item], plain: Hypotheses, rules: Rules) -> Rules:
    """Add the words for people to the denied ones, with the highest threshold with which CIDEr does not fall."""
    words = [word for word in PEOPLE_WORDS[data.lang] if is_known_word(data.plain.tokenizer, word)]
    if not words:
        return rules
    pattern = re.compile("|".join(f" {re.escape(word)} " for word in words))
    rows = [
        row
        for row, own in enumerate(data.human_captions(data.train))
        if sum(pattern.search(text) is not None for text in own) >= MIN_PEOPLE
    ]
    probabilities = data.statistics.people_probability(data.vectors[rows])
    limits = {share: round(float(np.quantile(probabilities, share)), 4) for share in SHARES_OF_PEOPLE}
    tried = (
        (
            f"people denied below {limit} (quantile {share})",
            rules._replace(denied={**rules.denied} | dict.fromkeys(words, limit)),
        )
        for share, limit in limits.items()
    )
    return strictest(data, items, plain, tried, rules, cider_of(data, items, plain, rules))


def choose_min_people_probability(
    data: CalibrationData, items: Sequence[Item], plain: Hypotheses, rules: Rules
) -> Rules:
    """Choose the highest probability of people beside a likely thing with which CIDEr does not fall.

    It may use up what the rules before have gained.
    """
    tried = (
        (f"no people beside a likely thing below {one}", rules._replace(min_people_probability=one))
        for one in PEOPLE_PROBABILITIES
    )
    return strictest(data, items, plain, tried, rules)


def strictest(
    data: CalibrationData,
    items: Sequence[Item],
    plain: Hypotheses,
    tried: Iterable[tuple[str, Rules]],
    default: Rules,
    least: float | None = None,
) -> Rules:
    """Return the last rules with which CIDEr does not fall.

    Args:
        data: captioner and human captions.
        items: validation items.
        plain: their hypotheses without rules.
        tried: names of rules and the rules, the strictest last.
        default: rules if CIDEr falls with all of these.
        least: CIDEr that must be reached; None for that without rules.
    """
    least = data.cider(data.texts(plain), items).mean() if least is None else least
    print(f"CIDEr to reach: {least:.2f}")
    chosen = default
    for name, rules in tried:
        _, changed = data.apply_rules(items, plain, rules)
        cider = data.cider(data.texts(changed), items).mean()
        count = sum(a is not b for a, b in zip(plain, changed, strict=True))
        print(f"{name}: {count} captions, CIDEr {cider:.2f}")
        if cider >= least:
            chosen = rules
    return chosen


def cider_of(data: CalibrationData, items: Sequence[Item], plain: Hypotheses, rules: Rules) -> float:
    """Compute the mean CIDEr of captions that keep rules."""
    return float(data.cider(data.texts(data.apply_rules(items, plain, rules)[1]), items).mean())


def denied_words(probabilities: Mapping[str, Sequence[float]], share: float) -> dict[str, float]:
    """Return the probability of words below which they are denied.

    All but a share of the training images of which two people use the word have a higher one. Words of few images and
    words that the classifier does not see are left out.
    """
    limits = {}
    for word, values in probabilities.items():
        limit = float(np.quantile(values, share)) if len(values) >= MIN_CASES_OF_WORD else 0.0
        if limit >= MIN_LIMIT:
            limits[word] = round(limit, 4)
    return limits


def probabilities_of_words(data: CalibrationData) -> dict[str, list[float]]:
    """Compute the probability of the nouns of every word in the training images of which two people use it."""
    captions = [[set(one) for one in own] for own in data.references(data.train)]
    probabilities = data.noun_probabilities(data.train)
    nouns: dict[str, list[int]] = {}
    for number, noun in enumerate(data.tagger.nouns):
        for word in noun.words:
            if is_known_word(data.plain.tokenizer, word):
                nouns.setdefault(word, []).append(number)
    found: dict[str, list[float]] = {word: [] for word in nouns}
    for own, row in zip(captions, probabilities, strict=True):
        for word, count in Counter(word for one in own for word in one & nouns.keys()).items():
            if count >= MIN_PEOPLE:
                found[word].append(float(row[nouns[word]].sum()))
    return found
