"""Published figures: a transcript of the tables of four papers, typed from their text, and our copies of them.

Names of rows are ours where the paper's have a citation, a subscript or the heading of a block.
"""

import pytest

from limner.apps.reproduce import published_tables
from limner.apps.reproduce.tables import property_tables

TABLES = published_tables()

PAPERS = ("kiros2014", "mao2015", "calixto2016", "calixto2017")
BLEU = ("bleu1", "bleu2", "bleu3", "bleu4")
RETRIEVAL = tuple(
    f"{direction}_{score}"
    for direction in ("image_to_text", "text_to_image")
    for score in ("r1", "r5", "r10", "median_rank")
)
CHRF = ("chrf3_spaces", "chrf3_spaces_precision", "chrf3_spaces_recall")
SCORES = {
    "kiros2014/table1": ("perplexity", "sampled_bleu1", "sampled_bleu2", "sampled_bleu3"),
    "mao2015/table1": ("perplexity", *BLEU),
    "mao2015/table2": RETRIEVAL,
    "mao2015/table3": RETRIEVAL,
    "mao2015/table4": RETRIEVAL,
    "mao2015/table5": ("perplexity", *BLEU),
    "mao2015/table7": (*BLEU, "cider", "rouge_l", "meteor"),
    "mao2015/table8": BLEU,
    "calixto2016/table1": ("meteor",),
    "calixto2017/table1": ("bleu4", "meteor", "ter", *CHRF),
    "calixto2017/table2": ("bleu4", "meteor", "ter", "chrf3_spaces"),
}
"""Our scores of the columns of the papers, in their order."""
PRINTED = {
    ("kiros2014/table1", "IAPR TC-12"): """
        model type     | PPL  | B-1   | B-2   | B-3
        Back-off GT2   | 54.5 | 0.323 | 0.145 | 0.059
        Back-off GT3   | 55.6 | 0.312 | 0.131 | 0.059
        LBL            | 20.1 | 0.327 | 0.144 | 0.068
        MLBL-B-conv-R  | 28.7 | 0.325 | 0.143 | 0.069
        MLBL-B         | 18.0 | 0.349 | 0.161 | 0.079
        MLBL-F         | 20.3 | 0.348 | 0.165 | 0.085
        MLBL-B-conv    | 20.6 | 0.349 | 0.165 | 0.085
        MLBL-F-conv    | 21.7 | 0.341 | 0.156 | 0.073
        Gupta et al.   | -    | 0.15  | 0.06  | 0.01
        Gupta & Mannem | -    | 0.33  | 0.18  | 0.07
    """,
    ("kiros2014/table1", "Attributes"): """
        model type    | PPL   | B-1   | B-2   | B-3
        Back-off GT2  | 117.7 | 0.163 | 0.033 | 0.009
        Back-off GT3  | 93.4  | 0.166 | 0.032 | 0.011
        LBL           | 97.6  | 0.161 | 0.031 | 0.009
        MLBL-B-conv-R | 154.4 | 0.166 | 0.035 | 0.012
        MLBL-B-conv   | 99.2  | 0.189 | 0.048 | 0.017
        MLBL-F-conv   | 113.2 | 0.175 | 0.042 | 0.014
    """,
    ("mao2015/table1", "IAPR TC-12"): """
                              | PPL  | B-1   | B-2   | B-3   | B-4
        LBL                   | 9.29 | 0.321 | 0.145 | 0.064 | -
        MLBLB-AlexNet         | 9.86 | 0.393 | 0.211 | 0.112 | -
        MLBLF-AlexNet         | 9.90 | 0.387 | 0.209 | 0.115 | -
        Gupta et al. (2012)   | -    | 0.15  | 0.06  | 0.01  | -
        Gupta & Mannem (2012) | -    | 0.33  | 0.18  | 0.07  | -
        Ours-RNN-Base         | 7.77 | 0.307 | 0.177 | 0.096 | 0.043
        Ours-m-RNN-AlexNet    | 6.92 | 0.482 | 0.357 | 0.269 | 0.208
    """,
    ("mao2015/table2", "IAPR TC-12"): """
                   | R@1  | R@5  | R@10 | Med r | R@1  | R@5  | R@10 | Med r
        Ours-m-RNN | 20.9 | 43.8 | 54.4 | 8     | 13.2 | 31.2 | 40.8 | 21
    """,
    ("mao2015/table3", "Flickr8k"): """
                           | R@1  | R@5  | R@10 | Med r | R@1  | R@5  | R@10 | Med r
        Random             | 0.1  | 0.5  | 1.0  | 631   | 0.1  | 0.5  | 1.0  | 500
        SDT-RNN-AlexNet    | 4.5  | 18.0 | 28.6 | 32    | 6.1  | 18.5 | 29.0 | 29
        Socher-avg-RCNN    | 6.0  | 22.7 | 34.0 | 23    | 6.6  | 21.6 | 31.7 | 25
        DeViSE-avg-RCNN    | 4.8  | 16.5 | 27.3 | 28    | 5.9  | 20.1 | 29.6 | 29
        DeepFE-AlexNet     | 5.9  | 19.2 | 27.3 | 34    | 5.2  | 17.6 | 26.5 | 32
        DeepFE-RCNN        | 12.6 | 32.9 | 44.0 | 14    | 9.7  | 29.6 | 42.5 | 15
        Ours-m-RNN-AlexNet | 14.5 | 37.2 | 48.5 | 11    | 11.5 | 31.0 | 42.4 | 15
    """,
    ("mao2015/table4", "Flickr30k"): """
                           | R@1  | R@5  | R@10 | Med r | R@1  | R@5  | R@10 | Med r
        Random             | 0.1  | 0.6  | 1.1  | 631   | 0.1  | 0.5  | 1.0  | 500
        DeViSE-avg-RCNN    | 4.8  | 16.5 | 27.3 | 28    | 5.9  | 20.1 | 29.6 | 29
        DeepFE-RCNN        | 16.4 | 40.2 | 54.7 | 8     | 10.3 | 31.4 | 44.5 | 13
        RVR                | 12.1 | 27.8 | 47.8 | 11    | 12.7 | 33.1 | 44.9 | 12.5
        MNLM-AlexNet       | 14.8 | 39.2 | 50.9 | 10    | 11.8 | 34.0 | 46.3 | 13
        MNLM-VggNet        | 23.0 | 50.7 | 62.9 | 5     | 16.8 | 42.0 | 56.5 | 8
        NIC                | 17.0 | 56.0 | -    | 7     | 17.0 | 57.0 | -    | 7
        LRCN               | 14.0 | 34.9 | 47.0 | 11    | -    | -    | -    | -
        DeepVS             | 22.2 | 48.2 | 61.4 | 4.8   | 15.2 | 37.7 | 50.5 | 9.2
        Ours-m-RNN-AlexNet | 18.4 | 40.2 | 50.9 | 10    | 12.6 | 31.2 | 41.5 | 16
        Ours-m-RNN-VggNet  | 35.4 | 63.8 | 73.7 | 3     | 22.8 | 50.7 | 63.1 | 5
    """,
    ("mao2015/table4", "MS COCO"): """
                          | R@1  | R@5  | R@10 | Med r | R@1  | R@5  | R@10 | Med r
        Random            | 0.1  | 0.6  | 1.1  | 631   | 0.1  | 0.5  | 1.0  | 500
        DeepVS-RCNN       | 29.4 | 62.0 | 75.9 | 2.5   | 20.9 | 52.8 | 69.2 | 4
        Ours-m-RNN-VggNet | 41.0 | 73.0 | 83.5 | 2     | 29.0 | 42.2 | 77.0 | 3
    """,
    ("mao2015/table5", "Flickr30k"): """
                           | PPL   | B-1  | B-2  | B-3  | B-4
        RVR                | -     | -    | -    | -    | 0.13
        DeepVS-AlexNet     | -     | 0.47 | 0.21 | 0.09 | -
        DeepVS-VggNet      | 21.20 | 0.50 | 0.30 | 0.15 | -
        NIC                | -     | 0.66 | -    | -    | -
        LRCN               | -     | 0.59 | 0.39 | 0.25 | 0.16
        DMSM               | -     | -    | -    | -    | -
        Ours-m-RNN-AlexNet | 35.11 | 0.54 | 0.36 | 0.23 | 0.15
        Ours-m-RNN-VggNet  | 20.72 | 0.60 | 0.41 | 0.28 | 0.19
    """,
    ("mao2015/table5", "MS COCO"): """
                           | PPL   | B-1  | B-2  | B-3  | B-4
        RVR                | -     | -    | -    | -    | 0.19
        DeepVS-AlexNet     | -     | 0.53 | 0.28 | 0.15 | -
        DeepVS-VggNet      | 19.64 | 0.57 | 0.37 | 0.19 | -
        NIC                | -     | 0.67 | -    | -    | -
        LRCN               | -     | 0.63 | 0.44 | 0.31 | 0.21
        DMSM               | -     | -    | -    | -    | 0.21
        Ours-m-RNN-AlexNet | -     | -    | -    | -    | -
        Ours-m-RNN-VggNet  | 13.60 | 0.67 | 0.49 | 0.35 | 0.25
    """,
    ("mao2015/table7", "MS COCO"): """
                         | B1    | B2    | B3    | B4    | CIDEr | ROUGE_L | METEOR
        m-RNN-greedy-c5  | 0.668 | 0.488 | 0.342 | 0.239 | 0.729 | 0.489   | 0.221
        m-RNN-greedy-c40 | 0.845 | 0.730 | 0.598 | 0.473 | 0.740 | 0.616   | 0.291
        m-RNN-beam-c5    | 0.680 | 0.506 | 0.369 | 0.272 | 0.791 | 0.499   | 0.225
        m-RNN-beam-c40   | 0.865 | 0.760 | 0.641 | 0.529 | 0.789 | 0.640   | 0.304
    """,
    ("mao2015/table8", "Flickr30k"): """
                                   | B-1   | B-2   | B-3   | B-4
        m-RNN                      | 0.600 | 0.412 | 0.278 | 0.187
        m-RNN-NoEmbInput           | 0.592 | 0.408 | 0.277 | 0.188
        m-RNN-OneLayerEmb          | 0.594 | 0.406 | 0.274 | 0.184
        m-RNN-EmbOneInput          | 0.590 | 0.406 | 0.274 | 0.185
        m-RNN-visInRnn             | 0.466 | 0.267 | 0.157 | 0.101
        m-RNN-visInRnn-both        | 0.546 | 0.333 | 0.191 | 0.120
        m-RNN-visInRnn-both-shared | 0.478 | 0.279 | 0.171 | 0.110
    """,
    ("calixto2016/table1", "Multi30k"): """
                                | Meteor
        Moses                   | 52.3
        CONV5,4-Multimodal NMT  | 46.4
        FC7-Multimodal NMT      | 44.1
        Text-only Attention NMT | 43.5
        Elliott et al. (2015)   | 24.7
    """,
    ("calixto2017/table1", "Multi30k"): """
        model                      | BLEU4  | METEOR | TER    | chrF3 | prec. | recall
        NMT                        | 33.7   | 52.3   | 46.7   | 65.2  | 67.7  | 65.0
        PBSMT                      | 32.9   | 54.3†  | 45.1†  | 67.4  | 66.5  | 67.5
        Huang et al. m1            | 35.1   | 52.2   | -      | -     | -     | -
        Huang et al. m3 (RCNN)     | 36.5   | 54.1   | -      | -     | -     | -
        NMT_SRC+IMG                | 36.5†‡ | 55.0†  | 43.7†‡ | 67.3  | 66.8  | 67.4
        PBSMT (LM) with M30kC      | 34.0   | 55.0†  | 44.7   | 68.0  | 66.8  | 68.1
        NMT with M30kC             | 35.5‡  | 53.4   | 43.3‡  | 65.2  | 67.7  | 65.0
        NMT_SRC+IMG with M30kC     | 37.1†‡ | 54.5†‡ | 42.8†‡ | 66.6  | 67.2  | 66.5
        PBSMT (concat) with WMT'15 | 32.6   | 53.9   | 46.1   | 67.3  | 66.3  | 67.4
        PBSMT (LM) with WMT'15     | 32.5   | 54.1   | 46.0   | 67.3  | 66.0  | 67.4
        NMT with WMT'15            | 37.8†  | 56.7†  | 41.0†  | 69.2  | 69.7  | 69.1
        NMT_SRC+IMG with WMT'15    | 39.0†‡ | 56.8†‡ | 40.6†‡ | 69.6  | 69.6  | 69.6
    """,
    ("calixto2017/table2", "Multi30k"): """
        model                  | BLEU4  | METEOR | TER    | chrF3
        PBSMT                  | 32.8   | 34.8   | 43.9   | 61.8
        NMT                    | 38.2   | 35.8   | 40.2   | 62.8
        NMT_SRC+IMG            | 40.6†‡ | 37.5†‡ | 37.7†‡ | 65.2
        PBSMT with M30kC       | 36.8   | 36.4   | 40.8   | 64.5
        NMT with M30kC         | 42.6   | 38.9   | 36.1   | 67.6
        NMT_SRC+IMG with M30kC | 43.2‡† | 39.0‡† | 35.5‡† | 67.7
    """,
}
"""Tables with the headings of their columns, by table and data set."""
STATED = {
    ("kiros2014/table1", "IAPR TC-12", "LBL, random word initialisation"): {"perplexity": "23.4"},
    ("kiros2014/table1", "Attributes", "LBL, random word initialisation"): {"perplexity": "109.6"},
    ("mao2015/table3", "Flickr8k", "Ours-m-RNN-AlexNet"): dict(
        zip(("perplexity", *BLEU), ("24.39", "0.565", "0.386", "0.256", "0.170"), strict=True)
    ),
}
"""Figures in the text of Kiros et al., section 7.3, and of Mao et al., section 7.4."""
WITHOUT_FIGURES = {"MLBL-F-conv-R", "MLBL-B-R", "MLBL-F-R", "bow-f", "bow-k"}
"""Our rows for which the papers print no figures: further controls, and the curves of Figure 2 of Kiros et al."""
CHANGES = """
    1 | NMT_SRC+IMG             | NMT                    | 2.8 2.7 -3.0 2.1 -0.9 2.4
    1 | NMT_SRC+IMG             | PBSMT                  | 3.6 0.7 -1.4 -0.1 0.3 -0.1
    1 | NMT_SRC+IMG             | Huang et al. m1        | 1.4 2.8
    1 | NMT_SRC+IMG             | Huang et al. m3 (RCNN) | 0.0 0.9
    1 | Huang et al. m1         | NMT, PBSMT             | 1.4 -2.1
    1 | Huang et al. m3 (RCNN)  | NMT, PBSMT             | 2.8 -0.2
    1 | NMT_SRC+IMG with M30kC  | PBSMT (LM) with M30kC  | 3.1 -0.5 -1.9 -1.4 0.4 -1.6
    1 | NMT_SRC+IMG with M30kC  | NMT with M30kC         | 1.6 1.1 -0.5 1.4 -0.5 1.5
    1 | NMT_SRC+IMG with WMT'15 | PBSMT (concat) with WMT'15, PBSMT (LM) with WMT'15 | 6.4 2.7 -5.4 2.3 3.3 2.2
    1 | NMT_SRC+IMG with WMT'15 | NMT with WMT'15        | 1.2 0.1 -0.4 0.4 -0.1 0.5
    2 | NMT_SRC+IMG             | NMT                    | 2.4 1.7 -2.5 2.4
    2 | NMT_SRC+IMG             | PBSMT                  | 7.8 2.7 -6.2 3.4
    2 | NMT_SRC+IMG with M30kC  | PBSMT with M30kC       | 6.4 2.6 -5.3 3.2
    2 | NMT_SRC+IMG with M30kC  | NMT with M30kC         | 0.6 0.1 -0.6 0.1
"""
"""Improvements printed in Tables 1 and 2 of Calixto et al. (2017): a row, those that it is compared with, of which the
best counts, and the differences of the scores."""
PRE_TRAINED = {1: ("NMT with M30kC", "PBSMT (LM) with M30kC"), 2: ("NMT with M30kC", "PBSMT with M30kC")}
"""NMT and SMT baselines of the pre-trained rows of these tables."""


def cells(line):
    return [cell.strip() for cell in line.split("|")]


def transcript(table, dataset):
    """Printed figures and the set of their marks by row and score; rows without any figure are left out."""
    head, *lines = map(cells, PRINTED[table, dataset].strip().splitlines())
    assert len(head) == 1 + len(SCORES[table])
    rows = {}
    for name, *figures in lines:
        assert name not in rows
        rows[name] = {score: one for score, one in zip(SCORES[table], figures, strict=True) if one != "-"}
    for (where, of, name), stated in STATED.items():
        if (where, of) == (table, dataset):
            rows.setdefault(name, {}).update(stated)
    return {
        name: {score: (float(one.rstrip("†‡")), set(one) & {"†", "‡"}) for score, one in figures.items()}
        for name, figures in rows.items()
        if figures
    }


@pytest.mark.parametrize(("table", "dataset"), PRINTED)
def test_rows_have_the_figures_and_marks_of_the_paper(table, dataset):
    scale = {column.score: column.scale for column in TABLES[table].columns}
    assert transcript(table, dataset) == {
        row.name: {
            score: (pytest.approx(value * scale[score]), set(row.published_marks.get(dataset, {}).get(score, "")))
            for score, value in row.published[dataset].items()
        }
        for row in TABLES[table].rows
        if dataset in row.published
    }


def test_no_table_and_no_row_has_other_figures():
    tables = [table for name, table in TABLES.items() if name.partition("/")[0] in PAPERS]
    with_figures = {(table.name, dataset) for table in tables for row in table.rows for dataset in row.published}
    assert with_figures == {(table.name, dataset) for table in tables for dataset in table.datasets} == set(PRINTED)
    assert {row.name for table in tables for row in table.rows if not row.published} == WITHOUT_FIGURES
    for table in tables:
        assert len({row.name for row in table.rows}) == len(table.rows)


def test_properties_of_recurrent_layers_are_those_of_the_paper():
    """Mao et al., Table 6, is printed with a column for each system."""
    names, sizes, lstm = (
        "Our m-RNN | MNLM | NIC | LRCN      | RVR | DeepVS",
        "256       | 300  | 512 | 1000 (×4) | 100 | 300-600",
        "No        | Yes  | Yes | Yes       | No  | No",
    )
    rows = property_tables()["mao2015/table6"].rows
    assert [(row.name, *row.published) for row in rows] == list(zip(*map(cells, (names, sizes, lstm)), strict=True))


@pytest.mark.parametrize("line", CHANGES.strip().splitlines())
def test_printed_differences_are_those_of_the_figures(line):
    number, name, others, changes = cells(line)
    table = TABLES[f"calixto2017/table{number}"]
    rows = {row.name: row.published["Multi30k"] for row in table.rows}
    for score, change in zip(SCORES[table.name], changes.split(), strict=False):
        best = (min if score == "ter" else max)(rows[other][score] for other in others.split(", "))
        assert rows[name][score] - best == pytest.approx(float(change)), score


def test_marks_and_levels_are_those_of_the_captions():
    """Calixto et al. (2017): † over the NMT baseline, ‡ over the SMT baseline, both with the same training data.

    Table 1: p < 0.01 without pre-training, p < 0.05 with it. Table 2: p < 0.01.
    """
    for number in (1, 2):
        for row in TABLES[f"calixto2017/table{number}"].rows:
            is_pre_trained = " with " in row.name
            assert row.level == (0.05 if number == 1 and is_pre_trained else 0.01), row.name
            if "WMT'15" in row.name:
                assert row.baselines == ("NMT with WMT'15", "PBSMT (concat) with WMT'15")
            else:
                assert row.baselines == (PRE_TRAINED[number] if is_pre_trained else ("NMT", "PBSMT")), row.name


def test_marked_figures_are_better_than_those_of_the_baseline():
    """But for one METEOR of NMT_SRC+IMG with M30kC, and marks of a baseline on itself; the notes name both."""
    worse, on_themselves = [], set()
    for table in (TABLES["calixto2017/table1"], TABLES["calixto2017/table2"]):
        rows = {row.name: row for row in table.rows}
        for row in table.rows:
            for score, marks in row.published_marks.get("Multi30k", {}).items():
                for mark, baseline in zip("†‡", row.baselines, strict=False):
                    if baseline == row.name and mark in marks:
                        on_themselves.add(row.name)
                        continue
                    change = row.published["Multi30k"][score] - rows[baseline].published["Multi30k"][score]
                    if mark in marks and change * (-1 if score == "ter" else 1) <= 0:
                        worse.append((table.name, row.name, score, mark))
    assert worse == [("calixto2017/table1", "NMT_SRC+IMG with M30kC", "meteor", "‡")]
    assert on_themselves == {"NMT with WMT'15"}
    notes = " ".join(TABLES["calixto2017/table1"].notes.split())
    assert "‡ of the METEOR of NMT_SRC+IMG with M30kC" in notes and "† of NMT with WMT'15 is on the baseline" in notes
