"""What a retriever returns: ranked images and sentences, and how they were found."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class RetrievalResult(NamedTuple):
    """An image retrieved for a sentence, or a sentence retrieved for an image."""

    id: str
    """Id of the item that the image or sentence belongs to."""
    image: str | None
    """Path of the item's image or audio file; None for an item without one."""
    text: str
    """First sentence of the item in the model's language in text-to-image retrieval, empty if there is none; the
    retrieved sentence in image-to-text retrieval."""
    score: float
    """log P(w|I) in text-to-image retrieval, log P(w|I) - alpha log P(w) otherwise; the cosine of a two-tower model."""


class ImageSearch(NamedTuple):
    """Images retrieved for a sentence, and how they were found."""

    results: list[RetrievalResult]
    """Best images first."""
    kind: str | None
    """Kind of the index; None for a search of all images."""
    images: int
    """Number of images that were searched."""
    scored: int
    """Number of images whose score was computed."""
    exact: bool
    """Whether these are the best of the searched images: proven by the index, or all of them were scored. Images
    without features are not searched; for equal scores see `limner.retrieval.index.protocol.Found.exact`."""
    gap: float | None
    """Upper bound of the difference by which another image may be better than the last result, in natural logarithms;
    None if no bound is known."""

    @property
    def share(self) -> float:
        """Share of the images whose score was computed."""
        return self.scored / self.images

    def facts(self) -> dict[str, object]:
        """Return how the images were found, for JSON."""
        names = {"index": self.kind, "images": self.images, "scored": self.scored, "share": self.share}
        return {**names, "exact": self.exact, "gap": self.gap}


class BuiltIndex(NamedTuple):
    """Result of `Retriever.build_index`."""

    path: Path
    kind: str
    images: int
    """Number of images in the index."""
    is_new: bool
    """Whether it was built now; otherwise it was up to date."""
