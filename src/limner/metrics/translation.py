"""BLEU, chrF and TER, computed by sacrebleu.

BLEU-1 to BLEU-4 take tokens and are not smoothed, as in captioning papers (Mao et al., 2015, section 9.3); sacrebleu's
BLEU tokenises running text itself, so that systems with different tokenisation are comparable, as in translation
papers. The language decides how: by the rules of WMT (13a), by characters in Chinese and in other scripts without
spaces, by words of MeCab in Japanese and Korean.

chrF (Popović, 2015) is the F-beta score of the precision and the recall of character n-grams, each averaged over the
orders 1 to 6; recall has beta times the weight of precision: chrF2 of running text, chrF3 of tokens as in Calixto et
al. (2017). Spaces are not counted as characters, so the scores of tokens and of running text differ only if
detokenisation changes more than spaces; `chrf3_spaces` counts them (`space:yes`).

TER (Snover et al., 2006) is the number of insertions, deletions, substitutions and phrase shifts in percent of the mean
reference length; it can exceed 100, and lower is better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

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
ASIAN_LANGUAGES = ("zh", "yue", "wuu", "ja")  # languages with the characters that sacrebleu's TER can split
CHARACTER_ORDERS = 6  # maximum order of the character n-grams of chrF
_EXTRAS = {"ja-mecab": "ja", "ko-mecab": "ko"}


@cache
def _counter(name: str, **settings: Any) -> Sacrebleu:  # noqa: ANN401
    """Create a metric of sacrebleu when it is first used, as sacrebleu takes time to import."""
    from sacrebleu import metrics

    try:
        counter: Sacrebleu = getattr(metrics, name)(**settings)
    except (RuntimeError, ImportError):
        tokeniser = settings.get("tokenize", "")
        if tokeniser not in _EXTRAS:
            raise
        purpose = f"BLEU with sacrebleu's tokeniser '{tokeniser}' (without it, use the metric sacrebleu_char)"
        raise MissingExtraError(purpose, _EXTRAS[tokeniser]) from None
    return counter


# `force` suppresses the warning about tokenised input, which the signature states.
_BLEU_OF_TOKENS = partial(
    _counter, "BLEU", tokenize="none", smooth_method="none", force=True, max_ngram_order=MAX_ORDER
)


def sacrebleu_statistics(
    counter: Callable[[], Sacrebleu], hypotheses: Sequence[str], references: References
) -> Statistics:
    """Compute the statistics of a sacrebleu metric for every segment, (N, k)."""
    streams = list(zip_longest(*references))  # transposed: the first references, the second ones, …, or None
    return np.asarray(counter()._extract_corpus_statistics(hypotheses, streams), dtype=np.float64)


def sacrebleu_settings(text: str) -> str:
    """Append the scale and the version of sacrebleu to a signature."""
    import sacrebleu

    return f"{text}|scale:0-100|sacrebleu:{sacrebleu.__version__}"


def bleu_statistics(hypotheses: Sequence[str], references: References) -> Statistics:
    """Count the n-grams of tokens joined by spaces.

    They are length c of the hypothesis, closest reference length r, number of matched 1- to 4-grams, and number of all
    1- to 4-grams, (N, 10).
    """
    return sacrebleu_statistics(_BLEU_OF_TOKENS, hypotheses, references)


def sentence_bleu(statistics: Statistics) -> NDArray[np.float64]:
    """Compute BLEU-4 of every segment with sacrebleu's exponential smoothing and effective order.

    The statistics are (N, 10), the scores (N,) from 0 to 100.
    """
    return np.array([_bleu(MAX_ORDER, row, smooth="exp") for row in statistics])


def _bleu(order: int, totals: Statistics, smooth: str) -> float:
    """Compute BLEU-N, Mao et al. (2015), eqs. 8-9, times 100, of summed statistics, (10,)."""
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


def _metric(
    name: str, counter: Callable[[], Sacrebleu], settings: str, *, of_text: bool = False, is_error: bool = False
) -> Metric:
    return Metric(
        name,
        partial(sacrebleu_statistics, counter),
        lambda totals: float(counter()._compute_score_from_stats(totals.tolist()).score),
        partial(sacrebleu_settings, settings),
        reads="text" if of_text else "tokens",
        higher_is_better=not is_error,
    )


BLEU_METRICS = tuple(
    Metric(
        f"bleu{order}",
        bleu_statistics,
        partial(_bleu, order, smooth="none"),
        partial(sacrebleu_settings, f"n:{order}|case:asis|eff:no|tok:given|smooth:none|reflen:closest"),
    )
    for order in range(1, MAX_ORDER + 1)
)


@cache
def _sacrebleu(name: str, tokeniser: str) -> Metric:
    counter = partial(_counter, "BLEU", force=True, tokenize=tokeniser)
    return _metric(name, counter, f"n:4|case:mixed|eff:no|tok:{tokeniser}|smooth:exp|reflen:closest", of_text=True)


def sacrebleu_in(lang: str) -> Metric:
    """Return BLEU of running text with sacrebleu's tokeniser for a language."""
    return _sacrebleu("sacrebleu", LANGUAGE_TOKENISERS.get(lang, _DEFAULT))


SACREBLEU = sacrebleu_in("en")
SACREBLEU_BY_TOKENISER = tuple(
    _sacrebleu(f"sacrebleu_{tokeniser}", tokeniser) for tokeniser in ("13a", "intl", "zh", "char", *_EXTRAS)
)
"""BLEU of running text with a given tokeniser, whatever the language."""


def precision_and_recall(totals: Statistics) -> tuple[float, float]:
    """Compute character n-gram precision and recall, 0-100, as in Calixto et al. (2017), table 1.

    The totals are for every order the number of n-grams of the hypothesis, of the reference, and of both, (18,). The
    mean is over the orders for which hypothesis and reference have n-grams, as in sacrebleu.
    """
    hypothesis, reference, common = totals.reshape(CHARACTER_ORDERS, 3).T
    known = (hypothesis > 0) & (reference > 0)
    if not known.any():
        return 0.0, 0.0
    precision, recall = np.mean(common[known] / hypothesis[known]), np.mean(common[known] / reference[known])
    return float(100 * precision), float(100 * recall)


def _chrf(name: str, beta: int, *, spaces: bool = False, of_text: bool = False) -> Metric:
    counter = partial(_counter, "CHRF", char_order=CHARACTER_ORDERS, beta=beta, whitespace=spaces)
    settings = f"case:mixed|eff:yes|nc:{CHARACTER_ORDERS}|nw:0|beta:{beta}|space:{'yes' if spaces else 'no'}"
    return _metric(name, counter, settings if of_text else f"{settings}|tok:given", of_text=of_text)


def _with_precision_and_recall(metric: Metric) -> tuple[Metric, ...]:
    """Return chrF3, its precision and its recall, which share one function of statistics, so that it runs once."""
    return (
        metric,
        replace(metric, name=f"{metric.name}_precision", value=lambda totals: precision_and_recall(totals)[0]),
        replace(metric, name=f"{metric.name}_recall", value=lambda totals: precision_and_recall(totals)[1]),
    )


CHRF2 = _chrf("chrf", 2, of_text=True)
CHRF3_METRICS = (
    *_with_precision_and_recall(_chrf("chrf3", 3)),
    *_with_precision_and_recall(_chrf("chrf3_spaces", 3, spaces=True)),
    _chrf("chrf3_text", 3, of_text=True),
)
# Case-sensitive and without normalisation: words are separated by spaces alone.
TER = _metric(
    "ter",
    partial(_counter, "TER", case_sensitive=True),
    "case:mixed|tok:given|norm:no|punct:yes|asian:no",
    is_error=True,
)


def ter_text_in(lang: str) -> Metric:
    """Return TER of running text for a language; the edits of Chinese and Japanese are of characters."""
    return _ter_text(lang in ASIAN_LANGUAGES)


@cache
def _ter_text(characters: bool) -> Metric:
    counter, state = (
        partial(_counter, "TER", normalized=characters, asian_support=characters),
        "yes" if characters else "no",
    )
    settings = f"case:lc|tok:tercom|norm:{state}|punct:yes|asian:{state}"
    return _metric("ter_text", counter, settings, of_text=True, is_error=True)


TER_TEXT = ter_text_in("en")
