"""Explanation of a beam search: all hypotheses as a tree with the words of the model, and the final ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from limner.data.dataset import FeatureSource, GenerationInput
from limner.decoding.beam_tree import BeamRecorder, BeamTree, RankedNode
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings
from limner.errors import SettingsError
from limner.inference.generate import generate
from limner.runs.trained_model import TrainedModel
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS


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
    """Decode one input and record its beam.

    Args:
        models: one model, or several as an ensemble.
        source: image to describe, or source sentence to translate.
        features: features of the image; None for models that use none.
        settings: decoding settings.
        prefix: words that the sentence starts with; None for none.

    Raises:
        SettingsError: the settings sample, so that there is no beam.
    """
    if settings.sample is not None:
        raise SettingsError("sampling has no beam to explain; leave out decoding.sample")
    recorder = BeamRecorder(1)
    prefixes = None if prefix is None else [prefix]
    (hypotheses,) = generate(models, [source], features, settings, prefixes=prefixes, trace=recorder)
    (tree,) = recorder.trees
    return BeamExplanation(tree, tree.ranking(settings), hypotheses, settings, models[0].tokenizer)
