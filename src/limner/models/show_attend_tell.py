"""Show, Attend and Tell, Xu et al. (2015): soft and hard attention over image locations.

Shapes: B batch, T target length, L image locations, D annotation size, E embedding, H hidden, V vocabulary,
N examples with K hypotheses each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, one_hot

from limner.bounds import Probability, Rate, Weight, Width
from limner.data.examples import Batch
from limner.layers.attention import AdditiveAttention, Annotations, weighted_sum
from limner.layers.cells import CellSettings, CellState, build_cell
from limner.layers.functional import precise
from limner.layers.image_encoder import GridEncoder, ImageEncoderSettings
from limner.models.protocols import ConditionalLMSettings, EmbeddedWords, Mean, ModelInputs, Output

DRAWS = 256
"""Number of random numbers of an example for `test_attention: sample`; longer sentences repeat the numbers."""


class ShowAttendTellSettings(ConditionalLMSettings):
    """Settings of Show, Attend and Tell; the paper gives no layer sizes."""

    name: Literal["show_attend_tell"] = "show_attend_tell"
    attention: Literal["soft", "hard"] = "soft"
    """Deterministic soft attention (section 4.2), or stochastic hard attention (section 4.1)."""
    cell: CellSettings = CellSettings()
    """Recurrent cell."""
    embedding_dim: Width = 512
    """Size E (m in the paper) of the word embeddings and of the deep output layer."""
    hidden_dim: Width = 512
    """Size H (n in the paper) of the recurrent state."""
    attention_dim: Width = 512
    """Size A of the hidden layer of the attention model f_att."""
    output_activation: Literal["linear", "tanh"] = "linear"
    """Activation before L_o: none as in eq. 7, or tanh as in the authors' program."""
    doubly_stochastic: Weight = 1.0
    """Weight lambda of the penalty that makes the attention to each location sum to 1 over time (eq. 14); soft only."""
    reinforce: Weight = 1.0
    """Weight lambda_r of the REINFORCE term (eq. 12); hard only."""
    entropy: Weight = 0.01
    """Weight lambda_e of the entropy of the attention (eq. 12); hard only."""
    expected_rate: Probability = 0.5
    """Share of the training examples whose sampled locations are replaced by their expected value; hard only."""
    test_attention: Literal["mode", "sample"] = "mode"
    """Location that hard attention selects outside of training: the most probable location, or a location drawn from
    alpha by random numbers that depend on the id of the example and the position in the sentence only."""
    dropout: Rate = 0.0
    """Dropout rate of the word embeddings, the states and the deep output layer in training."""
    image_encoder: ImageEncoderSettings = ImageEncoderSettings()
    """Scaling and dropout of the image features, and width of the convnet that computes a grid from pixels."""

    @property
    def hard_attention(self) -> str | None:
        """Setting by which the model chooses locations besides tokens; None for soft attention."""
        if self.attention == "soft":
            return None
        return "model.attention=hard" + (", model.test_attention=sample" if self.test_attention == "sample" else "")


class ShowAttendTellMemory(NamedTuple):
    """Annotations and initial state of each example."""

    annotations: Annotations
    initial: CellState  # h_0 and c_0
    draws: Tensor | None = None  # (B, DRAWS): uniform random numbers for `test_attention: sample`


class ShowAttendTellState(NamedTuple):
    """State of the LSTM and number of tokens read."""

    lstm: CellState
    position: Tensor  # (N K,)


class AttentionStep(NamedTuple):
    """Attention of one step; for a whole sequence each tensor has T as its second dimension."""

    context: Tensor  # (B, D): z_t
    alpha: Tensor  # (B, L): probabilities of the locations
    weights: Tensor  # (B, L): alpha, or the one-hot vector s_t of the selected location
    gate: Tensor | None = None  # (B,): beta_t; soft only


class ShowAttendTell(EmbeddedWords, nn.Module):
    """The captioner of Xu et al. (2015) with soft or hard attention over annotations a_i, section 3.1.

        c_0 = tanh(W_c mean(a) + b_c), h_0 = tanh(W_h mean(a) + b_h)       initial states
        e_ti = v tanh(W_a a_i + U_a h_{t-1} + b_a), alpha_t = softmax(e_t)    f_att (eqs. 4 and 5)
        soft: z_t = beta_t sum_i alpha_ti a_i, beta_t = sigmoid(W_b h_{t-1} + b_b)    (eq. 13, section 4.2.1)
        hard: z_t = a_{s_t}, s_t ~ alpha_t                                 (eqs. 8 and 9)
        h_t, c_t = LSTM([E y_{t-1}; z_t], h_{t-1}, c_{t-1})                (eqs. 1-3)
        logits = L_o (E y_{t-1} + L_h h_t + L_z z_t) + b_o                 deep output (eq. 7)

    Losses: soft attention adds lambda sum_i (1 - sum_t alpha_ti)^2 of every sentence (eq. 14), where t includes the
    step that predicts </s>. Hard attention follows the gradient of eq. 12 with one sample: log p(y | s), REINFORCE with
    the moving average b = 0.9 b + 0.1 log p(y | s) of the batches as baseline, and the entropy of the attention.
    `expected_rate` of the examples use the expected location alpha in place of a sample in training, and have no
    REINFORCE term.

    The probability that hard attention gives to a sentence in evaluation mode is log p(y | s) of one path s of
    locations, by default the path of the most probable location of each step, and not the marginal log sum_s p(y, s).
    `Output.attention` is alpha for both kinds of attention; `Output.selected` has the locations s_t of hard attention.

    Departures from the paper: the attention model has one hidden layer and the initial states have one tanh layer
    each, which the paper calls MLPs; the output has a bias; losses are divided by the number of tokens of the batch,
    as all losses are here, and not by the number of sentences; the CNN is a backbone whose grid is stored, or a convnet
    that is trained jointly; initialisation is orthogonal for recurrent weights, with 1 for the biases of the forget
    gates. An example without an image has zero contexts and initial states.
    """

    Settings: ClassVar = ShowAttendTellSettings
    uses_image = True

    def __init__(self, settings: ShowAttendTellSettings, inputs: ModelInputs) -> None:
        super().__init__()
        self.settings, self.vocab_size = settings, inputs.vocab_size
        embedding, hidden = settings.embedding_dim, settings.hidden_dim
        self.grid_encoder = GridEncoder(inputs.feature_shapes, settings.image_encoder)
        dim = self.grid_encoder.dim
        self.embedding = nn.Embedding(inputs.vocab_size, embedding)  # E
        self.cell = build_cell(settings.cell, embedding, hidden)
        self.context = nn.Linear(dim, self.cell.gates * hidden, bias=False)  # the part of the LSTM that reads z_t
        self.attention = AdditiveAttention(hidden, dim, settings.attention_dim)  # f_att
        self.initial_hidden = nn.Linear(dim, hidden)  # f_init,h
        self.initial_cell = nn.Linear(dim, hidden) if self.cell.has_memory_cell else None  # f_init,c
        self.gate = nn.Linear(hidden, 1) if settings.attention == "soft" else None  # f_beta
        self.output_hidden = nn.Linear(hidden, embedding, bias=False)  # L_h
        self.output_context = nn.Linear(dim, embedding, bias=False)  # L_z
        self.output = nn.Linear(embedding, inputs.vocab_size)  # L_o, b_o
        self.baseline: Tensor  # b_k of eq. 12, updated in training as the running averages of batch normalisation are
        if settings.attention == "hard":
            self.register_buffer("baseline", torch.zeros(()))
        nn.init.normal_(self.embedding.weight, std=0.1)
        nn.init.zeros_(self.output.bias)

    def encode(self, batch: Batch) -> ShowAttendTellMemory:
        """Compute the annotations a, their keys W_a a + b_a, and the initial states from the mean annotation."""
        present = batch.image.present
        grid = self.grid_encoder(batch.image)
        if grid is None:  # no image in the batch
            grid = present.new_zeros(len(present), 1, self.grid_encoder.dim, dtype=torch.float32), present[:, None]
        values, mask = grid
        values = values.to(self.output_context.weight.dtype) * mask[..., None]
        mean = values.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        hidden = precise(torch.tanh(self.initial_hidden(mean))) * present[:, None]  # h_0
        cell = None
        if self.initial_cell is not None:
            cell = precise(torch.tanh(self.initial_cell(mean))) * present[:, None]  # c_0
        draws = None
        if self.settings.attention == "hard" and self.settings.test_attention == "sample" and not self.training:
            draws = location_draws(batch.ids).to(values.device)
        return ShowAttendTellMemory(self.attention.annotate(values, mask), CellState(hidden, cell), draws)

    def start(self, memory: ShowAttendTellMemory) -> ShowAttendTellState:
        """Return the initial states h_0 and c_0."""
        hidden = memory.initial.hidden
        return ShowAttendTellState(memory.initial, torch.zeros(hidden.shape[0], dtype=torch.long, device=hidden.device))

    def step(
        self, tokens: Tensor, memory: ShowAttendTellMemory, state: ShowAttendTellState
    ) -> tuple[Tensor, ShowAttendTellState]:
        word, draw = self.embedding(tokens), None
        if memory.draws is not None:
            examples = torch.arange(len(tokens), device=tokens.device) // (len(tokens) // len(memory.draws))
            draw = memory.draws[examples, state.position % DRAWS]
        attended = self._attend(state.lstm, memory.annotations, draw)
        after = self.cell(self.cell.project(word) + self.context(attended.context), state.lstm)
        return self._read_out(word, after.hidden, attended.context), ShowAttendTellState(after, state.position + 1)

    def forward(self, batch: Batch) -> Output:
        """Compute the logits (B, T, V) of all positions, and in training the losses of the attention."""
        memory, rate = self.encode(batch), self.settings.dropout
        words = dropout(self.embedding(batch.target_in), rate, self.training)
        hard, expected, draws = self.settings.attention == "hard", None, memory.draws
        if self.training and hard:
            expected = torch.rand(len(words), 1, device=words.device) < self.settings.expected_rate
            draws = torch.rand(words.shape[:2], device=words.device)
        state, hidden, steps = memory.initial, [], []
        for t, word in enumerate(self.cell.project(words).unbind(1)):
            draw = None if draws is None else draws[:, t % draws.shape[1]]
            steps.append(self._attend(state, memory.annotations, draw, expected))
            state = self.cell(word + self.context(steps[-1].context), state)
            hidden.append(state.hidden)
        context, alpha, weights = (torch.stack(parts, 1) for parts in list(zip(*steps, strict=True))[:3])
        gates = [step.gate for step in steps if step.gate is not None]
        output = Output(
            self._read_out(words, dropout(torch.stack(hidden, 1), rate, self.training), context),
            attention=alpha,
            gate=torch.stack(gates, 1) if gates else None,
            selected=weights if hard else None,
        )
        if not self.training:
            return output
        if hard:
            return output._replace(loss=(self._hard_loss(output.logits, alpha, weights, batch),))
        return output._replace(auxiliary_loss=self._penalty(alpha, memory.annotations, batch))

    def _attend(
        self, state: CellState, annotations: Annotations, draw: Tensor | None, expected: Tensor | None = None
    ) -> AttentionStep:
        """Compute the context z_t of one step; `draw` (N K,), from 0 to 1, draws the locations of hard attention.

        In its training, examples that are true in `expected` (B, 1) use the expected location.
        """
        alpha = self.attention.weights(state.hidden, annotations)
        if self.gate is not None:
            gate = torch.sigmoid(precise(self.gate(state.hidden)))  # beta_t
            return AttentionStep(gate * weighted_sum(alpha, annotations), alpha, alpha, gate[:, 0])
        location = alpha.argmax(-1) if draw is None else draw_location(alpha.detach(), draw)  # s_t
        weights = one_hot(location, alpha.shape[1]) * (alpha.sum(-1, keepdim=True) > 0).to(alpha.dtype)
        if expected is not None:
            weights = torch.where(expected, alpha, weights)
        return AttentionStep(weighted_sum(weights, annotations), alpha, weights)

    def _read_out(self, word: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Compute logits (…, V) from E y_{t-1} (…, E), h_t (…, H) and z_t (…, D) (eq. 7)."""
        summed = word + self.output_hidden(hidden) + self.output_context(context)
        if self.settings.output_activation == "tanh":
            summed = torch.tanh(summed)
        logits: Tensor = self.output(dropout(summed, self.settings.dropout, self.training))
        return logits

    def _penalty(self, alpha: Tensor, annotations: Annotations, batch: Batch) -> Mean:
        """Compute lambda sum_i (1 - sum_t alpha_ti)^2 of all sentences (eq. 14), per token."""
        total = (alpha * batch.target_mask[..., None]).sum(1)  # (B, L)
        missing = (1 - total).square()
        if annotations.mask is not None:
            missing = missing * annotations.mask
        return Mean(self.settings.doubly_stochastic * missing.sum(), batch.target_mask.sum())

    def _hard_loss(self, logits: Tensor, alpha: Tensor, weights: Tensor, batch: Batch) -> Mean:
        """Compute a loss whose gradient is eq. 12 for one sample of each example, per token, and update the baseline.

        The weights (B, T, L) are one-hot vectors of sampled locations, or alpha where the expected location is used.
        """
        settings, mask = self.settings, batch.target_mask
        log_probs = precise(logits).log_softmax(-1).gather(-1, batch.target_out[..., None])[..., 0]
        sentences = (log_probs * mask).sum(1)  # log p(y | s, a)
        log_alpha = alpha.clamp(min=1e-20).log()
        sampled = weights.detach().amax(-1) == 1
        locations = ((weights.detach() * log_alpha).sum(-1) * (mask & sampled)).sum(1)  # log p(s | a)
        entropy = -((alpha * log_alpha).sum(-1) * mask).sum(1)  # H[s]
        reward = (sentences - self.baseline).detach()
        with torch.no_grad():
            self.baseline.mul_(0.9).add_(0.1 * sentences.mean())
        gain = sentences + settings.reinforce * reward * locations + settings.entropy * entropy
        return Mean(-gain.sum(), mask.sum())


def location_draws(ids: Sequence[str]) -> Tensor:
    """Draw uniform random numbers (B, DRAWS) that depend on the ids of the examples only."""
    return torch.from_numpy(
        np.stack([np.random.default_rng([*f"{id_}/locations".encode()]).random(DRAWS) for id_ in ids])
    )


def draw_location(alpha: Tensor, draw: Tensor) -> Tensor:
    """Draw a location by the probabilities alpha (N, L) with random numbers (N,) from 0 to 1; return its index (N,)."""
    cumulative = alpha.cumsum(-1)
    mass = cumulative[:, -1:]  # zero without an image
    point = (draw[:, None].to(mass.dtype) * mass).minimum(mass * (1 - torch.finfo(mass.dtype).eps))
    return torch.searchsorted(cumulative, point, right=True)[:, 0].clamp(max=alpha.shape[1] - 1)
