"""Sequence classification and labelling with recurrent layers: one label of a sequence, or one label of each step.

Shapes: B batch, S steps of the input, T target length, E input size, H hidden, D output size, V vocabulary of labels,
N examples with K hypotheses each.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import dropout

from limner.bounds import Layers, PositiveDeviation, Rate, Width
from limner.data.examples import Batch
from limner.errors import TrainingError
from limner.layers.cells import CellSettings
from limner.layers.frame_encoder import FrameEncoder
from limner.layers.functional import precise
from limner.layers.image_encoder import ImageEncoderSettings
from limner.layers.stack import BidirectionalLayers, LayerState, RecurrentLayers, RecurrentSettings
from limner.models.protocols import EXCLUDED, ConditionalLMSettings, ModelInputs, Output
from limner.text.vocab import SPECIAL_TOKENS


class SequenceLabellerSettings(ConditionalLMSettings):
    """Settings of sequence classification (`outputs: last`) and sequence labelling (`outputs: every`)."""

    name: Literal["sequence_labeller"] = "sequence_labeller"
    reads: Literal["source", "image"] = "source"
    """Input sequence: the tokens of a sentence in `data.source_lang`, or the frames of a clip or a sound: the rows of
    a grid of features, or pixels that a convnet encodes frame by frame."""
    outputs: Literal["last", "every"] = "last"
    """One label of the whole sequence, or one label of each step."""
    cell: CellSettings | Literal["none"] = CellSettings()
    """Recurrent cell; `none` for a tanh layer of each step alone, which has no memory."""
    layers: Layers = 1
    """Number of recurrent layers."""
    bidirectional: bool = False
    """Whether a second set of layers reads the sequence backwards, so that every output depends on all steps."""
    pooling: Literal["final", "mean", "max"] = "final"
    """Summary of the outputs for `outputs: last`: the final states (of each direction), or the mean or the maximum over
    the steps."""
    previous_label: bool = False
    """Whether each label depends on the labels before it (`outputs: every`): a further recurrent layer reads the
    outputs and the embedding of the previous label."""
    word_dim: Width = 128
    """Size E of the word embeddings."""
    projection_dim: Width | None = None
    """Size E of a tanh layer between the features of a frame and the recurrent layers; None for no such layer."""
    hidden_dim: Width = 128
    """Size H of the states of each layer and direction."""
    label_dim: Width = 32
    """Size of the label embeddings for `previous_label`."""
    dropout: Rate = 0.0
    """Dropout rate of the inputs of each layer and of the layer before the labels, in training."""
    word_dropout: Rate = 0.0
    """Share of the source tokens whose whole embedding is dropped in training."""
    embedding_std: PositiveDeviation = 0.1
    """Standard deviation of the initial word embeddings."""
    image_encoder: ImageEncoderSettings = ImageEncoderSettings()
    """Scaling and dropout of the features, and sizes of the convnet on pixels of frames."""

    @property
    def translates(self) -> bool:  # type: ignore[override]
        return self.reads == "source"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.previous_label and self.outputs == "last":
            raise ValueError("previous_label needs outputs 'every': a single label has no label before it")
        if self.cell == "none" and (self.bidirectional or self.layers > 1):
            raise ValueError("cell 'none' has no recurrence: leave out bidirectional and layers")
        return self


class LabellerMemory(NamedTuple):
    """Outputs of the layers for all steps, constant while labels are decoded."""

    outputs: Tensor  # (B, S, D); S is 1 for one label of the sequence
    lengths: Tensor  # (B,): number of labels


class LabellerState(NamedTuple):
    """Number of labels so far, and the state of the layer that reads them."""

    position: Tensor  # (N K,)
    labels: tuple[LayerState, ...] | None = None


class SequenceLabeller(nn.Module):
    """Recurrent networks that map a sequence x_1, ..., x_S to one label or to a label of each step.

    The states of recurrent layers over the embedded tokens or the features, h_1, ..., h_S, give

        P(y | x) = softmax(W p + b), p = h_S or the mean or the maximum of all h_t     `outputs: last`
        P(y_t | x) = softmax(W h_t + b)                                               `outputs: every`

    Labels of different steps are independent given the input. Unidirectional layers base label t on x_1, ..., x_t,
    bidirectional layers (Schuster and Paliwal, 1997) on the whole sequence, h_t = [forward; backward]. With
    `previous_label`, a further recurrent layer s_t = cell([h_t; E y_{t-1}], s_{t-1}) replaces h_t, so that label t
    depends on the labels before it as well; with `cell: none` that layer is a tanh layer, and the previous label is the
    only memory (output recurrence).

    Logits are log-probabilities. The end-of-sentence token is certain after the last label and excluded before it, so
    that a sentence of labels has the probability of its labels.
    """

    Settings: ClassVar = SequenceLabellerSettings

    def __init__(self, settings: SequenceLabellerSettings, inputs: ModelInputs) -> None:
        super().__init__()
        self.settings, self.vocab_size = settings, inputs.vocab_size
        self.embedding = self.frame_encoder = self.projection = None
        if settings.reads == "source":
            assert inputs.source_vocab_size is not None, "source sentences have a vocabulary"
            self.embedding = nn.Embedding(inputs.source_vocab_size, settings.word_dim)
            nn.init.normal_(self.embedding.weight, std=settings.embedding_std)
            dim = settings.word_dim
        else:
            self.frame_encoder = FrameEncoder(inputs.feature_shapes, settings.image_encoder)
            dim = self.frame_encoder.dim
            shape = inputs.feature_shapes[self.frame_encoder.kind]
            self.frames = shape[0] if len(shape) in (2, 4) else 1  # rows of a grid, or frames of pixels
            if settings.projection_dim is not None:
                self.projection = nn.Linear(dim, settings.projection_dim)
                dim = settings.projection_dim
        hidden = settings.hidden_dim
        self.layers = self._build(dim)
        self.output_dim = 2 * hidden if settings.bidirectional else hidden
        self.label_embedding = self.label_layers = None
        if settings.previous_label:
            self.label_embedding = nn.Embedding(inputs.vocab_size, settings.label_dim)
            self.label_layers = self._build(self.output_dim + settings.label_dim, of_labels=True)
        label_count = inputs.vocab_size - len(SPECIAL_TOKENS)
        self.readout = nn.Linear(hidden if settings.previous_label else self.output_dim, label_count)  # W, b

    def _build(self, dim: int, *, of_labels: bool = False) -> RecurrentLayers | BidirectionalLayers | nn.Linear:
        """Build the layers over the inputs, or the layer over the outputs and the previous labels."""
        settings = self.settings
        if settings.cell == "none":
            return nn.Linear(dim, settings.hidden_dim)
        count = 1 if of_labels else settings.layers
        structure = RecurrentSettings(cell=settings.cell, layers=count, dropout=settings.dropout)
        if settings.bidirectional and not of_labels:
            return BidirectionalLayers(dim, settings.hidden_dim, structure)
        return RecurrentLayers(dim, settings.hidden_dim, structure)

    @property
    def uses_image(self) -> bool:
        return self.frame_encoder is not None

    @property
    def word_dim(self) -> int:
        return self.settings.word_dim

    def init_word_embeddings(self, vectors: Tensor) -> None:
        """Initialise the embeddings of the source tokens from pre-trained vectors, (V, word_dim)."""
        assert self.embedding is not None, "the input is a sequence of frames"
        with torch.no_grad():
            self.embedding.weight.copy_(vectors)

    def encode(self, batch: Batch) -> LabellerMemory:
        """Run the layers over the input: outputs h_1, ..., h_S, or their summary p."""
        settings = self.settings
        inputs, mask = self._inputs(batch)
        inputs = dropout(inputs, settings.dropout, self.training)
        lengths = mask.sum(1)
        outputs, final = self._run(inputs, mask, lengths)
        if settings.outputs == "last":
            pooled = final if settings.pooling == "final" else _pool(outputs, mask, settings.pooling)
            outputs, lengths = pooled.unsqueeze(1), torch.ones_like(lengths)
        return LabellerMemory(dropout(outputs, settings.dropout, self.training), lengths)

    def _inputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute x_1, ..., x_S (B, S, E) and a mask (B, S); the steps that exist come first."""
        if self.embedding is not None:
            assert batch.source is not None and batch.source_mask is not None, "the input is a sentence"
            words: Tensor = self.embedding(batch.source)
            if self.training and self.settings.word_dropout:
                kept = dropout(words.new_ones((*words.shape[:2], 1)), self.settings.word_dropout, True)
                words = words * (kept > 0)
            return words, batch.source_mask
        assert self.frame_encoder is not None
        grid = self.frame_encoder(batch.image)
        if grid is None:  # no example of the batch has an image
            vectors = batch.image.present.new_zeros(
                (len(batch), 1, self.frame_encoder.dim), dtype=self.readout.weight.dtype
            )
            mask = batch.image.present[:, None]
        else:
            vectors, mask = grid
        if self.projection is not None:
            vectors = torch.tanh(self.projection(vectors))
        return vectors, mask

    def _run(self, inputs: Tensor, mask: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Run the layers: outputs (B, S, D), and the final state of each direction (B, D), zero without steps."""
        if isinstance(self.layers, BidirectionalLayers):
            outputs, final = self.layers(inputs, mask)
            return outputs, final
        if isinstance(self.layers, RecurrentLayers):
            outputs, _ = self.layers(inputs)  # padding follows the steps that exist and does not affect them
        else:
            outputs = torch.tanh(self.layers(inputs))
        last = (lengths - 1).clamp(min=0)
        final = outputs[torch.arange(len(outputs), device=last.device), last]
        return outputs, final * (lengths > 0)[:, None]

    def start(self, memory: LabellerMemory) -> LabellerState:
        rows = len(memory.lengths)
        state = self.label_layers.start(rows) if isinstance(self.label_layers, RecurrentLayers) else None
        return LabellerState(torch.zeros_like(memory.lengths), state)

    def step(self, tokens: Tensor, memory: LabellerMemory, state: LabellerState) -> tuple[Tensor, LabellerState]:
        """Compute the log-probabilities (N K, V) of the next label after one more label (N K,) of each hypothesis."""
        examples = torch.arange(len(tokens), device=tokens.device) // (len(tokens) // len(memory.lengths))
        position, lengths = state.position, memory.lengths[examples]
        outputs = memory.outputs[examples, position.clamp(max=memory.outputs.shape[1] - 1)]  # (N K, D)
        after = state.labels
        if self.label_embedding is not None:
            inputs = torch.cat([outputs, self.label_embedding(tokens)], -1)
            if isinstance(self.label_layers, RecurrentLayers) and state.labels is not None:
                outputs, after = self.label_layers.step(inputs, state.labels)
            else:
                assert self.label_layers is not None
                outputs = torch.tanh(self.label_layers(inputs))
        return self._log_probs(outputs, position < lengths), LabellerState(position + 1, after)

    def forward(self, batch: Batch) -> Output:
        """Compute the log-probabilities (B, T, V) of all labels.

        Raises:
            TrainingError: in training, if an item has another number of labels than of outputs.
        """
        memory = self.encode(batch)
        if self.training:
            labels = (batch.target_mask.sum(1) - 1).tolist()
            for id_, num_labels, outputs in zip(batch.ids, labels, memory.lengths.tolist(), strict=True):
                self.require_labels(id_, num_labels, outputs)
        length = batch.target_in.shape[1]
        position = torch.arange(length, device=batch.target_in.device)
        outputs = memory.outputs[:, position.clamp(max=memory.outputs.shape[1] - 1)]  # (B, T, D)
        if self.label_embedding is not None:
            inputs = torch.cat([outputs, self.label_embedding(batch.target_in)], -1)
            if isinstance(self.label_layers, RecurrentLayers):
                outputs, _ = self.label_layers(inputs)
            else:
                assert self.label_layers is not None
                outputs = torch.tanh(self.label_layers(inputs))
        return Output(self._log_probs(outputs, position < memory.lengths[:, None]))

    def require_labels(self, id_: str, labels: int, outputs: int) -> None:
        """Check that an item has as many labels as the model has outputs for it; or TrainingError."""
        if labels == outputs:
            return
        if self.settings.outputs == "last":
            source = "of the item, since model.outputs is 'last'"
            remedy = "set data.lang=label, or model.outputs=every for a label of each step"
        elif self.frame_encoder is None:
            source = "for each token of the source sentence"
            remedy = "label every token, or set model.outputs=last and data.lang=label for one label of an item"
        else:
            source = f"for each of its frames in the feature table (up to {self.frames} an item)"
            remedy = (
                f"compute features of as many frames as labels, 'limner features … --frames {labels}' (sounds: "
                f"--backbone logmel:{labels}), or set "
                "model.outputs=last and data.lang=label for one label of an item"
            )
        raise TrainingError(f"item '{id_}': expected {outputs} labels, one {source}, found {labels}; {remedy}")

    def _log_probs(self, outputs: Tensor, has_label: Tensor) -> Tensor:
        """Compute log-probabilities (…, V) of the labels from outputs (…, D), and of the end after the last label."""
        labels = precise(self.readout(outputs)).log_softmax(-1)
        labels = functional.pad(labels, (len(SPECIAL_TOKENS), 0), value=EXCLUDED)
        end = torch.full_like(labels, EXCLUDED)
        end[..., SPECIAL_TOKENS.eos] = 0
        return torch.where(has_label.unsqueeze(-1), labels, end)


def _pool(outputs: Tensor, mask: Tensor, pooling: Literal["mean", "max"]) -> Tensor:
    """Compute the mean or the maximum over the steps that exist: (B, S, D) to (B, D), zero without steps."""
    exists = mask.unsqueeze(-1)
    if pooling == "mean":
        return (outputs * exists).sum(1) / exists.sum(1).clamp(min=1)
    largest = outputs.masked_fill(~exists, -torch.inf).amax(1)
    return largest.masked_fill(~mask.any(1, keepdim=True), 0)
