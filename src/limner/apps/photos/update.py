"""Update of an index: only files that are new or have changed are read, and only new contents are described."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from limner.apps.photos.annotations import AnnotationCodec
from limner.apps.photos.encoding import Chunk, EncodedImage, Encoder, FeaturesByPath, encoded_chunks
from limner.apps.photos.scan import FoundFile, Scan
from limner.apps.photos.tables import (
    FileRow,
    ImageRow,
    IndexParts,
    append_images,
    begin_update,
    delete_images,
    end_update,
    write_files,
)
from limner.inference.captioner import Captioner
from limner.inference.sentences import warn_of_cut_off
from limner.progress import Progress


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

    @property
    def has_changes(self) -> bool:
        """Whether files differ from those of the last update, or cannot be read."""
        return bool(self.added or self.changed or self.moved or self.removed or self.unreadable)


class Updater:
    """One update of an index; the caller holds its lock."""

    def __init__(
        self, folder: Path, index: Path, captioner: Captioner, codec: AnnotationCodec, opened: IndexParts
    ) -> None:
        assert captioner.backbone is not None, "checked by the caller"
        self._folder, self._index, self._record, self._captioner = folder, index, opened.record, captioner
        self._encoder = Encoder(captioner.backbone, codec)
        self._known, self._before = set(opened.rows), opened.files
        self._rows = dict(self._before)
        self.result = FolderUpdate()
        self._cut_off = 0

    def run(self, scan: Scan, verify: bool, batch_size: int, on_progress: Progress | None) -> FolderUpdate:
        """Read what has changed in the scanned folder, and write it in batches."""
        self._gone = self._find_gone(scan)
        todo = [file for file in scan.files if verify or not is_unchanged(file, self._before.get(file.path))]
        done = 0
        for chunk in encoded_chunks(self._folder, [file.path for file in todo], self._encoder, self._known):
            self._commit(chunk, batch_size)
            done += chunk.total
            if on_progress is not None:
                on_progress(done, len(todo))
        self.result.unchanged += len(scan.files) - len(todo)
        self.result.unreadable.update(scan.unreadable)
        self._finish()
        longest = self._captioner.decoding.max_length
        warn_of_cut_off(
            self._cut_off, self.result.described, "captions", longest, "raise decoding.max_length in its recipe"
        )
        return self.result

    def _find_gone(self, scan: Scan) -> set[str]:
        """Return the paths that are no longer there; not those in folders that cannot be listed."""
        found = {file.path for file in scan.files}
        closed = tuple(f"{name}{os.sep}" for name in scan.unreadable)
        return {
            path
            for path in self._before
            if path not in found and "." not in scan.unreadable and not path.startswith(closed)
        }

    def _commit(self, chunk: Chunk, batch_size: int) -> None:
        """Describe the new contents of some files, then write them and the state of the files."""
        if chunk.images:
            self._describe(chunk.images, batch_size)
        rows = [FileRow(file.path, file.size, file.modified, file.digest, file.error) for file in chunk.files]
        for row in rows:
            self._count(row)
        changed = [row for row in rows if self._rows.get(row.path) != row]
        if changed:
            self._record = begin_update(self._index, self._record)
            write_files(self._index, changed, "append")
        self._rows.update((row.path, row) for row in changed)

    def _describe(self, images: Sequence[EncodedImage], batch_size: int) -> None:
        """Caption images, and write what is known of them."""
        features = {str(self._folder / image.file.path): image.features for image in images}
        captioner = self._captioner.with_features(FeaturesByPath(features))
        paths = [Path(path) for path in features]
        with_tags = captioner.rules.tagger is not None
        captions = captioner.describe(paths, batch_size=batch_size, n_best=1, with_tags=with_tags, log_cut_off=False)
        self._cut_off += sum(not best.ended for best, *_ in captions)
        rows = [
            ImageRow(
                image.file.digest,
                best.text,
                best.log_prob,
                best.confidence,
                tuple(tag.word for tag in best.tags),
                image.file.thumbnail,
            )
            for image, (best, *_) in zip(images, captions, strict=True)
        ]
        annotations, vectors = (
            np.stack(arrays) for arrays in zip(*((i.annotations, i.vector) for i in images), strict=True)
        )
        self._record = begin_update(self._index, self._record)
        append_images(self._index, self._record, rows, annotations, vectors)
        self._known.update(row.digest for row in rows)
        self.result.described += len(rows)

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
        if self._rows == self._before and not self.result.described and not self._record.updating:
            return
        self._record = begin_update(self._index, self._record)
        write_files(self._index, self._rows.values(), "overwrite")
        delete_images(self._index, sorted(self._known - {row.digest for row in self._rows.values()}))
        end_update(self._index, self._record)


def is_unchanged(file: FoundFile, row: FileRow | None) -> bool:
    """Whether a file is as at the last update, of which it has a row; None for a new file."""
    return row is not None and (row.size, row.modified) == (file.size, file.modified) and not row.error
