"""m-RNN: Mao et al., Deep Captioning with Multimodal Recurrent Neural Networks (2015), with its variants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from limner.data.examples import Batch, ImageFeatures
from limner.layers.all_pairs import PrefixTree, softmax_log_probs
from limner.layers.dropout import dropout
from limner.layers.image_encoder import ImageEncoder, ImageEncoderSettings
from limner.models.protocols import ModelInputs, Output, spread
from limner.settings import Settings

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


class MRNNSettings(Settings):
    """Settings of the m-RNN; the sizes are the paper's."""

    translates: ClassVar[bool] = False

    name: Literal["mrnn"] = "mrnn"
    variant: Variant = "m-RNN"
    """The full model, the one without a picture, or one of Figure 3 and Table 8."""
    embedding_dim: int = Field(128, ge=1)
    """Size of word embedding layer I."""
    hidden_dim: int = Field(256, ge=1)
    """Size of word embedding layer II and of the recurrent layer, which eq. 2 adds."""
    multimodal_dim: int = Field(512, ge=1)
    """Size of the multimodal layer."""
    embedding_activation: Literal["linear", "relu"] = "linear"
    """Activation of word embedding layer II; the paper does not name one. OneLayerEmb has no such layer."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of units dropped from the word, the recurrent and the multimodal layer while training."""
    image_encoder: ImageEncoderSettings = ImageEncoderSettings()
    """Scaling and dropout of the image features, and sizes of the convnet that reads pixels or feature maps."""

    @model_validator(mode="after")
    def _shared_dims_agree(self) -> Self:
        if self.variant == "visInRnn-both-shared" and self.multimodal_dim != self.hidden_dim:
            raise ValueError(
                f"variant visInRnn-both-shared uses one V_I for word embedding layer II and for the multimodal "
                f"layer, so multimodal_dim ({self.multimodal_dim}) must equal hidden_dim ({self.hidden_dim})"
            )
        return self


class MRNNMemory(NamedTuple):
    """What the picture contributes, the same at every step."""

    multimodal: Tensor  # (B, M): V_I I plus the bias of the multimodal layer
    word: Tensor | None  # (B, H): V_I^(1) I, where the picture enters word embedding layer II


class MRNNState(NamedTuple):
    """The recurrent layer r(t-1)."""

    recurrent: Tensor  # (B, H)


class MRNN(nn.Module):
    """The m-RNN of section 3.2 and the seven other models of Table 8 and section 7.3.

    Departures from the paper, each where it is silent: r(0) is zero; biases are added to word embedding layer II,
    the multimodal layer and the softmax; the activation of word embedding layer II, dropout (off by default) and
    the scaling of the feature vector are settings; recurrent weights start orthogonal, word embedding layer I
    normal with standard deviation 0.1, the biases of the multimodal layer and the softmax at zero, the others as
    `nn.Linear` starts them. In visInRnn-both-shared one V_I can serve two layers only if they have one size, so
    there the multimodal layer has `hidden_dim` units.
    """

    Settings: ClassVar = MRNNSettings

    def __init__(self, settings: MRNNSettings, inputs: ModelInputs) -> None:
        """Build with fresh weights.

        Args:
            settings: sizes and the variant.
            inputs: size of the vocabulary, and shapes of the image features, which RNN-base ignores.

        Raises:
            SettingsError: a variant with an image has no features.
        """
        super().__init__()
        self.settings, self.vocab_size = settings, inputs.vocab_size
        variant, hidden, multimodal = settings.variant, settings.hidden_dim, settings.multimodal_dim
        one_layer = variant == "OneLayerEmb"
        self.embedding_1 = nn.Embedding(inputs.vocab_size, hidden if one_layer else settings.embedding_dim)
        self.embedding_2 = None if one_layer else nn.Linear(settings.embedding_dim, hidden)
        self.recurrent = nn.Linear(hidden, hidden, bias=False)
        word_dim = {"NoEmbInput": 0, "EmbOneInput": settings.embedding_dim}.get(variant, hidden)
        self.multimodal_word = nn.Linear(word_dim, multimodal, bias=False) if word_dim else None
        self.multimodal_recurrent = nn.Linear(hidden, multimodal, bias=False)
        self.multimodal_bias = nn.Parameter(torch.zeros(multimodal))
        self.image_encoder = (
            None if variant == "RNN-base" else ImageEncoder(inputs.feature_shapes, settings.image_encoder)
        )
        dim = self.image_encoder.dim if self.image_encoder else 0
        in_rnn = variant.startswith("visInRnn")
        self.visual_in_rnn = nn.Linear(dim, hidden, bias=False) if in_rnn else None
        own = self.image_encoder is not None and variant not in ("visInRnn", "visInRnn-both-shared")
        self.multimodal_visual = nn.Linear(dim, multimodal, bias=False) if own else None
        self.softmax = nn.Linear(multimodal, inputs.vocab_size)
        self._initialise()

    def _initialise(self) -> None:
        nn.init.normal_(self.embedding_1.weight, std=0.1)
        nn.init.orthogonal_(self.recurrent.weight)
        nn.init.zeros_(self.softmax.bias)

    @property
    def separable(self) -> bool:
        """Whether the recurrent states of a sentence are the same for every picture."""
        return self.visual_in_rnn is None

    @property
    def exact_pairs(self) -> bool:
        """Whether all pairs are always scored in float32: no."""
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
        """Look at the pictures once: V_I I of eq. 3 (and V_I^(1) I of the visInRnn variants)."""
        return self._look(batch.image)

    def _look(self, image: ImageFeatures) -> MRNNMemory:
        rows = len(image.present)
        if self.image_encoder is None:
            return MRNNMemory(self.multimodal_bias.expand(rows, -1), None)
        seen = self.image_vector(image)
        word = None if self.visual_in_rnn is None else self.visual_in_rnn(seen)
        if self.multimodal_visual is not None:
            multimodal = self.multimodal_visual(seen) + self.multimodal_bias
        elif self.settings.variant == "visInRnn-both-shared":
            assert word is not None
            multimodal = word + self.multimodal_bias
        else:
            multimodal = self.multimodal_bias.expand(rows, -1)
        return MRNNMemory(multimodal, word)

    def start(self, memory: MRNNMemory) -> MRNNState:
        """r(0) = 0."""
        return MRNNState(memory.multimodal.new_zeros(len(memory.multimodal), self.settings.hidden_dim))

    def step(self, tokens: Tensor, memory: MRNNMemory, state: MRNNState) -> tuple[Tensor, MRNNState]:
        """One word (N K,): eqs. 2 and 3, then the softmax layer's logits (N K, V)."""
        memory = spread(memory, len(tokens))
        first, word = self._embed(tokens, memory.word)
        recurrent = torch.relu(word + self.recurrent(state.recurrent))
        multimodal = self._multimodal(first, word, recurrent) + memory.multimodal
        return self.softmax(scaled_tanh(multimodal)), MRNNState(recurrent)

    def forward(self, batch: Batch) -> Output:
        """All positions at once; only eq. 2 runs in a loop over time."""
        memory = self._look(batch.image)
        multimodal = self._language(batch.target_in, memory.word) + memory.multimodal.unsqueeze(1)
        multimodal = dropout(scaled_tanh(multimodal), self.settings.dropout, self.training)
        return Output(self.softmax(multimodal))

    def _language(self, tokens: Tensor, image: Tensor | None) -> Tensor:
        """V_w w(t) + V_r r(t) of eq. 3 at every position: tokens (B, T) to (B, T, M)."""
        rate = self.settings.dropout
        first, word = self._embed(tokens, None if image is None else image.unsqueeze(1))
        word = dropout(word, rate, self.training)
        state = word.new_zeros(len(tokens), self.settings.hidden_dim)
        states = []
        for word_at_t in word.unbind(1):
            state = torch.relu(torch.addmm(word_at_t, state, self.recurrent.weight.t()))  # eq. 2
            states.append(state)
        recurrent = dropout(torch.stack(states, 1), rate, self.training)
        return self._multimodal(first, word, recurrent)

    def _embed(self, tokens: Tensor, image: Tensor | None) -> tuple[Tensor, Tensor]:
        """Activations of word embedding layers I and II (the same one, where there is only one)."""
        first = self.embedding_1(tokens)
        second: Tensor = first if self.embedding_2 is None else self.embedding_2(first)
        if image is not None:
            second = second + image
        if self.settings.embedding_activation == "relu" and self.embedding_2 is not None:
            second = torch.relu(second)
        return first, second

    def _multimodal(self, first: Tensor, word: Tensor, recurrent: Tensor) -> Tensor:
        out: Tensor = self.multimodal_recurrent(recurrent)
        if self.multimodal_word is None:
            return out
        added: Tensor = self.multimodal_word(first if self.settings.variant == "EmbOneInput" else word)
        return out + added

    def word_vectors(self) -> Tensor:
        """The final word representation, the activation of word embedding layer II without a picture: (V, H)."""
        return self._embed(torch.arange(self.vocab_size, device=self.embedding_1.weight.device), None)[1]

    @property
    def bytes_per_token(self) -> int:
        """Bytes that `pair_log_probs` keeps of each word: its place in the tree and what it does to eq. 3."""
        return 256 + self.settings.multimodal_dim * self.softmax.weight.element_size()

    def pair_log_probs(
        self, images: Iterable[ImageFeatures], sentences: Batch, budget: int, dtype: torch.dtype
    ) -> Iterator[Tensor]:
        """Every sentence given every picture, (S, I); see `PairScorer`.

        The recurrent states do not depend on the picture, so each prefix that the sentences share is read once;
        the multimodal layer and the softmax are tiled over (prefix, picture) pairs.
        """
        tree = PrefixTree.of(sentences)
        language = self._prefixes(sentences.target_in, tree, budget).mul_(SLOPE)
        weight = (self.softmax.weight * SCALE).to(dtype)
        for image in images:
            picture = self._look(image).multimodal * SLOPE
            yield softmax_log_probs(language, picture, weight, self.softmax.bias, tree, budget)

    def _prefixes(self, tokens: Tensor, tree: PrefixTree, budget: int) -> Tensor:
        """V_w w(t) + V_r r(t) after each prefix of a tree, (P, M), reading some sentences (S, T) at a time."""
        settings = self.settings
        units = settings.embedding_dim + 3 * settings.hidden_dim + 3 * settings.multimodal_dim
        height = max(1, budget // (tokens.shape[1] * units * self.softmax.weight.element_size()))
        language = self.softmax.weight.new_empty(len(tree.row), settings.multimodal_dim)
        for top in range(0, len(tokens), height):
            first, last = torch.searchsorted(tree.row, torch.tensor([top, top + height])).tolist()
            places = tree.row[first:last] - top, tree.column[first:last]
            language[first:last] = self._language(tokens[top : top + height], None)[places]
        return language


SCALE, SLOPE = 1.7159, 2 / 3


def scaled_tanh(x: Tensor) -> Tensor:
    """g_2 of eq. 4: 1.7159 tanh(2/3 x), LeCun et al. (2012)."""
    return SCALE * torch.tanh(SLOPE * x)
