"""Translation edit rate (Snover et al., 2006), computed by sacrebleu; lower is better.

TER is the number of insertions, deletions, substitutions and phrase shifts in percent of the mean reference length; it
can exceed 100.
"""

from __future__ import annotations

from functools import partial

from sacrebleu.metrics.ter import TER as Counter

from limner.metrics.base import Metric
from limner.metrics.bleu import sacrebleu_settings, sacrebleu_statistics, sacrebleu_value

_CASED = Counter(case_sensitive=True)  # not normalised: tokens are separated by spaces
_USUAL = Counter()

TER = Metric(
    "ter",
    partial(sacrebleu_statistics, _CASED),
    partial(sacrebleu_value, _CASED),
    partial(sacrebleu_settings, "case:mixed|tok:given|norm:no|punct:yes|asian:no"),
    higher_is_better=False,
)
TER_TEXT = Metric(
    "ter_text",
    partial(sacrebleu_statistics, _USUAL),
    partial(sacrebleu_value, _USUAL),
    partial(sacrebleu_settings, "case:lc|tok:tercom|norm:no|punct:yes|asian:no"),
    reads="text",
    higher_is_better=False,
)
