"""JSON records in a run directory: configuration and log. Importing this module imports neither torch nor any model.

RUN/config.json     `RunConfig`
RUN/log.jsonl       one `LogLine` per line
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from limner.errors import RunError
from limner.files import read_bytes, write_text
from limner.files.structured import StructureError, parse_json, read_json_file
from limner.runs.pretrained import model_type

if TYPE_CHECKING:
    from limner.data.collection import Collection

logger = logging.getLogger(__name__)


class Record(BaseModel):
    """Base class of all JSON records; unknown keys, such as keys of a newer version, are ignored in reading."""

    # JSON has no infinity, so it is written as a string.
    model_config = ConfigDict(
        frozen=True, use_attribute_docstrings=True, ser_json_inf_nan="strings", protected_namespaces=()
    )
    remedy: ClassVar[str] = "restore the file from a copy, or write it again"
    """Remedy for a damaged file, for error messages."""

    def save(self, path: Path) -> None:
        """Write the record to a JSON file atomically."""
        write_text(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def is_in(cls, path: Path) -> bool:
        """Whether a file is a record of this class."""
        try:
            cls.load(path)
        except RunError:
            return False
        return True

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a record from a JSON file; RunError, which names file and key, if it is no record of this class."""
        try:
            return cls.model_validate(read_json_file(path))
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error.strerror}); check that the run is finished") from None
        except ValidationError as error:
            problem = _first_problem(error)
            raise RunError(f"{path}: expected a record of type {cls.__name__}: {problem}; {cls.remedy}") from None
        except StructureError as error:
            raise RunError(f"{path}: damaged: {error}; {cls.remedy}") from None


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    message = problem["msg"].removeprefix("Value error, ")
    return f"{'.'.join(str(part) for part in problem['loc']) or 'file'}: {message}"


def require_run_directory(folder: Path) -> None:
    """Check that a run directory exists; its weights may be missing. RunError if it does not, or is another folder."""
    if (family := model_type(folder)) is not None:
        raise RunError(
            f"{folder}: expected a run directory, found a model of transformers ('{family}'), which describes, "
            "translates, scores, indexes and is served, or is a backbone; name a run, or another command"
        )
    if not folder.exists():
        raise RunError(f"{folder}: no such run directory; check the path, or train one with 'limner train'")
    if not (folder / "config.json").exists():
        raise RunError(f"{folder}: expected a run directory (the --out of 'limner train'), found no config.json")


class RunConfig(Record):
    """Recipe and provenance of a trained model."""

    recipe: dict[str, Any] = Field(default_factory=dict)
    """Resolved settings."""
    provenance: dict[str, Any] = Field(default_factory=dict)
    """Collection, fingerprints, seed, versions, machine, seconds, command line and validation metrics."""


class LogLine(Record):
    """One line of the training log."""

    step: int
    """Number of training steps done."""
    epoch: float
    """Number of epochs done."""
    kind: Literal["train", "val"]
    """Whether the line reports an epoch of training or a validation."""
    loss: float | None = None
    """Mean training loss of the epoch, in nats per token."""
    perplexity: float | None = None
    """Perplexity of the validation split."""
    tokens_per_second: float | None = None
    """Target tokens trained on per second."""
    seconds: float | None = None
    """Duration of the training so far by the clock on the wall, preparation and validations included."""
    step_seconds: float | None = None
    """Duration of all training steps so far."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Metrics of the validation by name."""

    def named(self) -> dict[str, float]:
        """Return the metrics by name, with perplexity if it was computed."""
        return self.metrics if self.perplexity is None else {"perplexity": self.perplexity, **self.metrics}


def read_log(path: Path) -> list[LogLine]:
    """Read a training log; an incomplete last line, as an interrupted program leaves it, is ignored.

    Raises:
        RunError: the file cannot be read, or another line is damaged; names the file and the line.
    """
    try:
        lines = read_bytes(path).splitlines()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None
    log = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            log.append(LogLine.model_validate(parse_json(line)))
        except ValueError as error:  # JSON's and pydantic's errors both are
            if number == len(lines):
                logger.info("%s: the last line is incomplete and was ignored", path)
                continue
            problem = f"{_first_problem(error)}; {Record.remedy}" if isinstance(error, ValidationError) else error
            raise RunError(f"{path}, line {number}: expected a line of the training log: {problem}") from None
    return log


def provenance(collection: Collection, command: str, began: float) -> dict[str, Any]:
    """Return the common fields of all records; `began` is the `time.perf_counter()` at the start of the command."""
    return {
        "collection": str(collection.path.resolve()),
        "fingerprint": collection.fingerprint(),
        "command": command,
        "seconds": time.perf_counter() - began,
    }
