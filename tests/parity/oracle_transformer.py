"""A slow oracle of the Transformer, written from sections 3.1 to 3.5 of Vaswani et al. (2017) in NumPy float64.

One sentence pair, one position and one head at a time; nothing is batched, so each line can be read against
"Attention Is All You Need". Vectors are rows and multiply matrices from the left, as printed. There is no
dropout: the oracle is the network at evaluation.

Where the paper is silent, the oracle reads it so:

- layer normalisation (cited, not printed) has gain and bias, the biased variance and epsilon 1e-5 under the root.
- positions are counted from 0. The factor sqrt(d_model) is on the embeddings, not on the positional encodings.
- a stack ends with the norm of its last sub-layer; no other norm follows.
- the pre-softmax matrix is the transpose of E_y, without the factor sqrt(d_model) and without a bias.
- source and target have tables of their own (the paper shares one between both).

Names of the weights, for l = 1 ... layers, are in `parity_models.transformer_weights`: W_Q, W_K and W_V hold the
matrices W_i of the heads side by side (d_k = d_v = d / h columns each), W_O follows their concatenation.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Weights = Mapping[str, Array]
Tokens = Sequence[int]

EPSILON = 1e-5


def positional_encoding(position: int, d: int) -> Array:
    """PE(pos, .) of section 3.5, (d,)."""
    encoding = np.zeros(d)
    for column in range(d):
        i = column // 2
        angle = position / 10000.0 ** (2 * i / d)
        encoding[column] = math.sin(angle) if column % 2 == 0 else math.cos(angle)
    return encoding


def embed(table: Array, tokens: Tokens) -> Array:
    """Embeddings times sqrt(d_model) (section 3.4) plus positional encodings (section 3.5), (len(tokens), d)."""
    d = table.shape[1]
    return np.array([math.sqrt(d) * table[token] + positional_encoding(n, d) for n, token in enumerate(tokens)])


def layer_norm(weights: Weights, name: str, x: Array) -> Array:
    """LayerNorm of section 3.1, each position by itself, (n, d) to (n, d)."""
    rows = []
    for row in x:
        mean = row.sum() / len(row)
        variance = ((row - mean) ** 2).sum() / len(row)
        rows.append(weights[f"{name}.gain"] * (row - mean) / math.sqrt(variance + EPSILON) + weights[f"{name}.bias"])
    return np.array(rows)


def softmax(scores: Array) -> Array:
    """exp(scores) divided by its sum, (n,); -inf gives 0."""
    powers = np.exp(scores - scores.max())
    normalised: Array = powers / powers.sum()
    return normalised


def attention(q: Array, k: Array, v: Array, *, causal: bool) -> tuple[Array, Array]:
    """Scaled dot-product attention, eq. 1.

    Args:
        q: queries, (n, d_k).
        k: keys, (m, d_k).
        v: values, (m, d_v).
        causal: mask later positions: their scores are -inf (section 3.2.3).

    Returns:
        The output, (n, d_v), and the weights of the values, (n, m).
    """
    scores = np.full((len(q), len(k)), -np.inf)
    for i in range(len(q)):
        for j in range(len(k)):
            if not causal or j <= i:
                scores[i, j] = (q[i] @ k[j]) / math.sqrt(k.shape[1])
    attended = np.array([softmax(row) for row in scores])
    return attended @ v, attended


def multi_head(
    weights: Weights, name: str, x: Array, memory: Array, *, heads: int, causal: bool = False
) -> tuple[Array, Array]:
    """MultiHead(x, memory, memory) of section 3.2.2; self-attention has x for memory.

    Returns:
        The output, (n, d), and the mean of the attention weights over heads, (n, m).
    """
    width = x.shape[1] // heads
    outputs, all_weights = [], []
    for head in range(heads):
        columns = slice(head * width, (head + 1) * width)
        q = x @ weights[f"{name}.W_Q"][:, columns]
        k = memory @ weights[f"{name}.W_K"][:, columns]
        v = memory @ weights[f"{name}.W_V"][:, columns]
        output, attended = attention(q, k, v, causal=causal)
        outputs.append(output)
        all_weights.append(attended)
    return np.concatenate(outputs, axis=1) @ weights[f"{name}.W_O"], np.mean(all_weights, axis=0)


def feed_forward(weights: Weights, name: str, x: Array) -> Array:
    """FFN, eq. 2, (n, d) to (n, d)."""
    hidden = np.maximum(0.0, x @ weights[f"{name}.W_1"] + weights[f"{name}.b_1"])
    return hidden @ weights[f"{name}.W_2"] + weights[f"{name}.b_2"]


def encode(weights: Weights, source: Tokens, *, layers: int, heads: int) -> Array:
    """The encoder of section 3.1, (S, d). Each sub-layer is LayerNorm(x + Sublayer(x))."""
    x = embed(weights["E_x"], source)
    for layer in range(1, layers + 1):
        name = f"enc.{layer}"
        x = layer_norm(weights, f"{name}.norm_1", x + multi_head(weights, name, x, x, heads=heads)[0])
        x = layer_norm(weights, f"{name}.norm_2", x + feed_forward(weights, name, x))
    return x


def decode(weights: Weights, memory: Array, target_in: Tokens, *, layers: int, heads: int) -> tuple[Array, Array]:
    """The decoder of section 3.1; every layer attends to `memory`, the output of the whole encoder.

    Returns:
        Its output, (T, d), and the attention weights over memory in the last layer, mean over heads, (T, S).
    """
    x = embed(weights["E_y"], target_in)
    attended = np.zeros((len(target_in), len(memory)))
    for layer in range(1, layers + 1):
        name = f"dec.{layer}"
        output, _ = multi_head(weights, f"{name}.self", x, x, heads=heads, causal=True)
        x = layer_norm(weights, f"{name}.norm_1", x + output)
        output, attended = multi_head(weights, f"{name}.cross", x, memory, heads=heads)
        x = layer_norm(weights, f"{name}.norm_2", x + output)
        x = layer_norm(weights, f"{name}.norm_3", x + feed_forward(weights, name, x))
    return x, attended


def logits(weights: Weights, source: Tokens, target_in: Tokens, *, layers: int, heads: int) -> Array:
    """Scores of the next token after each token of `target_in` (teacher forcing), before the softmax, (T, V_y)."""
    memory = encode(weights, source, layers=layers, heads=heads)
    x, _ = decode(weights, memory, target_in, layers=layers, heads=heads)
    return x @ weights["E_y"].T


def cross_attention(weights: Weights, source: Tokens, target_in: Tokens, *, layers: int, heads: int) -> Array:
    """Weights of the last decoder layer's attention over the encoder output, mean over heads, (T, S)."""
    memory = encode(weights, source, layers=layers, heads=heads)
    return decode(weights, memory, target_in, layers=layers, heads=heads)[1]
