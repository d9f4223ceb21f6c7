"""Generated collection of short reviews whose sentiment depends on negation and on the order of the words.

Every adjective and every other word occurs equally often in positive and in negative reviews, so that a classifier of
bags of words is at chance. Words stand between most negations and their adjectives, contrasts occur in both orders, and
the deciding clause comes first or last, so that classifiers of pairs of adjacent words stay far below 75 %. It needs
neither data nor network, and the same seed gives the same reviews. A review is a function of (seed, split, index) only;
the `label` of an item is its sentiment.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from limner.bounds import CountOrNone
from limner.data.collection import Collection
from limner.data.examples import Item, ItemSentence
from limner.progress import Progress
from limner.synthetic.storage import GeneratedSettings, generate_collection

EDITION = 2
"""Version of the generated reviews, increased when the same settings give other ones."""

SENTIMENTS = ("negative", "positive")
ADJECTIVES = (
    ("bad", "dull", "weak", "boring", "clumsy", "tired", "shallow", "awful", "stale", "lifeless"),
    ("good", "lively", "strong", "gripping", "clever", "fresh", "moving", "brilliant", "funny", "charming"),
)
"""Negative and positive adjectives."""
ASPECTS = ("plot", "acting", "music", "ending", "story", "cast", "dialogue", "camera work", "script", "pace")
OPENINGS = ("", "to be fair ,", "in my opinion ,", "seen from the back row ,", "after two hours ,", "all in all ,")

SIMPLE = (
    "the {aspect} is {a}",
    "the {aspect} is not {b}",
    "the {aspect} is not {b} but {a}",
    "the {aspect} seemed {b} at first and is {a} in the end",
)
"""Clauses in which pairs of adjacent words tell the sentiment."""
REMARKS = ("really", "very", "truly", ", as some say ,", ", to my mind ,", ", whatever the critics say ,")

CLAIMS = (
    ("the {aspect} is {remark} {x}", "the {aspect} is not {remark} {x}"),
    ("it is true that the {aspect} is {x}", "it is not true that the {aspect} is {x}"),
    ("it is not true that the {aspect} is not {remark} {x}", "it is true that the {aspect} is not {remark} {x}"),
    ("i think that the {aspect} is {remark} {x}", "i do not think that the {aspect} is {remark} {x}"),
    ("anybody would call the {aspect} {x}", "nobody would call the {aspect} {x}"),
    (
        "they call the {aspect} {remark} {x} , and they are right",
        "they call the {aspect} {remark} {x} , and they are wrong",
    ),
)
"""Pairs of clauses with an adjective {x}; the first has its sentiment and the second the opposite one."""
CONTRASTS = (
    "the {aspect} is not {remark} {b} , but {other} {a}",
    "the {aspect} is {remark} {a} , and not {other} {b}",
    "at first the {aspect} was {b} , and in the end it was {a}",
    "in the end the {aspect} was {a} , and at first it was {b}",
    "i expected the {aspect} to be {b} , and found it to be {a}",
    "i found the {aspect} to be {a} , and expected it to be {b}",
)
"""Clauses with an adjective {a} of their sentiment and one of the opposite sentiment {b}, each in both orders."""
CONCESSIONS = (
    "although {minor} , {major}",
    "{minor} , but {major}",
    "{major} , although {minor}",
    "{major} , even if {minor}",
)
"""Two clauses, of which the major one decides; it is the first as often as the second."""


class ReviewSettings(GeneratedSettings):
    """Size of the generated collection."""

    train: CountOrNone = 4000
    """Number of reviews in the split 'train'."""
    val: CountOrNone = 500
    """Number of reviews in the split 'val'."""
    test: CountOrNone = 500
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

    def make_item(split: str, index: int, _: Path) -> Item:
        text, label = write_review(settings.seed, split, index)
        return Item(f"{split}-{index:05d}", split, sentences=(ItemSentence("en", text),), label=label)

    return generate_collection(
        path, settings, make_item, kind="reviews", edition=EDITION, file_bytes=0, on_progress=on_progress
    )


def write_review(seed: int, split: str, index: int) -> tuple[str, str]:
    """Write a review; the sentiments alternate.

    Returns:
        Text, and label, one of `SENTIMENTS`.
    """
    rng = Random(f"{seed}/{split}/review/{index}")
    sentiment = index % 2
    text = _clause(rng, sentiment)
    if rng.random() < 0.5:
        text = rng.choice(CONCESSIONS).format(minor=_clause(rng, rng.randrange(2)), major=text)
    return " ".join(f"{rng.choice(OPENINGS)} {text} .".split()), SENTIMENTS[sentiment]


def _clause(rng: Random, sentiment: int) -> str:
    """Write a clause of a sentiment; three tenths are simple ones."""
    words = {"aspect": rng.choice(ASPECTS), "remark": rng.choice(REMARKS), "other": rng.choice(REMARKS)}
    kind = rng.random()
    if kind < 0.6:
        adjectives = {"a": rng.choice(ADJECTIVES[sentiment]), "b": rng.choice(ADJECTIVES[1 - sentiment])}
        return rng.choice(SIMPLE if kind < 0.3 else CONTRASTS).format(**words, **adjectives)
    negated = rng.randrange(2)
    return rng.choice(CLAIMS)[negated].format(**words, x=rng.choice(ADJECTIVES[sentiment ^ negated]))
