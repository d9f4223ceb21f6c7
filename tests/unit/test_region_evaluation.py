"""Dense captioning from a collection to boxes with sentences: training, evaluation, retrieval, commands, report."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from limner.apps.cli import app
from limner.data.collection import Collection, write_items
from limner.data.dataset import Examples
from limner.data.examples import Item, ItemSentence, Region
from limner.data.languages import RegionItem, TargetLanguage, region_items
from limner.decoding.settings import DecodingSettings
from limner.errors import FeatureError, RunError, SettingsError
from limner.evaluation import regions as evaluation
from limner.evaluation.evaluate import EvaluationOptions, evaluate
from limner.evaluation.regions import RegionOptions
from limner.evaluation.validate import validate
from limner.features.encoders.load import load_backbone
from limner.features.extract import extract
from limner.features.store import RegionStore, pixel_box, relative_box
from limner.inference.features import open_features
from limner.inference.regions import (
    RegionCaptioner,
    describe_regions,
    detect_regions,
    region_log_probs,
    retrieve_regions,
)
from limner.metrics.base import MetricUnavailable, Score
from limner.metrics.dense_captioning import DenseCaptions, localisation_score, match
from limner.runs.recipe import Recipe
from limner.runs.trained_model import load_trained_model
from limner.text.tokenizer import Tokenizer
from limner.text.words import TextSettings
from limner.training.loop import train

MODEL = {
    "name": "dense_captioner",
    "localisation": {"filters": 6, "anchor_scales": [0.4], "sampled_regions": 8},
    "region_size": 2,
    "code_dim": 8,
    "embedding_dim": 5,
    "hidden_dim": 6,
    "image_encoder": {"convnet_width": 4},
}
RECIPE = {
    "features": {"tables": ["pixels32"]},
    "model": MODEL,
    "training": {"epochs": 1, "batch_size": 2, "metrics": [], "precision": "fp32"},
    "decoding": {"max_length": 4},
}


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """Six images of 60 x 40 pixels with two described boxes, one without; the first box has two descriptions."""
    folder = tmp_path_factory.mktemp("regions")
    items = []
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 255, (40, 60, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        left = (6.0 + number, 4.0, 30.0, 20.0)
        tree = Region((30.0, 10.0, 24.0, 28.0), "a tree")
        regions = (Region(left, "a red ball"), Region(left, "the ball"), tree, Region(left, " "))
        split = "train" if number < 4 else "test" if number == 4 else "val"
        sentences = (ItemSentence("en", "a red ball and a tree"),)
        items.append(Item(f"{number}", split, f"../{number}.png", sentences=sentences, regions=regions))
    Image.fromarray(pixels).save(folder / "6.png")
    items.append(Item("6", "test", "../6.png"))
    write_items(folder / "collection", items)
    opened = Collection.open(folder / "collection")
    extract(opened, load_backbone("pixels:32"))
    return opened


@pytest.fixture(scope="module")
def run(collection, tmp_path_factory):
    return train(Recipe.model_validate(RECIPE), collection, tmp_path_factory.mktemp("runs") / "dense")


def words_in_common(sentences, references):
    """A similarity that needs no extra: the largest share of common words."""
    return np.array(
        [
            max(len(set(s.split()) & set(r.split())) / max(1, len(set(s.split()) | set(r.split()))) for r in own)
            for s, own in zip(sentences, references, strict=True)
        ]
    )


@pytest.fixture
def without_meteor(monkeypatch):
    monkeypatch.setattr(
        evaluation.dense_captioning, "meteor_similarity", lambda lang: (words_in_common, "common words")
    )


def test_every_described_region_is_an_item():
    box = (1.0, 2.0, 3.0, 4.0)
    regions = (Region(box, "a dog"), Region(box, " "), Region((1.0, 2.0, 0.0, 4.0), "a line"), Region(box, "a cat"))
    found = region_items([Item("x", "train", "x.jpg", regions=regions), Item("y", "train", regions=regions)], "en")
    assert [(item.id, item.texts("en")) for item in found] == [("x#0", ["a dog"]), ("x#3", ["a cat"])]
    assert all(isinstance(item, RegionItem) and item.whole == Item("x", "train", "x.jpg") for item in found)


@pytest.mark.parametrize("encoded", [(0.0, 0.0, 60.0, 40.0), (10.0, 0.0, 50.0, 40.0)])
def test_boxes_are_fractions_of_the_encoded_part(encoded):
    box = (15.0, 4.0, 30.0, 20.0)
    relative = relative_box(box, encoded)
    np.testing.assert_allclose(pixel_box(relative.tolist(), encoded), box, atol=1e-5)
    width = encoded[2] - encoded[0]
    np.testing.assert_allclose(relative, [(30 - encoded[0]) / width, 14 / 40, 30 / width, 0.5], rtol=1e-6)
    left_of_it = relative_box((0.0, 0.0, 20.0, 40.0), (10.0, 0.0, 50.0, 40.0))
    np.testing.assert_allclose(left_of_it, [0.125, 0.5, 0.25, 1.0])


def test_an_epoch_has_one_example_of_each_image_with_all_its_regions(collection):
    examples = region_examples(collection, "train")
    assert len(examples) == 12
    rows = examples.epoch_rows(1, 0)
    assert len(rows) == 4
    batch = examples.batch(rows[:2])
    assert batch.regions is not None and batch.image.box is not None
    assert batch.regions.row.tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(batch.regions.box[2], [42 / 60, 24 / 40, 24 / 60, 28 / 40])
    np.testing.assert_allclose(batch.image.box[1], [22 / 60, 14 / 40, 30 / 60, 20 / 40])
    inputs = examples.generation_inputs()
    assert [one.references for one in inputs[:2]] == [("a red ball", "the ball"), ("a tree",)]


def test_evaluation(collection, run, without_meteor):
    result = evaluate([load_trained_model(run)], collection, options=EvaluationOptions(metrics=("bleu1",)))
    scores = {score.name: score for score in result.scores}
    assert {"map", "localisation_map", "region_r1", "region_median_rank", "bleu1", "perplexity"} <= set(scores)
    assert not any(name.startswith("text_to_image") for name in scores)
    assert "common words" in scores["map"].signature and "final_nms:0.3" in scores["map"].signature
    assert 0 <= scores["map"].value <= scores["localisation_map"].value
    assert "images:2" in scores["map"].signature
    assert [image.id for image in result.regions] == ["4", "6"]
    assert [len(image.annotated) for image in result.regions] == [3, 0]  # the region without a text is left out


def region_examples(collection, split, **options):
    tokenizer = Tokenizer.train(["a red ball", "the ball", "a tree"], TextSettings())
    features = RegionStore.open(collection, ["pixels32"], 10)
    return Examples.of_split(collection, split, TargetLanguage("en", tokenizer, of_regions=True), features, **options)


def test_regions_that_a_centre_crop_removes_are_neither_trained_on_nor_evaluated(
    collection, run, without_meteor, monkeypatch, caplog
):
    monkeypatch.setattr(RegionStore, "encoded_part", lambda self, item: (0.0, 0.0, 30.0, 40.0))  # the tree is outside
    examples = region_examples(collection, "train")
    assert "split 'train': 8 of 16 regions are left out" in caplog.text
    batch = examples.batch(examples.epoch_rows(1, 0))
    assert batch.regions is not None and len(batch.regions.box) == 8
    assert (batch.regions.box[:, 2:] > 0).all() and batch.image.box is not None and (batch.image.box[:, 2:] > 0).all()
    assert all(one.references == ("a red ball", "the ball") for one in examples.generation_inputs())
    result = evaluate([load_trained_model(run)], collection, options=EvaluationOptions(metrics=("bleu1",)))
    texts = [{region.text for region in image.annotated} for image in result.regions]
    assert texts == [{"a red ball", "the ball"}, set()]
    assert "split 'test': 2 of 4 regions are left out" in caplog.text


def test_detections_in_an_image_without_regions_are_wrong(collection, run, monkeypatch):
    """Of two images with the same detection, one has no annotation: precision is 1/2 where the wrong one is first."""
    corpora = []
    monkeypatch.setattr(
        evaluation.dense_captioning, "dense_captioning_scores", lambda corpus, *_: corpora.append(corpus) or []
    )
    model = load_trained_model(run)
    examples = region_examples(collection, "test")
    evaluation.region_precision(model, examples, model.recipe.decoding, 10)
    annotated, other = corpora[0]
    assert annotated.annotated_boxes.shape == (3, 4) and other.annotated_boxes.shape == (0, 4)
    box = annotated.annotated_boxes[-1:]
    own = annotated._replace(boxes=box, confidences=np.array([0.5]), sentences=["a tree"])
    wrong = other._replace(boxes=box, confidences=np.array([0.9]), sentences=["a tree"])
    assert localisation_score(match([own]), 1).value == pytest.approx(51)  # one of two boxes: recall 0, 0.01, …, 0.5
    assert localisation_score(match([own, wrong]), 2).value == pytest.approx(25.5)


def test_boxes_without_area_are_no_detections():
    """Two false detections before the right one would lower its precision to 1/3; all that is found is kept."""
    tree = np.array([[30.0, 10.0, 24.0, 28.0]])
    boxes = np.concatenate([[[60.0, 3.0, 0.0, 9.0], [4.0, 40.0, 8.0, 0.0]], tree])
    image = DenseCaptions(boxes, np.array([0.9, 0.8, 0.2]), ["a ball"] * 2 + ["a tree"], tree, ["a tree"])
    assert localisation_score(match([image]), 1).value == 100
    nothing = image._replace(boxes=boxes[:0], confidences=np.zeros(0), sentences=[])
    assert localisation_score(match([nothing]), 1).value == 0


def test_a_model_whose_boxes_all_leave_the_image_finds_nothing(collection, run, without_meteor):
    model = load_trained_model(run)
    with torch.no_grad():
        model.model.final_box.bias.copy_(torch.tensor([1e6, 0.0, 0.0, 0.0]))
    result = evaluate([model], collection, options=EvaluationOptions(metrics=("bleu1",)))
    scores = {score.name: score.value for score in result.scores}
    assert scores["map"] == scores["localisation_map"] == scores["region_r10"] == 0
    assert [image.detected for image in result.regions] == [(), ()]
    captioner = RegionCaptioner.load(run)
    captioner.model.model.load_state_dict(model.model.state_dict())
    assert captioner.describe([collection.image_path(collection.items("test")[0])]) == [[]]
    assert retrieve_regions(model, "a red ball", collection, split="train") == []


def test_images_without_features_are_counted_or_refused(collection, run, without_meteor, monkeypatch):
    covers = RegionStore.covers
    monkeypatch.setattr(RegionStore, "covers", lambda self, item: item.id != "6" and covers(self, item))
    model = load_trained_model(run)
    options = EvaluationOptions(metrics=("bleu1",), skip_missing=True)
    result = evaluate([model], collection, options=options)
    assert result.left_out == 1
    assert [image.id for image in result.regions] == ["4"]
    with pytest.raises(FeatureError, match="1 item without features"):
        evaluate([model], collection, options=options.model_copy(update={"skip_missing": False}))


def test_the_metrics_of_regions_alone(collection, run, without_meteor):
    result = evaluate([load_trained_model(run)], collection, options=EvaluationOptions(metrics=("map",)))
    names = {score.name for score in result.scores}
    assert "map" in names and not names & {"bleu1", "cider", "perplexity"} and result.items == ()


def test_metrics_of_regions_need_a_model_that_describes_regions(tiny, recipe_of, tmp_path):
    train(recipe_of(epochs=1), tiny, tmp_path / "captioner")
    with pytest.raises(SettingsError, match="metric 'map': expected a model that describes regions, got 'mrnn'"):
        evaluate([load_trained_model(tmp_path / "captioner")], tiny, options=EvaluationOptions(metrics=("map",)))


def test_a_baseline_has_no_scores_of_the_sentences_of_the_model(collection, run, without_meteor):
    model, regions = load_trained_model(run), RegionOptions(baseline="frequent")
    result = evaluate([model], collection, options=EvaluationOptions(regions=regions))
    assert {score.name for score in result.scores} == {"map", "localisation_map"}
    assert result.items == ()
    shuffled = EvaluationOptions(regions=regions, image_control="shuffled")
    with pytest.raises(SettingsError, match="expected image control 'right'"):
        evaluate([model], collection, options=shuffled)


def test_validation_detects_regions(collection, run, without_meteor):
    model, examples = load_trained_model(run), region_examples(collection, "test")
    names = ("map", "localisation_map", "perplexity")
    values = validate(model, examples, names)
    assert set(values) == set(names)
    options = RegionOptions(retrieval_images=0)
    full, _ = evaluation.evaluate_regions(model, examples, collection, model.recipe.decoding, options)
    assert values["map"] == full[0].value and values["localisation_map"] == full[1].value
    first = evaluation.region_precision(model, examples, model.recipe.decoding, 1)
    assert "images:1|" in first[0].signature and "images:2|" in full[0].signature
    assert set(validate(model, examples, ["localisation_map"])) == {"localisation_map"}


def test_the_metric_of_regions_selects_the_weights(collection, without_meteor, tmp_path, monkeypatch):
    monkeypatch.setattr("limner.training.setup.score_sentences", lambda *_: [True])  # METEOR
    training = {**RECIPE["training"], "epochs": 3, "metric": "map", "metrics": ["perplexity", "localisation_map"]}
    values = iter([2.0, 5.0, 3.0])

    def precision(model, examples, decoding, count):
        assert not model.model.training and count == 200
        return [Score("map", next(values), ""), Score("localisation_map", 1.0, "")]

    monkeypatch.setattr("limner.evaluation.validate.region_precision", precision)
    found = train(Recipe.model_validate({**RECIPE, "training": training}), collection, tmp_path / "run")
    facts = load_trained_model(found).config.provenance
    assert (facts["validation_map"], facts["epochs"]) == (5.0, 2)
    assert "validation_perplexity" in facts
    other = {**RECIPE, "model": {"name": "mrnn"}, "training": training}
    with pytest.raises(SettingsError, match="'map' needs a model that describes regions, got 'mrnn'"):
        Recipe.parse(other)


@pytest.mark.parametrize("baseline", ["frequent", "nearest", "caption"])
def test_baselines_share_the_boxes(collection, run, without_meteor, baseline, tmp_path):
    own = RegionOptions(retrieval_images=0)
    captioner = tmp_path / "captioner"
    if baseline == "caption":
        recipe = {**RECIPE, "model": {"name": "mrnn", "embedding_dim": 4, "hidden_dim": 4, "multimodal_dim": 4}}
        train(Recipe.model_validate(recipe), collection, captioner)
    options = own.model_copy(update={"baseline": baseline, "captioner": captioner})
    model = load_trained_model(run)
    examples = region_examples(collection, "test")
    (scores, images), (others, other_images) = (
        evaluation.evaluate_regions(model, examples, collection, model.recipe.decoding, one) for one in (own, options)
    )
    assert scores[1].value == others[1].value
    assert [one.box for one in images[0].detected] == [one.box for one in other_images[0].detected]
    texts = {one.text for one in other_images[0].detected}
    if baseline == "nearest":
        assert texts <= {"a red ball", "the ball", "a tree"}
    else:
        assert len(texts) == 1
    assert f"baseline:{baseline}" in others[0].signature


def test_the_caption_baseline_needs_a_captioner(collection, run):
    model = load_trained_model(run)
    with pytest.raises(SettingsError, match="use --region-captioner"):
        options = RegionOptions(baseline="caption")
        examples = region_examples(collection, "test")
        evaluation.evaluate_regions(model, examples, collection, model.recipe.decoding, options)


def test_without_meteor_the_boxes_are_evaluated(collection, run, monkeypatch, caplog):
    def unavailable(lang):
        def similarity(sentences, references):
            raise MetricUnavailable("METEOR is missing")

        return similarity, ""

    monkeypatch.setattr(evaluation.dense_captioning, "meteor_similarity", unavailable)
    monkeypatch.setattr("limner.metrics.dense_captioning.OVERLAPS", (0.01,))
    model = load_trained_model(run)
    scores, _ = evaluation.evaluate_regions(
        model, region_examples(collection, "test"), collection, model.recipe.decoding, RegionOptions(retrieval_images=0)
    )
    assert [score.name for score in scores] == ["localisation_map"]
    assert "METEOR is missing (left out: map)" in caplog.text


def test_retrieved_regions_are_ranked_by_log_probability(collection, run):
    found = retrieve_regions(load_trained_model(run), "a red ball", collection, split="train", count=3)
    assert len(found) == 3
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert all(one.score < 0 and one.image.endswith(f"{one.id}.png") for one in found)
    assert all(0 <= one.confidence <= 1 and one.description for one in found)


def test_regions_of_low_confidence_are_left_out(collection, run):
    model = load_trained_model(run)
    every = retrieve_regions(model, "a red ball", collection, split="train", count=1000)
    bound = sorted(one.confidence for one in every)[len(every) // 2]
    some = retrieve_regions(model, "a red ball", collection, split="train", count=1000, min_confidence=bound)
    assert [one.box for one in some] == [one.box for one in every if one.confidence >= bound] != []
    assert len(some) < len(every)
    assert retrieve_regions(model, "a red ball", collection, min_confidence=1.0) == []
    image = collection.image_path(collection.items("test")[0])
    captioner = RegionCaptioner.load(run)
    (found,), (kept,) = captioner.describe([image]), captioner.describe([image], min_confidence=bound)
    assert [one.box for one in kept] == [one.box for one in found if one.score >= bound]


def test_words_of_descriptions_have_a_bonus_that_is_no_part_of_their_probability(collection, run):
    model = load_trained_model(run)
    (regions,) = detect_regions(model, collection.items("test")[:1], open_features(model, collection), count=3)
    assert regions.bonus is None
    bonus = np.zeros(len(model.tokenizer), np.float32)
    bonus[model.tokenizer.token_id("tree")] = 50
    described = describe_regions(model, regions._replace(bonus=bonus), DecodingSettings(beam_size=8, max_length=3))
    assert all(description.tokens.count(model.tokenizer.token_id("tree")) for description in described)
    log_probs = region_log_probs(model, regions.codes, [description.tokens for description in described])
    ended = [row for row, description in enumerate(described) if description.ended]  # the end has a probability as well
    expected = [float(log_probs[row, row]) for row in ended]
    assert [described[row].log_prob for row in ended] == pytest.approx(expected, abs=1e-4)
    assert ended


def test_concepts_need_features_of_the_built_in_backbone(collection, tmp_path):
    recipe = {**RECIPE, "model": {**MODEL, "detection": {"concept_weight": 0.5}}}
    with pytest.raises(SettingsError, match=r"concept_weight: concepts need a built-in captioner of the language 'en'"):
        train(Recipe.model_validate(recipe), collection, tmp_path / "run")


def test_a_model_without_regions_is_refused(collection, tmp_path):
    recipe = {**RECIPE, "model": {"name": "mrnn", "embedding_dim": 4, "hidden_dim": 4, "multimodal_dim": 4}}
    model = load_trained_model(train(Recipe.model_validate(recipe), collection, tmp_path / "run"))
    with pytest.raises(RunError, match="expected a model that detects regions, got 'mrnn'"):
        RegionCaptioner(model)


def test_commands(collection, run, tmp_path):
    image = str(collection.image_path(collection.items("test")[0]))
    runner, out, regions = CliRunner(), tmp_path / "boxes.png", ("--model", str(run), "--regions")
    result = runner.invoke(app, ["describe", image, *regions, "2", "--sheet", str(out), "--json"])
    assert result.exit_code == 0, result.output
    (record,) = json.loads(result.stdout)
    assert record["image"] == image
    found = record["regions"]
    assert len(found) == 2 and set(found[0]) == {"box", "text", "score", "log_prob"}
    assert found[0]["score"] >= found[1]["score"]
    left, top, width, height = found[0]["box"]
    assert left >= -1e-3 and top >= -1e-3 and left + width <= 60.001 and top + height <= 40.001
    with Image.open(out) as drawing:
        assert max(drawing.size) == 640
    other = str(collection.image_path(collection.items("val")[0]))
    several = ["describe", image, other, "missing.png", *regions, "1"]
    result = runner.invoke(app, [*several, "--sheet", str(tmp_path / "drawings")])
    assert result.exit_code == 1 and "missing.png" in result.stderr
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == [image, other]
    assert sorted(path.name for path in (tmp_path / "drawings").iterdir()) == ["4.png", "5.png"]
    result = runner.invoke(app, ["describe", "-", *regions, "1", "--sheet", str(out)], input=f"{image}\n{other}\n")
    assert isinstance(result.exception, SettingsError) and "expected a folder" in str(result.exception)
    with pytest.raises(SettingsError, match=r"^--sheet: draws the boxes of --regions"):
        raise runner.invoke(app, ["describe", image, "--sheet", str(out)]).exception
    for option in ("--tags", "--n-best=2", "--prefix=a", "--explain-beam=-", "--lang=de", "--write=csv"):
        with pytest.raises(SettingsError, match=rf"^{option.partition('=')[0]}: has no effect on --regions"):
            raise runner.invoke(app, ["describe", image, *regions, "1", option]).exception
    with pytest.raises(SettingsError, match=r"^--regions: the built-in captioner and models of the hub do not"):
        raise runner.invoke(app, ["describe", image, "--regions", "1"]).exception
    result = runner.invoke(app, [*several, "--sheet", str(out)])
    assert result.exit_code != 0 and isinstance(result.exception, SettingsError)
    folder = str(collection.path.parent)
    (collection.path.parent / "clip.mp4").touch()  # videos in a folder are left alone
    result = runner.invoke(app, ["describe", folder, *regions, "1"])
    assert result.exit_code == 0 and len(result.stdout.splitlines()) == 7
    command = ["search", "a tree", "--regions", "--model", str(run), "--collection", str(collection.path)]
    result = runner.invoke(app, [*command, "--split", "test", "--count", "1"])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    command[1] = image
    with pytest.raises(SettingsError, match=r"expected a sentence, .* 'limner describe --regions'"):
        raise runner.invoke(app, command).exception
