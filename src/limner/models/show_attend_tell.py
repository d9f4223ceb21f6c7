"""Show, Attend and Tell, Xu et al. (2015): soft and hard attention over image locations.

Shapes: B batch, T target length, L image locations, D annotation size, E embedding, H hidden, V vocabulary,
N examples with K hypotheses each.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, one_hot

from limner.bounds import Probability, Rate, Temperature, Weight, Width
from limner.data.examples import Batch
from limner.layers.attention import AdditiveAttention, Annotations, weighted_sum
from limner.layers.cells import CellSettings, CellState, build_cell
from limner.layers.functional import precise
from limner.layers.image_encoder import GridEncoder, ImageEncoderSettings
from limner.models.protocols import ConditionalLMSettings, EmbeddedWords, Mean, ModelInputs, Output, repeat_memory


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
    """Probability of the expected location in place of a sampled one in training (section 4.1); hard only."""
    temperature: Temperature = 1.0
    """Divisor tau of the energies e_t before the softmax; below 1 the attention is sharper."""
    test_attention: Literal["mode", "expected"] = "mode"
    """Context of hard attention outside of training: of the most probable location, or expected under alpha."""
    dropout: Rate = 0.0
    """Dropout rate of the word embeddings, the states and the deep output layer in training."""
    image_encoder: ImageEncoderSettings = ImageEncoderSettings()
    """Scaling and dropout of the image features, and width of the convnet that computes a grid from pixels."""

    @property
    def hard_attention(self) -> str | None:
        """Setting by which the model chooses locations besides tokens; None for soft attention."""
        return None if self.attention == "soft" else "model.attention=hard"


class ShowAttendTellMemory(NamedTuple):
    """Annotations and initial state of each example."""

    annotations: Annotations
    initial: CellState  # h_0 and c_0


class AttentionStep(NamedTuple):
    """Attention of one step; for a whole sequence each tensor has T as its second dimension."""

    context: Tensor  # (B, D): z_t
    alpha: Tensor  # (B, L): probabilities of the locations
    weights: Tensor  # (B, L): alpha, or the one-hot vector s_t of the selected location
    gate: Tensor  # (B,): beta_t


class ShowAttendTell(EmbeddedWords, nn.Module):
    """The captioner of Xu et al. (2015) with soft or hard attention over annotations a_i, section 3.1.

        c_0 = tanh(W_c mean(a) + b_c), h_0 = tanh(W_h mean(a) + b_h)       initial states
        e_ti = v tanh(W_a a_i + U_a h_{t-1} + b_a), alpha_t = softmax(e_t / tau)    f_att (eqs. 4 and 5)
        soft: z_t = beta_t sum_i alpha_ti a_i, beta_t = sigmoid(W_b h_{t-1} + b_b)    (eq. 13, section 4.2.1)
        hard: z_t = beta_t a_{s_t}, s_t ~ alpha_t                          (eqs. 8 and 9)
        h_t, c_t = LSTM([E y_{t-1}; z_t], h_{t-1}, c_{t-1})                (eqs. 1-3)
        logits = L_o (E y_{t-1} + L_h h_t + L_z z_t) + b_o                 deep output (eq. 7)

    Losses: soft attention adds lambda sum_i (1 - sum_t alpha_ti)^2 of every sentence (eq. 14), where t includes the
    step that predicts </s>. Hard attention runs every sentence over its expected locations E (contexts as in soft
    attention) and over one sample s of the locations, and follows the gradient

        rho d log p(y | E) + (1 - rho) [ d log p(y | s) + lambda_e d H[s]
            + lambda_r sum_t (log p(y_t ... y_C | s) - log p(y_t ... y_C | E)) d log alpha_t(s_t) ]

    Its mean is the gradient of eq. 12, where an image uses its expected locations with probability rho, in
    `expected_rate`; the paper draws which.

    The probability that hard attention gives to a sentence in evaluation mode is by default log p(y | s) of the path s
    of the most probable location of each step, and not the marginal log sum_s p(y, s). `test_attention: expected` uses
    E, as the authors' program generates. `Output.attention` is alpha for both kinds of attention; `Output.selected` has
    the locations s_t of hard attention.

    Departures from the paper: the baseline of the REINFORCE term is the same sentence over E, and a location is
    rewarded for the words from its own on, where the paper has a moving average of all sentences and rewards the whole
    sentence; hard attention has the gate beta, and both have a temperature tau, as the authors' program; the attention
    model has one hidden layer and the initial states have one tanh layer each, which the paper calls MLPs; the output
    has a bias; losses are divided by the number of tokens of the batch, as all losses are here, and not by the number
    of sentences; the CNN is a backbone whose grid is stored, or a convnet that is trained jointly; initialisation is
    orthogonal for recurrent weights, with 1 for the biases of the forget gates. An example without an image has zero
    contexts and initial states.
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
        self.attention = AdditiveAttention(hidden, dim, settings.attention_dim, settings.temperature)  # f_att
        self.initial_hidden = nn.Linear(dim, hidden)  # f_init,h
        self.initial_cell = nn.Linear(dim, hidden) if self.cell.has_memory_cell else None  # f_init,c
        self.gate = nn.Linear(hidden, 1)  # f_beta
        self.output_hidden = nn.Linear(hidden, embedding, bias=False)  # L_h
        self.output_context = nn.Linear(dim, embedding, bias=False)  # L_z
        self.output = nn.Linear(embedding, inputs.vocab_size)  # L_o, b_o
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
        return ShowAttendTellMemory(self.attention.annotate(values, mask), CellState(hidden, cell))

    def start(self, memory: ShowAttendTellMemory) -> CellState:
        """Return the initial states h_0 and c_0."""
        return memory.initial

    def step(self, tokens: Tensor, memory: ShowAttendTellMemory, state: CellState) -> tuple[Tensor, CellState]:
        word = self.embedding(tokens)
        attended = self._attend(state, memory.annotations)
        after = self.cell(self.cell.project(word) + self.context(attended.context), state)
        return self._read_out(word, after.hidden, attended.context), after

    def forward(self, batch: Batch) -> Output:
        """Compute the logits (B, T, V) of all positions, and in training the losses of the attention.

        Hard attention in training computes two paths of each sentence, the expected locations and a sample.
        """
        memory, words, expected = self.encode(batch), self.embedding(batch.target_in), None
        hard, state = self.settings.attention == "hard", memory.initial
        if hard and self.training:
            expected = torch.tensor([True, False], device=words.device).repeat(len(words))[:, None]
            words, state = words.repeat_interleave(2, 0), repeat_memory(state, len(expected))
        words, hidden, steps = self._dropout(words), [], []
        for word in self.cell.project(words).unbind(1):
            steps.append(self._attend(state, memory.annotations, expected))
            state = self.cell(word + self.context(steps[-1].context), state)
            hidden.append(state.hidden)
        context, alpha, weights, gate = (torch.stack(parts, 1) for parts in zip(*steps, strict=True))
        logits = self._read_out(words, self._dropout(torch.stack(hidden, 1)), context)
        if expected is not None:
            return Output(logits[::2], loss=(self._hard_loss(logits, alpha, weights, batch),))
        output = Output(logits, attention=alpha, gate=gate, selected=weights if hard else None)
        if not self.training:
            return output
        return output._replace(auxiliary_loss=self._penalty(alpha, memory.annotations, batch))

    def _attend(self, state: CellState, annotations: Annotations, expected: Tensor | None = None) -> AttentionStep:
        """Compute the context z_t of one step.

        In the training of hard attention, hypotheses that are true in `expected` (N K, 1) use the expected location,
        and the others draw one.
        """
        weights = alpha = self.attention.weights(state.hidden, annotations)
        if self.settings.attention == "hard" and (expected is not None or self.settings.test_attention == "mode"):
            draw = None if expected is None else torch.rand(len(alpha), device=alpha.device)
            location = alpha.argmax(-1) if draw is None else draw_location(alpha.detach(), draw)  # s_t
            weights = one_hot(location, alpha.shape[1]) * (alpha.sum(-1, keepdim=True) > 0).to(alpha.dtype)
            weights = weights if expected is None else torch.where(expected, alpha, weights)
        gate = torch.sigmoid(precise(self.gate(state.hidden)))  # beta_t
        return AttentionStep(gate * weighted_sum(weights, annotations), alpha, weights, gate[:, 0])

    def _read_out(self, word: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """Compute logits (…, V) from E y_{t-1} (…, E), h_t (…, H) and z_t (…, D) (eq. 7)."""
        summed = word + self.output_hidden(hidden) + self.output_context(context)
        if self.settings.output_activation == "tanh":
            summed = torch.tanh(summed)
        logits: Tensor = self.output(self._dropout(summed))
        return logits

    def _dropout(self, values: Tensor) -> Tensor:
        """Apply dropout in training, to both paths of a sentence with the same mask, so that their rewards compare."""
        if not self.training:
            return values
        paths = 2 if self.settings.attention == "hard" else 1
        return values * dropout(torch.ones_like(values[::paths]), self.settings.dropout).repeat_interleave(paths, 0)

    def _penalty(self, alpha: Tensor, annotations: Annotations, batch: Batch) -> Mean:
        """Compute lambda sum_i (1 - sum_t alpha_ti)^2 of all sentences (eq. 14), per token."""
        total = (alpha * batch.target_mask[..., None]).sum(1)  # (B, L)
        missing = (1 - total).square()
        if annotations.mask is not None:
            missing = missing * annotations.mask
        return Mean(self.settings.doubly_stochastic * missing.sum(), batch.target_mask.sum())

    def _hard_loss(self, logits: Tensor, alpha: Tensor, weights: Tensor, batch: Batch) -> Mean:
        """Compute a loss whose gradient is the gradient of hard attention, per token.

        Of the logits (2 B, T, V), alpha (2 B, T, L) and weights (2 B, T, L) the even rows belong to the expected
        locations and the odd rows to the sample, whose weights are one-hot.
        """
        settings, mask = self.settings, batch.target_mask
        targets = batch.target_out.repeat_interleave(2, 0)[..., None]
        log_probs = precise(logits).log_softmax(-1).gather(-1, targets)[..., 0]
        expected, sampled = log_probs[::2] * mask, log_probs[1::2] * mask  # (B, T)
        log_alpha = alpha[1::2].clamp(min=1e-20).log()
        locations = (weights[1::2].detach() * log_alpha).sum(-1) * mask  # log alpha_t(s_t)
        entropy = -(alpha[1::2] * log_alpha).sum(-1) * mask  # H[s]
        reward = (sampled - expected).detach().flip(1).cumsum(1).flip(1)
        sample = sampled + settings.reinforce * reward * locations + settings.entropy * entropy
        gain = settings.expected_rate * expected + (1 - settings.expected_rate) * sample
        return Mean(-gain.sum(), mask.sum())


def draw_location(alpha: Tensor, draw: Tensor) -> Tensor:
    """Draw a location by the probabilities alpha (N, L) with random numbers (N,) from 0 to 1; return its index (N,)."""
    cumulative = alpha.cumsum(-1)
    mass = cumulative[:, -1:]  # zero without an image
    point = (draw[:, None].to(mass.dtype) * mass).minimum(mass * (1 - torch.finfo(mass.dtype).eps))
    return torch.searchsorted(cumulative, point, right=True)[:, 0].clamp(max=alpha.shape[1] - 1)
