"""Rewards of generated sentences in self-critical training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from limner.decoding.ranking import Hypothesis
from limner.metrics.bleu import bleu_statistics, sentence_bleu
from limner.metrics.cider import CiderD
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKEN_STRINGS, SPECIAL_TOKENS

EOS = SPECIAL_TOKEN_STRINGS[SPECIAL_TOKENS.eos]


class Reward:
    """Weighted sum of metrics of a generated sentence and the references of its item.

    A complete sentence ends with the end-of-sentence token, and so does every reference, also where the document
    frequencies are counted: without it, sentences that stop after "in a" or "with the" would lose nothing. A sentence
    that was cut off has no end.
    """

    def __init__(
        self,
        weights: Mapping[Literal["cider", "bleu4"], float],
        tokenizer: Tokenizer,
        references: Sequence[Sequence[str]],
    ) -> None:
        """Count the document frequencies of the references.

        Args:
            weights: weight of each metric, `cider` (1.0 is 100 on the scale of `METRICS`) or `bleu4` (0 to 1).
            tokenizer: tokenizer of the sentences.
            references: for each item its references as text.
        """
        self.weights, self.tokenizer = weights, tokenizer
        self.references = [[[*tokenizer.words(text), EOS] for text in own if text.strip()] for own in references]
        self.cider = CiderD(self.references) if "cider" in weights else None

    def __call__(self, items: Sequence[int], hypotheses: Sequence[Hypothesis]) -> list[float]:
        """Compute the reward of each hypothesis for the item of that index."""
        sentences = [[*self.tokenizer.decode(one.tokens).split(), *([EOS] if one.ended else [])] for one in hypotheses]
        rewards = [0.0] * len(items)
        for metric, weight in self.weights.items():
            values = self._cider(items, sentences) if metric == "cider" else self._bleu(items, sentences)
            rewards = [reward + weight * value for reward, value in zip(rewards, values, strict=True)]
        return rewards

    def _cider(self, items: Sequence[int], sentences: Sequence[list[str]]) -> list[float]:
        assert self.cider is not None
        return [self.cider.score(item, sentence) for item, sentence in zip(items, sentences, strict=True)]

    def _bleu(self, items: Sequence[int], sentences: Sequence[list[str]]) -> list[float]:
        references = [[" ".join(tokens) for tokens in self.references[item]] for item in items]
        statistics = bleu_statistics([" ".join(sentence) for sentence in sentences], references)
        return [float(value) / 100 for value in sentence_bleu(statistics)]
