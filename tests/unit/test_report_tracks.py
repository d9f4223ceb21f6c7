"""The report of a tracking model: position errors in place of accuracies."""

from PIL import Image

from limner.apps.report.gallery import by_position_error
from limner.apps.report.page import write_report
from limner.metrics import Score
from limner.runs.records import EvaluatedItem, Evaluation, RunConfig


def make_item(name, predicted, right, image=None):
    hypothesis = " ".join(f"{x:.2f},{y:.2f} (0.5000)" for x, y in predicted)
    reference = " ".join(f"{x:.2f},{y:.2f}" for x, y in right)
    return EvaluatedItem(id=name, image=image, references=(reference,), hypothesis=hypothesis, sentence_score=0.0)


def test_the_item_with_the_smallest_position_error_has_the_highest_score():
    items = [make_item("far", [(10, 10)], [(50, 10)]), make_item("near", [(10, 10)], [(13, 14)])]
    assert [item.sentence_score for item in by_position_error(items)] == [-40, -5]


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
    assert "position error 5.00 %" in page and "accuracy 0.0" not in page and "(0.5000)" not in page
