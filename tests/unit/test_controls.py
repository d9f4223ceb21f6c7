"""Image controls: which features each item gets, and their effect on evaluation."""

import math
import shutil

import numpy as np
import pytest

from limner.data.dataset import Examples
from limner.data.examples import Item, collate_features
from limner.decoding.scoring import score_examples
from limner.errors import SettingsError
from limner.evaluation.evaluate import EvaluationOptions, evaluate
from limner.evaluation.retrieval import nearest_images
from limner.features.store import FeatureStore
from limner.inference.features import (
    ControlFeatures,
    control_features,
    mean_features,
    mean_training_features,
    open_features,
)
from limner.runs.recipe import EvaluationSettings, load_recipe
from limner.runs.records import read_evaluations, save_evaluation
from limner.runs.trained_model import load_trained_model
from limner.training.loop import train


@pytest.fixture(scope="module")
def right(model, tiny):
    return evaluate([model], tiny, options=EvaluationOptions(metrics=("bleu2",)))


def values(evaluation):
    return {score.name: score.value for score in evaluation.scores}


class IdFeatures:
    """The features of each item are its id."""

    def take(self, items):
        return [None if item.media_path is None else {"pooled": np.array([float(item.id)])} for item in items]


def numbered(count, text_only=()):
    return [Item(str(k), "test", image=None if k in text_only else f"{k}.png") for k in range(count)]


@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize("seed", range(5))
def test_shuffled_uses_every_image_once_and_never_an_items_own(count, seed):
    items = numbered(count)
    features = [int(one["pooled"][0]) for one in ControlFeatures.shuffled(IdFeatures(), items, seed).take(items)]
    assert sorted(features) == list(range(count))
    assert all(image != item for item, image in enumerate(features))


def test_the_seed_decides_the_shuffle():
    items = numbered(10)
    one, again, other = (ControlFeatures.shuffled(IdFeatures(), items, seed).take(items) for seed in (1, 1, 2))
    assert one == again != other


def test_items_without_an_image_remain_without_one():
    items = numbered(4, text_only={1})
    for control in (ControlFeatures.shuffled(IdFeatures(), items, 0), ControlFeatures(IdFeatures(), {}, {"pooled": 0})):
        assert [features is None for features in control.take(items)] == [False, True, False, False]


def test_a_single_image_cannot_be_shuffled():
    with pytest.raises(SettingsError, match="expected at least two items with an image, got one \\('0'\\)"):
        ControlFeatures.shuffled(IdFeatures(), numbered(2, text_only={1}), 0)


def test_the_mean_is_that_of_the_training_split_for_each_kind(model, tiny):
    features = FeatureStore.open(tiny, ["colour", "pixels16"], 64)
    mean = mean_training_features(model, tiny, features)
    rows = [
        {kind: value.astype(np.float64) for kind, value in stored.items()}
        for stored in features.take(tiny.items("train"))
    ]
    for kind in ("pooled", "maps"):
        expected = np.mean([row[kind] for row in rows], axis=0)
        np.testing.assert_allclose(mean[kind], expected, rtol=1e-3)
        np.testing.assert_array_equal(mean_features(features, tiny.items("train"), batch_size=3)[kind], mean[kind])


def test_zeros_count_as_a_present_image(model, tiny):
    items = tiny.items("test")
    shown = control_features(model, tiny, open_features(model, tiny), "zero", items, 1)
    image = collate_features(shown.take(items))
    assert image.present.all()
    assert not image.pooled.any()


def test_a_shuffled_evaluation_scores_shuffled_features(model, tiny, right):
    result = evaluate([model], tiny, options=EvaluationOptions(metrics=("bleu2",), image_control="shuffled"))
    examples = Examples.of_split(tiny, "test", model.target, open_features(model, tiny), max_tokens=80)
    shuffled = examples.with_features(ControlFeatures.shuffled(examples.features, examples.items, 1))
    assert values(result)["perplexity"] == pytest.approx(score_examples(model.model, shuffled).perplexity.value)
    assert values(result)["perplexity"] > 1.3 * values(right)["perplexity"]  # one word in four is a colour
    assert values(result)["bleu2"] < values(right)["bleu2"]
    assert values(result)["text_to_image_curve_area"] < values(right)["text_to_image_curve_area"]
    assert {one.image for one in result.items} == {one.image for one in right.items}


@pytest.mark.parametrize("control", ["mean", "zero"])
def test_constant_features_give_one_caption_and_no_retrieval(model, tiny, control):
    result = evaluate([model], tiny, options=EvaluationOptions(metrics=("bleu2",), image_control=control))
    assert len({item.hypothesis for item in result.items}) == 1
    assert result.retrieval is None  # every order would be a tie
    assert not any(name.startswith(("text_to_image", "image_to_text")) for name in values(result))


def test_a_control_is_part_of_signatures_and_file_names(model, tiny, right, tmp_path):
    result = evaluate([model], tiny, options=EvaluationOptions(metrics=("bleu2",), image_control="shuffled", seed=3))
    assert all(score.signature.endswith("|images:shuffled,seed3") for score in result.scores)
    assert not any("images:" in score.signature for score in right.scores)
    names = [save_evaluation(evaluation, tmp_path).name for evaluation in (right, result)]
    assert names == ["test.json", "test-images_shuffled.json"]
    assert len(read_evaluations(tmp_path)) == 2


@pytest.mark.parametrize(
    "text_only",
    [
        {"name": "mrnn", "variant": "RNN-base", "embedding_dim": 8, "hidden_dim": 8, "multimodal_dim": 8},
        {"name": "lbl", "variant": "LBL", "word_dim": 8},
        {"name": "ngram", "order": 2},
    ],
    ids=["RNN-base", "LBL", "ngram"],
)
def test_unused_features_have_no_effect(text_only, tiny, recipe_of, tmp_path):
    recipe = recipe_of("colour", epochs=1, metrics=["perplexity"]).model_dump(mode="json") | {"model": text_only}
    model = load_trained_model(train(type(recipe_of()).parse(recipe), tiny, tmp_path / "run"))
    with pytest.raises(SettingsError, match="image control 'shuffled': this model uses no images"):
        evaluate([model], tiny, options=EvaluationOptions(metrics=("bleu1",), image_control="shuffled"))
    result = evaluate(
        [model], tiny, options=EvaluationOptions(metrics=("bleu1",), measures=EvaluationSettings(shortlist=4))
    )
    assert values(result)["text_to_image_median_rank"] == 8  # all images tie
    features = open_features(model, tiny)
    near = nearest_images(model, tiny.items("test"), features, 4)
    colours = np.stack([stored["pooled"] for stored in features.take(tiny.items("test"))]).astype(float)
    distances = np.linalg.norm(colours[:, None] - colours, axis=2)
    np.testing.assert_allclose(np.take_along_axis(distances, near.numpy(), 1), np.sort(distances)[:, :4], atol=1e-3)


@pytest.mark.parametrize("name", ["gt2", "bow-f", "bow-k", "lbl", "mlbl-f"])
def test_kiros_models_are_evaluated_with_the_settings_of_their_recipes(name, tiny, tmp_path):
    small = ["training.epochs=1", "training.batch_size=16", "text.min_count=1", "decoding.max_length=8"]
    small += ["evaluation.skip_words=1", "evaluation.samples=2", "evaluation.prefix_words=1", "evaluation.shortlist=4"]
    if name not in ("gt2", "lbl"):
        small.append(f"features.tables=[{'pixels16' if name == 'bow-k' else 'colour'}]")
    if name != "gt2":
        small.append("training.optimizer.lr=0.001")
    recipe = load_recipe(f"kiros2014/{name}", small)
    result = evaluate(
        [load_trained_model(train(recipe, tiny, tmp_path / "run"))], tiny, options=EvaluationOptions(metrics=("bleu1",))
    )
    assert math.isfinite(values(result)["perplexity"])
    searched = {score for score in values(result) if score.endswith("match_area")}
    assert len(searched) == (2 if recipe.features.tables else 0)


@pytest.fixture
def command(trained_on_colours, tiny, tmp_path, command_line):
    """Runs 'limner evaluate' on a copy of the run and returns its status, its folder and its messages."""
    folder = shutil.copytree(trained_on_colours, tmp_path / "run")

    def evaluate_with(*arguments):
        options = ("--model", folder, "--collection", tiny.path, "--metric", "bleu1")
        status, _, messages = command_line("evaluate", *options, *arguments)
        return status, folder, messages

    return evaluate_with


def test_the_command_applies_a_control_and_settings(command):
    changes = ["evaluation.samples=2", "decoding.max_length=9", "evaluation.shortlist=3", "--image-control", "shuffled"]
    status, folder, _ = command(*changes)
    assert status == 0
    (result,) = read_evaluations(folder)
    assert result.name == "test-beam1,penalty0,max_length9-samples2,shortlist3-images_shuffled"
    assert {"sampled_bleu1", "image_to_text_match_area"} <= set(values(result))


@pytest.mark.parametrize(
    ("arguments", "expected", "message"),
    [
        (["model.hidden_dim=3"], 1, "'model.hidden_dim=3': expected evaluation.KEY=VALUE or decoding.KEY=VALUE"),
        (["evaluation.sample=3"], 1, "evaluation.sample: unknown key"),
        (["evaluation.shortlist=9"], 1, "expected at most 8, the number of images, got 9"),
        (["--image-control", "down"], 2, "'down' is not one of 'right', 'shuffled', 'mean', 'zero'"),
    ],
)
def test_invalid_arguments_are_named(command, arguments, expected, message):
    status, folder, err = command(*arguments)
    assert status == expected
    assert message in " ".join(err.replace("│", "").split())
    assert not read_evaluations(folder)
