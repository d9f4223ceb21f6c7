"""Items of a collection, and the examples and batches that models read.

Shapes: B batch, T target length, S source length, L image locations, D feature size, E embedding, H hidden,
V vocabulary, K beam. Items need no torch, so that collections are made and shown without it: torch is imported where
batches are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.media.modality import MODALITIES, Modality
from limner.text.labels import FRAME_LABELS, LABEL, LABEL_LANGUAGES, TRACK, Point, cell_token, label_token
from limner.text.vocab import SPECIAL_TOKENS

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Phrase(NamedTuple):
    """Part of a sentence that mentions an entity of the image, as annotated in Flickr30k Entities."""

    first: int
    """Index of the first token in the sentence split at whitespace."""
    text: str
    """Tokens of the phrase, separated by single spaces."""
    entity: str
    """Identifier of the entity within the item; `Region.entity` has the same."""
    types: tuple[str, ...] = ()
    """Types of the entity, for example 'people', 'clothing', 'scene'."""


class ItemSentence(NamedTuple):
    """Sentence of an item."""

    lang: str
    """Language code."""
    text: str
    """Untokenised text."""
    group: int = 0
    """Number of the group of sentences that are translations of each other; a sentence without translations has a
    group of its own."""
    generated_by: str = ""
    """Identifier of the model that generated the sentence; empty for human-written sentences."""
    phrases: tuple[Phrase, ...] = ()
    """Annotated mentions of entities, in the order of the sentence."""


class Region(NamedTuple):
    """Described region of an image."""

    box: tuple[float, float, float, float]
    """Left, top, width and height in pixels of the stored image."""
    text: str
    """Description of the region."""
    entity: str = ""
    """Identifier of the entity within the item; an entity of several boxes has several regions. Empty if unknown."""
    types: tuple[str, ...] = ()
    """Types of the entity in the phrases with this text."""


Track = tuple[tuple[float, float, float, float], ...]
"""Position of one object in a clip: its box in each frame as left, top, width and height in pixels, hidden or not."""


@dataclass(frozen=True, slots=True)
class Item:
    """Row of a collection: an image, video or audio file, a text, or both, with annotations.

    The fields `image`, `video` and `audio` are paths relative to the folder of the collection.
    """

    id: str
    split: str
    image: str | None = None
    video: str | None = None
    audio: str | None = None
    sentences: tuple[ItemSentence, ...] = ()
    regions: tuple[Region, ...] = ()
    label: str | None = None
    track: Track = ()
    frame_size: tuple[int, int] | None = None
    """Width and height of the frames of a clip in pixels, needed with `track`."""
    frame_labels: tuple[str, ...] = ()
    """Label of each step of the input: of each frame of a clip or a sound, or of each token of a sentence."""

    @property
    def media(self) -> dict[str, str | None]:
        """Path of the file of each modality, by its name, in the order of `MODALITIES`."""
        paths = {"image": self.image, "video": self.video, "audio": self.audio}
        return {name: paths[name] for name in MODALITIES}

    @property
    def media_path(self) -> str | None:
        """Path of the file that features are computed of; None for items of text only."""
        return next((path for path in self.media.values() if path), None)

    @property
    def modality(self) -> Modality | None:
        """Modality of `media_path`; None for items of text only."""
        return next((MODALITIES[name] for name, path in self.media.items() if path), None)

    def with_media(self, modality: Modality, path: str | None) -> Item:
        """Copy of the item with another file of a modality."""
        change: dict[str, Any] = {modality.name: path}
        return replace(self, **change)

    def texts(self, lang: str) -> list[str]:
        """Human-written sentences in a language, or the sentence of labels for a name in `LABEL_LANGUAGES`."""
        return [sentence.text for sentence in self._written(lang)]

    @property
    def positions(self) -> list[Point]:
        """Centre of the tracked object in each frame, as shares of the frame's width and height."""
        if self.frame_size is None:
            return []
        frame_width, frame_height = self.frame_size
        return [
            ((left + width / 2) / frame_width, (top + height / 2) / frame_height)
            for left, top, width, height in self.track
        ]

    def boxes(self, entity: str) -> list[tuple[float, float, float, float]]:
        """Distinct boxes of an entity; none if the entity has no box, such as a whole scene."""
        return list(dict.fromkeys(region.box for region in self.regions if entity and region.entity == entity))

    def pairs(self, source: str, target: str) -> list[tuple[ItemSentence, ItemSentence]]:
        """Pairs of a source sentence and a human-written target sentence of the same group, or of a label."""
        before = [sentence for sentence in self.sentences if sentence.lang == source]
        if target in LABEL_LANGUAGES:
            return [(source_sentence, labels) for labels in self._written(target) for source_sentence in before]
        by_group: dict[int, list[ItemSentence]] = {}
        for sentence in before:
            by_group.setdefault(sentence.group, []).append(sentence)
        return [
            (source_sentence, sentence)
            for sentence in self._written(target)
            for source_sentence in by_group.get(sentence.group, ())
        ]

    def _written(self, lang: str) -> list[ItemSentence]:
        """Human-written sentences in a language, or the sentence of labels."""
        labels: Sequence[str]
        if lang == LABEL:
            labels = () if self.label is None else (self.label,)
        elif lang == FRAME_LABELS:
            labels = self.frame_labels
        elif lang == TRACK:
            rng = Random(f"{self.id}/track")
            labels = [cell_token(point, rng) for point in self.positions]
        else:
            return [sentence for sentence in self.sentences if sentence.lang == lang and not sentence.generated_by]
        return [ItemSentence(lang, " ".join(map(label_token, labels)))] if labels else []


StoredFeatures = Mapping[str, NDArray[Any] | None]
"""Features of one image or audio file by kind: 'pooled' (D,), 'grid' (L, D), 'maps' (C, H, W).

Features of a region of an image have its 'box' as well: centre, width and height in fractions of the image, (4,)."""


class ImageFeatures(NamedTuple):
    """Features of the images of a batch; kinds that the model does not use are None."""

    present: Tensor  # (B,) bool: false for examples without an image
    pooled: Tensor | None = None  # (B, D)
    grid: Tensor | None = None  # (B, L, D)
    maps: Tensor | None = None  # (B, C, H, W): pixels, or feature maps for a convnet that is trained
    box: Tensor | None = None  # (B, 4): region of the image, centre, width and height in fractions; 0 for the whole

    def to(self, device: torch.device) -> ImageFeatures:
        """Copy of the features on a device."""
        return self._map(lambda values: values.to(device))

    def select(self, rows: Tensor) -> ImageFeatures:
        """Features of some rows of the batch, (N,) indices or (B,) mask."""
        return self._map(lambda values: values[rows])

    def _map(self, function: Callable[[Tensor], Tensor]) -> ImageFeatures:
        return ImageFeatures(
            function(self.present), *(None if values is None else function(values) for values in self[1:])
        )


class RegionTarget(NamedTuple):
    """Annotated region of a training image."""

    box: Sequence[float]
    """Centre, width and height in fractions of the image."""
    target: Sequence[int]
    """Token ids of its description."""


@dataclass(frozen=True, slots=True)
class Example:
    """Input of a model for one item: target token ids, source token ids and image features.

    Token ids exclude begin-of-sentence and end-of-sentence tokens.
    """

    id: str
    target: Sequence[int] = ()
    source: Sequence[int] | None = None
    image: StoredFeatures | None = None
    regions: Sequence[RegionTarget] | None = None
    """All annotated regions of the image, for the training of a model that localises regions."""


class RegionBatch(NamedTuple):
    """Annotated regions of all images of a batch: N regions."""

    row: Tensor  # (N,): row of the image in the batch
    box: Tensor  # (N, 4): centre, width and height in fractions of the image
    target_in: Tensor  # (N, T)
    target_out: Tensor  # (N, T)
    target_mask: Tensor  # (N, T) bool


@dataclass(slots=True)
class Batch:
    """Padded tensors of several examples, made by `collate`. (Not frozen: Fabric does not support frozen classes.)"""

    ids: tuple[str, ...]
    image: ImageFeatures
    target_in: Tensor  # (B, T): begin-of-sentence token, then the sentence
    target_out: Tensor  # (B, T): the sentence, then the end-of-sentence token
    target_mask: Tensor  # (B, T) bool: true for tokens of target_out that are not padding
    source: Tensor | None = None  # (B, S)
    source_mask: Tensor | None = None  # (B, S) bool: true for tokens that are not padding
    regions: RegionBatch | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device) -> Batch:
        """Copy of the batch on a device."""
        return replace(
            self,
            image=self.image.to(device),
            target_in=self.target_in.to(device),
            target_out=self.target_out.to(device),
            target_mask=self.target_mask.to(device),
            source=None if self.source is None else self.source.to(device),
            source_mask=None if self.source_mask is None else self.source_mask.to(device),
            regions=None if self.regions is None else RegionBatch(*(part.to(device) for part in self.regions)),
        )


def collate(examples: Sequence[Example]) -> Batch:
    """Pad examples to one batch with shifted decoder inputs, targets and masks."""
    import torch

    target_in, target_out, mask = _shift([example.target for example in examples])
    source = source_mask = None
    if any(example.source is not None for example in examples):
        source, lengths = _pad([example.source or () for example in examples], min_length=1)
        source_mask = torch.arange(source.shape[1]) < lengths
    return Batch(
        ids=tuple(example.id for example in examples),
        image=collate_features([example.image for example in examples]),
        target_in=target_in,
        target_out=target_out,
        target_mask=mask,
        source=source,
        source_mask=source_mask,
        regions=_collate_regions(examples),
    )


def with_targets(batch: Batch, rows: Sequence[int], targets: Sequence[Sequence[int]]) -> Batch:
    """Copy of the examples `rows` of a batch with N other target sentences, token ids without special tokens."""
    import torch

    device = batch.target_in.device
    target_in, target_out, mask = (values.to(device) for values in _shift(targets))
    index = torch.tensor(rows, device=device)
    same = list(rows) == list(range(len(batch)))
    return Batch(
        ids=tuple(batch.ids[row] for row in rows),
        image=batch.image if same else batch.image.select(index),
        target_in=target_in,
        target_out=target_out,
        target_mask=mask,
        source=None if batch.source is None else batch.source[index],
        source_mask=None if batch.source_mask is None else batch.source_mask[index],
    )


def _shift(targets: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Pad sentences to decoder inputs, targets and the mask of the targets, (B, T) each."""
    import torch
    from torch.nn import functional

    tokens, lengths = _pad(targets)  # (B, T - 1) and (B, 1)
    target_in = functional.pad(tokens, (1, 0), value=SPECIAL_TOKENS.bos)
    target_out = functional.pad(tokens, (0, 1), value=SPECIAL_TOKENS.pad).scatter_(1, lengths, SPECIAL_TOKENS.eos)
    return target_in, target_out, torch.arange(target_in.shape[1]) <= lengths


def _collate_regions(examples: Sequence[Example]) -> RegionBatch | None:
    rows = [(row, region) for row, example in enumerate(examples) for region in example.regions or ()]
    if not rows:
        return None
    import torch

    boxes = torch.tensor([list(region.box) for _, region in rows], dtype=torch.float32)
    return RegionBatch(torch.tensor([row for row, _ in rows]), boxes, *_shift([region.target for _, region in rows]))


def _pad(sequences: Sequence[Sequence[int]], min_length: int = 0) -> tuple[Tensor, Tensor]:
    """Pad sequences of token ids to one tensor (B, T); return it with the lengths (B, 1)."""
    import torch

    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)[:, None]
    tokens = np.full((len(sequences), max(min_length, int(lengths.max(initial=0)))), SPECIAL_TOKENS.pad, dtype=np.int64)
    tokens[np.arange(tokens.shape[1]) < lengths] = [token_id for sequence in sequences for token_id in sequence]
    return torch.from_numpy(tokens), torch.from_numpy(lengths)


def collate_features(images: Sequence[StoredFeatures | None]) -> ImageFeatures:
    """Stack the features of a batch; missing features are zero, and `present` marks the images that exist."""
    import torch

    by_image = [{kind: values for kind, values in (v or {}).items() if values is not None} for v in images]
    stacked: dict[str, Tensor] = {}
    for kind in ImageFeatures._fields[1:]:
        first = next((features[kind] for features in by_image if kind in features), None)
        if first is not None:
            zeros = np.zeros_like(first)
            stacked[kind] = torch.from_numpy(np.stack([features.get(kind, zeros) for features in by_image])).float()
    return ImageFeatures(torch.tensor([bool(features) for features in by_image]), **stacked)
