"""Translation edit rate (Snover et al., 2006), computed by sacrebleu; lower is better.

TER is the number of insertions, deletions, substitutions and phrase shifts in percent of the mean reference length; it
can exceed 100.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

from limner.metrics.base import Metric
from limner.metrics.bleu import sacrebleu_settings, sacrebleu_statistics, sacrebleu_value

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as Sacrebleu

ASIAN_LANGUAGES = ("zh", "yue", "wuu", "ja")
"""Languages with the characters that sacrebleu's TER can split."""


@cache
def _cased() -> Sacrebleu:
    """TER of tokens, case-sensitive and without normalisation: words are separated by spaces alone."""
    from sacrebleu.metrics.ter import TER as Counter

    return Counter(case_sensitive=True)


@cache
def _default(characters: bool) -> Sacrebleu:
    """TER of running text with sacrebleu's defaults, or with Chinese and Japanese split into characters."""
    from sacrebleu.metrics.ter import TER as Counter

    return Counter(normalized=characters, asian_support=characters)


TER = Metric(
    "ter",
    partial(sacrebleu_statistics, _cased),
    partial(sacrebleu_value, _cased),
    partial(sacrebleu_settings, "case:mixed|tok:given|norm:no|punct:yes|asian:no"),
    higher_is_better=False,
)


def ter_text_in(lang: str) -> Metric:
    """Return TER of running text for a language; the edits of Chinese and Japanese are of characters."""
    return _ter_text(lang in ASIAN_LANGUAGES)


@cache
def _ter_text(characters: bool) -> Metric:
    counter, state = partial(_default, characters), "yes" if characters else "no"
    return Metric(
        "ter_text",
        partial(sacrebleu_statistics, counter),
        partial(sacrebleu_value, counter),
        partial(sacrebleu_settings, f"case:lc|tok:tercom|norm:{state}|punct:yes|asian:{state}"),
        reads="text",
        higher_is_better=False,
    )


TER_TEXT = ter_text_in("en")
