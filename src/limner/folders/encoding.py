"""Reading and encoding of images in threads, ahead of the captions: what a commit of an index needs, chunk by chunk."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from limner.data.examples import Item, StoredFeatures
from limner.errors import BackboneError
from limner.features.encoders.base import Backbone, encode
from limner.features.spec import FeatureArray
from limner.folders.annotations import AnnotationCodec
from limner.folders.reading import ReadFile, read_image_file

CHUNK_SIZE = 128
"""Number of files that are written by one commit."""
ENCODED_TOGETHER = 8
"""Images a forward pass of the backbone; the last ones are repeated to this number, so that their bits do not depend on
where an earlier update was interrupted."""
CHUNKS_AHEAD = 2
"""Chunks that are encoded while another one is captioned, so that the encoders always have work."""
_READ_AHEAD = 2 * CHUNK_SIZE


class EncodedImage(NamedTuple):
    """New contents of a file, with their features."""

    file: ReadFile
    features: StoredFeatures
    """Features of the backbone by kind."""
    annotations: FeatureArray
    """What the index stores of them."""
    vector: FeatureArray
    """Vector that similar images are found by."""


class EncodedPart(NamedTuple):
    """Files that are encoded together."""

    images: list[EncodedImage]
    errors: dict[bytes, str]
    """Error of each digest whose features cannot be computed."""


class Chunk(NamedTuple):
    """Files that are written together."""

    files: list[ReadFile]
    images: list[EncodedImage]
    """New contents, once each."""
    total: int
    """Number of files; those that no longer exist are counted."""


class FeaturesByPath:
    """Features of image files that have been encoded; a `FeatureSource`."""

    def __init__(self, features: Mapping[str, StoredFeatures]) -> None:
        """Provide features by the path of their file."""
        self._features = features

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Return the features of items."""
        return [self._features[item.media_path or ""] for item in items]


class Encoder:
    """A backbone, and the annotations that are stored of its features."""

    def __init__(self, backbone: Backbone, codec: AnnotationCodec) -> None:
        self.backbone, self._codec = backbone, codec

    def __call__(self, files: Sequence[ReadFile]) -> EncodedPart:
        """Encode at most `ENCODED_TOGETHER` files; one whose features are not finite does not stop the others."""
        try:
            return EncodedPart(self._encode(files), {})
        except BackboneError as error:
            if len(files) == 1:
                return EncodedPart([], {files[0].digest: str(error)})
        parts = [self([file]) for file in files]
        errors = {digest: error for part in parts for digest, error in part.errors.items()}
        return EncodedPart([image for part in parts for image in part.images], errors)

    def _encode(self, files: Sequence[ReadFile]) -> list[EncodedImage]:
        pixels = [file.pixels for file in files if file.pixels is not None]
        padded = pixels + [pixels[-1]] * (ENCODED_TOGETHER - len(pixels))
        features = encode(self.backbone, np.stack(padded), [file.path for file in files])
        annotations, vectors = self._codec.encode(features)
        return [
            EncodedImage(file, {kind: values[row] for kind, values in features.items()}, annotations[row], vectors[row])
            for row, file in enumerate(files)
        ]


def encoded_chunks(folder: Path, paths: Sequence[str], encoder: Encoder, known: Container[bytes]) -> Iterator[Chunk]:
    """Read and encode files in threads; while a chunk is captioned, the next ones are read and encoded.

    Meanwhile the caller's thread computes with one thread of its own, since the encoders keep all cores busy.

    Args:
        folder: folder of the files.
        paths: files relative to the folder.
        encoder: backbone and annotations.
        known: digests of contents that are neither decoded nor encoded.
    """
    threads, own = os.cpu_count() or 1, torch.get_num_threads()
    claimed: set[bytes] = set()
    remaining = iter(paths)
    reading: deque[Future[ReadFile | None]] = deque()
    encoding: deque[tuple[list[ReadFile], list[Future[EncodedPart]], int]] = deque()
    errors: dict[bytes, str] = {}
    with (
        ThreadPoolExecutor(threads) as readers,
        ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as encoders,
    ):
        torch.set_num_threads(1)  # captions are generated beside the encoders
        try:
            while True:
                while len(reading) < _READ_AHEAD and (path := next(remaining, None)) is not None:
                    reading.append(readers.submit(read_image_file, folder, path, encoder.backbone, known))
                if reading:
                    results = [reading.popleft().result() for _ in range(min(CHUNK_SIZE, len(reading)))]
                    files = [file for file in results if file is not None]
                    new = _new_contents(files, known, claimed)
                    parts = [new[start : start + ENCODED_TOGETHER] for start in range(0, len(new), ENCODED_TOGETHER)]
                    encoding.append((files, [encoders.submit(encoder, part) for part in parts], len(results)))
                if len(encoding) > CHUNKS_AHEAD or (encoding and not reading):
                    files, futures, total = encoding.popleft()
                    parts_done = [future.result() for future in futures]
                    for part in parts_done:
                        errors |= part.errors
                    done = [file._replace(pixels=None, error=errors.get(file.digest, file.error)) for file in files]
                    yield Chunk(done, [image for part in parts_done for image in part.images], total)
                elif not reading:
                    return
        finally:
            for pool in (readers, encoders):
                pool.shutdown(wait=False, cancel_futures=True)
            torch.set_num_threads(own)  # the initialiser changed the number for every new thread


def _new_contents(files: Sequence[ReadFile], known: Container[bytes], claimed: set[bytes]) -> list[ReadFile]:
    """Return the files whose contents are neither known nor those of an earlier file."""
    new = []
    for file in files:
        if file.pixels is not None and file.digest not in known and file.digest not in claimed:
            claimed.add(file.digest)
            new.append(file)
    return new
