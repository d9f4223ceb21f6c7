"""Tables 1 to 5, 7 and 8 of Mao, Xu, Yang, Wang, Huang and Yuille (2015); table 6 is in `properties`."""

from __future__ import annotations

from collections.abc import Mapping

from limner.reproduce.datasets import COCO, FLICKR8K, FLICKR30K, IAPR, DataSet
from limner.reproduce.tables import PublishedRow, PublishedTable, TableColumn, read_published

RECIPES = "mao2015"
RECIPE = "{dataset}"
ALEXNET, VGGNET = ("alexnet",), ("vgg16", "vgg19")
"""Feature tables of the backbones of the paper; the "15th layer" of section 4 is fc7 of VGG-16."""
BEAM = ("decoding.beam_size=3",)
"""Beam search of Table 7; the paper does not state its size."""
PERPLEXITY = TableColumn("perplexity", "PPL", 2)
BLEU = tuple(TableColumn(f"bleu{order}", f"B-{order}", 3, scale=0.01) for order in (1, 2, 3, 4))
ROUNDED_BLEU = tuple(column._replace(digits=2) for column in BLEU)
RETRIEVAL = tuple(
    TableColumn(f"{direction}_{score}", f"{label} {heading}", 1)
    for direction, label in (("image_to_text", "I→T"), ("text_to_image", "T→I"))
    for score, heading in (("r1", "R@1"), ("r5", "R@5"), ("r10", "R@10"), ("median_rank", "Med r"))
)
FEATURES_NOTE = (
    "A row reads the features of the paper's backbone, the table 'alexnet' or 'vgg16', if the collection has it; "
    "for VGG then the table 'vgg19'; otherwise those of its recipe. "
)
RETRIEVAL_NOTE = (
    "R@K in percent, and the median rank of the first correct result. Sentences are ranked for an image by their "
    "probability divided by its mean over images of the training split (eq. 7). "
)


OWN = ("Random", "m-RNN-greedy-c40", "m-RNN-beam-c40")
"""Rows without a recipe that are not systems of other authors."""


def _rows(
    columns: Mapping[DataSet, tuple[TableColumn, ...]],
    scores: Mapping[str, Mapping[DataSet, str]],
    ours: Mapping[str, PublishedRow],
) -> tuple[PublishedRow, ...]:
    """Create the rows from their printed scores by data set; those in `ours` have recipes."""
    return tuple(
        ours.get(name, PublishedRow(name, None, other_authors=name not in OWN))._replace(
            published={dataset.name: read_published(columns[dataset], text) for dataset, text in printed.items()}
        )
        for name, printed in scores.items()
    )


def _ours(
    *names: str, features: tuple[str, ...] = (), baselines: tuple[str, ...] = (), changes: tuple[str, ...] = ()
) -> dict[str, PublishedRow]:
    """Create rows of the m-RNN without their scores."""
    return {name: PublishedRow(name, RECIPE, features=features, baselines=baselines, changes=changes) for name in names}


RNN_BASE = "Ours-RNN-Base"
TABLE_1 = PublishedTable(
    name="mao2015/table1",
    title="Mao et al. (2015), Table 1: sentence generation on IAPR TC-12",
    recipes=RECIPES,
    columns=(PERPLEXITY, *BLEU),
    datasets=(IAPR.name,),
    rows=_rows(
        {IAPR: (PERPLEXITY, *BLEU)},
        {
            "LBL": {IAPR: "9.29 0.321 0.145 0.064 -"},
            "MLBLB-AlexNet": {IAPR: "9.86 0.393 0.211 0.112 -"},
            "MLBLF-AlexNet": {IAPR: "9.90 0.387 0.209 0.115 -"},
            "Gupta et al. (2012)": {IAPR: "- 0.15 0.06 0.01 -"},
            "Gupta & Mannem (2012)": {IAPR: "- 0.33 0.18 0.07 -"},
            RNN_BASE: {IAPR: "7.77 0.307 0.177 0.096 0.043"},
            "Ours-m-RNN-AlexNet": {IAPR: "6.92 0.482 0.357 0.269 0.208"},
        },
        _ours(RNN_BASE, changes=("model.variant=RNN-base", "features.tables=[]"))
        | _ours("Ours-m-RNN-AlexNet", features=ALEXNET, baselines=(RNN_BASE,)),
    ),
    notes=FEATURES_NOTE
    + (
        "The paper computes perplexity and BLEU by the settings of Kiros et al. (2014), without stating them again. It "
        "prints updated scores of that paper's models, which differ from those of kiros2014/table1. Ours are the "
        "perplexity of all tokens and BLEU of greedily decoded sentences; evaluation.skip_words=5 computes perplexity "
        "from the sixth word on."
    ),
    trained_on=(IAPR,),
    retrieval=False,
)

TABLE_2 = PublishedTable(
    name="mao2015/table2",
    title="Mao et al. (2015), Table 2: retrieval on IAPR TC-12",
    recipes=RECIPES,
    columns=RETRIEVAL,
    datasets=(IAPR.name,),
    rows=_rows(
        {IAPR: RETRIEVAL},
        {"Ours-m-RNN": {IAPR: "20.9 43.8 54.4 8 13.2 31.2 40.8 21"}},
        _ours("Ours-m-RNN", features=ALEXNET),
    ),
    notes=RETRIEVAL_NOTE + FEATURES_NOTE,
    trained_on=(IAPR,),
)

TABLE_3 = PublishedTable(
    name="mao2015/table3",
    title="Mao et al. (2015), Table 3: retrieval on Flickr8K",
    recipes=RECIPES,
    columns=(*RETRIEVAL, PERPLEXITY, *BLEU),
    datasets=(FLICKR8K.name,),
    rows=_rows(
        {FLICKR8K: (*RETRIEVAL, PERPLEXITY, *BLEU)},
        {
            "Random": {FLICKR8K: "0.1 0.5 1.0 631 0.1 0.5 1.0 500 - - - - -"},
            "SDT-RNN-AlexNet": {FLICKR8K: "4.5 18.0 28.6 32 6.1 18.5 29.0 29 - - - - -"},
            "Socher-avg-RCNN": {FLICKR8K: "6.0 22.7 34.0 23 6.6 21.6 31.7 25 - - - - -"},
            "DeViSE-avg-RCNN": {FLICKR8K: "4.8 16.5 27.3 28 5.9 20.1 29.6 29 - - - - -"},
            "DeepFE-AlexNet": {FLICKR8K: "5.9 19.2 27.3 34 5.2 17.6 26.5 32 - - - - -"},
            "DeepFE-RCNN": {FLICKR8K: "12.6 32.9 44.0 14 9.7 29.6 42.5 15 - - - - -"},
            "Ours-m-RNN-AlexNet": {
                FLICKR8K: "14.5 37.2 48.5 11 11.5 31.0 42.4 15 24.39 0.565 0.386 0.256 0.170",
            },
        },
        _ours("Ours-m-RNN-AlexNet", features=ALEXNET),
    ),
    notes=RETRIEVAL_NOTE + FEATURES_NOTE + "Perplexity and BLEU are from the text of section 7.4.",
    trained_on=(FLICKR8K,),
)

TABLE_4 = PublishedTable(
    name="mao2015/table4",
    title="Mao et al. (2015), Table 4: retrieval on Flickr30K and MS COCO",
    recipes=RECIPES,
    columns=RETRIEVAL,
    datasets=(FLICKR30K.name, COCO.name),
    rows=_rows(
        {FLICKR30K: RETRIEVAL, COCO: RETRIEVAL},
        {
            "Random": {FLICKR30K: "0.1 0.6 1.1 631 0.1 0.5 1.0 500", COCO: "0.1 0.6 1.1 631 0.1 0.5 1.0 500"},
            "DeViSE-avg-RCNN": {FLICKR30K: "4.8 16.5 27.3 28 5.9 20.1 29.6 29"},
            "DeepFE-RCNN": {FLICKR30K: "16.4 40.2 54.7 8 10.3 31.4 44.5 13"},
            "RVR": {FLICKR30K: "12.1 27.8 47.8 11 12.7 33.1 44.9 12.5"},
            "MNLM-AlexNet": {FLICKR30K: "14.8 39.2 50.9 10 11.8 34.0 46.3 13"},
            "MNLM-VggNet": {FLICKR30K: "23.0 50.7 62.9 5 16.8 42.0 56.5 8"},
            "NIC": {FLICKR30K: "17.0 56.0 - 7 17.0 57.0 - 7"},
            "LRCN": {FLICKR30K: "14.0 34.9 47.0 11 - - - -"},
            "DeepVS": {FLICKR30K: "22.2 48.2 61.4 4.8 15.2 37.7 50.5 9.2"},
            "DeepVS-RCNN": {COCO: "29.4 62.0 75.9 2.5 20.9 52.8 69.2 4"},
            "Ours-m-RNN-AlexNet": {FLICKR30K: "18.4 40.2 50.9 10 12.6 31.2 41.5 16"},
            "Ours-m-RNN-VggNet": {
                FLICKR30K: "35.4 63.8 73.7 3 22.8 50.7 63.1 5",
                COCO: "41.0 73.0 83.5 2 29.0 42.2 77.0 3",
            },
        },
        _ours("Ours-m-RNN-AlexNet", features=ALEXNET) | _ours("Ours-m-RNN-VggNet", features=VGGNET),
    ),
    notes=RETRIEVAL_NOTE
    + FEATURES_NOTE
    + (
        "The paper prints R@10 of NIC as R@5. Its T→I R@5 of 42.2 on MS COCO, between R@1 of 29.0 and R@10 of 77.0, is "
        "shown as printed."
    ),
    trained_on=(FLICKR30K, COCO),
)

TABLE_5 = PublishedTable(
    name="mao2015/table5",
    title="Mao et al. (2015), Table 5: sentence generation on Flickr30K and MS COCO",
    recipes=RECIPES,
    columns=(PERPLEXITY, *ROUNDED_BLEU),
    datasets=(FLICKR30K.name, COCO.name),
    rows=_rows(
        {FLICKR30K: (PERPLEXITY, *ROUNDED_BLEU), COCO: (PERPLEXITY, *ROUNDED_BLEU)},
        {
            "RVR": {FLICKR30K: "- - - - 0.13", COCO: "- - - - 0.19"},
            "DeepVS-AlexNet": {FLICKR30K: "- 0.47 0.21 0.09 -", COCO: "- 0.53 0.28 0.15 -"},
            "DeepVS-VggNet": {FLICKR30K: "21.20 0.50 0.30 0.15 -", COCO: "19.64 0.57 0.37 0.19 -"},
            "NIC": {FLICKR30K: "- 0.66 - - -", COCO: "- 0.67 - - -"},
            "LRCN": {FLICKR30K: "- 0.59 0.39 0.25 0.16", COCO: "- 0.63 0.44 0.31 0.21"},
            "DMSM": {COCO: "- - - - 0.21"},
            "Ours-m-RNN-AlexNet": {FLICKR30K: "35.11 0.54 0.36 0.23 0.15"},
            "Ours-m-RNN-VggNet": {FLICKR30K: "20.72 0.60 0.41 0.28 0.19", COCO: "13.60 0.67 0.49 0.35 0.25"},
        },
        _ours("Ours-m-RNN-AlexNet", features=ALEXNET) | _ours("Ours-m-RNN-VggNet", features=VGGNET),
    ),
    notes=FEATURES_NOTE
    + "Our sentences are decoded greedily, as in the paper; it says that NIC, LRCN and DMSM use beam search.",
    trained_on=(FLICKR30K, COCO),
    retrieval=False,
)

SERVER = (
    *(column._replace(label=column.label.replace("-", "")) for column in BLEU),
    TableColumn("cider", "CIDEr", 3, scale=0.01),
    TableColumn("rouge_l", "ROUGE_L", 3, scale=0.01),
    TableColumn("meteor", "METEOR", 3, scale=0.01),
)
GREEDY_ROW, BEAM_ROW = "m-RNN-greedy-c5", "m-RNN-beam-c5"
TABLE_7 = PublishedTable(
    name="mao2015/table7",
    title="Mao et al. (2015), Table 7: MS COCO evaluation server",
    recipes=RECIPES,
    columns=SERVER,
    datasets=(COCO.name,),
    rows=_rows(
        {COCO: SERVER},
        {
            GREEDY_ROW: {COCO: "0.668 0.488 0.342 0.239 0.729 0.489 0.221"},
            "m-RNN-greedy-c40": {COCO: "0.845 0.730 0.598 0.473 0.740 0.616 0.291"},
            BEAM_ROW: {COCO: "0.680 0.506 0.369 0.272 0.791 0.499 0.225"},
            "m-RNN-beam-c40": {COCO: "0.865 0.760 0.641 0.529 0.789 0.640 0.304"},
        },
        {
            GREEDY_ROW: PublishedRow(GREEDY_ROW, RECIPE, features=VGGNET),
            BEAM_ROW: PublishedRow(BEAM_ROW, RECIPE, features=VGGNET, evaluation=BEAM, baselines=(GREEDY_ROW,)),
        },
    ),
    notes=FEATURES_NOTE
    + (
        "The published scores are those of the evaluation server, on the test images, whose references are not public; "
        "ours are on the test split of the collection with its references. The rows with 40 references (c40) have "
        "published scores only. Both of our rows decode the same model; the paper does not state its beam size, ours "
        "is 3."
    ),
    trained_on=(COCO,),
    retrieval=False,
)

VARIANTS = {
    "m-RNN": ((), "0.600 0.412 0.278 0.187"),
    "m-RNN-NoEmbInput": (("model.variant=NoEmbInput",), "0.592 0.408 0.277 0.188"),
    "m-RNN-OneLayerEmb": (("model.variant=OneLayerEmb",), "0.594 0.406 0.274 0.184"),
    "m-RNN-EmbOneInput": (("model.variant=EmbOneInput",), "0.590 0.406 0.274 0.185"),
    "m-RNN-visInRnn": (("model.variant=visInRnn",), "0.466 0.267 0.157 0.101"),
    "m-RNN-visInRnn-both": (("model.variant=visInRnn-both",), "0.546 0.333 0.191 0.120"),
    "m-RNN-visInRnn-both-shared": (
        ("model.variant=visInRnn-both-shared", "model.multimodal_dim=256"),
        "0.478 0.279 0.171 0.110",
    ),
}
"""Rows of Table 8: settings and scores. One matrix serves two layers of the last one, so they have the same size."""
TABLE_8 = PublishedTable(
    name="mao2015/table8",
    title="Mao et al. (2015), Table 8: versions of the m-RNN on Flickr30K",
    recipes=RECIPES,
    columns=BLEU,
    datasets=(FLICKR30K.name,),
    rows=_rows(
        {FLICKR30K: BLEU},
        {name: {FLICKR30K: scores} for name, (_, scores) in VARIANTS.items()},
        {
            name: PublishedRow(name, RECIPE, features=VGGNET, changes=changes, baselines=("m-RNN",) if changes else ())
            for name, (changes, _) in VARIANTS.items()
        },
    ),
    notes=FEATURES_NOTE
    + (
        "The multimodal layer of m-RNN-visInRnn-both-shared has 256 units. The paper trains the visInRnn rows with a "
        "very small learning rate; ours have that of the recipe. On Flickr8k, only the order of the rows compares."
    ),
    trained_on=(FLICKR30K, FLICKR8K),
    retrieval=False,
)

TABLES = (TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5, TABLE_7, TABLE_8)
