"""A slow oracle of Show and Tell, from the equations of Vinyals et al. (2015, arXiv 1411.4555), in NumPy float64.

One image, one sentence, one word at a time; every vector is a column. A sentence is the ids
(S_0 start word, S_1 ... S_N stop word); an image is its vector CNN(I), (D,), before the layer that learns.

    W_I (X, D), b_I (X,)           the image's way into the space of the words
    W_e (X, V)                     word embeddings, one column each, x_t = W_e S_t
    W_kx (n, X), W_km (n, n)       for k in i, f, o, c
    b_k (n,)                       for k in i, f, o, c
    W_p (V, n), b_p (V,)           the softmax layer

Absent biases are zero: zero biases, and `squash=False`, are the printed equations. Where the paper is silent or
the printed equation is not what one runs, the oracle reads it so:

- eq. 8 prints m_t = o_t * c_t, without tanh. `squash=True` is m_t = o_t * tanh(c_t), as in most LSTMs.
- eq. 9 prints Softmax(m_t). A vocabulary is not as large as the memory, so W_p is meant; without W_p in theta the
  equation is as printed, and then n = V.
- eq. 10 prints x_{-1} = CNN(I), whose top layer learns ("W_I"): x_{-1} = W_I CNN(I) + b_I. Without W_I in theta
  x_{-1} is the vector itself, and then X = D.
- The state before t = -1 is zero, and the output at t = -1 is not used: the first prediction is p_1, from S_0.
- h(.) in eq. 7 is tanh (the paper says so below eq. 9).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from oracle_recurrent import log_softmax, sigmoid

Array = NDArray[np.float64]
Parameters = Mapping[str, Array]
State = tuple[Array, Array]  # m_t and c_t


def lstm(theta: Parameters, x: Array, state: State, squash: bool = False) -> State:
    """Eqs. 4-8."""
    m, c = state

    def total(gate: str) -> Array:
        return np.asarray(theta[f"W_{gate}x"] @ x + theta[f"W_{gate}m"] @ m + theta.get(f"b_{gate}", 0.0))

    i = sigmoid(total("i"))  # eq. 4
    f = sigmoid(total("f"))  # eq. 5
    o = sigmoid(total("o"))  # eq. 6
    c = f * c + i * np.tanh(total("c"))  # eq. 7
    return o * (np.tanh(c) if squash else c), c  # eq. 8


def image_state(theta: Parameters, image: Array, squash: bool = False) -> State:
    """The state after the image, which enters once at t = -1 (eq. 10)."""
    x = theta["W_I"] @ image + theta.get("b_I", 0.0) if "W_I" in theta else image
    zero = np.zeros(theta["W_im"].shape[0])
    return lstm(theta, x, (zero, zero), squash)


def step(theta: Parameters, word: int, state: State, squash: bool = False) -> tuple[Array, State]:
    """Natural log of p_{t+1} over all words, (V,), and the state, from S_t (eqs. 9, 11 and 12)."""
    state = lstm(theta, theta["W_e"][:, word], state, squash)
    energies = theta["W_p"] @ state[0] if "W_p" in theta else state[0]
    return log_softmax(energies + theta.get("b_p", 0.0)), state


def next_word_log_probs(theta: Parameters, image: Array, words: Sequence[int], squash: bool = False) -> Array:
    """Natural log of p_1 ... p_{len(words)} given S_0 ... in `words`, (len(words), V)."""
    state = image_state(theta, image, squash)
    rows = []
    for word in words:
        log_probs, state = step(theta, word, state, squash)
        rows.append(log_probs)
    return np.array(rows)
