"""Comparison of recurrent cells, after the part of the lecture on long-term dependencies."""

from __future__ import annotations

from limner.reproduce.tables import PublishedRow, PublishedTable, TableColumn

CELLS = PublishedTable(
    name="lecture/cells",
    title="Recurrent cells as generators of captions",
    recipes="lecture/cells",
    columns=(
        TableColumn("perplexity", "PPL", 2),
        TableColumn("bleu4", "BLEU-4", 1),
        TableColumn("cider", "CIDEr", 3),
        TableColumn("training_minutes", "min", 1),
        TableColumn("gradient_1", "‖∂s_t/∂s_{t-1}‖", 3),
        TableColumn("gradient_5", "‖∂s_t/∂s_{t-5}‖", 3),
        TableColumn("gradient_10", "‖∂s_t/∂s_{t-10}‖", 4),
        TableColumn("gradient_factor", "λ", 3),
    ),
    datasets=(),
    rows=(
        PublishedRow("tanh (Elman)", "tanh"),
        PublishedRow("ReLU", "relu"),
        PublishedRow("leaky", "leaky"),
        PublishedRow("LSTM", "lstm"),
        PublishedRow("LSTM, peepholes", "peephole"),
        PublishedRow("LSTM, coupled gates", "coupled"),
        PublishedRow("GRU", "gru"),
    ),
    notes=(
        "All rows have the same sizes, optimizer, number of epochs and image conditioning; the number of parameters "
        "differs with the number of gates. Minutes are those of the training steps; where products are in bfloat16, no "
        "cell has a fused kernel. Norms of the Jacobian of the whole state (for an LSTM h and c) on the validation "
        "split after training are root mean square singular values, 1 for an identity; λ is the factor per token "
        "fitted to all distances."
    ),
    retrieval=False,
    gradients=True,
)
