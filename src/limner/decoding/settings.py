"""Settings of beam search and sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import model_validator

from limner.bounds import BeamSize, Count, Length, LengthOrNone, LengthPenalty, PositiveShare, Seed, Temperature
from limner.settings import Settings


class SampleSettings(Settings):
    """Draw tokens at random instead of taking the most probable tokens."""

    temperature: Temperature = 1.0
    """Divisor of the log-probabilities: below 1 probable tokens are drawn more often, above 1 less often."""
    top_k: Count | None = None
    """Number of most probable tokens to draw from; null for all."""
    top_p: PositiveShare | None = None
    """Probability mass of the most probable tokens to draw from (Holtzman et al., 2020); null for all."""
    seed: Seed = 0
    """Random seed; with the id of an example it determines the draws, whatever the batch."""
    greedy_first: bool = False
    """Whether the first sentence of each example is decoded greedily, as the baseline of self-critical training, and
    only the other sentences are drawn."""


class DecodingSettings(Settings):
    """Settings of decoding; hypotheses are ranked by log_prob / length ** length_penalty.

    The length counts the tokens and the end-of-sentence token, that is, the factors of the probability.
    """

    beam_size: BeamSize = 1
    """Number of hypotheses of an example after every step (1: greedy search), or of samples of an example."""
    n_best: BeamSize = 1
    """Number of hypotheses returned for an example, best first; at most `beam_size`."""
    stop: Literal["full", "shrink", "improve"] = "full"
    """How a beam of K hypotheses comes to K complete ones, at which the search stops. full: K hypotheses continue after
    every step, and of the 2K best continuations those that end within the first K are complete, as in fairseq and
    transformers. shrink: each complete hypothesis reduces the beam by one, as in GroundHog (Bahdanau et al., 2015),
    dl4mt-tutorial, Nematus and arctic-captions (Xu et al., 2015). improve: as full, but the search goes on until no
    hypothesis has a better score, at its length, than the last of the K best complete ones, as in transformers with
    `early_stopping: false`. Without effect on greedy search and sampling."""
    length_penalty: LengthPenalty = 0.0
    """Exponent of the length: 0 ranks by log-probability, 1 by its mean over the tokens; higher favours long texts."""
    min_length: LengthOrNone = 0
    """Minimum length in tokens, without the end-of-sentence token."""
    max_length: Length = 50
    """Maximum length in tokens, the prefix included; longer sentences are cut off."""
    no_repeat_ngram_size: LengthOrNone = 0
    """Size n of the n-grams that occur at most once in a sentence, as in transformers; 0: no limit. A prefix may repeat
    them."""
    ban_unknown: bool = False
    """Whether <unk> is never generated; a prefix may contain it."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Data type of matrix products: bf16 is faster and may occasionally change a token."""
    sample: SampleSettings | None = None
    """Settings of sampling; null for beam search."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.n_best > self.beam_size:
            raise ValueError(f"n_best {self.n_best} is above beam_size {self.beam_size}: raise beam_size")
        if self.min_length > self.max_length:
            raise ValueError(f"min_length {self.min_length} is above max_length {self.max_length}")
        return self

    @property
    def signature(self) -> str:
        """Beam size, length penalty and all settings that differ from their defaults, for signatures of scores."""
        parts = [f"beam{self.beam_size}", f"penalty{self.length_penalty:g}"]
        changed = self.model_dump(exclude_defaults=True, exclude={"beam_size", "length_penalty", "sample"})
        parts += [key if value is True else f"{key}{value}" for key, value in changed.items()]
        if self.sample is not None:
            sampling = self.sample.model_dump(exclude_none=True, exclude={"greedy_first"})
            parts += ["sample", *(f"{key}{value:g}" for key, value in sampling.items())]
        return ",".join(parts)


def change_decoding(default: DecodingSettings, changes: Mapping[str, Any]) -> DecodingSettings:
    """Return decoding settings with some values changed; `beam_size` is raised to `n_best` unless it is given.

    Raises:
        SettingsError: a name is unknown or a value is not allowed.
    """
    if not changes:
        return default
    changes = dict(changes)
    if "n_best" in changes and "beam_size" not in changes:
        changes["beam_size"] = max(default.beam_size, changes["n_best"])
    return DecodingSettings.parse({**default.model_dump(), **changes}, where="decoding")
