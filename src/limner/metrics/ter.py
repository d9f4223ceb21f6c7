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


@cache
def _cased() -> Sacrebleu:
    """TER of tokens, case-sensitive and without normalisation: words are separated by spaces alone."""
    from sacrebleu.metrics.ter import TER as Counter

    return Counter(case_sensitive=True)


@cache
def _default() -> Sacrebleu:
    """TER of running text with sacrebleu's defaults."""
    from sacrebleu.metrics.ter import TER as Counter

    return Counter()


TER = Metric(
    "ter",
    partial(sacrebleu_statistics, _cased),
    partial(sacrebleu_value, _cased),
    partial(sacrebleu_settings, "case:mixed|tok:given|norm:no|punct:yes|asian:no"),
    higher_is_better=False,
)
TER_TEXT = Metric(
    "ter_text",
    partial(sacrebleu_statistics, _default),
    partial(sacrebleu_value, _default),
    partial(sacrebleu_settings, "case:lc|tok:tercom|norm:no|punct:yes|asian:no"),
    reads="text",
    higher_is_better=False,
)
