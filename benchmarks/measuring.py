"""Timing and reporting for the benchmarks: median times, matrix-product rates, one JSON line per result."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from limner.process import native_bf16

CPU = torch.device("cpu")


def hardware() -> str:
    """Describe the processor: name, number of cores and of PyTorch threads, native bfloat16."""
    name = next(
        (line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")),
        platform.machine(),
    )
    return (
        f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, bf16 {'yes' if native_bf16(CPU) else 'no'}"
    )


def _cpuinfo() -> list[str]:
    """Return the lines of /proc/cpuinfo; empty on other systems than Linux."""
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def report(name: str, value: float, unit: str, target: str, **details: object) -> None:
    """Print one result as a JSON line.

    Args:
        name: name of the measurement.
        value: result, printed with four significant digits.
        unit: unit of the result.
        target: expected range, or '-'.
        details: further fields of the line.
    """
    line = {"name": name, "value": float(f"{value:.4g}"), "unit": unit, "target": target, **details}
    print(json.dumps({**line, "hardware": hardware()}), flush=True)


def median_time(run: Callable[[], object], times: int) -> float:
    """Compute the median time in seconds of `times` runs, after one warm-up run."""
    run()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def product_rate(dtype: torch.dtype) -> float:
    """Measure the floating-point operations per second of a large square matrix product."""
    a, b = torch.randn(2, 3072, 3072).to(dtype)
    return 2 * 3072**3 / median_time(lambda: a @ b, 7)


def real_data() -> Path | None:
    """Return the folder of photographs and sentences, LIMNER_DATA or ../shared/data; None if it does not exist."""
    folder = Path(os.environ.get("LIMNER_DATA", Path(__file__).parents[2] / "shared" / "data"))
    return folder if folder.is_dir() else None


def random_jpegs(folder: Path, count: int) -> list[Path]:
    """Write JPEG files of random noise, 341 x 256 pixels."""
    random = np.random.default_rng(0)
    files = []
    for number in range(count):
        noise = Image.fromarray(random.integers(0, 256, (32, 43, 3), dtype=np.uint8))
        files.append(folder / f"{number:04d}.jpg")
        noise.resize((341, 256)).save(files[-1], quality=85)
    return files
