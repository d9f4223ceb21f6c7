"""The n best translations of a search, and the features of each: Koehn et al. (2007); Huang and Chiang (2005)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from limner.compiled import compiled
from limner.smt.decoder import NONE, Lattice
from limner.smt.features import NUM_FEATURES, add_end_features, add_order_features, add_phrase_features
from limner.smt.heap import pop, push
from limner.smt.options import PhraseOptions
from limner.smt.tables import BOS, Tables

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@compiled
def best_paths(lattice: Lattice, count: int) -> list[Ints]:
    """Find the best paths of a lattice, by A* from its end with the exact scores of the nodes.

    Args:
        lattice: hypotheses of a search.
        count: largest number of paths.

    Returns:
        Numbers of the options of each path in the order of the target, the best path first.
    """
    capacity = 1024
    places = np.empty((capacity, 3), dtype=np.int64)  # node, option that follows it, and the item of that option
    suffixes, totals = np.empty(capacity), np.empty(capacity)
    heap = np.empty(capacity, dtype=np.int64)
    places[0] = (lattice.final, NONE, NONE)
    suffixes[0], totals[0] = 0.0, lattice.node_scores[lattice.final]
    used, size, paths = 1, push(heap, totals, 0, 0), [np.empty(0, dtype=np.int64) for _ in range(0)]
    while size and len(paths) < count:
        item = heap[0]
        size = pop(heap, totals, size)
        if places[item, 0] == 0:
            path = [NONE]
            while item != NONE:
                if places[item, 1] != NONE:
                    path.append(places[item, 1])
                item = places[item, 2]
            paths.append(np.array(path[1:], dtype=np.int64))
            continue
        arc = lattice.node_arcs[places[item, 0]]
        while arc != NONE:
            if used == capacity:
                places = np.concatenate((places, np.empty_like(places)))
                suffixes = np.concatenate((suffixes, np.empty_like(suffixes)))
                totals = np.concatenate((totals, np.empty_like(totals)))
                heap = np.concatenate((heap, np.empty_like(heap)))
                capacity *= 2
            places[used] = (lattice.arc_from[arc], lattice.arc_options[arc], item)
            suffixes[used] = suffixes[item] + lattice.arc_scores[arc]
            totals[used] = suffixes[used] + lattice.node_scores[lattice.arc_from[arc]]
            size = push(heap, totals, size, used)
            used += 1
            arc = lattice.arc_next[arc]
    return paths


@compiled
def path_features(tables: Tables, options: PhraseOptions, path: Ints, size: int) -> Floats:
    """Compute the features of a path, (NUM_FEATURES,).

    Args:
        tables: language model and phrase table.
        options: options of the sentence.
        path: numbers of options in the order of the target.
        size: number of source words.
    """
    features = np.zeros(NUM_FEATURES)
    context = np.zeros(max(1, tables.lm_order - 1), dtype=np.int64)
    context[0] = BOS
    last = np.array([NONE, NONE, NONE, min(1, tables.lm_order - 1)])
    for option in path:
        start, end, pair = options.starts[option], options.ends[option], options.pairs[option]
        add_phrase_features(tables, pair, features)
        add_order_features(tables, last, start, end, pair, context, features)
    add_end_features(tables, last, size, context, features)
    return features
