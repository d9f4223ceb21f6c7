"""Tables 1 and 2 of Calixto, Liu and Campbell (2017)."""

from __future__ import annotations

import re

from limner.reproduce.tables import CorpusUse, PublishedRow, PublishedTable, TableColumn

MULTI30K = "Multi30k"
SCORES = ("bleu4", "meteor", "ter", "chrf3_spaces", "chrf3_spaces_precision", "chrf3_spaces_recall")
COLUMNS = (
    TableColumn("bleu4", "BLEU4 ↑", 1),
    TableColumn("meteor", "METEOR ↑", 1),
    TableColumn("ter", "TER ↓", 1),
    TableColumn("chrf3_spaces", "chrF3 ↑", 1),
    TableColumn("chrf3_spaces_precision", "prec.", 1),
    TableColumn("chrf3_spaces_recall", "recall", 1),
    TableColumn("perplexity", "PPL ↓", 2),
)
STRICT = 0.01
"""Significance level of Table 2 and, for models without pre-training, of Table 1."""
NOTES = (
    "BLEU4, METEOR, TER and chrF3 are computed on cased Moses tokens; chrF3 counts the spaces between them, which fits "
    "the values of Table 1. PPL is the perplexity of the target subwords "
    "given the source; it is comparable only between rows with the same vocabulary, and the paper does not report it. "
    "With M30kC: pre-trained with back-translated descriptions, then trained on human translations; PBSMT has the "
    "descriptions in the target language in its language model. The paper marks significant improvements over NMT with "
    "† and over PBSMT with ‡; the meaning of our marks is listed below. "
)


def _row(
    name: str,
    recipe: str | None,
    printed: str,
    *,
    pretraining: tuple[str, ...] = (),
    baselines: tuple[str, ...] = (),
    level: float = 0.05,
    corpus: CorpusUse | None = None,
) -> PublishedRow:
    """Create a row from its published scores, in the order of `SCORES`, with their marks: '36.5†‡ 55.0†'."""
    scores, marks = {}, {}
    for score, value in zip(SCORES, printed.split(), strict=False):
        scores[score] = float(value.rstrip("†‡"))
        if mark := re.sub(r"[\d.]", "", value):
            marks[score] = mark
    return PublishedRow(
        name,
        recipe,
        published={MULTI30K: scores},
        published_marks={MULTI30K: marks},
        pretraining=pretraining,
        baselines=baselines,
        level=level,
        corpus=corpus,
        other_authors=name.startswith("Huang et al."),
    )


BASELINES = ("NMT", "PBSMT")
PRE_TRAINED_1, PRE_TRAINED_2 = ("NMT with M30kC", "PBSMT (LM) with M30kC"), ("NMT with M30kC", "PBSMT with M30kC")
"""Baselines of the rows with M30kC in Tables 1 and 2."""
WITH_WMT = ("NMT with WMT'15", "PBSMT (concat) with WMT'15")
"""Baselines of the rows with WMT'15; of the two of PBSMT, the one with all pairs, the better one in BLEU4."""

TABLE_1 = PublishedTable(
    name="calixto2017/table1",
    title="Calixto et al. (2017), Table 1: English to German",
    recipes="calixto2017",
    columns=COLUMNS,
    datasets=(MULTI30K,),
    reverse="nmt-de-en",
    rows=(
        _row("NMT", "nmt", "33.7 52.3 46.7 65.2 67.7 65.0", baselines=BASELINES, level=STRICT),
        _row("PBSMT", "pbsmt", "32.9 54.3† 45.1† 67.4 66.5 67.5", baselines=BASELINES, level=STRICT),
        _row("Huang et al. m1", "huang-m1", "35.1 52.2", baselines=BASELINES, level=STRICT),
        _row("Huang et al. m3 (RCNN)", "huang-m3", "36.5 54.1", baselines=BASELINES, level=STRICT),
        _row("NMT_SRC+IMG", "src-img", "36.5†‡ 55.0† 43.7†‡ 67.3 66.8 67.4", baselines=BASELINES, level=STRICT),
        _row("PBSMT (LM) with M30kC", "pbsmt-lm", "34.0 55.0† 44.7 68.0 66.8 68.1", baselines=PRE_TRAINED_1),
        _row(
            "NMT with M30kC", "nmt", "35.5‡ 53.4 43.3‡ 65.2 67.7 65.0", pretraining=("nmt-bt",), baselines=PRE_TRAINED_1
        ),
        _row(
            "NMT_SRC+IMG with M30kC",
            "src-img",
            "37.1†‡ 54.5†‡ 42.8†‡ 66.6 67.2 66.5",
            pretraining=("src-img-bt",),
            baselines=PRE_TRAINED_1,
        ),
        _row(
            "PBSMT (concat) with WMT'15",
            "pbsmt-concat-wmt",
            "32.6 53.9 46.1 67.3 66.3 67.4",
            baselines=WITH_WMT,
            corpus="pairs",
        ),
        _row(
            "PBSMT (LM) with WMT'15",
            "pbsmt-lm-wmt",
            "32.5 54.1 46.0 67.3 66.0 67.4",
            baselines=WITH_WMT,
            corpus="sentences",
        ),
        _row(
            "NMT with WMT'15",
            "nmt",
            "37.8† 56.7† 41.0† 69.2 69.7 69.1",
            pretraining=("nmt-wmt",),
            baselines=WITH_WMT,
            corpus="pretraining",
        ),
        _row(
            "NMT_SRC+IMG with WMT'15",
            "src-img",
            "39.0†‡ 56.8†‡ 40.6†‡ 69.6 69.6 69.6",
            pretraining=("nmt-wmt",),
            baselines=WITH_WMT,
            corpus="pretraining",
        ),
    ),
    notes=NOTES
    + "With WMT'15: NMT is pre-trained on the sentence pairs of a corpus, and NMT_SRC+IMG starts from that text-only "
    "model; PBSMT (concat) adds the pairs, PBSMT (LM) their German sentences in the language model. The paper's † of "
    "NMT with WMT'15 is on the baseline itself; our ‡ of these rows is over PBSMT (concat). Our METEOR of German "
    "matches words and stems alone: the paraphrases of the published METEOR are not in its data. The published chrF3 "
    "of NMT with M30kC equals that of NMT. The ‡ of the METEOR of NMT_SRC+IMG with M30kC marks a value that is below "
    "that of PBSMT (LM) with M30kC; the paper's text claims BLEU4 and TER alone.",
)

TABLE_2 = PublishedTable(
    name="calixto2017/table2",
    title="Calixto et al. (2017), Table 2: German to English",
    recipes="calixto2017",
    columns=COLUMNS,
    datasets=(MULTI30K,),
    reverse="nmt",
    rows=(
        _row("PBSMT", "pbsmt-de-en", "32.8 34.8 43.9 61.8", baselines=BASELINES, level=STRICT),
        _row("NMT", "nmt-de-en", "38.2 35.8 40.2 62.8", baselines=BASELINES, level=STRICT),
        _row("NMT_SRC+IMG", "src-img-de-en", "40.6†‡ 37.5†‡ 37.7†‡ 65.2", baselines=BASELINES, level=STRICT),
        _row("PBSMT with M30kC", "pbsmt-lm-de-en", "36.8 36.4 40.8 64.5", baselines=PRE_TRAINED_2, level=STRICT),
        _row(
            "NMT with M30kC",
            "nmt-de-en",
            "42.6 38.9 36.1 67.6",
            pretraining=("nmt-de-en-bt",),
            baselines=PRE_TRAINED_2,
            level=STRICT,
        ),
        _row(
            "NMT_SRC+IMG with M30kC",
            "src-img-de-en",
            "43.2†‡ 39.0†‡ 35.5†‡ 67.7",
            pretraining=("src-img-de-en-bt",),
            baselines=PRE_TRAINED_2,
            level=STRICT,
        ),
    ),
    notes=NOTES
    + "The paper does not say how PBSMT uses M30kC in Table 2; ours is as in Table 1. The paper's text contradicts "
    "the † of NMT_SRC+IMG with M30kC.",
)
