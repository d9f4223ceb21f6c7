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
from limner.data.examples import Item, ItemSentence
from limner.files.yaml_text import read_resource
from limner.synthetic.storage import GeneratedSettings

SENTIMENTS = ("negative", "positive")
_TEXTS = read_resource("limner.synthetic", "reviews.yaml")


class ReviewSettings(GeneratedSettings):
    """Size of a generated collection of reviews."""

    kind, edition = "reviews", 2

    train: CountOrNone = 4000
    val: CountOrNone = 500
    test: CountOrNone = 500

    def make_item(self, split: str, index: int, folder: Path) -> Item:
        text, label = write_review(self.seed, split, index)
        return Item(f"{split}-{index:05d}", split, sentences=(ItemSentence("en", text),), label=label)


def write_review(seed: int, split: str, index: int) -> tuple[str, str]:
    """Write a review; return its text and its label, one of `SENTIMENTS`, which alternate."""
    rng = Random(f"{seed}/{split}/review/{index}")
    sentiment = index % 2
    text = _clause(rng, sentiment)
    if rng.random() < 0.5:
        text = rng.choice(_TEXTS["concessions"]).format(minor=_clause(rng, rng.randrange(2)), major=text)
    return " ".join(f"{rng.choice(_TEXTS['openings'])} {text} .".split()), SENTIMENTS[sentiment]


def _clause(rng: Random, sentiment: int) -> str:
    """Write a clause of a sentiment; three tenths are simple clauses."""
    aspects, remarks, adjectives = (_TEXTS[key] for key in ("aspects", "remarks", "adjectives"))
    words = {"aspect": rng.choice(aspects), "remark": rng.choice(remarks), "other": rng.choice(remarks)}
    kind = rng.random()
    if kind < 0.6:
        words |= {"a": rng.choice(adjectives[sentiment]), "b": rng.choice(adjectives[1 - sentiment])}
        template: str = rng.choice(_TEXTS["simple" if kind < 0.3 else "contrasts"])
        return template.format(**words)
    negated = rng.randrange(2)
    claim: str = rng.choice(_TEXTS["claims"])[negated]
    return claim.format(**words, x=rng.choice(adjectives[sentiment ^ negated]))
