"""Log-bilinear models: Kiros, Salakhutdinov and Zemel, Multimodal Neural Language Models (2014).

Shapes, partly with the paper's symbols: B batch, T target length, V vocabulary (k), d embedding size, m feature size,
f factors, n - 1 context tokens, N examples with K hypotheses each.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad

from limner.bounds import Context, PositiveDeviation, Rate, Width
from limner.data.examples import Batch, ImageFeatures
from limner.layers.image_encoder import ImageEncoder, ImageEncoderSettings
from limner.models.protocols import ConditionalLMSettings, EncodedImages, ModelInputs, Output, repeat_memory
from limner.text.vocab import SPECIAL_TOKENS

Variant = Literal["LBL", "MLBL-B", "MLBL-F"]


class LBLSettings(ConditionalLMSettings):
    """Settings of the log-bilinear models; the default context and initialisation follow the paper."""

    name: Literal["lbl"] = "lbl"
    variant: Variant = "MLBL-B"
    """Role of the image: none (LBL, section 3), additive bias (MLBL-B, section 4.1), or bias and gates (MLBL-F, section
    4.2)."""
    word_dim: Width = 100
    """Size d of the word representations."""
    context: Context = 5
    """Number n - 1 of context tokens."""
    factors: Width = 100
    """Number f of factors of the tensor of MLBL-F."""
    init_std: PositiveDeviation = 0.01
    """Standard deviation of the normal initialisation of the weights; biases are zero."""
    dropout: Rate = 0.0
    """Dropout rate of the predicted word representation in training."""
    image_encoder: ImageEncoderSettings = ImageEncoderSettings()
    """Scaling and dropout of the image features, and sizes of the convnet that is trained jointly (section 5)."""


class LBLMemory(NamedTuple):
    """Terms of the image, constant over the time steps."""

    bias: Tensor  # (B, d): C_m x of eqs. 3 and 7; zero in LBL
    gates: Tensor | None  # (B, f): W_fx x of eq. 8 in MLBL-F; else None


class LBL(EncodedImages, nn.Module):
    """LBL (eqs. 1-2), MLBL-B (eqs. 3-4) and MLBL-F (eqs. 5-9) of Kiros et al. (2014).

    The representations r_w of the context tokens w_1 … w_{n-1}, the most recent last, predict the representation of the
    next token, q. x is the image vector:

        LBL      q = sum_i C_i r_{w_i}                  (1)    P(w_n = w) = softmax_w(q r_w + b_w)         (2)
        MLBL-B   q = sum_i C_i r_{w_i} + C_m x          (3)    P(w_n = w) = softmax_w(q r_w + b_w)         (4)
        MLBL-F   q = sum_i C_i r_{w_i} + C_m x          (7)    P(w_n = w) = softmax_w(W_hf[w] g + b_w)     (9)

    In MLBL-F, r_w is row w of W_hf W_fr, and g = (W_fr q) * (W_fx x) (8), element by element. This equals an image-
    dependent matrix of representations R_x = W_hf diag(W_fx x) W_fr (5, 6), which is never computed.

    Departures from the paper:

    - C_m is d x m; the printed k x m cannot be added to the predicted representation;
    - the context of the first tokens is filled with <s>, which has its own representation (not specified);
    - the singular values of pre-trained embeddings are divided evenly between W_hf and W_fr (not specified);
    - dropout (off by default) and the scaling of the feature vector are settings;
    - features may also be pixels, with a convnet that the paper does not have.
    """

    Settings: ClassVar = LBLSettings

    def __init__(self, settings: LBLSettings, inputs: ModelInputs) -> None:
        super().__init__()
        self.settings, self.vocab_size, self.word_dim = settings, inputs.vocab_size, settings.word_dim
        dim, factors = settings.word_dim, settings.factors
        gated = settings.variant == "MLBL-F"
        self.image_encoder = (
            None if settings.variant == "LBL" else ImageEncoder(inputs.feature_shapes, settings.image_encoder)
        )
        image_dim = self.image_encoder.dim if self.image_encoder else 0
        self.words = nn.Parameter(torch.empty(inputs.vocab_size, factors if gated else dim))  # R or W_hf
        self.context = nn.Linear(settings.context * dim, dim, bias=False)  # C_i side by side
        self.bias = nn.Parameter(torch.zeros(inputs.vocab_size))  # b
        self.image = nn.Linear(image_dim, dim, bias=False) if self.image_encoder else None  # C_m
        self.word_factors = nn.Linear(dim, factors, bias=False) if gated else None  # W_fr
        self.visual_factors = nn.Linear(image_dim, factors, bias=False) if gated else None  # W_fx
        for weight in self.parameters():
            if weight.ndim > 1:  # biases start at zero
                nn.init.normal_(weight, std=settings.init_std)

    def encode(self, batch: Batch) -> LBLMemory:
        """Compute the image terms C_m x (eqs. 3 and 7) and W_fx x (eq. 8)."""
        return self.image_terms(batch.image)

    def image_terms(self, image: ImageFeatures) -> LBLMemory:
        """Compute the image terms of B images; see `LBLMemory`."""
        if self.image is None:
            return LBLMemory(self.words.new_zeros(image.present.shape[0], self.word_dim), None)
        vector = self.image_vector(image)  # x
        bias = self.image(vector)  # C_m x, eqs. 3 and 7
        gates = None if self.visual_factors is None else self.visual_factors(vector)  # W_fx x, eq. 8
        return LBLMemory(bias, gates)

    def start(self, memory: LBLMemory) -> Tensor:
        """Return a context of <s> only, (B, n - 1)."""
        shape = (memory.bias.shape[0], self.settings.context)
        return memory.bias.new_full(shape, SPECIAL_TOKENS.bos, dtype=torch.long)

    def step(self, tokens: Tensor, memory: LBLMemory, state: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the logits (N K, V) after one more token (N K,) of each hypothesis (eqs. 1-9), and their context."""
        memory = repeat_memory(memory, tokens.shape[0])
        context = torch.cat([state[:, 1:], tokens.unsqueeze(1)], 1)  # (N K, n - 1)
        predicted = self.context(self.vectors(context).flatten(1)) + memory.bias  # eqs. 1, 3 and 7
        return self._logits(predicted, memory.gates), context

    def forward(self, batch: Batch) -> Output:
        """Compute the logits (B, T, V) of all positions, without a loop over time."""
        memory = self.encode(batch)
        predicted = self.language(batch.target_in) + memory.bias.unsqueeze(1)  # eqs. 1, 3 and 7
        predicted = dropout(predicted, self.settings.dropout, self.training)
        return Output(self._logits(predicted, None if memory.gates is None else memory.gates.unsqueeze(1)))

    def language(self, tokens: Tensor) -> Tensor:
        """Compute sum_i C_i r_{w_i} (eq. 1) at every position: input tokens (B, T) to (B, T, d)."""
        length = self.settings.context
        vectors = self.vectors(pad(tokens, (length - 1, 0), value=SPECIAL_TOKENS.bos))  # (B, T + n - 2, d)
        windows = vectors.unfold(1, length, 1).transpose(2, 3)  # (B, T, n - 1, d)
        predicted: Tensor = self.context(windows.flatten(2))
        return predicted

    def vectors(self, tokens: Tensor) -> Tensor:
        """Look up the word representations r_w, rows of R or of W_hf W_fr (eq. 7): (…) to (…, d)."""
        rows = nn.functional.embedding(tokens, self.words)
        return rows if self.word_factors is None else rows @ self.word_factors.weight

    def _logits(self, predicted: Tensor, gates: Tensor | None) -> Tensor:
        """Compute the logits (…, V) of eqs. 2, 4 and 9 from predictions (…, d) and, in MLBL-F, gates W_fx x (…, f)."""
        if self.word_factors is not None:
            assert gates is not None, "MLBL-F has gates"
            predicted = self.word_factors(predicted) * gates  # eq. 8
        return nn.functional.linear(predicted, self.words, self.bias)  # eqs. 2, 4 and 9

    def word_vectors(self) -> Tensor:
        """Compute the word representations R, or W_hf W_fr, (V, d)."""
        return self.vectors(torch.arange(self.vocab_size, device=self.words.device))

    @torch.no_grad()
    def init_word_embeddings(self, vectors: Tensor) -> None:
        """Initialise the word representations from pre-trained embeddings, (V, d).

        MLBL-F factorises them by a singular value decomposition U S V^T (section 4.2): W_hf = U sqrt(S) and W_fr =
        sqrt(S) V^T, for the f largest singular values. If f > d, the other factors keep their initial values.
        """
        if self.word_factors is None:
            self.words.copy_(vectors)
            return
        left, scale, right = torch.linalg.svd(vectors.double(), full_matrices=False)
        rank = min(self.settings.factors, len(scale))
        root = scale[:rank].sqrt()
        self.words[:, :rank] = (left[:, :rank] * root).to(self.words.dtype)
        self.word_factors.weight[:rank] = (root[:, None] * right[:rank]).to(self.words.dtype)
