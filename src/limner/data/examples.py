"""The record: items as a collection holds them, examples and batches as a model reads them.

Shapes everywhere: B batch, T target length, S source length, L image locations, D feature size, E embedding,
H hidden, V vocabulary, K beam.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from limner.media.modality import MODALITIES, Modality


class Sentence(NamedTuple):
    """A sentence of an item."""

    lang: str
    text: str
    group: int = 0
    """Sentences of one group translate each other, each with each: what translates nothing needs a group of its own."""
    generated_by: str = ""
    """Who translated it, where a model did; empty for what people wrote."""


class Region(NamedTuple):
    """A described part of a picture; `box` is (left, top, width, height) in pixels of the stored picture."""

    box: tuple[float, float, float, float]
    text: str


@dataclass(frozen=True, slots=True)
class Item:
    """One row of a collection. `image`, `video` and `audio` are paths relative to the collection's folder."""

    id: str
    split: str
    image: str | None = None
    video: str | None = None
    audio: str | None = None
    sentences: tuple[Sentence, ...] = ()
    regions: tuple[Region, ...] = ()
    label: str | None = None

    @property
    def media_path(self) -> str | None:
        """What features are made of and sentences are about: the picture or the sound; None for text alone."""
        return self.image or self.audio

    @property
    def modality(self) -> Modality | None:
        """Modality of `medium`; None for text alone."""
        return next((modality for name, modality in MODALITIES.items() if getattr(self, name)), None)

    def with_media(self, modality: Modality, path: str | None) -> Item:
        """Copy the item with another file of a modality."""
        change: dict[str, Any] = {modality.name: path}
        return replace(self, **change)

    def texts(self, lang: str) -> list[str]:
        """What people wrote in a language."""
        return [sentence.text for sentence in self.sentences if sentence.lang == lang and not sentence.generated_by]

    def pairs(self, source: str, target: str) -> list[tuple[Sentence, Sentence]]:
        """Sentences of two languages that translate each other, for each that people wrote in the target language."""
        by_group: dict[int, list[Sentence]] = {}
        for sentence in self.sentences:
            if sentence.lang == source:
                by_group.setdefault(sentence.group, []).append(sentence)
        return [
            (other, sentence)
            for sentence in self.sentences
            if sentence.lang == target and not sentence.generated_by
            for other in by_group.get(sentence.group, ())
        ]


StoredFeatures = Mapping[str, NDArray[np.float16] | None]
"""What is stored of one picture, by form: 'pooled', 'grid', 'maps'."""


class ImageFeatures(NamedTuple):
    """What a batch shows of its pictures; the forms that were not asked for are None."""

    present: Tensor  # (B,) bool: false where an example has no picture
    pooled: Tensor | None = None  # (B, D)
    grid: Tensor | None = None  # (B, L, D)
    maps: Tensor | None = None  # (B, C, H, W): pixels or feature maps a trained convnet still has to read

    def to(self, device: torch.device) -> ImageFeatures:
        return self._each(lambda values: values.to(device))

    def select(self, rows: Tensor) -> ImageFeatures:
        return self._each(lambda values: values[rows])

    def _each(self, change: Callable[[Tensor], Tensor]) -> ImageFeatures:
        pooled, grid, maps = (None if form is None else change(form) for form in self[1:])
        return ImageFeatures(change(self.present), pooled, grid, maps)


@dataclass(frozen=True, slots=True)
class Example:
    """One (picture, sentence) pair, or a picture alone: token ids carry no start and no end sign."""

    id: str
    target: Sequence[int] = ()
    source: Sequence[int] | None = None
    image: StoredFeatures | None = None


@dataclass(slots=True)
class Batch:
    """What every model reads; made once, in `collate`. (Not frozen, since Fabric refuses frozen dataclasses.)"""

    ids: tuple[str, ...]
    image: ImageFeatures
    target_in: Tensor  # (B, T): start sign, then the sentence
    target_out: Tensor  # (B, T): the sentence, then the end sign
    target_mask: Tensor  # (B, T) bool: true where target_out is a real word or the end sign
    source: Tensor | None = None  # (B, S)
    source_mask: Tensor | None = None  # (B, S)

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device) -> Batch:
        return replace(
            self,
            image=self.image.to(device),
            target_in=self.target_in.to(device),
            target_out=self.target_out.to(device),
            target_mask=self.target_mask.to(device),
            source=None if self.source is None else self.source.to(device),
            source_mask=None if self.source_mask is None else self.source_mask.to(device),
        )


class SpecialTokens(NamedTuple):
    """Ids of the signs every vocabulary begins with."""

    pad: int = 0
    bos: int = 1
    eos: int = 2
    unk: int = 3


SPECIAL_TOKENS = SpecialTokens()


def collate(examples: Sequence[Example]) -> Batch:
    """Pad examples into one batch; shifted inputs, outputs and masks are made here and nowhere else."""
    words, lengths = _padded([example.target for example in examples])  # (B, T - 1) and (B, 1)
    target_in = functional.pad(words, (1, 0), value=SPECIAL_TOKENS.bos)
    target_out = functional.pad(words, (0, 1), value=SPECIAL_TOKENS.pad).scatter_(1, lengths, SPECIAL_TOKENS.eos)
    mask = torch.arange(target_in.shape[1]) <= lengths
    source, source_mask = _collate_sources(examples)
    return Batch(
        ids=tuple(example.id for example in examples),
        image=collate_features([example.image for example in examples]),
        target_in=target_in,
        target_out=target_out,
        target_mask=mask,
        source=source,
        source_mask=source_mask,
    )


def _collate_sources(examples: Sequence[Example]) -> tuple[Tensor | None, Tensor | None]:
    if all(example.source is None for example in examples):
        return None, None
    tokens, lengths = _padded([example.source or () for example in examples], at_least=1)
    return tokens, torch.arange(tokens.shape[1]) < lengths


def _padded(sequences: Sequence[Sequence[int]], at_least: int = 0) -> tuple[Tensor, Tensor]:
    """Sequences of ids side by side (B, T), and their lengths (B, 1); all at once, a batch has hundreds."""
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)[:, None]
    tokens = np.full((len(sequences), max(at_least, int(lengths.max()))), SPECIAL_TOKENS.pad, dtype=np.int64)
    tokens[np.arange(tokens.shape[1]) < lengths] = [id for sequence in sequences for id in sequence]
    return torch.from_numpy(tokens), torch.from_numpy(lengths)


def collate_features(images: Sequence[StoredFeatures | None]) -> ImageFeatures:
    """Stack the pictures of a batch; one that is missing becomes zeros and `present` says so."""
    shown = [{form: values for form, values in (v or {}).items() if values is not None} for v in images]
    forms: dict[str, Tensor] = {}
    for form in ("pooled", "grid", "maps"):
        known = next((v[form] for v in shown if form in v), None)
        if known is not None:
            nothing = np.zeros_like(known)
            forms[form] = torch.from_numpy(np.stack([v.get(form, nothing) for v in shown])).float()
    return ImageFeatures(torch.tensor([bool(v) for v in shown]), **forms)
