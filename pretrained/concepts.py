"""Concepts: a linear layer on the pooled features of the backbone for the things and words that people name.

    python pretrained/concepts.py COLLECTION --data FOLDER --out concepts.npz
    python pretrained/pack_concepts.py concepts.npz --collection COLLECTION --data FOLDER --out RUN

COLLECTION has the splits `train` and `val` of Flickr8k, with captions, and `pool`, with labels; FOLDER the detections
of the teacher (`pool/manifest.jsonl`, `pool/flickr8k_detections.jsonl.gz`). A concept is a thing of `things.tsv`,
a kind of things (animal, fruit, ...), or another word that captions of the training split use about enough photographs.

Targets of a photograph, between 0 and 1; what they leave open does not enter the loss:

- Flickr8k: a concept that one of the five captions names is true with 0.5, one that two name with 1; a detected thing
  with the score of the detection; every other concept is false.
- Pool: the thing of the label and its kinds are true, detected things with their score; a detection that competes
  with the label is left open (a fox is detected as a dog). The other things that have labels or detections are false.
  Words, and things without (snow), are left open, except that words for people and what people do are false where
  no person is detected.

Weights start from the classifier of the backbone, where a thing has classes of ImageNet, and are pulled towards it. The
logarithm of the probability of these classes is another input of a concept.
"""

from __future__ import annotations

import argparse
import csv
import functools
import gzip
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits

from limner.data.collection import Collection
from limner.data.items_table import Item
from limner.features.encoders.published_weights import read_weights
from limner.features.store import FeatureTable
from limner.runs.concepts import CLASS_FLOOR
from measure_photographs import content_words
from things import by_coco, by_label, mentions, names, things

BACKBONE = "efficientnet-lite2"
SURE, OPEN = 0.5, 0.25
"""Scores from which a detection is true, and from which it leaves a concept open."""
MIN_IMAGES = 25
"""Number of training photographs with a word from which it is a concept."""
SINGLE = 0.5
"""Target of a concept that a single caption names."""
PERSON_WORD = 0.85
"""Share of the photographs with a word that have people from which it is a word about people."""
UNTRUE = -1.0
"""Mark of a target that is open."""
CAPTIONED = ("train", "val")
"""Splits with human captions."""
DRAWN = "drawn"
"""Split of the generated images, in which no concept is true."""
PHOTOGRAPH = "photograph"
"""Concept that is true of every photograph, and of no drawing, screenshot or noise."""

Array = NDArray[np.float32]


class Photograph(NamedTuple):
    """What is known of a photograph."""

    id: str
    split: str
    label: str | None
    captions: tuple[str, ...]
    detections: tuple[tuple[str, float, tuple[float, float, float, float]], ...]


def read_photographs(collection: Path, data: Path, splits: Sequence[str]) -> list[Photograph]:
    """Read captions, labels and detections of the photographs of some splits."""
    found = read_detections(data)
    return [
        Photograph(item.id, split, item.label, _captions(item) if split in CAPTIONED else (), found.get(item.id, ()))
        for split in splits
        for item in Collection.open(collection).items(split)
    ]


def _captions(item: Item) -> tuple[str, ...]:
    return tuple(sentence.text for sentence in item.sentences)


def read_detections(data: Path) -> dict[str, Any]:
    """Read the detections of the teacher by the id of the item."""
    found = {}
    for prefix, name in (("pool-", "manifest.jsonl"), ("", "flickr8k_detections.jsonl.gz")):
        path = data / "pool" / name
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for line in lines:
                row = json.loads(line)
                boxes = tuple((name, score, tuple(box)) for name, score, box in row["detections"])
                found[prefix + row["file"].rsplit(".", 1)[0]] = boxes
    return found


def concept_names(photographs: Sequence[Photograph]) -> list[str]:
    """Return the nouns of all things, their kinds, and the frequent other words of the captions."""
    kinds = sorted({kind for thing in things().values() for kind in thing.kinds} - set(things()))
    counts = Counter(
        word for photograph in photographs for word in set().union(*map(content_words, photograph.captions))
    )
    known = {*things(), *kinds, *names()} - {"man", "woman", "boy", "girl", "child", "baby", "people"}
    words = sorted(word for word, count in counts.items() if count >= MIN_IMAGES and word not in known)
    return [*things(), *kinds, *(word for word in words if word != PHOTOGRAPH), PHOTOGRAPH]


def targets_of(photographs: Sequence[Photograph], concepts: Sequence[str]) -> Array:
    """Compute the target of each concept for each photograph, (N, C); UNTRUE where it is open."""
    index = {concept: column for column, concept in enumerate(concepts)}
    result = np.zeros((len(photographs), len(concepts)), np.float32)
    open_columns = [index[concept] for concept in concepts if concept not in _all_kinds() and not _is_labelled(concept)]
    for row, photograph in enumerate(photographs):
        if photograph.split == DRAWN:
            continue
        if photograph.label is not None:
            result[row, open_columns] = UNTRUE
            _set_label(result[row], photograph, index)
        _set_captions(result[row], photograph.captions, index)
        _set_detections(result[row], photograph, index)
        result[row, index[PHOTOGRAPH]] = 1.0
    _deny_people(result, photographs, concepts)
    return result


def _is_labelled(concept: str) -> bool:
    """Tell whether labels of the pool or detections would name a concept; of others the pool says nothing."""
    return concept in things() and bool(things()[concept].labels or things()[concept].coco)


@functools.cache
def _all_kinds() -> frozenset[str]:
    return frozenset(kind for thing in things().values() for kind in thing.kinds)


def _raise(row: Array, column: int | None, value: float) -> None:
    if column is not None:
        row[column] = max(row[column], value)


def _set_label(row: Array, photograph: Photograph, index: Mapping[str, int]) -> None:
    """Set the thing of the label and its kinds true, and things that share a word with it open."""
    assert photograph.label is not None
    thing = by_label()[photograph.label]
    said = {thing.noun, *thing.words}
    for other in things().values():
        if said & {other.noun, *other.words, *other.kinds}:
            row[index[other.noun]] = UNTRUE
    for kind in thing.kinds:
        _raise(row, index.get(kind), 1.0)
    row[index[thing.noun]] = 1.0


def _set_captions(row: Array, captions: Sequence[str], index: Mapping[str, int]) -> None:
    counts: Counter[str] = Counter()
    for caption in captions:
        nouns = {noun for mention in mentions(caption) for noun in mention.nouns}
        kinds = {kind for noun in nouns for kind in things()[noun].kinds}
        counts.update(nouns | kinds | content_words(caption))
    for concept, count in counts.items():
        _raise(row, index.get(concept), 1.0 if count > 1 else SINGLE)


def _set_detections(row: Array, photograph: Photograph, index: Mapping[str, int]) -> None:
    label = by_label()[photograph.label] if photograph.label is not None else None
    rival = set(label.kinds) & {"animal", "food", "vehicle", "fruit", "instrument"} if label else set()
    for name, score, _ in photograph.detections:
        thing = by_coco()[name]
        competes = bool(rival & set(thing.kinds)) and label is not None and thing.noun != label.noun
        if competes or score < SURE:
            if row[index[thing.noun]] == 0 and score >= OPEN:
                row[index[thing.noun]] = UNTRUE
        else:
            _raise(row, index[thing.noun], score)
            for kind in thing.kinds:
                _raise(row, index.get(kind), score)


def _deny_people(targets: Array, photographs: Sequence[Photograph], concepts: Sequence[str]) -> None:
    """Make words about people false in the photographs of the pool without a person."""
    person = concepts.index("person")
    captioned = np.array([bool(photograph.captions) for photograph in photographs])
    with_person = targets[captioned, person] > 0
    uses = targets[captioned] > 0
    rate = (uses & with_person[:, None]).sum(0) / np.maximum(uses.sum(0), 1)
    others = {*things(), PHOTOGRAPH}
    about = [column for column, concept in enumerate(concepts) if concept not in others and rate[column] >= PERSON_WORD]
    nobody = np.flatnonzero(~captioned & (targets[:, person] == 0))
    block = targets[np.ix_(nobody, about)]
    targets[np.ix_(nobody, about)] = np.where(block == UNTRUE, 0, block)


@functools.cache
def imagenet_classes() -> dict[str, list[int]]:
    """Read the classes of ImageNet of each usual noun: numbers and ranges such as '7-8,12'."""
    classes: dict[str, list[int]] = {}
    with Path(__file__).with_name("imagenet_nouns.tsv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            parts = (part.partition("-") for part in row["classes"].split(","))
            numbers = [number for first, _, last in parts for number in range(int(first), int(last or first) + 1)]
            classes.setdefault(row["en"].split("|")[0], []).extend(numbers)
    return classes


def prior_weights(concepts: Sequence[str]) -> Array:
    """Return rows of the classifier of the backbone for the things that have classes of ImageNet, (C, D)."""
    weights = read_weights(BACKBONE)["classifier.weight"]
    weights = weights - weights.mean(0)
    rows, by_noun = np.zeros((len(concepts), weights.shape[1]), np.float32), imagenet_classes()
    for column, concept in enumerate(concepts):
        if concept in things():
            classes = [number for word in {concept, *things()[concept].words} for number in by_noun.get(word, [])]
            if classes:
                rows[column] = weights[classes].mean(0) * (1 if len(classes) < 4 else 1.5)
    return rows


def classes_of(concepts: Sequence[str]) -> list[list[int]]:
    """Return the classes of ImageNet that are each thing, or a thing of each kind; none for other words."""
    by_noun, classes = imagenet_classes(), []
    for concept in concepts:
        named = {concept, *things()[concept].words} if concept in things() else set[str]()
        named |= {thing.noun for thing in things().values() if concept in thing.kinds}
        numbers = {number for word in named for number in by_noun.get(word, [])}
        classes.append(sorted(numbers) if concept != "person" else [])
    return classes


def log_probs_of_classes(features: Array, classes: Sequence[Sequence[int]]) -> Array:
    """Compute log sum_k p(k | x) over the classes of each concept, (N, C), of pooled features (N, D); 0 for none."""
    weights = read_weights(BACKBONE)
    logits = features @ weights["classifier.weight"].T + weights["classifier.bias"]
    probabilities = np.exp(logits - logits.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    columns = [
        np.log(np.clip(probabilities[:, numbers].sum(1), CLASS_FLOOR, 1 - CLASS_FLOOR))
        if numbers
        else np.zeros(len(features))
        for numbers in classes
    ]
    return np.stack(columns, 1).astype(np.float32)


def train(
    features: Array,
    of_classes: Array,
    targets: Array,
    concepts: Sequence[str],
    *,
    epochs: int = 12,
    decay: float = 3e-4,
    seed: int = 1,
) -> tuple[Array, Array, Array]:
    """Train weights (C, D), biases (C,) and gains (C,) by the cross entropy of the targets that are not open.

    Args:
        features: pooled features, (N, D).
        of_classes: what `log_probs_of_classes` returns, (N, C).
        targets: what `targets_of` returns, (N, C).
        concepts: names of the C concepts.
        epochs: passes over the photographs.
        decay: weight of the squared distance between the weights and the classifier of the backbone.
        seed: seed of the order and of dropout.
    """
    generator = torch.Generator().manual_seed(seed)
    prior = torch.from_numpy(prior_weights(concepts))
    x, z, y = torch.from_numpy(features), torch.from_numpy(of_classes), torch.from_numpy(targets)
    open_ = y == UNTRUE
    rate = torch.where(open_, 0, y).sum(0) / (~open_).sum(0).clamp(min=1)
    weight = prior.clone().requires_grad_()
    bias = (torch.logit(rate.clamp(1e-4, 0.9)) - (x @ prior.T).mean(0)).requires_grad_()
    gain = torch.full((len(concepts),), 0.5, requires_grad=True)
    with torch.no_grad():
        bias -= 0.5 * z.mean(0)
    optimizer = torch.optim.Adam([weight, bias, gain], lr=2e-3, betas=(0.9, 0.99))
    steps = epochs * (len(x) // 256)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps + 1)
    for epoch in range(epochs):
        order, total = torch.randperm(len(x), generator=generator), 0.0
        for rows in order[: len(x) // 256 * 256].split(256):
            batch = torch.dropout(x[rows], 0.2, True)
            mask = (~open_[rows]).float()
            logits = batch @ weight.T + bias + gain * z[rows]
            loss = binary_cross_entropy_with_logits(logits, y[rows].clamp(min=0), mask, reduction="sum")
            loss = loss / len(rows) + decay * (weight - prior).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach())
        print(f"epoch {epoch + 1}: loss {total / (len(x) // 256):.3f}", file=sys.stderr, flush=True)
    return weight.detach().numpy(), bias.detach().numpy(), gain.detach().numpy()


def average_precision(scores: Array, truth: NDArray[np.bool_]) -> float:
    """Compute the average precision of one concept; not a number without a true photograph."""
    if not truth.any():
        return float("nan")
    ordered = truth[np.argsort(-scores, kind="stable")]
    return float((np.cumsum(ordered) / np.arange(1, len(ordered) + 1))[ordered].mean())


def calibrate(logits: Array, targets: Array) -> tuple[Array, Array]:
    """Fit a scale and an offset of the logits of each concept (Platt), with the pooled scale as the prior."""
    z, y = torch.from_numpy(logits), torch.from_numpy(targets)
    mask = (y != UNTRUE).float()
    scale = torch.ones(z.shape[1], requires_grad=True)
    offset = torch.zeros(z.shape[1], requires_grad=True)
    optimizer = torch.optim.Adam([scale, offset], lr=0.02)
    for _ in range(200):
        loss = binary_cross_entropy_with_logits(z * scale + offset, y.clamp(min=0), mask, reduction="sum")
        loss = loss + 5 * (scale - 0.9).square().sum() + 2 * offset.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return scale.detach().numpy(), offset.detach().numpy()


def pooled_features(collection: Path, ids: Sequence[str]) -> Array:
    """Read the pooled features of some items, (N, D)."""
    table = FeatureTable.open(Collection.open(collection), BACKBONE)
    return np.asarray(table.take(list(ids)), np.float32).reshape(len(ids), -1)


def is_held_out(photograph: Photograph) -> bool:
    """Tell whether a photograph of the pool is kept for calibration: every tenth by the checksum of its id."""
    return photograph.split in ("pool", DRAWN) and sum(photograph.id.encode()) % 10 == 0


def main() -> None:
    """Train, calibrate and measure the concepts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collection", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--decay", type=float, default=3e-4)
    options = parser.parse_args()
    photographs = read_photographs(options.collection, options.data, ("train", "pool", "val", DRAWN))
    concepts = concept_names([one for one in photographs if one.split == "train"])
    targets = targets_of(photographs, concepts)
    features = pooled_features(options.collection, [one.id for one in photographs])
    held = np.array([one.split == "val" or is_held_out(one) for one in photographs])
    print(f"{len(concepts)} concepts, {(~held).sum()} photographs, {held.sum()} held out", file=sys.stderr)
    classes = classes_of(concepts)
    z = log_probs_of_classes(features, classes)
    weight, bias, gain = train(
        features[~held], z[~held], targets[~held], concepts, epochs=options.epochs, decay=options.decay
    )
    gain *= np.array([bool(numbers) for numbers in classes])
    logits = features[held] @ weight.T + bias + gain * z[held]
    scale, offset = calibrate(logits, targets[held])
    report(concepts, photographs, held, logits * scale + offset, targets)
    rate = np.where(targets == UNTRUE, 0, targets).sum(0) / np.maximum((targets != UNTRUE).sum(0), 1)
    layer = {"weight": weight * scale[:, None], "bias": bias * scale + offset, "gain": gain * scale}
    np.savez(options.out, concepts=np.array(concepts), rate=rate, **layer)


def report(
    concepts: Sequence[str], photographs: Sequence[Photograph], held: NDArray[np.bool_], logits: Array, targets: Array
) -> None:
    """Print the mean average precision of the groups of concepts, and the precision of the first concept."""
    truth = targets[held]
    coco = {thing.noun for thing in by_coco().values()}
    labels = {thing.noun for thing in by_label().values()}
    split = np.array([one.split for one in photographs])[held]
    for name in ("val", "pool"):
        rows = split == name
        groups = {"coco": [], "labels": [], "words": []}  # type: dict[str, list[float]]
        for column, concept in enumerate(concepts):
            known = truth[rows, column] != UNTRUE
            positive = truth[rows, column][known] >= 0.5
            if positive.sum() >= 3:
                value = average_precision(logits[rows, column][known], positive)
                group = "coco" if concept in coco else "labels" if concept in labels else "words"
                groups[group].append(value)
        print(
            name,
            {
                group: (len(values), round(100 * float(np.mean(values)), 1))
                for group, values in groups.items()
                if values
            },
        )
    columns = [column for column, concept in enumerate(concepts) if concept in things()]
    rows = split == "pool"
    first = np.array(columns)[logits[rows][:, columns].argmax(1)]
    print("pool, held out: first thing true", round(100 * float((truth[rows, first] != 0).mean()), 1))


if __name__ == "__main__":
    main()
