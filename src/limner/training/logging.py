"""The log of a run: plain JSON lines always, TensorBoard where it is installed."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

from limner.files import write_error, write_text
from limner.runs.records import LogLine, read_log
from limner.training.state import TrainState

logger = logging.getLogger(__name__)


class RunLog:
    """Appends to RUN/log.jsonl; lines written after the place a run resumes from are dropped first."""

    def __init__(self, run: Path, place: TrainState) -> None:
        self.path = run / "log.jsonl"
        # Lines are written when an epoch ends: those of this very step are older only if its epoch has ended.
        first_dropped = place.step + (place.batch == 0)
        if self.path.exists():
            kept = [line for line in read_log(self.path) if line.step < first_dropped]
            write_text(self.path, "".join(line.model_dump_json(exclude_none=True) + "\n" for line in kept))
        self.board = _tensorboard(run, first_dropped)

    def epoch(self, place: TrainState) -> None:
        """Write down an epoch of training."""
        line = LogLine(
            step=place.step,
            epoch=place.epoch + 1,
            kind="train",
            loss=place.loss,
            words_per_second=place.words_per_second,
            seconds=place.seconds,
        )
        self._write(line)

    def validation(self, place: TrainState, values: dict[str, float]) -> None:
        """Write down a validation."""
        others = {name: value for name, value in values.items() if name != "perplexity"}
        line = LogLine(
            step=place.step,
            epoch=place.epoch,
            kind="val",
            perplexity=values.get("perplexity"),
            seconds=place.seconds,
            metrics=others,
        )
        self._write(line)

    def close(self) -> None:
        if self.board is not None:
            self.board.close()

    def _write(self, line: LogLine) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(line.model_dump_json(exclude_none=True) + "\n")
        except OSError as error:
            raise write_error(self.path, error) from None
        logger.info("%s", json.dumps(line.model_dump(exclude_none=True)))
        if self.board is not None:
            numbers = {
                "loss": line.loss,
                "perplexity": line.perplexity,
                "words_per_second": line.words_per_second,
            }
            for name, value in {**numbers, **line.metrics}.items():
                if value is not None:
                    self.board.add_scalar(f"{line.kind}/{name}", value, line.step)


def _tensorboard(run: Path, first_dropped: int) -> Any:  # noqa: ANN401  (a class without types)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        logger.info("no TensorBoard log: the extra 'tensorboard' is not installed")
        return None
    return SummaryWriter(str(run / "tensorboard"), purge_step=first_dropped)
