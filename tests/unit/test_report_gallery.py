"""The items of a report: which are chosen, how their words are marked, and how errors are grouped by kind."""

import pytest

from limner.report.error_kinds import find_errors, group_errors
from limner.report.gallery import (
    BEST_AND_WORST,
    PER_KIND,
    SAMPLE,
    cards,
    choose_first,
    choose_gallery,
    choose_to_explain,
    filters,
)
from limner.report.thumbnails import Thumbnails
from limner.report.word_kinds import nouns_of, read_lexicon, singular
from limner.report.word_marks import closest_reference, mark_labels, mark_words, share_of_right_words, words_of
from limner.runs.records import EvaluatedItem

SCENES = [
    "There is a red ball in the snow.",
    "The big red ball is in the snow.",
    "A red ball on the left of the picture.",
]
PHOTOS = [
    "Two dogs run through the grass.",
    "A brown dog is running near a river.",
    "The man holds a red umbrella and a small dog.",
    "Three children sit on a bench.",
    "A man is sitting on the bench in a park.",
    "The child throws a ball to the dog.",
]


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
    return [one.row for one in chosen if group in one.groups]


def marks(text, references, **options):
    return [(part.text, part.mark) for part in mark_words(text, references, **options) if part.mark]


def test_the_best_and_the_worst_come_in_order():
    chosen = choose_gallery(make_items(100), seed=0)
    assert rows_of(chosen, "best") == list(range(99, 99 - BEST_AND_WORST, -1))
    assert rows_of(chosen, "worst") == list(range(BEST_AND_WORST))
    assert len(rows_of(chosen, "sample")) == SAMPLE


@pytest.mark.parametrize("images", [5, 7, 30, 100])
def test_no_image_is_twice_among_the_best_and_the_worst(images):
    items = make_items(100, images)
    chosen = choose_gallery(items, seed=0)
    shown = [items[one.row].image for one in chosen if {"best", "worst"} & {*one.groups}]
    assert shown and len(set(shown)) == len(shown)
    assert len({one.row for one in chosen}) == len(chosen)


def test_the_sample_depends_on_the_seed_alone():
    items = make_items(100)
    first, again, other = (rows_of(choose_gallery(items, seed), "sample") for seed in (0, 0, 1))
    assert first == again != other


def test_all_sentences_of_a_small_split_are_shown():
    assert {one.row for one in choose_gallery(make_items(6, images=2), seed=0)} == set(range(6))


def test_items_without_scores_are_a_random_sample():
    items = [item.model_copy(update={"sentence_score": None}) for item in make_items(10)]
    assert {one.groups for one in choose_gallery(items, seed=0)} == {("sample",)}


def test_every_kind_of_error_has_examples():
    items = make_items(300)
    lexicon = read_lexicon("en", SCENES)
    errors = [find_errors("a red ball in the snow", ["a red ball in the snow"], lexicon)] * 300
    for row in (150, 160, 170):
        errors[row] = find_errors("a red ball in the snow", ["a red ball on the snow"], lexicon)
    chosen = choose_gallery(items, 0, errors)
    assert set(rows_of(chosen, "relation")) == {150, 160, 170}
    assert len(rows_of(chosen, "right")) == len(chosen) - 3
    plenty = [errors[150]] * 300
    assert len(rows_of(choose_gallery(items, 0, plenty), "relation")) >= PER_KIND


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


def test_cards_name_the_wrong_words_and_the_groups_are_counted():
    items = make_items(30)
    shown = cards(choose_gallery(items, 0), items, Thumbnails(0), side=10)
    wrong = [card for card in shown if card.wrong]
    assert {card.wrong for card in wrong} == {("blue",)} and len(wrong) == 15
    assert filters(shown, {"best": "Best", "count": "Count"}) == [("best", "Best", 10)]


def test_words_are_right_if_a_reference_has_them():
    assert marks("A red ball.", ["the red dog", "a Ball"]) == [("A", "right"), ("red", "right"), ("ball", "right")]
    assert marks("a blue ball", ["a red ball"], unmarked={"a"}) == [("blue", "wrong"), ("ball", "right")]


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


def test_share_of_right_words():
    assert share_of_right_words([mark_words("red ball", ["red cup"]), mark_words("a", ["a"])]) == pytest.approx(200 / 3)
    assert share_of_right_words([mark_words("red", [])]) is None


def test_the_closest_reference():
    references = ["a dog", "the red ball is in the snow", "a red ball in snow"]
    assert closest_reference("a red ball in the snow", references) in (1, 2)
    assert closest_reference("a red ball in snow", references) == 2
    assert closest_reference("nothing shared", references) is None and closest_reference("", references) is None


@pytest.mark.parametrize(
    ("hypothesis", "expected"),
    [
        ("a red ball in the snow", set()),
        ("a blue ball in the snow", {"colour"}),
        ("a red cup in the snow", {"object"}),
        ("a red ball on the snow", {"relation"}),
        ("two red balls in the snow", {"count"}),
        ("a tiny red ball in the snow", {"other"}),
        ("a blue cup in the snow", {"colour", "object"}),
        ("a red ball", {"object", "relation"}),
    ],
)
def test_errors_are_grouped_by_kind(hypothesis, expected):
    lexicon = read_lexicon("en", SCENES)
    assert set(find_errors(hypothesis, ["There is a red ball in the snow."], lexicon).kinds) == expected


def test_a_word_that_some_references_lack_is_not_missing():
    lexicon = read_lexicon("en", SCENES)
    errors = find_errors("a red ball", ["a red ball in the snow", "the big red ball"], lexicon)
    assert errors.kinds == ()


def test_articles_are_no_errors_and_digits_are_numbers():
    lexicon = read_lexicon("en", PHOTOS)
    assert find_errors("the 2 dogs run", ["two dogs run"], lexicon).kinds == ()
    assert find_errors("three dogs run", ["two dogs run"], lexicon).kinds == ("count",)


def test_nouns_of_photographs_begin_and_end_noun_phrases():
    nouns = read_lexicon("en", PHOTOS).nouns
    assert {"dog", "grass", "river", "man", "umbrella", "bench", "park", "ball"} <= nouns
    assert nouns.isdisjoint({"small", "run", "running", "sitting", "sit"})
    assert not read_lexicon("en", PHOTOS).is_generated and read_lexicon("en", SCENES).is_generated


def test_german_and_french_colours_agree():
    german = read_lexicon("de", ["Es gibt einen roten Ball im Schnee."])
    assert find_errors("ein roter Ball im Schnee", ["Es gibt einen roten Ball im Schnee."], german).kinds == ()
    assert find_errors("ein blauer Ball im Schnee", ["Es gibt einen roten Ball im Schnee."], german).kinds == (
        "colour",
    )
    french = read_lexicon("fr", ["une balle verte sur la plage", "un arbre vert dans la neige"])
    assert find_errors("un arbre blanc dans la neige", ["un arbre vert dans la neige"], french).kinds == ("colour",)
    assert nouns_of([["une", "voiture", "rapide"], ["la", "voiture"]], french._replace(nouns=frozenset())) == {
        "voiture"
    }


def test_other_languages_have_no_kinds():
    assert read_lexicon("zh", ["一只红色的球"]) is None and read_lexicon("", []) is None


@pytest.mark.parametrize(
    ("word", "lang", "expected"),
    [
        ("dogs", "en", "dog"),
        ("glass", "en", "glass"),
        ("benches", "en", "bench"),
        ("ladies", "en", "lady"),
        ("people", "en", "person"),
        ("bus", "en", "bus"),
        ("balles", "fr", "balle"),
        ("haus", "de", "haus"),
    ],
)
def test_singular(word, lang, expected):
    assert singular(word, lang) == expected


def test_groups_count_sentences_and_confused_words():
    lexicon = read_lexicon("en", SCENES)
    reference = ["there is a red ball in the snow"]
    errors = [
        find_errors(text, reference, lexicon)
        for text in ("a red cup in the snow",) * 2 + ("a red ball in the snow",) * 2
    ]
    groups = {group.kind: group for group in group_errors(errors)}
    assert groups["object"].sentences == 2 and groups["object"].percentage == 50
    assert groups["object"].confusions == (("cup", "ball", 2),)
    assert groups["colour"].sentences == 0 and groups["colour"].confusions == ()
    assert all(group.percentage == 0 for group in group_errors([]))


def test_words_are_split_without_punctuation():
    assert words_of("A dog's ball, 2 CUPS!") == ["a", "dog's", "ball", "2", "cups"]
