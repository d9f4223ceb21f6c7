"""Models of torch as step models: one model, or an ensemble whose probabilities are averaged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limner.data.examples import Batch
from limner.decoding.automaton import Automaton
from limner.decoding.next_tokens import Best, Floats, Tokens
from limner.decoding.search import Trace, search
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings, SampleSettings
from limner.decoding.trees import map_leaves
from limner.errors import RunError
from limner.layers.functional import precise, require_numbers
from limner.models.protocols import ConditionalLM, Memory, State
from limner.process import available_memory

SECTION = 64
"""Number of columns of a section in `topk_by_section`."""


class TorchModels:
    """One model or an ensemble as a `StepModel`; memory and state are lists with an entry for each model."""

    def __init__(self, models: Sequence[ConditionalLM], precision: str, device: torch.device) -> None:
        """Combine models in evaluation mode of one vocabulary; RunError for several vocabularies."""
        sizes = sorted({model.vocab_size for model in models})
        if len(sizes) != 1:
            raise RunError(f"expected models of one vocabulary, got vocabularies of {sizes} tokens")
        self.models, self.precision, self.device, self.vocab_size = tuple(models), precision, device, sizes[0]

    @property
    def free_memory(self) -> int | None:
        return available_memory(self.device)

    def autocast(self) -> torch.autocast:
        """Return the context in which the models compute."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    @torch.no_grad()  # not inference mode, in which autocast converts the weights at every step
    def encode_batch(self, batch: Batch) -> list[Memory]:
        """Encode a batch; its targets are ignored."""
        with self.autocast():
            return [model.encode(batch) for model in self.models]

    @torch.no_grad()
    def start(self, memory: list[Memory]) -> list[State]:
        with self.autocast():
            return [model.start(part) for model, part in zip(self.models, memory, strict=True)]

    @torch.no_grad()
    def step(self, tokens: Tokens, memory: list[Memory], state: list[State]) -> tuple[TorchNextTokens, list[State]]:
        last = torch.from_numpy(np.ascontiguousarray(tokens).reshape(-1)).to(self.device)
        with self.autocast():
            steps = [model.step(last, *pair) for model, *pair in zip(self.models, memory, state, strict=True)]
            log_probs = mean_log_probs([logits for logits, _ in steps])
        return TorchNextTokens(log_probs.view(*tokens.shape, -1)), [after for _, after in steps]

    def select(self, tree: Any, rows: Tokens) -> Any:  # noqa: ANN401
        return select(tree, torch.from_numpy(rows).to(self.device))

    @staticmethod
    def concatenate(trees: Sequence[Any]) -> Any:  # noqa: ANN401
        """Concatenate the rows of memories or states."""
        return map_leaves(torch.cat, trees)


def beam_search(
    models: Sequence[ConditionalLM],
    batch: Batch,
    settings: DecodingSettings,
    prefixes: Sequence[Sequence[int]] | None = None,
    trace: Trace | None = None,
    constraints: Sequence[Automaton] | None = None,
    bonus: Floats | None = None,
) -> list[list[Sentence]]:
    """Decode a batch without its targets by one model or an ensemble; see `limner.decoding.search.Search`."""
    ensemble = TorchModels(models, settings.precision, batch.target_in.device)
    if len(batch) == 0:
        return []
    return search(ensemble, ensemble.encode_batch(batch), batch.ids, settings, prefixes, constraints, trace, bonus)


def mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean of the models' probabilities, (B, V); RunError if a probability is NaN."""
    log_probs = [precise(values).log_softmax(dim=-1) for values in logits]
    mean = log_probs[0]
    if len(log_probs) > 1:
        mean = torch.stack(log_probs).logsumexp(dim=0) - math.log(len(log_probs))
    require_numbers(mean[..., :1], "probabilities")  # a NaN spreads to all probabilities of its row
    return mean


def select(tree: Any, rows: Tensor) -> Any:  # noqa: ANN401
    """Select rows of every tensor of a memory or state."""
    return map_leaves(lambda leaves: leaves[0].index_select(0, rows), [tree])


class TorchNextTokens:
    """Log-probabilities as a tensor, which the methods modify; see `limner.decoding.next_tokens.NextTokens`."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def split(self, sizes: Sequence[int]) -> list[TorchNextTokens]:
        return [TorchNextTokens(part) for part in torch.split(self.values, list(sizes))]

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.values.device)

    def gather(self, tokens: Tokens) -> Floats:
        return _array(self.values.gather(2, self._tensor(tokens)))

    def exclude(self, tokens: Tokens) -> None:
        self.values.index_fill_(2, self._tensor(tokens), -math.inf)

    def exclude_at(self, n: Tokens, k: Tokens, tokens: Tokens) -> None:
        self.values[self._tensor(n), self._tensor(k), self._tensor(tokens)] = -math.inf

    def force(self, rows: Tokens, tokens: Tokens, values: Floats) -> None:
        chosen = self._tensor(rows)
        self.values[chosen] = -math.inf
        self.values[chosen, :, self._tensor(tokens)] = self._tensor(values)

    def add(self, totals: Floats) -> None:
        self.values += self._tensor(totals)[:, :, None]

    def add_bonus(self, bonus: Floats, used: Tokens) -> None:
        columns = self._tensor(used)
        kept = self.values.gather(2, columns)
        self.values += self._tensor(bonus)[:, None]
        self.values.scatter_(2, columns, kept)

    def best(self, count: int, groups: int = 1, among: Tokens | None = None) -> Best:
        values = self.values if among is None else self.values[:, :, self._tensor(among)]
        shape, vocab_size = (len(values), groups, -1), values.shape[2]
        rows = values.reshape(len(values) * groups, -1)
        if count == 1:
            total, column = rows.max(dim=1)
        else:
            total, column = topk_by_section(rows, min(count, rows.shape[1]))
        columns = _array(column).reshape(shape)
        parent, token = np.divmod(columns, vocab_size)
        return Best(_array(total).reshape(shape), parent, token if among is None else among[token])

    def draw(self, sample: SampleSettings, uniform: Floats) -> Tokens:
        values, tokens = self.values[:, self.shape[1] - uniform.shape[1] :], None
        if sample.top_k is not None or sample.top_p is not None:
            values, tokens = values.topk(min(sample.top_k or values.shape[2], values.shape[2]))
        if sample.top_p is not None:
            probs = (values / sample.temperature).softmax(dim=-1)
            beyond = probs.cumsum(dim=-1) - probs >= sample.top_p
            beyond[..., 0] = False  # the most probable token stays, however small top_p is
            values = values.masked_fill(beyond, -math.inf)
        scaled = values - values.amax(dim=-1, keepdim=True)
        if sample.temperature != 1:
            scaled /= sample.temperature
        cumulative = scaled.exp_().cumsum(dim=-1)  # (N, K, V)
        mass = cumulative[..., -1:]
        drawn = self._tensor(uniform)[:, :, None].to(mass.dtype) * mass
        drawn = drawn.minimum(mass * (1 - torch.finfo(mass.dtype).eps))  # a draw close to 1 may be rounded to 1
        chosen = torch.searchsorted(cumulative, drawn, right=True).clamp(max=cumulative.shape[-1] - 1)
        return _array((chosen if tokens is None else tokens.gather(-1, chosen)).squeeze(-1))


def _array(values: Tensor) -> NDArray[Any]:
    """Return a tensor as an array; a tensor on the CPU shares its memory."""
    return values.cpu().numpy()


def topk_by_section(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Compute `topk` of long rows (N, M), about three times as fast as `Tensor.topk`.

    The greatest values are in the `count` sections with the greatest maxima.
    """
    length = values.shape[1]
    whole = length - length % SECTION
    if whole // SECTION <= count:
        best, index = values.topk(count)
        return best, index
    maxima = values[:, :whole].reshape(len(values), -1, SECTION).amax(2)
    within = torch.arange(SECTION, device=values.device)
    columns = (maxima.topk(count).indices[:, :, None] * SECTION + within).flatten(1)
    rest = torch.arange(whole, length, device=values.device).expand(len(values), -1)
    columns = torch.cat([columns, rest], 1)
    best, index = values.gather(1, columns).topk(count)
    return best, columns.gather(1, index)
