"""Reference program that `run.py` compares the speed of Limner's translation models with.

The same models in the style of PyTorch research code of 2017. Like the conditional decoders of nmtpytorch (Caglayan et
al., 2017), every step projects the attention keys again and computes its own softmax over the vocabulary and its own
loss; beam search repeats the annotations for each hypothesis, and continues all hypotheses until the last one has
ended. (The Theano program dl4mt, which nmtpytorch follows, projected the keys and the vocabulary once a batch in
training.) Everything is float32. PyTorch's own layers are used where such programs used them or could have: `nn.GRU`
over packed sequences, `nn.GRUCell`, `torch.bmm` for the contexts; annotations are repeated once, after the first step.

The program does not import Limner. Shapes: B batch, T target length, S source length, L image locations,
D feature size, E embedding, H hidden, V vocabulary, K beam.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

PAD, BOS, EOS = 0, 1, 2


class PlainBatch(NamedTuple):
    """Sentence pairs, padded with PAD, and image features."""

    source: Tensor  # (B, S)
    lengths: Tensor  # (B,) tokens of each source, at least one; on the CPU, as packing requires
    target_in: Tensor  # (B, T): BOS, then the sentence
    target_out: Tensor  # (B, T): the sentence, then EOS
    grid: Tensor | None = None  # (B, L, D)

    @property
    def mask(self) -> Tensor:
        """Mask of the source, (B, S): true where there is a token."""
        return self.source != PAD


class Attention(nn.Module):
    """Additive attention: Calixto et al. (2017), eqs. 2-4 over source tokens and 5-6 over image locations."""

    def __init__(self, query: int, annotation: int, attention: int) -> None:
        super().__init__()
        self.query = nn.Linear(query, attention)  # U_a
        self.key = nn.Linear(annotation, attention, bias=False)  # W_a
        self.energy = nn.Linear(attention, 1, bias=False)  # v_a

    def forward(self, query: Tensor, annotations: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the context (B, D) of a state proposal (B, H) over annotations (B, L, D) with a mask (B, L)."""
        keys = self.key(annotations)  # (B, L, A)
        scores = self.energy(torch.tanh(keys + self.query(query).unsqueeze(1))).squeeze(2)  # (B, L)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return torch.bmm(scores.softmax(dim=1).unsqueeze(1), annotations).squeeze(1)  # (B, D)


class Encoder(nn.Module):
    """Bidirectional GRU over the source (section 2.1); its two last states, projected, initialise the decoder."""

    def __init__(self, vocab: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, embedding)
        self.gru = nn.GRU(embedding, hidden, batch_first=True, bidirectional=True)
        self.start = nn.Linear(2 * hidden, hidden)

    def forward(self, batch: PlainBatch) -> tuple[Tensor, Tensor]:
        """Compute annotations (B, S, 2H) and the initial decoder state (B, H)."""
        packed = pack_padded_sequence(self.embed(batch.source), batch.lengths, batch_first=True, enforce_sorted=False)
        outputs, last = self.gru(packed)
        annotations, _ = pad_packed_sequence(outputs, batch_first=True, total_length=batch.source.shape[1])
        return annotations, torch.tanh(self.start(torch.cat([last[0], last[1]], dim=1)))


class Decoder(nn.Module):
    """The conditional GRU (section 2.2), with a second attention over an image of features of size `feature`."""

    def __init__(
        self, vocab: int, embedding: int, hidden: int, attention: int, feature: int | None, dropout: float
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, embedding)
        self.rec1 = nn.GRUCell(embedding, hidden)
        self.source_attention = Attention(hidden, 2 * hidden, attention)
        context = 2 * hidden + (feature or 0)
        self.image_attention = None if feature is None else Attention(hidden, feature, attention)
        self.gate = None if feature is None else nn.Linear(hidden, 1)  # W_beta, b_beta
        self.rec2 = nn.GRUCell(context, hidden)
        self.read_state = nn.Linear(hidden, embedding)  # L_s
        self.read_word = nn.Linear(embedding, embedding, bias=False)  # L_w
        self.read_context = nn.Linear(context, embedding, bias=False)  # L_c, or L_cs and L_ci side by side
        self.dropout = nn.Dropout(dropout)
        self.vocabulary = nn.Linear(embedding, vocab)  # L_o

    def step(
        self, previous: Tensor, state: Tensor, annotations: Tensor, mask: Tensor, grid: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute one step.

        Args:
            previous: previous token, (B,).
            state: s_(t-1), (B, H).
            annotations: of the source, (B, S, 2H).
            mask: true where the source has a token, (B, S).
            grid: image features, (B, L, D), for a model that uses the image.

        Returns:
            Log-probabilities of the next token (B, V), and s_t (B, H).
        """
        word = self.embed(previous)
        proposal = self.rec1(word, state)  # s'_t
        context = self.source_attention(proposal, annotations, mask)  # c_t
        if self.image_attention is not None and self.gate is not None:
            assert grid is not None, "this model uses the image"
            image = torch.sigmoid(self.gate(state)) * self.image_attention(proposal, grid)  # i_t: eqs. 7 and 8
            context = torch.cat([context, image], dim=1)
        state = self.rec2(context, proposal)  # eq. 9
        read = torch.tanh(self.read_state(state) + self.read_word(word) + self.read_context(context))
        return functional.log_softmax(self.vocabulary(self.dropout(read)), dim=1), state  # eq. 1 or 10


class PlainNMT(nn.Module):
    """Text-only attention NMT or, with a grid, NMT_SRC+IMG: Calixto, Liu and Campbell (2017), eqs. 1-10.

    Dropout is applied to the annotations, to the image and before the vocabulary, as in nmtpytorch; the paper's masks
    inside the recurrent layers are left out. Cells are `nn.GRUCell`, whose second bias is inside the reset gate, where
    eq. 9 has none: it is fixed at zero.
    """

    def __init__(
        self,
        vocab_source: int,
        vocab_target: int,
        *,
        embedding: int = 620,
        hidden: int = 1024,
        attention: int | None = None,
        grid: tuple[int, int] | None = None,
        dropout: float = 0.5,
    ) -> None:
        """Build the model with randomly initialised weights.

        Args:
            vocab_source: size of the source vocabulary, PAD, BOS and EOS included.
            vocab_target: size of the target vocabulary, PAD, BOS and EOS included.
            embedding: E, size of the embeddings of both languages and of the read-out.
            hidden: H, size of each direction of the encoder and of the decoder.
            attention: size of the attention layers; H where None.
            grid: image locations and their feature size, (196, 1024) in the paper; None is text only.
            dropout: dropout rate in training.
        """
        super().__init__()
        feature = None if grid is None else grid[1]
        self.encoder = Encoder(vocab_source, embedding, hidden)
        self.decoder = Decoder(vocab_target, embedding, hidden, attention or hidden, feature, dropout)
        self.dropout = nn.Dropout(dropout)
        self._initialise()

    def _initialise(self) -> None:
        """Initialise as in section 5: Gaussian with deviation 0.01, orthogonal recurrent matrices, zero biases."""
        for name, weights in self.named_parameters():
            if "bias" in name:
                nn.init.zeros_(weights)
            elif "weight_hh" in name:
                for gate in weights.data.chunk(3):
                    nn.init.orthogonal_(gate)
            else:
                nn.init.normal_(weights, std=0.01)
        for cell in (self.decoder.rec1, self.decoder.rec2):
            cell.bias_hh.requires_grad_(False)

    def encode(self, batch: PlainBatch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute the initial decoder state, the annotations, and the image features of a model that uses the image."""
        annotations, state = self.encoder(batch)
        grid = None if self.decoder.image_attention is None or batch.grid is None else self.dropout(batch.grid)
        return state, self.dropout(annotations), grid

    def forward(self, batch: PlainBatch) -> Tensor:
        """Compute the mean negative log-likelihood in nats per target token, step by step."""
        state, annotations, grid = self.encode(batch)
        mask = batch.mask
        loss = torch.zeros((), device=mask.device)
        for previous, word in zip(batch.target_in.unbind(1), batch.target_out.unbind(1), strict=True):
            log_probs, state = self.decoder.step(previous, state, annotations, mask, grid)
            loss = loss + functional.nll_loss(log_probs, word, ignore_index=PAD, reduction="sum")
        return loss / (batch.target_out != PAD).sum()


def build(
    vocab_source: int, vocab_target: int, embedding: int, hidden: int, grid: tuple[int, int] | None = None
) -> PlainNMT:
    """Build a model with randomly initialised weights; with `grid` (locations, feature size) it uses the image."""
    return PlainNMT(vocab_source, vocab_target, embedding=embedding, hidden=hidden, grid=grid)


def train_step(model: PlainNMT, optimizer: torch.optim.Optimizer, batch: PlainBatch) -> Tensor:
    """Run one training step with the gradient norm clipped at 1; return the loss before it, in nats per token."""
    optimizer.zero_grad()
    loss: Tensor = model(batch)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def beam_search(model: PlainNMT, batch: PlainBatch, beam_size: int, max_length: int) -> list[list[int]]:
    """Compute the best hypothesis of each source, without special tokens.

    Args:
        model: model in evaluation mode.
        batch: sources and images; targets are ignored.
        beam_size: K, at most the size of the target vocabulary.
        max_length: maximum number of steps.
    """
    state, annotations, grid = model.encode(batch)
    mask, size = batch.mask, len(batch.source)
    examples = torch.arange(size, device=mask.device).unsqueeze(1)
    words = torch.full((size, 1), BOS, device=mask.device)
    total = torch.zeros(size, 1, device=mask.device)  # of one hypothesis for each example, then of K
    for length in range(max_length):
        log_probs, state = model.decoder.step(words[:, -1], state, annotations, mask, grid)
        ended = words[:, -1] == EOS
        log_probs.masked_fill_(ended.unsqueeze(1), -math.inf)
        log_probs[:, EOS].masked_fill_(ended, 0.0)  # a finished hypothesis is kept
        width, vocab = total.shape[1], log_probs.shape[1]
        joint = total.unsqueeze(2) + log_probs.view(size, width, vocab)
        total, index = joint.view(size, width * vocab).topk(beam_size)  # (B, K)
        rows = (examples * width + index // vocab).flatten()  # (B * K,)
        words = torch.cat([words[rows], (index % vocab).view(-1, 1)], dim=1)
        state = state[rows]
        if bool((words[:, -1] == EOS).all()):
            break
        if length == 0:
            annotations, mask = annotations.repeat_interleave(beam_size, 0), mask.repeat_interleave(beam_size, 0)
            grid = None if grid is None else grid.repeat_interleave(beam_size, 0)
    best = words.view(size, beam_size, -1)[:, 0, 1:].tolist()
    return [sentence[: sentence.index(EOS)] if EOS in sentence else sentence for sentence in best]


_NAMES = {
    "encoder.embed": "source_embedding",
    "encoder.start": "initial",
    "decoder.embed": "target_embedding",
    "decoder.gate": "decoder.gate",
    "decoder.read_state": "readout_hidden",
    "decoder.read_word": "readout_word",
    "decoder.vocabulary": "readout",
}


@torch.no_grad()
def copy_weights(model: PlainNMT, weights: dict[str, Tensor]) -> None:
    """Copy the weights of a Limner model of the same sizes; both then compute the same function.

    Limner stores the gates of a GRU in the order update, reset, proposal, and both directions of the encoder in one
    matrix; PyTorch stores reset before update.
    """
    inputs, biases = weights["encoder.input.weight"].chunk(2), weights["encoder.input.bias"].chunk(2)
    copied: dict[str, Tensor] = {}
    for number, direction in enumerate(("l0", "l0_reverse")):
        copied[f"encoder.gru.weight_ih_{direction}"] = _reset_first(inputs[number])
        copied[f"encoder.gru.bias_ih_{direction}"] = _reset_first(biases[number])
        copied[f"encoder.gru.weight_hh_{direction}"] = _reset_first(weights["encoder.recurrent"][number].t())
    for cell, products in (("rec1", ("word",)), ("rec2", ("source_context", "image_context"))):
        parts = [weights[f"decoder.{name}.weight"] for name in products if f"decoder.{name}.weight" in weights]
        copied[f"decoder.{cell}.weight_ih"] = _reset_first(torch.cat(parts, dim=1))
        copied[f"decoder.{cell}.bias_ih"] = _reset_first(weights[f"decoder.{products[0]}.bias"])
        copied[f"decoder.{cell}.weight_hh"] = _reset_first(weights[f"decoder.recurrent_{cell[-1]}"])
    for attention in ("source_attention", "image_attention"):
        if f"decoder.{attention}.score" in weights:
            copied[f"decoder.{attention}.query.weight"] = weights[f"decoder.{attention}.query.weight"]
            copied[f"decoder.{attention}.query.bias"] = weights[f"decoder.{attention}.key.bias"]
            copied[f"decoder.{attention}.key.weight"] = weights[f"decoder.{attention}.key.weight"]
            copied[f"decoder.{attention}.energy.weight"] = weights[f"decoder.{attention}.score"].unsqueeze(0)
    contexts = [weights[name] for name in ("readout_context.weight", "readout_image.weight") if name in weights]
    copied["decoder.read_context.weight"] = torch.cat(contexts, dim=1)
    for name, limner_name in _NAMES.items():
        copied |= {
            f"{name}.{kind}": weights[f"{limner_name}.{kind}"]
            for kind in ("weight", "bias")
            if f"{limner_name}.{kind}" in weights
        }
    for name, parameter in model.named_parameters():
        parameter.copy_(copied[name]) if name in copied else parameter.zero_()  # Limner has no second bias


def _reset_first(gates: Tensor) -> Tensor:
    """Reorder gates from update, reset, proposal to reset, update, proposal."""
    update, reset, proposal = gates.chunk(3)
    return torch.cat([reset, update, proposal])
