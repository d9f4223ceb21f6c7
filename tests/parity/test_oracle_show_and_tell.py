"""The oracle of Show and Tell: hand-computed values and invariances."""

import math

import numpy as np
import oracle_show_and_tell as oracle
import pytest

LN3 = math.log(3)


def test_one_unit_of_the_printed_lstm_by_hand():
    # x = 1, m = 2, c = 4: i = sigma(1 - 2 + 1 + ln 3), f and o likewise 3/4 and 1/4; tanh(1 - 2 + 1 + ln 2) = 3/5;
    # c = 3/4 * 4 + 3/4 * 3/5 = 3.45, and m = 1/4 * 3.45 without tanh.
    theta = {f"W_{gate}x": np.ones((1, 1)) for gate in "ifoc"} | {f"W_{gate}m": -np.ones((1, 1)) for gate in "ifoc"}
    theta |= {f"b_{gate}": np.array([1 + v]) for gate, v in zip("ifoc", (LN3, LN3, -LN3, math.log(2)), strict=True)}
    state = (np.array([2.0]), np.array([4.0]))
    m, c = oracle.lstm(theta, np.array([1.0]), state)
    assert c == pytest.approx([3.45])
    assert m == pytest.approx([3.45 / 4])
    assert oracle.lstm(theta, np.array([1.0]), state, squash=True)[0] == pytest.approx([math.tanh(3.45) / 4])
