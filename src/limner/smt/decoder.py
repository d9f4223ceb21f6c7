"""Search of the best translations: stacks by the number of translated words and cube pruning.

Koehn et al. (2003), section 2.3, for stacks, recombination and future costs; Huang and Chiang (2007) for cube pruning;
Koehn et al. (2007) for the distortion limit. `system.py` lists the n best translations of its lattice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from limner.compiled import compiled
from limner.smt import NUM_FEATURES, Floats, Ints
from limner.smt.containers import pop, push
from limner.smt.features import (
    BOS,
    Limits,
    PhraseOptions,
    Tables,
    add_end_features,
    add_order_features,
    find_options,
    future_scores,
    weighted,
)

NONE = -1


@compiled
def _remaining(future: Floats, gap: int, mask: int, size: int) -> float:
    """Estimate the score of the untranslated words: all words from `gap` on except in `mask` (bit 0 is `gap`)."""
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


GAP, MASK, START, END, KIND, KNOWN, CONTEXT = range(7)
"""Columns of the state of a hypothesis, by which hypotheses are recombined: the first word that is not translated; bits
of the translated words from there on; `last` and `context` of `add_order_features`."""


class Stacks(NamedTuple):
    """Hypotheses of all stacks, a lattice: the nodes are the hypotheses, node 0 the beginning; the arcs reach them."""

    states: Ints  # (N, CONTEXT + order - 1)
    scores: Floats  # (N,): score of the best way to each hypothesis
    totals: Floats  # (N,): scores, future score included
    arcs: Ints  # (N,): last arc of the list of arcs that reach a hypothesis
    arc_from: Ints  # (A,): hypothesis that an arc extends
    arc_options: Ints  # (A,): option that it adds; NONE for the end of the sentence
    arc_scores: Floats  # (A,): score that it adds
    arc_next: Ints  # (A,): arc before it in the list, or NONE
    used: Ints  # (2,): numbers of hypotheses and of arcs


class Items(NamedTuple):
    """Candidates of a stack: hypotheses that could be added."""

    states: Ints
    added: Floats  # (I,): score that the option adds
    totals: Floats  # (I,)
    places: Ints  # (I, 5): hypothesis, option, edge, position among the hypotheses of the edge, and among its options


class SearchProblem(NamedTuple):
    """Constants of a search."""

    tables: Tables
    options: PhraseOptions
    future: Floats
    weights: Floats
    size: int
    features: Floats  # (NUM_FEATURES,): space for the features of one phrase


@compiled
def _extend(problem: SearchProblem, stacks: Stacks, hypothesis: int, option: int, items: Items, item: int) -> None:
    """Write the extension of a hypothesis by an option as an item."""
    options, old, state = problem.options, stacks.states[hypothesis], items.states[item]
    start, end = options.starts[option], options.ends[option]
    state[START:] = old[START:]
    features, context = problem.features, state[CONTEXT:]
    features[:] = 0
    add_order_features(problem.tables, state[START:CONTEXT], start, end, options.pairs[option], context, features)
    context[state[KNOWN] :] = 0
    added = options.fixed[option] + weighted(problem.weights, features)
    gap = old[GAP]
    mask = old[MASK] | ((1 << (end + 1 - gap)) - (1 << (start - gap)))
    while mask & 1:
        mask >>= 1
        gap += 1
    state[GAP], state[MASK] = gap, mask
    items.added[item] = added
    items.totals[item] = stacks.scores[hypothesis] + added + _remaining(problem.future, gap, mask, problem.size)


@compiled
def _add(stacks: Stacks, items: Items, item: int, seen: Ints) -> None:
    """Add an item to its stack, or recombine it with a hypothesis of equal state in the hash table `seen`."""
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


@compiled
def _add_arc(stacks: Stacks, hypothesis: int, before: int, option: int, added: float) -> None:
    arc = stacks.used[1]
    stacks.used[1] += 1
    stacks.arc_from[arc], stacks.arc_options[arc], stacks.arc_scores[arc] = before, option, added
    stacks.arc_next[arc] = stacks.arcs[hypothesis]
    stacks.arcs[hypothesis] = arc


@compiled
def _edges(stacks: Stacks, ordered: Ints, groups: Ints, spans: Ints, limits: Limits, stack: int) -> Ints:
    """List the edges to a stack: hypotheses of a lower stack of equal coverage, and the options of a span.

    The edges, (E, 4), are first and end of the hypotheses in `ordered`, and first and end of the options.
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


@compiled
def _fill_stack(problem: SearchProblem, stacks: Stacks, ordered: Ints, edges: Ints, limits: Limits) -> None:
    """Make the hypotheses of a stack, the most promising first: Huang and Chiang (2007), section 3.

    Each edge is a grid of hypotheses and options. Its best corner is a candidate; when a candidate is taken, its
    neighbours become candidates: the next option, and in the first column the next hypothesis as well.
    """
    capacity = len(edges) + 2 * limits.stack_size
    items = Items(
        np.zeros((capacity, stacks.states.shape[1]), dtype=np.int64),
        np.empty(capacity),
        np.empty(capacity),
        np.empty((capacity, 5), dtype=np.int64),
    )
    seen_size = 16
    while seen_size < 2 * limits.stack_size:
        seen_size *= 2
    seen = np.full(seen_size * 2, NONE)
    heap, count, used = np.empty(capacity, dtype=np.int64), 0, 0
    for edge in range(len(edges)):
        items.places[used] = (ordered[edges[edge, 0]], edges[edge, 2], edge, 0, 0)
        _extend(problem, stacks, ordered[edges[edge, 0]], edges[edge, 2], items, used)
        count = push(heap, items.totals, count, used)
        used += 1
    for _ in range(limits.stack_size):
        if count == 0:
            break
        item = heap[0]
        count = pop(heap, items.totals, count)
        _add(stacks, items, item, seen)
        _, _, edge, row, column = items.places[item]
        for next_row, next_column in ((row, column + 1), (row + 1, column)):
            low, high, first, end = edges[edge]
            if (next_row > row and column > 0) or low + next_row >= high or first + next_column >= end:
                continue
            hypothesis, option = ordered[low + next_row], first + next_column
            items.places[used] = (hypothesis, option, edge, next_row, next_column)
            _extend(problem, stacks, hypothesis, option, items, used)
            count = push(heap, items.totals, count, used)
            used += 1


@compiled
def _group(stacks: Stacks, begin: int, end: int, stack: int, offset: int) -> tuple[Ints, Ints]:
    """Order the hypotheses `begin` to `end` - 1 of a stack by coverage, then score, after `offset` others.

    Return the hypotheses in order, and the groups of equal coverage, (G, 3): first and end in this order, and `stack`.
    """
    best = begin + np.argsort(-stacks.totals[begin:end], kind="mergesort")
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


@compiled
def _finish(problem: SearchProblem, stacks: Stacks, begin: int, end: int) -> int:
    """Add the end of the sentence to all complete hypotheses; return the node of the complete translations."""
    features, final = problem.features, stacks.used[0]
    stacks.used[0] += 1
    stacks.arcs[final], stacks.scores[final] = NONE, -np.inf
    for hypothesis in range(begin, end):
        state = stacks.states[hypothesis].copy()
        features[:] = 0
        add_end_features(problem.tables, state[START:CONTEXT], problem.size, state[CONTEXT:], features)
        added = weighted(problem.weights, features)
        stacks.scores[final] = max(stacks.scores[final], stacks.scores[hypothesis] + added)
        _add_arc(stacks, final, hypothesis, NONE, added)
    return int(final)


@compiled
def _start(order: int, size: int, stack_size: int) -> Stacks:
    """Allocate the hypotheses of a sentence of `size` words, and add the empty hypothesis."""
    hypotheses = size * stack_size + 2
    arcs = hypotheses + stack_size
    stacks = Stacks(
        np.zeros((hypotheses, CONTEXT + max(1, order - 1)), dtype=np.int64),
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
    if order > 1:
        stacks.states[0, CONTEXT], stacks.states[0, KNOWN] = BOS, 1
    return stacks


@compiled
def search(
    tables: Tables, source: Ints, copies: Ints, weights: Floats, limits: Limits
) -> tuple[PhraseOptions, Stacks, int]:
    """Search the translations of a sentence; return the options, the lattice and its node of complete translations.

    `copies` are the target words of source words that are copied; from the size of the vocabulary on, the language
    model scores them as unknown.
    """
    size = len(source)
    options = find_options(tables, source, copies, weights, limits)
    problem = SearchProblem(tables, options, future_scores(options, size), weights, size, np.empty(NUM_FEATURES))
    stacks = _start(tables.lm_order, size, limits.stack_size)
    ordered, groups, begin = np.array([0]), np.array([[0, 1, 0]]), 0
    for stack in range(1, size + 1):
        begin = stacks.used[0]
        _fill_stack(problem, stacks, ordered, _edges(stacks, ordered, groups, options.spans, limits, stack), limits)
        if stack < size:
            more, more_groups = _group(stacks, begin, stacks.used[0], stack, len(ordered))
            ordered, groups = np.concatenate((ordered, more)), np.concatenate((groups, more_groups))
    return options, stacks, _finish(problem, stacks, begin, stacks.used[0])
