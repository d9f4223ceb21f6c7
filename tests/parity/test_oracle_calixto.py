"""The oracle of the translation decoders: hand-computed values and invariances."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import oracle_calixto as oracle
import pytest
import torch

LN2, LN3 = math.log(2), math.log(3)  # tanh(ln 2) = 3/5, sigma(ln 3) = 3/4
SIZES = {"Vx": 5, "dx": 3, "He": 2, "Vy": 4, "dy": 3, "H": 4, "As": 3, "Ai": 2, "R": 3, "D": 2, "P": 3}
SOURCE, TARGET = [1, 4, 2, 0], [0, 3, 1, 2]
LOCATIONS = np.array([[1.0, -2.0], [0.5, 3.0], [-1.0, 0.25]])
IMAGE_VECTOR = np.array([0.5, -1.0, 2.0])
# Every decoder with its image inputs
DECODERS = {
    "nmt-2017": (oracle.nmt_2017, {}),
    "src-img-2017": (oracle.src_img_2017, {"locations": LOCATIONS}),
    "bahdanau-2016": (oracle.bahdanau_2016, {}),
    "fc7-2016": (oracle.fc7_2016, {"image": IMAGE_VECTOR}),
    "doubly-2016": (oracle.doubly_attentive_2016, {"image": IMAGE_VECTOR, "locations": LOCATIONS}),
    "independent-2015": (oracle.independent_2015, {"image": IMAGE_VECTOR}),
}
GATED, PLAIN = "src-img-2017", "doubly-2016"


def weights(model, start=None):
    generator = np.random.default_rng(0)
    shapes = oracle.parameter_shapes(model, SIZES, start or ("fc7" if model == PLAIN else "text"))
    return {name: generator.normal(size=shape) for name, shape in shapes.items()}


def part(theta, model):
    """The arrays of `theta` that the smaller `model` has too."""
    return {name: theta[name] for name in oracle.layout(model)}


def run(model, theta=None, source=SOURCE, target=TARGET, **changed):
    decoder, shown = DECODERS[model]
    return decoder(theta or weights(model), source, target, **(shown | changed))


def arrays(values):
    return {name: np.array(value, dtype=np.float64) for name, value in values.items()}


def one_unit_gru(name, w, u, b, b_u=None):
    """`w` is, by suffix, the triple for z, r and the proposal; `u` and `b` are such triples."""
    values = {f"{name}.W{gate}{suffix}": [[w[suffix][k]]] for suffix in w for k, gate in enumerate(("_z", "_r", ""))}
    values |= {f"{name}.U{gate}": [[u[k]]] for k, gate in enumerate(("_z", "_r", ""))}
    values |= {f"{name}.b{gate}": [b[k]] for k, gate in enumerate(("_z", "_r", ""))}
    return arrays(values | ({} if b_u is None else {f"{name}.b_U": [b_u]}))


def assert_same(trace, other, *but):
    """All of two traces is equal, except for the fields named."""
    for name in {"logits", "states", "source_alphas", "image_alphas", "betas"} - set(but):
        one, two = getattr(trace, name), getattr(other, name)
        assert (one is None) == (two is None), name
        if one is not None:
            np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-12, err_msg=name)


# Layers


def test_a_gru_of_one_unit_equals_hand_computed_values():
    # x = 2, h = 3: z = sigma(2 - 3 + 1 + ln 3) = 3/4; r = sigma(2*2 - 3 - 1 - ln 3) = 1/4;
    # proposal = tanh(-2 + 1/4 (2*3 + 2) + ln 2) = 3/5; h' = 1/4 * 3/5 + 3/4 * 3 = 2.4.
    theta = one_unit_gru("g", {"": (1, 2, -1)}, (-1, -1, 2), (1 + LN3, -1 - LN3, LN2), b_u=2)
    assert oracle.gru(theta, "g", {"": np.array([2.0])}, np.array([3.0])) == pytest.approx([2.4])
    # Without the bias inside the reset product it is tanh(-2 + 1/4 * 6 + ln 2 + 1/2).
    del theta["g.b_U"]
    theta["g.b"] += 0.5
    assert oracle.gru(theta, "g", {"": np.array([2.0])}, np.array([3.0])) == pytest.approx([2.4])


def test_the_reset_gate_is_applied_after_the_recurrent_matrix():
    # h = (0, 1), r = (3/4, 1/4), U h = (ln 2 * 4/3, 0): r * (U h) = (ln 2, 0), while U (r * h) = (ln 2 / 3, 0).
    theta = {f"g.{name}": np.zeros((2, 2)) for name in ("W_z", "W_r", "W", "U_z", "U_r", "U")}
    theta["g.U"][0, 1] = LN2 * 4 / 3
    theta["g.b_r"] = np.array([LN3, -LN3])
    state = oracle.gru(theta, "g", {"": np.ones(2)}, np.array([0.0, 1.0]))
    np.testing.assert_allclose(state, [0.5 * 0.6, 0.5])


def test_the_gru_equals_torch():
    reference = torch.nn.GRU(3, 4).double()
    # torch orders its rows r, z, n.
    w, u, b, b_u = (array.detach().numpy().reshape(3, 4, -1) for array in reference.parameters())
    theta = {"g.W_r": w[0], "g.W_z": w[1], "g.W": w[2], "g.U_r": u[0], "g.U_z": u[1], "g.U": u[2]}
    theta |= {"g.b_r": (b[0] + b_u[0])[:, 0], "g.b_z": (b[1] + b_u[1])[:, 0]}
    theta |= {"g.b": b[2][:, 0], "g.b_U": b_u[2][:, 0]}
    inputs = np.random.default_rng(0).normal(size=(5, 3))
    expected = reference(torch.from_numpy(inputs))[0].detach().numpy()
    np.testing.assert_allclose(oracle.run_gru(theta, "g", inputs), expected, rtol=1e-12)


def test_each_encoder_direction_depends_on_its_own_side():
    theta = weights("nmt-2017")
    whole = oracle.annotate(theta, SOURCE)
    assert whole.shape == (4, 4)
    np.testing.assert_array_equal(oracle.annotate(theta, SOURCE[:2])[:, :2], whole[:2, :2])
    np.testing.assert_array_equal(oracle.annotate(theta, SOURCE[2:])[:, 2:], whole[2:, 2:])
    # With exchanged weights of the directions, the reversed sentence gives the same annotations.
    swapped = {
        name.replace("fwd", "bwd") if "fwd" in name else name.replace("bwd", "fwd"): theta[name] for name in theta
    }
    mirrored = oracle.annotate(swapped, SOURCE[::-1])[::-1]
    np.testing.assert_array_equal(mirrored, whole[:, [2, 3, 0, 1]])


def test_visual_prefix_tokens_precede_the_words():
    theta = weights("nmt-2017")
    token = theta["E_x"][3]
    np.testing.assert_array_equal(oracle.annotate(theta, SOURCE, [token]), oracle.annotate(theta, [3, *SOURCE]))
    for model in ("nmt-2017", "bahdanau-2016"):
        assert_same(run(model, head=[token, token]), run(model, source=[3, 3, *SOURCE]))


def test_the_decoder_is_initialised_from_both_last_encoder_states():
    # N = 2, He = 1: forward h_2 = 3, backward h_1 = 2; tanh(3 - 2 - 1 + ln 2).
    theta = arrays({"W_init": [[1, -1]], "b_init": [LN2 - 1]})
    assert oracle.start_from_text(theta, np.array([[1.0, 2.0], [3.0, 4.0]])) == pytest.approx([0.6])


def test_the_decoder_is_initialised_from_the_first_annotation_and_the_image():
    # i W_I + b_I = (2*1 + 1*2, 2*0 + 1*3) + (-1, 1) = (3, 4); with h_1 = (1, 2) the sum is (4, 6).
    theta = arrays({"W_I": [[1, 0], [2, 3]], "b_I": [-1, 1], "W_init": [[-1, 1]], "b_init": [LN2 - 2]})
    annotations, image = np.array([[1.0, 2.0], [7.0, 9.0]]), np.array([2.0, 1.0])
    assert oracle.start_from_fc7(theta, annotations, image) == pytest.approx([0.6])
    # Without an image b_I is omitted as well: tanh(2 - 1 - 1 + ln 2).
    theta["b_init"] += 1
    assert oracle.start_from_fc7(theta, annotations, None) == pytest.approx([0.6])


# The steps, with all dimensions 1 and every weight in the sum. Energies are v tanh(0) = 0 and v tanh(ln 2) =
# 3/5 v, with v = 5/3 ln 3: weights (1/4, 3/4). Annotations (0, 4) give c = 3, locations (0, 8) give 6.
ANNOTATIONS, TWO_LOCATIONS = np.array([[0.0], [4.0]]), np.array([[0.0], [8.0]])
READ_OUT = {"L_o": [[5], [-5]], "L_s": [[10]], "L_w": [[2]], "L_cs": [[-3]], "L_ci": [[-1]], "b_o": [0, 1]}


def attentions(bias):
    """U = -2 on the state; `bias` cancels it and, in [16], the word."""
    values = {"U_a": [[-2]], "v_a": [LN3 / 0.6], "b_a": [bias]}
    keys = {"W_a_src": [[LN2 / 4]], "W_a_img": [[LN2 / 8]]}
    return arrays(keys | {f"{name}_{side}": value for name, value in values.items() for side in ("src", "img")})


def test_a_step_of_the_doubly_conditional_gru_by_hand():
    theta = arrays(READ_OUT | {"E_y": [[0], [1]], "b_L": [2.5 + LN2]}) | attentions(2)
    # REC1 from s_0 = 7/5, y = 1: z = sigma(1 - 14 + 13) = 1/2, r = sigma(2 - 2) = 1/2,
    # proposal = tanh(1 + 1/2 * 2.8 - 2.4 + ln 2) = 3/5, s' = 0.3 + 0.7 = 1.
    theta |= one_unit_gru("rec1", {"": (1, 2, 1)}, (-10, 0, 2), (13, -2, LN2 - 2.4))
    # The gate depends on s_0, not s': sigma(10 * 1.4 - 14 + ln 3) = 3/4, so i = 4.5.
    theta |= arrays({"W_beta": [[10]], "b_beta": [LN3 - 14]})
    # REC2: z = sigma(3 + 2 * 4.5 - 1 - 11 + ln 3) = 3/4, r = sigma(-3 + 4.5 + 2 - 3.5 - ln 3) = 1/4,
    # proposal = tanh(3 - 4.5 + 1/4 * 4 + 0.5 + ln 2) = 3/5, s = 1/4 * 3/5 + 3/4 * 1 = 0.9.
    inputs = {"_src": (1, -1, 1), "_img": (2, 1, -1)}
    theta |= one_unit_gru("rec2", inputs, (-1, 2, 4), (LN3 - 11, -3.5 - LN3, LN2 + 0.5))
    step = oracle.step_2017(theta, ANNOTATIONS, TWO_LOCATIONS, 1, np.array([1.4]))
    assert step.beta == pytest.approx(0.75)
    assert step.source_alpha == pytest.approx([0.25, 0.75])
    assert step.image_alpha == pytest.approx([0.25, 0.75])
    assert step.state == pytest.approx([0.9])
    # Read-out: tanh(10 * 0.9 + 2 * 1 - 3 * 3 - 4.5 + 2.5 + ln 2) = 3/5.
    assert step.logits == pytest.approx([3.0, -2.0])


def test_a_step_of_the_doubly_attentive_decoder_by_hand():
    theta = arrays(READ_OUT | {"E_y": [[0], [1]], "b_L": [4 + LN2]}) | attentions(-1)
    theta |= arrays({"Y_a_src": [[3]], "Y_a_img": [[3]]})  # 3 * 1 - 2 * 1 - 1 = 0
    # From s_0 = 1, y = 1, c = 3, i = 6: z = sigma(5 + 3 + 12 - 1 - 19 + ln 3) = 3/4,
    # r = sigma(-2 - 3 + 6 + 2 - 3 - ln 3) = 1/4, proposal = tanh(1 + 3 - 6 + 1/4 * 4 + 1 + ln 2) = 3/5.
    inputs = {"_y": (5, -2, 1), "_src": (1, -1, 1), "_img": (2, 1, -1)}
    theta |= one_unit_gru("rec", inputs, (-1, 2, 4), (LN3 - 19, -3 - LN3, LN2 + 1))
    step = oracle.step_2016(theta, ANNOTATIONS, TWO_LOCATIONS, 1, np.array([1.0]))
    assert step.beta is None
    assert step.source_alpha == pytest.approx([0.25, 0.75])
    assert step.image_alpha == pytest.approx([0.25, 0.75])
    assert step.state == pytest.approx([0.9])
    # Read-out: tanh(9 + 2 - 9 - 6 + 4 + ln 2) = 3/5.
    assert step.logits == pytest.approx([3.0, -2.0])


# Whole sentences


@pytest.mark.parametrize("model", DECODERS)
def test_shapes_and_attention_weights_that_sum_to_one(model):
    trace = run(model)
    assert trace.logits.shape == (3, 4)
    assert trace.states.shape == (3, 4)
    assert (trace.source_alphas is None) == (model == "independent-2015")
    assert (trace.image_alphas is None) == (model not in (GATED, PLAIN))
    assert (trace.betas is None) == (model != GATED)
    for alphas, width in ((trace.source_alphas, 4), (trace.image_alphas, 3)):
        if alphas is not None:
            assert alphas.shape == (3, width)
            np.testing.assert_allclose(alphas.sum(axis=1), 1.0, rtol=1e-12)
    if trace.betas is not None:
        assert trace.betas.shape == (3,)


@pytest.mark.parametrize("model", DECODERS)
def test_a_step_depends_on_preceding_words_only(model):
    theta, other = weights(model), run(model, target=[0, 3, 2, 1])
    trace = run(model, theta)
    np.testing.assert_array_equal(trace.logits[:2], other.logits[:2])
    assert not np.allclose(trace.logits[2], other.logits[2])
    # y_0 is the start token's embedding, and the words predicted last are not read.
    theta["E_y"] = theta["E_y"] + [[1.0], [0.0], [0.0], [0.0]]
    assert not np.allclose(run(model, theta).logits[0], trace.logits[0])
    theta["E_y"] = weights(model)["E_y"] + [[0.0], [0.0], [1.0], [0.0]]
    assert_same(run(model, theta), trace)


@pytest.mark.parametrize("model", DECODERS)
def test_probabilities_of_all_continuations_sum_to_one(model):
    theta, sentences = weights(model), [[0, *words] for words in product(range(4), repeat=2)]
    total = sum(math.exp(oracle.sentence_log_prob(run(model, theta, target=s), s)) for s in sentences)
    assert total == pytest.approx(1.0)


def test_the_log_probability_of_a_sentence_by_hand():
    # Odds of 1 : 3 and then of 2 : 3, from logits too large for exp.
    logits = np.array([[0.0, LN3], [2000 + LN2, 2000 + LN3]])
    trace = replace(run("nmt-2017"), logits=logits)
    assert oracle.sentence_log_prob(trace, [0, 1, 0]) == pytest.approx(math.log(3 / 4 * 2 / 5))
    assert oracle.softmax(logits[1]) == pytest.approx([2 / 5, 3 / 5])


@pytest.mark.parametrize("model", DECODERS)
def test_every_weight_has_an_effect_and_a_missing_bias_is_zero(model):
    theta, trace = weights(model), run(model)
    for name, array in theta.items():
        assert not np.allclose(run(model, theta | {name: array * 1.5}).logits, trace.logits), name
        if name.split(".")[-1].startswith("b"):
            absent = {other: theta[other] for other in theta if other != name}
            assert_same(run(model, absent), run(model, theta | {name: np.zeros_like(array)}))


# Images


@pytest.mark.parametrize("model", [GATED, PLAIN])
def test_permuting_locations_permutes_the_attention_only(model):
    trace, order = run(model), [2, 0, 1]
    permuted = run(model, locations=LOCATIONS[order])
    assert_same(permuted, trace, "image_alphas")
    np.testing.assert_allclose(permuted.image_alphas, trace.image_alphas[:, order], rtol=1e-12)


@pytest.mark.parametrize("model", [GATED, PLAIN])
def test_attention_over_one_location_has_weight_one(model):
    np.testing.assert_array_equal(run(model, locations=LOCATIONS[:1]).image_alphas, np.ones((3, 1)))
    # Four equal locations are equivalent to one.
    assert_same(run(model, locations=LOCATIONS[[1] * 4]), run(model, locations=LOCATIONS[[1]]), "image_alphas")


@pytest.mark.parametrize("locations", [None, np.zeros((3, 2))])
def test_a_missing_or_zero_image_gives_the_text_only_model(locations):
    theta = weights(GATED)
    trace = run(GATED, theta, locations=locations)
    assert_same(trace, run("nmt-2017", part(theta, "nmt-2017")), "image_alphas", "betas")
    if locations is None:
        assert trace.image_alphas is None
        np.testing.assert_array_equal(trace.betas, [0.0, 0.0, 0.0])
    theta = weights(PLAIN, "text")
    trace = run(PLAIN, theta, image=None, locations=locations, start="text")
    assert_same(trace, run("bahdanau-2016", part(theta, "bahdanau-2016")), "image_alphas")


def test_a_closed_gate_gives_the_text_only_model():
    theta = weights(GATED)
    theta |= {"W_beta": np.zeros((1, 4)), "b_beta": np.array([-1000.0])}
    trace = run(GATED, theta)
    np.testing.assert_array_equal(trace.betas, [0.0, 0.0, 0.0])
    assert_same(trace, run("nmt-2017", part(theta, "nmt-2017")), "image_alphas", "betas")


def test_the_gate_depends_on_the_previous_state():
    theta = weights(GATED)
    other = theta | {name: 2 * array for name, array in theta.items() if name.startswith("rec1.")}
    betas, changed = run(GATED, theta).betas, run(GATED, other).betas
    assert changed[0] == betas[0]
    assert not np.isclose(changed[1], betas[1])
    start = oracle.start_from_text(theta, oracle.annotate(theta, SOURCE))
    assert betas[0] == pytest.approx(1 / (1 + math.exp(-(theta["W_beta"][0] @ start + theta["b_beta"][0]))))


@pytest.mark.parametrize(("model", "sees_word", "name"), [(GATED, False, "rec1."), (PLAIN, True, "rec.")])
def test_the_query_of_the_first_attention_is_the_proposal_or_the_previous_state(model, sees_word, name):
    # [17] attends after REC1, [16] before its only GRU, from s_{t-1} and y_{t-1}.
    theta, trace = weights(model), run(model)
    other = run(model, theta | {key: 2 * array for key, array in theta.items() if key.startswith(name)})
    for field in ("source_alphas", "image_alphas"):
        assert np.allclose(getattr(other, field)[0], getattr(trace, field)[0]) == sees_word


def test_the_pooled_image_affects_the_initial_state_only():
    # W_init = 0 removes its effect. With one source word, h_1 is both last states of the encoder.
    theta = weights("fc7-2016")
    assert not np.allclose(run("fc7-2016", theta).logits, run("fc7-2016", theta, image=-IMAGE_VECTOR).logits)
    text_only = theta | {"W_init": np.zeros((4, 4))}
    assert_same(run("fc7-2016", text_only), run("fc7-2016", text_only, image=-IMAGE_VECTOR))
    plain = run("bahdanau-2016", part(theta, "bahdanau-2016"), source=[2])
    assert_same(run("fc7-2016", theta, source=[2], image=None), plain)


def test_the_doubly_attentive_decoder_without_locations_equals_image_initialisation():
    theta = weights(PLAIN)
    assert_same(run(PLAIN, theta, locations=None), run("fc7-2016", part(theta, "fc7-2016")))


def test_independent_descriptions_use_the_image_at_the_first_source_word_only():
    theta, model = weights("independent-2015"), "independent-2015"
    # Equivalent to a first word, here id 5, whose embedding includes the image; it occurs again as word 1.
    extra = theta["E_x"][1] + theta["W_v"] @ IMAGE_VECTOR + theta["b_v"]
    larger = theta | {"E_x": np.vstack([theta["E_x"], extra])}
    assert_same(run(model, theta, source=[1, 4, 1]), run(model, larger, source=[5, 4, 1], image=None))
    # The target-language model depends on source and image through its initial state only.
    text_only = theta | {"W_init": np.zeros((4, 2))}
    assert_same(run(model, text_only), run(model, text_only, source=[2], image=None))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b_attention": np.zeros(3)}, "b_attention"),
        ({"L_cs": np.zeros((4, 3))}, "L_cs is float64"),
        ({"W_beta": np.zeros(4)}, "W_beta is float64"),
        ({"E_x": np.zeros((5, 3), dtype=np.float32)}, "E_x is float32"),
    ],
)
def test_weights_of_another_model_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        run(GATED, weights(GATED) | change)
    theta = weights(GATED)
    del theta["L_ci"]
    with pytest.raises(ValueError, match="missing or superfluous are"):
        run(GATED, theta)
