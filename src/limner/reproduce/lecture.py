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
        TableColumn("cider", "CIDEr", 1),
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
        PublishedRow("GRU, reset before the product", "gru"),
    ),
    notes=(
        "All rows have the same sizes, optimizer, number of epochs and image conditioning; the number of parameters "
        "differs with the number of gates. The GRU resets the state before the recurrent product (Cho et al., 2014), "
        "cell 'gru-before'; that of cuDNN and PyTorch resets the product. Minutes are those of the training steps. "
        "The recipes train with products in bfloat16, where every cell is computed by its equations; in float32, "
        "tanh, ReLU and LSTM would use kernels of torch and the other cells not. Norms of the Jacobian of the whole "
        "state (for an LSTM h and c) on the validation split after training are root mean square singular values, 1 "
        "for an identity; λ is the factor per token fitted to all distances, each weighted by its number of pairs."
    ),
    retrieval=False,
    gradients=True,
)
