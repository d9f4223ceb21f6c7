"""The oracle of recurrent networks: hand-computed values, torch, and identities between its networks."""

import math

import numpy as np
import oracle_recurrent as oracle
import pytest

LN2, LN3 = math.log(2), math.log(3)  # tanh(ln 2) = 3/5, sigma(ln 3) = 3/4


def one_unit(values):
    """Scalars as matrices and vectors of one unit; peepholes W_c. are vectors."""
    vectors = ("b_", "tau", "W_ci", "W_cf", "W_co")
    return {name: np.full((1,) if name.startswith(vectors) else (1, 1), float(v)) for name, v in values.items()}


def one(step, theta, x, *state):
    return [float(part[0]) for part in step(one_unit(theta), np.array([float(x)]), tuple(np.array([s]) for s in state))]


# Cells


def test_one_unit_of_an_lstm_with_peepholes_by_hand():
    # x = 1, h = 2, c = 4: f = sigma(1 - 2 + 4 - 3 + ln 3) = 3/4; i = sigma(1 + 2 - 4 + 1 - ln 3) = 1/4;
    # g = tanh(-1 - 2 + 3 + ln 2) = 3/5; c' = 3 + 0.15; o reads c': sigma(1 - 1 - 2 * 3.15 + 6.3 + ln 3) = 3/4.
    theta = {"W_xf": 1, "W_hf": -1, "W_cf": 1, "b_f": LN3 - 3, "W_xi": 1, "W_hi": 1, "W_ci": -1, "b_i": 1 - LN3}
    theta |= {"W_xc": -1, "W_hc": -1, "b_c": 3 + LN2, "W_xo": 1, "W_ho": -0.5, "W_co": -2, "b_o": 6.3 + LN3}
    h, c = one(oracle.lstm_step, theta, 1, 2.0, 4.0)
    assert c == pytest.approx(3.15)
    assert h == pytest.approx(0.75 * math.tanh(3.15))
    # Coupled, i = 1 - f = 1/4 whatever the input gate's weights, which need not be there.
    coupled = {name: value for name, value in theta.items() if name not in ("W_xi", "W_hi", "W_ci", "b_i")}
    assert one(oracle.coupled_lstm_step, coupled, 1, 2.0, 4.0) == pytest.approx([h, c])
