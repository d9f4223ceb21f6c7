"""The items of a report: which are chosen, and how their words are marked."""

import pytest
from PIL import Image

from limner.apps.report.gallery import EACH, by_position_error, cards, choose_gallery, mark_words
from limner.apps.report.images import Thumbnails
from limner.apps.report.page import write_report
from limner.metrics import Score
from limner.runs.records import EvaluatedItem, Evaluation, RunConfig


def make_items(count, images=None):
    """Items with the scores 0, 1, 2, …, the k-th with the image k % images."""
    return [
        EvaluatedItem(
            id=f"i{k}",
            image=f"{k % (images or count)}.jpg",
            references=("a red ball",),
            hypothesis="a red ball" if k % 2 else "a blue ball",
            sentence_score=float(k),
        )
        for k in range(count)
    ]


def rows_of(chosen, group):
    return [row for row, name in chosen.items() if name == group]


def marks(text, references):
    return [(part.text, part.mark) for part in mark_words(text, references) if part.mark]


def test_the_best_and_the_worst_come_in_order():
    chosen = choose_gallery(make_items(100), seed=0)
    assert rows_of(chosen, "best") == list(range(99, 99 - EACH, -1))
    assert rows_of(chosen, "worst") == list(range(EACH))
    assert len(rows_of(chosen, "sample")) == EACH


@pytest.mark.parametrize("images", [5, 7, 30, 100])
def test_no_image_is_twice_among_the_best_and_the_worst(images):
    items = make_items(100, images)
    chosen = choose_gallery(items, seed=0)
    shown = [items[row].image for row, group in chosen.items() if group != "sample"]
    assert shown and len(set(shown)) == len(shown)


def test_cards_name_the_wrong_words():
    items = make_items(30)
    shown = cards(choose_gallery(items, 0), items, Thumbnails(0), side=10)
    wrong = [card for card in shown if card.wrong]
    assert {card.wrong for card in wrong} == {("blue",)} and len(wrong) == 15
    assert [card.group for card in shown].count("best") == 10


def test_words_are_right_if_a_reference_has_them():
    assert marks("A red ball.", ["the red dog", "a Ball"]) == [("A", "right"), ("red", "right"), ("ball", "right")]
    assert marks("2 blue balls", ["a red ball"]) == [("2", "wrong"), ("blue", "wrong"), ("balls", "wrong")]


def test_a_repeated_word_is_right_as_often_as_in_a_reference():
    assert [mark for _, mark in marks("dog dog dog", ["dog", "dog and dog"])] == ["right", "right", "wrong"]


def test_characters_are_marked_in_scripts_without_spaces():
    assert marks("红狗", ["红球"]) == [("红", "right"), ("狗", "wrong")]


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
