"""What a diagnosis finds, as it is stored in RUN/diagnosis.

RUN/diagnosis/SPLIT.json      Diagnosis; SPLIT-colours-last_3.json where words were hidden as well, and
                              SPLIT-contrast_pairs.json where a file pairs.tsv was asked about
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from limner.runs.records import Record


class Figure(Record):
    """A figure under one condition, and how far it is from the condition that the others are compared with."""

    metric: str
    value: float
    difference: float = 0.0
    """This condition's less the compared one's."""
    p: float | None = None
    """How often chance alone takes the two as far apart, two-sided; none for the compared condition itself."""


class Condition(Record):
    """What a model was shown, and what came of it; the first condition of several is what the others stand against."""

    name: str
    figures: tuple[Figure, ...]
    changed: float = 0.0
    """Percentage of the sentences that are others than under the first condition."""


class Masked(Record):
    """Sentences in which some source words were hidden, with and without the picture."""

    mask: str
    sentences: int
    """How many have a word that is hidden."""
    words: int
    """How many words are hidden."""
    expected: int
    """Words of the references that say what was hidden; `recovered` is the percentage of them that is said."""
    conditions: tuple[Condition, ...]


class Senses(Record):
    """Words with two meanings, which only the picture tells apart."""

    sentences: int
    left_out: int = 0
    """Sentences of which there is no picture of the other meaning to show instead."""
    chance: float = 50.0
    """Percentage that is right where a meaning is chosen blindly."""
    conditions: tuple[Condition, ...]


class ContrastLine(Record):
    """One line of a file of contrasts: the log-probability of what is right and of the other."""

    line: int
    log_prob: float
    """Of the right translation, or with the right picture; natural logarithm, end sign included."""
    other_log_prob: float
    words: int
    """Of the right sentence, end sign included."""
    other_words: int


class Contrast(Record):
    """Which of two is likelier: of two sentences with one picture, or with one sentence of two pictures."""

    file: str
    compared: Literal["sentences", "pictures"]
    accuracy: float
    """Percentage of the lines where the right one is likelier; a tie counts half, so that a blind model has 50."""
    accuracy_per_word: float
    """The same by the mean log-probability of a word, that is by perplexity, which the length plays no part in."""
    lines: tuple[ContrastLine, ...]


class Diagnosis(Record):
    """Everything one `limner diagnose` found on one split."""

    split: str
    decoding: str
    """How sentences were found."""
    collection: str
    fingerprint: str
    command: str
    seconds: float
    sentences: int
    """That were asked for."""
    pictures: tuple[Condition, ...]
    masked: tuple[Masked, ...] = ()
    senses: Senses | None = None
    contrast: Contrast | None = None
    signatures: dict[str, str]
    """By metric; differences are tested by approximate randomisation."""
    trials: int
    """Of each test."""
    seed: int
    """Of the tests, of the shuffle and of the wrong pictures."""
    verdict: str

    @property
    def name(self) -> str:
        """Split and whatever else was asked, as file names have it."""
        asked = [Path(masked.mask).stem for masked in self.masked]
        if self.contrast is not None:
            asked.append(f"contrast_{Path(self.contrast.file).stem}")
        return "-".join([self.split, *(re.sub(r"[^\w.]+", "_", one) for one in asked)])
