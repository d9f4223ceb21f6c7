"""Right and wrong words of a generated sentence, and the reference that is closest to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple

from limner.metrics import sentence_scores
from limner.text import scripts
from limner.text.labels import read_predictions

Mark = Literal["right", "wrong", ""]


class MarkedWord(NamedTuple):
    """A part of a sentence with its mark."""

    text: str
    mark: Mark = ""
    """Whether a reference has the word; empty for spaces, punctuation and words that are not marked."""


def words_of(text: str) -> list[str]:
    """Split a sentence into words in lower case, without punctuation; scripts without spaces into characters."""
    return [token.casefold() for token in scripts.split(text) if _is_word(token)]


def mark_words(text: str, references: Sequence[str], unmarked: Collection[str] = ()) -> list[MarkedWord]:
    """Mark the words of a sentence: right if a reference has them, else wrong.

    A word that occurs more often than in any one reference is right as often as it occurs there, as in BLEU.

    Args:
        text: sentence.
        references: reference sentences; without any, no word is marked.
        unmarked: words in lower case that are neither right nor wrong, such as articles.

    Returns:
        Parts of the sentence, which make up `text` when joined.
    """
    allowed: Counter[str] = Counter()
    for reference in references:
        allowed |= Counter(words_of(reference))
    parts, end = [], 0
    for token in scripts.split(text):
        start = text.index(token, end)
        if start > end:
            parts.append(MarkedWord(text[end:start]))
        end = start + len(token)
        word = token.casefold()
        if not references or not _is_word(token) or word in unmarked:
            parts.append(MarkedWord(token))
            continue
        allowed[word] -= 1
        parts.append(MarkedWord(token, "right" if allowed[word] >= 0 else "wrong"))
    if end < len(text):
        parts.append(MarkedWord(text[end:]))
    return parts


def mark_labels(text: str, references: Sequence[str]) -> list[MarkedWord]:
    """Mark labels with probabilities, as `positive (0.9312)`: right if the first reference has the label there."""
    right = references[0].split() if references else []
    parts: list[MarkedWord] = []
    for number, (label, probability) in enumerate(read_predictions(text)):
        is_right = number < len(right) and label == right[number]
        mark: Mark = "right" if is_right else "wrong" if right else ""
        parts += [MarkedWord(label, mark), MarkedWord(f" ({probability:.2f}) ")]
    return parts or [MarkedWord(text)]


def share_of_right_words(sentences: Iterable[Sequence[MarkedWord]]) -> float | None:
    """Compute the percentage of right words among the marked words; None if no word is marked."""
    counts = Counter(part.mark for parts in sentences for part in parts if part.mark)
    return 100 * counts["right"] / counts.total() if counts else None


def closest_reference(text: str, references: Sequence[str]) -> int | None:
    """Return the index of the reference with the highest smoothed sentence BLEU-4; None if none shares a word."""
    words = words_of(text)
    others = [words_of(reference) for reference in references]
    rows = [row for row, other in enumerate(others) if other and set(other) & set(words)]
    if not rows:
        return None
    scores = sentence_scores([" ".join(words)] * len(rows), [[" ".join(others[row])] for row in rows])
    return max(zip(scores, rows, strict=True), key=lambda pair: (pair[0], -pair[1]))[1]


def _is_word(token: str) -> bool:
    return any(character.isalnum() for character in token)
