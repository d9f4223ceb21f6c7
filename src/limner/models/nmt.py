"""Attention-based translation with and without images: Calixto et al. (2016, 2017), Huang et al. (2016).

Shapes: B batch, T target length, S source length, L image locations, D feature size, E embedding, H hidden,
A attention, V vocabulary, K hypotheses of an example.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from limner.bounds import Layers, PositiveDeviation, Rate, Width
from limner.data.examples import Batch
from limner.errors import SettingsError
from limner.layers.attention import AdditiveAttention, Annotations
from limner.layers.cells import Cell, CellSettings, CellState
from limner.layers.decoders import AttentionDecoder, ConditionalDecoder, DropoutMasks, decode
from limner.layers.functional import precise
from limner.layers.image_encoder import GridEncoder, ImageEncoder, ImageEncoderSettings
from limner.layers.stack import BidirectionalLayers, RecurrentSettings
from limner.models.protocols import ConditionalLMSettings, ModelInputs, Output


class NMTSettings(ConditionalLMSettings):
    """Settings of the translation models; the sizes follow Calixto et al. (2017), section 5."""

    translates: ClassVar = True
    name: Literal["nmt"] = "nmt"
    decoder: Literal["conditional", "plain"] = "conditional"
    """Decoder: the conditional GRU of the 2017 paper, or the decoder of Bahdanau et al. (2015) of the 2016 paper."""
    cell: CellSettings = CellSettings(name="gru")
    """Recurrent cell of the encoder and the decoder; GRUs in the papers."""
    image: tuple[Literal["attention", "initial", "prefix"], ...] = ()
    """Uses of the image; none for text-only translation. 'attention': a second attention over the locations of a grid;
    'initial': the image vector is added to the input of the initial decoder state (2016, section 2.1); 'prefix': image
    vectors are image prefix tokens of the source sentence (Huang et al., 2016)."""
    initial_state: Literal["ends", "first"] = "ends"
    """Input of the initial decoder state: the last states of both directions of the encoder (2017), or the annotation
    of the first source token (2016, eq. 2)."""
    embedding_dim: Width = 620
    """Size E of the source and target embeddings."""
    hidden_dim: Width = 1024
    """Size H of the decoder state, and of each direction of the encoder unless `encoder_dim` is set."""
    encoder_dim: Width | None = None
    """Size of each direction of the encoder; None for `hidden_dim`. A context vector has twice this size, so that the
    1000D states and 1000D context vectors of 2016, section 3, need 1000 and 500."""
    attention_dim: Width = 1024
    """Size A of the hidden layer of the attentions; the papers do not give it."""
    readout_dim: Width = 620
    """Size of the layer before the vocabulary; the papers do not give it."""
    image_encoder: ImageEncoderSettings = ImageEncoderSettings()
    """Scaling and dropout of the image features, and width of the convnet that computes a grid from pixels."""
    encoder_dropout: Rate = 0.0
    """Dropout rate of the encoder's inputs and recurrent states, one mask for all time steps."""
    annotation_dropout: Rate = 0.0
    """Dropout rate of the encoder's annotations."""
    decoder_dropout: Rate = 0.0
    """Dropout rate of the decoder's inputs and recurrent states, one mask for all time steps."""
    readout_dropout: Rate = 0.0
    """Dropout rate before the vocabulary."""
    source_word_dropout: Rate = 0.0
    """Share of the source tokens whose whole embedding is dropped (2016, section 3)."""
    initial_std: PositiveDeviation = 0.01
    """Standard deviation of the Gaussian initialisation; recurrent weights are orthogonal, biases zero
    (forget gates of an LSTM: 1). Small models
    learn faster with more than the papers' 0.01."""
    tie_embeddings: bool = False
    """Whether the vocabulary weights are the target embeddings; readout_dim must then equal embedding_dim."""
    share_embeddings: bool = False
    """Whether the source embeddings are the target embeddings (Press and Wolf, 2017; with `tie_embeddings` the
    three-way tying of that paper); needs `data.joint_vocabulary`."""
    encoder_layers: Layers = 1
    """Number of bidirectional layers of the encoder; 1 in the papers. Layers above the first add their input to their
    output (residual connections)."""

    @property
    def shares_embeddings(self) -> bool:
        return self.share_embeddings

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.image)) != len(self.image):
            raise ValueError(f"image {list(self.image)} lists a use twice; expected each at most once")
        if self.tie_embeddings and self.readout_dim != self.embedding_dim:
            raise ValueError(
                f"tie_embeddings: readout_dim ({self.readout_dim}) must equal embedding_dim ({self.embedding_dim})"
            )
        return self


class NMTMemory(NamedTuple):
    """Tensors that are constant over the time steps, one row per example."""

    source: Annotations
    image: Annotations | None
    initial: CellState  # (B, H): s_0


class NMT(nn.Module):
    """The translation models of three papers, selected by the settings:

    - text only, 2017 sections 2.1 and 2.2 (eqs. 1-4), and with `decoder: plain` 2016 section 2.3;
    - `image: [initial]`, `decoder: plain`, `initial_state: first`: the FC7-initialised model, 2016 section 2.1
      (eqs. 1-2);
    - `image: [initial, attention]`, `decoder: plain`, `initial_state: first`: doubly attentive, 2016 sections 2.2-2.4;
    - `image: [attention]`: NMT_SRC+IMG, 2017 section 3.1 (eqs. 5-10);
    - `image: [prefix]`: m1 of Huang et al. (2016) with a pooled vector, m3 with a table of region vectors.

    An example without an image has a zero image context, a closed gate, no addition to its initial state and no image
    prefix tokens. One model can therefore be trained on sentences with and without images, and the weights of a
    text-only model are, by name, a subset of the weights of a multimodal model. Rows of zeros in stored grids are
    padding and are masked.

    Departures from the papers, where they give no details: a sum of products has one bias (eqs. 2, 5, 9, 10); the 2016
    models use the read-out of the 2017 models (eq. 10 without the missing terms), and their GRU reads the word and the
    contexts; the MLP of the initial state is one tanh layer; sizes of the attention and the read-out layer are
    settings. The 2017 paper drops units "in the encoder bidirectional RNN" and "the decoder RNN" with one mask for all
    steps: here, dropout is applied to the input embeddings and to the states in recurrent products. The 2016 paper
    drops units "before the readout operation": here, between the tanh and L_o. Huang et al. use LSTMs, and read the
    regions of m3 in parallel threads; here the recipes have GRUs, and the regions are prefix tokens of one sequence.
    Tied and shared embeddings and several encoder layers are in none of the papers.
    """

    Settings: ClassVar = NMTSettings

    def __init__(self, settings: NMTSettings, inputs: ModelInputs) -> None:
        super().__init__()
        assert inputs.source_vocab_size is not None, "a translation model has a source vocabulary"
        self.settings, self.vocab_size = settings, inputs.vocab_size
        embedding, hidden, readout = settings.embedding_dim, settings.hidden_dim, settings.readout_dim
        encoder = hidden if settings.encoder_dim is None else settings.encoder_dim
        context = 2 * encoder  # size of an annotation [forward; backward], and of c_t
        self.source_embedding = None  # E_x; None where it is E_y
        if not settings.share_embeddings:
            self.source_embedding = nn.Embedding(inputs.source_vocab_size, embedding)
        structure = RecurrentSettings(cell=settings.cell, layers=settings.encoder_layers)
        self.encoder = BidirectionalLayers(embedding, encoder, structure, residual=True)
        self.initial = nn.Linear(context, hidden)  # f_init
        self.target_embedding = nn.Embedding(inputs.vocab_size, embedding)  # E_y
        self.grid_encoder = None
        if "attention" in settings.image:
            self.grid_encoder = GridEncoder(_require(inputs, settings, "grid", "maps"), settings.image_encoder)
        image_dim = self.grid_encoder.dim if self.grid_encoder else 0
        decoder = ConditionalDecoder if settings.decoder == "conditional" else AttentionDecoder
        self.decoder = decoder(settings.cell, embedding, hidden, context, settings.attention_dim, image_dim)
        self.readout_hidden = nn.Linear(hidden, readout)  # L_s
        self.readout_word = nn.Linear(embedding, readout, bias=False)  # L_w
        self.readout_context = nn.Linear(context, readout, bias=False)  # L_cs
        self.readout_image = nn.Linear(image_dim, readout, bias=False) if image_dim else None  # L_ci
        self.readout = None if settings.tie_embeddings else nn.Linear(readout, inputs.vocab_size)  # L_o
        self.readout_bias = nn.Parameter(torch.zeros(inputs.vocab_size)) if settings.tie_embeddings else None
        self.initial_encoder = self.prefix_encoder = None
        if "initial" in settings.image:
            self.initial_encoder = ImageEncoder(_require(inputs, settings, "pooled", "grid"), settings.image_encoder)
            self.image_initial = nn.Linear(self.initial_encoder.dim, context)  # W_I, b_I
        if "prefix" in settings.image:
            self.prefix_encoder = GridEncoder(_require(inputs, settings, "pooled", "grid"), settings.image_encoder)
            self.image_prefix = nn.Linear(self.prefix_encoder.dim, embedding)
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        """Draw Gaussian weights and set biases to zero (2017, section 5); recurrent weights are orthogonal already."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Embedding):
                nn.init.normal_(layer.weight, std=self.settings.initial_std)
            if isinstance(layer, nn.Linear) and layer.bias is not None:
                nn.init.zeros_(layer.bias)
            if isinstance(layer, AdditiveAttention):
                nn.init.normal_(layer.score, std=self.settings.initial_std)
        for layer in self.modules():
            if isinstance(layer, Cell):
                layer.reset_bias()

    @property
    def uses_image(self) -> bool:
        return bool(self.settings.image)

    def encode(self, batch: Batch) -> NMTMemory:
        """Compute the annotations of source tokens and image locations, their keys, and the initial state s_0."""
        settings = self.settings
        words, mask = self._embed_source(batch)
        values, ends = self.encoder(words, mask, settings.encoder_dropout)
        initial = ends
        if settings.initial_state == "first":  # h_1, after the missing prefix tokens of an example without an image
            initial = values[torch.arange(values.shape[0], device=values.device), mask.int().argmax(1)]
        if self.initial_encoder is not None:
            image = self.image_initial(self.initial_encoder(batch.image))  # d = W_I q + b_I (2016, eq. 1)
            initial = initial + image * batch.image.present[:, None]
        hidden = precise(torch.tanh(self.initial(initial)))  # s_0 = f_init (2016, eq. 2)
        state = CellState(hidden, torch.zeros_like(hidden) if self.decoder.has_memory_cell else None)
        values = dropout(values, settings.annotation_dropout, self.training)
        return NMTMemory(self.decoder.source_attention.annotate(values, mask), self._annotate_image(batch), state)

    def _embed_source(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Embed image prefix tokens and source tokens: (B, S, E), and a mask (B, S)."""
        assert batch.source is not None and batch.source_mask is not None, "a translation has a source sentence"
        settings = self.settings
        embedding = self.target_embedding if self.source_embedding is None else self.source_embedding
        words, mask = embedding(batch.source), batch.source_mask
        if self.training and settings.source_word_dropout:
            words = words * _dropout_mask((*words.shape[:2], 1), settings.source_word_dropout, words)
        prefix = None if self.prefix_encoder is None else self.prefix_encoder(batch.image)
        if prefix is not None:
            vectors, present = prefix
            words, mask = torch.cat([self.image_prefix(vectors), words], 1), torch.cat([present, mask], 1)
        if self.training and settings.encoder_dropout:
            words = words * _dropout_mask((len(words), 1, words.shape[2]), settings.encoder_dropout, words)
        return words, mask

    def _annotate_image(self, batch: Batch) -> Annotations | None:
        """Compute the annotations of the image locations; None where no example of the batch has an image."""
        grid = None if self.grid_encoder is None else self.grid_encoder(batch.image)
        if grid is None or self.decoder.image_attention is None:
            return None
        return self.decoder.image_attention.annotate(*grid)

    def start(self, memory: NMTMemory) -> CellState:
        return memory.initial

    def step(self, tokens: Tensor, memory: NMTMemory, state: CellState) -> tuple[Tensor, CellState]:
        embedded = self.target_embedding(tokens)
        step = self.decoder(self.decoder.words(embedded), state, memory.source, memory.image)
        return self._read_out(embedded, step.state.hidden, step.context, step.image), step.state

    def forward(self, batch: Batch) -> Output:
        """Compute the logits of all positions; only the recurrence runs in a loop over time."""
        settings, memory = self.settings, self.encode(batch)
        embedded = self.target_embedding(batch.target_in)
        masks = None
        if self.training and settings.decoder_dropout:
            rate = settings.decoder_dropout
            embedded = embedded * _dropout_mask((len(embedded), 1, embedded.shape[2]), rate, embedded)
            states, hidden = 2 if settings.decoder == "conditional" else 1, memory.initial.hidden
            masks = DropoutMasks(*(_dropout_mask(hidden.shape, rate, hidden) for _ in range(states)))  # of s_t, s'_t
        steps = decode(self.decoder, self.decoder.words(embedded), memory.initial, memory.source, memory.image, masks)
        logits = self._read_out(embedded, steps.state.hidden, steps.context, steps.image)
        return Output(logits, attention=steps.attention, alignment=steps.alignment, gate=steps.gate)

    def _read_out(self, word: Tensor, hidden: Tensor, context: Tensor, image: Tensor | None) -> Tensor:
        """Compute logits (…, V): L_o tanh(L_s s_t + L_w E_y[y_{t-1}] + L_cs c_t + L_ci i_t) (2017, eqs. 1 and 10)."""
        summed = self.readout_hidden(hidden) + self.readout_word(word) + self.readout_context(context)
        if self.readout_image is not None and image is not None:
            summed = summed + self.readout_image(image)
        last = dropout(torch.tanh(summed), self.settings.readout_dropout, self.training)
        if self.readout is None:
            return linear(last, self.target_embedding.weight, self.readout_bias)
        logits: Tensor = self.readout(last)
        return logits


def _dropout_mask(shape: tuple[int, ...], rate: float, like: Tensor) -> Tensor:
    """Draw a dropout mask of the given shape, scaled to preserve the mean."""
    return dropout(torch.ones(shape, dtype=like.dtype, device=like.device), rate, True)


def _require(inputs: ModelInputs, settings: NMTSettings, *kinds: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the features of the given kinds; SettingsError if there are none."""
    shapes = {kind: inputs.feature_shapes[kind] for kind in kinds if kind in inputs.feature_shapes}
    if not shapes:
        raise SettingsError(
            f"features.tables: model.image {list(settings.image)} needs features of kind {' or '.join(kinds)}, "
            f"got {', '.join(inputs.feature_shapes) or 'none'}"
        )
    return shapes
