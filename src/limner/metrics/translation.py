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

from collections.abc import Callable, Iterator, Sequence
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


ORDERS = 6
"""Maximum order of the character n-grams."""


@cache
def _chrf(beta: int, spaces: bool = False) -> Sacrebleu:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(char_order=ORDERS, beta=beta, whitespace=spaces)


_CHRF2, _CHRF3, _CHRF3_SPACES = partial(_chrf, 2), partial(_chrf, 3), partial(_chrf, 3, True)


def precision_and_recall(totals: Statistics) -> tuple[float, float]:
    """Compute character n-gram precision and recall, 0-100, as in Calixto et al. (2017), table 1.

    Args:
        totals: summed statistics, (18,): for every order the number of n-grams of the hypothesis, of the reference, and
            of both.

    Returns:
        Precision and recall, averaged over the orders for which hypothesis and reference have n-grams, as in sacrebleu.
    """
    hypothesis, reference, both = totals.reshape(ORDERS, 3).T
    known = (hypothesis > 0) & (reference > 0)
    if not known.any():
        return 0.0, 0.0
    precision, recall = np.mean(both[known] / hypothesis[known]), np.mean(both[known] / reference[known])
    return float(100 * precision), float(100 * recall)


def _precision(totals: Statistics) -> float:
    return precision_and_recall(totals)[0]


def _recall(totals: Statistics) -> float:
    return precision_and_recall(totals)[1]


def _settings(beta: int, tokens: str, spaces: str = "no") -> str:
    return sacrebleu_settings(f"case:mixed|eff:yes|nc:{ORDERS}|nw:0|beta:{beta}|space:{spaces}{tokens}")


def _chrf3_of_tokens(name: str, scorer: Callable[[], Sacrebleu], spaces: str) -> Iterator[Metric]:
    """Create chrF3 and its precision and recall, which share one function of statistics, so that it runs once."""
    statistics, settings = partial(sacrebleu_statistics, scorer), partial(_settings, 3, "|tok:given", spaces)
    yield Metric(name, statistics, partial(sacrebleu_value, scorer), settings)
    yield Metric(f"{name}_precision", statistics, _precision, settings)
    yield Metric(f"{name}_recall", statistics, _recall, settings)


CHRF2 = Metric(
    "chrf",
    partial(sacrebleu_statistics, _CHRF2),
    partial(sacrebleu_value, _CHRF2),
    partial(_settings, 2, ""),
    reads="text",
)
CHRF3_METRICS = (
    *_chrf3_of_tokens("chrf3", _CHRF3, "no"),
    *_chrf3_of_tokens("chrf3_spaces", _CHRF3_SPACES, "yes"),
    Metric(
        "chrf3_text",
        partial(sacrebleu_statistics, _CHRF3),
        partial(sacrebleu_value, _CHRF3),
        partial(_settings, 3, ""),
        reads="text",
    ),
)


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
