"""Counts, by reason, of entries that a command skips or that are doubtful, so that none is skipped or kept silently."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

MAX_EXAMPLES = 3
"""Maximum number of names that are reported for each reason."""
FEW_ITEMS = 10
"""Splits with fewer items, or sentences, are noted: their scores are mostly chance."""


@dataclass(slots=True)
class Tally:
    """Counts by reason, with some names. A reason is a plural noun phrase, as 'sentences whose image is missing'."""

    skipped: Counter[str] = field(default_factory=Counter)
    """Number of entries left out, by reason."""
    noted: Counter[str] = field(default_factory=Counter)
    """Number of entries that are used although they may be a mistake, and of files that are no entries, by reason."""
    examples: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Some names by reason."""

    def skip(self, reason: str, name: str = "", count: int = 1) -> None:
        """Count entries that are left out."""
        self._add(self.skipped, reason, name, count)

    def note(self, reason: str, name: str = "", count: int = 1) -> None:
        """Count doubtful entries that are kept, or files that are no entries."""
        self._add(self.noted, reason, name, count)

    def note_few(self, split: str, count: int, unit: str) -> None:
        """Note a split that is too small to measure anything on."""
        if count < FEW_ITEMS:
            self.note(f"{unit} in split '{split}': too few to choose a model by, or to measure it", "", count)

    def lines(self, split: str = "") -> list[str]:
        """One line of text for each reason, most frequent first, entries left out before the others.

        For a log of several splits, each line names the split, and does not begin with 'note'.
        """
        place = f"split '{split}'"
        skipped = [f"skipped {self._line(reason, count)}" for reason, count in self.skipped.most_common()]
        noted = [self._line(reason, count) for reason, count in self.noted.most_common()]
        if not split:
            return skipped + [f"note: {line}" for line in noted]
        return [line if place in line else f"{place}: {line}" for line in skipped + noted]

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Counts and names as plain values, for JSON."""
        return {"skipped": dict(self.skipped), "noted": dict(self.noted), "examples": dict(self.examples)}

    def _add(self, counts: Counter[str], reason: str, name: str, count: int) -> None:
        if count:
            counts[reason] += count
            known = self.examples.setdefault(reason, ())
            if name and len(known) < MAX_EXAMPLES and name not in known:
                self.examples[reason] = (*known, name)

    def _line(self, reason: str, count: int) -> str:
        names = "; ".join(self.examples[reason])
        return f"{count:,} {reason}{f', for example {names}' if names else ''}"
