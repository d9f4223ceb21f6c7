"""Published figures are those of the papers: changed ones must be compared with the paper again."""

import hashlib
import json

import pytest

from limner.apps.reproduce import published_tables
from limner.apps.reproduce.tables import property_tables

TABLES = published_tables()
DIGESTS = {
    "calixto2016": "3aa731eda4ac878f",
    "calixto2017": "5defd580f600d53b",
    "johnson2016": "1da3cd87ce4177fc",
    "kiros2014": "4092adfea676caf6",
    "lecture": "7e5b4db1386910f7",
    "mao2015": "fa257a809d5c55e7",
    "vinyals2015": "ad76d0abd0c5f611",
    "xu2015": "651d1eaf5a533d40",
}
"""Digests of the rows, figures and marks of all tables of a paper, as they were compared with its text."""
PRE_TRAINED = {1: ("NMT with M30kC", "PBSMT (LM) with M30kC"), 2: ("NMT with M30kC", "PBSMT with M30kC")}
"""NMT and SMT baselines of the pre-trained rows of Tables 1 and 2 of Calixto et al. (2017)."""


def digest(paper):
    rows = {
        name: [[row.name, row.published, row.published_marks, row.other_authors] for row in table.rows]
        for name, table in TABLES.items()
        if name.startswith(f"{paper}/")
    }
    rows |= {
        name: [[row.name, row.published] for row in table.rows]
        for name, table in property_tables().items()
        if name.startswith(f"{paper}/")
    }
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]


def test_every_paper_was_compared():
    assert DIGESTS.keys() == {name.partition("/")[0] for name in TABLES}


@pytest.mark.parametrize("paper", DIGESTS)
def test_rows_have_the_figures_and_marks_of_the_paper(paper):
    assert digest(paper) == DIGESTS[paper], "compare the changed figures with the paper, then store the new digest"


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
