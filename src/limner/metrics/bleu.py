"""Corpus BLEU: BLEU-1 to BLEU-4 of given tokens, and sacrebleu's BLEU of running text.

Both use sacrebleu's n-gram counts. BLEU-1 to BLEU-4 take tokens and are not smoothed, as in captioning papers (Mao et
al., 2015, section 9.3); sacrebleu's BLEU tokenises running text itself, so that systems with different tokenisation
are comparable, as in translation papers. The language decides how: by the rules of WMT (13a), by characters in Chinese
and in other scripts without spaces, by words of MeCab in Japanese and Korean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from limner.errors import MissingExtraError
from limner.metrics.base import Metric, References, Statistics

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as Sacrebleu

MAX_ORDER = 4
LANGUAGE_TOKENISERS = {
    **dict.fromkeys(("zh", "yue", "wuu"), "zh"),
    **dict.fromkeys(("th", "lo", "km", "my"), "char"),
    "ja": "ja-mecab",
    "ko": "ko-mecab",
}
"""Names of sacrebleu's tokenisers by language; 13a for all others."""
_DEFAULT = "13a"
_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}


@cache
def _tokens() -> Sacrebleu:
    """BLEU of tokens; created when first used, as sacrebleu takes time to import."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize="none", smooth_method="none", force=True, max_ngram_order=MAX_ORDER)


@cache
def _text(tokeniser: str) -> Sacrebleu:
    """BLEU of running text; `force` suppresses the warning about tokenised input, which the signature states.

    Raises:
        MissingExtraError: the tokeniser needs a dictionary that is not installed.
    """
    from sacrebleu.metrics.bleu import BLEU

    try:
        return BLEU(force=True, tokenize=tokeniser)
    except (RuntimeError, ImportError):
        if tokeniser not in _EXTRAS:
            raise
        purpose = f"BLEU with sacrebleu's tokeniser '{tokeniser}' (without it, use the metric sacrebleu_char)"
        raise MissingExtraError(purpose, _EXTRAS[tokeniser]) from None


def sacrebleu_statistics(
    counter: Callable[[], Sacrebleu], hypotheses: Sequence[str], references: References
) -> Statistics:
    """Compute the statistics of a sacrebleu metric for every segment, (N, k)."""
    streams = list(zip_longest(*references))  # transposed: the first references, the second ones, …, or None
    return np.asarray(counter()._extract_corpus_statistics(hypotheses, streams), dtype=np.float64)


def sacrebleu_value(counter: Callable[[], Sacrebleu], totals: Statistics) -> float:
    """Compute the score of a sacrebleu metric from summed statistics, (k,)."""
    return float(counter()._compute_score_from_stats(totals.tolist()).score)


def sacrebleu_settings(text: str) -> str:
    """Append the scale and the version of sacrebleu to a signature."""
    import sacrebleu

    return f"{text}|scale:0-100|sacrebleu:{sacrebleu.__version__}"


def bleu_statistics(hypotheses: Sequence[str], references: References) -> Statistics:
    """Count the n-grams of tokens joined by spaces.

    Returns:
        (N, 10): length c of the hypothesis, closest reference length r, number of matched 1- to 4-grams, number of all
        1- to 4-grams.
    """
    return sacrebleu_statistics(_tokens, hypotheses, references)


def bleu_value(order: int, totals: Statistics) -> float:
    """Compute BLEU-N, Mao et al. (2015), eqs. 8-9, times 100.

    Args:
        order: maximum n-gram order N.
        totals: summed statistics, (10,).
    """
    return _bleu(order, totals, smooth="none")


def sentence_bleu(statistics: Statistics) -> NDArray[np.float64]:
    """Compute BLEU-4 of every segment with sacrebleu's exponential smoothing and effective order.

    Args:
        statistics: statistics of `bleu_statistics`, (N, 10).

    Returns:
        (N,), 0-100.
    """
    return np.array([_bleu(MAX_ORDER, row, smooth="exp") for row in statistics])


def _bleu(order: int, totals: Statistics, smooth: str) -> float:
    from sacrebleu.metrics.bleu import BLEU

    counts = [int(count) for count in totals]
    score = BLEU.compute_bleu(
        correct=counts[2 : 2 + order],
        total=counts[2 + MAX_ORDER : 2 + MAX_ORDER + order],
        sys_len=counts[0],
        ref_len=counts[1],
        smooth_method=smooth,
        effective_order=smooth != "none",
        max_ngram_order=order,
    )
    return float(score.score)


_GIVEN = "case:asis|eff:no|tok:given|smooth:none|reflen:closest"

BLEU_METRICS = tuple(
    Metric(
        f"bleu{order}",
        bleu_statistics,
        partial(bleu_value, order),
        partial(sacrebleu_settings, f"n:{order}|{_GIVEN}"),
    )
    for order in range(1, MAX_ORDER + 1)
)


@cache
def _sacrebleu(name: str, tokeniser: str) -> Metric:
    counter = partial(_text, tokeniser)
    return Metric(
        name,
        partial(sacrebleu_statistics, counter),
        partial(sacrebleu_value, counter),
        partial(sacrebleu_settings, f"n:4|case:mixed|eff:no|tok:{tokeniser}|smooth:exp|reflen:closest"),
        reads="text",
    )


def sacrebleu_in(lang: str) -> Metric:
    """Return BLEU of running text with sacrebleu's tokeniser for a language."""
    return _sacrebleu("sacrebleu", LANGUAGE_TOKENISERS.get(lang, _DEFAULT))


SACREBLEU = sacrebleu_in("en")
SACREBLEU_BY_TOKENISER = tuple(
    _sacrebleu(f"sacrebleu_{tokeniser}", tokeniser) for tokeniser in ("13a", "intl", "zh", "char", *_EXTRAS)
)
"""BLEU of running text with a given tokeniser, whatever the language."""
