"""A slow oracle of the translation decoders, from the printed equations, in NumPy float64.

Calixto, Liu and Campbell (2017), cited as [17], and Calixto, Elliott and Frank (2016), cited as [16]. One
sentence, one word at a time, nothing padded; every vector is a column, y = W x, as printed.

A target sentence is the ids (start token, y_1 ... y_M, end token): step t reads y_{t-1}, the first step the
embedding of the start token, and T = M + 1 words are predicted. A source sentence is its S ids as they are.

Names of the weights theta are in `parity_models.nmt_weights` and `independent`. Their sizes have these letters:

    Vx, dx   source vocabulary and embedding    He      states of one encoder direction; C = 2 He
    Vy, dy   target vocabulary and embedding    H       decoder states
    As, Ai   layers of the two attentions       R       read-out layer
    D        one image location                 P       the whole image's vector (FC7)

A GRU 'g' is 'g.W_z', 'g.W_r', 'g.W' for its input ('g.W_z_src' and so on where it has several), 'g.U_z',
'g.U_r', 'g.U' for its state and the biases 'g.b_z', 'g.b_r', 'g.b', 'g.b_U'.

Where the papers are silent, or contradict what they cite, the oracle reads them so:

- Every layer may have a bias; an absent one is zero. Printed are b_beta ([17] eq. 7) and b_I ([16] eq. 1).
  Not printed: the GRUs' four ([17] eq. 9), 'b_a_src' and 'b_a_img' inside the tanh of the attentions ([17]
  eqs. 2 and 5; [16] eqs. 3 and 6), 'b_L' inside the tanh and 'b_o' outside it ([17] eqs. 1 and 10),
  'b_init', and 'b_v' of the independent descriptions.
- All GRUs are as in [17] eq. 9, r * (U h); Cho et al. (2014, section 2.3) have U (r * h). 'g.b_U' stands
  inside the reset product, r * (U h + b_U). s'_j in eq. 9 is s'_t.
- The encoder's states begin at zero. Image tokens stand before the words: the forward GRU reads them first,
  the backward one last, and attention sees them as words.
- The "multilayer perceptron" of [17] 2.1 and f_init of [16] eq. 2 are one tanh layer.
- [16] does not say how its text-only decoder begins: as [17], from the two last encoder states.
- f_score of [16] eqs. 3 and 6, a "single-layer" network, is v tanh(U s_{t-1} + W h_i + Y E_y[y_{t-1}]).
- [16] prints neither its GRU's inputs nor its read-out: the GRU reads the previous word and the contexts,
  the read-out is [17] eq. 1 (eq. 10 with an image context).
- A missing image leaves its terms out: i_t = 0, beta_t = 0, i_proj = 0 (so b_I goes too), W_v v = 0.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Parameters = Mapping[str, Array]
Words = Sequence[int]

Start = Literal["text", "fc7"]


@dataclass(frozen=True)
class Step:
    """Results of decoder step t; the gate is None without a gate in the decoder, and 0 without an image."""

    logits: Array  # (Vy,), before the softmax of [17] eqs. 1 and 10
    state: Array  # s_t, (H,)
    source_alpha: Array | None = None  # (S,), head tokens counted; none without attention
    image_alpha: Array | None = None  # (L,); none without an image
    beta: float | None = None


@dataclass(frozen=True)
class Trace:
    """The steps of one sentence, stacked; none where `Step` has none."""

    logits: Array  # (T, Vy)
    states: Array  # s_1 ... s_T, (T, H)
    source_alphas: Array | None  # (T, S)
    image_alphas: Array | None  # (T, L)
    betas: Array | None  # (T,)


def sigmoid(x: Array) -> Array:
    """The logistic function, 1 / (1 + exp(-x)), without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def softmax(energies: Array) -> Array:
    """[17] eqs. 3 and 6, [16] eqs. 4 and 7; the largest energy is subtracted first for stability."""
    powers = np.exp(energies - energies.max())
    return np.asarray(powers / powers.sum())


def gru(theta: Parameters, name: str, inputs: Mapping[str, Array], state: Array) -> Array:
    """[17] eq. 9, with one term W x for each of `inputs`, which go by the suffixes of their matrices."""

    def layer(gate: str) -> Array:
        total = np.zeros_like(state)
        for suffix, x in inputs.items():
            total = total + theta[f"{name}.W{gate}{suffix}"] @ x
        return total + theta.get(f"{name}.b{gate}", 0.0)

    z = sigmoid(layer("_z") + theta[f"{name}.U_z"] @ state)
    r = sigmoid(layer("_r") + theta[f"{name}.U_r"] @ state)
    proposal = np.tanh(layer("") + r * (theta[f"{name}.U"] @ state + theta.get(f"{name}.b_U", 0.0)))
    return (1.0 - z) * proposal + z * state


def run_gru(theta: Parameters, name: str, inputs: Sequence[Array]) -> list[Array]:
    """The states after each of `inputs`, beginning at zero."""
    states = [np.zeros(theta[f"{name}.U"].shape[0])]
    for x in inputs:
        states.append(gru(theta, name, {"": x}, states[-1]))
    return states[1:]


def annotate(theta: Parameters, source: Words, head: Sequence[Array] = ()) -> Array:
    """Annotation vectors h_i = [forward h_i ; backward h_i] of [17] 2.1 and [16] 2, (S, C).

    `head` are image tokens before the words, as in Huang et al. (2016), already projected: each (dx,).
    """
    inputs = [*head, *(theta["E_x"][word] for word in source)]
    forward = run_gru(theta, "enc_fwd", inputs)
    backward = run_gru(theta, "enc_bwd", inputs[::-1])[::-1]
    return np.array([np.concatenate(pair) for pair in zip(forward, backward, strict=True)])


def initial_layer(theta: Parameters, x: Array) -> Array:
    """s_0, the one tanh layer of [17] 2.1 and of f_init in [16] eq. 2, (H,)."""
    return np.asarray(np.tanh(theta["W_init"] @ x + theta.get("b_init", 0.0)))


def start_from_text(theta: Parameters, annotations: Array) -> Array:
    """s_0 from [forward h_N ; backward h_1], [17] 2.1, (H,)."""
    half = annotations.shape[1] // 2
    return initial_layer(theta, np.concatenate([annotations[-1, :half], annotations[0, half:]]))


def start_from_fc7(theta: Parameters, annotations: Array, image: Array | None) -> Array:
    """s_0 from h_1 and the whole image's vector, (H,)."""
    if image is None:
        return initial_layer(theta, annotations[0])
    projected = image @ theta["W_I"] + theta.get("b_I", 0.0)  # [16] eq. 1
    return initial_layer(theta, annotations[0] + projected)  # [16] eq. 2


def attend(
    theta: Parameters, side: Literal["src", "img"], state: Array, vectors: Array, word: Array | None = None
) -> tuple[Array, Array]:
    """Weights alpha over `vectors`, and their sum so weighted, before the gate.

    `vectors` are the h_i (S, C) or the a_l (L, D); `state` is s'_t in [17] and s_{t-1} in [16]; `word` is
    E_y[y_{t-1}], which only [16] uses.
    """
    energies = np.zeros(len(vectors))
    for i, vector in enumerate(vectors):
        total = theta[f"U_a_{side}"] @ state + theta[f"W_a_{side}"] @ vector + theta.get(f"b_a_{side}", 0.0)
        if word is not None:
            total = total + theta[f"Y_a_{side}"] @ word
        energies[i] = theta[f"v_a_{side}"] @ np.tanh(total)  # [17] eqs. 2 and 5, [16] eqs. 3 and 6
    alpha = softmax(energies)
    context = np.zeros(vectors.shape[1])
    for weight, vector in zip(alpha, vectors, strict=True):
        context = context + weight * vector  # [17] eqs. 4 and 8, [16] eqs. 5 and 8
    return alpha, context


def read_out(
    theta: Parameters, state: Array, word: Array, source: Array | None = None, image: Array | None = None
) -> Array:
    """Logits of [17] eq. 1, or of eq. 10 where there is an image context, (Vy,)."""
    total = theta["L_s"] @ state + theta["L_w"] @ word + theta.get("b_L", 0.0)
    for matrix, context in (("L_cs", source), ("L_ci", image)):
        if context is not None:
            total = total + theta[matrix] @ context
    return np.asarray(theta["L_o"] @ np.tanh(total) + theta.get("b_o", 0.0))


def step_2017(theta: Parameters, annotations: Array, locations: Array | None, y: int, s: Array) -> Step:
    """One step of the doubly conditional GRU of [17] 3.1 from y_{t-1} and s_{t-1}; without locations of 2.2."""
    word = theta["E_y"][y]
    proposal = gru(theta, "rec1", {"": word}, s)  # REC1: s'_t
    source_alpha, c = attend(theta, "src", proposal, annotations)  # eqs. 2-4
    if locations is None:
        state = gru(theta, "rec2", {"_src": c}, proposal)  # REC2
        closed = 0.0 if "W_beta" in theta else None
        return Step(read_out(theta, state, word, c), state, source_alpha, beta=closed)  # eq. 1
    beta = float(sigmoid(theta["W_beta"] @ s + theta.get("b_beta", 0.0))[0])  # eq. 7
    image_alpha, i = attend(theta, "img", proposal, locations)  # eqs. 5-6
    i = beta * i  # eq. 8
    state = gru(theta, "rec2", {"_src": c, "_img": i}, proposal)  # eq. 9
    return Step(read_out(theta, state, word, c, i), state, source_alpha, image_alpha, beta)  # eq. 10


def step_2016(theta: Parameters, annotations: Array, locations: Array | None, y: int, s: Array) -> Step:
    """One step of [16] 2.2-2.4, or without locations of 2.3 alone, from y_{t-1} and s_{t-1}."""
    word = theta["E_y"][y]
    source_alpha, c = attend(theta, "src", s, annotations, word)  # eqs. 3-5
    if locations is None:
        state = gru(theta, "rec", {"_y": word, "_src": c}, s)
        return Step(read_out(theta, state, word, c), state, source_alpha)
    image_alpha, i = attend(theta, "img", s, locations, word)  # eqs. 6-8
    state = gru(theta, "rec", {"_y": word, "_src": c, "_img": i}, s)
    return Step(read_out(theta, state, word, c, i), state, source_alpha, image_alpha)


def step_2015(theta: Parameters, y: int, s: Array) -> Step:
    """One step of a language model without attention, from y_{t-1} and s_{t-1}."""
    word = theta["E_y"][y]
    state = gru(theta, "rec", {"": word}, s)
    return Step(read_out(theta, state, word), state)


def decode(step: Callable[[int, Array], Step], state: Array, target: Words) -> Trace:
    """All steps of `target` from s_0."""
    steps = []
    for y in target[:-1]:
        steps.append(step(y, state))
        state = steps[-1].state

    def stacked(values: Sequence[Array | float | None]) -> Array | None:
        return None if values[0] is None else np.array(values)

    return Trace(
        logits=np.array([one.logits for one in steps]),
        states=np.array([one.state for one in steps]),
        source_alphas=stacked([one.source_alpha for one in steps]),
        image_alphas=stacked([one.image_alpha for one in steps]),
        betas=stacked([one.beta for one in steps]),
    )


def nmt_2017(theta: Parameters, source: Words, target: Words, head: Sequence[Array] = ()) -> Trace:
    """The text-only model of [17] 2.1-2.2; `head` as for `annotate`."""
    annotations = annotate(theta, source, head)
    return decode(partial(step_2017, theta, annotations, None), start_from_text(theta, annotations), target)


def src_img_2017(theta: Parameters, source: Words, target: Words, locations: Array | None) -> Trace:
    """NMT_SRC+IMG of [17] 3.1; `locations` are the a_l, (L, D), or None without an image."""
    annotations = annotate(theta, source)
    return decode(partial(step_2017, theta, annotations, locations), start_from_text(theta, annotations), target)


def bahdanau_2016(theta: Parameters, source: Words, target: Words, head: Sequence[Array] = ()) -> Trace:
    """The text-only model of [16] 2.3; `head` as for `annotate`."""
    annotations = annotate(theta, source, head)
    return decode(partial(step_2016, theta, annotations, None), start_from_text(theta, annotations), target)


def fc7_2016(theta: Parameters, source: Words, target: Words, image: Array | None) -> Trace:
    """[16] 2.1: the whole image's vector, (P,), enters the decoder's first state only."""
    annotations = annotate(theta, source)
    return decode(partial(step_2016, theta, annotations, None), start_from_fc7(theta, annotations, image), target)


def doubly_attentive_2016(
    theta: Parameters,
    source: Words,
    target: Words,
    *,
    image: Array | None,
    locations: Array | None,
    start: Start = "fc7",
) -> Trace:
    """[16] 2.2-2.4, beginning as 2.1, or with `start` 'text' as the text-only model (and no `image`)."""
    annotations = annotate(theta, source)
    state = start_from_fc7(theta, annotations, image) if start == "fc7" else start_from_text(theta, annotations)
    return decode(partial(step_2016, theta, annotations, locations), state, target)


def independent_2015(theta: Parameters, source: Words, target: Words, image: Array | None) -> Trace:
    """Independent descriptions after Elliott et al. (2015), with GRUs.

    The source-language model reads the image's vector, (P,), with the first word of the sentence; its last
    state is the only input of the target-language model.
    """
    inputs = [theta["E_x"][word] for word in source]
    if image is not None:
        inputs[0] = inputs[0] + theta["W_v"] @ image + theta.get("b_v", 0.0)
    return decode(partial(step_2015, theta), initial_layer(theta, run_gru(theta, "enc", inputs)[-1]), target)
