"""The index of a folder of images: captions, thumbnails and annotations, by which images are searched."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self

from limner.apps.photos.record import (
    REBUILD,
    RECORD,
    AnnotationCodec,
    IndexRecord,
    captioner_digest,
    concepts_digest,
    model_place,
    run_digest,
)
from limner.apps.photos.scan import Scan, scan_folder
from limner.apps.photos.search import Snapshot
from limner.apps.photos.tables import FILES, IMAGES, create_index, has_index, open_index, state_of_index
from limner.apps.photos.update import FolderUpdate, Updater, is_unchanged
from limner.errors import FolderError, SettingsError
from limner.features.encoders.base import encode
from limner.features.spec import FeatureSpec
from limner.files import locked
from limner.generation.captioning import CAPTION_BATCH_SIZE
from limner.inference.captioner import Captioner
from limner.media.image import ImageInput, describe_input
from limner.media.modality import IMAGE
from limner.progress import Progress
from limner.runs.trained_model import model_fingerprint, read_config
from limner.storage.lance_tables import remove_unfinished

logger = logging.getLogger(__name__)

INDEX_FOLDER = ".limner"
"""Name of the index in the folder that it describes."""
DEFAULT_COUNT = 10
"""Default number of results of a search."""


class FolderMatch(NamedTuple):
    """An image that a search has found."""

    path: Path
    """The image file."""
    score: float
    """log P(w|I) of a sentence w, or the cosine similarity to an image."""
    caption: str
    """Caption of the image."""
    thumbnail: bytes
    """Small copy of the image, a JPEG file."""
    confidence: float | None = None
    """Confidence of the caption; None if the captioner computes none."""
    tags: tuple[str, ...] = ()
    """Words for what is in the image; empty if the captioner finds none."""
    is_sure: bool = True
    """False where `limner describe` withholds the caption."""

    @property
    def display_text(self) -> str:
        """The caption, or 'not sure'."""
        return self.caption if self.is_sure else ""


class FolderIndex:
    """Captions, thumbnails and annotations of the images in a folder, in Lance tables in `FOLDER/.limner`.

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

    def __init__(self, folder: Path | str, index: Path | str | None = None, captioner: Captioner | None = None) -> None:
        """Refer to the index of a folder, which need not exist yet.

        Args:
            folder: folder of images.
            index: folder of the index; default: `.limner` in the folder.
            captioner: model that scores queries; default: the captioner that the index was made with, loaded at the
                first search.

        Raises:
            FolderError: there is no such folder.
        """
        self.folder = Path(folder)
        if not self.folder.is_dir():
            found = "a file; name its folder" if self.folder.exists() else "none; check the path"
            raise FolderError(f"{folder}: expected a folder of images, found {found}")
        self.path = self.folder / INDEX_FOLDER if index is None else Path(index)
        self._captioner = captioner
        self._codec: AnnotationCodec | None = None
        self._snapshot: Snapshot | None = None

    @classmethod
    def open(cls, folder: Path | str, index: Path | str | None = None, captioner: Captioner | None = None) -> Self:
        """Open an existing index; see the constructor for the arguments.

        Raises:
            FolderError: there is no index, it is damaged, or it was made with another model.
        """
        result = cls(folder, index, captioner)
        if not has_index(result.path):
            raise FolderError(f"{folder}: has no index; run 'limner index {folder}'")
        record = result.record
        if captioner is not None:
            require_model(result.path, record, captioner)
        if record.updating:
            logger.warning(
                f"{result.path}: an update is under way, or was interrupted: images may be missing; to complete it, "
                f"run 'limner index {folder}'"
            )
        return result

    def require_run(self, run: Path) -> None:
        """Check before a model is loaded that the index, if there is one, was made with features like the model's.

        Raises:
            FolderError: it was made with other features, or is damaged.
            RunError: the run directory is not complete.
        """
        if has_index(self.path):
            require_features(self.path, self.record, read_config(run)[0].features)

    @property
    def record(self) -> IndexRecord:
        """What the index was made with; FolderError if there is no index, or a damaged one."""
        return self._newest().index.record

    def __len__(self) -> int:
        """Number of files that can be searched."""
        return len(self._newest().row_of)

    def update(
        self,
        captioner: Captioner,
        on_progress: Progress | None = None,
        *,
        recursive: bool = True,
        verify: bool = False,
        rebuild: bool = False,
        batch_size: int = CAPTION_BATCH_SIZE,
    ) -> FolderUpdate:
        """Bring the index up to date; it is created if there is none.

        Files are compared by size and time of the last change, and those that differ by their contents. Work is written
        in batches: an update that was interrupted continues where it ended.

        Args:
            captioner: model that describes the images, with its backbone.
            on_progress: called with the number of new and changed files that are done, and their total.
            recursive: whether images in folders of the folder belong to the index.
            verify: compare the contents of all files.
            rebuild: replace the index, and describe all images again.
            batch_size: number of images that are described together.

        Raises:
            FolderError: the index is damaged or was made with another model or other features, the folder has no image
                any more, or another process updates the index.
            WriteError: the index cannot be written; what was written before is kept.
        """
        if len(captioner.models) != 1:
            raise FolderError(
                f"expected one captioner for an index, got an ensemble of {len(captioner.models)}; name one"
            )
        codec = AnnotationCodec(captioner.models[0])
        if captioner.backbone is None:
            raise SettingsError("an index needs the backbone: load the captioner with encode_images=True")
        scan = self._scan(recursive)
        _make_folder(self.path)
        with locked(self.path, FolderError):
            for name in (FILES, IMAGES):
                remove_unfinished(self.path / name)
            if rebuild:
                for name in (RECORD, FILES, IMAGES):  # the record first: tables without it are a damaged index
                    _remove(self.path / name)
            if not has_index(self.path):
                create_index(self.path, IndexRecord.of(captioner, codec))
            opened = open_index(self.path)
            require_model(self.path, opened.record, captioner)
            if opened.record.run_digest != (digest := captioner_digest(captioner)):
                opened.record = opened.record.model_copy(update={"run_digest": digest})
                opened.record.save(self.path)
            return Updater(self.folder, self.path, captioner, codec, opened).run(scan, verify, batch_size, on_progress)

    def find_unchanged(self, run: Path, *, recursive: bool = True) -> FolderUpdate | None:
        """Find out whether an update with the model of a run directory would change nothing; no model is loaded.

        Args:
            run: run directory of the captioner.
            recursive: whether images in folders of the folder belong to the index.

        Returns:
            The numbers of the update; None if it is needed.

        Raises:
            FolderError: the index is damaged, or the folder has no image any more.
        """
        if not has_index(self.path):
            return None
        record, rows = self.record, self._newest().index.files
        if record.updating or record.run_digest != run_digest(run):
            return None
        scan = self._scan(recursive)
        if scan.unreadable or len(scan.files) != len(rows):
            return None
        if not all(is_unchanged(file, rows.get(file.path)) for file in scan.files):
            return None
        return FolderUpdate(unchanged=len(rows))

    def _scan(self, recursive: bool) -> Scan:
        """Find the images of the folder; FolderError if there is none, as in a folder whose disk is not connected."""
        scan = scan_folder(self.folder, recursive=recursive, skip=self.path)
        if not scan.files:
            reason = next(iter(scan.unreadable.values()), None)
            raise FolderError(
                f"{self.folder}: cannot be read ({reason}); check its permissions"
                if reason is not None
                else f"{self.folder}: no image in this folder; nothing was changed: name a folder with images, such as "
                f"{', '.join(sorted(IMAGE.suffixes)[:3])}, or make its disk available"
            )
        return scan

    @property
    def is_exact(self) -> bool:
        """Whether a search scores all images; in a large index it scores candidates."""
        return self._newest().is_exact

    def search(self, query: str, count: int = DEFAULT_COUNT, *, exact: bool | None = None) -> list[FolderMatch]:
        """Find the images that a sentence describes best, by log P(w|I) and the concepts that it names.

        In an index of more than `EXACT_SEARCH_IMAGES` images, `CANDIDATES` of them are scored: images whose
        captions and tags share the rarest words with the query, and images with similar features.

        Args:
            query: a sentence or some words.
            count: number of results.
            exact: whether all images are scored, or candidates only; None decides by the number of images.

        Returns:
            The best matches, best first; a file with the contents of another one is a match of its own.

        Raises:
            SettingsError: the query has no word that the model knows.
            FolderError: the index is damaged.
        """
        snapshot, (captioner, codec) = self._newest(), self._model()
        ranked = snapshot.score_sentence(captioner.models[0], codec, query, exact, captioner.rules.concepts)
        return self._matches(snapshot, ranked, count)

    def similar(self, image: ImageInput, count: int = DEFAULT_COUNT) -> list[FolderMatch]:
        """Find the images that are most similar to an image, by the cosine of their pooled features.

        Args:
            image: path, encoded bytes, PIL image or array (H, W, 3).
            count: number of results.

        Raises:
            MediaError: the image cannot be read.
            FolderError: the index is damaged.
        """
        captioner, codec = self._model(encode_images=True)
        assert captioner.backbone is not None
        pixels = captioner.backbone.read(image)
        _, vectors = codec.encode(encode(captioner.backbone, pixels[None], [describe_input(image)]))
        snapshot = self._newest()
        return self._matches(snapshot, snapshot.score_vector(vectors[0]), count)

    def load_captioner(
        self,
        run: Path | str | None = None,
        *,
        encode_images: bool = True,
        device: str = "cpu",
        backbone: str | None = None,
    ) -> None:
        """Load the captioner that scores queries; a search loads the recorded one, if none is loaded.

        Args:
            run: run directory, if it has moved since the index was made; None for the recorded one.
            encode_images: false where no image will be given; the backbone is then not loaded.
            device: 'cpu' or 'cuda'.
            backbone: where the backbone is, if it has moved.

        Raises:
            FolderError: the index was made with another model.
            RunError: the run directory is missing or damaged.
        """
        record = self.record
        if run is None and not record.model:
            raise FolderError(f"{self.path}: the index does not know the folder of its model; name it with --model")
        captioner = Captioner.load(run or record.run, backbone=backbone, device=device, encode_images=encode_images)
        require_model(self.path, record, captioner)
        self._captioner, self._codec = captioner, None

    def thumbnail(self, path: str) -> bytes | None:
        """Return the small copy of an indexed image, a JPEG file.

        Args:
            path: path relative to the folder.

        Returns:
            None if the index has no such image.

        Raises:
            FolderError: the index is damaged.
        """
        snapshot = self._newest()
        row = snapshot.row_of.get(path)
        return None if row is None else snapshot.index.details([row])[0].thumbnail

    def _newest(self) -> Snapshot:
        """Return the newest state of the tables; it is read again where another process has changed them."""
        snapshot = self._snapshot
        if snapshot is None or snapshot.state != state_of_index(self.path):
            snapshot = self._snapshot = Snapshot(self.path)
        return snapshot

    def _model(self, encode_images: bool = False) -> tuple[Captioner, AnnotationCodec]:
        """Return the captioner and its annotations; the captioner is loaded if it is needed for the first time."""
        if self._captioner is None or (encode_images and self._captioner.backbone is None):
            self.load_captioner(encode_images=encode_images)
        assert self._captioner is not None, "it has been loaded"
        if self._codec is None:
            self._codec = AnnotationCodec(self._captioner.models[0])
        return self._captioner, self._codec

    def _matches(self, snapshot: Snapshot, scored: Sequence[tuple[int, float]], count: int) -> list[FolderMatch]:
        best = ((path, row, score) for row, score in scored for path in snapshot.paths_of[row])
        paths, rows, scores = zip(*islice(best, count), strict=True) if scored and count else ((), (), ())
        concepts = self._model()[0].rules.concepts
        least = 0.0 if concepts is None else concepts.rules.min_confidence
        return [
            FolderMatch(
                self.folder / path,
                score,
                image.caption,
                image.thumbnail,
                image.confidence,
                image.tags,
                image.confidence is None or image.confidence >= least,
            )
            for path, score, image in zip(paths, scores, snapshot.index.details(rows), strict=True)
        ]


def require_model(index: Path, record: IndexRecord, captioner: Captioner) -> None:
    """Check that an index was made with a model.

    Raises:
        FolderError: it was made with another model, or with other features.
    """
    require_features(index, record, captioner.models[0].config.features)
    if record.model == model_place(captioner) and record.concepts != concepts_digest(captioner):
        raise FolderError(
            f"{index}: the concepts of '{record.name}' (concepts.json in {record.model}) were added, changed or "
            f"removed since, and captions depend on them; {REBUILD}"
        )
    if model_fingerprint(captioner.models) != record.fingerprint:
        raise FolderError(
            f"{index}: expected an index of this model, found one of '{record.name}' ({record.model}, captions in "
            f"'{record.lang}'); name that model with --model, or {REBUILD}"
        )


def require_features(index: Path, record: IndexRecord, features: Sequence[FeatureSpec]) -> None:
    """Check that an index has the features that a model reads; FolderError if it has others."""
    if all(spec.fingerprint != record.features.fingerprint for spec in features):
        expected = ", ".join(map(str, features)) or "none"
        raise FolderError(f"{index}: expected an index with features {expected}, found {record.features}; {REBUILD}")


def _remove(part: Path) -> None:
    """Remove a part of an index, which may be a file or a folder; FolderError if it cannot be removed."""
    try:
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise FolderError(f"{part}: cannot be removed ({error.strerror}); remove it, and repeat the command") from None


def _make_folder(index: Path) -> None:
    try:
        index.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(
            f"{index}: the index cannot be created ({error.strerror}); name another place with --index"
        ) from None
