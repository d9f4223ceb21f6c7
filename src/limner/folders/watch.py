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


def watch_folder(folder: Path, recursive: bool = True) -> Iterator[None]:
    """Yield after every change of images in a folder, or of folders; changes that come together are one.

    Args:
        folder: folder to watch.
        recursive: whether changes in the folders inside count.
    """
    from watchfiles import Change, watch

    def concerns(change: Change, path: str) -> bool:
        relative = Path(path).relative_to(folder.resolve())
        hidden = any(part.startswith(".") for part in relative.parts)
        return not hidden and (IMAGE.matches(path) or not relative.suffix)

    for _ in watch(folder.resolve(), watch_filter=concerns, recursive=recursive, raise_interrupt=False):
        yield
