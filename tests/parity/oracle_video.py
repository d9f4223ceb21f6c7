"""A slow oracle of video captioners, from the printed equations, in NumPy float64.

One clip, one word at a time. Venugopalan et al. (2015) [V], section 3: the frames are averaged, and in every step the
first of two LSTMs reads the previous word and the average, the second one the hidden state of the first. Donahue et al.
(2015) [D], section 4.2: unfactored (1u, 2u) the lowest LSTM reads the image, factored (2f) the second one does. Yao et
al. (2015) [Y], section 3.2: weights of the frames from the previous state. theta has

    lstm        one dictionary of `oracle_recurrent.lstm_step` for each layer; the inputs of the layer that reads the
                clip are [lower state or word ; clip]
    E (V, X)    word vectors, W_o (V, H) and b_o (V,) the output layer
    attention   W_a (A, D), U_a (A, H), b_a (A,), u (A,); absent for the mean
    frames      a dictionary of `lstm_step` over the frames; absent if the frames are read as they are
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from oracle_recurrent import Array, State, log_softmax, lstm_step, softmax

Parameters = Mapping[str, Any]


def encode_frames(theta: Parameters, frames: Array) -> Array:
    """g_1, ..., g_L of an LSTM over the frames, or the frames themselves."""
    if "frames" not in theta:
        return frames
    size = len(theta["frames"]["b_f"])
    state: State = (np.zeros(size), np.zeros(size))
    states = []
    for frame in frames:
        state = lstm_step(theta["frames"], frame, state)
        states.append(state[0])
    return np.array(states)


def summarise(theta: Parameters, frames: Array, hidden: Array, kind: str) -> tuple[Array, Array]:
    """The clip in one step, and the weight of each frame: [V] the mean, the last state, or [Y] attention."""
    count = len(frames)
    if kind == "mean":
        weights = np.full(count, 1 / count)
    elif kind == "last":
        weights = np.eye(count)[-1]
    else:
        a = theta["attention"]
        energies = [a["u"] @ np.tanh(a["W_a"] @ f + a["U_a"] @ hidden + a["b_a"]) for f in frames]
        weights = softmax(np.array(energies))
    clip = np.zeros(frames.shape[1])
    for weight, frame in zip(weights, frames, strict=True):
        clip += weight * frame
    return clip, weights


def log_probs(
    theta: Parameters, frames: Array, words: Sequence[int], visual_layer: int, kind: str
) -> tuple[Array, Array]:
    """ln p of every word of the vocabulary after each of the given words, (T, V), and the weights of frames (T, L)."""
    encoded = encode_frames(theta, frames)
    states: list[State] = [(np.zeros(len(one["b_f"])), np.zeros(len(one["b_f"]))) for one in theta["lstm"]]
    rows, attention = [], []
    for word in words:
        below = theta["E"][word]
        for layer, lstm in enumerate(theta["lstm"], start=1):
            if layer == visual_layer:
                clip, weights = summarise(theta, encoded, states[layer - 1][0], kind)
                attention.append(weights)
                below = np.concatenate([below, clip])
            states[layer - 1] = lstm_step(lstm, below, states[layer - 1])
            below = states[layer - 1][0]
        rows.append(log_softmax(theta["W_o"] @ below + theta["b_o"]))
    return np.array(rows), np.array(attention)
