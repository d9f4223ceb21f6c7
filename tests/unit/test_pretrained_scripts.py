"""Scripts in pretrained/, which make the built-in captioner."""

import importlib
import sys
from pathlib import Path

import pytest


@pytest.fixture
def script(monkeypatch):
    """Imports a script: script(name)."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "pretrained")
    before = set(sys.modules)
    yield importlib.import_module
    for name in {"non_photographs"} & (set(sys.modules) - before):
        del sys.modules[name]


def test_generated_images_depend_on_their_seed_alone(script):
    drawn = script("non_photographs")
    for kind in drawn.KINDS:
        image, again, other = (drawn.draw_non_photograph(kind, seed) for seed in (1, 1, 2))
        assert image.tobytes() == again.tobytes() and (image.size, image.tobytes()) != (other.size, other.tobytes())
    assert set(drawn.HELD_OUT) < set(drawn.KINDS)
