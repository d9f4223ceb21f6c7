"""Search of the best translations: stacks by the number of translated words and cube pruning.

Koehn et al. (2003), section 2.3, for stacks, recombination and future costs; Huang and Chiang (2007) for cube pruning;
Koehn et al. (2007) for the distortion limit. `lattice.py` lists the n best translations of what was searched.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from limner.smt.features import (
    DISTORTION,
    LANGUAGE_MODEL,
    NEXT,
    PHRASES,
    PREVIOUS,
    SCORES,
    UNKNOWN,
    WORDS,
)
from limner.smt.hashing import NOT_FOUND, find
from limner.smt.language_model import LanguageModel, next_word
from limner.smt.phrases import PhraseTable
from limner.smt.reordering import NUM_ORIENTATIONS, orientation
from limner.text.vocab import SPECIAL_TOKENS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Scores = NDArray[np.float32]

BOS, EOS, UNK = SPECIAL_TOKENS.bos, SPECIAL_TOKENS.eos, SPECIAL_TOKENS.unk
NONE = -1
COPIED = -1
"""Phrase pair of an option that copies an unknown word."""


class Tables(NamedTuple):
    """A language model and a phrase table with the hash tables of their tries, as arrays for compiled code."""

    lm_table: Ints
    lm_log_probs: Floats
    lm_log_backoffs: Floats
    lm_size: int
    lm_order: int
    edges: Ints
    source_size: int
    first: Ints
    word_starts: Ints
    words: Ints
    scores: Scores
    next_kinds: Ints  # (P,): pairs with equal probabilities of the next orientation have the same number
    next_scores: Floats  # (C + 1, 3): these log-probabilities; the last row is that of copied words


class Limits(NamedTuple):
    """Limits of the search."""

    stack_size: int
    """Number of hypotheses of a stack that are extended."""
    pop_limit: int
    """Number of hypotheses that are made for a stack."""
    distortion_limit: int
    """Number of words from the first one not translated to the end of any translated one."""
    table_limit: int
    """Number of phrase pairs for a source phrase."""
    max_length: int
    """Number of words of a source phrase."""


class PhraseOptions(NamedTuple):
    """Phrase pairs that translate spans of a sentence, those of a span together, best first."""

    starts: Ints  # (O,): first source word
    ends: Ints  # (O,): last source word
    pairs: Ints  # (O,): phrase pair, or COPIED
    fixed: Floats  # (O,): weighted features that do not depend on other phrases, without the language model
    estimates: Floats  # (O,): `fixed` and the language model's score of the words without context
    spans: Ints  # (S, max_length + 1): options of the span of n words from i are spans[i, n - 1] … spans[i, n] - 1


class Lattice(NamedTuple):
    """Hypotheses of a search: nodes, and the arcs by which they were reached."""

    node_scores: Floats  # (N,): score of the best way to each node; node 0 is the beginning
    node_arcs: Ints  # (N,): last arc of the list of those that reach a node
    arc_from: Ints  # (A,): node that an arc extends
    arc_options: Ints  # (A,): option that it adds; NONE for the end of the sentence
    arc_scores: Floats  # (A,): score that it adds
    arc_next: Ints  # (A,): arc before it in the list, or NONE
    final: int
    """Node of complete translations."""


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def lm_phrase(tables: Tables, context: Ints, known: int, pair: int) -> tuple[float, int]:
    """Score the words of a phrase pair after a context, which is changed; see `next_word`."""
    if pair == COPIED:
        log_prob, known = next_word(
            tables.lm_table, tables.lm_log_probs, tables.lm_log_backoffs, tables.lm_size, context, known, UNK
        )
        return log_prob, known
    total = 0.0
    for position in range(tables.word_starts[pair], tables.word_starts[pair + 1]):
        log_prob, known = next_word(
            tables.lm_table,
            tables.lm_log_probs,
            tables.lm_log_backoffs,
            tables.lm_size,
            context,
            known,
            tables.words[position],
        )
        total += log_prob
    return total, known


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def find_options(tables: Tables, source: Ints, weights: Floats, limits: Limits) -> PhraseOptions:
    """Find the best phrase pairs of all spans; a word that no pair translates alone and is unknown is copied."""
    size, longest = len(source), limits.max_length
    starts, ends, pairs = [0 for _ in range(0)], [0 for _ in range(0)], [0 for _ in range(0)]
    fixed, estimates = [0.0 for _ in range(0)], [0.0 for _ in range(0)]
    spans = np.zeros((size, longest + 1), dtype=np.int64)
    context = np.zeros(max(1, tables.lm_order - 1), dtype=np.int64)
    for start in range(size):
        node = 0
        spans[start, 0] = len(starts)
        for length in range(1, longest + 1):
            end = start + length - 1
            if end < size and node != NOT_FOUND:
                node = find(tables.edges, node * tables.source_size + source[end])
                low, high = (0, 0) if node == NOT_FOUND else (tables.first[node], tables.first[node + 1])
                count = high - low
                own, whole = np.empty(count), np.empty(count)
                for k in range(count):
                    own[k] = weights[PHRASES] + weights[WORDS] * (
                        tables.word_starts[low + k + 1] - tables.word_starts[low + k]
                    )
                    for score in range(4):
                        own[k] += weights[SCORES + score] * tables.scores[low + k, score]
                    whole[k] = own[k] + weights[LANGUAGE_MODEL] * lm_phrase(tables, context, 0, low + k)[0]
                for k in np.argsort(-whole, kind="mergesort")[: limits.table_limit]:
                    starts.append(start)
                    ends.append(end)
                    pairs.append(low + k)
                    fixed.append(own[k])
                    estimates.append(whole[k])
                if length == 1 and count == 0:
                    starts.append(start)
                    ends.append(end)
                    pairs.append(COPIED)
                    fixed.append(weights[PHRASES] + weights[WORDS] + weights[UNKNOWN])
                    estimates.append(fixed[-1] + weights[LANGUAGE_MODEL] * lm_phrase(tables, context, 0, COPIED)[0])
            spans[start, length] = len(starts)
    return PhraseOptions(np.array(starts), np.array(ends), np.array(pairs), np.array(fixed), np.array(estimates), spans)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def future_scores(options: PhraseOptions, size: int) -> Floats:
    """Compute the best sum of estimates that translates the words i … j - 1, (S + 1, S + 1)."""
    best = np.full((size + 1, size + 1), -np.inf)
    for start in range(size + 1):
        best[start, start] = 0.0
    for option in range(len(options.starts)):
        start, end = options.starts[option], options.ends[option] + 1
        best[start, end] = max(best[start, end], options.estimates[option])
    for length in range(2, size + 1):
        for start in range(size - length + 1):
            end = start + length
            for middle in range(start + 1, end):
                best[start, end] = max(best[start, end], best[start, middle] + best[middle, end])
    return best


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _remaining(future: Floats, gap: int, mask: int, size: int) -> float:
    """Return the estimate of what is not translated: words from `gap` on, without those of `mask` (bit 0 is `gap`)."""
    total, position = 0.0, gap
    while mask:
        start = position
        while not mask & 1:
            mask >>= 1
            position += 1
        total += future[start, position]
        while mask & 1:
            mask >>= 1
            position += 1
    return float(total + future[position, size])


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _push(heap: Ints, values: Floats, size: int, item: int) -> int:
    """Add an item to a heap by its value, the largest first; return the new size."""
    position = size
    while position > 0:
        parent = (position - 1) >> 1
        if values[heap[parent]] >= values[item]:
            break
        heap[position] = heap[parent]
        position = parent
    heap[position] = item
    return size + 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _pop(heap: Ints, values: Floats, size: int) -> int:
    """Remove the first item of a heap of `size` items, which is heap[0] before; return the new size."""
    size -= 1
    item, position = heap[size], 0
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        if child + 1 < size and values[heap[child + 1]] > values[heap[child]]:
            child += 1
        if values[item] >= values[heap[child]]:
            break
        heap[position] = heap[child]
        position = child
    heap[position] = item
    return size


GAP, MASK, START, END, KIND, KNOWN, CONTEXT = range(7)
"""Columns of the state of a hypothesis, by which hypotheses are recombined: the first word that is not translated; bits
of the translated words from there on; first and last word of the last phrase; its number in `next_kinds`; number of
known words of the language model's context; these words, the most recent first."""


class Stacks(NamedTuple):
    """Hypotheses of all stacks."""

    states: Ints  # (N, CONTEXT + order - 1)
    scores: Floats  # (N,)
    totals: Floats  # (N,): scores with the estimate of what is not translated
    arcs: Ints  # (N,): last arc of each hypothesis
    arc_from: Ints  # (A,)
    arc_options: Ints  # (A,)
    arc_scores: Floats  # (A,)
    arc_next: Ints  # (A,)
    used: Ints  # (2,): numbers of hypotheses and of arcs


class Items(NamedTuple):
    """Candidates of a stack: hypotheses that could be added."""

    states: Ints
    added: Floats  # (I,): score that the option adds
    totals: Floats  # (I,)
    places: Ints  # (I, 5): hypothesis, option, edge, position among the hypotheses of the edge, and among its options


class SearchProblem(NamedTuple):
    """What is constant during a search."""

    tables: Tables
    options: PhraseOptions
    future: Floats
    weights: Floats
    size: int


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _extend(problem: SearchProblem, stacks: Stacks, hypothesis: int, option: int, items: Items, item: int) -> None:
    """Write the extension of a hypothesis by an option as an item."""
    tables, options, weights = problem.tables, problem.options, problem.weights
    old, state = stacks.states[hypothesis], items.states[item]
    start, end, pair = options.starts[option], options.ends[option], options.pairs[option]
    state[CONTEXT:] = old[CONTEXT:]
    log_prob, known = lm_phrase(tables, state[CONTEXT:], old[KNOWN], pair)
    state[CONTEXT + known :] = 0
    added = options.fixed[option] + weights[LANGUAGE_MODEL] * log_prob
    added -= weights[DISTORTION] * abs(start - old[END] - 1)
    kind = orientation(old[START], old[END], start, end)
    log_orientation = np.log(1 / NUM_ORIENTATIONS) if pair == COPIED else tables.scores[pair, 4 + kind]
    added += weights[PREVIOUS + kind] * log_orientation
    if old[END] >= 0:
        added += weights[NEXT + kind] * tables.next_scores[old[KIND], kind]
    gap = old[GAP]
    mask = old[MASK] | ((1 << (end + 1 - gap)) - (1 << (start - gap)))
    while mask & 1:
        mask >>= 1
        gap += 1
    state[GAP], state[MASK], state[START], state[END] = gap, mask, start, end
    state[KIND] = len(tables.next_scores) - 1 if pair == COPIED else tables.next_kinds[pair]
    state[KNOWN] = known
    items.added[item] = added
    items.totals[item] = stacks.scores[hypothesis] + added + _remaining(problem.future, gap, mask, problem.size)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _add(stacks: Stacks, items: Items, item: int, seen: Ints) -> None:
    """Add an item to its stack, or recombine it with a hypothesis of equal state; `seen` is a hash table of them."""
    state, hypothesis = items.states[item], NONE
    code = 0
    for value in state:
        code = code * 1000003 + value
    slot = (code ^ (code >> 29)) & (len(seen) - 1)
    while seen[slot] != NONE:
        other = stacks.states[seen[slot]]
        if (other == state).all():
            hypothesis = seen[slot]
            break
        slot = (slot + 1) & (len(seen) - 1)
    before, score = items.places[item, 0], stacks.scores[items.places[item, 0]] + items.added[item]
    if hypothesis == NONE:
        hypothesis = stacks.used[0]
        stacks.used[0] += 1
        seen[slot] = hypothesis
        stacks.states[hypothesis] = state
        stacks.scores[hypothesis], stacks.totals[hypothesis] = score, items.totals[item]
        stacks.arcs[hypothesis] = NONE
    elif score > stacks.scores[hypothesis]:
        stacks.scores[hypothesis], stacks.totals[hypothesis] = score, items.totals[item]
    _add_arc(stacks, hypothesis, before, items.places[item, 1], items.added[item])


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _add_arc(stacks: Stacks, hypothesis: int, before: int, option: int, added: float) -> None:
    arc = stacks.used[1]
    stacks.used[1] += 1
    stacks.arc_from[arc], stacks.arc_options[arc], stacks.arc_scores[arc] = before, option, added
    stacks.arc_next[arc] = stacks.arcs[hypothesis]
    stacks.arcs[hypothesis] = arc


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _edges(stacks: Stacks, ordered: Ints, groups: Ints, spans: Ints, limits: Limits, stack: int) -> Ints:
    """List the edges to a stack: hypotheses of a lower stack of equal coverage, and the options of a span.

    Returns:
        First and end of the hypotheses in `ordered`, first and end of the options, for each edge, (E, 4).
    """
    size, longest = len(spans), spans.shape[1] - 1
    edges = [(0, 0, 0, 0) for _ in range(0)]
    for group in range(len(groups)):
        low, high, length = groups[group, 0], groups[group, 1], stack - groups[group, 2]
        if not 1 <= length <= longest:
            continue
        gap, mask = stacks.states[ordered[low], GAP], stacks.states[ordered[low], MASK]
        last = max(gap, min(size - length, gap + limits.distortion_limit - length))
        for start in range(gap, last + 1):
            if start + length > size:
                break
            covered = (1 << (start + length - gap)) - (1 << (start - gap))
            if mask & covered == 0 and spans[start, length] > spans[start, length - 1]:
                edges.append((low, high, spans[start, length - 1], spans[start, length]))
    result = np.empty((len(edges), 4), dtype=np.int64)
    for edge in range(len(edges)):
        result[edge] = edges[edge]
    return result


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _fill_stack(problem: SearchProblem, stacks: Stacks, ordered: Ints, edges: Ints, limits: Limits) -> None:
    """Make the hypotheses of a stack, the most promising first: Huang and Chiang (2007), section 3.

    Each edge is a grid of hypotheses and options. Its best corner is a candidate; when a candidate is taken, its
    neighbours become candidates: the next option, and in the first column the next hypothesis as well.
    """
    capacity = len(edges) + 2 * limits.pop_limit
    items = Items(
        np.zeros((capacity, stacks.states.shape[1]), dtype=np.int64),
        np.empty(capacity),
        np.empty(capacity),
        np.empty((capacity, 5), dtype=np.int64),
    )
    seen_size = 16
    while seen_size < 2 * limits.pop_limit and seen_size < 4 * capacity:
        seen_size *= 2
    seen = np.full(seen_size * 2, NONE)
    heap, count, used = np.empty(capacity, dtype=np.int64), 0, 0
    for edge in range(len(edges)):
        items.places[used] = (ordered[edges[edge, 0]], edges[edge, 2], edge, 0, 0)
        _extend(problem, stacks, ordered[edges[edge, 0]], edges[edge, 2], items, used)
        count = _push(heap, items.totals, count, used)
        used += 1
    for _ in range(limits.pop_limit):
        if count == 0:
            break
        item = heap[0]
        count = _pop(heap, items.totals, count)
        _add(stacks, items, item, seen)
        _, _, edge, row, column = items.places[item]
        for next_row, next_column in ((row, column + 1), (row + 1, column)):
            low, high, first, end = edges[edge]
            if (next_row > row and column > 0) or low + next_row >= high or first + next_column >= end:
                continue
            hypothesis, option = ordered[low + next_row], first + next_column
            items.places[used] = (hypothesis, option, edge, next_row, next_column)
            _extend(problem, stacks, hypothesis, option, items, used)
            count = _push(heap, items.totals, count, used)
            used += 1


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _group(stacks: Stacks, begin: int, end: int, stack: int, stack_size: int, offset: int) -> tuple[Ints, Ints]:
    """Order the best hypotheses of a stack by coverage, then score.

    Args:
        stacks: hypotheses, those of the stack from `begin` to `end` - 1.
        begin: see `stacks`.
        end: see `stacks`.
        stack: number of words that they translate.
        stack_size: number of hypotheses that are kept.
        offset: number of ordered hypotheses of the lower stacks.

    Returns:
        Hypotheses in order, and the groups of equal coverage: first and end, and `stack`, (G, 3).
    """
    best = begin + np.argsort(-stacks.totals[begin:end], kind="mergesort")[:stack_size]
    ordered = np.empty(len(best), dtype=np.int64)
    taken = np.zeros(len(best), dtype=np.bool_)
    groups = np.empty((len(best), 3), dtype=np.int64)
    count = filled = 0
    for k in range(len(best)):
        if taken[k]:
            continue
        first = filled
        for other in range(k, len(best)):
            if taken[other]:
                continue
            same = stacks.states[best[k], GAP] == stacks.states[best[other], GAP]
            if same and stacks.states[best[k], MASK] == stacks.states[best[other], MASK]:
                taken[other] = True
                ordered[filled] = best[other]
                filled += 1
        groups[count] = (offset + first, offset + filled, stack)
        count += 1
    return ordered, groups[:count]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _finish(problem: SearchProblem, stacks: Stacks, begin: int, end: int) -> int:
    """Add the end of the sentence to all complete hypotheses; return the node of the complete translations."""
    tables, weights, final = problem.tables, problem.weights, stacks.used[0]
    stacks.used[0] += 1
    stacks.arcs[final], stacks.scores[final] = NONE, -np.inf
    context = np.empty(stacks.states.shape[1] - CONTEXT, dtype=np.int64)
    for hypothesis in range(begin, end):
        state = stacks.states[hypothesis]
        context[:] = state[CONTEXT:]
        log_prob, _ = next_word(
            tables.lm_table, tables.lm_log_probs, tables.lm_log_backoffs, tables.lm_size, context, state[KNOWN], EOS
        )
        kind = orientation(state[START], state[END], problem.size, problem.size)
        added = weights[LANGUAGE_MODEL] * log_prob + weights[NEXT + kind] * tables.next_scores[state[KIND], kind]
        stacks.scores[final] = max(stacks.scores[final], stacks.scores[hypothesis] + added)
        _add_arc(stacks, final, hypothesis, NONE, added)
    return int(final)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def search(tables: Tables, source: Ints, weights: Floats, limits: Limits) -> tuple[PhraseOptions, Lattice]:
    """Search the translations of a sentence.

    Args:
        tables: language model and phrase table.
        source: token ids of the sentence, at least one.
        weights: weights of the features, (NUM_FEATURES,).
        limits: limits of the search.
    """
    size = len(source)
    options = find_options(tables, source, weights, limits)
    problem = SearchProblem(tables, options, future_scores(options, size), weights, size)
    hypotheses = size * limits.pop_limit + 2
    arcs = hypotheses + limits.pop_limit
    stacks = Stacks(
        np.zeros((hypotheses, CONTEXT + max(1, tables.lm_order - 1)), dtype=np.int64),
        np.empty(hypotheses),
        np.empty(hypotheses),
        np.empty(hypotheses, dtype=np.int64),
        np.empty(arcs, dtype=np.int64),
        np.empty(arcs, dtype=np.int64),
        np.empty(arcs),
        np.empty(arcs, dtype=np.int64),
        np.array([1, 0]),
    )
    stacks.states[0, START], stacks.states[0, END], stacks.arcs[0], stacks.scores[0] = NONE, NONE, NONE, 0.0
    if tables.lm_order > 1:
        stacks.states[0, CONTEXT], stacks.states[0, KNOWN] = BOS, 1
    ordered, groups, begin = np.array([0]), np.array([[0, 1, 0]]), 0
    for stack in range(1, size + 1):
        begin = stacks.used[0]
        _fill_stack(problem, stacks, ordered, _edges(stacks, ordered, groups, options.spans, limits, stack), limits)
        if stack < size:
            more, more_groups = _group(stacks, begin, stacks.used[0], stack, limits.stack_size, len(ordered))
            ordered, groups = np.concatenate((ordered, more)), np.concatenate((groups, more_groups))
    final = _finish(problem, stacks, begin, stacks.used[0])
    lattice = Lattice(
        stacks.scores[: final + 1],
        stacks.arcs[: final + 1],
        stacks.arc_from,
        stacks.arc_options,
        stacks.arc_scores,
        stacks.arc_next,
        final,
    )
    return options, lattice


def build_tables(lm: LanguageModel, phrases: PhraseTable) -> Tables:
    """Build the arrays that a search reads."""
    distinct, kinds = np.unique(phrases.scores[:, 7:], axis=0, return_inverse=True)
    copied = np.full((1, NUM_ORIENTATIONS), np.log(1 / NUM_ORIENTATIONS))
    return Tables(
        lm.table(),
        lm.log_probs,
        lm.log_backoffs,
        lm.vocab_size,
        lm.order,
        phrases.table(),
        phrases.vocab_size,
        phrases.first,
        phrases.word_starts,
        phrases.words,
        phrases.scores,
        kinds.reshape(-1),
        np.concatenate([distinct.astype(np.float64), copied]),
    )
