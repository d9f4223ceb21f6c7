"""m-RNN and its variants: Mao et al., Deep Captioning with Multimodal Recurrent Neural Networks (2015).

Shapes: B batch, T target length, D feature size, H hidden, M multimodal, V vocabulary, N examples with K hypotheses
each, S sentences, I images, P prefixes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn

from limner.bounds import Rate, Width
from limner.data.examples import Batch, ImageFeatures
from limner.layers.all_pairs import PrefixTree, softmax_log_probs
from limner.layers.cells import CellSettings, CellState, build_cell
from limner.layers.dropout import dropout
from limner.layers.image_encoder import ImageEncoder, ImageEncoderSettings
from limner.models.protocols import ConditionalLMSettings, ModelInputs, Output, repeat_memory
from limner.progress import Progress

Variant = Literal[
    "m-RNN",
    "RNN-base",
    "NoEmbInput",
    "OneLayerEmb",
    "EmbOneInput",
    "visInRnn",
    "visInRnn-both",
    "visInRnn-both-shared",
]


class MRNNSettings(ConditionalLMSettings):
    """Settings of the m-RNN; the default sizes are those of the paper."""

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


class MRNNState(NamedTuple):
    """Recurrent state r(t-1)."""

    recurrent: CellState  # (B, H)


class MRNN(nn.Module):
    """The m-RNN of Mao et al. (2015), section 3.2, and the seven variants of Table 8 and section 7.3.

    With the one-hot token h(t) and the image vector I:

        e(t) = E_1 h(t)                                        word embedding layer I
        w(t) = E_2 e(t) + b_w                                  word embedding layer II
        r(t) = relu(U_r r(t-1) + w(t)), r(0) = 0               recurrent layer (eq. 2)
        m(t) = g_2(V_w w(t) + V_r r(t) + V_I I + b_m)          multimodal layer (eq. 3)
        g_2(x) = 1.7159 tanh(2/3 x)                            `scaled_tanh` (eq. 4)
        logits = S m(t) + b_s                                  softmax layer

    Variants:

    - RNN-base: without V_I I;
    - NoEmbInput: without V_w w(t);
    - OneLayerEmb: w(t) = e(t), of the size of the recurrent layer;
    - EmbOneInput: V_w e(t) in place of V_w w(t);
    - visInRnn: V_I^(1) I is added to w(t), and eq. 3 has no image term;
    - visInRnn-both: V_I^(1) I is added to w(t), V_I I in eq. 3;
    - visInRnn-both-shared: as visInRnn-both, with V_I^(1) = V_I.

    With the setting `cell`, which is not in the paper, r(t) is the state of that cell with w(t) as its input.

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
        """Build the model with randomly initialised weights.

        Args:
            settings: variant and layer sizes.
            inputs: size V of the vocabulary, and shapes of the image features, which RNN-base ignores.

        Raises:
            SettingsError: the variant uses images and `inputs` has no image features.
        """
        super().__init__()
        self.settings, self.vocab_size = settings, inputs.vocab_size
        variant, hidden, multimodal = settings.variant, settings.hidden_dim, settings.multimodal_dim
        one_layer = variant == "OneLayerEmb"
        self.embedding_1 = nn.Embedding(inputs.vocab_size, hidden if one_layer else settings.embedding_dim)  # E_1
        self.embedding_2 = None if one_layer else nn.Linear(settings.embedding_dim, hidden)  # E_2, b_w
        self.recurrent = nn.Linear(hidden, hidden, bias=False) if settings.cell is None else None  # U_r
        self.cell = None if settings.cell is None else build_cell(settings.cell, hidden, hidden)
        word_dim = {"NoEmbInput": 0, "EmbOneInput": settings.embedding_dim}.get(variant, hidden)
        self.multimodal_word = nn.Linear(word_dim, multimodal, bias=False) if word_dim else None  # V_w
        self.multimodal_recurrent = nn.Linear(hidden, multimodal, bias=False)  # V_r
        self.multimodal_bias = nn.Parameter(torch.zeros(multimodal))  # b_m
        self.image_encoder = (
            None if variant == "RNN-base" else ImageEncoder(inputs.feature_shapes, settings.image_encoder)
        )
        image_dim = self.image_encoder.dim if self.image_encoder else 0
        in_rnn = variant.startswith("visInRnn")
        self.visual_in_rnn = nn.Linear(image_dim, hidden, bias=False) if in_rnn else None  # V_I^(1)
        in_multimodal = self.image_encoder is not None and variant not in ("visInRnn", "visInRnn-both-shared")
        self.multimodal_visual = nn.Linear(image_dim, multimodal, bias=False) if in_multimodal else None  # V_I
        self.softmax = nn.Linear(multimodal, inputs.vocab_size)  # S, b_s
        self._initialise()

    def _initialise(self) -> None:
        """Initialise the weights that differ from PyTorch's defaults."""
        nn.init.normal_(self.embedding_1.weight, std=0.1)
        if self.recurrent is not None:
            nn.init.orthogonal_(self.recurrent.weight)
        nn.init.zeros_(self.softmax.bias)

    @property
    def separable(self) -> bool:
        """Whether the recurrent states do not depend on the image: all but the visInRnn variants."""
        return self.visual_in_rnn is None

    @property
    def exact_pairs(self) -> bool:
        """Whether all pairs are scored in float32 by whole softmaxes even where bfloat16 is allowed: no."""
        return False

    @property
    def uses_image(self) -> bool:
        """Whether the variant uses the image: all but RNN-base."""
        return self.image_encoder is not None

    def image_vector(self, image: ImageFeatures) -> Tensor:
        """Compute the image vector I of each image, (B, D): scaled features, or the output of the convnet."""
        assert self.image_encoder is not None, "RNN-base uses no image"
        vector: Tensor = self.image_encoder(image)
        return vector

    def encode(self, batch: Batch) -> MRNNMemory:
        """Compute the image terms V_I I + b_m (eq. 3) and V_I^(1) I (visInRnn variants)."""
        return self._image_terms(batch.image)

    def _image_terms(self, image: ImageFeatures) -> MRNNMemory:
        """Compute the image terms of B images; see `MRNNMemory`."""
        rows = image.present.shape[0]
        if self.image_encoder is None:
            return MRNNMemory(self.multimodal_bias.expand(rows, -1), None)
        vector = self.image_vector(image)  # I
        word = None if self.visual_in_rnn is None else self.visual_in_rnn(vector)
        if self.multimodal_visual is not None:
            multimodal = self.multimodal_visual(vector) + self.multimodal_bias  # V_I I + b_m
        elif self.settings.variant == "visInRnn-both-shared":
            assert word is not None
            multimodal = word + self.multimodal_bias  # V_I = V_I^(1)
        else:
            multimodal = self.multimodal_bias.expand(rows, -1)
        return MRNNMemory(multimodal, word)

    def start(self, memory: MRNNMemory) -> MRNNState:
        """Return the initial state r(0) = 0, (B, H)."""
        return MRNNState(self._initial(memory.multimodal.shape[0]))

    def step(self, tokens: Tensor, memory: MRNNMemory, state: MRNNState) -> tuple[Tensor, MRNNState]:
        """Compute the logits after one more token of each hypothesis (eqs. 2-4).

        Args:
            tokens: previous tokens, (N K,).
            memory: image terms of the N examples.
            state: r(t-1), (N K, H).

        Returns:
            Logits of the next token (N K, V), and the state r(t).
        """
        memory = repeat_memory(memory, len(tokens))
        first, word = self._embed(tokens, memory.word)  # e(t), w(t)
        recurrent = self._recur(self._project(word), state.recurrent)  # r(t)
        language = self._language_terms(first, word, recurrent.hidden)
        multimodal = scaled_tanh(language + memory.multimodal)  # m(t), eqs. 3 and 4
        return self.softmax(multimodal), MRNNState(recurrent)

    def forward(self, batch: Batch) -> Output:
        """Compute the logits (B, T, V) of all positions; only eq. 2 runs in a loop over time."""
        memory = self._image_terms(batch.image)
        language = self._language(batch.target_in, memory.word)
        multimodal = scaled_tanh(language + memory.multimodal.unsqueeze(1))  # m(t), eqs. 3 and 4
        multimodal = dropout(multimodal, self.settings.dropout, self.training)
        return Output(self.softmax(multimodal))

    def position_logits(self, memory: MRNNMemory, tokens: Tensor) -> Tensor:
        """Compute the logits (N, T, V) of one sentence given N images; see `AllPositions`."""
        rows = 1 if memory.word is None else len(memory.word)
        language = self._language(tokens.expand(rows, -1), memory.word)
        multimodal: Tensor = scaled_tanh(language + memory.multimodal.unsqueeze(1))  # m(t), eqs. 3 and 4
        logits: Tensor = self.softmax(multimodal)
        return logits

    def _language(self, tokens: Tensor, image: Tensor | None) -> Tensor:
        """Compute V_w w(t) + V_r r(t) of eq. 3 at every position.

        Args:
            tokens: input tokens, (B, T).
            image: V_I^(1) I, (B, H); None except in the visInRnn variants.

        Returns:
            Terms (B, T, M).
        """
        rate = self.settings.dropout
        first, word = self._embed(tokens, None if image is None else image.unsqueeze(1))  # e(t), w(t)
        word = dropout(word, rate, self.training)
        state, states = self._initial(len(tokens)), []
        for projected in self._project(word).unbind(1):
            state = self._recur(projected, state)  # r(t)
            states.append(state.hidden)
        recurrent = dropout(torch.stack(states, 1), rate, self.training)  # (B, T, H)
        return self._language_terms(first, word, recurrent)

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
        """Compute the activations of both word embedding layers (section 3.2).

        Args:
            tokens: token ids, (…).
            image: V_I^(1) I, broadcastable to (…, H); None except in the visInRnn variants.

        Returns:
            e(t), (…, E), and w(t), (…, H); in OneLayerEmb both are the output of the single layer.
        """
        first = self.embedding_1(tokens)  # e(t)
        second: Tensor = first if self.embedding_2 is None else self.embedding_2(first)  # w(t)
        if image is not None:
            second = second + image
        if self.settings.embedding_activation == "relu" and self.embedding_2 is not None:
            second = torch.relu(second)
        return first, second

    def _language_terms(self, first: Tensor, word: Tensor, recurrent: Tensor) -> Tensor:
        """Compute V_w w(t) + V_r r(t) of eq. 3 (…, M) from e(t) (…, E), w(t) (…, H) and r(t) (…, H)."""
        out: Tensor = self.multimodal_recurrent(recurrent)  # V_r r(t)
        if self.multimodal_word is None:
            return out
        added: Tensor = self.multimodal_word(first if self.settings.variant == "EmbOneInput" else word)  # V_w w(t)
        return out + added

    def word_vectors(self) -> Tensor:
        """Compute the final word representations w(t) of all tokens, without an image: (V, H)."""
        return self._embed(torch.arange(self.vocab_size, device=self.embedding_1.weight.device), None)[1]

    @property
    def bytes_per_token(self) -> int:
        """Bytes of memory of each token in `pair_log_probs`: its node of the prefix tree and its terms of eq. 3."""
        return 256 + self.settings.multimodal_dim * self.softmax.weight.element_size()

    def pair_log_probs(
        self,
        images: Iterable[ImageFeatures],
        sentences: Batch,
        budget: int,
        dtype: torch.dtype,
        tail: float = 0.0,
        on_progress: Progress | None = None,
    ) -> Iterator[Tensor]:
        """Compute the log-probability of every sentence given every image, (S, I); see `PairScorer`.

        The recurrent states do not depend on the image, so they are computed once for each distinct prefix of the
        sentences. The multimodal layer and the softmax are tiled over (prefix, image) pairs.
        """
        tree = PrefixTree.of(sentences)
        # The constants of eq. 4 are multiplied into the terms of eq. 3 and into the softmax weights.
        language = self._prefix_terms(sentences.target_in, tree, budget).mul_(SLOPE)
        weight = (self.softmax.weight * SCALE).to(dtype)
        for image in images:
            image_term = self._image_terms(image).multimodal * SLOPE
            yield softmax_log_probs(
                language, image_term, weight, self.softmax.bias, tree, budget, tail=tail, on_progress=on_progress
            )

    def _prefix_terms(self, tokens: Tensor, tree: PrefixTree, budget: int) -> Tensor:
        """Compute V_w w(t) + V_r r(t) of eq. 3 after each prefix of a tree.

        Args:
            tokens: input tokens of the sentences, (S, T).
            tree: prefix tree of the sentences.
            budget: bytes of working memory, which limits the number of sentences encoded at a time.

        Returns:
            Terms (P, M).
        """
        settings = self.settings
        units = settings.embedding_dim + 3 * settings.hidden_dim + 3 * settings.multimodal_dim
        height = max(1, budget // (tokens.shape[1] * units * self.softmax.weight.element_size()))
        language = self.softmax.weight.new_empty(len(tree.row), settings.multimodal_dim)
        for top in range(0, len(tokens), height):
            first, last = torch.searchsorted(tree.row, torch.tensor([top, top + height])).tolist()
            positions = tree.row[first:last] - top, tree.column[first:last]
            language[first:last] = self._language(tokens[top : top + height], None)[positions]
        return language


SCALE, SLOPE = 1.7159, 2 / 3  # eq. 4


def scaled_tanh(x: Tensor) -> Tensor:
    """Compute g_2(x) = 1.7159 tanh(2/3 x) (eq. 4; LeCun et al., 2012)."""
    return SCALE * torch.tanh(SLOPE * x)
