"""Update of an index: only files that are new or have changed are read, and only new contents are described."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from limner.data.examples import Item, StoredFeatures
from limner.errors import FolderError
from limner.features.encoders.base import Backbone, encode
from limner.features.spec import FeatureArray
from limner.folders.annotations import AnnotationCodec
from limner.folders.reading import ReadFile, read_image_file
from limner.folders.record import IndexRecord
from limner.folders.scan import FoundFile, Scan, scan_folder
from limner.folders.tables import (
    IMAGES,
    FileRow,
    ImageRow,
    ImageTable,
    append_images,
    compact,
    delete_images,
    exists,
    read_files,
    write_files,
)
from limner.inference.captioner import Captioner
from limner.progress import Progress

COMMITTED_TOGETHER = 4
"""Number of batches that are written by one commit."""
_COMMITS_AHEAD = 2


@dataclass
class FolderUpdate:
    """Numbers of files by what has happened to them since the last update."""

    added: int = 0
    """New files."""
    changed: int = 0
    """Files with other contents."""
    moved: int = 0
    """Files with the contents of a file that is gone; they keep its caption."""
    removed: int = 0
    """Files that are gone."""
    unchanged: int = 0
    """Files as they were."""
    described: int = 0
    """Images that were described by this update."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Error of each file or folder that cannot be read, by its path relative to the folder."""

    @property
    def files(self) -> int:
        """Number of files in the index."""
        return self.added + self.changed + self.moved + self.unchanged


class PreparedFeatures:
    """Features of images that have been read, computed batch by batch, and what the index stores of them.

    A `FeatureSource` of items whose images have been added.
    """

    def __init__(self, backbone: Backbone, codec: AnnotationCodec) -> None:
        self._backbone, self._codec = backbone, codec
        self._pixels: dict[str, ReadFile] = {}
        self._stored: dict[str, tuple[FeatureArray, FeatureArray]] = {}

    def add(self, name: str, file: ReadFile) -> None:
        """Add the image of a path."""
        self._pixels[name] = file

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Compute the features of items."""
        names = [item.media_path or "" for item in items]
        pixels = [self._pixels.pop(name).pixels for name in names]
        assert not any(one is None for one in pixels), "only files that were decoded are described"
        features = encode(self._backbone, np.stack([one for one in pixels if one is not None]), names)
        self._stored |= zip(names, zip(*self._codec.encode(features), strict=True), strict=True)
        return [{kind: values[row] for kind, values in features.items()} for row in range(len(names))]

    def stored(self, name: str) -> tuple[FeatureArray, FeatureArray]:
        """Return the annotations and the vector of a path, once."""
        return self._stored.pop(name)


class Updater:
    """One update of an index; the caller holds its lock."""

    def __init__(
        self, folder: Path, index: Path, captioner: Captioner, codec: AnnotationCodec, record: IndexRecord
    ) -> None:
        assert captioner.backbone is not None, "checked by the caller"
        self._folder, self._index, self._record, self._backbone = folder, index, record, captioner.backbone
        self._features = PreparedFeatures(captioner.backbone, codec)
        self._captioner = captioner.with_features(self._features)
        self._known = set(ImageTable(index, record).rows)
        self._before = read_files(index)
        self._rows = dict(self._before)
        self.result = FolderUpdate()

    def run(self, recursive: bool, verify: bool, batch_size: int, on_progress: Progress | None) -> FolderUpdate:
        """Scan the folder, read what has changed, and write it in batches."""
        scan = scan_folder(self._folder, recursive=recursive, skip=self._index)
        self._require_files(scan)
        self._gone = self._find_gone(scan)
        todo = [file for file in scan.files if verify or not self._is_unchanged(file)]
        done = 0
        for read in self._read(todo, batch_size * COMMITTED_TOGETHER):
            self._commit([one for one in read if one is not None], batch_size)
            done += len(read)
            if on_progress is not None:
                on_progress(done, len(todo))
        self.result.unchanged += len(scan.files) - len(todo)
        self.result.unreadable.update(scan.unreadable)
        self._finish()
        return self.result

    def _require_files(self, scan: Scan) -> None:
        if self._before and not scan.files:
            raise FolderError(
                f"{self._folder}: found no image, where the index has {len(self._before):,} files; nothing is "
                "changed: make the folder available, or create an empty index with --rebuild"
            )

    def _find_gone(self, scan: Scan) -> set[str]:
        """Return the paths that are no longer there; not those in folders that cannot be listed."""
        found = {file.path for file in scan.files}
        closed = tuple(f"{name}{os.sep}" for name in scan.unreadable)
        return {
            path
            for path in self._before
            if path not in found and "." not in scan.unreadable and not path.startswith(closed)
        }

    def _is_unchanged(self, file: FoundFile) -> bool:
        row = self._before.get(file.path)
        return (
            row is not None
            and (row.size, row.modified) == (file.size, file.modified)
            and not row.error
            and row.digest in self._known
        )

    def _read(self, todo: Sequence[FoundFile], size: int) -> Iterator[list[ReadFile | None]]:
        """Read files in threads, ahead of the network (decoders release Python's lock)."""
        pending: deque[Future[ReadFile | None]] = deque()
        remaining = iter(todo)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            try:
                while True:
                    while len(pending) < _COMMITS_AHEAD * size and (file := next(remaining, None)) is not None:
                        pending.append(
                            pool.submit(read_image_file, self._folder, file.path, self._backbone, self._known)
                        )
                    if not pending:
                        return
                    yield [pending.popleft().result() for _ in range(min(size, len(pending)))]
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _commit(self, files: Sequence[ReadFile], batch_size: int) -> None:
        """Describe the new contents of some files, then write them and the state of the files."""
        new = {file.digest: file for file in files if file.pixels is not None and file.digest not in self._known}
        if new:
            self._describe(list(new.values()), batch_size)
        rows = [FileRow(file.path, file.size, file.modified, file.digest, file.error) for file in files]
        for row in rows:
            self._count(row)
        changed = [row for row in rows if self._rows.get(row.path) != row]
        if changed:
            write_files(self._index, changed, "append")
        self._rows.update((row.path, row) for row in changed)

    def _describe(self, files: Sequence[ReadFile], batch_size: int) -> None:
        paths = [self._folder / file.path for file in files]
        for path, file in zip(paths, files, strict=True):
            self._features.add(str(path), file)
        captions = [found[0] for found in self._captioner.describe(paths, batch_size=batch_size, n_best=1)]
        stored = [self._features.stored(str(path)) for path in paths]
        rows = [
            ImageRow(
                file.digest,
                caption.text,
                caption.log_prob,
                getattr(caption, "confidence", None),
                tuple(getattr(caption, "tags", ())),
                file.thumbnail,
            )
            for file, caption in zip(files, captions, strict=True)
        ]
        annotations, vectors = (np.stack(values) for values in zip(*stored, strict=True))
        append_images(self._index, self._record, rows, annotations, vectors)
        self._known.update(file.digest for file in files)
        self.result.described += len(files)

    def _count(self, row: FileRow) -> None:
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
        """Remove what is gone, and compact the tables if anything has changed."""
        self.result.removed = len(self._gone) - self.result.moved
        for path in self._gone:
            del self._rows[path]
        if self._rows == self._before and not self.result.described:
            return
        write_files(self._index, self._rows.values(), "overwrite")
        unused = self._known - {row.digest for row in self._rows.values()}
        if unused and exists(self._index / IMAGES):
            delete_images(self._index, sorted(unused))
        compact(self._index)
