"""METEOR 1.5 (Banerjee and Lavie, 2005; Denkowski and Lavie, 2011, 2014) with the data of pycocoevalcap (extra `coco`).

Sentences are normalised, aligned with each reference by the modules exact, stem, synonym and paraphrase, and counted;
the score is computed from the sum of these statistics, so that resampling needs no further alignment. The statistics
match the Java program of the authors, which parity tests run, but for its collisions: it compares hash codes of words
and of stems, so that it takes the Czech "pán" for "ten".

METEOR has parameters, stemmers and function words for the languages in `LANGUAGES`. The signature lists the modules
whose data are installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.metadata import version

import numpy as np

from limner.errors import extra_module
from limner.metrics.base import Metric, MetricUnavailable, References, Statistics
from limner.metrics.meteor import data
from limner.metrics.meteor.data import FIELDS, LANGUAGES, meteor_value, meteor_values
from limner.metrics.meteor.matchers import number_corpus

__all__ = ["FIELDS", "LANGUAGES", "METEOR", "meteor_in", "meteor_statistics", "meteor_value", "meteor_values"]


def meteor_in(lang: str) -> Metric:
    """Return METEOR for a language; `statistics` raises MetricUnavailable if the language is not supported."""
    return Metric("meteor", partial(meteor_statistics, lang), partial(meteor_value, lang), partial(_settings, lang))


def meteor_statistics(lang: str, hypotheses: Sequence[str], references: References) -> Statistics:
    """Compute the METEOR statistics of every segment with its best reference.

    `lang` is a key of `LANGUAGES`; sentences are tokens joined by spaces.

    Returns:
        (N, 23): lengths, function words, matches of four modules (content words of hypothesis and reference, function
        words of both), chunks, matched words.
    """
    if lang not in LANGUAGES:
        raise MetricUnavailable(f"METEOR does not support language '{lang}': expected one of {', '.join(LANGUAGES)}")
    data.folder()
    search = extra_module("limner.metrics.meteor.alignment", "METEOR", "coco")
    pairs = [
        (_clean(hypothesis), _clean(reference))
        for hypothesis, group in zip(hypotheses, references, strict=True)
        for reference in group
    ]
    numbers, corpus = number_corpus(lang, (sentence for pair in pairs for sentence in pair))
    indices = np.array([[numbers[sentence] for sentence in pair] for pair in pairs], np.int32).reshape(-1, 2)
    rows: Statistics = search.pair_statistics(*indices.T.copy(), corpus, search.BEAM)
    # A segment that is matched completely in one chunk has no fragmentation.
    rows[(rows[:, :2] == rows[:, 21:]).all(axis=1) & (rows[:, 20] == 1), 20] = 0
    return rows[_best(meteor_values(lang, rows), [len(item_references) for item_references in references])]


def _clean(sentence: str) -> str:
    """Join the tokens by single spaces, without the separator of the Java program."""
    return " ".join(sentence.replace("|||", " ").split())


def _best(scores: np.ndarray, counts: Sequence[int]) -> list[int]:
    """Return the index of the first of the best scores in each group of successive scores."""
    ends = np.cumsum(counts)
    return [int(end - count + scores[end - count : end].argmax()) for end, count in zip(ends, counts, strict=True)]


def _settings(lang: str) -> str:
    return (
        f"meteor:1.5|lang:{lang}|modules:{','.join(data.modules(lang))}|norm:yes|tok:given|scale:x100|"
        f"implementation:limner|pycocoevalcap:{version('pycocoevalcap')}"
    )


METEOR = meteor_in("en")
