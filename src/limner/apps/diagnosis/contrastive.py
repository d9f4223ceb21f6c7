"""Contrastive evaluation: whether the correct one of two candidates has the higher probability.

After CoMMuTE (Futeral et al., 2023): the candidates are the correct and an incorrect translation of an ambiguous
sentence given the disambiguating image; or the correct and an incorrect image given one translation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from limner.data.collection import Collection
from limner.data.dataset import Examples
from limner.data.examples import Item, ItemSentence, StoredFeatures
from limner.data.readers.corpus_files import read_lines
from limner.data.readers.item_builder import SourceLocation
from limner.decoding.scoring import score_examples
from limner.errors import CollectionError, FeatureError
from limner.evaluation.measurements import ContrastivePairScore, ContrastiveResult
from limner.features.encoders.load import load_backbone_for
from limner.features.store import FeatureStore
from limner.inference.collection_features import open_features
from limner.inference.new_images import BackboneFeatures, new_item
from limner.runs.trained_model import TrainedModel

SCORING_BATCH_SIZE = 64
INCORRECT_COLUMNS = {"other": "target", "other_image": "image"}
"""Column of the incorrect candidate, with the column of the correct one."""
HEADERS = "'source, target, other, image' or 'source, target, image, other_image'"


class Candidate(NamedTuple):
    """A (source, target, image) triple to be scored."""

    source: str | None
    """Source sentence; None for a captioning model."""
    target: str
    image: str
    """Item id or image file, as written in the file."""


class CandidatePair(NamedTuple):
    """The two candidates of one line of a contrastive set."""

    line: int
    correct: Candidate
    incorrect: Candidate


class ContrastiveSet(NamedTuple):
    """The contents of a contrastive set."""

    path: Path
    compared: Literal["sentences", "images"]
    """What the candidates of a pair differ in."""
    pairs: list[CandidatePair]
    items: dict[str, Item]
    """Items by the name of their image in the file."""


def read_contrastive_set(path: Path, model: TrainedModel, collection: Collection) -> ContrastiveSet:
    """Read a contrastive set: tab-separated columns, named by the first line, in any order.

    Args:
        path: the file. Either `target` is the correct translation of `source` and `other` an incorrect one, or `image`
            is the correct image and `other_image` an incorrect one. An image is the id of an item or the path of a
            file. Other columns are ignored.
        model: the model to be scored; a captioning model needs no `source`.
        collection: the collection of the items.

    Raises:
        CollectionError: the header or a line is malformed, or an image is neither an item nor a file.
        FeatureError: an item has no features.
    """
    lines = read_lines(path)
    names = [name.strip() for name in lines[0].split("\t")]
    incorrect = [name for name in INCORRECT_COLUMNS if name in names]
    required = ["source"] * (model.source is not None) + ["target", "image"]
    missing = [name for name in required if name not in names]
    if missing or len(incorrect) != 1:
        problem = f"no column '{missing[0]}'" if missing else "expected one of the columns 'other' and 'other_image'"
        raise CollectionError(
            f"{SourceLocation(path, 1)}: {problem}; the first line must name the tab-separated columns, {HEADERS}"
        )
    pairs = []
    for number, line in enumerate(lines[1:], start=2):
        if line.strip():
            row = _read_row(line, names, [*required, *incorrect], SourceLocation(path, number), model)
            correct = Candidate(row["source"] if model.source else None, row["target"], row["image"])
            changed = correct._replace(**{INCORRECT_COLUMNS[incorrect[0]]: row[incorrect[0]]})
            pairs.append(CandidatePair(number, correct, changed))
    if not pairs:
        raise CollectionError(f"{path}: expected a line for each candidate pair after the header, got none")
    compared: Literal["sentences", "images"] = "sentences" if incorrect == ["other"] else "images"
    return ContrastiveSet(path, compared, pairs, _find_items(path, pairs, model, collection))


def _read_row(
    line: str, names: Sequence[str], required: Sequence[str], location: SourceLocation, model: TrainedModel
) -> dict[str, str]:
    values = [value.strip() for value in line.split("\t")]
    if len(values) != len(names):
        raise CollectionError(f"{location}: expected {len(names)} columns as in the header, got {len(values)}")
    row = dict(zip(names, values, strict=True))
    for name in required:
        tokenizer = model.source_tokenizer if name == "source" else model.tokenizer
        readable = name in ("image", "other_image") or tokenizer is None or tokenizer.words(row[name])
        if not row[name] or not readable:
            expected = "an item id or a file" if name in ("image", "other_image") else "a sentence"
            raise CollectionError(f"{location}: expected {expected} in column '{name}', got {row[name]!r}")
    return row


def score_contrastive_set(
    model: TrainedModel,
    contrastive_set: ContrastiveSet,
    collection: Collection,
    backbone: str | None = None,
    device: str = "cpu",
    on_progress: Callable[[int, int], None] | None = None,
) -> ContrastiveResult:
    """Compute the log-probability of both candidates of every pair, and the accuracies.

    Raises:
        BackboneError: an image is a file and the backbone cannot be loaded.
        MediaError: a file cannot be read as an image or as audio.
    """
    items = _candidate_items(model, contrastive_set)
    features = None
    stored = open_features(model, collection) if model.model.uses_image else None
    if stored is not None:
        computed = None
        if not all(stored.covers(item) for item in contrastive_set.items.values()):
            computed = BackboneFeatures(load_backbone_for(model.config.features, backbone, device=device))
        features = _StoredOrComputedFeatures(stored, computed)
    log_probs: list[float] = []
    lengths: list[int] = []
    for begin in range(0, len(items), SCORING_BATCH_SIZE):
        batch = items[begin : begin + SCORING_BATCH_SIZE]
        examples = Examples(batch, model.target, features, source=model.source)
        scored = score_examples(model.model, examples, batch_size=SCORING_BATCH_SIZE)
        log_probs += scored.log_probs.tolist()
        lengths += scored.tokens.tolist()
        if on_progress is not None:
            on_progress(len(lengths), len(items))
    scores = tuple(
        ContrastivePairScore(
            line=pair.line,
            log_prob=log_probs[row],
            other_log_prob=log_probs[row + 1],
            tokens=lengths[row],
            other_tokens=lengths[row + 1],
        )
        for row, pair in zip(range(0, len(items), 2), contrastive_set.pairs, strict=True)
    )
    return ContrastiveResult(
        file=str(contrastive_set.path.resolve()),
        compared=contrastive_set.compared,
        accuracy=_accuracy([pair.log_prob - pair.other_log_prob for pair in scores]),
        accuracy_per_token=_accuracy(
            [pair.log_prob / pair.tokens - pair.other_log_prob / pair.other_tokens for pair in scores]
        ),
        pairs=scores,
    )


def _candidate_items(model: TrainedModel, contrastive_set: ContrastiveSet) -> list[Item]:
    """One item for each candidate, the correct and the incorrect one of each pair in turn."""
    data = model.recipe.data
    items = []
    for pair in contrastive_set.pairs:
        for candidate in (pair.correct, pair.incorrect):
            source = () if candidate.source is None else (ItemSentence(str(data.source_lang), candidate.source),)
            sentences = (*source, ItemSentence(data.lang, candidate.target))
            items.append(replace(contrastive_set.items[candidate.image], sentences=sentences))
    return items


def _accuracy(margins: Sequence[float]) -> float:
    """Percentage of positive margins; a margin of zero counts half."""
    return 100 * sum(1.0 if margin > 0 else 0.5 if margin == 0 else 0.0 for margin in margins) / len(margins)


class _StoredOrComputedFeatures(NamedTuple):
    """Features of items from their tables, and of image files from a backbone."""

    stored: FeatureStore
    computed: BackboneFeatures | None

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Return the features of each item."""
        files = [item for item in items if not self.stored.covers(item)]
        computed = iter(self.computed.take(files) if self.computed is not None else ())
        stored = iter(self.stored.take([item for item in items if self.stored.covers(item)]))
        return [next(stored if self.stored.covers(item) else computed) for item in items]


def _find_items(
    path: Path, pairs: Sequence[CandidatePair], model: TrainedModel, collection: Collection
) -> dict[str, Item]:
    """The item of each image; a text-only model accepts any name."""
    lines = {candidate.image: pair.line for pair in reversed(pairs) for candidate in (pair.correct, pair.incorrect)}
    stored = open_features(model, collection)
    if stored is None or not model.model.uses_image:
        return {image: new_item(None, image) for image in lines}
    known = {item.id: item for item in collection.items() if item.media_path is not None}
    items = {}
    for image, line in lines.items():
        location, file = SourceLocation(path, line), path.parent / image
        if image in known and not stored.covers(known[image]):
            raise FeatureError(f"{location}: item '{image}' has no features; run 'limner features' first")
        if image not in known and not file.is_file():
            raise CollectionError(
                f"{location}: expected the id of an item with an image in {collection.path} or a file beside "
                f"{path.name}, got '{image}'"
            )
        items[image] = known.get(image) or new_item(file)
    return items
