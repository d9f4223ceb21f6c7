"""Units of work on the actors of a Ray cluster. A separate process is connected to it, `driver.py`.

Ray ends a connected process without a word when the cluster, or the node of its machine, is lost. Here Ray ends the
driver only, and this process reports the loss. Results do not pass through Ray: a unit stores its result in the
journal, a folder with a file for every finished unit. Files are written under a temporary name and renamed, so that a
unit is finished or not, whichever process or machine ends.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self
from uuid import uuid4

from limner import errors
from limner.errors import LimnerError, MissingExtraError, ResourceError, SettingsError, system_reason
from limner.files import locked, write_text
from limner.files.structured import StructureError, parse_json, read_json_file
from limner.storage.json_text import to_json
from limner.storage.places import is_remote, place

_PLAN = "plan.json"
_UNIT = re.compile(r"([0-9]+)\.json")


class Journal(NamedTuple):
    """Results of the units of one computation, in a folder that all machines see."""

    folder: Path
    computation: str  # random name of the computation; results of another computation are not read
    plan: dict[str, Any]

    @classmethod
    def begin(cls, folder: Path, plan: dict[str, Any]) -> Self:
        """Begin the journal of a computation, or continue an interrupted one with the same plan."""
        if (interrupted := cls.find(folder)) is not None and interrupted.plan == plan:
            return interrupted
        shutil.rmtree(folder, ignore_errors=True)
        journal = cls(folder, uuid4().hex, plan)
        write_text(folder / _PLAN, to_json({"computation": journal.computation, "plan": plan}))
        return journal

    @classmethod
    def find(cls, folder: Path) -> Self | None:
        """Return the journal of an interrupted computation; None if there is none."""
        content = _read(folder / _PLAN)
        if content is None:
            return None
        plan = content.get("plan")
        return cls(folder, str(content.get("computation")), plan if isinstance(plan, dict) else {})

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
        numbers = sorted(int(match[1]) for file in self.folder.glob("*.json") if (match := _UNIT.fullmatch(file.name)))
        yield from filter(None, map(self.read, numbers))

    def require(self, unit: int) -> dict[str, Any]:
        """Return the result of a finished unit; ResourceError if this machine does not see the folder of the writer."""
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


def locked_journal(folder: Path) -> AbstractContextManager[None]:
    """Hold the lock of the folder of a journal, as a second computation would remove the results of the first."""
    return locked(folder, ResourceError, folder.with_name(f"{folder.name}.lock"))


def _read(file: Path) -> dict[str, Any] | None:
    try:
        content = read_json_file(file)
    except (OSError, StructureError):
        return None
    return content if isinstance(content, dict) else None


LOCAL = "local"
"""Address that starts Ray on this machine, for the time of one command."""

RETRIES = 20
"""Number of times that a unit is computed again when its actor or its machine ends; by default Ray never gives up. A
unit that needs too much memory ends every attempt, the loss of a machine only one."""

_CONNECT_SECONDS = 10
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent to others
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # errors reach the user as exceptions
}
_DRIVER = "from limner.apps.distributed.driver import main; main()"

logger = logging.getLogger(__name__)


class UnitJob(Protocol):
    """A computation in units; plain values, which Ray sends to its actors."""

    @property
    def device(self) -> str:
        """Device of each actor: cpu or cuda."""

    def open(self) -> Callable[[int], None]:
        """Load the models and data of the units; return the function that computes a unit and stores its result."""


class Cluster:
    """A cluster that the driver is connected to."""

    def __init__(self, address: str, driver: subprocess.Popen[bytes]) -> None:
        """Wait until the driver is connected."""
        self._address, self._driver = address, driver
        resources = self.receive()
        self.cpus = int(resources["cpus"])
        """Number of processor cores."""
        self.gpus = int(resources["gpus"])
        """Number of GPUs."""

    def actors(self, device: str) -> int:
        """Return the number of actors that compute at the same time, one for each core or GPU."""
        count = self.cpus if device == "cpu" else self.gpus
        if device == "cpu" and self.gpus:
            logger.warning("the cluster has GPUs (%d), which --device cuda uses", self.gpus)
        if not count:
            kind = "processor core" if device == "cpu" else "GPU"
            raise ResourceError(f"--ray: the cluster has no {kind}; start a machine that has one, or change --device")
        return count

    def send(self, **message: Any) -> None:  # noqa: ANN401 (plain values)
        """Send a message to the driver; an empty message ends the driver. ResourceError if the driver has ended."""
        assert self._driver.stdin is not None
        try:
            pickle.dump(message, self._driver.stdin)
            self._driver.stdin.flush()
        except OSError:
            raise self._loss() from None

    def receive(self) -> dict[str, Any]:
        """Return the next message of the driver."""
        assert self._driver.stdout is not None
        line = self._driver.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._loss()
        message: dict[str, Any] = parse_json(line)
        if message.get("error"):
            raise _unit_error(message["kind"], message["error"])
        return message

    def _loss(self) -> ResourceError:
        return ResourceError(
            f"--ray {self._address}: the connection to the cluster is lost, because its head or the Ray processes of "
            "this machine have ended; finished units are kept: check the memory of the machines (ray status), then "
            "run the same command again"
        )


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to a Ray cluster, or start one on this machine; it is stopped or left at the end.

    The address is 'local' for a cluster on this machine, 'auto' for the cluster of this machine, or HOST:PORT.
    """
    require_ray()
    _require_reachable(address)
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _DRIVER, address],
        stdin=subprocess.PIPE,  # the driver ends with it
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**_ENVIRONMENT, **os.environ},
        start_new_session=True,  # Ctrl-C interrupts the command, which then ends the driver
    ) as driver:
        cluster = Cluster(address, driver)
        yield cluster
        with suppress(ResourceError):  # all results are stored
            cluster.send()


def require_ray() -> None:
    """Check that Ray is installed; MissingExtraError without it."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("--ray", "scale")


def require_folder(collection: Path) -> None:
    """Check that a collection is a folder, which all machines share and which holds the journal, or SettingsError."""
    if is_remote(place(collection)):
        raise SettingsError(
            f"{place(collection)}: --ray needs a collection in a folder that all machines share, not in an object "
            "store; leave out --ray, or import the collection into such a folder"
        )


def run_units(cluster: Cluster, job: UnitJob, count: int) -> Iterator[int]:
    """Compute units on the cluster.

    The number of a unit is yielded when its result is stored, in order. The error of the first failed unit, in order,
    is raised as the actor raised it; ResourceError if the actors of a unit end again and again, such as for lack of
    memory, or the cluster is lost.
    """
    actors = min(cluster.actors(job.device), count)
    cluster.send(job=pickle.dumps(job), device=job.device, count=count, actors=actors, retries=RETRIES)
    for _ in range(count):
        yield int(cluster.receive()["unit"])


def _unit_error(kind: str, message: str) -> Exception:
    """Return the error of a unit as it was raised."""
    known: dict[str, type[Exception]] = {
        cls.__name__: cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, LimnerError)
    }
    known |= {cls.__name__: cls for cls in (OSError, RuntimeError)}
    known.pop(MissingExtraError.__name__)  # made of other arguments
    return known.get(kind, LimnerError)(message)


def _require_reachable(address: str) -> None:
    """Check that HOST:PORT answers, because Ray would wait for minutes."""
    if address in (LOCAL, "auto"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 1 << 16:
        raise SettingsError(f"--ray {address}: expected local, auto or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise no_cluster_error(address, error) from None


def no_cluster_error(address: str, error: Exception) -> ResourceError:
    """Return the error for an address without a cluster."""
    return ResourceError(
        f"--ray {address}: no Ray cluster answers ({system_reason(error)}); start one with 'ray start --head', or "
        f"write --ray {LOCAL}"
    )
