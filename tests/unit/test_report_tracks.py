"""The report of a tracking model: position errors, and positions on the frames."""

import numpy as np
import pytest
from PIL import Image, ImageColor

from limner.apps.report.gallery import PREDICTED, RIGHT, by_position_error, draw_track, key_positions
from limner.apps.report.page import write_report
from limner.media.video import FrameSampling
from limner.metrics import Score
from limner.runs.records import EvaluatedItem, Evaluation, RunConfig


def make_item(name, predicted, right, image=None):
    hypothesis = " ".join(f"{x:.2f},{y:.2f} (0.5000)" for x, y in predicted)
    reference = " ".join(f"{x:.2f},{y:.2f}" for x, y in right)
    return EvaluatedItem(id=name, image=image, references=(reference,), hypothesis=hypothesis, sentence_score=0.0)


def is_near(colour, expected, tolerance=8):
    return np.abs(np.array(colour, dtype=int) - ImageColor.getrgb(expected)).max() <= tolerance


def test_the_item_with_the_smallest_position_error_has_the_highest_score():
    items = [make_item("far", [(10, 10)], [(50, 10)]), make_item("near", [(10, 10)], [(13, 14)])]
    assert [item.sentence_score for item in by_position_error(items)] == [-40, -5]


def test_positions_of_four_frames_evenly_spaced():
    track = [(k, 2 * k) for k in range(16)]
    positions = key_positions(make_item("a", track, track))
    assert [one.frame for one in positions] == [2, 6, 10, 14]
    assert positions[1].predicted == positions[1].right == (6, 12)
    assert not positions[0].hidden


def test_dots_are_drawn_at_the_positions(tmp_path):
    Image.new("RGB", (100, 50), "black").save(tmp_path / "a.png")
    drawing = draw_track(make_item("a", [(25, 10)], [(75, 40)], str(tmp_path / "a.png")), 200, None)
    assert drawing.size == (200, 100)
    assert is_near(drawing.getpixel((50, 20)), PREDICTED) and is_near(drawing.getpixel((150, 80)), RIGHT)
    assert drawing.getpixel((100, 50)) == (0, 0, 0)


def test_dots_are_drawn_on_the_frames_that_the_model_reads(tmp_path):
    """A clip that becomes brighter: the key frames of eight are the frames 1, 3, 5 and 7, left to right, top down."""
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "a.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width = stream.height = 64
        for k in range(8):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 30 * k, dtype=np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    item = make_item("a", [(25, 25)] * 8, [(75, 75)] * 8, str(tmp_path / "a.mp4"))
    drawing = draw_track(item, 256, FrameSampling(count=8))
    corners = [drawing.getpixel((x, y))[0] for y in (5, 140) for x in (5, 140)]
    assert corners == pytest.approx([30, 90, 150, 210], abs=10)
    assert is_near(drawing.getpixel((32, 32)), PREDICTED)
    assert draw_track(item, 256, FrameSampling(count=4)) is None


def test_the_page_shows_position_errors_in_place_of_accuracies(tmp_path):
    Image.new("RGB", (64, 64), "black").save(tmp_path / "a.png")
    run = tmp_path / "run"
    (run / "evaluation").mkdir(parents=True)
    RunConfig(recipe={"data": {"lang": "track"}}).save(run / "config.json")
    Evaluation(
        split="test",
        collection="c",
        fingerprint="0" * 16,
        command="limner evaluate",
        seconds=1.0,
        scores=(Score("position_error", 5.0, "nrefs:1|scale:percent"),),
        items=(make_item("clip-1", [(10, 10)], [(13, 14)], str(tmp_path / "a.png")),),
    ).save(run / "evaluation" / "test.json")
    page = write_report(run, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "position error 5.00 %" in page and "10.0, 10.0" in page and "13.0, 14.0" in page
    assert "predicted" in page and RIGHT in page and "accuracy 0.0" not in page and "(0.5000)" not in page
