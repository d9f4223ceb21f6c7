"""The index of a folder of images: captions, thumbnails and features for searches."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from limner.apps.photos.record import REBUILD, RECORD, IndexRecord, run_digest
from limner.apps.photos.tables import FILES, IMAGES, create_index, has_index, open_index, state_of_index
from limner.apps.photos.update import FolderUpdate, Scan, Updater, is_unchanged, scan_folder
from limner.errors import FolderError
from limner.features.spec import FeatureArray
from limner.files import locked
from limner.generation.captioning import CAPTION_BATCH_SIZE, BaseCaptioner
from limner.inference.image_searcher import Searcher, open_searcher
from limner.media.image import ImageInput
from limner.progress import Progress
from limner.storage.places import remove_unfinished

logger = logging.getLogger(__name__)

INDEX_FOLDER = ".limner"
"""Name of the index in the folder that it describes."""
REBUILT = "rebuilt"
"""Folder in an index of the index that replaces it."""
DEFAULT_COUNT = 10
"""Default number of results of a search."""


class FolderMatch(NamedTuple):
    """A result of a search."""

    path: Path
    """The image file."""
    score: float
    """Score of a sentence, or the similarity to an image; see `limner.inference.image_searcher`."""
    caption: str
    """Caption of the image; empty where the captioner has withheld it."""
    confidence: float | None = None
    """Confidence of the caption; None if the captioner computes none."""
    tags: tuple[str, ...] = ()
    """Names of things in the image; empty if the captioner names none."""

    @property
    def is_sure(self) -> bool:
        """False where the captioner has withheld the caption."""
        return bool(self.caption)


class Snapshot:
    """State of an index at one time."""

    def __init__(self, index: Path, searcher: Searcher | None = None) -> None:
        """Read the files of an index; vectors are read when they are needed. FolderError if it is damaged.

        The searcher computes the scores; None for the searcher that the index was made with.
        """
        self.state = state_of_index(index)  # first: another process may write meanwhile
        self.index = open_index(index)
        self.searcher = searcher or open_searcher(self.index.record.lang, self.index.record.space)
        self.row_of = {path: self.index.rows[file.digest] for path, file in self.index.files.items() if not file.error}
        """Row of the contents of each readable file."""
        self.paths_of: dict[int, list[str]] = {}
        """Paths of the files with the contents of each row."""
        for path, row in sorted(self.row_of.items()):
            self.paths_of.setdefault(row, []).append(path)
        self._rows = np.array(sorted(self.paths_of), dtype=np.int64)

    @cached_property
    def _vectors(self) -> FeatureArray:
        return self.index.vectors()[self._rows]

    @cached_property
    def _projected(self) -> NDArray[np.float32]:
        return self.searcher.project(self._vectors)

    def score_sentence(self, query: str) -> list[tuple[int, float]]:
        """Score how well a sentence describes each image, best first; SettingsError if no word of it is known."""
        return self._ranked(self.searcher.scores(query, self._vectors, self._projected))

    def score_vector(self, vector: NDArray[np.floating[Any]]) -> list[tuple[int, float]]:
        """Compute the similarity of all images and an image with a feature vector, best first."""
        return self._ranked(self.searcher.similarities(vector, self._vectors, self._projected))

    def _ranked(self, scores: NDArray[np.float32]) -> list[tuple[int, float]]:
        order = np.argsort(-scores, kind="stable")
        return list(zip(self._rows[order].tolist(), scores[order].tolist(), strict=True))


class FolderIndex:
    """Captions, thumbnails and features of the images in a folder, in Lance tables in `FOLDER/.limner`.

        index = FolderIndex("photos")
        index.update(limner.load())
        for match in index.search("a dog on the beach"):
            print(match.path, match.caption)

    Several threads may search at the same time, also while another process updates the index: each search reads the
    newest complete batch.

    Attributes:
        folder: the folder of images.
        path: folder of the index.
    """

    def __init__(self, folder: Path | str, index: Path | str | None = None, searcher: Searcher | None = None) -> None:
        """Refer to the index of a folder, which need not exist yet; FolderError if there is no such folder.

        Args:
            folder: folder of images.
            index: folder of the index; default: `.limner` in the folder.
            searcher: features and scores of a search, such as a `HubSpace`; default: the searcher that the index
                was made with, or else the built-in models in the language of the captions.
        """
        self.folder = Path(folder)
        if not self.folder.is_dir():
            problem = "a file; name its folder" if self.folder.exists() else "none; check the path"
            raise FolderError(f"{folder}: expected a folder of images, found {problem}")
        self.path = self.folder / INDEX_FOLDER if index is None else Path(index)
        self._searcher = searcher
        self._snapshot: Snapshot | None = None

    @classmethod
    def open(cls, folder: Path | str, index: Path | str | None = None, searcher: Searcher | None = None) -> Self:
        """Open an index, see the constructor; FolderError if it is missing, damaged, or of other features."""
        result = cls(folder, index, searcher)
        if not has_index(result.path):
            place = "" if index is None else f" --index {index}"
            raise FolderError(f"{index or folder}: has no index; run 'limner index {folder}{place}'")
        if result.record.updating:
            logger.warning(
                f"{result.path}: an update is under way, or was interrupted: images may be missing; to complete it, "
                f"run 'limner index {folder}{result.record.options}'"
            )
        return result

    def require_run(self, run: Path, changed: Sequence[str] = ()) -> None:
        """Check before a model is loaded that the index was made with the model; FolderError if not, or if damaged."""
        if has_index(self.path):
            _require_captioner(self.path, self.record, run_digest(run, changed))

    @property
    def record(self) -> IndexRecord:
        """Record of the index; FolderError if the index is missing or damaged."""
        return self._newest().index.record

    def __len__(self) -> int:
        """Number of files that can be searched."""
        return len(self._newest().row_of)

    def update(
        self,
        captioner: BaseCaptioner,
        on_progress: Progress | None = None,
        *,
        recursive: bool = True,
        verify: bool = False,
        rebuild: bool = False,
        batch_size: int = CAPTION_BATCH_SIZE,
    ) -> FolderUpdate:
        """Bring the index up to date; it is created if there is none.

        Files are compared by size and time of the last change, and by their contents where these differ. Work is
        written in batches; an interrupted update continues where it ended.

        Args:
            captioner: model that describes the images, as `limner.load` returns it.
            on_progress: called with the number of new and changed files that are done, and their total.
            recursive: whether images in folders of the folder belong to the index.
            verify: compare the contents of all files.
            rebuild: describe all images again; the new index replaces the old index when it is complete.
            batch_size: number of images that are described together.

        Raises:
            FolderError: the index is damaged or was made with another model or other features, the folder has no image
                any more, or another process updates the index.
            WriteError: the index cannot be written; earlier batches are kept.
        """
        if captioner.folder is None:
            raise FolderError("expected a captioner that was loaded from one folder, got an ensemble or a new model")
        scan = self._scan(recursive)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = f"the index cannot be created ({error.strerror}); name another place with --index"
            raise FolderError(f"{self.path}: {reason}") from None
        with locked(self.path, FolderError):
            for name in (FILES, IMAGES):
                remove_unfinished(self.path / name)
            _remove(self.path / REBUILT)
            place = self.path / REBUILT if rebuild else self.path
            place.mkdir(exist_ok=True)
            space = self.record.space if has_index(place) else ""
            searcher = self._searcher or open_searcher(captioner.lang, space)
            if not has_index(place):
                create_index(place, IndexRecord.from_captioner(captioner, searcher))
            opened = open_index(place)
            _require_captioner(place, opened.record, run_digest(captioner.folder, captioner.changed))
            _require_features(place, opened.record, searcher)
            result = Updater(self.folder, place, captioner, searcher, opened).run(scan, verify, batch_size, on_progress)
            if rebuild:
                for name in (RECORD, FILES, IMAGES):  # the record first: tables without it are a damaged index
                    _remove(self.path / name)
                for name in (FILES, IMAGES, RECORD):
                    os.replace(place / name, self.path / name)
                place.rmdir()
            return result

    def find_unchanged(self, run: Path, changed: Sequence[str] = (), *, recursive: bool = True) -> FolderUpdate | None:
        """Return the numbers of an update with the model of a run directory if it would change nothing, else None.

        No model is loaded; `changed` is as of `BaseCaptioner`. FolderError if the index is damaged, or the folder has
        no image any more.
        """
        if not has_index(self.path):
            return None
        record, rows = self.record, self._newest().index.files
        if record.updating or record.captioner != run_digest(run, changed):
            return None
        scan = self._scan(recursive)
        is_same = all(is_unchanged(file, rows.get(file.path)) for file in scan.files) and len(scan.files) == len(rows)
        return FolderUpdate(unchanged=len(rows)) if is_same and not scan.unreadable else None

    def _scan(self, recursive: bool) -> Scan:
        """Find the images of the folder; FolderError if it has none, as on a disk that is not connected."""
        scan = scan_folder(self.folder, recursive=recursive, skip=self.path)
        if not scan.files:
            reason = next(iter(scan.unreadable.values()), None)
            raise FolderError(
                f"{self.folder}: cannot be read ({reason}); check its permissions"
                if reason is not None
                else f"{self.folder}: no image in this folder; nothing was changed: name a folder with JPEG, PNG or "
                "other images, or make its disk available"
            )
        return scan

    def search(self, query: str, count: int = DEFAULT_COUNT) -> list[FolderMatch]:
        """Find the images that a sentence describes best, by the concepts that it names and the joint space.

        SettingsError if no word of the query is known, FolderError if the index is damaged.

        Args:
            query: a sentence or some words, in the language of the captions.
            count: number of results.

        Returns:
            The best matches, best first; files with the same contents are separate matches.
        """
        snapshot = self._newest()
        return self._matches(snapshot, snapshot.score_sentence(query), count)

    def similar(self, image: ImageInput, count: int = DEFAULT_COUNT) -> list[FolderMatch]:
        """Find the images that are most similar to an image, by the things in them and the joint space.

        MediaError if the image cannot be read, FolderError if the index is damaged.

        Args:
            image: path, encoded bytes, PIL image or array (H, W, 3); a file that is the query is not returned, but its
                copies are.
            count: number of results.
        """
        snapshot = self._newest()
        searcher = snapshot.searcher
        (features,) = searcher.features_of([searcher.read(image)])
        query = Path(image).resolve() if isinstance(image, (str, Path)) else None
        matches = self._matches(snapshot, snapshot.score_vector(searcher.vector_of(features)), count + 1)
        return [match for match in matches if query is None or match.path.resolve() != query][:count]

    def thumbnail(self, path: Path | str) -> bytes | None:
        """Return the small copy of an indexed image, a JPEG file; None if the index has no such image.

        Args:
            path: path of a match; or relative to the folder, as text.
        """
        snapshot = self._newest()
        row = snapshot.row_of.get(path if isinstance(path, str) else path.relative_to(self.folder).as_posix())
        return None if row is None else snapshot.index.details([row])[0].thumbnail

    def _newest(self) -> Snapshot:
        """Return the newest state of the tables; it is read again where another process has changed them."""
        snapshot = self._snapshot
        if snapshot is None or snapshot.state != state_of_index(self.path):
            snapshot = Snapshot(self.path, self._searcher)
            _require_features(self.path, snapshot.index.record, snapshot.searcher)
            self._snapshot = snapshot
        return snapshot

    def _matches(self, snapshot: Snapshot, scored: Sequence[tuple[int, float]], count: int) -> list[FolderMatch]:
        best = ((path, row, score) for row, score in scored for path in snapshot.paths_of[row])
        paths, rows, scores = zip(*islice(best, count), strict=True) if scored and count else ((), (), ())
        return [
            FolderMatch(self.folder / path, score, image.caption, image.confidence, image.tags)
            for path, score, image in zip(paths, scores, snapshot.index.details(rows), strict=True)
        ]


def _require_captioner(index: Path, record: IndexRecord, digest: str) -> None:
    """Check that an index was made with the captioner of a digest; FolderError for another captioner."""
    if record.captioner != digest:
        own = f"name it by{record.options}" if record.options else "leave out --lang and --model"
        raise FolderError(
            f"{index}: has captions in '{record.lang}' of {record.model or 'a model that is in no folder'}, which is "
            f"not the captioner of this command, or whose files have changed; {own}, place another index by --index, "
            f"or {REBUILD}"
        )


def _require_features(index: Path, record: IndexRecord, searcher: Searcher) -> None:
    """Check that the features of an index fit the searcher; FolderError for features of another backbone."""
    if record.features != searcher.digest:
        raise FolderError(f"{index}: has features of another backbone; {REBUILD}")


def _remove(part: Path) -> None:
    """Remove a part of an index, which may be a file or a folder; FolderError if it cannot be removed."""
    try:
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise FolderError(f"{part}: cannot be removed ({error.strerror}); remove it, and repeat the command") from None
