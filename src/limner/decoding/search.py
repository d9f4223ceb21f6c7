"""Beam search and sampling: one step of the model, rules, selection, ranking.

Greedy search is a beam of 1, and sampling is another selection. The search knows a model only as a `StepModel`, which
may compute with torch or with a session of ONNX Runtime.

Shapes: B examples, N examples that are still decoded, K hypotheses of each, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from limner.decoding.automaton import Automaton
from limner.decoding.constrained import BestOfEachState
from limner.decoding.next_tokens import Floats, NextTokens, Tokens
from limner.decoding.selection import (
    BestContinuations,
    Choice,
    HypothesisLists,
    Sampler,
    banned_tokens,
    require_prefixes,
)
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings
from limner.process import NEGLIGIBLE, require_memory
from limner.text.vocab import SPECIAL_TOKENS

Memory = Any
"""Tensors that are constant while sentences are generated, a row for each example."""
State = Any
"""Recurrent state between two steps, a row for each hypothesis."""
BYTES_PER_TOKEN = 24
"""Bytes of a hypothesis for each token of the vocabulary, a lower bound: the built-in captioner takes 38 to 133."""


class StepModel(Protocol):
    """Interface of a model, or an ensemble, to the search."""

    @property
    def vocab_size(self) -> int:
        """Size V of the vocabulary."""

    @property
    def free_memory(self) -> int | None:
        """Bytes of memory that the arrays of a search may take; None if not known."""

    def start(self, memory: Memory) -> State:
        """Return the state before the first token, of one hypothesis of each example."""

    def step(self, tokens: Tokens, memory: Memory, state: State) -> tuple[NextTokens, State]:
        """Compute the log-probabilities after the last tokens (N, K), and the next state; RunError if one is NaN."""

    def select(self, tree: Any, rows: Tokens) -> Any:  # noqa: ANN401
        """Select rows of a memory or a state."""


class Beam(NamedTuple):
    """Incomplete hypotheses of the N examples that are still decoded."""

    live: list[int]  # positions of the N examples in the batch
    length: int  # number of tokens of every hypothesis
    total: Floats  # (N, K): log-probability; -inf where there is no hypothesis
    last: Tokens  # (N, K): last tokens, the input of the next step
    all_tokens: Tokens  # (N, K, max_length): all tokens, and space for more
    all_totals: NDArray[np.float64]  # (N, K, max_length): log-probability up to each token
    memory: Memory  # of the N examples
    state: State  # of the N * K hypotheses

    @property
    def tokens(self) -> Tokens:
        """All tokens so far, (N, K, length)."""
        return self.all_tokens[:, :, : self.length]

    @property
    def totals(self) -> NDArray[np.float64]:
        """Log-probability of the hypotheses up to each token, (N, K, length)."""
        return self.all_totals[:, :, : self.length]


Trace = Callable[[Beam, Choice | None], None]
"""Callback for every step of a search, with the hypotheses before the step and the chosen continuations (None where the
hypotheses are cut off at `max_length`)."""


class Search:
    """A search that its caller advances token by token, until `beam` is None.

    An example is done when `beam_size` hypotheses are complete, or when no continuation can enter its `n_best`; its
    rows then leave the batch. `settings.stop` says whether its beam shrinks until then.
    """

    def __init__(
        self,
        model: StepModel,
        memory: Memory,
        ids: Sequence[str],
        settings: DecodingSettings,
        prefixes: Sequence[Sequence[int]] | None = None,
        constraints: Sequence[Automaton] | None = None,
        trace: Trace | None = None,
        bonus: Floats | None = None,
    ) -> None:
        """Start the search of B examples.

        Args:
            model: model or ensemble.
            memory: result of encoding the examples.
            ids: id of each example, for sampling and for errors.
            settings: decoding settings.
            prefixes: token ids that the sentence of each example starts with, without special tokens.
            constraints: for each example the machine of the words that its sentence must include; each state has a
                beam.
            trace: called with every step, for example a `BeamRecorder`.
            bonus: value that the first occurrence of each token adds to the log-probability of a sentence, (B, V); None
                for zeros. `without_bonus` subtracts it from the results.

        Raises:
            SettingsError: the prefixes or constraints do not fit the examples, the vocabulary or `max_length`, or are
                impossible.
            ResourceError: there is not enough memory.
        """
        machines = constraints if constraints and any(machine.size > 1 for machine in constraints) else None
        beams = max((machine.size for machine in machines or ()), default=1)
        needed = len(ids) * settings.beam_size * beams * BYTES_PER_TOKEN * (model.vocab_size + settings.max_length)
        if needed > NEGLIGIBLE:
            _require_memory(needed, model, len(ids), settings, beams)
        prefixes = require_prefixes(prefixes, ids, settings.max_length, model.vocab_size)
        shared = min(map(len, prefixes))  # tokens before the first choice
        self.model, self.settings, self.trace, self.bonus = model, settings, trace, bonus
        self._prefixes, self._banned = prefixes, np.array(banned_tokens(settings), np.int64)
        self._banned_early = np.append(self._banned, SPECIAL_TOKENS.eos)
        constrained = [number for number, machine in enumerate(machines or ()) if machine.size > 1]
        self.results = HypothesisLists(len(ids), settings, constrained)
        self._select: Callable[[NextTokens, Beam], Choice]
        if machines is not None:
            self._select = BestOfEachState(machines, prefixes, shared, settings, ids, self.results)
        elif settings.sample is not None:
            self._select = Sampler(settings.sample, settings, ids)
        else:
            self._select = BestContinuations(settings, self.results)
        self.left: set[int] = set()
        """Examples that are not decoded further, because their results are no longer needed."""
        # Before the first choice all hypotheses of an example are equal: one is enough if it has enough continuations.
        single = machines is not None or (settings.sample is None and 2 * settings.beam_size <= model.vocab_size)
        self.beam: Beam | None = _start(model, memory, prefixes, shared, 1 if single else settings.beam_size, settings)
        self._stop_at_max_length()

    def advance(self, next_tokens: NextTokens, state: State) -> None:
        """Continue the hypotheses of the beam by one token, after `StepModel.step` for their last tokens."""
        beam = self.beam
        assert beam is not None, "a search that is done"
        if self.bonus is not None:
            next_tokens.add_bonus(self.bonus[beam.live], beam.tokens)
        self._exclude(next_tokens, beam)
        choice = self._select(next_tokens, beam)
        if self.trace is not None:
            self.trace(beam, choice)
        keep = [n for n in _add_complete(self.results, beam, choice) if beam.live[n] not in self.left]
        self.beam = self._continue(beam, choice, keep, state) if keep else None
        self._stop_at_max_length()

    def without_bonus(self, example: int) -> list[Sentence]:
        """Return the complete hypotheses of an example by descending score, with their log-probabilities alone."""
        hypotheses = self.results.hypotheses[example]
        if self.bonus is None:
            return hypotheses
        results = []
        for hypothesis in hypotheses:
            tokens = hypothesis.tokens
            first = [token not in tokens[:position] for position, token in enumerate(tokens)]
            values = np.where(first, self.bonus[example, list(tokens)], 0.0)
            log_prob = hypothesis.log_prob - float(values.sum())
            totals = tuple((np.array(hypothesis.totals) - values.cumsum()).tolist()) if hypothesis.totals else ()
            score = self.results.score(log_prob, len(tokens) + hypothesis.ended)
            results.append(hypothesis._replace(log_prob=log_prob, totals=totals, score=score))
        return sorted(results, key=lambda hypothesis: -hypothesis.score)

    def _exclude(self, next_tokens: NextTokens, beam: Beam) -> None:
        """Exclude tokens that differ from the prefix, an early end, special and banned tokens, and repeated n-grams."""
        length, prefixes = beam.length, [self._prefixes[example] for example in beam.live]
        rows = [n for n, prefix in enumerate(prefixes) if length < len(prefix)]
        if rows:
            forced = np.array([prefixes[n][length] for n in rows], np.int64)
            of_all = np.zeros((*beam.total.shape, 1), np.int64)
            of_all[rows] = forced[:, None, None]
            values = next_tokens.gather(of_all)[rows, :, 0]
        next_tokens.exclude(self._banned_early if length < self.settings.min_length else self._banned)
        if 0 < self.settings.no_repeat_ngram_size <= length:
            next_tokens.exclude_at(*_repetitions(beam.tokens, self.settings.no_repeat_ngram_size))
        if rows:
            next_tokens.force(np.array(rows), forced, values)

    def _continue(self, beam: Beam, choice: Choice, keep: list[int], state: State) -> Beam:
        """Append the chosen tokens to the hypotheses of the examples at `keep`."""
        count, width = beam.total.shape
        live, token, total, memory = beam.live, choice.token, choice.total, beam.memory
        tokens, totals = beam.all_tokens, beam.all_totals
        parent, unchanged = choice.parent, np.arange(width)
        if len(keep) < count or parent.shape[1] != width or (parent != unchanged).any():
            kept_examples = np.array(keep)
            rows = (kept_examples[:, None] * width + parent[kept_examples]).reshape(-1)
            state = self.model.select(state, rows)
            tokens, totals = (values[kept_examples[:, None], parent[kept_examples]] for values in (tokens, totals))
            if len(keep) < count:
                live, token, total = [live[n] for n in keep], token[kept_examples], total[kept_examples]
                memory = self.model.select(memory, kept_examples)
        tokens[:, :, beam.length], totals[:, :, beam.length] = token, total
        return Beam(live, beam.length + 1, total, token, tokens, totals, memory, state)

    def _stop_at_max_length(self) -> None:
        """Cut off the hypotheses that have `max_length` tokens."""
        beam = self.beam
        if beam is None or beam.length < self.settings.max_length:
            return
        if self.trace is not None:
            self.trace(beam, None)
        n, k = (indices.reshape(-1) for indices in np.indices(beam.total.shape))
        self.results.insert(beam, n, k, beam.total[n, k], ended=False)
        self.beam = None


def search(
    model: StepModel,
    memory: Memory,
    ids: Sequence[str],
    settings: DecodingSettings,
    prefixes: Sequence[Sequence[int]] | None = None,
    constraints: Sequence[Automaton] | None = None,
    trace: Trace | None = None,
    bonus: Floats | None = None,
) -> list[list[Sentence]]:
    """Find the `n_best` sentences of every example, best first; see `Search` for arguments and errors."""
    if not ids:
        return []
    running = Search(model, memory, ids, settings, prefixes, constraints, trace, bonus)
    while (beam := running.beam) is not None:
        running.advance(*model.step(beam.last, beam.memory, beam.state))
    return running.results.n_best(ids)


def score_tokens(model: StepModel, memory: Memory, tokens: Tokens) -> tuple[Floats, State]:
    """Compute the log-probability of each token of B sentences (B, T), and the state before the last token is read."""
    log_probs: list[Floats] = [np.zeros((len(tokens), 0), np.float32)]
    state, last = model.start(memory), np.full((len(tokens), 1), SPECIAL_TOKENS.bos, np.int64)
    for position in range(tokens.shape[1]):
        next_tokens, state = model.step(last, memory, state)
        last = tokens[:, position : position + 1]
        log_probs.append(next_tokens.gather(last[:, :, None])[:, :, 0])
    return np.concatenate(log_probs, 1), state


def _require_memory(needed: int, model: StepModel, count: int, settings: DecodingSettings, beams: int) -> None:
    """Check that the log-probabilities and tokens of all hypotheses fit into memory; ResourceError if not."""
    states = f" in each of {beams} states of the constraints" if beams > 1 else ""
    require_memory(
        needed,
        f"beams of {settings.beam_size:,} hypotheses{states} for {count:,} inputs",
        "lower beam_size (--beam-size), or the number of inputs in a batch (--batch-size)",
        model.free_memory,
    )


def _repetitions(tokens: Tokens, size: int) -> tuple[Tokens, Tokens, Tokens]:
    """Return the tokens that would complete an n-gram of `size` tokens a second time, of hypotheses (N, K, T).

    These are the examples, the hypotheses and the token ids, each (R,).
    """
    ngrams = sliding_window_view(tokens, size, axis=2)  # (N, K, T - size + 1, size)
    last = tokens[:, :, tokens.shape[2] - size + 1 :]  # (N, K, size - 1)
    n, k, position = (ngrams[..., :-1] == last[:, :, None]).all(-1).nonzero()
    return n, k, ngrams[n, k, position, -1]


def _start(
    model: StepModel,
    memory: Memory,
    prefixes: Sequence[Sequence[int]],
    shared: int,
    width: int,
    settings: DecodingSettings,
) -> Beam:
    """Read the first `shared` tokens of the prefixes, and create `width` equal hypotheses of each example."""
    count = len(prefixes)
    tokens = np.array([[SPECIAL_TOKENS.bos, *prefix[:shared]] for prefix in prefixes], np.int64)
    log_probs, state = score_tokens(model, memory, tokens[:, 1:])
    totals = np.pad(log_probs.cumsum(1), ((0, 0), (1, 0)))
    state = model.select(state, np.arange(count).repeat(width)) if width > 1 else state
    all_tokens = np.zeros((count, width, settings.max_length), np.int64)
    all_totals = np.zeros(all_tokens.shape)
    all_tokens[:, :, :shared], all_totals[:, :, :shared] = tokens[:, None, 1:], totals[:, None, 1:]
    total, last = totals[:, -1:].repeat(width, 1), tokens[:, -1:].repeat(width, 1)
    if settings.sample is None:
        total[:, 1:] = -math.inf
    return Beam(list(range(count)), shared, total, last, all_tokens, all_totals, memory, state)


def _add_complete(results: HypothesisLists, beam: Beam, choice: Choice) -> list[int]:
    """Add the hypotheses that are complete; return the indices of the examples that are decoded further."""
    n, k = choice.ends.nonzero()
    if len(n):
        results.insert(beam, n, choice.end_parent[n, k], choice.end_total[n, k], ended=True)
    best = choice.total.max(1).tolist()
    stuck = [row for row, value in enumerate(best) if value == -math.inf and results.is_stuck(beam.live[row])]
    if stuck:
        rows = np.array(stuck)
        parents = beam.total[rows].argmax(1)
        results.insert(beam, rows, parents, beam.total[rows, parents], ended=False)
    return [row for row, example in enumerate(beam.live) if not results.is_done(example, best[row], beam.length + 1)]
