"""Measure the size of Limner: lines and files, and how much of the program its main commands and one caption pass.

    python benchmarks/size.py                     the table
    python benchmarks/size.py --json size.json    also as JSON
    python benchmarks/size.py --before size.json  with the figures of an earlier version beside the present figures

A file counts as entered if one of its functions is called. The commands run on a small generated collection. The exit
status is 1 if a figure has grown above its value in `TODAY`.
"""

from __future__ import annotations

import argparse
import json
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
LIMITS = {
    "lines of src": 60_000,
    "files of src": 330,
    "lines of tests": 42_000,
    "lines of files that six commands enter": 20_000,
    "photograph: functions": 200,
    "photograph: files": 40,
    "photograph: calls": 6_000,
    "photograph: passes of the backbone": 1,
    "request: functions": 140,
    "request: files": 30,
    "describe: calls from command to step": 5,
    "translate: calls from command to step": 5,
    "train: calls from command to forward": 5,
}
"""Largest value that each figure should have."""
TODAY = {
    **LIMITS,
    "lines of files that six commands enter": 26_100,
    "files that six commands enter": 127,
    "request: calls": 1_000,
}
"""Value above which no figure may grow: its limit, or where that is not reached what there is, with some room."""
COMMANDS = ("describe", "translate", "train", "evaluate", "search", "serve")
SERVED = """
import base64, threading, time, httpx, uvicorn
from limner.apps import cli
start = uvicorn.Server.run
def run(self, sockets=None):
    def client():
        try:
            while not self.started:
                time.sleep(0.05)
            with open(PHOTO, "rb") as file:
                body = {"image": base64.b64encode(file.read()).decode()}
            address = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/v1/describe"
            httpx.post(address, json=body, timeout=60).raise_for_status()
        finally:
            self.should_exit = True
    threading.Thread(target=client).start()
    return start(self, sockets)
uvicorn.Server.run = run
"""


class Trace:
    """Functions of the package that are called in this process."""

    def __init__(self) -> None:
        import limner

        self.package = str(Path(limner.__file__).parent)
        self.functions: set[tuple[str, str]] = set()
        self.calls = self.passes = 0
        self.paths: dict[str, list[str]] = {}
        """For `step` and `forward` the functions that were active at their first call, from the command on."""

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Count a call; see `sys.setprofile`."""
        code = frame.f_code
        if (
            event != "call"
            or not code.co_filename.startswith(self.package)
            or not code.co_flags & 1
            or code.co_name.startswith("<")
        ):
            return
        self.functions.add((code.co_filename, code.co_qualname))
        self.calls += 1
        of_graph = code.co_qualname == "Graph.__call__" and frame.f_locals["self"].name.endswith("backbone.onnx")
        self.passes += of_graph or code.co_qualname == "EfficientNetLite.forward"
        if code.co_name in ("step", "forward") and "/models/" in code.co_filename and code.co_name not in self.paths:
            self.paths[code.co_name] = self._callers(frame)

    def _callers(self, frame: FrameType | None) -> list[str]:
        names: list[str] = []
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(self.package) and "<" not in frame.f_code.co_name:
                name = name[len(self.package) :]
                names.append(f"{name[1:]}: {frame.f_code.co_qualname}")
                if "/cli/" in name and frame.f_code.co_name in COMMANDS:
                    break
            frame = frame.f_back
        return names[::-1]

    def start(self) -> None:
        sys.setprofile(self)
        threading.setprofile_all_threads(self) if sys.version_info >= (3, 12) else threading.setprofile(self)

    def result(self) -> dict[str, Any]:
        """Stop, and return what was counted."""
        sys.setprofile(None)
        threading.setprofile(None)
        files = sorted({name for name, _ in self.functions})
        return {
            "files": [name[len(self.package) + 1 :] for name in files],
            "functions": len(self.functions),
            "calls": self.calls,
            "passes": self.passes,
            "paths": self.paths,
        }


def trace_command(arguments: Sequence[str], out: Path) -> None:
    """Run a command of Limner in this process and write what was counted to a file."""
    trace = Trace()
    if arguments[0] == "serve":
        exec(SERVED, {"PHOTO": arguments[-1]})
        arguments = arguments[:-1]
    sys.argv = ["limner", *arguments]
    trace.start()
    try:
        runpy.run_module("limner", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    finally:
        out.write_text(json.dumps(trace.result()), encoding="utf-8")


def trace_request(photo: Path, out: Path) -> None:
    """Describe a photograph with a captioner that has described another before, and write what was counted."""
    import limner

    captioner = limner.load()
    captioner.describe([photo])
    trace = Trace()
    trace.start()
    captioner.describe([photo.read_bytes()])
    out.write_text(json.dumps(trace.result()), encoding="utf-8")


def traced(*arguments: str | Path) -> dict[str, Any]:
    """Run this script in a process of its own, and return what it counted."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "trace.json")
        command = [sys.executable, __file__, "--trace", str(out), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, arguments))}: failed\n{done.stderr}")
        result: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return result


def free_port() -> int:
    """Return a port of this machine that nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


class Size(NamedTuple):
    """Lines and number of the Python files of a folder."""

    lines: int
    files: int


def size_of(folder: Path) -> Size:
    """Count the Python files of a folder and their lines."""
    files = sorted(folder.rglob("*.py"))
    return Size(sum(len(file.read_bytes().splitlines()) for file in files), len(files))


def static_figures() -> dict[str, int]:
    """Return the figures for which nothing is run."""
    source, tests = size_of(ROOT / "src" / "limner"), size_of(ROOT / "tests")
    return {"lines of src": source.lines, "files of src": source.files, "lines of tests": tests.lines}


def grown(figures: dict[str, int]) -> list[str]:
    """Return a line for each figure that is above its value in `TODAY`."""
    return [
        f"{name}: {value:,}, expected at most {TODAY[name]:,}" for name, value in figures.items() if value > TODAY[name]
    ]


def measure(work: Path) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return all figures, and the functions on the way from each command to the model."""
    import limner

    package = Path(limner.__file__).parent
    scenes, caption, translation = work / "scenes", work / "caption", work / "translation"
    collection = limner.generate_collection(
        scenes, limner.SceneSettings(train=24, val=4, test=4, size=96, max_objects=1)
    )
    limner.extract(collection, limner.load_backbone("pixels:64"))
    photo = next((scenes / "images").glob("test-*"))
    quick = ("training.epochs=1", "training.batch_size=8", "--collection", scenes)
    traces = {
        "photograph": traced("describe", photo),
        "train": traced("train", "scenes/demo-caption", *quick, "--out", caption),
        "train a translator": traced("train", "scenes/demo-translate", *quick, "--out", translation),
        "describe": traced("describe", photo, "--model", caption),
        "translate": traced("translate", "There is a bat.", "--model", translation, "--image", photo),
        "evaluate": traced("evaluate", "--model", caption, "--collection", scenes),
        "search": traced("search", "a bat", "--model", caption, "--collection", scenes),
        "serve": traced("serve", "--port", str(free_port()), photo),
        "request": traced("request", photo),
    }
    entered = {name for key, trace in traces.items() if key != "request" for name in trace["files"]}
    figures = static_figures() | {
        "lines of files that six commands enter": sum(len((package / n).read_bytes().splitlines()) for n in entered),
        "files that six commands enter": len(entered),
    }
    for key in ("photograph", "request"):
        figures |= {f"{key}: {name}": traces[key][name] for name in ("functions", "calls")}
        figures |= {f"{key}: files": len(traces[key]["files"])}
    figures["photograph: passes of the backbone"] = traces["photograph"]["passes"]
    paths = {}
    for command, target in (("describe", "step"), ("translate", "step"), ("train", "forward")):
        paths[command] = traces[command]["paths"].get(target, [])
        figures[f"{command}: calls from command to {target}"] = len(paths[command]) - 1
    return figures, paths


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--paths", action="store_true", help="also print the functions from the commands to the models")
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    if options.trace is not None:
        return (
            trace_request(Path(rest[1]), options.trace) if rest[0] == "request" else trace_command(rest, options.trace)
        )
    with tempfile.TemporaryDirectory() as folder:
        figures, paths = measure(Path(folder))
    before = json.loads(options.before.read_text(encoding="utf-8")) if options.before else {}
    print(f"{'':42}{'before':>10}{'now':>10}{'at most':>10}")
    for name, value in figures.items():
        limit = f"{LIMITS[name]:,}" if name in LIMITS else ""
        earlier = f"{before[name]:,}" if name in before else ""
        print(f"{name:42}{earlier:>10}{value:>10,}{limit:>10}{' above' if value > LIMITS.get(name, value) else ''}")
    if options.paths:
        for command, names in paths.items():
            print(f"\n{command}:", *names, sep="\n  ")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if lines := grown(figures):
        sys.exit("\n".join(lines))


if __name__ == "__main__":
    main()
