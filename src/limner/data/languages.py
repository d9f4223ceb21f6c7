"""Target and source texts of items, and region items: described regions of images as items of their own."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from limner.data.examples import Item, ItemSentence, Region, StoredFeatures
from limner.text.labels import LABEL_LANGUAGES
from limner.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from limner.data.dataset import FeatureSource

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegionItem(Item):
    """One described region of an image: an item with one region, whose text is its only sentence.

    Its id consists of the id of the image, '#' and the number of the region.
    """

    image_id: str = ""
    """Id of the item of the whole image, which features are stored under."""

    @property
    def whole(self) -> Item:
        """Item of the whole image, without annotations."""
        return Item(self.image_id, self.split, self.image)


@runtime_checkable
class RegionSource(Protocol):
    """Provider of the features of regions, which knows where they lie in the encoded images."""

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Return the features of each item, None for items without an image."""

    def relative_box(self, item: RegionItem) -> NDArray[np.float32]:
        """Return the box of a region: centre, width and height in fractions of the encoded image, (4,)."""


def region_items(
    items: Iterable[Item], lang: str, features: RegionSource | None = None, *, where: str = ""
) -> list[RegionItem]:
    """Make an item of each region with a text and a visible box; training and evaluation use only these items.

    Regions without a text, without an area, or outside the part of the image that the features are computed of (a
    centre crop may remove them) are left out.

    Args:
        items: items of images with regions.
        lang: language of the descriptions.
        features: features of the images; None to accept regions outside the encoded part.
        where: collection and split, for a warning with the number of regions left out; empty for no warning.
    """
    candidates = [
        RegionItem(
            id=f"{item.id}#{number}",
            split=item.split,
            image=item.image,
            sentences=(ItemSentence(lang, region.text),),
            regions=(region,),
            image_id=item.id,
        )
        for item in items
        if item.image is not None
        for number, region in enumerate(item.regions)
    ]
    usable = [item for item in candidates if _is_usable(item, features)]
    if where and len(usable) < len(candidates):
        logger.warning(
            "%s: %d of %d regions are left out, which have no text or no area in the part of the image that the "
            "features are computed of",
            where,
            len(candidates) - len(usable),
            len(candidates),
        )
    return usable


def with_usable_regions(items: Sequence[Item], regions: Iterable[RegionItem]) -> list[Item]:
    """Copy of the items of images with only the regions that `region_items` makes items of."""
    by_image: dict[str, list[Region]] = {item.id: [] for item in items}
    for region in regions:
        by_image[region.image_id] += region.regions
    return [replace(item, regions=tuple(by_image[item.id])) for item in items]


def _is_usable(item: RegionItem, features: RegionSource | None) -> bool:
    (region,) = item.regions
    if not region.text.strip() or min(region.box[2:]) <= 0:
        return False
    return features is None or float(features.relative_box(item)[2:].min()) > 0


class TargetLanguage(NamedTuple):
    """Language of the sentences that a model scores and generates."""

    lang: str
    """Language code of the sentences."""
    tokenizer: Tokenizer
    """Tokenizer of the sentences."""
    of_regions: bool = False
    """Whether the sentences are the descriptions of regions: every region of an image is an item of its own."""

    def items(self, items: Sequence[Item], features: FeatureSource | None = None, *, where: str = "") -> Sequence[Item]:
        """Items that the sentences describe: `items` themselves, or their regions; see `region_items`."""
        if not self.of_regions:
            return items
        source = features if isinstance(features, RegionSource) else None
        return region_items(items, self.lang, source, where=where)


class SourceLanguage(NamedTuple):
    """Language that a translation model translates from."""

    lang: str
    """Language code of the source sentences."""
    tokenizer: Tokenizer
    """Tokenizer of the source sentences."""
    synthetic: float = 0.0
    """Fraction of the examples of an epoch with a model-generated source sentence; 0 excludes these examples."""


class TextPair(NamedTuple):
    """Target sentence with its source sentence."""

    source: str
    """Source sentence; empty for captioning."""
    target: str
    """Target sentence."""
    is_synthetic: bool
    """Whether the source sentence was generated by a model."""


def text_pairs(item: Item, lang: str, source: SourceLanguage | None) -> list[TextPair]:
    """Sentences of an item in a target language, each paired with its source sentences for translation.

    Model-generated source sentences are included if `source.synthetic` is above 0, model-generated target sentences
    never.
    """
    if source is None:
        return [TextPair("", text, False) for text in item.texts(lang)]
    return [
        TextPair(before.text, after.text, bool(before.generated_by))
        for before, after in item.pairs(source.lang, lang)
        if source.synthetic or not before.generated_by
    ]


def explain_no_examples(items: Sequence[Item], lang: str, source: SourceLanguage | None, length: str = "") -> str:
    """Explain why items have no pair of sentences (of a limited length): their languages, and the remedy."""
    if lang in LABEL_LANGUAGES:
        source_text = "" if source is None else f" and a sentence in '{source.lang}'"
        return f"has no item{length} with a {lang.replace('_', ' ').removesuffix('s')}{source_text}"
    languages = sorted({sentence.lang for item in items for sentence in item.sentences})
    available = f"(languages of the split: {', '.join(languages) or 'none'})"
    if source is None:
        remedy = f"; train with data.lang={languages[0]}" if languages and lang not in languages else ""
        return f"has no sentence{length} in '{lang}' {available}{remedy}"
    has_synthetic = any(before.generated_by for item in items for before, _ in item.pairs(source.lang, lang))
    excluded = "; model-generated source sentences are excluded" if has_synthetic and not source.synthetic else ""
    return f"has no sentence{length} in '{lang}' with a translation in '{source.lang}'{excluded} {available}"
