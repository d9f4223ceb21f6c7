"""Random selection of continuations: temperature, top-k and nucleus sampling."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from limner.data.examples import Batch
from limner.decoding.hypotheses import Beam
from limner.decoding.ranking import Hypothesis
from limner.decoding.selection import Choice, continue_each
from limner.decoding.settings import DecodingSettings, SampleSettings


class SampleRecorder:
    """Trace of `beam_search` that keeps the samples of each example in the order of the rows of the beam."""

    def __init__(self, count: int, samples: int) -> None:
        """Start with empty sentences.

        Args:
            count: number of examples of the batch.
            samples: number of sentences of each example (`beam_size`).
        """
        self._tokens: list[list[list[int]]] = [[[] for _ in range(samples)] for _ in range(count)]
        self._log_probs = [[0.0] * samples for _ in range(count)]
        self._ended = [[False] * samples for _ in range(count)]

    def __call__(self, beam: Beam, choice: Choice | None, length: int) -> None:
        """Append the tokens of one step; arguments are those of `limner.decoding.beam_search.Trace`."""
        if choice is None:
            return
        steps = choice.token.tolist(), choice.ends.tolist(), choice.end_total.tolist()
        for example, tokens, ends, totals in zip(beam.live, *steps, strict=True):
            for row, (token, end, total) in enumerate(zip(tokens, ends, totals, strict=True)):
                if self._ended[example][row] or total == -math.inf:
                    continue
                self._log_probs[example][row], self._ended[example][row] = total, end
                if not end:
                    self._tokens[example][row].append(token)

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the sentences of each example in the order of the rows; their score is the log-probability."""
        return [
            [Hypothesis(tuple(ids), total, total, end) for ids, total, end in zip(*rows, strict=True)]
            for rows in zip(self._tokens, self._log_probs, self._ended, strict=True)
        ]


class Sampler:
    """Selection that draws the continuation of every hypothesis.

    The temperature divides the log-probabilities of the allowed tokens; the `top_k` most probable are kept, and of
    their normalised probabilities the fewest that sum to `top_p`.

    The uniform random numbers depend on the seed and the id of the example only.
    """

    def __init__(self, sample: SampleSettings, settings: DecodingSettings, batch: Batch) -> None:
        shape = (settings.max_length, settings.beam_size)
        draws = [np.random.default_rng([sample.seed, *id_.encode()]).random(shape) for id_ in batch.ids]
        self.draws = torch.from_numpy(np.stack(draws)).to(batch.target_in.device)  # (B, max_length, K)
        self.sample = sample

    def __call__(self, log_probs: Tensor, total: Tensor, live: list[int], length: int) -> Choice:
        """Draw continuations; arguments and result as for `selection.Select`."""
        greedy = log_probs[:, :1].argmax(dim=-1) if self.sample.greedy_first else None  # (N, 1)
        values, tokens = self._restrict(log_probs)
        scaled = values - values.amax(dim=-1, keepdim=True)
        if self.sample.temperature != 1:
            scaled /= self.sample.temperature
        cumulative = scaled.exp_().cumsum(dim=-1)  # (N, K, V)
        mass = cumulative[..., -1:]
        draw = self.draws[live, length][:, :, None].to(mass.dtype) * mass
        draw = draw.minimum(mass * (1 - torch.finfo(mass.dtype).eps))  # a draw close to 1 may be rounded to 1
        token = torch.searchsorted(cumulative, draw, right=True).clamp(max=cumulative.shape[-1] - 1)
        token = token if tokens is None else tokens.gather(-1, token)
        if greedy is not None:
            token[:, :1, 0] = greedy
        return continue_each(token.squeeze(-1), total + log_probs.gather(-1, token).squeeze(-1))

    def _restrict(self, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the log-probabilities of the tokens to draw from, and their ids; None for all in their order."""
        if self.sample.top_k is None and self.sample.top_p is None:
            return values, None
        values, tokens = values.topk(min(self.sample.top_k or values.shape[-1], values.shape[-1]))
        if self.sample.top_p is not None:
            probs = (values / self.sample.temperature).softmax(dim=-1)
            beyond = probs.cumsum(dim=-1) - probs >= self.sample.top_p
            beyond[..., 0] = False  # the most probable token stays, however small top_p is
            values = values.masked_fill(beyond, -math.inf)
        return values, tokens
