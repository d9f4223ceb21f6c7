"""Table 1 and Figure 2 of Kiros, Salakhutdinov and Zemel (2014)."""

from __future__ import annotations

from limner.reproduce.tables import Column, Row, Table

IAPR, ATTRIBUTES = "IAPR TC-12", "Attributes"
MEASURED = ("perplexity", "sampled_bleu1", "sampled_bleu2", "sampled_bleu3")
DECAYS = tuple(
    (f"training.weight_decay={{'*bias': 0.0, '*': {decay}}}",) for decay in ("0.0", "1.0e-6", "1.0e-5", "1.0e-4")
)
"""What the bag-of-words models' weight decay is chosen from, on the validation split."""


def _row(
    name: str,
    recipe: str,
    iapr: tuple[float, ...] = (),
    attributes: tuple[float, ...] = (),
    *,
    shuffled: bool = False,
    choices: tuple[tuple[str, ...], ...] = ((),),
) -> Row:
    published = {
        data: dict(zip(MEASURED, values, strict=True))
        for data, values in ((IAPR, iapr), (ATTRIBUTES, attributes))
        if values
    }
    return Row(name, recipe, "shuffled" if shuffled else "right", choices, published)


TABLE_1 = Table(
    name="kiros2014/table1",
    title="Kiros et al. (2014), Table 1 and Figure 2",
    recipes="kiros2014",
    columns=(
        Column("perplexity", "PPL", 2),
        Column("sampled_bleu1", "B-1", 3, scale=0.01),
        Column("sampled_bleu2", "B-2", 3, scale=0.01),
        Column("sampled_bleu3", "B-3", 3, scale=0.01),
        Column("text_to_image_match_area", "T→I area", 1),
        Column("image_to_text_match_area", "I→T area", 1),
    ),
    published=(IAPR, ATTRIBUTES),
    rows=(
        _row("Back-off GT2", "gt2", (54.5, 32.3, 14.5, 5.9), (117.7, 16.3, 3.3, 0.9)),
        _row("Back-off GT3", "gt3", (55.6, 31.2, 13.1, 5.9), (93.4, 16.6, 3.2, 1.1)),
        _row("LBL", "lbl", (20.1, 32.7, 14.4, 6.8), (97.6, 16.1, 3.1, 0.9)),
        _row("MLBL-B-conv-R", "mlbl-b-conv", (28.7, 32.5, 14.3, 6.9), (154.4, 16.6, 3.5, 1.2), shuffled=True),
        _row("MLBL-F-conv-R", "mlbl-f-conv", shuffled=True),
        _row("MLBL-B-R", "mlbl-b", shuffled=True),
        _row("MLBL-F-R", "mlbl-f", shuffled=True),
        _row("MLBL-B", "mlbl-b", (18.0, 34.9, 16.1, 7.9)),
        _row("MLBL-F", "mlbl-f", (20.3, 34.8, 16.5, 8.5)),
        _row("MLBL-B-conv", "mlbl-b-conv", (20.6, 34.9, 16.5, 8.5), (99.2, 18.9, 4.8, 1.7)),
        _row("MLBL-F-conv", "mlbl-f-conv", (21.7, 34.1, 15.6, 7.3), (113.2, 17.5, 4.2, 1.4)),
        _row("bow-f", "bow-f", choices=DECAYS),
        _row("bow-k", "bow-k", choices=DECAYS[::2]),
    ),
    notes=(
        "Perplexity counts from word 6 on, without descriptions of fewer than 8 words. BLEU is of sampled descriptions "
        "that begin with the first five words of the reference and are as long; only what follows these words is "
        "scored; mean and standard deviation of ten samplings (of fewer with a budget). -R is the same model shown "
        "other items' pictures. Areas are those under the curves of Figure 2 in percent; for I→T among the "
        "descriptions of the 100 nearest pictures, where a random order has more than 50 if a picture has several (the "
        "signature says how much). bow scores descriptions by the mean probability of their words; its perplexity is "
        "that of words drawn by these, whatever came before."
    ),
)
