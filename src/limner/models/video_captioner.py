"""Sentences about clips: Venugopalan et al. (2015) with mean pooling over frames, LRCN (Donahue et al., 2015), and
attention over frames (Yao et al., 2015).

Shapes: B batch, T target length, L frames, D frame size, E embedding, H hidden, G gates, F states of the frame encoder,
V vocabulary, N examples with K hypotheses each.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn.functional import dropout

from limner.bounds import Layers, Rate, Width, WidthOrNone
from limner.data.examples import Batch, ImageFeatures
from limner.layers.attention import AdditiveAttention, Annotations
from limner.layers.cells import Cell, CellSettings, CellState, build_cell
from limner.layers.frame_encoder import FrameEncoder, mean_over_frames
from limner.layers.functional import repeat_rows
from limner.layers.image_encoder import ImageEncoderSettings
from limner.layers.stack import RecurrentLayers, RecurrentSettings
from limner.models.protocols import ConditionalLMSettings, EmbeddedWords, ModelInputs, Output


class VideoCaptionerSettings(ConditionalLMSettings):
    """Settings of the video captioner; the default is the model of Venugopalan et al. (2015)."""

    name: Literal["video_captioner"] = "video_captioner"
    cell: CellSettings = CellSettings()
    """Recurrent cell of all recurrent layers."""
    layers: Layers = 2
    """Number of stacked recurrent layers."""
    visual_layer: Layers = 1
    """Recurrent layer that reads the clip: 1 for the model of Venugopalan et al. and the unfactored LRCN (LRCN-1u with
    `layers: 1`, LRCN-2u), 2 for the factored LRCN-2f, 3 with `layers: 4` for LRCN-4f."""
    frames: Literal["mean", "last", "attention"] = "mean"
    """Summary of the frames: their mean, the state of the frame encoder after the last frame, or additive attention in
    every step."""
    frame_encoder_dim: WidthOrNone = 0
    """Size F of a recurrent layer that reads the frames in order before they are summarised; 0 for none. Without it,
    'mean' and 'attention' do not depend on the order of the frames."""
    embedding_dim: Width = 500
    """Size E of the word embeddings."""
    hidden_dim: Width = 1000
    """Size H of the state of each recurrent layer."""
    attention_dim: Width = 256
    """Size of the hidden layer of the attention over frames."""
    dropout: Rate = 0.0
    """Dropout rate of the embeddings and of the state of every layer, as input of the next, in training."""
    image_encoder: ImageEncoderSettings = ImageEncoderSettings()
    """Scaling and dropout of the frame features, and sizes of the convnet on pixels or feature maps."""

    @model_validator(mode="after")
    def _layers_exist(self) -> Self:
        if self.visual_layer > self.layers:
            raise ValueError(f"visual_layer is {self.visual_layer}, expected at most layers, {self.layers}")
        if self.frames == "last" and not self.frame_encoder_dim:
            raise ValueError("frames 'last' is the last state of the frame encoder; set frame_encoder_dim above 0")
        return self


class VideoMemory(NamedTuple):
    """Terms of the clip, constant over the time steps; exactly one field is None."""

    visual: Tensor | None  # (B, G H): W_v v
    annotations: Annotations | None  # frames, for attention


class VideoState(NamedTuple):
    """State of every recurrent layer, from the first to the last."""

    layers: tuple[CellState, ...]


class VideoCaptioner(EmbeddedWords, nn.Module):
    """The video captioner of Venugopalan et al. (2015), section 3, LRCN as its variant, and attention over frames.

    With frame features f_1, …, f_L, previous words w_{t-1} and h^0_t = E w_{t-1}:

        v = 1/L sum_i f_i                                               mean pooling over frames
        h^k_t, c^k_t = LSTM(h^{k-1}_t, h^k_{t-1}, c^k_{t-1})            layer k; its gates have
            W_x [h^{k-1}_t; v] + W_h h^k_{t-1} + b                      in layer `visual_layer`
            W_x h^{k-1}_t + W_h h^k_{t-1} + b                           in all others
        logits = W_o h^n_t + b_o                                        of the last layer n

    In the model of Venugopalan et al. the first of two layers reads v in every step. LRCN (Donahue et al., 2015) calls
    this unfactored (LRCN-2u); in the factored LRCN-2f the second layer reads v, so that the first layer models the
    words alone. With attention, v_t is computed in every step t:

        e_ti = u tanh(W_a f_i + U_a h_{t-1} + b_a), alpha_t = softmax(e_t), v_t = sum_i alpha_ti f_i

    where h is the state of the layer that reads the clip (Yao et al., 2015, eqs. 6-8). With a frame encoder,
    g_i = LSTM(f_i, g_{i-1}) takes the place of f_i, as in the LRCN for sequences of frames, and `last` is v = g_L.

    Departures from the papers: words have embeddings E of their own, which Venugopalan et al. describe as one-hot
    vectors (the product with W_x is then the embedding); the gates have biases, with 1 for the forget gates; recurrent
    weights are orthogonal, embeddings normal with standard deviation 0.1, and the weights that read the frame encoder
    normal with standard deviation 1; the convolutional network is a backbone whose features are stored, or a small
    convnet trained jointly on pixels. Frames of zeros at the end of a clip are padding and are left out. LRCN's video
    description decodes the output of a conditional random field of the clip's participants, which this model does not
    have: the clip is represented by its frames.
    """

    Settings: ClassVar = VideoCaptionerSettings
    uses_image = True

    def __init__(self, settings: VideoCaptionerSettings, inputs: ModelInputs) -> None:
        super().__init__()
        self.settings, self.vocab_size = settings, inputs.vocab_size
        hidden = settings.hidden_dim
        self.frame_encoder = FrameEncoder(inputs.feature_shapes, settings.image_encoder)
        dim = self.frame_encoder.dim
        self.frame_layers: RecurrentLayers | None = None
        if settings.frame_encoder_dim:
            structure = RecurrentSettings(cell=settings.cell)
            self.frame_layers = RecurrentLayers(dim, settings.frame_encoder_dim, structure)
            dim = settings.frame_encoder_dim
        self.embedding = nn.Embedding(inputs.vocab_size, settings.embedding_dim)  # E
        sizes = [settings.embedding_dim, *[hidden] * (settings.layers - 1)]
        self.cells = nn.ModuleList(build_cell(settings.cell, size, hidden) for size in sizes)
        self.visual = nn.Linear(dim, self._cells()[0].gates * hidden, bias=False)  # the part of W_x that reads v
        attends = settings.frames == "attention"
        self.attention = AdditiveAttention(hidden, dim, settings.attention_dim) if attends else None
        self.softmax = nn.Linear(hidden, inputs.vocab_size)  # W_o, b_o
        nn.init.normal_(self.embedding.weight, std=0.1)
        nn.init.zeros_(self.softmax.bias)
        if self.frame_layers is not None:
            nn.init.normal_(self.visual.weight, std=1.0)  # the states of the frame encoder are small at first

    def image_vector(self, image: ImageFeatures) -> Tensor:
        """Compute the mean vector of the frames of each clip, before the frame encoder, (B, D)."""
        encoded = self.frame_encoder(image)
        if encoded is None:
            return self.visual.weight.new_zeros(len(image.present), self.frame_encoder.dim)
        return mean_over_frames(*encoded)

    def encode(self, batch: Batch) -> VideoMemory:
        """Compute W_v v of the clip, or the annotations and their keys for attention over frames."""
        frames, mask = self._frames(batch.image)
        if self.attention is not None:
            return VideoMemory(None, self.attention.annotate(frames, mask))
        if self.settings.frames == "last":
            return VideoMemory(self.visual(frames[:, -1] * mask.any(1, keepdim=True)), None)
        return VideoMemory(self.visual(mean_over_frames(frames, mask)), None)

    def _frames(self, image: ImageFeatures) -> tuple[Tensor, Tensor]:
        """Compute f_i or g_i of every frame, (B, L, D) or (B, L, F), and the mask (B, L) of frames that exist.

        Behind the last frame that exists, g_i is its state.
        """
        encoded = self.frame_encoder(image)
        if encoded is None:  # no example of the batch has a clip
            rows = len(image.present)
            return self.visual.weight.new_zeros(rows, 1, self.visual.in_features), image.present[:, None] & False
        frames, mask = encoded
        frames = frames.to(self.visual.weight.dtype)
        if self.frame_layers is not None:
            frames = self.frame_layers(frames, None, mask)[0].to(self.visual.weight.dtype)
        return frames, mask

    def start(self, memory: VideoMemory) -> VideoState:
        """Return states of zeros for every layer."""
        part = memory.visual if memory.annotations is None else memory.annotations.values
        assert part is not None
        return VideoState(tuple(cell.start(part.shape[0]) for cell in self._cells()))

    def step(self, tokens: Tensor, memory: VideoMemory, state: VideoState) -> tuple[Tensor, VideoState]:
        hidden: Tensor = self.embedding(tokens)
        layers = []
        for number, (cell, before) in enumerate(zip(self._cells(), state.layers, strict=True), start=1):
            projected = cell.project(hidden)
            if number == self.settings.visual_layer:
                projected = projected + self._visual_term(memory, before)[0]
            layers.append(cell(projected, before))
            hidden = layers[-1].hidden
        return self.softmax(hidden), VideoState(tuple(layers))

    def forward(self, batch: Batch) -> Output:
        """Compute the logits (B, T, V) of all positions, layer by layer, and the attention over frames (B, T, L)."""
        memory, rate = self.encode(batch), self.settings.dropout
        attention = None
        inputs = self.embedding(batch.target_in)
        for number, (cell, state) in enumerate(zip(self._cells(), self.start(memory).layers, strict=True), start=1):
            projected = cell.project(dropout(inputs, rate, self.training))
            reads_clip = number == self.settings.visual_layer
            hidden: list[Tensor] = []
            weights: list[Tensor | None] = []
            for at_t in projected.unbind(1):
                if reads_clip:
                    term, alpha = self._visual_term(memory, state)
                    at_t, weights = at_t + term, [*weights, alpha]
                state = cell(at_t, state)
                hidden.append(state.hidden)
            inputs = torch.stack(hidden, 1)
            if reads_clip and self.attention is not None:
                attention = torch.stack([alpha for alpha in weights if alpha is not None], 1)
        return Output(self.softmax(dropout(inputs, rate, self.training)), attention)

    def _visual_term(self, memory: VideoMemory, state: CellState) -> tuple[Tensor, Tensor | None]:
        """Compute W_v v, or W_v v_t from the previous state of the layer, (N K, G H); with alpha_t (N K, L)."""
        if self.attention is None or memory.annotations is None:
            assert memory.visual is not None
            return repeat_rows(memory.visual, state.hidden.shape[0]), None
        context, alpha = self.attention(state.hidden, memory.annotations)
        return self.visual(context), alpha

    def _cells(self) -> list[Cell]:
        return [cell for cell in self.cells if isinstance(cell, Cell)]
