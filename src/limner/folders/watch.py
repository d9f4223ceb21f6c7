"""Waiting for changes of the images in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from limner.errors import MissingExtraError
from limner.media.modality import IMAGE


def require_watchfiles() -> None:
    """Check that watchfiles is installed; MissingExtraError if it is not."""
    try:
        import watchfiles  # noqa: F401
    except ImportError:
        raise MissingExtraError("--watch", "watch") from None


def watch_folder(folder: Path, recursive: bool = True, skip: Path | None = None) -> Iterator[None]:
    """Yield once when the folder is watched, then after every change of images, or of folders, in it.

    Changes that come together are one. What has changed before the folder was watched is found by the first of them.

    Args:
        folder: folder to watch.
        recursive: whether changes in the folders inside count.
        skip: a folder whose changes do not count, such as the index.
    """
    from watchfiles import Change, watch

    root, skipped = folder.resolve(), None if skip is None else skip.resolve()

    def concerns(change: Change, name: str) -> bool:
        path = Path(name)
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            return False
        if skipped is not None and path.is_relative_to(skipped):
            return False
        return change is Change.deleted or IMAGE.matches(name) or path.is_dir()  # what is deleted may be a folder

    changes = watch(root, watch_filter=concerns, recursive=recursive, raise_interrupt=False, yield_on_timeout=True)
    for number, changed in enumerate(changes):
        if changed or not number:
            yield
