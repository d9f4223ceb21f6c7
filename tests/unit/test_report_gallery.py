"""The items of a report: which are chosen, and how their words are marked."""

import pytest

from limner.apps.report.gallery import (
    EACH,
    cards,
    choose_first,
    choose_gallery,
    choose_to_explain,
    mark_labels,
    mark_words,
)
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


def test_the_sample_depends_on_the_seed_alone():
    items = make_items(100)
    first, again, other = (rows_of(choose_gallery(items, seed), "sample") for seed in (0, 0, 1))
    assert first == again != other


def test_all_sentences_of_a_small_split_are_shown():
    assert set(choose_gallery(make_items(6, images=2), seed=0)) == set(range(6))


def test_items_without_scores_are_a_random_sample():
    items = [item.model_copy(update={"sentence_score": None}) for item in make_items(10)]
    assert set(choose_gallery(items, seed=0).values()) == {"sample"}


def test_the_beginning_has_six_different_images():
    items = make_items(40, images=20)
    first = choose_first(items, seed=0)
    assert len({items[row].image for row in first}) == len(first) == 6
    assert first == choose_first(items, seed=0) != choose_first(items, seed=1)
    assert len(choose_first(make_items(40, images=2), seed=0)) == 2


def test_items_with_images_begin():
    items = [item.model_copy(update={"image": None}) for item in make_items(30)] + make_items(3)
    assert sum(items[row].image is not None for row in choose_first(items, seed=0)) == 3


def test_sentences_to_explain_come_from_every_group():
    items = make_items(100)
    explained = choose_to_explain(choose_gallery(items, 0), items)
    assert [int(item.id[1:]) for item in explained[:2]] == [99, 98]
    assert len(explained) == 6 and {"i0", "i1"} <= {item.id for item in explained}


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


@pytest.mark.parametrize("text", ["  a red, blue ball!  ", "zwei Hunde – 'laufen'", "一只红色的球", "", "<b>&"])
def test_marked_parts_make_up_the_sentence(text):
    assert "".join(part.text for part in mark_words(text, ["a red ball"])) == text


def test_without_references_nothing_is_marked():
    assert marks("a red ball", []) == []


def test_characters_are_marked_in_scripts_without_spaces():
    assert marks("红狗", ["红球"]) == [("红", "right"), ("狗", "wrong")]


def test_labels_are_marked_by_position():
    parts = mark_labels("up (0.9000) down (0.6000)", ["up up"])
    assert [(part.text, part.mark) for part in parts if part.mark] == [("up", "right"), ("down", "wrong")]
