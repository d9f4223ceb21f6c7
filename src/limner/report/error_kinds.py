"""Errors of generated sentences grouped by kind: objects, colours, counts, relations and other words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from limner.report.word_kinds import Kind, Lexicon
from limner.report.word_marks import words_of

LABELS: dict[Kind, str] = {
    "object": "Object",
    "colour": "Colour",
    "count": "Count",
    "relation": "Relation",
    "other": "Other word",
}
"""Labels of the kinds, in the order of the report."""
SHOWN_CONFUSIONS = 6
"""Number of confusions shown for each kind."""
MIN_CONFUSED = 2
"""Smallest number of sentences with a confusion that is shown."""


class SentenceErrors(NamedTuple):
    """Words of one sentence that disagree with its references, by kind."""

    wrong: Mapping[Kind, tuple[str, ...]]
    """Words of the sentence that no reference has."""
    missing: Mapping[Kind, tuple[str, ...]]
    """Words of all references that the sentence lacks, in their basic form."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds with an error."""
        return tuple(kind for kind in LABELS if kind in self.wrong or kind in self.missing)


class ErrorGroup(NamedTuple):
    """The errors of one kind in a split."""

    kind: Kind
    label: str
    sentences: int
    """Number of sentences with an error of this kind."""
    percentage: float
    """Percentage of the sentences."""
    confusions: tuple[tuple[str, str, int], ...]
    """Most frequent pairs of a wrong and a missing word, with the number of sentences."""


def find_errors(hypothesis: str, references: Sequence[str], lexicon: Lexicon) -> SentenceErrors:
    """Compare the words of a sentence with its references, in their basic forms.

    A word is wrong if no reference has it, and missing if all references have it and the sentence has not. A plural in
    place of a singular, or the reverse, is an error of count.

    Args:
        hypothesis: generated sentence.
        references: one reference or more.
        lexicon: kinds of the words.
    """
    own = words_of(hypothesis)
    others = [words_of(reference) for reference in references]
    forms = {word for words in others for word in words}
    basic = [{lexicon.basic_form(word) for word in words} for words in others]
    known, shared = set().union(*basic), set.intersection(*basic) if basic else set()
    wrong: dict[Kind, dict[str, None]] = {}
    for word in own:
        kind = lexicon.kind(word)
        if kind is None or word in forms:
            continue
        if lexicon.basic_form(word) not in known:
            wrong.setdefault(kind, {})[word] = None
        elif kind == "object":
            wrong.setdefault("count", {})[word] = None
    missing: dict[Kind, list[str]] = {}
    for word in sorted(shared - {lexicon.basic_form(word) for word in own}):
        if (kind := lexicon.kind(word)) is not None:
            missing.setdefault(kind, []).append(word)
    return SentenceErrors(
        {kind: tuple(words) for kind, words in wrong.items()}, {kind: tuple(words) for kind, words in missing.items()}
    )


def group_errors(sentences: Sequence[SentenceErrors]) -> list[ErrorGroup]:
    """Count the sentences with errors of each kind, and the words that are confused."""
    groups = []
    for kind, label in LABELS.items():
        count = sum(kind in errors.kinds for errors in sentences)
        confusions: Counter[tuple[str, str]] = Counter()
        for errors in sentences:
            wrong, missing = errors.wrong.get(kind, ()), errors.missing.get(kind, ())
            if len(wrong) == len(missing) == 1:
                confusions[wrong[0], missing[0]] += 1
        most = sorted(confusions.items(), key=lambda entry: (-entry[1], entry[0]))[:SHOWN_CONFUSIONS]
        percentage = 100 * count / len(sentences) if sentences else 0.0
        pairs = tuple((*words, times) for words, times in most if times >= MIN_CONFUSED)
        groups.append(ErrorGroup(kind, label, count, percentage, pairs))
    return groups
