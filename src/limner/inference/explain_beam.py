"""Explanation of a beam search: the tree of all hypotheses, recorded while the search runs, and the final ranking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from limner.data.dataset import FeatureSource, GenerationInput
from limner.decoding.search import Beam
from limner.decoding.selection import Choice, normalised_log_prob
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings
from limner.errors import SettingsError
from limner.inference.generate import generate
from limner.runs.trained_model import TrainedModel
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS

Outcome = Literal["continued", "dropped", "complete", "cut off", "open"]
"""Outcome of a hypothesis: it was continued; none of its continuations entered the next beam; it ended; it reached the
maximum length; or the search stopped while it was in the beam."""


@dataclass(slots=True)
class BeamNode:
    """A hypothesis that was in the beam, or was completed."""

    parent: int | None
    """Index of the hypothesis that it continues; None for the root."""
    token: int
    """Last token; begin-of-sentence for the root."""
    log_prob: float
    """Log-probability of the last token given the tokens before; for the root, the log-probability of the prefix."""
    total: float
    """Log-probability of the hypothesis."""
    length: int
    """Number of tokens, the end-of-sentence token included."""
    outcome: Outcome


class RankedNode(NamedTuple):
    """A hypothesis of the final ranking."""

    node: int
    """Index of the hypothesis in the tree."""
    score: float
    """Score that hypotheses are ranked by; see `DecodingSettings`."""


@dataclass
class BeamTree:
    """All hypotheses that were ever in the beam of one example; a parent precedes its children."""

    prefix: tuple[int, ...] = ()
    """Tokens of the root: the prefix that every hypothesis starts with."""
    nodes: list[BeamNode] = field(default_factory=list)
    """Hypotheses in the order of the search, the root first."""

    def tokens(self, node: int) -> tuple[int, ...]:
        """Tokens of a hypothesis, prefix and end-of-sentence token included."""
        reversed_tokens = [self.nodes[number].token for number in self.path(node)[:0:-1]]
        return (*self.prefix, *reversed(reversed_tokens))

    def path(self, node: int) -> list[int]:
        """Indices of the hypotheses from the root to a node."""
        numbers = [node]
        while (parent := self.nodes[numbers[-1]].parent) is not None:
            numbers.append(parent)
        return numbers[::-1]

    def ranking(self, settings: DecodingSettings) -> list[RankedNode]:
        """Rank the complete and the cut-off hypotheses as the search does."""
        ranked = [
            RankedNode(number, normalised_log_prob(node.total, node.length, settings.length_penalty))
            for number, node in enumerate(self.nodes)
            if node.outcome in ("complete", "cut off")
        ]
        return sorted(ranked, key=lambda node: -node.score)


class BeamRecorder:
    """Trace of a search that builds the tree of every example of a batch."""

    def __init__(self, count: int) -> None:
        """Start with empty trees for `count` examples."""
        self.trees = [BeamTree() for _ in range(count)]
        self._rows: list[list[int | None]] = [[] for _ in range(count)]  # node of each row of the current beam

    def __call__(self, beam: Beam, choice: Choice | None) -> None:
        """Record one step; see `limner.decoding.search.Trace`."""
        for n, example in enumerate(beam.live):
            tree = self.trees[example]
            if not tree.nodes:  # the root: the first hypothesis, which has read the common part of the prefixes
                total, tree.prefix = float(beam.total[n, 0]), tuple(beam.tokens[n, 0].tolist())
                tree.nodes.append(BeamNode(None, SPECIAL_TOKENS.bos, total, total, len(tree.prefix), "open"))
                self._rows[example] = [0] * beam.total.shape[1]
            rows = self._rows[example]
            for row in rows:
                if row is not None:  # dropped unless a continuation follows below
                    tree.nodes[row].outcome = "cut off" if choice is None else "dropped"
            if choice is None:
                continue
            completed = zip(choice.ends[n], choice.end_parent[n].tolist(), choice.end_total[n].tolist(), strict=True)
            for end, parent, total in completed:
                if end:
                    self._add(example, rows[parent], SPECIAL_TOKENS.eos, total, "complete")
            following = zip(choice.parent[n].tolist(), choice.token[n].tolist(), choice.total[n].tolist(), strict=True)
            self._rows[example] = [
                self._add(example, rows[parent], token, total, "open") for parent, token, total in following
            ]

    def _add(self, example: int, parent: int | None, token: int, total: float, outcome: Outcome) -> int | None:
        """Add a hypothesis and return its index; None for an entry without a hypothesis."""
        if total == -math.inf or parent is None:
            return None
        nodes = self.trees[example].nodes
        before = nodes[parent]
        before.outcome = "continued"
        nodes.append(BeamNode(parent, token, total - before.total, total, before.length + 1, outcome))
        return len(nodes) - 1


@dataclass(frozen=True)
class BeamExplanation:
    """Tree of the beam search of one caption or translation."""

    tree: BeamTree
    """All hypotheses that were ever in the beam."""
    ranking: list[RankedNode]
    """Complete and cut-off hypotheses, best first."""
    hypotheses: list[Sentence]
    """The `n_best` hypotheses that the search returned."""
    settings: DecodingSettings
    """Settings of the search."""
    tokenizer: Tokenizer
    """Tokenizer of the hypotheses."""

    @property
    def words(self) -> list[str]:
        """Last token of each hypothesis as text; the prefix at the root."""
        root = self.tokenizer.decode(self.tree.prefix) or self.tokenizer.entries[SPECIAL_TOKENS.bos]
        return [root, *(self.tokenizer.entries[node.token] for node in self.tree.nodes[1:])]

    def sentence(self, node: int) -> str:
        """Return a hypothesis as text."""
        return self.tokenizer.decode(self.tree.tokens(node), detokenise=True)

    def to_json(self) -> dict[str, Any]:
        """Return the tree and the ranking as plain values; a hypothesis names its parent by number."""
        nodes = [
            {
                "parent": node.parent,
                "word": word,
                "log_prob": node.log_prob,
                "total": node.total,
                "length": node.length,
                "outcome": node.outcome,
            }
            for node, word in zip(self.tree.nodes, self.words, strict=True)
        ]
        ranking = [{"node": number, "score": score, "text": self.sentence(number)} for number, score in self.ranking]
        return {"decoding": self.settings.model_dump(mode="json"), "hypotheses": nodes, "ranking": ranking}


def explain_beam(
    models: Sequence[TrainedModel],
    source: GenerationInput,
    features: FeatureSource | None,
    settings: DecodingSettings,
    prefix: str | None = None,
) -> BeamExplanation:
    """Decode an input and record its beam; arguments as of `generate`; SettingsError for settings that sample."""
    if settings.sample is not None:
        raise SettingsError("sampling has no beam to explain; leave out decoding.sample")
    recorder = BeamRecorder(1)
    prefixes = None if prefix is None else [prefix]
    (hypotheses,) = generate(models, [source], features, settings, prefixes=prefixes, trace=recorder)
    (tree,) = recorder.trees
    return BeamExplanation(tree, tree.ranking(settings), hypotheses, settings, models[0].tokenizer)
