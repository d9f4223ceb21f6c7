"""A slow oracle of the discrete hidden Markov model, from Rabiner (1989, Proc. IEEE 77:257), in NumPy float64.

    pi (N,)       pi_i = P(h_1 = i)
    A (N, N)      A_ij = P(h_{t+1} = j | h_t = i), a row for each state it leaves
    B (N, M)      B_ik = P(x_t = k | h_t = i), a row for each state

A sentence is the ids x_1 ... x_T. The model itself never stops: P(x_1 ... x_T) are probabilities among sequences
of one length. Where sentences end, the end token is their last id, an ordinary symbol that the state h_T emits;
no transition follows it. The probabilities of all sentences that hold the end token at their end, and there only,
then add up to 1 as far as the end token is sure to come. An empty sentence is (end token,).

Nothing is scaled: the oracle is for short sentences. Numbers in the form eq. 20 are Rabiner's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Words = Sequence[int]


@dataclass(frozen=True)
class Hmm:
    pi: Array
    A: Array
    B: Array


def joint(hmm: Hmm, path: Sequence[int], words: Words) -> float:
    """P(x_1 ... x_T, h_1 ... h_T): P(h_1), times the transitions, times the emissions (eqs. 13-15)."""
    p = float(hmm.pi[path[0]])
    for before, after in pairwise(path):
        p *= hmm.A[before, after]
    for state, word in zip(path, words, strict=True):
        p *= hmm.B[state, word]
    return float(p)


def paths(hmm: Hmm, words: Words) -> list[tuple[int, ...]]:
    """The N^T sequences of states."""
    return list(product(range(len(hmm.pi)), repeat=len(words)))


def best_path_by_enumeration(hmm: Hmm, words: Words) -> tuple[tuple[int, ...], float]:
    """What the Viterbi algorithm finds (eqs. 30-35), and log P of it with the words; of equals, the smallest ids."""
    best = max(paths(hmm, words), key=lambda path: joint(hmm, path, words))
    return best, math.log(joint(hmm, best, words))


def forward(hmm: Hmm, words: Words) -> Array:
    """alpha_t(i) = P(x_1 ... x_t, h_t = i), (T, N), eqs. 18-20."""
    size = len(hmm.pi)
    alpha = np.zeros((len(words), size))
    for i in range(size):
        alpha[0, i] = hmm.pi[i] * hmm.B[i, words[0]]  # eq. 19
    for t in range(1, len(words)):
        for j in range(size):
            total = sum(alpha[t - 1, i] * hmm.A[i, j] for i in range(size))
            alpha[t, j] = total * hmm.B[j, words[t]]  # eq. 20
    return alpha


def backward(hmm: Hmm, words: Words) -> Array:
    """beta_t(i) = P(x_{t+1} ... x_T | h_t = i), (T, N), eqs. 23-25."""
    size = len(hmm.pi)
    beta = np.ones((len(words), size))  # eq. 24
    for t in range(len(words) - 2, -1, -1):
        for i in range(size):
            beta[t, i] = sum(hmm.A[i, j] * hmm.B[j, words[t + 1]] * beta[t + 1, j] for j in range(size))  # eq. 25
    return beta


def log_likelihood(hmm: Hmm, words: Words) -> float:
    """Natural log of eq. 21."""
    return math.log(forward(hmm, words)[-1].sum())


def posteriors(hmm: Hmm, words: Words) -> tuple[Array, Array]:
    """gamma and xi as in `posteriors_by_enumeration`, by eqs. 27 and 37."""
    alpha, beta, size = forward(hmm, words), backward(hmm, words), len(hmm.pi)
    total = alpha[-1].sum()
    gamma = alpha * beta / total  # eq. 27
    xi = np.zeros((len(words) - 1, size, size))
    for t in range(len(words) - 1):
        for i in range(size):
            for j in range(size):
                emitted = hmm.B[j, words[t + 1]] * beta[t + 1, j]
                xi[t, i, j] = alpha[t, i] * hmm.A[i, j] * emitted / total  # eq. 37
    return gamma, xi


def expected_counts(hmm: Hmm, sentences: Sequence[Words]) -> tuple[Array, Array, Array]:
    """Expected numbers of starts (N,), transitions (N, N) and emissions (N, M) in all sentences."""
    starts, moves, emissions = np.zeros_like(hmm.pi), np.zeros_like(hmm.A), np.zeros_like(hmm.B)
    for words in sentences:
        gamma, xi = posteriors(hmm, words)
        starts += gamma[0]
        for pair in xi:
            moves += pair
        for t, word in enumerate(words):
            emissions[:, word] += gamma[t]
    return starts, moves, emissions


def baum_welch(hmm: Hmm, sentences: Sequence[Words]) -> Hmm:
    """One iteration over several sentences: eqs. 40a-40c with the sums of eqs. 109-110 over the sentences.

    Each sentence counts by its posteriors, which is the 1 / P_k of eqs. 109-110. The last state of a sentence
    leaves no transition but emits its word. A row of A or B whose expected count is zero stays as it was.
    """
    starts, moves, emissions = expected_counts(hmm, sentences)

    def normalised(counts: Array, old: Array) -> Array:
        total = counts.sum(axis=-1, keepdims=True)
        return np.where(total > 0, counts / np.where(total > 0, total, 1.0), old)

    return Hmm(normalised(starts, hmm.pi), normalised(moves, hmm.A), normalised(emissions, hmm.B))


def beliefs(hmm: Hmm, words: Words) -> Array:
    """The filter P(h_t = i | x_1 ... x_{t-1}) for t = 1 ... T + 1, (T + 1, N); its first row is pi.

    b_{t+1}(j) is proportional to the sum over i of b_t(i) B_i(x_t) A_ij.
    """
    rows = [hmm.pi]
    for word in words:
        seen = rows[-1] * hmm.B[:, word]
        rows.append((seen / seen.sum()) @ hmm.A)
    return np.array(rows)


def next_word_probs(hmm: Hmm, words: Words) -> Array:
    """P(x_t = k | x_1 ... x_{t-1}) for t = 1 ... T + 1, (T + 1, M)."""
    return beliefs(hmm, words) @ hmm.B
