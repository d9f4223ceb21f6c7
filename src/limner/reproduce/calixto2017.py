"""Tables 1 and 2 of Calixto, Liu and Campbell (2017)."""

from __future__ import annotations

import re

from limner.reproduce.tables import Column, Row, Table

MULTI30K = "Multi30k"
FIGURES = ("bleu4", "meteor", "ter", "chrf3", "chrf3_precision", "chrf3_recall")
COLUMNS = (
    Column("bleu4", "BLEU4 ↑", 1),
    Column("meteor", "METEOR ↑", 1),
    Column("ter", "TER ↓", 1),
    Column("chrf3", "chrF3 ↑", 1),
    Column("chrf3_precision", "prec.", 1),
    Column("chrf3_recall", "recall", 1),
    Column("perplexity", "PPL ↓", 2),
)
STRICT = 0.01
"""The level of Table 2 and, without pre-training, of Table 1."""
HOW = (
    "BLEU4, METEOR, TER and chrF3 are of tokens as Moses makes them, with capitals. PPL is the perplexity of the "
    "translations' pieces, given the source; it compares only rows of the same vocabulary, and the paper has none. "
    "With M30kC: first trained with back-translated descriptions, then on those that people translated. Rows of PBSMT, "
    "and those with WMT'15, are shown as printed. The paper's † stands for better than NMT, its ‡ for better than "
    "PBSMT; what ours stand for is said below. "
)


def _row(
    name: str,
    recipe: str | None,
    printed: str,
    *,
    begins_with: tuple[str, ...] = (),
    against: tuple[str, ...] = (),
    level: float = 0.05,
) -> Row:
    """A row from its printed figures, in the order of `FIGURES` and with the printed marks: '36.5†‡ 55.0†'."""
    figures, marks = {}, {}
    for score, figure in zip(FIGURES, printed.split(), strict=False):
        figures[score] = float(figure.rstrip("†‡"))
        if mark := re.sub(r"[\d.]", "", figure):
            marks[score] = mark
    return Row(
        name,
        recipe,
        published={MULTI30K: figures},
        published_marks={MULTI30K: marks},
        begins_with=begins_with,
        against=against,
        level=level,
    )


BASELINES_1 = ("NMT", "Huang et al. m1")
PRE_TRAINED = ("NMT with M30kC", "NMT")
"""Baselines of the rows with M30kC; by the second one they tell what pre-training is worth."""

TABLE_1 = Table(
    name="calixto2017/table1",
    title="Calixto et al. (2017), Table 1: English to German",
    recipes="calixto2017",
    columns=COLUMNS,
    published=(MULTI30K,),
    rows=(
        _row("NMT", "nmt", "33.7 52.3 46.7 65.2 67.7 65.0", against=BASELINES_1, level=STRICT),
        _row("PBSMT", None, "32.9 54.3† 45.1† 67.4 66.5 67.5"),
        _row("Huang et al. m1", "huang-m1", "35.1 52.2", against=BASELINES_1, level=STRICT),
        _row("Huang et al. m3 (RCNN)", "huang-m3", "36.5 54.1", against=BASELINES_1, level=STRICT),
        _row("NMT_SRC+IMG", "src-img", "36.5†‡ 55.0† 43.7†‡ 67.3 66.8 67.4", against=BASELINES_1, level=STRICT),
        _row("PBSMT (LM) with M30kC", None, "34.0 55.0† 44.7 68.0 66.8 68.1"),
        _row("NMT with M30kC", "nmt", "35.5‡ 53.4 43.3‡ 65.2 67.7 65.0", begins_with=("nmt-bt",), against=PRE_TRAINED),
        _row(
            "NMT_SRC+IMG with M30kC",
            "src-img",
            "37.1†‡ 54.5†‡ 42.8†‡ 66.6 67.2 66.5",
            begins_with=("src-img-bt",),
            against=PRE_TRAINED,
        ),
        _row("PBSMT (concat) with WMT'15", None, "32.6 53.9 46.1 67.3 66.3 67.4"),
        _row("PBSMT (LM) with WMT'15", None, "32.5 54.1 46.0 67.3 66.0 67.4"),
        _row("NMT with WMT'15", None, "37.8† 56.7† 41.0† 69.2 69.7 69.1"),
        _row("NMT_SRC+IMG with WMT'15", None, "39.0†‡ 56.8†‡ 40.6†‡ 69.6 69.6 69.6"),
    ),
    notes=HOW + "The chrF3 printed for NMT with M30kC is that of NMT.",
)

TABLE_2 = Table(
    name="calixto2017/table2",
    title="Calixto et al. (2017), Table 2: German to English",
    recipes="calixto2017",
    columns=COLUMNS,
    published=(MULTI30K,),
    rows=(
        _row("PBSMT", None, "32.8 34.8 43.9 61.8"),
        _row("NMT", "nmt-de-en", "38.2 35.8 40.2 62.8"),
        _row("NMT_SRC+IMG", "src-img-de-en", "40.6†‡ 37.5†‡ 37.7†‡ 65.2", against=("NMT",), level=STRICT),
        _row("PBSMT with M30kC", None, "36.8 36.4 40.8 64.5"),
        _row(
            "NMT with M30kC",
            "nmt-de-en",
            "42.6 38.9 36.1 67.6",
            begins_with=("nmt-de-en-bt",),
            against=PRE_TRAINED,
            level=STRICT,
        ),
        _row(
            "NMT_SRC+IMG with M30kC",
            "src-img-de-en",
            "43.2†‡ 39.0†‡ 35.5†‡ 67.7",
            begins_with=("src-img-de-en-bt",),
            against=PRE_TRAINED,
            level=STRICT,
        ),
    ),
    notes=HOW + "The paper's text denies the † of NMT_SRC+IMG with M30kC.",
)
