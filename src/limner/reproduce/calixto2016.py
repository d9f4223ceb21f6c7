"""Table 1 of Calixto, Elliott and Frank (2016)."""

from __future__ import annotations

from limner.reproduce.tables import Column, Row, Table

MULTI30K = "Multi30k"
BASELINES = ("Text-only Attention NMT", "FC7-Multimodal NMT")


def _row(name: str, recipe: str | None, meteor: float) -> Row:
    against = () if recipe is None else BASELINES
    return Row(name, recipe, published={MULTI30K: {"meteor": meteor}}, against=against)


TABLE_1 = Table(
    name="calixto2016/table1",
    title="Calixto et al. (2016), Table 1: Task 1, English to German",
    recipes="calixto2016",
    columns=(
        Column("meteor", "METEOR ↑", 1),
        Column("bleu4", "BLEU4 ↑", 1),
        Column("ter", "TER ↓", 1),
        Column("chrf3", "chrF3 ↑", 1),
        Column("perplexity", "PPL ↓", 2),
    ),
    published=(MULTI30K,),
    rows=(
        _row("Moses", None, 52.3),
        _row("CONV5,4-Multimodal NMT", "conv5", 46.4),
        _row("FC7-Multimodal NMT", "fc7", 44.1),
        _row("Text-only Attention NMT", "text", 43.5),
        _row("Elliott et al. (2015)", "independent", 24.7),
    ),
    notes=(
        "The paper prints METEOR alone, and tests nothing. The metrics are of tokens as Moses makes them, with "
        "capitals; German compounds enter the models by their parts, and are whole again where they are measured. PPL "
        "is the perplexity of the parts, given the source. Moses is shown as printed."
    ),
)
