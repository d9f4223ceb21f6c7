"""Generated collection of short reviews whose sentiment depends on negation and on the order of the words.

Every adjective and every other word occurs equally often in positive and in negative reviews, so that a classifier of
bags of words is at chance. It needs neither data nor network, and the same seed gives the same reviews. A review is a
function of (seed, split, index) only; the `label` of an item is its sentiment.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from pydantic import Field

from limner.data.collection import Collection
from limner.data.examples import Item, Sentence
from limner.errors import CollectionError
from limner.progress import Progress
from limner.settings import Settings
from limner.synthetic.storage import matches_record, write_collection

RECORD = "reviews.json"
EDITION = 1
"""Version of the generated reviews, increased when the same settings give other ones."""

SENTIMENTS = ("negative", "positive")
ADJECTIVES = (
    ("bad", "dull", "weak", "boring", "clumsy", "tired", "shallow", "awful", "stale", "lifeless"),
    ("good", "lively", "strong", "gripping", "clever", "fresh", "moving", "brilliant", "funny", "charming"),
)
"""Negative and positive adjectives."""
ASPECTS = ("plot", "acting", "music", "ending", "story", "cast", "dialogue", "camera work", "script", "pace")
OPENINGS = ("", "to be fair ,", "in my opinion ,", "seen from the back row ,", "after two hours ,", "all in all ,")


TEMPLATES = (
    "the {aspect} is {a}",
    "the {aspect} is not {b}",
    "the {aspect} is {a} and not {b}",
    "the {aspect} is not {b} but {a}",
    "the {aspect} seemed {b} at first and is {a} in the end",
    "i expected the {aspect} to be {b} and found it {a}",
    "nobody would call the {aspect} {b}",
    "anybody would call the {aspect} {a}",
    "it is not true that the {aspect} is not {a}",
    "it is true that the {aspect} is not {b}",
)
"""Clauses with an adjective {a} of their sentiment, one of the opposite sentiment {b}, or both."""
CONCESSION = "although {first} , {second}"
"""Two clauses, of which the second decides."""


class ReviewSettings(Settings):
    """Size of the generated collection."""

    seed: int = 0
    """Random seed."""
    train: int = Field(default=4000, ge=0)
    """Number of reviews in the split 'train'."""
    val: int = Field(default=500, ge=0)
    """Number of reviews in the split 'val'."""
    test: int = Field(default=500, ge=0)
    """Number of reviews in the split 'test'."""


def generate_reviews(path: Path | str, settings: ReviewSettings, on_progress: Progress | None = None) -> Collection:
    """Generate a collection of reviews; an existing collection of the same settings is opened unchanged.

    Args:
        path: folder of the collection.
        settings: size of the collection.
        on_progress: called with the number of reviews written and their total number.

    Raises:
        CollectionError: the folder has other contents, or the settings specify no reviews.
    """
    path = Path(path)
    record = json.dumps({"edition": EDITION, **settings.model_dump()}, indent=1)
    if matches_record(path, RECORD, record):
        return Collection.open(path)
    items = []
    for split in ("train", "val", "test"):
        for index in range(getattr(settings, split)):
            text, label = write_review(settings.seed, split, index)
            items.append(Item(f"{split}-{index:05d}", split, sentences=(Sentence("en", text),), label=label))
    if not items:
        raise CollectionError(f"{path}: the settings specify no reviews; set train, val or test")
    with TemporaryDirectory(prefix="limner-reviews-") as temporary:
        collection = write_collection(path, items, {}, Path(temporary, RECORD), record)
    if on_progress:
        on_progress(len(items), len(items))
    return collection


def write_review(seed: int, split: str, index: int) -> tuple[str, str]:
    """Write a review; the sentiments alternate.

    Returns:
        Text, and label, one of `SENTIMENTS`.
    """
    rng = Random(f"{seed}/{split}/review/{index}")
    sentiment = index % 2
    clause = _clause(rng, sentiment)
    if rng.random() < 0.5:
        clause = CONCESSION.format(first=_clause(rng, rng.randrange(2)), second=clause)
    return f"{rng.choice(OPENINGS)} {clause} .".strip(), SENTIMENTS[sentiment]


def _clause(rng: Random, sentiment: int) -> str:
    """Write a clause of a sentiment."""
    adjectives = {"a": rng.choice(ADJECTIVES[sentiment]), "b": rng.choice(ADJECTIVES[1 - sentiment])}
    return rng.choice(TEMPLATES).format(aspect=rng.choice(ASPECTS), **adjectives)
