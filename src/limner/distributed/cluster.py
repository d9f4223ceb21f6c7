"""Units of work on the actors of a Ray cluster. Ray is imported only here, and only when a cluster is used.

Ray Data schedules the units, starts them again when a machine is lost, and returns their outcomes in order. Results do
not pass through Ray: a unit stores its own in the journal, where a later attempt of the same unit finds it.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from limner import errors
from limner.errors import LimnerError, MissingExtraError, ResourceError, SettingsError, system_reason
from limner.storage.places import is_remote, place

LOCAL = "local"
"""Address that starts Ray on this machine, for the time of one command."""

RETRIES = 20
"""Number of times that a unit is computed again when its actor or its machine ends; Ray alone would do so without end.
A unit that needs more memory than there is ends all of them, and the loss of machines a few."""

_ANSWER_SECONDS = 10
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent to others
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # errors reach the user as exceptions
}

logger = logging.getLogger(__name__)


class UnitJob(Protocol):
    """A computation in units; plain values, which Ray sends to its actors."""

    @property
    def device(self) -> str:
        """Device of each actor: cpu or cuda."""
        ...

    def open(self) -> Callable[[int], None]:
        """Load what the units need; return the function that computes a unit and stores its result."""
        ...


class Cluster(NamedTuple):
    """A cluster that this process is connected to."""

    cpus: int
    """Number of processor cores."""
    gpus: int
    """Number of GPUs."""

    def actors(self, device: str) -> int:
        """Return how many actors compute at the same time: one for each core, or for each GPU.

        Raises:
            ResourceError: the cluster has none.
        """
        count = self.cpus if device == "cpu" else self.gpus
        if device == "cpu" and self.gpus:
            logger.warning("the cluster has GPUs (%d), which --device cuda uses", self.gpus)
        if not count:
            kind = "processor core" if device == "cpu" else "GPU"
            raise ResourceError(f"--ray: the cluster has no {kind}; start a machine that has one, or change --device")
        return count


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to a Ray cluster, or start one on this machine; it is stopped or left at the end.

    Args:
        address: 'local' for a cluster on this machine, 'auto' for the one that this machine belongs to, or HOST:PORT.

    Raises:
        MissingExtraError: Ray is not installed.
        ResourceError: there is no cluster at the address.
    """
    require_ray()
    _require_answer(address)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    own = not ray.is_initialized()
    if own:
        _connect(ray, address)
    try:
        found = ray.cluster_resources()
        yield Cluster(math.floor(found.get("CPU", 0)), math.floor(found.get("GPU", 0)))
    finally:
        if own:
            ray.shutdown()


def require_ray() -> None:
    """Check that Ray is installed; MissingExtraError without it."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("--ray", "scale")


def require_folder(collection: Path) -> None:
    """Check that a collection is in a folder: the machines share it, and the journal of finished units is beside it.

    Raises:
        SettingsError: it is in an object store.
    """
    if is_remote(place(collection)):
        raise SettingsError(
            f"{place(collection)}: --ray needs a collection in a folder that all machines share, not in an object "
            "store; leave out --ray, or import the collection into such a folder"
        )


def run_units(cluster: Cluster, job: UnitJob, count: int) -> Iterator[int]:
    """Compute units on the cluster.

    Args:
        cluster: the cluster.
        job: the computation.
        count: number of units.

    Yields:
        The numbers of the units, in order, each when its result is stored.

    Raises:
        LimnerError: that of the first unit, in order, that failed; likewise the two below.
        OSError: a file cannot be read or written.
        RuntimeError: a unit failed in another way; with the traceback of the actor.
        ResourceError: the actors of a unit end again and again, such as for lack of memory.
    """
    import ray
    import ray.data
    from ray.data import ActorPoolStrategy

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    size = min(cluster.actors(job.device), count)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    units = ray.data.from_items([{"unit": unit} for unit in range(count)], override_num_blocks=count)
    outcomes = units.map_batches(
        _Actor,
        fn_constructor_args=(job,),
        batch_size=1,
        compute=ActorPoolStrategy(min_size=1, max_size=size),
        max_task_retries=RETRIES,
        **({"num_cpus": 1} if job.device == "cpu" else {"num_gpus": 1}),
    )
    try:
        for outcome in outcomes.iter_rows():
            if outcome["error"]:
                raise _error(outcome["kind"], outcome["error"])
            yield int(outcome["unit"])
    except ray.exceptions.RayError as error:
        raise ResourceError(
            f"--ray: an actor ended ({type(error).__name__}; a unit is tried {RETRIES + 1} times); finished units are "
            "kept: check the memory of the machines (ray status), then run the same command again"
        ) from error


class _Actor:
    """A process that has loaded a job; Ray starts several."""

    def __init__(self, job: UnitJob) -> None:
        from limner.process import keep_freed_memory

        keep_freed_memory()
        self._job = job
        self._compute: Callable[[int], None] | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Compute one unit; an error is an outcome, as another attempt would give it again."""
        unit = int(batch["unit"][0])
        try:
            if self._compute is None:
                self._compute = self._job.open()
            self._compute(unit)
        except LimnerError as error:
            return _outcome(unit, type(error).__name__, str(error))
        except MemoryError:
            reason = (
                f"--ray: the memory of {socket.gethostname()} is not enough for an actor; finished units are kept: "
            )
            remedy = "start fewer (ray start --num-cpus), or lower --batch-size, then run the same command again"
            return _outcome(unit, ResourceError.__name__, reason + remedy)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            return _outcome(unit, OSError.__name__, where + system_reason(error))
        except Exception:  # an error of the program, which Ray would report without its place
            return _outcome(unit, RuntimeError.__name__, f"unit {unit} failed\n{traceback.format_exc()}")
        return _outcome(unit)


def _outcome(unit: int, kind: str = "", message: str = "") -> dict[str, list[Any]]:
    return {"unit": [unit], "kind": [kind], "error": [message]}


def _error(kind: str, message: str) -> Exception:
    """Return the error of a unit as it was raised."""
    known: dict[str, type[Exception]] = {
        cls.__name__: cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, LimnerError)
    }
    known |= {cls.__name__: cls for cls in (OSError, RuntimeError)}
    known.pop(MissingExtraError.__name__)  # made of other arguments
    return known.get(kind, LimnerError)(message)


def _require_answer(address: str) -> None:
    """Check that HOST:PORT answers, for which Ray waits for minutes.

    Raises:
        SettingsError: the address has another form.
        ResourceError: nothing answers.
    """
    if address in (LOCAL, "auto"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 1 << 16:
        raise SettingsError(f"--ray {address}: expected local, auto or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        raise _no_cluster(address, error) from None


def _no_cluster(address: str, error: Exception) -> ResourceError:
    return ResourceError(
        f"--ray {address}: no Ray cluster answers ({system_reason(error)}); start one with 'ray start --head', or "
        f"write --ray {LOCAL}"
    )


def _connect(ray: Any, address: str) -> None:  # noqa: ANN401 (a module)
    """Start or join a cluster.

    Raises:
        ResourceError: there is none at the address.
        SettingsError: the address has another form.
    """
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address == LOCAL:
            ray.init(address=LOCAL, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except ValueError as error:
        raise SettingsError(f"--ray {address}: {error}; expected local, auto or HOST:PORT") from None
    except Exception as error:  # of many types, Exception itself among them
        raise _no_cluster(address, error) from None
