"""Update of an index: only new and changed files are read, and only new contents are described.

Images are read and encoded in threads, ahead of the captions; a chunk of images is written by one commit. An image file
is read and decoded once, for its digest, its thumbnail and the input of the backbone.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash

from limner.apps.photos import tables
from limner.errors import MediaError, RunError, system_reason
from limner.features.spec import FeatureArray
from limner.files import open_file
from limner.generation.captioning import BaseCaptioner
from limner.generation.sentences import warn_of_cut_off
from limner.inference.image_searcher import Searcher
from limner.media.image import THUMBNAIL_SIDE, Pixels, make_thumbnail, open_image
from limner.media.modality import IMAGE
from limner.process import usable_cores
from limner.progress import Progress
from limner.runtime.generators import ExportedCaptioner

if TYPE_CHECKING:
    from limner.data.examples import StoredFeatures

CHUNK_SIZE = 128
"""Number of files that are written by one commit."""
CHUNKS_AHEAD = 2
"""Number of chunks that are encoded while another chunk is captioned, so that the encoders always have work."""
_READ_AHEAD = 2 * CHUNK_SIZE

UNSETTLED_NS = 2_000_000_000
"""Age in nanoseconds below which a file may change again without a new modification time."""
UNSETTLED = -1
"""Recorded modification time that makes the next update read the file again."""
_BLOCK = 1 << 20


class ImageFile(NamedTuple):
    """An image file in a folder."""

    path: str  # path relative to the folder; bytes that are not UTF-8 are surrogates, see `os.fsdecode`
    size: int  # size in bytes
    modified: int  # time of the last change, in nanoseconds


class Scan(NamedTuple):
    """Result of `scan_folder`."""

    files: list[ImageFile]  # image files by their paths, in order
    unreadable: dict[str, str]
    """Reason of each folder that cannot be listed, by its path relative to the scanned folder."""


def scan_folder(folder: Path, *, recursive: bool = True, skip: Path | None = None) -> Scan:
    """Find the image files in a folder by their suffixes, and in the folders inside, other than `skip`.

    Hidden files and folders are skipped. Links to files are followed, links to folders are not, so that a loop of links
    ends.
    """
    files: list[ImageFile] = []
    unreadable: dict[str, str] = {}
    pending = [""]
    while pending:
        inside = pending.pop()
        try:
            with os.scandir(folder / inside) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    path = os.path.join(inside, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        if recursive and (skip is None or folder / path != skip):
                            pending.append(path)
                    elif IMAGE.matches(entry.name) and (file := _image_file(entry, path)) is not None:
                        files.append(file)
        except OSError as error:
            unreadable[inside or "."] = system_reason(error)
    return Scan(sorted(files), unreadable)


def _image_file(entry: os.DirEntry[str], path: str) -> ImageFile | None:
    """Return a file; None for other entries, such as a pipe or a link to a folder."""
    try:
        facts = entry.stat()
    except OSError:  # a link to nothing, or a file that has just been removed
        return None
    return ImageFile(path, facts.st_size, facts.st_mtime_ns) if stat.S_ISREG(facts.st_mode) else None


class ReadFile(NamedTuple):
    """An image file that has been read."""

    row: tables.FileRow  # its state, with the reason if it cannot be read
    pixels: Pixels | None = None
    """Input of the backbone; None for known contents, which are not decoded, and for a file that cannot be read."""
    thumbnail: bytes = b""  # JPEG file of at most `THUMBNAIL_SIDE` pixels a side


class EncodedImage(NamedTuple):
    """New contents of a file, with their features."""

    file: ReadFile
    features: StoredFeatures  # features of the backbone by kind
    vector: FeatureArray  # pooled features, which are searched


class Chunk(NamedTuple):
    """Files that are written together."""

    rows: list[tables.FileRow]  # states of the files
    images: list[EncodedImage]  # new contents, once each
    total: int  # number of files, files that no longer exist included


def encode_file(file: ReadFile, searcher: Searcher) -> EncodedImage | str:
    """Compute the features of a decoded image; the error where they are not finite."""
    assert file.pixels is not None, "a file with new contents"
    try:
        (features,) = searcher.features_of([file.pixels])
    except RunError as error:
        return str(error)
    return EncodedImage(file, features, searcher.vector_of(features).astype(np.float16))


def encoded_chunks(folder: Path, paths: Sequence[str], searcher: Searcher, known: Container[bytes]) -> Iterator[Chunk]:
    """Read and encode files in threads; while a chunk is captioned, the next chunks are read and encoded.

    Paths are relative to the folder. Contents whose digests are known are neither decoded nor encoded.
    """
    claimed: set[bytes] = set()
    remaining = iter(paths)
    reading: deque[Future[ReadFile | None]] = deque()
    encoding: deque[tuple[list[tables.FileRow], dict[bytes, Future[EncodedImage | str]], int]] = deque()
    errors: dict[bytes, str] = {}
    with ThreadPoolExecutor(usable_cores()) as readers, ThreadPoolExecutor(1) as encoders:
        try:
            while True:
                while len(reading) < _READ_AHEAD and (path := next(remaining, None)) is not None:
                    reading.append(readers.submit(read_image_file, folder, path, searcher, known))
                if reading:
                    results = [reading.popleft().result() for _ in range(min(CHUNK_SIZE, len(reading)))]
                    unknown: dict[bytes, ReadFile] = {}
                    for file in filter(None, results):
                        if file.pixels is not None and file.row.digest not in claimed:
                            unknown.setdefault(file.row.digest, file)
                    claimed |= unknown.keys()
                    futures = {key: encoders.submit(encode_file, file, searcher) for key, file in unknown.items()}
                    encoding.append(([file.row for file in results if file is not None], futures, len(results)))
                if len(encoding) > CHUNKS_AHEAD or (encoding and not reading):
                    rows, futures, total = encoding.popleft()
                    encoded = {digest: future.result() for digest, future in futures.items()}
                    errors |= {digest: error for digest, error in encoded.items() if isinstance(error, str)}
                    rows = [row._replace(error=errors.get(row.digest, row.error)) for row in rows]
                    yield Chunk(rows, [image for image in encoded.values() if isinstance(image, EncodedImage)], total)
                elif not reading:
                    return
        finally:
            for pool in (readers, encoders):
                pool.shutdown(wait=False, cancel_futures=True)


def read_image_file(folder: Path, path: str, searcher: Searcher, known: Container[bytes]) -> ReadFile | None:
    """Read an image file once, for its digest, the input of the backbone and the thumbnail; None if it is gone.

    The path is relative to the folder. Contents whose digest is known are not decoded. A file that cannot be read has a
    digest and an error.
    """
    file, row = folder / path, tables.FileRow(path, 0, UNSETTLED, b"", "")
    try:
        with open_file(file) as stream:
            facts = os.fstat(stream.fileno())
            is_settled = time.time_ns() - facts.st_mtime_ns > UNSETTLED_NS
            row = row._replace(size=facts.st_size, modified=facts.st_mtime_ns if is_settled else UNSETTLED)
            hashed = xxhash.xxh3_128()
            while block := stream.read(_BLOCK):
                hashed.update(block)
            row = row._replace(digest=hashed.digest())
        if row.digest in known:
            return ReadFile(row)
        image = open_image(file, min_side=max(THUMBNAIL_SIDE, searcher.side))
        return ReadFile(row, searcher.read(image), make_thumbnail(image))
    except FileNotFoundError:
        return None
    except OSError as error:
        return ReadFile(row._replace(error=f"{file}: cannot be read ({system_reason(error)})"))
    except MediaError as error:
        return ReadFile(row._replace(error=str(error))) if file.exists() else None


@dataclass
class FolderUpdate:
    """Numbers of files by their change since the last update."""

    added: int = 0
    """New files."""
    changed: int = 0
    """Files with other contents."""
    moved: int = 0
    """Files with the contents of a file that is gone; they keep its caption."""
    removed: int = 0
    """Files that are gone."""
    unchanged: int = 0
    """Unchanged files."""
    described: int = 0
    """Images that were described by this update."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Error of each file or folder that cannot be read, by its path relative to the folder."""

    @property
    def files(self) -> int:
        """Number of files in the index."""
        return self.added + self.changed + self.moved + self.unchanged


class Updater:
    """One update of an index; the caller holds its lock."""

    def __init__(
        self, folder: Path, index: Path, captioner: BaseCaptioner, searcher: Searcher, opened: tables.IndexParts
    ) -> None:
        self._folder, self._index, self._record = folder, index, opened.record
        self._captioner, self._searcher = captioner, searcher
        self._known, self._before = set(opened.rows), opened.files
        self._rows = dict(self._before)
        self.result = FolderUpdate()
        self._cut_off = 0

    def run(self, scan: Scan, verify: bool, batch_size: int, on_progress: Progress | None) -> FolderUpdate:
        """Read the changes of the scanned folder, and write them in batches."""
        self._gone = self._find_gone(scan)
        pending = [file for file in scan.files if verify or not is_unchanged(file, self._before.get(file.path))]
        done = 0
        for chunk in encoded_chunks(self._folder, [file.path for file in pending], self._searcher, self._known):
            self._commit(chunk, batch_size)
            done += chunk.total
            if on_progress is not None:
                on_progress(done, len(pending))
        self.result.unchanged += len(scan.files) - len(pending)
        self.result.unreadable.update(scan.unreadable)
        self._finish()
        longest, remedy = self._captioner.decoding.max_length, "raise decoding.max_length in its recipe"
        warn_of_cut_off(self._cut_off, self.result.described, "caption", longest, remedy)
        return self.result

    def _find_gone(self, scan: Scan) -> set[str]:
        """Return the paths that no longer exist, except paths in folders that cannot be listed."""
        if "." in scan.unreadable:
            return set()
        closed = tuple(f"{name}{os.sep}" for name in scan.unreadable)
        return {
            path for path in self._before.keys() - {file.path for file in scan.files} if not path.startswith(closed)
        }

    def _commit(self, chunk: Chunk, batch_size: int) -> None:
        """Describe the new contents of some files, then write them and the state of the files."""
        if chunk.images:
            self._describe(chunk.images, batch_size)
        for row in chunk.rows:
            self._count(row)
        changed = [row for row in chunk.rows if self._rows.get(row.path) != row]
        if changed:
            self._record = tables.begin_update(self._index, self._record)
            tables.write_files(self._index, changed, "append")
        self._rows.update((row.path, row) for row in changed)

    def _describe(self, images: Sequence[EncodedImage], batch_size: int) -> None:
        """Caption images, and write their rows."""
        features = {self._folder / image.file.row.path: image.features for image in images}
        captioner, paths = self._captioner, [*features]
        if isinstance(captioner, ExportedCaptioner) and captioner.manifest.backbone_sha256 == self._searcher.digest:
            captioner = captioner.with_features(features)
        with_tags = captioner.rules.tagger is not None
        captions = captioner.describe(paths, batch_size=batch_size, n_best=1, with_tags=with_tags, log_cut_off=False)
        self._cut_off += sum(best.is_sure and not best.ended for best, *_ in captions)
        rows = []
        for image, (best, *_) in zip(images, captions, strict=True):
            caption, tags = best.text if best.is_sure else "", tuple(tag.word for tag in best.tags)
            details = (caption, best.log_prob, best.confidence, tags, image.file.thumbnail)
            rows.append(tables.ImageRow(image.file.row.digest, *details))
        self._record = tables.begin_update(self._index, self._record)
        tables.append_images(self._index, self._record, rows, np.stack([image.vector for image in images]))
        self._known.update(row.digest for row in rows)
        self.result.described += len(rows)

    def _count(self, row: tables.FileRow) -> None:
        before = self._before.get(row.path)
        if row.error:
            self.result.unreadable[row.path] = row.error
        elif before is None or before.error:
            moved = any(self._before[path].digest == row.digest for path in self._gone)
            self.result.moved += moved
            self.result.added += not moved
        elif before.digest == row.digest:
            self.result.unchanged += 1
        else:
            self.result.changed += 1

    def _finish(self) -> None:
        """Remove files that no longer exist, and compact the tables if anything has changed."""
        self.result.removed = len(self._gone) - self.result.moved
        for path in self._gone:
            del self._rows[path]
        if self._rows == self._before and not self.result.described and not self._record.updating:
            return
        self._record = tables.begin_update(self._index, self._record)
        tables.write_files(self._index, self._rows.values(), "overwrite")
        tables.delete_images(self._index, sorted(self._known - {row.digest for row in self._rows.values()}))
        tables.end_update(self._index, self._record)


def is_unchanged(file: ImageFile, row: tables.FileRow | None) -> bool:
    """Whether a file has the size and time of its row of the last update; false without a row."""
    return row is not None and (row.size, row.modified) == (file.size, file.modified) and not row.error
