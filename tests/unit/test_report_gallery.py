"""The items of a report: which are chosen, and how their words are marked."""

import pytest

from limner.apps.report.gallery import EACH, cards, choose_gallery, mark_words
from limner.apps.report.images import Thumbnails
from limner.runs.records import EvaluatedItem


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
