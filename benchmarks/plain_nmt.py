"""The plain program that `run.py` times Limner's translation models against: the same models, step by step.

Written as research code in PyTorch was around 2017, and no slower than it need be. Like the conditional decoders of
nmtpytorch (Caglayan et al., 2017), every step projects the attention keys anew and takes its own softmax over the
vocabulary and its own loss; beam search tiles the annotations, one copy a hypothesis, and carries all hypotheses on
until the last has ended. (While training, the Theano program dl4mt, which nmtpytorch follows, projected the keys and
the vocabulary once a batch.) All is float32. The library's own parts are used where such programs used them, or could
have: `nn.GRU` over packed sequences, `nn.GRUCell`, `torch.bmm` for the contexts; annotations are tiled once, after a
first step without copies.

It reads nothing of Limner and stands alone. Shapes: B batch, T target length, S source length, L image locations,
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
    """Sentence pairs, padded with PAD, and their pictures."""

    source: Tensor  # (B, S)
    lengths: Tensor  # (B,) words of each source, at least one; on the CPU, where packing wants it
    target_in: Tensor  # (B, T): BOS, then the sentence
    target_out: Tensor  # (B, T): the sentence, then EOS
    grid: Tensor | None = None  # (B, L, D)

    @property
    def mask(self) -> Tensor:
        """True where the source has a word, (B, S)."""
        return self.source != PAD


class Attention(nn.Module):
    """Additive attention: Calixto et al. (2017), eqs. 2-4 over source words and 5, 6 over image locations."""

    def __init__(self, query: int, annotation: int, attention: int) -> None:
        super().__init__()
        self.query = nn.Linear(query, attention)  # U_a
        self.key = nn.Linear(annotation, attention, bias=False)  # W_a
        self.energy = nn.Linear(attention, 1, bias=False)  # v_a

    def forward(self, query: Tensor, annotations: Tensor, mask: Tensor | None = None) -> Tensor:
        """The context (B, D) of a state proposal (B, H), over annotations (B, L, D) where `mask` (B, L) is true."""
        keys = self.key(annotations)  # (B, L, A)
        scores = self.energy(torch.tanh(keys + self.query(query).unsqueeze(1))).squeeze(2)  # (B, L)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return torch.bmm(scores.softmax(dim=1).unsqueeze(1), annotations).squeeze(1)  # (B, D)


class Encoder(nn.Module):
    """Bidirectional GRU over the source (section 2.1); its two last states, projected, begin the decoder."""

    def __init__(self, vocab: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, embedding)
        self.gru = nn.GRU(embedding, hidden, batch_first=True, bidirectional=True)
        self.start = nn.Linear(2 * hidden, hidden)

    def forward(self, batch: PlainBatch) -> tuple[Tensor, Tensor]:
        """Annotations (B, S, 2H) and the first state of the decoder (B, H)."""
        packed = pack_padded_sequence(self.embed(batch.source), batch.lengths, batch_first=True, enforce_sorted=False)
        outputs, last = self.gru(packed)
        annotations, _ = pad_packed_sequence(outputs, batch_first=True, total_length=batch.source.shape[1])
        return annotations, torch.tanh(self.start(torch.cat([last[0], last[1]], dim=1)))


class Decoder(nn.Module):
    """The conditional GRU (section 2.2), with a second attention over the picture where `feature` says its size."""

    def __init__(
        self, vocab: int, embedding: int, hidden: int, attention: int, feature: int | None, dropout: float
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, embedding)
        self.rec1 = nn.GRUCell(embedding, hidden)
        self.attend = Attention(hidden, 2 * hidden, attention)
        context = 2 * hidden + (feature or 0)
        self.look = None if feature is None else Attention(hidden, feature, attention)
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
        """Read one word.

        Args:
            previous: the word before, (B,).
            state: s_(t-1), (B, H).
            annotations: of the source, (B, S, 2H).
            mask: true where the source has a word, (B, S).
            grid: the picture, (B, L, D), for a model that looks at it.

        Returns:
            Log-probabilities of the next word (B, V), and s_t (B, H).
        """
        word = self.embed(previous)
        proposal = self.rec1(word, state)  # s'_t
        context = self.attend(proposal, annotations, mask)  # c_t
        if self.look is not None and self.gate is not None:
            assert grid is not None, "this model looks at pictures"
            seen = torch.sigmoid(self.gate(state)) * self.look(proposal, grid)  # i_t: eqs. 7 and 8
            context = torch.cat([context, seen], dim=1)
        state = self.rec2(context, proposal)  # eq. 9
        read = torch.tanh(self.read_state(state) + self.read_word(word) + self.read_context(context))
        return functional.log_softmax(self.vocabulary(self.dropout(read)), dim=1), state  # eq. 1 or 10


class PlainNMT(nn.Module):
    """Text-only attention NMT or, with a grid, NMT_SRC+IMG: Calixto, Liu and Campbell (2017), eqs. 1-10.

    Dropout falls on the annotations, on the picture and before the vocabulary, as nmtpytorch has it; the paper's
    masks inside the recurrent layers are left out. Cells are `nn.GRUCell`, whose second bias would stand inside the
    reset gate, where eq. 9 has none: it is held at zero.
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
        """Build with fresh weights.

        Args:
            vocab_source: words of the source language, the signs PAD, BOS and EOS included.
            vocab_target: the same of the target language.
            embedding: E, of both languages, and of the read-out.
            hidden: H, of each direction of the encoder and of the decoder.
            attention: size of the attention layers; that of the decoder's state where None.
            grid: image locations and their feature size, (196, 1024) in the paper; None is text only.
            dropout: share of units dropped while training.
        """
        super().__init__()
        feature = None if grid is None else grid[1]
        self.encoder = Encoder(vocab_source, embedding, hidden)
        self.decoder = Decoder(vocab_target, embedding, hidden, attention or hidden, feature, dropout)
        self.dropout = nn.Dropout(dropout)
        self._initialise()

    def _initialise(self) -> None:
        """Section 5: Gaussian of standard deviation 0.01, recurrent matrices orthogonal, biases zero."""
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
        """The first state of the decoder, the annotations, and the picture if the model looks at it."""
        annotations, state = self.encoder(batch)
        grid = None if self.decoder.look is None or batch.grid is None else self.dropout(batch.grid)
        return state, self.dropout(annotations), grid

    def forward(self, batch: PlainBatch) -> Tensor:
        """Mean negative log-likelihood a target word, in nats, summed up one step after another."""
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
    """A fresh model; with the dimensions of a grid, (locations, features), one that looks at pictures."""
    return PlainNMT(vocab_source, vocab_target, embedding=embedding, hidden=hidden, grid=grid)


def train_step(model: PlainNMT, optimizer: torch.optim.Optimizer, batch: PlainBatch) -> Tensor:
    """Learn from one batch, with the norm of the gradient clipped at 1; the loss, in nats a word, before it."""
    optimizer.zero_grad()
    loss: Tensor = model(batch)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def beam_search(model: PlainNMT, batch: PlainBatch, beam_size: int, max_length: int) -> list[list[int]]:
    """The most probable translation found of each source, without signs.

    Args:
        model: in evaluation mode, or its dropout disturbs the search.
        batch: of which the targets are not looked at.
        beam_size: K, at most the size of the target vocabulary.
        max_length: steps after which what has not ended is cut off.
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
        log_probs[:, EOS].masked_fill_(ended, 0.0)  # what has ended stays as it is
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
def take(model: PlainNMT, weights: dict[str, Tensor]) -> None:
    """Copy the weights of Limner's model of the same sizes, by its names; the two then compute the same.

    Limner keeps the gates of a GRU in the order update, reset, proposal, and both directions of the encoder in one
    matrix; PyTorch has reset before update.
    """
    inputs, biases = weights["encoder.input.weight"].chunk(2), weights["encoder.input.bias"].chunk(2)
    taken: dict[str, Tensor] = {}
    for number, direction in enumerate(("l0", "l0_reverse")):
        taken[f"encoder.gru.weight_ih_{direction}"] = _reset_first(inputs[number])
        taken[f"encoder.gru.bias_ih_{direction}"] = _reset_first(biases[number])
        taken[f"encoder.gru.weight_hh_{direction}"] = _reset_first(weights["encoder.recurrent"][number].t())
    for cell, products in (("rec1", ("word",)), ("rec2", ("source_context", "image_context"))):
        parts = [weights[f"decoder.{name}.weight"] for name in products if f"decoder.{name}.weight" in weights]
        taken[f"decoder.{cell}.weight_ih"] = _reset_first(torch.cat(parts, dim=1))
        taken[f"decoder.{cell}.bias_ih"] = _reset_first(weights[f"decoder.{products[0]}.bias"])
        taken[f"decoder.{cell}.weight_hh"] = _reset_first(weights[f"decoder.recurrent_{cell[-1]}"])
    for ours, theirs in (("attend", "source_attention"), ("look", "image_attention")):
        if f"decoder.{theirs}.score" in weights:
            taken[f"decoder.{ours}.query.weight"] = weights[f"decoder.{theirs}.query.weight"]
            taken[f"decoder.{ours}.query.bias"] = weights[f"decoder.{theirs}.key.bias"]
            taken[f"decoder.{ours}.key.weight"] = weights[f"decoder.{theirs}.key.weight"]
            taken[f"decoder.{ours}.energy.weight"] = weights[f"decoder.{theirs}.score"].unsqueeze(0)
    contexts = [weights[name] for name in ("readout_context.weight", "readout_image.weight") if name in weights]
    taken["decoder.read_context.weight"] = torch.cat(contexts, dim=1)
    for ours, theirs in _NAMES.items():
        taken |= {
            f"{ours}.{kind}": weights[f"{theirs}.{kind}"]
            for kind in ("weight", "bias")
            if f"{theirs}.{kind}" in weights
        }
    for name, own in model.named_parameters():
        own.copy_(taken[name]) if name in taken else own.zero_()  # second biases, which Limner has not


def _reset_first(gates: Tensor) -> Tensor:
    update, reset, proposal = gates.chunk(3)
    return torch.cat([reset, update, proposal])
