"""A slow oracle of Show, Attend and Tell, from Xu et al. (2015, arXiv 1502.03044), in NumPy float64.

One image, one sentence, one word at a time; every vector is a column. An image is its L annotations a_i, (L, D).
A sentence is the ids (start word or None, y_1 ... y_C); y_C is the end word. None is no word at all, E y_0 = 0,
with which the authors' code (github.com/kelvinxu/arctic-captions) begins.

    E (m, K)                                      word embeddings, one column each
    W_ky (n, m), W_kh (n, n), W_kz (n, D), b_k    for k in i, f, o, g: T of eq. 1, affine
    W_att (A, D), U_att (A, n), b_att (A,), v_att (A,)     f_att of eq. 4
    w_beta (n,), b_beta (1,)                      f_beta of section 4.2.1; without w_beta there is no gate
    W_init_c, W_init_h (n, D), b_init_c, b_init_h (n,)     the two MLPs of the first state
    L_o (K, m), L_h (m, n), L_z (m, D), b_L (m,), b_out (K,)   eq. 7

Absent biases are zero. Printed are none but those inside the affine T; the authors' code has all of them. Where
the paper is silent, the oracle reads it so:

- f_att is "a multilayer perceptron": v_att . tanh(W_att a_i + U_att h_{t-1} + b_att), as in the authors' code,
  whose last bias the softmax takes out again. f_init,c and f_init,h are one tanh layer each, as there.
- f_beta is one unit: beta_t = sigma(w_beta . h_{t-1} + b_beta), a single number for all of z_t.
- Eq. 7 has no activation. `squash=True` has L_o tanh(E y_{t-1} + L_h h_t + L_z z_t + b_L), as the code.
- z_t of the gate is what both the LSTM and the output read. Eq. 9 has no gate: for hard attention as printed,
  leave w_beta out; with it, z_t = beta_t a_{s_t}, as the code.
- Eq. 14 asks each location's alphas to sum to 1 over the C steps. All L sums together are C, so that is possible
  only if C = L (the text of a later version writes tau in place of 1).
- In section 4.1, p(s | a) is the product of eq. 8's alphas along the path s, which also know the words before:
  alpha_t is computed from h_{t-1}, of s_1 ... s_{t-1} and y_1 ... y_{t-1}. Jensen's inequality (eq. 10) still holds.
- H[s] of the gradient estimate is the sum over t of the entropies of alpha_t along the sampled path. Its mean over
  the paths is the entropy of p(s | a), but the mean of its gradient is not the gradient of that entropy: how
  the path's probability changes is left out. With lambda_e = 0 the estimate is unbiased for lambda_r = 1.
- "With probability 0.5 for a given image, we set the sampled attention location to its expected value": such an
  image has the contexts of soft attention; the oracle has both, and does not draw.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from oracle_recurrent import log_softmax, numerical_gradient, sigmoid

Array = NDArray[np.float64]
Parameters = Mapping[str, Array]
State = tuple[Array, Array]  # h_t and c_t
Sentence = Sequence[int | None]


@dataclass(frozen=True)
class Step:
    """Results of step t."""

    log_probs: Array  # natural log of p(y_t | ...), (K,)
    alpha: Array  # (L,), before the choice of hard attention
    beta: float  # 1 without a gate
    context: Array  # z_t, (D,), gated
    state: State


def initial_state(theta: Parameters, annotations: Array) -> State:
    """h_0 and c_0 of section 3.1.2, from the mean annotation."""
    mean = sum(annotations) / len(annotations)
    h = np.tanh(theta["W_init_h"] @ mean + theta.get("b_init_h", 0.0))
    return h, np.tanh(theta["W_init_c"] @ mean + theta.get("b_init_c", 0.0))


def lstm(theta: Parameters, word: Array, z: Array, state: State) -> State:
    """Eqs. 1-3: T reads (E y_{t-1}, h_{t-1}, z_t)."""
    h, c = state
    total = {
        k: theta[f"W_{k}y"] @ word + theta[f"W_{k}h"] @ h + theta[f"W_{k}z"] @ z + theta.get(f"b_{k}", 0.0)
        for k in "ifog"
    }
    c = sigmoid(total["f"]) * c + sigmoid(total["i"]) * np.tanh(total["g"])  # eq. 2
    return sigmoid(total["o"]) * np.tanh(c), c  # eq. 3


def attend(theta: Parameters, annotations: Array, h: Array) -> Array:
    """alpha_t of eqs. 4-6 (e_ti and its softmax), (L,)."""
    energies = np.zeros(len(annotations))
    for i, a in enumerate(annotations):
        energies[i] = theta["v_att"] @ np.tanh(theta["W_att"] @ a + theta["U_att"] @ h + theta.get("b_att", 0.0))
    return np.exp(log_softmax(energies))


def step(
    theta: Parameters,
    annotations: Array,
    previous: int | None,
    state: State,
    location: int | None = None,
    squash: bool = False,
) -> Step:
    """One step from y_{t-1}: soft attention (eq. 13), or the `location` s_t of hard attention (eq. 9)."""
    word = np.zeros(theta["E"].shape[0]) if previous is None else theta["E"][:, previous]
    alpha = attend(theta, annotations, state[0])
    beta = 1.0
    if "w_beta" in theta:
        beta = float(sigmoid(theta["w_beta"] @ state[0] + theta.get("b_beta", np.zeros(1))[0]))
    z = np.zeros(annotations.shape[1])
    for i, a in enumerate(annotations):
        z = z + beta * (alpha[i] if location is None else float(i == location)) * a
    state = lstm(theta, word, z, state)
    inner = word + theta["L_h"] @ state[0] + theta["L_z"] @ z + theta.get("b_L", 0.0)
    logits = theta["L_o"] @ (np.tanh(inner) if squash else inner) + theta.get("b_out", 0.0)  # eq. 7
    return Step(log_softmax(logits), alpha, beta, z, state)


def run(
    theta: Parameters, annotations: Array, sentence: Sentence, path: Sequence[int] | None = None, squash: bool = False
) -> list[Step]:
    """All steps of a sentence; `path` are the locations s_1 ... s_C of hard attention, None soft attention."""
    state = initial_state(theta, annotations)
    steps = []
    for t, previous in enumerate(sentence[:-1]):
        steps.append(step(theta, annotations, previous, state, None if path is None else path[t], squash))
        state = steps[-1].state
    return steps


def log_prob(steps: Sequence[Step], sentence: Sentence) -> float:
    """Natural log of p(y | ...), all of y_1 ... y_C."""
    return sum(float(one.log_probs[word]) for one, word in zip(steps, sentence[1:], strict=True) if word is not None)


# Soft attention


def soft_loss(theta: Parameters, annotations: Array, sentence: Sentence, penalty: float) -> float:
    """L_d of eq. 14 for one sentence: -log p(y | x) + lambda sum_i (1 - sum_t alpha_ti)^2; `penalty` is lambda."""
    steps = run(theta, annotations, sentence)
    total = 0.0
    for i in range(len(annotations)):
        total += (1.0 - sum(float(one.alpha[i]) for one in steps)) ** 2
    return -log_prob(steps, sentence) + penalty * total


# Hard attention


@dataclass(frozen=True)
class Path:
    """What one sequence of locations s gives."""

    log_words: float  # log p(y | s, a)
    log_path: float  # log p(s | a)
    entropy: float  # of alpha_1 ... alpha_C along s, summed


def follow(theta: Parameters, annotations: Array, sentence: Sentence, path: Sequence[int]) -> Path:
    """One path of eqs. 8 and 9."""
    steps = run(theta, annotations, sentence, path)
    log_path = sum(math.log(one.alpha[location]) for one, location in zip(steps, path, strict=True))
    entropy = -sum(float(p) * math.log(p) for one in steps for p in one.alpha)
    return Path(log_prob(steps, sentence), log_path, entropy)


def all_paths(annotations: Array, sentence: Sentence) -> list[tuple[int, ...]]:
    """The L^C sequences of locations."""
    return list(product(range(len(annotations)), repeat=len(sentence) - 1))


def lower_bound(theta: Parameters, annotations: Array, sentence: Sentence) -> float:
    """L_s of eq. 10: the sum over all paths s of p(s | a) log p(y | s, a)."""
    total = 0.0
    for path in all_paths(annotations, sentence):
        one = follow(theta, annotations, sentence, path)
        total += math.exp(one.log_path) * one.log_words
    return total


def lower_bound_gradient(theta: Parameters, annotations: Array, sentence: Sentence) -> dict[str, Array]:
    """Eq. 11, all paths summed, by numerical differentiation of eq. 10."""
    return numerical_gradient(lambda moved: lower_bound(moved, annotations, sentence), theta)


def expected_gradient(
    theta: Parameters,
    annotations: Array,
    sentence: Sentence,
    *,
    baseline: float = 0.0,
    reinforce: float = 1.0,
    entropy: float = 0.0,
) -> dict[str, Array]:
    """Mean of the gradient estimate of section 4.1, with variance reduction, over s~ drawn from p(s | a).

    sum_s p(s | a) [ d log p(y | s, a) + lambda_r (log p(y | s, a) - b) d log p(s | a) + lambda_e d H[s] ], all paths.

    Args:
        theta: the weights W.
        annotations: (L, D).
        sentence: start word or None, and y_1 ... y_C.
        baseline: b; it, p(s | a) and the log p(y | ...) before d log p(s | a) are constants.
        reinforce: lambda_r.
        entropy: lambda_e.
    """
    paths = [(path, follow(theta, annotations, sentence, path)) for path in all_paths(annotations, sentence)]

    def surrogate(moved: Parameters) -> float:
        total = 0.0
        for path, drawn in paths:
            one = follow(moved, annotations, sentence, path)
            reward = drawn.log_words - baseline
            total += math.exp(drawn.log_path) * (
                one.log_words + reinforce * reward * one.log_path + entropy * one.entropy
            )
        return total

    return numerical_gradient(surrogate, theta)


def moving_baseline(log_probs: Sequence[float], first: float = 0.0) -> list[float]:
    """b_0, b_1, ...: b_k = 0.9 b_{k-1} + 0.1 log p(y | s~_k, a), one value of log p for each mini-batch k."""
    baselines = [first]
    for value in log_probs:
        baselines.append(0.9 * baselines[-1] + 0.1 * value)
    return baselines
