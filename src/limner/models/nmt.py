"""Attention-based translation with and without pictures: Calixto et al. (2016) and (2017), Huang et al. (2016)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import linear

from limner.data.examples import Batch
from limner.errors import SettingsError
from limner.layers.attention import AdditiveAttention, Annotations
from limner.layers.decoder_cells import ConditionalCell, Masks, PlainCell, Step
from limner.layers.dropout import dropout
from limner.layers.image_encoder import COLOURS, ConvnetPlaces
from limner.layers.recurrent import BiGRU
from limner.models.protocols import Output, precise
from limner.settings import Settings


class NMTSettings(Settings):
    """Settings of the translation models; the sizes are those of Calixto et al. (2017), section 5."""

    translates: ClassVar[bool] = True

    name: Literal["nmt"] = "nmt"
    decoder: Literal["conditional", "plain"] = "conditional"
    """The conditional GRU of the 2017 paper, or the decoder of Bahdanau et al. (2015) of the 2016 paper."""
    picture: tuple[Literal["attention", "initial", "head"], ...] = ()
    """How the picture enters; none for text alone. 'attention': a second attention, over the places of a grid;
    'initial': its vector is added to what the first state is made of (2016, section 2.1); 'head': its vectors are
    tokens at the head of the source sentence (Huang et al., 2016)."""
    start: Literal["ends", "first"] = "ends"
    """What the first state is made of: the last states of both directions (2017), or the first word's annotation
    (2016, eq. 2)."""
    embedding_dim: int = Field(default=620, ge=1)
    hidden_dim: int = Field(default=1024, ge=1)
    """Size of each direction of the encoder and of the decoder's state."""
    attention_dim: int = Field(default=1024, ge=1)
    """Size of the layer that compares a state with an annotation; the papers do not name it."""
    readout_dim: int = Field(default=620, ge=1)
    """Size of the layer before the vocabulary; the papers do not name it."""
    encoder_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of what the encoder reads and of the states its steps start from, one mask for all steps."""
    annotation_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the encoder's annotations."""
    decoder_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of what the decoder reads and of the states its products start from, one mask for all steps."""
    readout_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout before the vocabulary."""
    image_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the picture's features."""
    convnet_width: int = Field(default=16, ge=4, multiple_of=4)
    """Channels of the first layer of the convnet that makes a grid of pixels, where features are pixels."""
    source_word_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the source words whose whole vector is dropped (2016, section 3)."""
    initial_std: float = Field(default=0.01, gt=0)
    """Standard deviation of the Gaussian that weights are drawn from; recurrent ones are orthogonal, biases zero. The
    papers' 0.01 makes a small model begin slowly."""
    tie_embeddings: bool = False
    """Whether the vocabulary's weights are the target words' vectors; readout_dim is then embedding_dim."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.picture)) != len(self.picture):
            raise ValueError(f"picture {list(self.picture)} says one thing twice")
        if self.tie_embeddings and self.readout_dim != self.embedding_dim:
            raise ValueError(
                f"tie_embeddings: readout_dim ({self.readout_dim}) must equal embedding_dim ({self.embedding_dim})"
            )
        return self


class NMTMemory(NamedTuple):
    """What is constant while a sentence is translated, one row an example."""

    source: Annotations
    picture: Annotations | None
    hidden: Tensor  # (B, H): s_0


class NMTState(NamedTuple):
    """The decoder's state s_{t-1}."""

    hidden: Tensor  # (B, H)


class NMT(nn.Module):
    """Translation as printed in the papers, by its settings:

    - text only, 2017 sections 2.1 and 2.2 (eqs. 1-4), and with `decoder: plain` 2016 section 2.3;
    - `picture: [initial]`, `decoder: plain`, `start: first`: the FC7-initialised model, 2016 section 2.1 (eqs. 1-2);
    - `picture: [initial, attention]`, `decoder: plain`, `start: first`: doubly attentive, 2016 sections 2.2-2.4;
    - `picture: [attention]`: NMT_SRC+IMG, 2017 section 3.1 (eqs. 5-10);
    - `picture: [head]`: m1 of Huang et al. (2016) with a pooled vector, m3 with a table of region vectors.

    An example without a picture has an image context of zero and a closed gate, no addition to its first state, no
    token at its head; so one model learns from text and pictures together, and a text-only model's weights are, by
    name, those of the models that look. Rows of zeros in stored features are no regions: nothing is made of them.

    Departures from the papers, where they are silent: every printed product has a bias where a sum of products has
    none yet (eqs. 2, 5, 9, 10); the 2016 models read out as the 2017 ones (eq. 10 without what they lack), and their
    GRU reads the word and the contexts; the MLP of the first state is one tanh layer; sizes of the attention and of
    the read-out layer are settings. The 2017 paper drops units "in the encoder bidirectional RNN" and "the decoder
    RNN" with one mask for all steps: here of the word vectors that enter and of the states that recurrent products
    read. Huang et al. read the regions of m3 in parallel encoders; here they are tokens at the head.
    """

    def __init__(
        self, settings: NMTSettings, vocab_size: int, image: Mapping[str, tuple[int, ...]], source_vocab_size: int
    ) -> None:
        """Build with fresh weights.

        Args:
            settings: the model and its sizes.
            vocab_size: V of the target language, signs included.
            image: shape of each form of picture the batches will hold: vector (D,), grid (L, D), or maps (3, H, W) of
                pixels, of which a convnet learns to make a grid.
            source_vocab_size: V of the source language, signs included.

        Raises:
            SettingsError: the model looks at pictures in a form there is none of.
        """
        super().__init__()
        self.settings, self.vocab_size, self.source_vocab_size = settings, vocab_size, source_vocab_size
        words, hidden = settings.embedding_dim, settings.hidden_dim
        self.source_embedding = nn.Embedding(source_vocab_size, words)
        self.encoder = BiGRU(words, hidden)
        self.initial = nn.Linear(2 * hidden, hidden)  # f_init
        self.target_embedding = nn.Embedding(vocab_size, words)
        self.convnet = None
        places = 0
        if "attention" in settings.picture and "grid" not in image and image.get("maps", (0,))[0] == COLOURS:
            self.convnet = ConvnetPlaces(COLOURS, settings.convnet_width)
            places = self.convnet.dim
        elif "attention" in settings.picture:
            places = _require(image, "grid", settings)[1]
        cell = ConditionalCell if settings.decoder == "conditional" else PlainCell
        self.cell = cell(words, hidden, 2 * hidden, settings.attention_dim, places)
        self.readout_hidden = nn.Linear(hidden, settings.readout_dim)  # L_s
        self.readout_word = nn.Linear(words, settings.readout_dim, bias=False)  # L_w
        self.readout_context = nn.Linear(2 * hidden, settings.readout_dim, bias=False)  # L_c
        self.readout_image = nn.Linear(places, settings.readout_dim, bias=False) if places else None  # L_ci
        self.readout = None if settings.tie_embeddings else nn.Linear(settings.readout_dim, vocab_size)  # L_o
        self.readout_bias = nn.Parameter(torch.zeros(vocab_size)) if settings.tie_embeddings else None
        self.picture_initial = self.picture_token = None
        if "initial" in settings.picture:
            self.picture_initial = nn.Linear(_pooled(image, settings), 2 * hidden)  # W_I, b_I
        if "head" in settings.picture:
            self.token_form = "pooled" if "pooled" in image else "grid"
            self.picture_token = nn.Linear(_require(image, self.token_form, settings)[-1], words)
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        """Gaussian weights and biases of zero (2017, section 5); the recurrent ones are orthogonal already."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                nn.init.normal_(layer.weight, std=self.settings.initial_std)
            if isinstance(layer, nn.Linear) and layer.bias is not None:
                nn.init.zeros_(layer.bias)
            if isinstance(layer, AdditiveAttention):
                nn.init.normal_(layer.score, std=self.settings.initial_std)

    @property
    def uses_image(self) -> bool:
        """Whether the model looks at pictures."""
        return bool(self.settings.picture)

    def encode(self, batch: Batch) -> NMTMemory:
        """Read the source sentences and look at the pictures: annotations, their keys and the first state."""
        settings = self.settings
        assert batch.source is not None and batch.source_mask is not None, "a translation has a source sentence"
        words, mask = self.source_embedding(batch.source), batch.source_mask
        if self.training and settings.source_word_dropout:
            words = words * _kept((*words.shape[:2], 1), settings.source_word_dropout, words)
        if self.picture_token is not None:
            tokens, there = self._head(batch)
            words, mask = torch.cat([tokens, words], 1), torch.cat([there, mask], 1)
        if self.training and settings.encoder_dropout:
            words = words * _kept((len(words), 1, words.shape[2]), settings.encoder_dropout, words)
        values, ends = self.encoder(words, mask, settings.encoder_dropout)
        first = ends
        if settings.start == "first":  # h_1, before which a picture that is not there has left an empty place
            first = values[torch.arange(len(values), device=values.device), mask.int().argmax(1)]
        if self.picture_initial is not None:
            vector = batch.image.pooled if batch.image.pooled is not None else batch.image.grid
            if vector is not None:  # else no example of the batch has a picture
                pooled = _mean(vector) if vector.dim() > 2 else vector
                seen = self.picture_initial(dropout(pooled, settings.image_dropout, self.training))
                first = first + seen * batch.image.present[:, None]
        values = dropout(values, settings.annotation_dropout, self.training)
        return NMTMemory(
            self.cell.source.annotate(values, mask), self._places(batch), precise(torch.tanh(self.initial(first)))
        )

    def _head(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Tokens of the picture, (B, R, E), and which of them there are, (B, R)."""
        assert self.picture_token is not None
        vectors = batch.image.pooled if self.token_form == "pooled" else batch.image.grid
        if vectors is None:
            none = self.picture_token.weight.new_zeros(len(batch), 0, self.settings.embedding_dim)
            return none, none.new_zeros(len(batch), 0, dtype=torch.bool)
        vectors = vectors[:, None] if vectors.dim() == 2 else vectors
        there = batch.image.present[:, None] & _rows(vectors)
        return self.picture_token(dropout(vectors, self.settings.image_dropout, self.training)), there

    def _places(self, batch: Batch) -> Annotations | None:
        """The places of each picture to attend to; None where no example of the batch has a picture."""
        grid = batch.image.grid
        there = batch.image.present[:, None]
        if self.convnet is not None and batch.image.maps is not None:
            grid = self.convnet(batch.image.maps)
        elif grid is not None:
            there = there & _rows(grid)
        if self.cell.picture is None or grid is None:
            return None
        return self.cell.picture.annotate(
            dropout(grid, self.settings.image_dropout, self.training), there.expand(grid.shape[:2])
        )

    def start(self, memory: NMTMemory) -> NMTState:
        """s_0."""
        return NMTState(memory.hidden)

    def step(self, tokens: Tensor, memory: NMTMemory, state: NMTState) -> tuple[Tensor, NMTState]:
        """One word (N K,) of K hypotheses each of N examples: the logits (N K, V) of the next."""
        embedded = self.target_embedding(tokens)
        cell = self.cell
        found = cell(cell.words(embedded), state.hidden, cell.loop(memory.source, memory.picture))
        return self._read_out(embedded, found.hidden, found.context, found.image), NMTState(found.hidden)

    def forward(self, batch: Batch) -> Output:
        """All positions at once; only the recurrence and what depends on it run in a loop over time."""
        settings, memory = self.settings, self.encode(batch)
        embedded = self.target_embedding(batch.target_in)
        masks = None
        if self.training and settings.decoder_dropout:
            embedded = embedded * _kept((len(embedded), 1, embedded.shape[2]), settings.decoder_dropout, embedded)
            reads = 2 if settings.decoder == "conditional" else 1  # the plain cell makes no proposal
            masks = Masks(*(_kept(memory.hidden.shape, settings.decoder_dropout, memory.hidden) for _ in range(reads)))
        hidden, steps, loop = memory.hidden, [], self.cell.loop(memory.source, memory.picture)
        for word in self.cell.words(embedded).unbind(1):
            found: Step = self.cell(word, hidden, loop, masks)
            hidden = found.hidden
            steps.append(found)
        stacked = (None if parts[0] is None else torch.stack(parts, 1) for parts in zip(*steps, strict=True))
        seen = Step(*cast(Iterable[Any], stacked))
        logits = self._read_out(embedded, seen.hidden, seen.context, seen.image)
        return Output(logits, attention=seen.attention, alignment=seen.alignment, gate=seen.gate)

    def _read_out(self, word: Tensor, hidden: Tensor, context: Tensor, image: Tensor | None) -> Tensor:
        """Eqs. 1 and 10 of the 2017 paper up to the softmax: (…, V)."""
        summed = self.readout_hidden(hidden) + self.readout_word(word) + self.readout_context(context)
        if self.readout_image is not None and image is not None:
            summed = summed + self.readout_image(image)
        last = dropout(torch.tanh(summed), self.settings.readout_dropout, self.training)
        if self.readout is None:
            return linear(last, self.target_embedding.weight, self.readout_bias)
        logits: Tensor = self.readout(last)
        return logits


def _kept(shape: tuple[int, ...], rate: float, like: Tensor) -> Tensor:
    """A dropout mask to multiply with, scaled to keep the mean."""
    return dropout(torch.ones(shape, dtype=like.dtype, device=like.device), rate, True)


def _rows(grid: Tensor) -> Tensor:
    """Which rows of stored features (B, L, D) there are, (B, L): fewer regions than rows leave rows of zeros.

    Where all are zeros they are a picture of zeros, which is there.
    """
    there = grid.any(-1)
    return there | ~there.any(1, keepdim=True)


def _mean(grid: Tensor) -> Tensor:
    """The mean of the rows that there are, (B, L, D) to (B, D)."""
    return grid.sum(1) / _rows(grid).sum(1, keepdim=True)


def _require(image: Mapping[str, tuple[int, ...]], form: str, settings: NMTSettings) -> tuple[int, ...]:
    if form not in image:
        raise SettingsError(
            f"features.tables: model.picture {list(settings.picture)} needs features of the form '{form}' "
            f"(named are: {', '.join(image) or 'none'})"
        )
    return image[form]


def _pooled(image: Mapping[str, tuple[int, ...]], settings: NMTSettings) -> int:
    return _require(image, "pooled" if "pooled" in image else "grid", settings)[-1]
