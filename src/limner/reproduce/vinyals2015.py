"""Tables 1, 2, 4 and 5 of Vinyals, Toshev, Bengio and Erhan (2015)."""

from __future__ import annotations

from limner.reproduce.datasets import COCO, FLICKR8K, FLICKR30K
from limner.reproduce.tables import PublishedRow, PublishedTable, TableColumn, read_published

RECIPES = "vinyals2015"
BEAM = ("decoding.beam_size=20",)
"""Beam search of section 3.2."""
PASCAL, SBU = "PASCAL (transfer)", "SBU"
GENERATION = (TableColumn("bleu4", "BLEU-4", 1), TableColumn("meteor", "METEOR", 1), TableColumn("cider", "CIDEr", 1))
UNIGRAMS = (TableColumn("bleu1", "BLEU-1", 0),)
RANKING = tuple(
    TableColumn(f"{direction}_{score}", f"{label} {heading}", 0)
    for direction, label in (("image_to_text", "annotation"), ("text_to_image", "search"))
    for score, heading in (("r1", "R@1"), ("r10", "R@10"), ("median_rank", "Med r"))
)
RANKING_NOTE = (
    "R@K in percent, and the median rank of the first correct result, of sentences for an image (annotation) and of "
    "images for a sentence (search). Sentences are ranked by their probability divided by its mean over images of the "
    "training split. The scores of other systems are those of Mao et al. (2015), rounded. "
)


BASELINES = ("Random", "Nearest Neighbor", "Human")
"""Rows without a recipe that are not systems of other authors."""


def _row(name: str, columns: tuple[TableColumn, ...], scores: dict[str, str], *, ours: bool = False) -> PublishedRow:
    published = {dataset: read_published(columns, printed) for dataset, printed in scores.items()}
    if ours:
        return PublishedRow(name, "{dataset}", published=published, evaluation=BEAM)
    return PublishedRow(name, None, published=published, other_authors=name not in BASELINES)


TABLE_1 = PublishedTable(
    name="vinyals2015/table1",
    title="Vinyals et al. (2015), Table 1: MS COCO development set",
    recipes=RECIPES,
    columns=GENERATION,
    datasets=(COCO.name,),
    rows=(
        _row("NIC", GENERATION, {COCO.name: "27.7 23.7 85.5"}, ours=True),
        _row("Random", GENERATION, {COCO.name: "4.6 9.0 5.1"}),
        _row("Nearest Neighbor", GENERATION, {COCO.name: "9.9 15.7 36.5"}),
        _row("Human", GENERATION, {COCO.name: "21.7 25.2 85.4"}),
    ),
    notes="Our sentences are decoded with a beam of 20, as in the paper, by one model; the paper also combines models.",
    trained_on=(COCO,),
    retrieval=False,
)

TABLE_2 = PublishedTable(
    name="vinyals2015/table2",
    title="Vinyals et al. (2015), Table 2: BLEU-1",
    recipes=RECIPES,
    columns=UNIGRAMS,
    datasets=(PASCAL, FLICKR30K.name, FLICKR8K.name, SBU),
    rows=(
        _row("SOTA", UNIGRAMS, {PASCAL: "25", FLICKR30K.name: "56", FLICKR8K.name: "58", SBU: "19"}),
        _row("NIC", UNIGRAMS, {PASCAL: "59", FLICKR30K.name: "66", FLICKR8K.name: "63", SBU: "28"}, ours=True),
        _row("Human", UNIGRAMS, {PASCAL: "69", FLICKR30K.name: "68", FLICKR8K.name: "70"}),
    ),
    notes=(
        "Our sentences are decoded with a beam of 20, as in the paper, by one model; the paper also combines models. "
        "Limner has no reader of PASCAL and SBU. The rows of single systems before NIC were not verified and are left "
        "out; SOTA is the best of them on each data set."
    ),
    trained_on=(FLICKR30K, FLICKR8K),
    retrieval=False,
)

TABLE_4 = PublishedTable(
    name="vinyals2015/table4",
    title="Vinyals et al. (2015), Table 4: ranking on Flickr8k",
    recipes=RECIPES,
    columns=RANKING,
    datasets=(FLICKR8K.name,),
    rows=(
        _row("DeFrag", RANKING, {FLICKR8K.name: "13 44 14 10 43 15"}),
        _row("m-RNN", RANKING, {FLICKR8K.name: "15 49 11 12 42 15"}),
        _row("NIC", RANKING, {FLICKR8K.name: "20 - 6 19 - 5"}, ours=True),
    ),
    notes=RANKING_NOTE + "R@10 of NIC and the row of MNLM were not verified and are left out.",
    trained_on=(FLICKR8K,),
)

TABLE_5 = PublishedTable(
    name="vinyals2015/table5",
    title="Vinyals et al. (2015), Table 5: ranking on Flickr30k",
    recipes=RECIPES,
    columns=RANKING,
    datasets=(FLICKR30K.name,),
    rows=(
        _row("DeFrag", RANKING, {FLICKR30K.name: "16 55 8 10 45 13"}),
        _row("m-RNN", RANKING, {FLICKR30K.name: "18 51 10 13 42 16"}),
        _row("MNLM", RANKING, {FLICKR30K.name: "23 63 5 17 57 8"}),
        _row("NIC", RANKING, {FLICKR30K.name: "17 56 7 17 57 7"}, ours=True),
    ),
    notes=RANKING_NOTE,
    trained_on=(FLICKR30K,),
)

TABLES = (TABLE_1, TABLE_2, TABLE_4, TABLE_5)
