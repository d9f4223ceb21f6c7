"""The beginning of a report: headline numbers and baselines; curves, retrieval and provenance."""

import pytest
from PIL import Image

from limner.apps.report.gallery import ITEMS_PER_GROUP, by_position_error, cards, choose_gallery, mark_words
from limner.apps.report.images import Thumbnails
from limner.apps.report.page import choose_first_evaluation, learning_curves, run_facts, write_report
from limner.apps.report.scores import HEADLINES, Baseline, baselines, headlines, random_ranking
from limner.apps.report.sections import image_queries, sentence_queries
from limner.media.modality import IMAGE
from limner.metrics import Score
from limner.runs.evaluations import EvaluatedItem, Evaluation
from limner.runs.records import LogLine, RunConfig


def compared(evaluation, name, evaluations=(), published=(), **options):
    return baselines(evaluation, [Score(name, 1.0, "")], evaluations, dict(published), **options)[name]


def an_evaluation(**values):
    given = {"split": "test", "collection": "c", "fingerprint": "0", "command": "limner evaluate", "seconds": 1.0}
    return Evaluation.model_validate({**given, **values})


def an_item(name, text, *references, source=None):
    return EvaluatedItem(
        id=name, hypothesis=text, references=references, tokens=text, reference_tokens=references, source=source
    )


def labelled(right, *predicted):
    items = [
        EvaluatedItem(id=f"{k}", hypothesis=f"{one} (0.9000)", references=(right[k],))
        for k, one in enumerate(predicted)
    ]
    return an_evaluation(items=items)


@pytest.mark.parametrize(
    ("name", "signature", "expected"),
    [
        ("text_to_image_r1", "queries:1000|candidates:200|ties:worst", 0.5),
        ("text_to_image_r5", "queries:1000|candidates:200|ties:worst", 2.5),
        ("text_to_image_median_rank", "queries:1000|candidates:200|ties:worst", 100),
        ("image_to_text_r1", "queries:200|candidates:1000|ties:worst", 0.5),
        ("image_to_text_r10", "queries:2|candidates:4|ties:worst", 100),
        ("bleu4", "nrefs:5", None),
        ("image_to_text_r1", "ties:worst", None),
    ],
)
def test_random_ranking(name, signature, expected):
    assert random_ranking(Score(name, 1.0, signature)) == (None if expected is None else pytest.approx(expected))


def test_other_items_get_the_sentences():
    texts = "a red ball lies in the deep snow", "two green trees stand near a house"
    (found,) = compared(an_evaluation(items=[an_item(str(k), text, text) for k, text in enumerate(texts)]), "bleu1")
    assert found.label == "captions of other images" and found.value < 20
    (found,) = compared(an_evaluation(items=[an_item("0", "b", "b", source="a")] * 2), "bleu1")
    assert found.label == "translations of other sentences"


def test_labels_are_compared_with_the_most_frequent_one():
    found = compared(labelled("aab", "a", "b", "b"), "accuracy", lang="label")
    assert found == [Baseline("always 'a'", pytest.approx(200 / 3))]


def test_positions_are_compared_with_their_mean():
    items = [
        EvaluatedItem(id=str(k), hypothesis="0.00,0.00 (1.0000)", references=(f"{x},20.00",))
        for k, x in enumerate((10, 30))
    ]
    (found,) = compared(an_evaluation(items=items), "position_error", lang="track")
    assert found == Baseline("always the mean position", 10)


def test_controls_region_baselines_and_published_values_are_compared():
    score = {"name": "map", "value": 1.0, "signature": ""}
    others = [
        an_evaluation(image_control="shuffled", scores=[score]),
        an_evaluation(measured="region_frequent", scores=[{**score, "value": 2.0}]),
        an_evaluation(split="val", image_control="shuffled", scores=[{**score, "value": 9.0}]),
    ]
    published = {"row": "A", "values": {"map": 3.0}}
    found = compared(an_evaluation(scores=[score]), "map", others, published)
    assert [(one.label, one.value) for one in found] == [
        ("images: shuffled", 1.0),
        ("most frequent description", 2.0),
        ("A", 3.0),
    ]
    assert compared(an_evaluation(), "perplexity", vocabulary=50) == [Baseline("uniform over 50 tokens", 50.0)]


def test_headlines_are_the_most_telling_scores():
    names = ("bleu1", "bleu4", "novel", "perplexity", "image_to_text_r1", "text_to_image_r1", "f1:cat")
    scores = [Score(name, 1.0, "") for name in names]
    shown = headlines(an_evaluation(scores=scores), [], {}, IMAGE)
    labels = ["BLEU-4", "Text-to-image retrieval: R@1", "Image-to-text retrieval: R@1", "Perplexity"]
    assert [number["label"] for number in shown] == labels and len(shown) == HEADLINES
    notes = ["higher is better", "higher is better", "higher is better", "lower is better"]
    assert [number["note"] for number in shown] == notes
    assert headlines(an_evaluation(scores=scores[-1:]), [], {}, IMAGE) == []


def test_the_test_split_with_the_settings_of_the_recipe_begins():
    evaluations = [
        an_evaluation(split="test", image_control="shuffled"),
        an_evaluation(split="test", measured="samples3"),
        an_evaluation(split="test"),
        an_evaluation(split="val"),
    ]
    assert choose_first_evaluation(evaluations, "test") is evaluations[2]
    assert choose_first_evaluation(evaluations, "val") is evaluations[3]
    assert choose_first_evaluation(evaluations[:1], "test") is None


def a_log(epochs):
    return [LogLine(step=10 * k, epoch=k, kind="val", loss=1.0, seconds=60.0 * k) for k in range(1, epochs + 1)]


def test_the_kept_epoch_is_marked():
    config = RunConfig(provenance={"epochs": 5, "seconds": 300.0})
    assert learning_curves(config, a_log(13)).kept == "The dashed line is epoch 5 of 13, whose weights are kept."
    assert "kept weights" in learning_curves(config, a_log(13)).charts[0]
    assert learning_curves(RunConfig(), a_log(3)).kept == "" and learning_curves(config, []).charts == []


def test_no_fact_is_listed_twice_with_different_values():
    facts = dict(run_facts(RunConfig(provenance={"epochs": 5, "seconds": 300.0}), a_log(13)))
    assert facts["kept epoch"] == "5" and facts["epochs trained"] == "13" and facts["training time"] == "13 min 0 s"
    assert "epochs" not in facts and "seconds" not in facts
    assert "epochs trained" not in dict(run_facts(RunConfig(provenance={"epochs": 13}), a_log(13)))


def test_strips_end_with_the_described_image():
    items = [{"id": name, "image": f"{name}.jpg", "references": [name], "hypothesis": ""} for name in "abc"]
    retrieval = {
        "text_to_image": [
            {"text": "c", "rank": 7, "image_id": "c", "top": [{"id": "a", "image": "a.jpg", "right": False}]}
        ],
        "image_to_text": [{"id": "b", "image": None, "rank": 9, "top": [{"text": "x", "right": False}]}],
    }
    evaluation = an_evaluation(items=items, retrieval=retrieval)
    (strip,) = sentence_queries(evaluation, Thumbnails(0))
    assert [one["id"] for one in strip["results"]] == ["a"]
    assert [strip["described"][key] for key in ("id", "rank", "has_file")] == ["c", 7, True]
    (query,) = image_queries(evaluation, Thumbnails(0))
    assert query["own"] == "b"


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
    assert rows_of(chosen, "best") == list(range(99, 99 - ITEMS_PER_GROUP, -1))
    assert rows_of(chosen, "worst") == list(range(ITEMS_PER_GROUP))
    assert len(rows_of(chosen, "sample")) == ITEMS_PER_GROUP


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
