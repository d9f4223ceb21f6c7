"""Figures of the report whose script shows the attention of a word."""

import base64

import numpy as np
import pytest
from PIL import Image

from limner.apps.report.attention import plot_explanation
from limner.apps.report.images import Thumbnails
from limner.features.spec import FeatureSpec
from limner.inference.explain import END_OF_SENTENCE, Explanation
from limner.runs.records import EvaluatedItem

WEIGHTS = np.array([[0.5, 0.0, 0.25, 0.25], [0.25] * 4])


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "wide.png"
    Image.new("RGB", (300, 200)).save(path)
    return str(path)


@pytest.fixture
def spec():
    return FeatureSpec(
        name="f", kind="grid", shape=(4, 3), grid_size=(2, 2), backbone="b", weights_sha256="",
        preprocessing={"resize": "crop", "size": 64, "short": 64},
    )  # fmt: skip


def figure_of(image, spec, budget=1 << 20, attention=WEIGHTS, gate=None):
    explanation = Explanation((), ("left", END_OF_SENTENCE), None, attention, gate)
    item = EvaluatedItem(id="x", image=image, hypothesis="left")
    return plot_explanation(explanation, item, (spec,), Thumbnails(budget)).image


def test_weights_are_bytes_scaled_by_the_largest_of_the_word(image, spec):
    (word,) = figure_of(image, spec, gate=np.array([0.75, 0.5])).words
    assert list(base64.b64decode(word.weights)) == [255, 0, 128, 128]
    assert (word.text, word.gate) == ("left", 0.75)


def test_the_box_is_the_encoded_part_of_the_image_in_fractions(image, spec):
    figure = figure_of(image, spec)
    assert figure.grid == (2, 2) and figure.box == pytest.approx((1 / 6, 0, 5 / 6, 1))


def test_without_attention_image_or_budget_there_is_no_figure(image, spec, tmp_path):
    assert figure_of(image, spec, attention=None) is None
    assert figure_of(None, spec) is None
    assert figure_of(str(tmp_path / "gone.png"), spec) is None
    assert figure_of(image, spec, budget=0).url is None
