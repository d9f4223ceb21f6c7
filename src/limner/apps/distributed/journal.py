"""The journal of a distributed computation: a folder with the result of every finished unit.

Each result is a file that is written beside its place and renamed, so that a unit is finished or not, whatever process
or machine ends. A unit that is computed twice, because a machine was believed lost, has one result.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

from limner.errors import ResourceError
from limner.files import locked, write_text
from limner.files.structured import StructureError, read_json_file
from limner.storage.json_text import to_json

_PLAN = "plan.json"
_UNIT = re.compile(r"([0-9]+)\.json")


class Journal(NamedTuple):
    """Results of the units of one computation, in a folder that all machines see."""

    folder: Path
    computation: str
    """Random name of the computation; results of another one are not read."""

    @classmethod
    def begin(cls, folder: Path, plan: dict[str, Any]) -> Self:
        """Begin the journal of a computation, or continue an interrupted one with the same plan.

        Raises:
            WriteError: the folder cannot be written.
        """
        if (interrupted := cls.find(folder)) is not None and interrupted.plan == plan:
            return interrupted
        shutil.rmtree(folder, ignore_errors=True)
        journal = cls(folder, uuid4().hex)
        write_text(folder / _PLAN, to_json({"computation": journal.computation, "plan": plan}))
        return journal

    @classmethod
    def find(cls, folder: Path) -> Self | None:
        """Return the journal of an interrupted computation; None without one."""
        content = _read(folder / _PLAN)
        return None if content is None else cls(folder, str(content.get("computation")))

    @property
    def plan(self) -> dict[str, Any]:
        """The plan of the computation."""
        content = _read(self.folder / _PLAN) or {}
        plan = content.get("plan")
        return plan if isinstance(plan, dict) else {}

    def write(self, unit: int, result: dict[str, Any]) -> None:
        """Store the result of a unit; WriteError if the folder cannot be written."""
        write_text(self._file(unit), to_json({"computation": self.computation, "result": result}))

    def read(self, unit: int) -> dict[str, Any] | None:
        """Return the result of a unit; None if it is not finished, or its file is damaged."""
        content = _read(self._file(unit)) or {}
        result = content.get("result")
        return result if content.get("computation") == self.computation and isinstance(result, dict) else None

    def results(self) -> Iterator[dict[str, Any]]:
        """Read the results of all finished units, in the order of the units."""
        numbers = sorted(int(found[1]) for file in self.folder.glob("*.json") if (found := _UNIT.fullmatch(file.name)))
        yield from filter(None, map(self.read, numbers))

    def require(self, unit: int) -> dict[str, Any]:
        """Return the result of a finished unit.

        Raises:
            ResourceError: another machine has written it to a folder that this one does not see.
        """
        result = self.read(unit)
        if result is None:
            raise ResourceError(
                f"{self.folder}: unit {unit} is computed, and its result is not there; expected a folder that all "
                "machines of the cluster share under one path, such as one of NFS"
            )
        return result

    def remove(self) -> None:
        """Remove the journal, when its results are stored elsewhere."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, unit: int) -> Path:
        return self.folder / f"{unit}.json"


@contextmanager
def locked_journal(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder of a journal: a second computation in it would remove the results of the first.

    Raises:
        ResourceError: another process computes there.
    """
    with locked(folder, ResourceError, folder.with_name(f"{folder.name}.lock")):
        yield


def _read(file: Path) -> dict[str, Any] | None:
    try:
        content = read_json_file(file)
    except (OSError, StructureError):
        return None
    return content if isinstance(content, dict) else None
