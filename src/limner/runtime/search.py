"""Greedy and beam search over the graphs of an exported model: the rules of `limner.decoding`, in NumPy.

Shapes: N examples that are still decoded, K hypotheses of each, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from limner.decoding.ranking import Hypothesis, HypothesisLists, banned_tokens, require_prefixes
from limner.decoding.settings import DecodingSettings
from limner.errors import RunError
from limner.text.vocab import SPECIAL_TOKENS

Tensors = Mapping[str, NDArray[np.generic]]
"""Tensors of a memory or a state by name, one row for each hypothesis."""
StepGraph = Callable[[NDArray[np.int64], Tensors, Tensors], tuple[NDArray[np.float32], Tensors]]
"""Computes from the last tokens (N K,), the memory and the state the log-probabilities (N K, V) of the next tokens and
the next state."""


class Start(NamedTuple):
    """What a search starts from: memory and first state of each example."""

    memory: Tensors
    state: Tensors


class Front(NamedTuple):
    """Incomplete hypotheses of the N examples that are still decoded, K of each."""

    live: list[int]  # positions of the N examples in the batch
    total: NDArray[np.float32]  # (N, K): log-probability
    tokens: NDArray[np.int64]  # (N, K, length): all tokens so far
    totals: NDArray[np.float32]  # (N, K, length): log-probability up to each of them
    memory: Tensors  # of the N K hypotheses
    state: Tensors  # of the N K hypotheses


class Continuations(NamedTuple):
    """Best continuations of each example, best first; K of them continue and some of the others are complete."""

    total: NDArray[np.float32]  # (N, K): log-probability of those that continue; -inf where there is none
    parent: NDArray[np.intp]  # (N, K): hypothesis that each continues
    token: NDArray[np.intp]  # (N, K): its next token
    ended: list[tuple[int, int, float]]  # example, hypothesis and log-probability of those that are complete


def search(
    step: StepGraph,
    start: Start,
    settings: DecodingSettings,
    ids: Sequence[str],
    prefixes: Sequence[Sequence[int]] | None,
    vocab_size: int,
) -> list[list[Hypothesis]]:
    """Find the `n_best` most probable sentences of every example; see `limner.decoding.beam_search`.

    Args:
        step: graph of one step.
        start: memory and first state of the examples.
        settings: decoding settings without sampling.
        ids: name of each example, for errors.
        prefixes: token ids that the sentence of each example starts with, without special tokens.
        vocab_size: size V of the vocabulary.

    Raises:
        SettingsError: a prefix is too long or not in the vocabulary.
        RunError: the model computes probabilities that are not numbers.
    """
    prefixes = require_prefixes(prefixes, ids, settings.max_length, vocab_size)
    results = HypothesisLists(len(ids), settings)
    if not ids:
        return []
    width = 1 if 2 * settings.beam_size <= vocab_size else settings.beam_size  # equal hypotheses need no more
    front = _first(start, len(ids), width)
    for length in range(settings.max_length):
        last = front.tokens[:, :, -1] if length else np.full_like(front.total, SPECIAL_TOKENS.bos, dtype=np.int64)
        log_probs, state = step(last.reshape(-1), front.memory, front.state)
        if np.isnan(log_probs[:, :1]).any():  # a NaN spreads to all probabilities of its row
            raise RunError(
                "the model computes probabilities that are not numbers (NaN): its graphs are damaged; repeat "
                "'limner export'"
            )
        log_probs = _allow(log_probs.reshape(*front.total.shape, -1), front.live, prefixes, settings, length)
        chosen = _choose(log_probs, front, settings, results)
        keep = _record(results, front, chosen)
        if not keep:
            break
        front = _advance(front, chosen, keep, state)
    else:
        for k in range(front.total.shape[1]):
            _add(results, front, range(len(front.live)), [k] * len(front.live), front.total[:, k].tolist(), ended=False)
    return results.n_best(ids)


def _first(start: Start, count: int, width: int) -> Front:
    total = np.zeros((count, width), np.float32)
    total[:, 1:] = -math.inf
    rows = np.repeat(np.arange(count), width)
    tokens, totals = np.zeros((count, width, 0), np.int64), np.zeros((count, width, 0), np.float32)
    return Front(list(range(count)), total, tokens, totals, _take(start.memory, rows), _take(start.state, rows))


def _take(tensors: Tensors, rows: NDArray[np.intp]) -> Tensors:
    return {name: values[rows] for name, values in tensors.items()}


def _allow(
    log_probs: NDArray[np.float32],
    live: Sequence[int],
    prefixes: Sequence[Sequence[int]],
    settings: DecodingSettings,
    length: int,
) -> NDArray[np.float32]:
    """Set the log-probabilities (N, K, V) of tokens that are not allowed to -inf; those of a prefix come first."""
    allowed = log_probs.copy()
    allowed[:, :, banned_tokens(settings)] = -math.inf
    if length < settings.min_length:
        allowed[:, :, SPECIAL_TOKENS.eos] = -math.inf
    for n, example in enumerate(live):
        if length < len(prefixes[example]):
            token = prefixes[example][length]
            allowed[n] = -math.inf
            allowed[n, :, token] = log_probs[n, :, token]
    return allowed


def _choose(
    log_probs: NDArray[np.float32], front: Front, settings: DecodingSettings, results: HypothesisLists
) -> Continuations:
    """Choose the continuations as `limner.decoding.selection.divide` does; of equal ones the first."""
    count, _, vocab_size = log_probs.shape
    joint, beam_size = (log_probs + front.total[:, :, None]).reshape(count, -1), settings.beam_size
    wanted = 1 if beam_size == 1 else 2 * beam_size
    best = _first_best(joint, wanted)  # (N, 2K), best first
    totals, tokens, parents = np.take_along_axis(joint, best, 1), best % vocab_size, best // vocab_size
    if settings.stop == "shrink":
        left = beam_size - np.array(results.complete(front.live))[:, None]
        totals = np.where(np.arange(best.shape[1]) < left, totals, np.float32(-math.inf))
    ends = tokens == SPECIAL_TOKENS.eos
    ended = [
        (int(n), int(parents[n, k]), float(totals[n, k])) for n, k in zip(*ends[:, :beam_size].nonzero(), strict=True)
    ]
    totals = np.where(ends, np.float32(-math.inf), totals)
    order = np.argsort(-totals, axis=1, kind="stable")[:, :beam_size]
    total, parent, token = (np.take_along_axis(one, order, 1) for one in (totals, parents, tokens))
    return Continuations(total, parent, token, ended)


def _first_best(values: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Return the columns of the `count` greatest values of each row, the greatest first, of equal ones the first."""
    if count == 1:
        return np.asarray(values.argmax(1))[:, None]
    count = min(count, values.shape[1])
    least = np.partition(values, -count, axis=1)[:, -count]
    rows = []
    for row, low in zip(values, least, strict=True):
        columns = np.flatnonzero(row >= low)
        rows.append(columns[np.argsort(-row[columns], kind="stable")][:count])
    return np.stack(rows)


def _record(results: HypothesisLists, front: Front, chosen: Continuations) -> list[int]:
    """Add the hypotheses that are complete; return the indices of the examples that are decoded further."""
    for n, k, log_prob in chosen.ended:
        _add(results, front, [n], [k], [log_prob], ended=True)
    best = chosen.total.max(1).tolist()
    for n, example in enumerate(front.live):
        if results.is_stuck(example, best[n]):
            k = int(front.total[n].argmax())
            _add(results, front, [n], [k], [float(front.total[n, k])], ended=False)
    return [n for n, example in enumerate(front.live) if not results.is_done(example, best[n])]


def _add(
    results: HypothesisLists,
    front: Front,
    examples: Sequence[int],
    hypotheses: Sequence[int],
    log_probs: Sequence[float],
    *,
    ended: bool,
) -> None:
    """Add one hypothesis of each of some examples of a front."""
    tokens, totals = (one[examples, hypotheses].tolist() for one in (front.tokens, front.totals))
    results.insert([front.live[n] for n in examples], log_probs, tokens, totals, ended=ended)


def _advance(front: Front, chosen: Continuations, keep: list[int], state: Tensors) -> Front:
    """Append the chosen tokens to the hypotheses that they continue."""
    parents, width, length = chosen.parent[keep], front.total.shape[1], front.tokens.shape[2]
    rows = (np.array(keep)[:, None] * width + parents).reshape(-1)
    tokens, totals = (
        np.concatenate([before.reshape(front.total.size, length)[rows].reshape(*parents.shape, length), now], 2)
        for before, now in ((front.tokens, chosen.token[keep, :, None]), (front.totals, chosen.total[keep, :, None]))
    )
    memory = front.memory
    if len(keep) < len(front.live) or parents.shape[1] != width:  # the hypotheses of an example share their memory
        memory = _take(memory, rows)
    live = [front.live[n] for n in keep]
    return Front(live, chosen.total[keep], tokens, totals, memory, _take(state, rows))
