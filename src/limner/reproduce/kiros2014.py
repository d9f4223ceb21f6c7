"""Table 1 and Figure 2 of Kiros, Salakhutdinov and Zemel (2014)."""

from __future__ import annotations

from limner.features.controls import ImageControl
from limner.reproduce.tables import PublishedRow, PublishedTable, TableColumn

IAPR, ATTRIBUTES = "IAPR TC-12", "Attributes"
SCORES = ("perplexity", "sampled_bleu1", "sampled_bleu2", "sampled_bleu3")
DECAYS = tuple(
    (f"training.weight_decay={{'*bias': 0.0, '*': {decay}}}",) for decay in ("0.0", "1.0e-6", "1.0e-5", "1.0e-4")
)
"""Weight decays of the bag-of-words models, selected on the validation split."""


def _row(
    name: str,
    recipe: str | None,
    iapr: tuple[float | None, ...] = (),
    attributes: tuple[float | None, ...] = (),
    *,
    shuffled: bool = False,
    baselines: tuple[str, ...] = (),
    alternatives: tuple[tuple[str, ...], ...] = ((),),
    other_authors: bool = False,
) -> PublishedRow:
    published = {
        dataset: {score: value for score, value in zip(SCORES, values, strict=True) if value is not None}
        for dataset, values in ((IAPR, iapr), (ATTRIBUTES, attributes))
        if values
    }
    control: ImageControl = "shuffled" if shuffled else "right"
    return PublishedRow(
        name, recipe, control, alternatives, published, baselines=baselines, other_authors=other_authors
    )


TABLE_1 = PublishedTable(
    name="kiros2014/table1",
    title="Kiros et al. (2014), Table 1 and Figure 2",
    recipes="kiros2014",
    columns=(
        TableColumn("perplexity", "PPL", 2),
        TableColumn("sampled_bleu1", "B-1", 3, scale=0.01),
        TableColumn("sampled_bleu2", "B-2", 3, scale=0.01),
        TableColumn("sampled_bleu3", "B-3", 3, scale=0.01),
        TableColumn("text_to_image_match_area", "T→I area", 1),
        TableColumn("image_to_text_match_area", "I→T area", 1),
    ),
    datasets=(IAPR, ATTRIBUTES),
    rows=(
        _row("Back-off GT2", "gt2", (54.5, 32.3, 14.5, 5.9), (117.7, 16.3, 3.3, 0.9)),
        _row("Back-off GT3", "gt3", (55.6, 31.2, 13.1, 5.9), (93.4, 16.6, 3.2, 1.1)),
        _row("LBL", "lbl", (20.1, 32.7, 14.4, 6.8), (97.6, 16.1, 3.1, 0.9)),
        _row("MLBL-B-conv-R", "mlbl-b-conv", (28.7, 32.5, 14.3, 6.9), (154.4, 16.6, 3.5, 1.2), shuffled=True),
        _row("MLBL-F-conv-R", "mlbl-f-conv", shuffled=True),
        _row("MLBL-B-R", "mlbl-b", shuffled=True),
        _row("MLBL-F-R", "mlbl-f", shuffled=True),
        _row("MLBL-B", "mlbl-b", (18.0, 34.9, 16.1, 7.9), baselines=("LBL", "MLBL-B-R")),
        _row("MLBL-F", "mlbl-f", (20.3, 34.8, 16.5, 8.5), baselines=("LBL", "MLBL-F-R")),
        _row(
            "MLBL-B-conv",
            "mlbl-b-conv",
            (20.6, 34.9, 16.5, 8.5),
            (99.2, 18.9, 4.8, 1.7),
            baselines=("LBL", "MLBL-B-conv-R"),
        ),
        _row(
            "MLBL-F-conv",
            "mlbl-f-conv",
            (21.7, 34.1, 15.6, 7.3),
            (113.2, 17.5, 4.2, 1.4),
            baselines=("LBL", "MLBL-F-conv-R"),
        ),
        _row("LBL, random word initialisation", None, (23.4, None, None, None), (109.6, None, None, None)),
        _row("Gupta et al.", None, (None, 15.0, 6.0, 1.0), other_authors=True),
        _row("Gupta & Mannem", None, (None, 33.0, 18.0, 7.0), other_authors=True),
        _row("bow-f", "bow-f", alternatives=DECAYS),
        _row("bow-k", "bow-k", alternatives=DECAYS[::2]),
    ),
    notes=(
        "Descriptions of IAPR TC-12 are whole, with ';' as a token ('limner import iapr --descriptions whole'). "
        "Perplexity is computed from word 6 on, without descriptions of fewer than 8 words. BLEU is that of sampled "
        "descriptions that start with the first five words of the reference and have its length, without these five "
        "words: the mean of ten samples (fewer with a budget). Our log-bilinear models start from random word "
        "embeddings, like the paper's row 'LBL, random word initialisation'; its other rows start from pre-trained "
        "ones. -R: the same model with shuffled images. Areas are those under the curves of Figure 2, in percent; "
        "for I→T among the descriptions of the 100 nearest images, where a random order has more than 50 if an "
        "image has several descriptions (see the signature). bow scores a description by the mean probability of "
        "its words; its perplexity is that of words drawn independently from this distribution."
    ),
)
