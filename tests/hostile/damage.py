"""Functions that create hostile files or damage the files of a run, a collection or a feature table."""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

Damage = Callable[[Path], object]


def jpeg(width: int = 40, height: int = 30, kind: str = "JPEG") -> bytes:
    """Return an image of random pixels."""
    data = io.BytesIO()
    pixels = np.random.default_rng(1).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(data, kind)
    return data.getvalue()


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """Return a PNG file with these dimensions in its header, which need not be true."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def float_tiff(value: float) -> Damage:
    """Return a function that writes a TIFF file of floats, one of them of this value."""

    def write(path: Path) -> None:
        values = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
        values[3, 3] = value
        Image.fromarray(values).save(path, "TIFF")

    return write


def folder(path: Path) -> None:
    """Create a folder in place of a file."""
    path.mkdir(parents=True)


def fifo(path: Path) -> None:
    """Create a named pipe without a writer."""
    os.mkfifo(path)


def link(target: str) -> Damage:
    """Return a function that creates a symbolic link."""
    return lambda path: path.symlink_to(target)


def remove(path: Path) -> None:
    """Remove a file."""
    path.unlink()


def truncate(share: float) -> Damage:
    """Return a function that keeps the first part of a file."""
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


def flip(share: float) -> Damage:
    """Return a function that changes one byte at a share of the length of a file."""

    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[min(int(len(data) * share), len(data) - 1)] ^= 0x55
        path.write_bytes(data)

    return damage


def zeros(path: Path) -> None:
    """Replace a file by zeros, as some file systems leave it after a power failure."""
    path.write_bytes(bytes(path.stat().st_size))


def each(pattern: str, damage: Damage) -> Damage:
    """Return a function that damages the largest file that matches a pattern below a folder."""

    def largest(path: Path) -> None:
        damage(max(path.glob(pattern), key=lambda file: file.stat().st_size))

    return largest


def every(pattern: str, damage: Damage) -> Damage:
    """Return a function that damages all files that match a pattern below a folder."""

    def all_files(path: Path) -> None:
        for file in path.glob(pattern):
            damage(file)

    return all_files


def change_json(**values: Any) -> Damage:
    """Return a function that changes keys of a JSON file; `a__b` is the key `b` in the object `a`."""

    def damage(path: Path) -> None:
        contents = json.loads(path.read_text())
        for key, value in values.items():
            *parents, last = key.split("__")
            inner = contents
            for parent in parents:
                inner = inner[int(parent)] if isinstance(inner, list) else inner[parent]
            if value is remove:
                del inner[last]
            else:
                inner[last] = value
        path.write_text(json.dumps(contents))

    return damage


def change_tensors(change: Callable[[dict[str, torch.Tensor]], object], *, keep_header: bool = False) -> Damage:
    """Return a function that changes the tensors of a safetensors file, by default without its checksum."""

    def damage(path: Path) -> None:
        tensors = load_file(path)
        with safe_open(path, framework="pt") as stored:
            header = stored.metadata() if keep_header else None
        change(tensors)
        save_file(tensors, path, header)

    return damage


def fill(value: float) -> Callable[[dict[str, torch.Tensor]], None]:
    """Return a function that sets one value of the first tensor of floats."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        next(tensor for tensor in tensors.values() if tensor.is_floating_point()).view(-1)[0] = value

    return change


def nested(opening: str, closing: str, depth: int = 100_000) -> str:
    """Return brackets within each other."""
    return opening * depth + closing * depth
