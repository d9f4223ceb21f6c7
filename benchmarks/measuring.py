"""What every benchmark needs: times, rates, and one JSON line a figure."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from limner.device import native_bf16

CPU = torch.device("cpu")


def hardware() -> str:
    """The processor, its cores and the threads torch uses."""
    name = next(
        (line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")),
        platform.machine(),
    )
    return (
        f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, bf16 {'yes' if native_bf16(CPU) else 'no'}"
    )


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def tell(name: str, value: float, unit: str, target: str, **more: object) -> None:
    """Print one figure."""
    line = {"name": name, "value": float(f"{value:.4g}"), "unit": unit, "target": target, **more}
    print(json.dumps({**line, "hardware": hardware()}), flush=True)


def median_time(run: Callable[[], object], times: int) -> float:
    """Median seconds of several runs, after one that does not count."""
    run()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def product_rate(dtype: torch.dtype) -> float:
    """Floating-point operations a second of a large square matrix product."""
    a, b = torch.randn(2, 3072, 3072).to(dtype)
    return 2 * 3072**3 / median_time(lambda: a @ b, 7)


def real_data() -> Path | None:
    """The real photographs and sentences, where they are."""
    folder = Path(os.environ.get("LIMNER_DATA", Path(__file__).parents[2] / "shared" / "data"))
    return folder if folder.is_dir() else None
