"""Beam search and sampling: one step of the models, rules, selection, ranking.

Greedy search is a beam of 1, and sampling is another selection. The search uses `encode`, `start` and `step` of a
model only; the caller puts the models into evaluation mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from limner.data.examples import Batch
from limner.decoding.automaton import Automaton
from limner.decoding.constrained import BestOfEachState
from limner.decoding.hypotheses import Beam, RankedHypotheses, select
from limner.decoding.ranking import Hypothesis
from limner.decoding.rules import Rules, pad_prefixes
from limner.decoding.sampling import Sampler
from limner.decoding.selection import BestContinuations, Choice, Select
from limner.decoding.settings import DecodingSettings
from limner.errors import RunError
from limner.layers.precision import precise, require_numbers
from limner.models.protocols import ConditionalLM, Memory, State
from limner.process import available_memory, require_memory
from limner.text.vocab import SPECIAL_TOKENS

Trace = Callable[[Beam, Choice | None, int], None]
"""Receives every step of a search: the hypotheses before it, the continuations chosen (None where the hypotheses are
cut off at `max_length`), and the number of tokens before it."""


@torch.no_grad()  # not inference mode, in which autocast converts the weights at every step
def beam_search(
    models: Sequence[ConditionalLM],
    batch: Batch,
    settings: DecodingSettings,
    prefixes: Sequence[Sequence[int]] | None = None,
    trace: Trace | None = None,
    constraints: Sequence[Automaton] | None = None,
    memories: Sequence[Memory] | None = None,
) -> list[list[Hypothesis]]:
    """Find the `n_best` most probable sentences of every example.

    An example is done when `beam_size` hypotheses are complete, or when no continuation can enter its `n_best`; its
    rows then leave the batch. `settings.stop` says whether its beam shrinks until then.

    Args:
        models: one model, or several of one vocabulary whose probabilities are averaged.
        batch: images and source sentences; its targets are ignored.
        settings: decoding settings.
        prefixes: token ids that the sentence of each example starts with, without special tokens.
        trace: called with every step, for example a `BeamRecorder`.
        constraints: for each example the machine of what its sentence must include and must not have; each state has
                a beam.
        memories: result of `encode_batch`; None to encode the batch, of which otherwise only the ids are read.

    Returns:
        Hypotheses of each example, best first; fewer than `n_best` only if there are no more.

    Raises:
        SettingsError: the prefixes or constraints do not fit batch, vocabulary or `max_length`, or are impossible.
        RunError: the models have different vocabularies.
    """
    if len(batch) == 0:
        return []
    search = Search(models, batch, settings, prefixes, trace, constraints, memories)
    while search.beam is not None:
        with search.autocast():
            steps = [
                model.step(search.beam.token.flatten(), memory, state)
                for model, memory, state in zip(models, search.beam.memories, search.beam.states, strict=True)
            ]
        search.advance([logits for logits, _ in steps], [state for _, state in steps])
        del steps  # frees the logits
    return search.results.n_best(batch.ids)


class Search:
    """A search that its caller advances token by token, until `beam` is None.

    The caller computes the steps of the models, possibly together with those of other searches.
    """

    def __init__(
        self,
        models: Sequence[ConditionalLM],
        batch: Batch,
        settings: DecodingSettings,
        prefixes: Sequence[Sequence[int]] | None = None,
        trace: Trace | None = None,
        constraints: Sequence[Automaton] | None = None,
        memories: Sequence[Memory] | None = None,
    ) -> None:
        """Start with a batch of at least one example; arguments and errors are those of `beam_search`."""
        vocab_size = _vocab_size(models)
        automata = constraints if constraints and any(one.size > 1 for one in constraints) else None
        _require_memory(batch, settings, vocab_size, automata)
        prefix = pad_prefixes(prefixes, batch, settings.max_length, vocab_size)
        shared = int((prefix != SPECIAL_TOKENS.pad).sum(1).min())  # length of the shortest prefix: no choice so far
        self.settings, self.length, self._trace = settings, shared, trace
        bans = [one.bans for one in constraints or ()]
        self._device, self._rules = batch.target_in.device, Rules(settings, prefix, bans, vocab_size)
        constrained = [n for n, one in enumerate(automata or ()) if one.size > 1]
        self.results = RankedHypotheses(len(batch), settings, constrained)
        self._select = _selection(batch, settings, prefix, shared, automata, self.results)
        self.left: set[int] = set()
        """Examples that are not decoded further, because their results are no longer needed."""
        self.beam: Beam | None
        """Hypotheses of `length` tokens; None when every example is done."""
        memories = encode_batch(models, batch, settings) if memories is None else memories
        with torch.no_grad(), self.autocast():
            width = _first_width(settings, vocab_size, automata)
            self.beam = _start(models, list(memories), prefix[:, :shared], settings, width)
        self._stop_at_max_length()

    def autocast(self) -> torch.autocast:
        """Return the context in which the models compute their steps."""
        return _autocast(self._device, self.settings)

    @torch.no_grad()
    def advance(self, logits: Sequence[Tensor], states: list[State]) -> None:
        """Continue the hypotheses of the beam by one token.

        Args:
            logits: for each model the logits (N K, V) after the last tokens of the beam.
            states: state of each model after them.

        Raises:
            RunError: a probability is NaN.
        """
        beam, length = self.beam, self.length
        assert beam is not None, "a search that is done"
        log_probs = mean_log_probs(logits).view(*beam.total.shape, -1)  # (N, K, V)
        choice = self._select(
            self._rules.apply(log_probs, beam.live, beam.tokens[:, :, :length]), beam.total, beam.live, length
        )
        if self._trace is not None:
            self._trace(beam, choice, length)
        keep = [n for n in self.results.add(choice, beam, length) if beam.live[n] not in self.left]
        self.beam = beam.advance(choice, keep, states, length) if keep else None
        self.length += 1
        self._stop_at_max_length()

    def _stop_at_max_length(self) -> None:
        """Cut off the hypotheses that have `max_length` tokens."""
        if self.beam is not None and self.length >= self.settings.max_length:
            if self._trace is not None:
                self._trace(self.beam, None, self.settings.max_length)
            self.results.add_unfinished(self.beam)
            self.beam = None


def _autocast(device: torch.device, settings: DecodingSettings) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16")


@torch.no_grad()
def encode_batch(models: Sequence[ConditionalLM], batch: Batch, settings: DecodingSettings) -> list[Memory]:
    """Encode a batch for one or several searches with the same precision; return the memory of each model."""
    with _autocast(batch.target_in.device, settings):
        return [model.encode(batch) for model in models]


def mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    """Return the logarithm of the mean of the models' probabilities, (B, V).

    Raises:
        RunError: a probability is NaN.
    """
    log_probs = [precise(one).log_softmax(dim=-1) for one in logits]
    mean = log_probs[0]
    if len(log_probs) > 1:
        mean = torch.stack(log_probs).logsumexp(dim=0) - math.log(len(log_probs))
    require_numbers(mean[..., :1], "probabilities")  # a NaN spreads to all probabilities of its row
    return mean


def _first_width(settings: DecodingSettings, vocab_size: int, automata: Sequence[Automaton] | None) -> int:
    """Return the number of hypotheses before the first choice: all are equal, so one if it has enough continuations."""
    single = automata is not None or (settings.sample is None and 2 * settings.beam_size <= vocab_size)
    return 1 if single else settings.beam_size


def _selection(
    batch: Batch,
    settings: DecodingSettings,
    prefix: Tensor,
    shared: int,
    automata: Sequence[Automaton] | None,
    results: RankedHypotheses,
) -> Select:
    """Return the selection of a batch whose hypotheses start with `shared` tokens of their prefixes (B, P)."""
    if automata is not None:
        return BestOfEachState(automata, prefix, shared, settings, batch, results)
    if settings.sample is not None:
        return Sampler(settings.sample, settings, batch)
    return BestContinuations(settings, results)


def _require_memory(
    batch: Batch, settings: DecodingSettings, vocab_size: int, automata: Sequence[Automaton] | None
) -> None:
    """Check that the logits, log-probabilities and tokens of all hypotheses fit into the memory of the device.

    Raises:
        ResourceError: they do not.
    """
    beams = max((one.size for one in automata or ()), default=1)
    rows = len(batch) * settings.beam_size * beams
    states = f" in each of {beams} states of the constraints" if beams > 1 else ""
    require_memory(
        rows * (8 * vocab_size + 8 * settings.max_length),
        f"beams of {settings.beam_size:,} hypotheses{states} for {len(batch):,} inputs",
        "lower beam_size (--beam-size), or the number of inputs in a batch (--batch-size)",
        available_memory(batch.target_in.device),
    )


def _vocab_size(models: Sequence[ConditionalLM]) -> int:
    sizes = sorted({model.vocab_size for model in models})
    if len(sizes) != 1:
        raise RunError(f"expected models of one vocabulary, got vocabularies of {sizes} tokens")
    return sizes[0]


def _start(
    models: Sequence[ConditionalLM], memories: list[Memory], prefix: Tensor, settings: DecodingSettings, width: int
) -> Beam:
    """Read the shared part (B, P) of the prefixes of encoded examples, and create the first `width` hypotheses."""
    token, totals, states = _read_prefix(models, prefix, memories)
    total = totals[:, -1]
    rows = torch.arange(len(prefix), device=total.device).repeat_interleave(width)  # (B * K,)
    states, token, total = select([states, token, total], rows)  # memories are shared by the hypotheses of an example
    token, total = token.view(len(prefix), -1), total.view(len(prefix), -1)  # (B, K)
    if settings.sample is None:
        total[:, 1:] = -math.inf
    tokens = token.new_zeros((*token.shape, settings.max_length))  # (B, K, max_length)
    tokens[:, :, : prefix.shape[1]] = prefix[:, None]
    before = total.new_zeros(tokens.shape, dtype=torch.float64)
    before[:, :, : prefix.shape[1]] = totals[:, None, 1:]
    return Beam(list(range(len(prefix))), token, total, tokens, before, memories, states)


def _read_prefix(
    models: Sequence[ConditionalLM], prefix: Tensor, memories: list[Memory]
) -> tuple[Tensor, Tensor, list[State]]:
    """Read prefixes (B, P) with one hypothesis of each example.

    Returns:
        The last token, which is not yet read, (B,), the log-probabilities of the beginnings of 0 to P tokens of the
        prefix, (B, P + 1), and the models' states.
    """
    states = [model.start(memory) for model, memory in zip(models, memories, strict=True)]
    token = prefix.new_full((len(prefix),), SPECIAL_TOKENS.bos)
    totals = [torch.zeros(len(prefix), device=prefix.device)]
    for next_token in prefix.unbind(1):
        steps = [
            model.step(token, memory, state) for model, memory, state in zip(models, memories, states, strict=True)
        ]
        states = [state for _, state in steps]
        log_probs = mean_log_probs([logits for logits, _ in steps])
        totals.append(totals[-1] + log_probs.gather(1, next_token[:, None]).squeeze(1))
        token = next_token
    return token, torch.stack(totals, 1), states
