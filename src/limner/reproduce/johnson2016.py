"""Table 1 of Johnson, Karpathy and Fei-Fei (2016)."""

from __future__ import annotations

from limner.reproduce.datasets import VISUAL_GENOME
from limner.reproduce.tables import PublishedRow, PublishedTable, TableColumn

TABLE_1 = PublishedTable(
    name="johnson2016/table1",
    title="Johnson et al. (2016), Table 1: dense captioning on Visual Genome",
    recipes="johnson2016",
    columns=(TableColumn("map", "AP", 2), TableColumn("localisation_map", "AP of boxes", 2)),
    datasets=(VISUAL_GENOME.name,),
    rows=(PublishedRow("Our model (FCLN)", "{dataset}", published={VISUAL_GENOME.name: {"map": 5.39}}),),
    notes=(
        "AP is the mean over overlaps of .3 to .7 and METEOR of 0 to .25, with the model's own proposals of regions. "
        "The paper's other scores were not verified and are left out: the rows Full image RNN, Region RNN and FCLN on "
        "EB, proposals of EdgeBoxes, annotated boxes, METEOR without boxes, and times. AP of boxes ignores sentences."
    ),
    trained_on=(VISUAL_GENOME,),
    retrieval=False,
)
