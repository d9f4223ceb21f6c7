"""Run commands in processes that are forked from this one, which has imported all of Limner.

Reads one request per line of standard input, a JSON object with the fields of `runner.Request`, and answers each with
one line: the exit status (-9 for SIGKILL, null at the time limit), the seconds and the peak of resident memory.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from typing import Any

MEMORY = 8 << 30
"""Limit of the data of a command in bytes, which protects the machine; the tests expect far less."""
ALSO = (
    "encodings.utf_8_sig",
    "encodings.idna",
    "filelock",
    "lance",
    "lxml.etree",
    "matplotlib.backends.backend_agg",
    "safetensors.torch",
    "sacrebleu",
    "sklearn.manifold",
    "xml.sax.saxutils",
)
"""Modules of other packages that commands import late."""


def import_everything() -> None:
    """Import what commands import, so that a forked process does not."""
    warnings.filterwarnings("ignore")
    import limner

    names = [module.name for module in pkgutil.walk_packages(limner.__path__, "limner.")]
    for name in (*(name for name in names if not name.endswith("__main__")), *ALSO):
        with contextlib.suppress(ImportError):  # of an extra that is not installed
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


def serve() -> None:
    """Answer requests until standard input ends."""
    import_everything()
    for line in sys.stdin:
        request = json.loads(line)
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _become(request)
        handle = os.pidfd_open(pid)
        limit = request["kill_after"] or request["seconds"]
        ended = bool(select.select([handle], [], [], limit)[0])
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        os.close(handle)
        _, status, usage = os.wait4(pid, 0)
        stopped = not ended and request["kill_after"] is None
        reply = (
            None if stopped else os.waitstatus_to_exitcode(status),
            time.monotonic() - began,
            usage.ru_maxrss * 1024,
        )
        print(json.dumps(reply), flush=True)


def _become(request: dict[str, Any]) -> None:
    """Turn this process into the command of a request; does not return."""
    status = 1
    try:
        os.setpgid(0, 0)
        for descriptor, name, flags in (
            (0, "stdin", os.O_RDONLY),
            (1, "stdout", os.O_WRONLY),
            (2, "stderr", os.O_WRONLY),
        ):
            opened = os.open(f"{request['streams']}/{name}", flags)
            os.dup2(opened, descriptor)
            os.close(opened)
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        os.chdir(request["folder"])
        tempfile.tempdir = os.environ["HOME"] = request["streams"]
        sys.argv = ["limner", *request["arguments"]]
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        if request["file_size"] is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_size"], request["file_size"]))
        if request["uid"] is not None:
            os.setgroups([])
            os.setgid(request["uid"])
            os.setuid(request["uid"])
        if request["count_events"] is not None or request["kill_at"] is not None:
            _watch_files(request["count_events"], request["kill_at"])
        from limner.apps.cli import main

        main()
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)


def _watch_files(counter: str | None, kill_at: int | None) -> None:
    """Count the operations that change files, and kill this process before the operation of a number."""
    names = ("rename", "remove", "mkdir", "rmdir", "link", "symlink", "truncate")
    changing = {"shutil.rmtree", *(f"os.{name}" for name in names)}
    count = 0
    writer = None if counter is None else os.open(counter, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not (writes or event in changing):
            return
        count += 1
        if writer is not None:
            os.pwrite(writer, str(count).encode(), 0)
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


if __name__ == "__main__":
    serve()
