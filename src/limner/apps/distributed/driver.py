"""The process that is connected to a Ray cluster. Ray is imported only here, and only when a cluster is used.

Ray Data schedules the units, starts them again when a machine is lost, and returns their outcomes in order.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import IO, Any

from limner.apps.distributed.cluster import LOCAL, UnitJob, no_cluster_error
from limner.errors import LimnerError, ResourceError, SettingsError, system_reason
from limner.storage.json_text import to_json


def main() -> None:
    """Connect to the cluster at the address of the command line, and compute the jobs that standard input names.

    Each line of standard output is a message in JSON: the resources of the cluster, then the outcomes of the units.
    """
    messages: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, messages), daemon=True).start()
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # Ray prints the log of a process that has ended
        try:
            _answer(answers, _connect(sys.argv[1]))
            while message := messages.get():
                for outcome in _outcomes(**message):
                    _answer(answers, outcome)
        except LimnerError as error:
            _answer(answers, {"kind": type(error).__name__, "error": str(error)})
        except Exception:
            _answer(answers, {"kind": RuntimeError.__name__, "error": f"--ray failed\n{traceback.format_exc()}"})


def _read(stream: IO[bytes], messages: SimpleQueue[dict[str, Any]]) -> None:
    """Read the messages of the command until an empty message; end this process if the command has ended without it."""
    message = None
    while message != {}:
        try:
            messages.put(message := pickle.load(stream))
        except (EOFError, pickle.UnpicklingError):
            os._exit(1)  # Ray ends the actors, and a cluster that this process has started


def _answer(stream: IO[str], message: dict[str, Any]) -> None:
    stream.write(to_json(message) + "\n")
    stream.flush()


def _connect(address: str) -> dict[str, Any]:
    import ray

    options = {"include_dashboard": False} if address == LOCAL else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except ValueError as error:
        raise SettingsError(f"--ray {address}: {error}; expected local, auto or HOST:PORT") from None
    except Exception as error:  # of many types, Exception itself among them
        raise no_cluster_error(address, error) from None
    resources = ray.cluster_resources()
    return {"cpus": int(resources.get("CPU", 0)), "gpus": int(resources.get("GPU", 0))}


def _outcomes(job: bytes, device: str, count: int, actors: int, retries: int) -> Iterator[dict[str, Any]]:
    import ray
    import ray.data
    from ray.data import ActorPoolStrategy

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    units = ray.data.from_items([{"unit": unit} for unit in range(count)], override_num_blocks=count)
    outcomes = units.map_batches(
        _Actor,
        fn_constructor_args=(job,),
        batch_size=1,
        compute=ActorPoolStrategy(min_size=1, max_size=actors),
        max_task_retries=retries,
        **({"num_cpus": 1} if device == "cpu" else {"num_gpus": 1}),
    )
    try:
        for outcome in outcomes.iter_rows():
            yield outcome
            if outcome["error"]:
                return
    except ray.exceptions.RayError as error:
        reason = (
            f"--ray: an actor ended ({type(error).__name__}; a unit is tried {retries + 1} times); finished units are "
            "kept: check the memory of the machines (ray status), then run the same command again"
        )
        yield {"kind": ResourceError.__name__, "error": reason}


class _Actor:
    def __init__(self, job: bytes) -> None:
        from limner.process import keep_freed_memory

        keep_freed_memory()
        self._job = job
        self._compute: Callable[[int], None] | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Compute one unit; an error is an outcome, as another attempt would fail as well."""
        unit = int(batch["unit"][0])
        try:
            if self._compute is None:
                job: UnitJob = pickle.loads(self._job)
                self._compute = job.open()
            self._compute(unit)
        except LimnerError as error:
            return _outcome(unit, type(error).__name__, str(error))
        except MemoryError:
            reason = f"the memory of {socket.gethostname()} is not enough for an actor; finished units are kept"
            remedy = "start fewer (ray start --num-cpus), or lower --batch-size, then run the same command again"
            return _outcome(unit, ResourceError.__name__, f"--ray: {reason}: {remedy}")
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            return _outcome(unit, OSError.__name__, where + system_reason(error))
        except Exception:  # an error of the program, which Ray would report without its place
            return _outcome(unit, RuntimeError.__name__, f"unit {unit} failed\n{traceback.format_exc()}")
        return _outcome(unit)


def _outcome(unit: int, kind: str = "", message: str = "") -> dict[str, list[Any]]:
    return {"unit": [unit], "kind": [kind], "error": [message]}
