"""Contrasts: of two sentences with a picture, or of two pictures with a sentence, which is likelier?

After CoMMuTE (Futeral et al., 2023): an ambiguous sentence, a picture that tells what is meant, and its translation
beside a wrong one. Two pictures with one sentence turn the question round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, Self

from limner.data.collection import Collection
from limner.data.dataset import Examples
from limner.data.examples import Item, Sentence, StoredFeatures
from limner.data.readers.corpus_files import read_lines
from limner.data.readers.item_builder import SourceLocation
from limner.decoding.scoring import score_examples
from limner.diagnosis.records import Contrast, ContrastLine
from limner.errors import CollectionError, FeatureError
from limner.features.encoders.load import load_backbone_for
from limner.features.sources import FeatureStore
from limner.inference.collection_features import open_features
from limner.inference.new_images import BackboneFeatures
from limner.media.audio import AUDIO_SUFFIXES
from limner.runs.trained_model import TrainedModel

SCORING_BATCH_SIZE = 64
NEW = "new"
"""The split of what is in no collection."""
OTHERS = {"other": "target", "other_image": "image"}
"""The column of what is wrong, and of what is right in its place."""
FORMS = "'source, target, other, image' or 'source, target, image, other_image'"


class Side(NamedTuple):
    """A sentence and the picture it is said of, as a file of contrasts names it."""

    source: str | None
    target: str
    image: str


class Pair(NamedTuple):
    """The right one of a line, and the other."""

    line: int
    right: Side
    other: Side


class Contrasts(NamedTuple):
    """What stands in a file of contrasts."""

    path: Path
    compared: Literal["sentences", "pictures"]
    pairs: list[Pair]
    items: dict[str, Item]
    """By what the file calls their pictures."""


def read_contrasts(path: Path, model: TrainedModel, collection: Collection) -> Contrasts:
    """Read a file of contrasts: columns parted by tabs and named in the first line, in any order.

    Args:
        path: the file. `target` is right, `other` is a wrong translation of `source`; or `image` is right and
            `other_image` a wrong picture. An image is the id of an item or a file. Further columns are not read.
        model: one that translates nothing needs no `source`.
        collection: whose items may be named as images.

    Raises:
        CollectionError: names the line that is not like this, or whose image is neither an item nor a file.
        FeatureError: an item has no features.
    """
    lines = read_lines(path)
    names = [name.strip() for name in lines[0].split("\t")]
    second = [name for name in OTHERS if name in names]
    needed = ["source"] * (model.source is not None) + ["target", "image"]
    lacking = [name for name in needed if name not in names]
    if lacking or len(second) != 1:
        what = f"no column '{lacking[0]}'" if lacking else "expected one of the columns 'other' and 'other_image'"
        raise CollectionError(
            f"{SourceLocation(path, 1)}: {what}; the first line names the columns, {FORMS}, with tabs between"
        )
    pairs = []
    for number, line in enumerate(lines[1:], start=2):
        if line.strip():
            row = _row(line, names, [*needed, *second], SourceLocation(path, number), model)
            right = Side(row["source"] if model.source else None, row["target"], row["image"])
            pairs.append(Pair(number, right, right._replace(**{OTHERS[second[0]]: row[second[0]]})))
    if not pairs:
        raise CollectionError(f"{path}: only the first line is there; expected a line for every contrast")
    return Contrasts(
        path, "sentences" if second == ["other"] else "pictures", pairs, _look_up(path, pairs, model, collection)
    )


def _row(
    line: str, names: Sequence[str], needed: Sequence[str], place: SourceLocation, model: TrainedModel
) -> dict[str, str]:
    values = [value.strip() for value in line.split("\t")]
    if len(values) != len(names):
        raise CollectionError(f"{place}: {len(values)} columns, and the first line names {len(names)}")
    row = dict(zip(names, values, strict=True))
    for name in needed:
        tokenizer = model.source_tokenizer if name == "source" else model.tokenizer
        read = name in ("image", "other_image") or tokenizer is None or tokenizer.words(row[name])
        if not row[name] or not read:
            raise CollectionError(
                f"{place}: '{name}' is {row[name] or 'empty'!r}; expected something to read or to see"
            )
    return row


def measure_contrasts(
    model: TrainedModel,
    contrasts: Contrasts,
    collection: Collection,
    *,
    backbone: str | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Contrast:
    """Score both sides of every line.

    Args:
        model: one that looks at no pictures is asked all the same.
        contrasts: the lines.
        collection: the one that they were read with.
        backbone: where the network is that looks at files, if it has moved since the training.
        device: that it looks on.
        progress: told the sentences that are scored, and how many there are.

    Raises:
        BackboneError: a picture is a file, and the network that is to look at it is not where it was.
        MediaError: a file is no picture that can be read.
    """
    data = model.recipe.data
    pictures = _Named.of(model, contrasts, collection, backbone, device) if model.model.uses_image else None
    items = []
    for pair in contrasts.pairs:
        for side in (pair.right, pair.other):
            read = () if side.source is None else (Sentence(str(data.source_lang), side.source),)
            items.append(replace(contrasts.items[side.image], sentences=(*read, Sentence(data.lang, side.target))))
    log_probs: list[float] = []
    words: list[int] = []
    for begin in range(0, len(items), SCORING_BATCH_SIZE):
        some = items[begin : begin + SCORING_BATCH_SIZE]
        examples = Examples(some, model.target, pictures, source=model.source)
        scored = score_examples(model.model, examples, batch_size=SCORING_BATCH_SIZE)
        log_probs += scored.log_probs.tolist()
        words += scored.words.tolist()
        if progress is not None:
            progress(len(words), len(items))
    lines = tuple(
        ContrastLine(
            line=pair.line,
            log_prob=log_probs[row],
            other_log_prob=log_probs[row + 1],
            words=words[row],
            other_words=words[row + 1],
        )
        for row, pair in zip(range(0, len(items), 2), contrasts.pairs, strict=True)
    )
    return Contrast(
        file=str(contrasts.path.resolve()),
        compared=contrasts.compared,
        accuracy=_accuracy([line.log_prob - line.other_log_prob for line in lines]),
        accuracy_per_word=_accuracy(
            [line.log_prob / line.words - line.other_log_prob / line.other_words for line in lines]
        ),
        lines=lines,
    )


def _accuracy(ahead: Sequence[float]) -> float:
    """Percentage of the lines where the right one is ahead; a tie counts half."""
    return 100 * sum(1.0 if by > 0 else 0.5 if by == 0 else 0.0 for by in ahead) / len(ahead)


class _Named:
    """Pictures of items, whose features are stored, and of files."""

    def __init__(self, stored: FeatureStore, new: BackboneFeatures | None) -> None:
        self.stored, self.new = stored, new

    @classmethod
    def of(
        cls, model: TrainedModel, contrasts: Contrasts, collection: Collection, backbone: str | None, device: str
    ) -> Self | None:
        stored = open_features(model, collection)
        if stored is None:
            return None
        if all(stored.covers(item) for item in contrasts.items.values()):
            return cls(stored, None)
        return cls(stored, BackboneFeatures(load_backbone_for(model.config.features, backbone, device=device)))

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """What is seen of each item's or file's picture."""
        files = [item for item in items if not self.stored.covers(item)]
        looked_at = iter(self.new.take(files) if self.new is not None else ())
        known = iter(self.stored.take([item for item in items if self.stored.covers(item)]))
        return [next(known if self.stored.covers(item) else looked_at) for item in items]


def _look_up(path: Path, pairs: Sequence[Pair], model: TrainedModel, collection: Collection) -> dict[str, Item]:
    """The item of each image that is named; for a model that looks at none, whatever is named."""
    lines = {side.image: pair.line for pair in reversed(pairs) for side in (pair.right, pair.other)}
    stored = open_features(model, collection)
    if stored is None or not model.model.uses_image:
        return {image: Item(image, NEW) for image in lines}
    known = {item.id: item for item in collection.items() if item.medium is not None}
    found = {}
    for image, line in lines.items():
        found[image] = known.get(image) or _file(image, SourceLocation(path, line), collection)
        if image in known and not stored.covers(known[image]):
            raise FeatureError(
                f"{SourceLocation(path, line)}: item '{image}' has no features; 'limner features' adds them"
            )
    return found


def _file(name: str, place: SourceLocation, collection: Collection) -> Item:
    path = place.path.parent / name
    if not path.is_file():
        raise CollectionError(
            f"{place}: '{name}' is neither an item with a picture in {collection.path} nor a file beside "
            f"{place.path.name}"
        )
    if path.suffix.lower() in AUDIO_SUFFIXES:
        return Item(str(path), NEW, audio=str(path))
    return Item(str(path), NEW, image=str(path))
