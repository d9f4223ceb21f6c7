"""Time and money of collections of 10 million to 5 billion images, from measured constants: print tables in Markdown.

    python benchmarks/costs.py [FILE]

FILE, by default `costs.json` beside this script, has the constants: those measured with the command that measured each,
those assumed (prices, size of the cluster), and published figures. A constant without a value gives a dash.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CONSTANTS = Path(__file__).with_name("costs.json")
SIZES = (10_000_000, 100_000_000, 5_000_000_000)
HOUR = 3600


def tables(constants: Mapping[str, Any]) -> str:
    """Return the constants, the costs of each size of a collection, and the published figures, as Markdown."""
    return "\n\n".join((_constants(constants), _costs(constants), _published(constants["published"])))


def _constants(constants: Mapping[str, Any]) -> str:
    rows = [
        (one["what"], _number(one["value"]), one["unit"], f"`{one['command']}`")
        for one in constants["measured"].values()
    ]
    rows += [(one["what"], _number(one["value"]), one["unit"], "assumed") for one in constants["assumed"].values()]
    return _table(("constant", "value", "unit", "measured by"), rows)


def _costs(constants: Mapping[str, Any]) -> str:
    """Compute the costs; a query is scored in all shards at the same time."""
    value = {name: one["value"] for name, one in (constants["measured"] | constants["assumed"]).items()}

    def of(compute: Callable[..., float], *names: str) -> float | None:
        values = [value[name] for name in names]
        return None if None in values else compute(*values)

    overhead = 1 + (value["ray_overhead"] or 0)
    rows = []
    for images in SIZES:
        shards = math.ceil(images / value["shard_images"])
        features = of(lambda seconds, n=images: n * seconds * overhead / HOUR, "features_core_seconds")
        index = of(lambda seconds, n=images: n * seconds / HOUR, "index_core_seconds")
        query = of(lambda seconds, n=images: seconds * n / 1e6, "query_core_seconds")
        pooled = of(lambda size, n=images: n * size / 1e12, "pooled_bytes")
        grid = of(lambda size, n=images: n * size / 1e12, "grid_bytes")
        index_size = of(lambda size, n=images: n * size / 1e9, "index_bytes")
        rows.append(
            (
                f"{images:,}",
                _number(features),
                _number(_scaled(features, 1 / value["cores"])),
                _number(_scaled(features, value["core_hour_usd"])),
                f"{_number(pooled)} + {_number(grid)}",
                _number(_scaled(pooled, value["terabyte_month_usd"])),
                _number(index),
                _number(index_size),
                str(shards),
                _number(query),
                _number(_scaled(query, 1000 * value["core_hour_usd"] / HOUR)),
            )
        )
    head = (
        "images",
        "features, core-hours",
        f"hours on {value['cores']:,} cores",
        "USD",
        "pooled + grid, TB",
        "pooled, USD a month",
        "index, core-hours",
        "index, GB",
        "shards",
        "query, core-seconds",
        "USD for 1,000 queries",
    )
    return _table(head, rows)


def _published(figures: list[dict[str, Any]]) -> str:
    """Compute what published figures mean for one image and for the largest collection."""
    rows = []
    for one in figures:
        rate = one.get("images_per_second") or (one["images"] / one["hours"] / HOUR if "hours" in one else None)
        hours = None if rate is None else SIZES[-1] / rate / HOUR
        size = one["bytes"] / one["images"] if "bytes" in one else None
        index = one["index_bytes"] / one["images"] if "index_bytes" in one else None
        cells = (_number(rate), _number(hours), _number(size), _number(index))
        rows.append((f"[{one['name']}]({one['source']})", *cells))
    head = ("published", "images/s", f"hours for {SIZES[-1]:,}", "bytes an image", "index, bytes an image")
    return _table(head, rows)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _number(value: float | None) -> str:
    """Format a number with three significant digits; a dash for none."""
    if value is None:
        return "–"
    if value == 0 or not math.isfinite(value):
        return str(value)
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{round(value, digits):,.{digits}f}" if digits else f"{round(value, 3 - len(str(int(abs(value))))):,.0f}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Print the tables of a file of constants."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else CONSTANTS
    print(tables(json.loads(file.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
