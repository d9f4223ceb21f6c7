"""The log of a run: JSON lines, and TensorBoard if it is installed."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

from limner.files import write_error, write_text
from limner.runs.records import LogLine, read_log
from limner.storage.json_text import to_json
from limner.training.state import TrainState

logger = logging.getLogger(__name__)


class RunLog:
    """Log of a training, RUN/log.jsonl; on resuming, lines that are newer than the saved state are removed."""

    def __init__(self, run: Path, state: TrainState, enabled: bool = True) -> None:
        self.enabled, self.board = enabled, None
        if not enabled:  # another process writes the log
            return
        self.path = run / "log.jsonl"
        # Lines are written at the end of an epoch, so a line of this very step is older only if its epoch is complete.
        first_removed = state.step + (state.batch == 0 and state.step > 0)
        if self.path.exists():
            older = [line for line in read_log(self.path) if line.step < first_removed]
            write_text(self.path, "".join(line.model_dump_json(exclude_none=True) + "\n" for line in older))
        self.board = _tensorboard(run, first_removed)

    def epoch(self, state: TrainState) -> None:
        """Log the training loss of an epoch at its end."""
        state.count_time()
        line = LogLine(
            step=state.step,
            epoch=state.epoch + 1,
            kind="train",
            loss=state.loss,
            tokens_per_second=state.tokens_per_second,
            seconds=state.seconds,
            step_seconds=state.step_seconds,
        )
        self._write(line)

    def validation(self, state: TrainState, values: dict[str, float]) -> None:
        """Log the metrics of a validation."""
        state.count_time()
        others = {name: value for name, value in values.items() if name != "perplexity"}
        line = LogLine(
            step=state.step,
            epoch=state.epoch,
            kind="val",
            perplexity=values.get("perplexity"),
            seconds=state.seconds,
            step_seconds=state.step_seconds,
            metrics=others,
        )
        self._write(line)

    def close(self) -> None:
        """Close the TensorBoard log."""
        if self.board is not None:
            self.board.close()

    def _write(self, line: LogLine) -> None:
        if not self.enabled:
            return
        try:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(line.model_dump_json(exclude_none=True) + "\n")
        except OSError as error:
            raise write_error(self.path, error) from None
        logger.info("%s", to_json(_rounded(line.model_dump(exclude_none=True))))
        if self.board is not None:
            numbers = {
                "loss": line.loss,
                "perplexity": line.perplexity,
                "tokens_per_second": line.tokens_per_second,
            }
            for name, value in {**numbers, **line.metrics}.items():
                if value is not None:
                    self.board.add_scalar(f"{line.kind}/{name}", value, line.step)


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Round the numbers of a log line, which are read by people."""
    nested = {key: _rounded(value) for key, value in values.items() if isinstance(value, dict)}
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in {**values, **nested}.items()}


def _tensorboard(run: Path, first_removed: int) -> Any:  # noqa: ANN401  (an untyped class)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        logger.info("no TensorBoard log: the extra 'tensorboard' is not installed")
        return None
    return SummaryWriter(str(run / "tensorboard"), purge_step=first_removed)
