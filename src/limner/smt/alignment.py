"""Word alignments of sentence pairs: IBM models 1 to 4 and hidden Markov models, both directions, symmetrised.

Brown et al. (1993) and Vogel et al. (1996) for the models, by `thot`; Koehn et al. (2003), section 3.1, and Koehn et
al. (2005) for grow-diag-final-and.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limner.compiled import compiled
from limner.errors import MissingExtraError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

ITERATIONS = {
    "ibm1": {"Ibm1": 5},
    "ibm2": {"Ibm1": 5, "Ibm2": 5},
    "hmm": {"Ibm1": 5, "Hmm": 5},
    "ibm3": {"Ibm1": 5, "Hmm": 5, "Ibm3": 3},
    "ibm4": {"Ibm1": 5, "Hmm": 5, "Ibm3": 3, "Ibm4": 3},
}
"""Iterations of each model, which starts from the one before it; of IBM model 4 as Koehn et al. (2007) run GIZA++."""


def align(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], model: str = "ibm4") -> list[Bools]:
    """Align the words of sentence pairs.

    Args:
        sources: token ids of the source sentences, none of them empty.
        targets: token ids of the target sentences.
        model: name of the alignment model, of `ITERATIONS`.

    Returns:
        For each pair, whether source word i and target word j are aligned, (S, T).
    """
    forward = one_directional(sources, targets, model)
    backward = one_directional(targets, sources, model)
    return [symmetrise(to_target, to_source.T.copy()) for to_target, to_source in zip(forward, backward, strict=True)]


def one_directional(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], model: str) -> list[Bools]:
    """Align every target word with one source word or none: Viterbi alignments of the model, (S, T) for each pair."""
    try:
        from thot import alignment as thot
    except ImportError:
        raise MissingExtraError("word alignments need sil-thot", "smt") from None
    pairs = [([*map(str, source)], [*map(str, target)]) for source, target in zip(sources, targets, strict=True)]
    trained: Any = thot.Ibm1AlignmentModel()
    for source, target in pairs:
        trained.add_sentence_pair(source, target)
    for name, iterations in ITERATIONS[model].items():
        if name != "Ibm1":
            trained = getattr(thot, f"{name}AlignmentModel")(trained)
        _train(trained, iterations)
    best = trained.get_best_alignments([source for source, _ in pairs], [target for _, target in pairs])
    return [np.asarray(matrix.to_numpy()).astype(bool) for _, matrix in best]


def _train(model: Any, iterations: int) -> None:  # noqa: ANN401  (thot has no types)
    model.start_training()
    for _ in range(iterations):
        model.train()
    model.end_training()


@compiled
def symmetrise(forward: Bools, backward: Bools) -> Bools:
    """Combine the alignments of both directions, (S, T): grow-diag-final-and, Koehn et al. (2005).

    Points of the intersection are kept. A point of the union is added while it is a neighbour, diagonals included, of
    an aligned point and one of its words has no alignment (grow-diag); the aligned points are visited by source word,
    then by target word, until none is added. Then points of each direction are added whose words both have no alignment
    (final-and): those of `forward`, where each target word has at most one source word, first.
    """
    height, width = forward.shape
    result = forward & backward
    rows, columns = np.zeros(height, dtype=np.bool_), np.zeros(width, dtype=np.bool_)
    for i in range(height):
        for j in range(width):
            if result[i, j]:
                rows[i] = columns[j] = True
    added = True
    while added:
        added = False
        for i in range(height):
            for j in range(width):
                if not result[i, j]:
                    continue
                for di, dj in ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)):
                    y, x = i + di, j + dj
                    if not (0 <= y < height and 0 <= x < width) or result[y, x]:
                        continue
                    if (forward[y, x] or backward[y, x]) and not (rows[y] and columns[x]):
                        result[y, x] = rows[y] = columns[x] = True
                        added = True
    for direction in (forward, backward):
        for i in range(height):
            for j in range(width):
                if direction[i, j] and not rows[i] and not columns[j]:
                    result[i, j] = rows[i] = columns[j] = True
    return result
