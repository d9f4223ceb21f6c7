"""The files of evaluations in a run directory."""

from __future__ import annotations

import logging
from pathlib import Path

from limner.errors import RunError
from limner.runs.records import Evaluation, require_run_directory
from limner.storage.outputs import require_name

logger = logging.getLogger(__name__)


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
    """Read the stored evaluation of a run that is compared: RUN/evaluation/SPLIT.json, or a newer partial one.

    Raises:
        RunError: there is none, or it is damaged.
    """
    path, part = _paths(run, split)
    # A partial evaluation has fewer scores but all hypotheses, and only these are read.
    if stored := [one for one in (path, part) if one.exists()]:
        newest = max(stored, key=lambda one: one.stat().st_mtime_ns)
        if newest != path:
            logger.info("%s: read instead of %s, because it is newer", newest, path.name)
        return Evaluation.load(newest)
    require_run_directory(run)
    others = ", ".join(sorted(other.stem for other in path.parent.glob("*.json")))
    raise RunError(
        f"{path}: no such evaluation; create it with 'limner evaluate --model {run} --split {split} "
        "--collection COLLECTION'" + (f", or name an existing one with --split: {others}" if others else "")
    )


def _paths(run: Path, name: str) -> tuple[Path, Path]:
    """Return the file of an evaluation, and that of one with a part of its scores."""
    folder = run / "evaluation"
    return folder / f"{require_name(name, 'the split')}.json", folder / f"{name}-part.json"
