"""The backbone that the options of an extraction choose, as plain values that other processes can load as well."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from limner.data.collection import Collection
from limner.errors import SettingsError
from limner.features.encoders.base import Backbone
from limner.features.encoders.load import load_backbone, load_clip_backbone
from limner.features.extract import has_videos
from limner.features.regions import with_regions

logger = logging.getLogger(__name__)


class BackboneChoice(NamedTuple):
    """A backbone and what it computes of the items of a collection."""

    name: str
    """See `load_backbone`."""
    kind: str = "pooled"
    """Kind of features: pooled, grid or both."""
    options: Mapping[str, Any] = {}
    """Options of `load_backbone` except the kind."""
    sampling: Mapping[str, int] = {}
    """Frames of videos; empty for the default."""
    boxes: str | None = None
    """File of boxes, or 'collection': regions are encoded; see `with_regions`."""
    regions: int | None = None
    """Maximum number of regions per image; None for the default."""

    def load(self, collection: Collection, splits: Sequence[str] | None = None, *, strict: bool = False) -> Backbone:
        """Load the backbone for the items of some splits, or of all.

        Raises:
            BackboneError: see `load_backbone`.
            SettingsError: an option is unknown, or does not apply to the items.
        """
        if self.boxes is None and self.regions is not None:
            raise SettingsError(
                f"--regions {self.regions}: needs --boxes; name the file of boxes, or leave --regions out"
            )
        videos = has_videos(collection, splits)
        if self.sampling and not videos:
            logger.warning("--frames, --every: there are images only, and an image is a video of one frame")
        if (self.sampling or videos) and self.boxes is not None:
            raise SettingsError("--boxes: regions of videos cannot be encoded; leave it out")
        if self.sampling or videos:
            return load_clip_backbone(self.name, self.kind, self.sampling, **self.options)
        backbone = load_backbone(self.name, kind=self.kind, **self.options)
        if self.boxes is None:
            return backbone
        count = {} if self.regions is None else {"count": self.regions}
        return with_regions(backbone, collection, self.boxes, strict=strict, **count)
