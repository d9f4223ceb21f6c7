"""Records of a diagnosis, stored in the folder `diagnosis` of a run directory.

RUN/diagnosis/SPLIT.json      `Diagnosis`; SPLIT-colours-last_3.json with the masks 'colours' and 'last:3'
RUN/diagnosis/grounding/SPLIT.json  `Grounding`
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from limner.bounds import Seed
from limner.runs.records import Record
from limner.settings import Settings
from limner.storage.outputs import require_name


class MeasurementSettings(Settings):
    """Settings of a measurement: split, random seed and items."""

    split: str | None = None
    """Name of the split; None for the split of the model's recipe: the validation split for gradients, else the test
    split."""
    seed: Seed = 1
    """Random seed of samples, significance tests and image controls."""
    leave_out: bool = False
    """Whether to leave out items whose image has no features instead of raising an error."""


class Measurement(Record):
    """Result of a measurement of a run on a split of a collection."""

    folder: ClassVar[str]
    split: str
    collection: str
    """Absolute path of the collection."""
    fingerprint: str
    command: str
    seconds: float
    """Duration in seconds."""
    sentences: int
    seed: int
    """Random seed of samples, significance tests and image controls."""

    @property
    def name(self) -> str:
        """Name of the file: the split."""
        return self.split

    def path_in(self, run: Path) -> Path:
        """Return the file of the measurement in a run directory."""
        return run / self.folder / f"{require_name(self.name, 'the split')}.json"

    def save_in(self, run: Path) -> Path:
        """Write the measurement to its file in a run directory, and return the file."""
        path = self.path_in(run)
        self.save(path)
        return path


class ConditionScore(Record):
    """The value of one metric under one condition, compared with the reference condition."""

    metric: str
    value: float
    difference: float = 0.0
    """Value under this condition minus the value under the reference condition."""
    p: float | None = None
    """Two-sided p-value of the difference; None for the reference condition."""


class ConditionResult(Record):
    """The scores under one condition. The first condition of a sequence is the reference condition."""

    name: str
    """Image control or input variant: 'right', 'shuffled', 'mean', 'zero', 'none', 'swapped', 'unmasked'."""
    scores: tuple[ConditionScore, ...]
    changed: float = 0.0
    """Percentage of the hypotheses that differ from the hypotheses of the reference condition."""


class MaskingResult(Record):
    """The scores of translations of masked source sentences under several image conditions."""

    mask: str
    sentences: int
    """Number of source sentences with at least one masked word."""
    masked_words: int
    expected_words: int
    """Number of reference words that translate a masked word; the metric `recovered` is the percentage of these that
    the hypotheses contain."""
    conditions: tuple[ConditionResult, ...]


class AmbiguityResult(Record):
    """The accuracy of the translations of ambiguous words that only the image disambiguates."""

    sentences: int
    """Number of source sentences with an ambiguous word."""
    excluded: int = 0
    """Number of sentences left out because the split has no image of the other sense."""
    chance: float = 50.0
    """Percentage of correct translations when one of the senses is chosen at random."""
    conditions: tuple[ConditionResult, ...]


class Diagnosis(Measurement):
    """The results of one `limner diagnose` on one split."""

    folder = "diagnosis"
    decoding: str
    """Signature of the decoding settings."""
    image_controls: tuple[ConditionResult, ...]
    """Scores under each image control, the right images first."""
    masking: tuple[MaskingResult, ...] = ()
    """Scores with masked source words, one entry for each mask."""
    ambiguity: AmbiguityResult | None = None
    """Accuracy on ambiguous words; None where the split has no labelled ambiguous words."""
    signatures: dict[str, str]
    """Signature of each metric by name; differences are tested by approximate randomisation."""
    trials: int
    verdict: str
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the file: the split and the masks."""
        parts = [Path(result.mask).stem for result in self.masking]
        return "-".join([self.split, *(re.sub(r"[^\w.]+", "_", part) for part in parts)])


class GroundingScore(Record):
    """Agreement of one attention with the boxes of phrases, beside the agreement of the model."""

    attention: str
    """'model', or a baseline: 'uniform', 'centre' (Gaussian) or 'mean' (the model's mean over all phrases)."""
    mass: float
    """Percentage of the attention inside the union of the boxes of a phrase, mean over phrases."""
    pointing: float
    """Percentage of the phrases whose location of maximum attention has its centre inside a box."""
    mass_p: float | None = None
    """Two-sided p-value of the difference in mass from the model; None for the model."""
    pointing_p: float | None = None
    """Two-sided p-value of the difference in pointing from the model; None for the model."""


class GroundingGroup(Record):
    """Scores on the phrases of one entity type."""

    type: str
    """Entity type, or 'all'. A phrase of several types belongs to each of them."""
    images: int
    phrases: int
    correctness: float
    """Attention correctness of the model as a percentage, Liu et al. (2017): maximum of the mass over the words of a
    phrase, mean over phrases."""
    scores: tuple[GroundingScore, ...]
    """Scores of the model, then of the baselines."""


class GroundingExample(Record):
    """Phrase with the attention of a model and the boxes of its entity."""

    id: str
    image: str
    """Absolute path of the image."""
    sentence: str
    phrase: str
    types: tuple[str, ...]
    mass: float
    """Percentage of the attention inside the boxes."""
    uniform_mass: float
    """Percentage of uniform attention inside the boxes."""
    boxes: tuple[tuple[float, float, float, float], ...]
    """Left, top, width and height in pixels of the image."""
    area: tuple[float, float, float, float]
    """Left, top, right and bottom of the part of the image that the grid covers, in pixels of the image."""
    attention: tuple[float, ...]
    """Attention weight of each location, mean over the words of the phrase, row by row of the grid."""


class Grounding(Measurement):
    """Agreement of a model's attention over image locations with the boxes of annotated phrases."""

    folder = "diagnosis/grounding"
    lang: str
    features: str
    """Name of the feature table with the locations."""
    grid: tuple[int, int]
    excluded: dict[str, int]
    """Number of phrases that are not measured, by reason."""
    groups: tuple[GroundingGroup, ...]
    """All phrases, then the entity types, most frequent first."""
    hits: tuple[GroundingExample, ...]
    """Phrases with the largest mass above uniform attention, one of each image."""
    misses: tuple[GroundingExample, ...]
    """Phrases with the smallest mass compared with uniform attention whose maximum is outside, one of each image."""
    trials: int
    """Number of trials of each approximate randomisation test; images are exchanged."""
    verdict: str
