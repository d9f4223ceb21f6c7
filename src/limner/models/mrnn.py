"""m-RNN and its variants: Mao et al., Deep Captioning with Multimodal Recurrent Neural Networks (2015).

Shapes: B batch, T target length, D feature size, H hidden, M multimodal, V vocabulary, N examples with K hypotheses
each.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn.functional import dropout

from limner.bounds import Rate, Width
from limner.data.examples import Batch, ImageFeatures
from limner.layers.cells import CellSettings, CellState, build_cell
from limner.layers.image_encoder import ImageEncoder, ImageEncoderSettings
from limner.models.protocols import ConditionalLMSettings, EncodedImages, ModelInputs, Output, repeat_memory

Variant = Literal[
    "m-RNN", "RNN-base", "NoEmbInput", "OneLayerEmb", "EmbOneInput", "visInRnn", "visInRnn-both", "visInRnn-both-shared"
]


class VariantParts(NamedTuple):
    """Parts of the equations in which the variants differ; the defaults are the full model."""

    two_embeddings: bool = True
    """Whether there is a word embedding layer II; else w(t) = e(t), of the size of the recurrent layer."""
    multimodal_word: Literal["w", "e"] | None = "w"
    """Embedding that V_w multiplies in eq. 3: w(t), e(t), or no such term."""
    image_in_rnn: bool = False
    """Whether V_I^(1) I is added to w(t)."""
    image_in_multimodal: Literal["V_I", "V_I^(1)"] | None = "V_I"
    """Matrix of the image term of eq. 3: its own matrix, the matrix of word embedding layer II, or no image term."""


VARIANTS: dict[Variant, VariantParts] = {
    "m-RNN": VariantParts(),
    "RNN-base": VariantParts(image_in_multimodal=None),
    "NoEmbInput": VariantParts(multimodal_word=None),
    "OneLayerEmb": VariantParts(two_embeddings=False),
    "EmbOneInput": VariantParts(multimodal_word="e"),
    "visInRnn": VariantParts(image_in_rnn=True, image_in_multimodal=None),
    "visInRnn-both": VariantParts(image_in_rnn=True),
    "visInRnn-both-shared": VariantParts(image_in_rnn=True, image_in_multimodal="V_I^(1)"),
}


class MRNNSettings(ConditionalLMSettings):
    """Settings of the m-RNN; the default sizes follow the paper."""

    name: Literal["mrnn"] = "mrnn"
    variant: Variant = "m-RNN"
    """Architecture: the full model, RNN-base without the image, or a variant of section 7.3 (Figure 3, Table 8)."""
    cell: CellSettings | None = None
    """Recurrent cell that reads w(t) in place of eq. 2; None for eq. 2."""
    embedding_dim: Width = 128
    """Number of units of word embedding layer I."""
    hidden_dim: Width = 256
    """Number of units of word embedding layer II and of the recurrent layer, whose terms eq. 2 adds."""
    multimodal_dim: Width = 512
    """Number of units of the multimodal layer."""
    embedding_activation: Literal["linear", "relu"] = "linear"
    """Activation of word embedding layer II, which the paper does not specify; without effect in OneLayerEmb."""
    dropout: Rate = 0.0
    """Dropout rate of word embedding layer II, the recurrent layer and the multimodal layer in training."""
    image_encoder: ImageEncoderSettings = ImageEncoderSettings()
    """Scaling and dropout of the image features, and sizes of the convnet on pixels or feature maps."""

    @model_validator(mode="after")
    def _shared_dims_agree(self) -> Self:
        if self.variant == "visInRnn-both-shared" and self.multimodal_dim != self.hidden_dim:
            raise ValueError(
                f"variant visInRnn-both-shared uses one V_I for word embedding layer II and for the multimodal "
                f"layer, so multimodal_dim ({self.multimodal_dim}) must equal hidden_dim ({self.hidden_dim})"
            )
        return self


class MRNNMemory(NamedTuple):
    """Terms of the image, constant over the time steps."""

    multimodal: Tensor  # (B, M): V_I I + b_m of eq. 3
    word: Tensor | None  # (B, H): V_I^(1) I, added to word embedding layer II in the visInRnn variants; else None


class MRNN(EncodedImages, nn.Module):
    """The m-RNN of Mao et al. (2015), section 3.2, and the seven variants of Table 8 and section 7.3.

    With the one-hot token h(t) and the image vector I:

        e(t) = E_1 h(t)                                        word embedding layer I
        w(t) = E_2 e(t) + b_w                                  word embedding layer II
        r(t) = relu(U_r r(t-1) + w(t)), r(0) = 0               recurrent layer (eq. 2)
        m(t) = g_2(V_w w(t) + V_r r(t) + V_I I + b_m)          multimodal layer (eq. 3)
        g_2(x) = 1.7159 tanh(2/3 x)                            `scaled_tanh` (eq. 4)
        logits = S m(t) + b_s                                  softmax layer

    `VARIANTS` lists the changes of the variants. With the setting `cell`, which is not in the paper, r(t) is the state
    of that cell with w(t) as its input.

    Departures from the paper, where it does not specify the model:

    - r(0) is zero;
    - word embedding layer II, the multimodal layer and the softmax have biases;
    - the activation of word embedding layer II, dropout (off by default) and the scaling of the feature vector are
      settings;
    - initialisation: orthogonal recurrent weights; word embedding layer I normal with standard deviation 0.1; biases of
      the multimodal layer and the softmax zero; otherwise the defaults of `nn.Linear`;
    - visInRnn-both-shared requires `multimodal_dim` to equal `hidden_dim`, since one matrix serves both layers.
    """

    Settings: ClassVar = MRNNSettings

    def __init__(self, settings: MRNNSettings, inputs: ModelInputs) -> None:
        super().__init__()
        self.settings, self.vocab_size = settings, inputs.vocab_size
        self.parts = parts = VARIANTS[settings.variant]
        embedding, hidden, multimodal = settings.embedding_dim, settings.hidden_dim, settings.multimodal_dim
        self.embedding_1 = nn.Embedding(inputs.vocab_size, embedding if parts.two_embeddings else hidden)  # E_1
        self.embedding_2 = nn.Linear(embedding, hidden) if parts.two_embeddings else None  # E_2, b_w
        self.recurrent = nn.Linear(hidden, hidden, bias=False) if settings.cell is None else None  # U_r
        self.cell = None if settings.cell is None else build_cell(settings.cell, hidden, hidden)
        word_dim = embedding if parts.multimodal_word == "e" else hidden
        self.multimodal_word = nn.Linear(word_dim, multimodal, bias=False) if parts.multimodal_word else None  # V_w
        self.multimodal_recurrent = nn.Linear(hidden, multimodal, bias=False)  # V_r
        self.multimodal_bias = nn.Parameter(torch.zeros(multimodal))  # b_m
        reads_image = parts.image_in_rnn or parts.image_in_multimodal
        self.image_encoder = ImageEncoder(inputs.feature_shapes, settings.image_encoder) if reads_image else None
        image_dim = self.image_encoder.dim if self.image_encoder else 0
        self.visual_in_rnn = nn.Linear(image_dim, hidden, bias=False) if parts.image_in_rnn else None  # V_I^(1)
        has_own_matrix = parts.image_in_multimodal == "V_I"
        self.multimodal_visual = nn.Linear(image_dim, multimodal, bias=False) if has_own_matrix else None  # V_I
        self.softmax = nn.Linear(multimodal, inputs.vocab_size)  # S, b_s
        nn.init.normal_(self.embedding_1.weight, std=0.1)
        if self.recurrent is not None:
            nn.init.orthogonal_(self.recurrent.weight)
        nn.init.zeros_(self.softmax.bias)

    def encode(self, batch: Batch) -> MRNNMemory:
        """Compute the image terms V_I I + b_m (eq. 3) and V_I^(1) I (visInRnn variants)."""
        return self.image_terms(batch.image)

    def image_terms(self, image: ImageFeatures) -> MRNNMemory:
        """Compute the image terms of B images; see `MRNNMemory`."""
        rows = image.present.shape[0]
        if self.image_encoder is None:
            return MRNNMemory(self.multimodal_bias.expand(rows, -1), None)
        vector = self.image_vector(image)  # I
        word = None if self.visual_in_rnn is None else self.visual_in_rnn(vector)
        if self.parts.image_in_multimodal is None:
            multimodal = self.multimodal_bias.expand(rows, -1)
        else:
            term = word if self.multimodal_visual is None else self.multimodal_visual(vector)  # V_I I
            assert term is not None, "V_I = V_I^(1)"
            multimodal = term + self.multimodal_bias
        return MRNNMemory(multimodal, word)

    def start(self, memory: MRNNMemory) -> CellState:
        """Return the initial state r(0) = 0, (B, H)."""
        return self._initial(memory.multimodal.shape[0])

    def step(self, tokens: Tensor, memory: MRNNMemory, state: CellState) -> tuple[Tensor, CellState]:
        """Compute the logits (N K, V) after one more token (N K,) of each hypothesis (eqs. 2-4), and r(t)."""
        memory = repeat_memory(memory, tokens.shape[0])
        first, word = self._embed(tokens, memory.word)  # e(t), w(t)
        recurrent = self._recur(self._project(word), state)  # r(t)
        multimodal = scaled_tanh(self.multimodal_terms(first, word, recurrent.hidden, memory.multimodal))  # eqs. 3, 4
        return self.softmax(multimodal), recurrent

    def forward(self, batch: Batch) -> Output:
        """Compute the logits (B, T, V) of all positions; only eq. 2 runs in a loop over time."""
        memory = self.encode(batch)
        states = self.read(batch.target_in, memory.word)
        multimodal = scaled_tanh(self.multimodal_terms(*states, memory.multimodal.unsqueeze(1)))  # m(t), eqs. 3 and 4
        return Output(self.softmax(dropout(multimodal, self.settings.dropout, self.training)))

    def read(self, tokens: Tensor, image: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute e(t), w(t) and r(t) at every position, each (B, T, …).

        Args:
            tokens: (B, T).
            image: V_I^(1) I, (B, H); None if the image has no part in the recurrence.
        """
        rate = self.settings.dropout
        first, word = self._embed(tokens, None if image is None else image.unsqueeze(1))
        word = dropout(word, rate, self.training)
        state, states = self._initial(len(word)), []
        for projected in self._project(word).unbind(1):
            state = self._recur(projected, state)  # r(t)
            states.append(state.hidden)
        return first, word, dropout(torch.stack(states, 1), rate, self.training)

    def multimodal_terms(self, first: Tensor, word: Tensor, recurrent: Tensor, image: Tensor | None = None) -> Tensor:
        """Compute V_w w(t) + V_r r(t) + V_I I + b_m of eq. 3, (…, M), or without the image's terms."""
        terms: Tensor = self.multimodal_recurrent(recurrent)  # V_r r(t)
        if self.multimodal_word is not None:
            terms = terms + self.multimodal_word(first if self.parts.multimodal_word == "e" else word)  # V_w w(t)
        return terms if image is None else terms + image

    def _initial(self, rows: int) -> CellState:
        """Return r(0) = 0, (B, H), for B = `rows` sentences."""
        if self.cell is not None:
            return self.cell.start(rows)
        return CellState(self.multimodal_bias.new_zeros(rows, self.settings.hidden_dim))

    def _project(self, word: Tensor) -> Tensor:
        """Compute the input of the recurrence at every position from w(t), (…, H): w(t) itself in eq. 2."""
        return word if self.cell is None else self.cell.project(word)

    def _recur(self, projected: Tensor, state: CellState) -> CellState:
        """Compute r(t) from the input of the recurrence at t and r(t-1): eq. 2, or the step of the cell."""
        if self.recurrent is None:
            assert self.cell is not None
            after: CellState = self.cell(projected, state)
            return after
        return CellState(torch.relu(torch.addmm(projected, state.hidden, self.recurrent.weight.t())))

    def _embed(self, tokens: Tensor, image: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute e(t), (…, E), and w(t), (…, H), of tokens (…) (section 3.2), with V_I^(1) I in the visInRnn variants.

        In OneLayerEmb both are the output of the single layer.
        """
        first = self.embedding_1(tokens)  # e(t)
        second: Tensor = first if self.embedding_2 is None else self.embedding_2(first)  # w(t)
        if image is not None:
            second = second + image
        if self.settings.embedding_activation == "relu" and self.embedding_2 is not None:
            second = torch.relu(second)
        return first, second

    def word_vectors(self) -> Tensor:
        """Compute the final word representations w(t) of all tokens, without an image: (V, H)."""
        return self._embed(torch.arange(self.vocab_size, device=self.embedding_1.weight.device), None)[1]


SCALE, SLOPE = 1.7159, 2 / 3  # eq. 4


def scaled_tanh(x: Tensor) -> Tensor:
    """Compute g_2(x) = 1.7159 tanh(2/3 x) (eq. 4; LeCun et al., 2012)."""
    return SCALE * torch.tanh(SLOPE * x)
