"""Records of evaluations in a run directory.

RUN/evaluation/SPLIT.json   `Evaluation` with the recipe's settings; other decoding settings, measures and image
                            controls are appended to the name, as in SPLIT-images_shuffled.json
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PlainSerializer

from limner.errors import RunError
from limner.metrics.base import Score
from limner.runs.pretrained import HUB, model_type, results_folder
from limner.runs.records import Record, require_run_directory
from limner.storage.outputs import require_name

logger = logging.getLogger(__name__)

Point = tuple[float, float]
StoredScore = Annotated[Score, PlainSerializer(lambda score: score._asdict(), return_type=dict[str, Any])]


class ItemRecord(Record):
    """A record about an item."""

    id: str
    """Id of the item."""
    image: str | None = None
    """Absolute path of the image."""


class EvaluatedItem(ItemRecord):
    """The hypothesis for one image or source sentence, with its references."""

    references: tuple[str, ...] = ()
    """Reference sentences as running text."""
    source: str | None = None
    """Source sentence of a translation."""
    hypothesis: str
    """Best hypothesis as running text."""
    tokens: str = ""
    """Tokens of the hypothesis, joined by single spaces, as scored by the metrics of tokens."""
    reference_tokens: tuple[str, ...] = ()
    """Tokens of each reference, joined by single spaces."""
    log_prob: float | None = None
    """Log-probability of the hypothesis, in nats."""
    sentence_score: float | None = None
    """Smoothed sentence BLEU-4, or accuracy of the labels, 0-100, by which a report selects the best and worst."""
    caption_scores: dict[str, float] = Field(default_factory=dict)
    """Scores of the caption for its image by their names in `CAPTION_SCORES`, 0-100."""
    ids: tuple[int, ...] = ()
    """Token ids of the hypothesis, without special tokens."""
    box: tuple[float, float, float, float] | None = None
    """Left, top, width and height in pixels of the region that the hypothesis describes; None for a whole image."""


class RetrievedSentence(Record):
    """A sentence among the top results of an image query."""

    text: str
    right: bool
    """Whether the sentence belongs to the query image."""


class RetrievedImage(ItemRecord):
    """An image among the top results of a sentence query."""

    right: bool
    """Whether the query sentence belongs to the image."""


class ImageToTextExample(ItemRecord):
    """An image used as a query for sentences, with the top results."""

    rank: int
    """Rank of the first sentence of the image, from 1; with a `shortlist`, among the sentences of its images."""
    top: tuple[RetrievedSentence, ...]
    """Highest-ranked sentences, best first."""


class TextToImageExample(Record):
    """A sentence used as a query for images, with the top results."""

    text: str
    rank: int
    """Rank of the image of the sentence, from 1."""
    image_id: str
    """Id of the item of the sentence."""
    top: tuple[RetrievedImage, ...]
    """Highest-ranked images, best first."""


class RecallCurves(Record):
    """Curves of retrieval against the share of the candidates retrieved, 0 to 1."""

    image_to_text: tuple[Point, ...] = ()
    """Curve of image queries."""
    text_to_image: tuple[Point, ...] = ()
    """Curve of sentence queries."""


class Retrieval(Record):
    """Ranks of retrieval in both directions, and example queries."""

    image_to_text: tuple[ImageToTextExample, ...] = ()
    """Examples of image queries."""
    text_to_image: tuple[TextToImageExample, ...] = ()
    """Examples of sentence queries."""
    ranks: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    """Rank of the first relevant candidate of each query, by direction: `image_to_text` and `text_to_image`."""
    shortlist: int | None = None
    """Size k_r of the shortlist of Kiros et al. (2014); None if retrieval with a shortlist was not evaluated."""
    match_curves: RecallCurves | None = None
    """Share of the queries whose first relevant candidate is retrieved, against the share of their candidates
    retrieved: Kiros et al. (2014), figure 2."""
    chance_curves: RecallCurves | None = None
    """Expected `match_curves` of a random ranking; above the diagonal if images have several sentences."""


class GateShare(Record):
    """Image gate values of one class of generated words."""

    part: str
    """Name of the class."""
    words: int
    """Number of generated words of the class."""
    mean: float
    """Mean gate value, 0 to 1."""
    above: tuple[float, ...]
    """Share of the words whose gate value is above each threshold."""


class GateStatistics(Record):
    """Values of the gate of the image context while generating; Calixto et al. (2017), section 5.2."""

    thresholds: tuple[float, ...]
    """Gate values of `GateShare.above`."""
    parts: tuple[GateShare, ...]
    """Statistics of classes of words, without empty classes: all words; frequent, less frequent and rare words, each
    class about a third of the generated words."""
    words: tuple[tuple[str, float, int], ...]
    """Each word with its mean gate value and its number of occurrences, in descending order of the mean."""


class RegionRecord(Record):
    """A region of an image."""

    box: tuple[float, float, float, float]
    """Left, top, width and height in pixels."""
    text: str
    """Description of the region."""
    score: float | None = None
    """Confidence of a detected region, 0 to 1."""


class ImageRegions(ItemRecord):
    """Detected and annotated regions of one image."""

    detected: tuple[RegionRecord, ...]
    """Detected regions, by descending confidence."""
    annotated: tuple[RegionRecord, ...]
    """Regions of the collection."""


class Evaluation(Record):
    """Results of the evaluation of one split."""

    split: str
    decoding: str = ""
    """Signature of the decoding, if it differs from the recipe's or an ensemble was evaluated."""
    image_control: str = "right"
    """Images given to the model: its own images ('right'), or the images of a control ('shuffled', 'mean', 'zero')."""
    measured: str = ""
    """Evaluation settings that differ from the recipe's."""
    collection: str
    """Absolute path of the collection."""
    fingerprint: str
    """Fingerprint of the collection."""
    command: str
    """Command line of the evaluation."""
    seconds: float
    """Duration of the evaluation."""
    left_out: int = 0
    """Number of items left out because their image has no features."""
    notes: tuple[str, ...] = ()
    """Lines about excluded items, and reasons to doubt the scores."""
    scores: tuple[StoredScore, ...] = ()
    """Scores of all metrics."""
    items: tuple[EvaluatedItem, ...] = ()
    """Hypotheses and references of all items or source sentences."""
    retrieval: Retrieval | None = None
    """Results of image-text retrieval, if it was evaluated."""
    gates: GateStatistics | None = None
    """Gate values of a model with a gated image context."""
    regions: tuple[ImageRegions, ...] = ()
    """Some images with the regions that a dense captioner detected."""
    lang: str | None = None
    """Language of the sentences of a model of the hub, which has no recipe; None for a run."""
    model: str = ""
    """Name or folder of a model of the hub; empty for a run."""

    @property
    def name(self) -> str:
        """Name in headings and file names: the split and all settings that differ from the defaults."""
        control = "" if self.image_control == "right" else f"images_{self.image_control}"
        return "-".join(part for part in (self.split, self.decoding, self.measured, control) if part)


def read_evaluations(run_folder: Path) -> list[Evaluation]:
    """Read all evaluations of a run, in the order of their file names."""
    return [Evaluation.load(path) for path in sorted((results_folder(run_folder) / "evaluation").glob("*.json"))]


def evaluation_path(evaluation: Evaluation, run: Path) -> Path:
    """Return RUN/evaluation/NAME.json, where `limner report` and `limner compare` read an evaluation.

    An evaluation with fewer scores does not replace an existing one with more: its file name ends in `-part`.
    """
    path, part = _paths(run, evaluation.name)
    if path.exists():
        existing = {score.name for score in Evaluation.load(path).scores}
        if {score.name for score in evaluation.scores} < existing:
            return part
    return path


def save_evaluation(evaluation: Evaluation, run: Path) -> Path:
    """Write an evaluation to its file in the run directory, and return the file."""
    path = evaluation_path(evaluation, run)
    evaluation.save(path)
    return path


def load_evaluation(run: Path, split: str) -> Evaluation:
    """Read RUN/evaluation/SPLIT.json or a newer partial evaluation; RunError if both are missing."""
    path, stored = _paths(run, split)[0], stored_evaluations(run, split)
    if stored:
        newest = max(stored, key=lambda file: file.stat().st_mtime_ns)
        if newest != path:
            logger.info("%s: read instead of %s, because it is newer", newest, path.name)
        return require_model(Evaluation.load(newest), run)
    if not hub_model(run):
        require_run_directory(run)
    splits = ", ".join(sorted(file.stem for file in path.parent.glob("*.json")))
    raise RunError(
        f"{path}: no such evaluation; create it with 'limner evaluate --model {run} --split {split} "
        "--collection COLLECTION'" + (f", or name an existing one with --split: {splits}" if splits else "")
    )


def stored_evaluations(run: Path, split: str) -> list[Path]:
    """Return the files of the evaluation of a split to compare: the complete and a partial evaluation.

    A partial evaluation has all hypotheses, and only these are read.
    """
    path, part = _paths(run, split)
    stored = [file for file in (path, part) if file.exists()]
    if hub_model(run) and not stored:  # the only results, with another prompt or language than the default
        others = [file for file in path.parent.glob("*.json") if file.name.startswith(f"{split}-")]
        stored = others if len(others) == 1 else []
    return stored


def hub_model(run: Path) -> str:
    """Return the name of a model of the hub, hub:ORG/NAME, or its folder; empty for a run."""
    if str(run).startswith(HUB):
        return str(run)
    return "" if model_type(run) is None else str(run.resolve())


def require_model(evaluation: Evaluation, run: Path) -> Evaluation:
    """Return a stored evaluation; RunError if it is of another model than this model of the hub."""
    if (model := hub_model(run)) and evaluation.model != model:
        raise RunError(
            f"{results_folder(run)}: expected results of {model}, found results of {evaluation.model or 'a run'} under "
            "the same name; work in another directory"
        )
    return evaluation


def _paths(run: Path, name: str) -> tuple[Path, Path]:
    """Return the file of an evaluation, and the file of an evaluation with a part of its scores."""
    folder = results_folder(run) / "evaluation"
    return folder / f"{require_name(name, 'the split')}.json", folder / f"{name}-part.json"
