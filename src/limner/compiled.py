"""Compiled loops: numba, with a cache on disk for the present sources.

numba renews the cache of a function when its file changes, but not when the file of a function that it calls changes.
The cache here depends on all files of a folder: compiled functions call only functions of the same folder.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

from limner.files import read_bytes

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function when it is first called; compiled functions of other threads run beside it.

    The compiled code is kept in `__pycache__` beside the source, or in the folder of `NUMBA_CACHE_DIR`; where neither
    can be written, in numba's folder of the user.
    """
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = _cache_folder(Path(function.__code__.co_filename).parent, before)
    try:
        result: F = numba.njit(cache=True, nogil=True)(function)
    finally:
        numba.config.CACHE_DIR = before
    return result


@functools.cache
def _cache_folder(sources: Path, cache_root: str) -> str:
    """Return the cache folder of the sources in a folder, and delete the cache folders of earlier sources."""
    digest = hashlib.sha256()
    for path in sorted(sources.glob("*.py")):
        digest.update(read_bytes(path))
    parent = Path(cache_root) if cache_root else sources / "__pycache__"
    folder = parent / f"compiled-{digest.hexdigest()[:16]}"
    if not cache_root:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return cache_root
        for old in parent.glob("compiled-*"):
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)
    return str(folder) if cache_root or os.access(folder, os.W_OK) else cache_root
