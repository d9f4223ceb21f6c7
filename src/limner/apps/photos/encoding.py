"""Reading and encoding of images in threads, ahead of the captions: what a commit of an index needs, chunk by chunk.

An image file is read and decoded once, for its digest, its thumbnail and the input of the backbone.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import xxhash

from limner.apps.photos.annotations import AnnotationCodec
from limner.data.examples import Item, StoredFeatures
from limner.errors import BackboneError, MediaError, system_reason
from limner.features.encoders.base import Backbone, EncoderInput, encode
from limner.features.spec import FeatureArray
from limner.files import open_file
from limner.media.image import THUMBNAIL_SIDE, make_thumbnail, open_image

CHUNK_SIZE = 128
"""Number of files that are written by one commit."""
ENCODED_TOGETHER = 8
"""Images a forward pass of the backbone; the last ones are repeated to this number, so that their bits do not depend on
where an earlier update was interrupted."""
CHUNKS_AHEAD = 2
"""Chunks that are encoded while another one is captioned, so that the encoders always have work."""
_READ_AHEAD = 2 * CHUNK_SIZE

UNSETTLED_NS = 2_000_000_000
"""Age in nanoseconds below which a file may change again without another time of its last change."""
UNSETTLED = -1
"""Time of the last change of a file that is read again by the next update."""
_BLOCK = 1 << 20


class ReadFile(NamedTuple):
    """An image file that has been read."""

    path: str
    """Path relative to the folder."""
    size: int
    modified: int
    """Time of the last change in nanoseconds; `UNSETTLED` if the file may still be changing."""
    digest: bytes
    """XXH3 of the contents, 128 bits; empty for a file that cannot be read."""
    pixels: EncoderInput | None = None
    """Input of the backbone; None for known contents, which are not decoded."""
    thumbnail: bytes = b""
    """JPEG file of at most `THUMBNAIL_SIDE` pixels a side."""
    error: str = ""
    """Why the file cannot be read; empty if it can."""


class EncodedImage(NamedTuple):
    """New contents of a file, with their features."""

    file: ReadFile
    features: StoredFeatures
    """Features of the backbone by kind."""
    annotations: FeatureArray
    """What the index stores of them."""
    vector: FeatureArray
    """Vector that similar images are found by."""


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

    def __call__(self, files: Sequence[ReadFile]) -> list[EncodedImage | ReadFile]:
        """Encode at most `ENCODED_TOGETHER` files; a file whose features are not finite is returned with the error."""
        try:
            return [*self._encode(files)]
        except BackboneError as error:
            if len(files) == 1:
                return [files[0]._replace(error=str(error))]
        return [result for file in files for result in self([file])]

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
    encoding: deque[tuple[list[ReadFile], list[Future[list[EncodedImage | ReadFile]]], int]] = deque()
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
                    unknown: dict[bytes, ReadFile] = {}
                    for file in files:
                        if file.pixels is not None and file.digest not in known and file.digest not in claimed:
                            unknown.setdefault(file.digest, file)
                    claimed |= unknown.keys()
                    new = [*unknown.values()]
                    parts = [new[start : start + ENCODED_TOGETHER] for start in range(0, len(new), ENCODED_TOGETHER)]
                    encoding.append((files, [encoders.submit(encoder, part) for part in parts], len(results)))
                if len(encoding) > CHUNKS_AHEAD or (encoding and not reading):
                    files, futures, total = encoding.popleft()
                    results_done = [result for future in futures for result in future.result()]
                    errors |= {file.digest: file.error for file in results_done if isinstance(file, ReadFile)}
                    done = [file._replace(pixels=None, error=errors.get(file.digest, file.error)) for file in files]
                    images = [image for image in results_done if isinstance(image, EncodedImage)]
                    yield Chunk(done, images, total)
                elif not reading:
                    return
        finally:
            for pool in (readers, encoders):
                pool.shutdown(wait=False, cancel_futures=True)
            torch.set_num_threads(own)  # the initialiser changed the number for every new thread


def read_image_file(folder: Path, path: str, backbone: Backbone, known: Container[bytes]) -> ReadFile | None:
    """Read an image file; a file that cannot be read has a digest and an error.

    Args:
        folder: folder that the path is relative to.
        path: file to read.
        backbone: network that preprocesses the image.
        known: digests of contents that need not be decoded.

    Returns:
        None for a file that no longer exists.
    """
    file, digest, size, modified = folder / path, b"", 0, UNSETTLED
    try:
        with open_file(file) as stream:
            facts = os.fstat(stream.fileno())
            size = facts.st_size
            if time.time_ns() - facts.st_mtime_ns > UNSETTLED_NS:
                modified = facts.st_mtime_ns
            hashed = xxhash.xxh3_128()
            while block := stream.read(_BLOCK):
                hashed.update(block)
            digest = hashed.digest()
        if digest in known:
            return ReadFile(path, size, modified, digest)
        pixels, thumbnail = _decode(file, backbone)
    except FileNotFoundError:
        return None
    except OSError as error:
        return ReadFile(path, size, modified, digest, error=f"{file}: cannot be read ({system_reason(error)})")
    except MediaError as error:
        return ReadFile(path, size, modified, digest, error=str(error)) if file.exists() else None
    return ReadFile(path, size, modified, digest, pixels, thumbnail)


def _decode(file: Path, backbone: Backbone) -> tuple[EncoderInput, bytes]:
    """Decode an image once, for the backbone and the thumbnail; the pixels are those of `backbone.read(file)`."""
    side = backbone.specs[0].preprocessing.get("short")
    if not isinstance(side, int):
        return backbone.read(file), make_thumbnail(open_image(file, min_side=THUMBNAIL_SIDE))
    image = open_image(file, min_side=side)
    return backbone.read(image), make_thumbnail(image)
