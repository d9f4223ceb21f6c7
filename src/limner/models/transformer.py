"""Translation by attention alone: Vaswani et al. (2017).

Shapes: B batch, T target length, S source length, H hidden, V vocabulary, N examples, K hypotheses of each.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, NamedTuple, Self, cast

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from limner.bounds import Layers, Rate, Width
from limner.data.examples import Batch
from limner.layers.functional import at_least_float32, precise
from limner.models.protocols import ConditionalLMSettings, ModelInputs, Output


class TransformerSettings(ConditionalLMSettings):
    """Settings of the Transformer; the sizes follow the base model of Vaswani et al. (2017), Table 3."""

    translates: ClassVar = True
    has_growing_state: ClassVar = True
    name: Literal["transformer"] = "transformer"
    layers: Layers = 6
    """Number of layers of the encoder, and of the decoder."""
    hidden_dim: Width = 512
    """Size H of the embeddings and of the output of every layer (d_model); a multiple of twice `heads`."""
    inner_dim: Width = 2048
    """Size of the hidden layer of the feed-forward networks (d_ff)."""
    heads: Width = 8
    """Number of attention heads."""
    dropout: Rate = 0.1
    """Dropout rate of the embeddings with their positions, and of the output of every sub-layer."""
    norm: Literal["post", "pre"] = "post"
    """Place of the layer normalisation: after the sum of a sub-layer and its input, as printed, or before each
    sub-layer and after the stack (Wang et al., 2019)."""
    share_embeddings: bool = True
    """Whether the source embeddings are the target embeddings, which are the vocabulary weights in any case (section
    3.4); needs `data.joint_vocabulary`."""

    @property
    def shares_embeddings(self) -> bool:
        return self.share_embeddings

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.hidden_dim % (2 * self.heads):
            raise ValueError(f"hidden_dim ({self.hidden_dim}) must be a multiple of twice heads ({self.heads})")
        return self


class TransformerMemory(NamedTuple):
    """Keys and values of the source tokens for every layer of the decoder, one row per example."""

    source: Tensor  # (N, layers, S, 2 H)
    mask: Tensor  # (N, 1, S) bool: true for tokens that are read


class TransformerState(NamedTuple):
    """Keys and values of the target tokens so far, for every layer of the decoder."""

    target: tuple[Tensor, ...]  # (N K, T, 2 H) each


class MultiHeadAttention(nn.Module):
    """Multi-head attention, section 3.2.2: the heads' projections side by side, without biases as printed."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim, bias=False)  # W^Q
        self.key_value = nn.Linear(dim, 2 * dim, bias=False)  # W^K, W^V
        self.output = nn.Linear(dim, dim, bias=False)  # W^O

    def forward(self, x: Tensor, read: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute Concat(head_1, …, head_h) W^O with head_i = softmax(Q K^T / sqrt(d_k)) V (eq. 1).

        Args:
            x: vectors of the queries, (N, T, H).
            read: keys and values as `key_value` computes them, (N, L, 2 H).
            mask: true where a query reads, (N, T or 1, L); None if it reads everything.

        Returns:
            Vectors (N, T, H), and the weights of the heads, (N, h, T, L).
        """
        query, (key, value) = self._split(self.query(x)), map(self._split, read.chunk(2, -1))
        scores = precise(query @ key.transpose(2, 3)) / math.sqrt(key.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], -math.inf)
        alpha = scores.softmax(-1)
        heads = alpha.to(value.dtype) @ value
        return self.output(heads.transpose(1, 2).flatten(2)), alpha

    def _split(self, x: Tensor) -> Tensor:
        """Split vectors (N, T, H) among the heads, (N, h, T, H / h)."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class Layer(nn.Module):
    """Base of encoder and decoder layers: sub-layers in residual connections, LayerNorm(x + Sublayer(x))."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        dim, self.rate, self.norms_inputs = settings.hidden_dim, settings.dropout, settings.norm == "pre"
        self.self_attention = MultiHeadAttention(dim, settings.heads)
        self.self_attention_norm = nn.LayerNorm(dim)
        self.inner, self.outer = nn.Linear(dim, settings.inner_dim), nn.Linear(settings.inner_dim, dim)
        self.feed_forward_norm = nn.LayerNorm(dim)

    def read(self, x: Tensor) -> Tensor:
        """Compute the keys and values (N, T, 2 H) of the self-attention."""
        keys_values: Tensor = self.self_attention.key_value(self.before(x, self.self_attention_norm))
        return keys_values

    def before(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Return the input of a sub-layer: x, or LayerNorm(x)."""
        normalised: Tensor = norm(x) if self.norms_inputs else x
        return normalised

    def after(self, x: Tensor, sublayer: Tensor, norm: nn.LayerNorm) -> Tensor:
        """Return LayerNorm(x + Sublayer(x)) (sections 3.1 and 5.4), or x + Sublayer(LayerNorm(x))."""
        summed = x + dropout(sublayer, self.rate, self.training)
        normalised: Tensor = summed if self.norms_inputs else norm(summed)
        return normalised

    def feed_forward(self, x: Tensor) -> Tensor:
        """Compute FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (eq. 2) and its residual connection."""
        output = self.outer(torch.relu(self.inner(self.before(x, self.feed_forward_norm))))
        return self.after(x, output, self.feed_forward_norm)


class EncoderLayer(Layer):
    """A layer of the encoder: self-attention and a feed-forward network."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Compute the next representation (N, S, H) of source tokens; `mask` (N, 1, S) is true for tokens to read."""
        attended, _ = self.self_attention(self.before(x, self.self_attention_norm), self.read(x), mask)
        return self.feed_forward(self.after(x, attended, self.self_attention_norm))


class DecoderLayer(Layer):
    """A layer of the decoder: self-attention, attention to the source and a feed-forward network."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__(settings)
        self.source_attention = MultiHeadAttention(settings.hidden_dim, settings.heads)
        self.source_attention_norm = nn.LayerNorm(settings.hidden_dim)

    def forward(
        self, x: Tensor, target: Tensor, causal: Tensor | None, source: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the next representation of target tokens.

        Args:
            x: tokens of N K hypotheses, (N K, T, H); the hypotheses of an example are adjacent.
            target: keys and values of these and all previous tokens, (N K, L, 2 H).
            causal: true where a token reads a position of `target`, (1, T, L); None if it reads all.
            source: keys and values of the source tokens, (N, S, 2 H).
            mask: true for source tokens that are read, (N, 1, S).

        Returns:
            Representation (N K, T, H), and the weights of the heads over the source, (N, h, K T, S).
        """
        attended, _ = self.self_attention(self.before(x, self.self_attention_norm), target, causal)
        x = self.after(x, attended, self.self_attention_norm)
        query = self.before(x, self.source_attention_norm).reshape(len(source), -1, x.shape[-1])
        attended, alpha = self.source_attention(query, source, mask)
        return self.feed_forward(self.after(x, attended.view(x.shape), self.source_attention_norm)), alpha


class Transformer(nn.Module):
    """The Transformer of Vaswani et al. (2017), section 3, for text-only translation.

    `own/translate-transformer` has the sizes that Wu et al. (2021, "Good for Misconceived Reasons") found best for the
    29,000 pairs of Multi30k. The alignment of a token is the attention of the last layer of the decoder to the source
    tokens, mean over the heads.

    Departures from the paper: `norm: pre`; an empty source sentence is read as one padding token. The paper gives no
    initialisation; embeddings are Gaussian with the standard deviation H^-1/2, so that they have the size of the
    positions after the multiplication by H^1/2, and weights are uniform (Glorot and Bengio, 2010).
    """

    Settings: ClassVar = TransformerSettings
    uses_image = False

    def __init__(self, settings: TransformerSettings, inputs: ModelInputs) -> None:
        super().__init__()
        assert inputs.source_vocab_size is not None, "a translation model has a source vocabulary"
        self.settings, self.vocab_size = settings, inputs.vocab_size
        self.target_embedding = nn.Embedding(inputs.vocab_size, settings.hidden_dim)
        self.source_embedding = None
        if not settings.share_embeddings:
            self.source_embedding = nn.Embedding(inputs.source_vocab_size, settings.hidden_dim)
        self.encoder = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.layers))
        self.decoder = nn.ModuleList(DecoderLayer(settings) for _ in range(settings.layers))
        self.encoder_norm, self.decoder_norm = (
            nn.LayerNorm(settings.hidden_dim) if settings.norm == "pre" else nn.Identity() for _ in range(2)
        )
        for layer in self.modules():
            if isinstance(layer, nn.Embedding):
                nn.init.normal_(layer.weight, std=settings.hidden_dim**-0.5)
            elif isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def encode(self, batch: Batch) -> TransformerMemory:
        """Encode the source tokens, and compute their keys and values for every layer of the decoder."""
        assert batch.source is not None and batch.source_mask is not None, "a translation has a source sentence"
        is_empty = ~batch.source_mask.any(1)
        mask = torch.cat([batch.source_mask[:, :1] | is_empty[:, None], batch.source_mask[:, 1:]], 1)[:, None]
        embedding = self.target_embedding if self.source_embedding is None else self.source_embedding
        x = self._embed(embedding, batch.source)
        for layer in self.encoder:
            x = layer(x, mask)
        x = self.encoder_norm(x)
        read = [layer.source_attention.key_value(x) for layer in self._decoder_layers]
        return TransformerMemory(torch.stack(read, 1), mask)

    @property
    def _decoder_layers(self) -> list[DecoderLayer]:
        return cast("list[DecoderLayer]", list(self.decoder))

    def _embed(self, embedding: nn.Embedding, tokens: Tensor, first: int = 0) -> Tensor:
        """Embed tokens (N, T) at the positions from `first` on: (N, T, H) (sections 3.4 and 3.5)."""
        dim = self.settings.hidden_dim
        x = embedding(tokens) * math.sqrt(dim)
        x = x + positions(first, tokens.shape[1], dim, x).to(x.dtype)
        return dropout(x, self.settings.dropout, self.training)

    def start(self, memory: TransformerMemory) -> TransformerState:
        """Return the state before the first token: no keys and values."""
        examples, layers, _, size = memory.source.shape
        return TransformerState(tuple(memory.source.new_zeros(examples, 0, size) for _ in range(layers)))

    def step(
        self, tokens: Tensor, memory: TransformerMemory, state: TransformerState
    ) -> tuple[Tensor, TransformerState]:
        x = self._embed(self.target_embedding, tokens[:, None], first=state.target[0].shape[1])
        after: list[Tensor] = []
        for layer, before, source in zip(self._decoder_layers, state.target, memory.source.unbind(1), strict=True):
            after.append(torch.cat([before, layer.read(x).to(before.dtype)], 1))
            x, _ = layer(x, after[-1], None, source, memory.mask)
        return linear(self.decoder_norm(x[:, 0]), self.target_embedding.weight), TransformerState(tuple(after))

    def forward(self, batch: Batch) -> Output:
        """Compute the logits of all positions at once, without a loop over time."""
        memory = self.encode(batch)
        x = self._embed(self.target_embedding, batch.target_in)
        causal = torch.ones(1, x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        for layer, source in zip(self._decoder_layers, memory.source.unbind(1), strict=True):
            x, alpha = layer(x, layer.read(x), causal, source, memory.mask)
        return Output(linear(self.decoder_norm(x), self.target_embedding.weight), alignment=alpha.mean(1))


def positions(first: int, count: int, dim: int, like: Tensor) -> Tensor:
    """Compute the positional encodings of `count` positions from `first` on, (count, dim) (section 3.5)."""
    dtype, device = at_least_float32(like), like.device
    rates = 10_000 ** -(torch.arange(0, dim, 2, dtype=dtype, device=device) / dim)  # 10000^(-2i / d)
    angles = torch.arange(first, first + count, dtype=dtype, device=device)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)  # sine and cosine alternate
