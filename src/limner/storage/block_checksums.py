"""Checksums of files by blocks: large files are verified by a sample of their blocks, in bounded time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import xxhash

from limner.bounds import Total
from limner.files import open_file
from limner.settings import Settings

BLOCK = 1 << 22
"""Bytes of a block."""
SAMPLE = 16
"""Number of blocks of a file that a sample reads: a file of up to 64 MiB as a whole."""
_DIGITS = 16


class FileBlocks(Settings):
    """Size of a file and the checksums of its blocks."""

    size: Total
    """Size in bytes."""
    checksums: str
    """Checksums of the blocks, one after the other, of 16 hexadecimal digits each."""

    @classmethod
    def of(cls, path: Path) -> FileBlocks:
        """Read a file; OSError if it cannot be read."""
        size, checksums = 0, []
        with open_file(path) as stream:
            while block := stream.read(BLOCK):
                size += len(block)
                checksums.append(xxhash.xxh3_64_hexdigest(block))
        return cls(size=size, checksums="".join(checksums))

    def holds(self, path: Path, every: bool) -> bool:
        """Whether a file has the size and the contents that it had; OSError if it cannot be read.

        Args:
            path: the file.
            every: whether all blocks are read; otherwise the first, the last and others at random, `SAMPLE` in all.
        """
        with open_file(path) as stream:
            if stream.seek(0, 2) != self.size or len(self.checksums) != _DIGITS * -(-self.size // BLOCK):
                return False
            for number in self._chosen(every):
                stream.seek(number * BLOCK)
                expected = self.checksums[number * _DIGITS : (number + 1) * _DIGITS]
                if xxhash.xxh3_64_hexdigest(stream.read(BLOCK)) != expected:
                    return False
        return True

    def _chosen(self, every: bool) -> Iterator[int]:
        count = len(self.checksums) // _DIGITS
        if every or count <= SAMPLE:
            yield from range(count)
            return
        yield from (0, count - 1, *random.sample(range(1, count - 1), SAMPLE - 2))
