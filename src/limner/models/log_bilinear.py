"""Log-bilinear models: Kiros, Salakhutdinov, Zemel, Multimodal Neural Language Models (2014)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import pad

from limner.data.examples import Batch, ImageFeatures
from limner.layers.all_pairs import PrefixTree, additive_log_probs, softmax_log_probs
from limner.layers.dropout import dropout
from limner.layers.image_encoder import ImageEncoder, ImageEncoderSettings
from limner.models.protocols import ModelInputs, Output, spread
from limner.settings import Settings
from limner.text.vocab import SPECIAL_TOKENS

Variant = Literal["LBL", "MLBL-B", "MLBL-F"]


class LBLSettings(Settings):
    """Settings of the log-bilinear models; context and start are the paper's."""

    translates: ClassVar[bool] = False

    name: Literal["lbl"] = "lbl"
    variant: Variant = "MLBL-B"
    """Without a picture (section 3), biased by it (4.1), or gated by it (4.2)."""
    word_dim: int = Field(default=100, ge=1)
    """d, the size of a word's vector."""
    context: int = Field(default=5, ge=1)
    """n - 1, how many words before are looked at."""
    factors: int = Field(default=100, ge=1)
    """f, the factors of MLBL-F's tensor."""
    init_std: float = Field(default=0.01, gt=0)
    """Standard deviation of the normal distribution that weights are drawn from."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the predicted word vector's units dropped while training."""
    image_encoder: ImageEncoderSettings = ImageEncoderSettings()
    """Scaling and dropout of the image features, and sizes of the convnet that is trained jointly (section 5)."""


class LBLMemory(NamedTuple):
    """What the picture contributes, the same at every step."""

    bias: Tensor  # (B, d): C_m x of eqs. 3 and 7, zero without a picture
    gates: Tensor | None  # (B, f): W_fx x of eq. 8, for MLBL-F


class LBLState(NamedTuple):
    """The words before the next one."""

    words: Tensor  # (B, n - 1), the nearest last


class LBL(nn.Module):
    """LBL (eqs. 1-2), MLBL-B (eqs. 3-4) and MLBL-F (eqs. 6-9).

    Departures from the paper. C_m is d x m: as k x m, which is printed, it could not be added to the predicted
    vector. Before the first word the context is filled with the start sign, which has a vector of its own. The
    singular values of the pre-trained vectors are shared evenly by W_hf and W_fr. Dropout (off by default) and the
    scaling of the feature vector are ours, and so is what a model with pixels sees them with.
    """

    Settings: ClassVar = LBLSettings

    def __init__(self, settings: LBLSettings, inputs: ModelInputs) -> None:
        """Build with fresh weights.

        Args:
            settings: sizes and the variant.
            inputs: size of the vocabulary, k, and shapes of the image features, which LBL ignores.

        Raises:
            SettingsError: a variant with an image has no features.
        """
        super().__init__()
        self.settings, self.vocab_size, self.word_dim = settings, inputs.vocab_size, settings.word_dim
        dim, factors = settings.word_dim, settings.factors
        gated = settings.variant == "MLBL-F"
        self.image_encoder = (
            None if settings.variant == "LBL" else ImageEncoder(inputs.feature_shapes, settings.image_encoder)
        )
        image_dim = self.image_encoder.dim if self.image_encoder else 0
        self.words = nn.Parameter(torch.empty(inputs.vocab_size, factors if gated else dim))  # R, or W_hf
        self.context = nn.Linear(settings.context * dim, dim, bias=False)  # C_1 … C_(n-1), the nearest word's last
        self.bias = nn.Parameter(torch.zeros(inputs.vocab_size))
        self.image = nn.Linear(image_dim, dim, bias=False) if self.image_encoder else None  # C_m
        self.word_factors = nn.Linear(dim, factors, bias=False) if gated else None  # W_fr
        self.visual_factors = nn.Linear(image_dim, factors, bias=False) if gated else None  # W_fx
        for weight in self.parameters():
            if weight.ndim > 1:  # biases start at zero
                nn.init.normal_(weight, std=settings.init_std)

    @property
    def separable(self) -> bool:
        """Whether pictures and words meet in the softmax only: always."""
        return True

    @property
    def uses_image(self) -> bool:
        """Whether the variant uses the image: all but LBL."""
        return self.image_encoder is not None

    @property
    def exact_pairs(self) -> bool:
        """Whether all pairs are always scored in float32: all variants whose scores are one matrix product."""
        return self.word_factors is None

    def image_vector(self, image: ImageFeatures) -> Tensor:
        """Compute the image vector x of each image, (B, m): scaled features, or the output of the convnet."""
        assert self.image_encoder is not None, "LBL uses no image"
        vector: Tensor = self.image_encoder(image)
        return vector

    def encode(self, batch: Batch) -> LBLMemory:
        """Look at the pictures once: C_m x of eqs. 3 and 7, and W_fx x of eq. 8."""
        return self._look(batch.image)

    def _look(self, image: ImageFeatures) -> LBLMemory:
        if self.image is None:
            return LBLMemory(self.words.new_zeros(len(image.present), self.word_dim), None)
        seen = self.image_vector(image)
        return LBLMemory(self.image(seen), None if self.visual_factors is None else self.visual_factors(seen))

    def start(self, memory: LBLMemory) -> LBLState:
        """Start signs all the way back."""
        return LBLState(
            torch.full((len(memory.bias), self.settings.context), SPECIAL_TOKENS.bos, device=memory.bias.device)
        )

    def step(self, tokens: Tensor, memory: LBLMemory, state: LBLState) -> tuple[Tensor, LBLState]:
        """One word (N K,): the logits (N K, V) of the next."""
        memory = spread(memory, len(tokens))
        words = torch.cat([state.words[:, 1:], tokens.unsqueeze(1)], 1)
        predicted = self.context(self._vectors(words).flatten(1)) + memory.bias
        return self._logits(predicted, memory.gates), LBLState(words)

    def forward(self, batch: Batch) -> Output:
        """All positions at once; there is nothing to loop over."""
        memory = self._look(batch.image)
        predicted = self._language(batch.target_in) + memory.bias.unsqueeze(1)
        predicted = dropout(predicted, self.settings.dropout, self.training)
        return Output(self._logits(predicted, None if memory.gates is None else memory.gates.unsqueeze(1)))

    def _language(self, tokens: Tensor) -> Tensor:
        """The sum of C_i r_(w_i) of eq. 1 at every position: tokens (B, T) to (B, T, d)."""
        length = self.settings.context
        vectors = self._vectors(pad(tokens, (length - 1, 0), value=SPECIAL_TOKENS.bos))  # (B, T + n - 2, d)
        windows = vectors.unfold(1, length, 1).transpose(2, 3)  # (B, T, n - 1, d)
        predicted: Tensor = self.context(windows.flatten(2))
        return predicted

    def _prefixes(self, tokens: Tensor, tree: PrefixTree, budget: int) -> Tensor:
        """`_language` after each prefix of a tree, (P, d), some at a time: sentences (S, T), and no padding of them."""
        length, size = self.settings.context, self.words.element_size()
        height = max(1, budget // (length * (64 + (self.words.shape[1] + self.word_dim) * size)))
        back = torch.arange(1 - length, 1)
        language = self.words.new_empty(len(tree.row), self.word_dim)
        for top in range(0, len(tree.row), height):
            some = slice(top, top + height)
            columns = tree.column[some, None] + back  # (p, n - 1)
            words = tokens[tree.row[some, None], columns.clamp(min=0)]
            words.masked_fill_((columns < 0).to(words.device), SPECIAL_TOKENS.bos)
            language[some] = self.context(self._vectors(words).flatten(1))
        return language

    def _vectors(self, tokens: Tensor) -> Tensor:
        """Word vectors r_w: rows of R, or of W_hf W_fr (eq. 7)."""
        rows = nn.functional.embedding(tokens, self.words)
        return rows if self.word_factors is None else rows @ self.word_factors.weight

    def _logits(self, predicted: Tensor, gates: Tensor | None) -> Tensor:
        """Eqs. 2, 4 and 9 before they are normalised: predicted vectors (…, d) to (…, V)."""
        if self.word_factors is not None:
            assert gates is not None
            predicted = self.word_factors(predicted) * gates  # eq. 8
        return nn.functional.linear(predicted, self.words, self.bias)

    def word_vectors(self) -> Tensor:
        """The word representations R, or W_hf W_fr: (V, d)."""
        return self._vectors(torch.arange(self.vocab_size, device=self.words.device))

    @torch.no_grad()
    def init_word_embeddings(self, vectors: Tensor) -> None:
        """Begin with pre-trained word vectors (V, d); MLBL-F takes them apart by an SVD (section 4.2)."""
        if self.word_factors is None:
            self.words.copy_(vectors)
            return
        left, scale, right = torch.linalg.svd(vectors.double(), full_matrices=False)
        rank = min(self.settings.factors, len(scale))
        root = scale[:rank].sqrt()
        self.words[:, :rank] = (left[:, :rank] * root).to(self.words.dtype)
        self.word_factors.weight[:rank] = (root[:, None] * right[:rank]).to(self.words.dtype)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that `pair_log_probs` keeps of each word: its place in the tree and its prediction."""
        return 256 + (self.words.shape[1] + self.word_dim) * self.words.element_size()

    def pair_log_probs(
        self, images: Iterable[ImageFeatures], sentences: Batch, budget: int, dtype: torch.dtype
    ) -> Iterator[Tensor]:
        """Every sentence given every picture, (S, I); see `PairScorer`.

        In MLBL-B the logits of a sentence and of a picture add, so one product of their exponentials gives every
        normaliser, in float32 whatever `dtype` says. MLBL-F is tiled over (prefix, picture) pairs like the m-RNN.
        """
        tree = PrefixTree.of(sentences)
        language = self._prefixes(sentences.target_in, tree, budget)  # (P, d)
        if self.word_factors is None:
            for image in images:
                yield additive_log_probs(language, self._look(image).bias, self.words, self.bias, tree, budget)
            return
        language, weight = self.word_factors(language), self.words.to(dtype)
        for image in images:
            memory = self._look(image)
            assert memory.gates is not None
            picture = torch.cat([self.word_factors(memory.bias), memory.gates], 1)
            yield softmax_log_probs(language, picture, weight, self.bias, tree, budget, gated)


def gated(language: Tensor, picture: Tensor) -> Tensor:
    """Eq. 8 for every pair: (p, f) and what the picture adds and gates, (i, 2f), to (p, i, f)."""
    added, gates = picture.chunk(2, dim=1)
    return (language.unsqueeze(1) + added) * gates
