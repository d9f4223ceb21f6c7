"""A slow oracle of recurrent networks, from the printed equations, in NumPy float64.

One sentence, one step at a time; every vector is a column, y = W x. The lecture ("Recurrent Neural Network",
slides on RNNs, leaky units, LSTM and its variants) is [L]; Gers and Schmidhuber (2000) [GS]; Cho et al. (2014)
[C]; Greff et al. (2017) [G]; Pascanu et al. (2014) [P]; Graves et al. (2007) [MD].

A cell is a function `step(theta, x, state) -> state`. A state is a tuple of vectors whose first is h: (h,) or,
for an LSTM, (h, c). Sizes are X of an input, H of the states, Y of an output, V of a conditioning vector.

    rnn_step     W_xh (H, X), W_hh (H, H), b_h (H,)
    leaky_step   the same and tau (H,), the time constant of each unit
    lstm_step    for k in i, f, o, c: W_xk (H, X), W_hk (H, H), b_k (H,); any of the peepholes W_ci, W_cf, W_co,
                 each (H,) for one weight per unit [GS, G] or (H, H) for the matrix that [L] prints
    gru_step     for k in r, z, h: W_xk (H, X), W_hk (H, H), b_k (H,); with reset after the product also b_hh (H,)

An absent bias (all of b_...) is zero. Where sources differ or say nothing, the oracle reads them so:

- The output layer is W_hy (Y, H) and b_y (Y,); [L] writes W_hz and b_z, names that the gate z of the GRU needs.
- [L] prints the leaky unit as h_{t+1} from x_t and h_t; here, as in all other cells, h_t reads x_t.
- The output gate's peephole reads the new cell c_t, those of the other gates c_{t-1} [L, GS, G].
- Coupled gates have no weights of an input gate, since i_t = 1 - f_t [L]. [G] has no weights of a forget gate,
  f_t = 1 - i_t: the same network with W_xf = -W_xi and so on.
- `update` of the GRU: 'lecture' is h_t = (1 - z) h_{t-1} + z h~ [L]; 'cho' is z h_{t-1} + (1 - z) h~ ([C] and
  torch). `reset`: 'before' is W_hh (r * h_{t-1}) [C, L]; 'after' is r * (W_hh h_{t-1} + b_hh) (cuDNN and torch).
- States before the first step are zero unless given. A sentence that is shorter than its row ends at its length:
  outputs behind it are zero, and its last state is the one at its last word.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Parameters = Mapping[str, Array]
State = tuple[Array, ...]
Step = Callable[[Parameters, Array, State], State]
Activation = Literal["tanh", "relu"]


def sigmoid(x: Array) -> Array:
    """The logistic function, 1 / (1 + exp(-x)), without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def log_softmax(energies: Array) -> Array:
    """Natural log of the softmax, safe for large energies."""
    shifted = energies - energies.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def softmax(energies: Array) -> Array:
    return np.exp(log_softmax(energies))


def activate(x: Array, activation: Activation) -> Array:
    return np.maximum(x, 0.0) if activation == "relu" else np.tanh(x)


def bias(theta: Parameters, name: str) -> Array | float:
    return theta.get(name, 0.0)


# Cells


def rnn_step(theta: Parameters, x: Array, state: State, activation: Activation = "tanh") -> State:
    """[L] "A vanilla RNN": h_t = tanh(W_xh x_t + W_hh h_{t-1} + b_h), or ReLU."""
    return (activate(theta["W_xh"] @ x + theta["W_hh"] @ state[0] + bias(theta, "b_h"), activation),)


def leaky_step(theta: Parameters, x: Array, state: State, activation: Activation = "tanh") -> State:
    """[L] "Leaky units": (1 - 1 / tau_i) h_{t-1} + 1 / tau_i tanh(W_xh x_t + W_hh h_{t-1} + b_h) for each unit i."""
    (new,) = rnn_step(theta, x, state, activation)
    h = np.zeros_like(new)
    for i in range(len(h)):
        h[i] = (1.0 - 1.0 / theta["tau"][i]) * state[0][i] + 1.0 / theta["tau"][i] * new[i]
    return (h,)


def lstm_step(theta: Parameters, x: Array, state: State, coupled: bool = False) -> State:
    """[L] "LSTM net", with the peepholes that theta has, and with i_t = 1 - f_t if `coupled`."""
    h, c = state

    def total(gate: str, cell: Array | None = None) -> Array:
        value = theta[f"W_x{gate}"] @ x + theta[f"W_h{gate}"] @ h + bias(theta, f"b_{gate}")
        peephole = theta.get(f"W_c{gate}") if cell is not None else None
        if peephole is None:
            return np.asarray(value)
        return np.asarray(value + (peephole * cell if peephole.ndim == 1 else peephole @ cell))

    f = sigmoid(total("f", c))
    i = 1.0 - f if coupled else sigmoid(total("i", c))
    g = np.tanh(total("c"))
    new = f * c + i * g
    o = sigmoid(total("o", new))
    return (o * np.tanh(new), new)


def gru_step(
    theta: Parameters,
    x: Array,
    state: State,
    reset: Literal["before", "after"] = "before",
    update: Literal["lecture", "cho"] = "lecture",
) -> State:
    """[L] "Variants on LSTM (GRU)"; [C] eqs. 5-8."""
    (h,) = state
    r = sigmoid(theta["W_xr"] @ x + theta["W_hr"] @ h + bias(theta, "b_r"))
    z = sigmoid(theta["W_xz"] @ x + theta["W_hz"] @ h + bias(theta, "b_z"))
    recurrent = theta["W_hh"] @ (r * h) if reset == "before" else r * (theta["W_hh"] @ h + bias(theta, "b_hh"))
    proposal = np.tanh(theta["W_xh"] @ x + recurrent + bias(theta, "b_h"))
    return ((1.0 - z) * h + z * proposal if update == "lecture" else z * h + (1.0 - z) * proposal,)


def deep_transition_step(
    theta: Parameters,
    x: Array,
    state: State,
    activation: Activation = "tanh",
    skip: Literal["none", "matrix"] = "none",
) -> State:
    """[L] "deep hidden-to-hidden transformation", (b), and with skip connections, (c); [P] DT-RNN and DT(S)-RNN.

    The first layer is `rnn_step`; after it come W_1 (H, H), b_1 (H,), W_2 ... as many as theta has:
    u_0 = act(W_xh x_t + W_hh h_{t-1} + b_h), u_k = act(W_k u_{k-1} + b_k), h_t = u_K.

    `skip` 'matrix' adds W_skip h_{t-1}, W_skip (H, H), inside the last activation, so that a linear path goes
    round the intermediate layers; with W_skip = 1 it is an identity.
    """
    (u,) = rnn_step(theta, x, state, activation)
    depth = sum(name.startswith("W_") and name[2:].isdigit() for name in theta)
    for k in range(1, depth + 1):
        total = theta[f"W_{k}"] @ u + bias(theta, f"b_{k}")
        if skip == "matrix" and k == depth:
            total = total + theta["W_skip"] @ state[0]
        u = activate(total, activation)
    return (u,)


# Sequences


def run(step: Step, theta: Parameters, inputs: Array, initial: State) -> list[State]:
    """The states after each row of `inputs`, (T, X): h_t = F(h_{t-1}, x_t)."""
    states = [initial]
    for x in inputs:
        states.append(step(theta, x, states[-1]))
    return states[1:]


def outputs_of(states: Sequence[State]) -> Array:
    """The h_t of some states, (T, H)."""
    return np.array([state[0] for state in states])


def run_stacked(step: Step, thetas: Sequence[Parameters], inputs: Array, initial: Sequence[State]) -> list[list[State]]:
    """[L] "a hierarchy of RNNs": layer l reads h_t of layer l - 1; the states of each layer."""
    layers, below = [], inputs
    for theta, first in zip(thetas, initial, strict=True):
        layers.append(run(step, theta, below, first))
        below = outputs_of(layers[-1])
    return layers


def run_bidirectional(
    step: Step, forward: Parameters, backward: Parameters, inputs: Array, initial: tuple[State, State]
) -> Array:
    """[L] "Bidirectional RNNs": [g_t ; h_t], g_t of x_1 ... x_t and h_t of x_T ... x_t, (T, 2 H)."""
    g = outputs_of(run(step, forward, inputs, initial[0]))
    h = outputs_of(run(step, backward, inputs[::-1], initial[1]))[::-1]
    return np.concatenate([g, h], axis=1)


def run_padded(encode: Callable[[Array], Array], inputs: Array, lengths: Sequence[int]) -> tuple[Array, Array]:
    """Sentences of unequal lengths in one array (N, T, X), each by itself; none is empty.

    `encode` gives the outputs of one sentence: (T, X) to (T, H).

    Returns:
        Outputs (N, T, H), zero behind the length, and the output at the last word of each sentence, (N, H).
    """
    rows = []
    for sentence, length in zip(inputs, lengths, strict=True):
        known = encode(sentence[:length])
        row = np.zeros((len(sentence), known.shape[1]))
        row[:length] = known
        rows.append(row)
    return np.array(rows), np.array([row[length - 1] for row, length in zip(rows, lengths, strict=True)])


def run_long_delay(theta: Parameters, inputs: Array, delay: int, initial: Array) -> Array:
    """[L] "Longer-delay connections": h_t = tanh(W_xh x_t + W_hh h_{t-1} + W_delay h_{t-D} + b_h), (T, H).

    W_delay is (H, H); W_hh may be absent. h_0 is `initial`, and h_k of k < 0 is zero.
    """
    states = [initial]
    for t, x in enumerate(inputs, start=1):
        total = theta["W_xh"] @ x + bias(theta, "b_h")
        if "W_hh" in theta:
            total = total + theta["W_hh"] @ states[t - 1]
        if t >= delay:
            total = total + theta["W_delay"] @ states[t - delay]
        states.append(np.tanh(total))
    return np.array(states[1:])


# Outputs and losses


def output_log_probs(theta: Parameters, h: Array) -> Array:
    """Natural log of z_t = softmax(W_hy h_t + b_y), [L]; h_t first goes through V_1, a_1, V_2 ... if theta has any.

    Those are the "depth in the hidden-to-output transform": u_k = tanh(V_k u_{k-1} + a_k), V_k (U_k, U_{k-1}).
    """
    depth = sum(name.startswith("V_") for name in theta)
    for k in range(1, depth + 1):
        h = np.tanh(theta[f"V_{k}"] @ h + bias(theta, f"a_{k}"))
    return log_softmax(theta["W_hy"] @ h + bias(theta, "b_y"))


def run_output_recurrence(
    theta: Parameters, inputs: Array, first: Array, targets: Array | None = None
) -> tuple[Array, Array]:
    """[L] "Network with output recurrence": h_t = tanh(W_xh x_t + W_yh y_{t-1} + b_h), y_t = softmax(W_hy h_t + b_y).

    Where theta also has W_hh, h_{t-1} is read too: the dash lines of [L] "RNNs to represent P(y | x)".

    Args:
        theta: W_xh (H, X), W_yh (H, Y), b_h (H,), W_hy (Y, H), b_y (Y,) and perhaps W_hh (H, H).
        inputs: x_1 ... x_T, (T, X).
        first: y_0, (Y,).
        targets: the y_1 ... y_T that are read in place of the predictions, (T, Y), in training.

    Returns:
        h_1 ... h_T, (T, H), and the predictions z_1 ... z_T, (T, Y).
    """
    h, y = np.zeros(theta["W_hy"].shape[1]), first
    hidden, outputs = [], []
    for t, x in enumerate(inputs):
        total = theta["W_xh"] @ x + theta["W_yh"] @ y + bias(theta, "b_h")
        if "W_hh" in theta:
            total = total + theta["W_hh"] @ h
        h = np.tanh(total)
        hidden.append(h)
        outputs.append(np.exp(output_log_probs(theta, h)))
        y = outputs[-1] if targets is None else targets[t]
    return np.array(hidden), np.array(outputs)


# Two dimensions

# Rows and columns of a scan, +1 or -1, in the order of the outputs
DIRECTIONS = ((1, 1), (1, -1), (-1, 1), (-1, -1))


def run_grid(theta: Parameters, grid: Array, direction: tuple[int, int]) -> Array:
    """One direction over a grid (R, C, X), [MD] eq. of the hidden layer; (R, C, H).

    h_{r,c} = tanh(W_xh x_{r,c} + W_row h_{r-dr,c} + W_col h_{r,c-dc} + b_h), where `direction` is (dr, dc): the
    scan goes down the rows if dr = 1 and up if -1, along a row to the right if dc = 1 and to the left if -1. A
    predecessor outside the grid is zero. W_row and W_col are (H, H).
    """
    rows, columns = grid.shape[:2]
    dr, dc = direction
    h = np.zeros((rows, columns, theta["W_row"].shape[0]))
    for r in range(rows)[::dr]:
        for c in range(columns)[::dc]:
            total = theta["W_xh"] @ grid[r, c] + bias(theta, "b_h")
            if 0 <= r - dr < rows:
                total = total + theta["W_row"] @ h[r - dr, c]
            if 0 <= c - dc < columns:
                total = total + theta["W_col"] @ h[r, c - dc]
            h[r, c] = np.tanh(total)
    return h


def run_four_directions(thetas: Sequence[Parameters], grid: Array) -> Array:
    """[L] "2D input with four RNN going in four directions": concatenated as in `DIRECTIONS`, (R, C, 4 H)."""
    return np.concatenate(
        [run_grid(theta, grid, direction) for theta, direction in zip(thetas, DIRECTIONS, strict=True)], axis=2
    )


# Gradients through time


def state_jacobian(step: Step, theta: Parameters, inputs: Array, state: State, epsilon: float = 1e-6) -> Array:
    """d h_t / d h_k by central differences, (H, H): `state` is that at k, `inputs` are x_{k+1} ... x_t.

    For an LSTM c_k is held fixed.
    """
    size = len(state[0])
    jacobian = np.zeros((size, size))
    for j in range(size):
        ends = []
        for sign in (1.0, -1.0):
            h = state[0].copy()
            h[j] += sign * epsilon
            last = (h, *state[1:])
            for x in inputs:
                last = step(theta, x, last)
            ends.append(last[0])
        jacobian[:, j] = (ends[0] - ends[1]) / (2.0 * epsilon)
    return jacobian


def numerical_gradient(
    function: Callable[[Parameters], float], theta: Parameters, epsilon: float = 1e-5
) -> dict[str, Array]:
    """The gradient of `function` at theta by central differences, for each array of theta."""
    gradient = {}
    for name, array in theta.items():
        gradient[name] = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = array.copy()
                moved[index] += sign * epsilon
                ends.append(function({**theta, name: moved}))
            gradient[name][index] = (ends[0] - ends[1]) / (2.0 * epsilon)
    return gradient


relu_step: Step = partial(rnn_step, activation="relu")
coupled_lstm_step: Step = partial(lstm_step, coupled=True)
torch_gru_step: Step = partial(gru_step, reset="after", update="cho")
