"""The files of a run folder that others read: its configuration, its log and its evaluations.

    RUN/config.json               RunConfig
    RUN/log.jsonl                 one LogLine a line
    RUN/evaluation/SPLIT.json     Evaluation; SPLIT-SEARCH.json where the search was not the recipe's, and
                                  SPLIT-pictures_shuffled.json, say, where something else was not as usual

Training and evaluation write these classes, the report and any later tool read the same ones.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, ValidationError, model_validator

from limner.errors import RunError
from limner.files import write_text
from limner.metrics.base import Score

logger = logging.getLogger(__name__)

Point = tuple[float, float]
StoredScore = Annotated[Score, PlainSerializer(lambda score: score._asdict(), return_type=dict[str, Any])]


class Record(BaseModel):
    """Base of everything stored as JSON beside a model. Keys of a newer version are passed over when read."""

    # JSON has no infinity; as a string it survives the way there and back.
    model_config = ConfigDict(
        frozen=True, use_attribute_docstrings=True, ser_json_inf_nan="strings", protected_namespaces=()
    )

    def save(self, path: Path) -> None:
        """Write as JSON; a stopped program leaves the old file whole."""
        write_text(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            RunError: the file is missing, or is not such a record; names the file and the key.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error.strerror}); is the run finished?") from None
        except ValidationError as error:
            raise RunError(f"{path}: not a {cls.__name__} record: {_first_problem(error)}") from None


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    return f"{'.'.join(str(part) for part in problem['loc']) or 'file'}: {problem['msg']}"


class RunConfig(Record):
    """What was trained, by which recipe, and where it came from."""

    recipe: dict[str, Any] = Field(default_factory=dict)
    provenance: dict[str, Any] = Field(default_factory=dict)
    """Free facts worth printing: collection, fingerprints, seed, versions, machine, seconds, command."""


class LogLine(Record):
    """One line of the training log."""

    step: int
    epoch: float
    kind: Literal["train", "val"]
    loss: float | None = None
    """Mean cross-entropy of a word in nats."""
    perplexity: float | None = None
    words_per_second: float | None = None
    seconds: float | None = None
    """Since training began."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """By name; a line may also carry them as keys of its own, they are gathered here."""

    def named(self) -> dict[str, float]:
        """The metrics, and perplexity beside them where it is known."""
        return self.metrics if self.perplexity is None else {"perplexity": self.perplexity, **self.metrics}

    @model_validator(mode="before")
    @classmethod
    def _gather_metrics(cls, values: Any) -> Any:  # noqa: ANN401  (whatever JSON holds)
        if not isinstance(values, dict):
            return values
        named = {
            key: value
            for key, value in values.items()
            if key not in cls.model_fields and isinstance(value, int | float) and not isinstance(value, bool)
        }
        known = {key: value for key, value in values.items() if key in cls.model_fields}
        return {**known, "metrics": {**named, **(known.get("metrics") or {})}}


def read_log(path: Path) -> list[LogLine]:
    """Read a training log; a last line that a stopped program left unfinished is passed over.

    Raises:
        RunError: another line is damaged; names the file and the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None
    log = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            log.append(LogLine.model_validate(json.loads(line)))
        except ValueError as error:  # JSON's and pydantic's errors both are
            if number == len(lines):
                logger.info("%s: the last line is unfinished and was passed over", path)
                continue
            raise RunError(f"{path}, line {number}: not a log line: {error}") from None
    return log


class EvaluatedItem(Record):
    """A picture, what people say of it and what the model says."""

    id: str
    image: str | None = None
    """Absolute path of the picture."""
    references: tuple[str, ...] = ()
    source: str | None = None
    """What was translated, where something was."""
    hypothesis: str
    tokens: str = ""
    """The hypothesis as the metrics saw it: tokens joined by blanks."""
    reference_tokens: tuple[str, ...] = ()
    """The references likewise."""
    log_prob: float | None = None
    """Of the hypothesis, in nats."""
    sentence_score: float | None = None
    """What best and worst are chosen by, higher is better: smoothed sentence BLEU, 0-100."""
    ids: tuple[int, ...] = ()
    """The hypothesis in the model's vocabulary, to be read once more."""


class RetrievedSentence(Record):
    """A sentence among the first found for a picture."""

    text: str
    right: bool
    """Whether it belongs to the picture asked with."""


class RetrievedImage(Record):
    """A picture among the first found for a sentence."""

    id: str
    image: str | None = None
    right: bool


class ImageQuery(Record):
    """A picture that sentences were searched with."""

    id: str
    image: str | None = None
    rank: int
    """Of its best-ranked own sentence, from 1."""
    top: tuple[RetrievedSentence, ...]


class SentenceQuery(Record):
    """A sentence that pictures were searched with."""

    text: str
    rank: int
    """Of its own picture, from 1."""
    image_id: str
    top: tuple[RetrievedImage, ...]


class RecallCurves(Record):
    """Mean share of the right answers found against the share of all candidates looked at."""

    image_to_text: tuple[Point, ...] = ()
    text_to_image: tuple[Point, ...] = ()


class Retrieval(Record):
    """Examples of search both ways, and the curves over the whole split."""

    image_to_text: tuple[ImageQuery, ...] = ()
    text_to_image: tuple[SentenceQuery, ...] = ()
    curves: RecallCurves = RecallCurves()
    shortlist: int | None = None
    """k_r, where the search of Kiros et al. (2014) was measured as well."""
    match_curves: RecallCurves | None = None
    """Figure 2 there: the share of queries whose match is found against the share of its candidates looked at."""
    chance_curves: RecallCurves | None = None
    """The same of a random order, which is not the diagonal where a picture has several sentences."""


class GateShare(Record):
    """How far the picture was let in for a part of the words."""

    part: str
    words: int
    """How many were said."""
    mean: float
    above: tuple[float, ...]
    """Share of them whose gate is above each threshold."""


class GateStatistics(Record):
    """When a model lets its picture in; Calixto et al. (2017), section 5.2."""

    thresholds: tuple[float, ...]
    parts: tuple[GateShare, ...]
    """All words; then three parts of the vocabulary, the most frequent words said of which make up about a third each
    of all that was said; then words with letters, numbers and other signs. Parts of no words are left out."""
    words: tuple[tuple[str, float, int], ...]
    """Each word with its mean gate and how often it was said, the highest mean first."""


class Evaluation(Record):
    """Everything one `limner evaluate` found on one split."""

    split: str
    decoding: str = ""
    """How sentences were found, where it was not by one model and as its recipe says."""
    pictures: str = "right"
    """Which pictures the model was shown: its own, or those of a control ('shuffled', 'mean', 'zero')."""
    measured: str = ""
    """What was measured and how, where it was not as the recipe's `evaluation` says."""
    collection: str
    fingerprint: str
    command: str
    seconds: float
    left_out: int = 0
    """Items of the split whose picture has no features."""
    scores: tuple[StoredScore, ...] = ()
    items: tuple[EvaluatedItem, ...] = ()
    retrieval: Retrieval | None = None
    gates: GateStatistics | None = None
    """Of models that let their picture in by a gate."""

    @property
    def name(self) -> str:
        """Split, search and whatever else is not as usual, as headings and file names have it."""
        control = "" if self.pictures == "right" else f"pictures_{self.pictures}"
        return "-".join(part for part in (self.split, self.decoding, self.measured, control) if part)


def read_evaluations(run_folder: Path) -> list[Evaluation]:
    """Read every evaluation of a run, in the order of their splits' names."""
    return [Evaluation.load(path) for path in sorted((run_folder / "evaluation").glob("*.json"))]
