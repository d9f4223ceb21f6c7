"""Table 1 of Calixto, Elliott and Frank (2016)."""

from __future__ import annotations

from limner.reproduce.tables import PublishedRow, PublishedTable, TableColumn

MULTI30K = "Multi30k"
BASELINES = ("Text-only Attention NMT", "FC7-Multimodal NMT")


def _row(name: str, recipe: str | None, meteor: float) -> PublishedRow:
    baselines = () if recipe is None else BASELINES
    published = {MULTI30K: {"meteor": meteor}}
    return PublishedRow(
        name, recipe, published=published, baselines=baselines, other_authors=name == "Elliott et al. (2015)"
    )


TABLE_1 = PublishedTable(
    name="calixto2016/table1",
    title="Calixto et al. (2016), Table 1: Task 1, English to German",
    recipes="calixto2016",
    columns=(
        TableColumn("meteor", "METEOR ↑", 1),
        TableColumn("bleu4", "BLEU4 ↑", 1),
        TableColumn("ter", "TER ↓", 1),
        TableColumn("chrf3", "chrF3 ↑", 1),
        TableColumn("perplexity", "PPL ↓", 2),
    ),
    datasets=(MULTI30K,),
    rows=(
        _row("Moses", "pbsmt", 52.3),
        _row("CONV5,4-Multimodal NMT", "conv5", 46.4),
        _row("FC7-Multimodal NMT", "fc7", 44.1),
        _row("Text-only Attention NMT", "text", 43.5),
        _row("Elliott et al. (2015)", "independent", 24.7),
    ),
    notes=(
        "The paper reports METEOR without significance tests. Our metrics are computed on cased Moses tokens; German "
        "compounds are split for the models and joined again before evaluation. PPL is the perplexity of the split "
        "tokens given the source; the phrase-based row has none. Our METEOR of German matches words and stems alone: "
        "the paraphrases of the published METEOR are not in its data."
    ),
)
