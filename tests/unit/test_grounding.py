"""Agreement of attention with the boxes of phrases: geometry, hand-computed scores, a run end to end."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from toy_translation import GridBackbone, image_collection, learn

from limner.apps.diagnosis import GroundingSettings, grounding_verdict, measure_grounding
from limner.apps.diagnosis.annotated_phrases import (
    NOT_ALIGNED,
    WITHOUT_BOX,
    align_phrase,
    centre_prior,
    cover,
    find_phrases,
    pointing_hits,
)
from limner.apps.diagnosis.grounding import OUTSIDE
from limner.apps.report.page import write_report
from limner.apps.report.sections import heat_map_with_boxes
from limner.data.collection import Collection, write_items
from limner.data.examples import Item, ItemSentence, Phrase, Region
from limner.data.languages import TargetLanguage
from limner.errors import SettingsError
from limner.evaluation.measurements import Grounding, GroundingGroup, GroundingScore
from limner.features.extract import extract
from limner.features.preprocessing import Preprocessing, location_cells, preprocess
from limner.models.protocols import Output
from limner.runs.recipe import Recipe
from limner.runs.trained_model import ModelConfig, TrainedModel
from limner.text.tokenizer import Tokenizer
from limner.text.words import TextSettings

SQUASH = Preprocessing(resize="squash", size=8, short=8)
CROP = Preprocessing(resize="crop", size=8, short=8)


@pytest.mark.parametrize(
    ("size", "preprocessing", "first", "last"),
    [
        ((40, 20), CROP, [10, 0, 20, 10], [20, 10, 30, 20]),  # the central square of 20 x 20
        ((20, 40), CROP, [0, 10, 10, 20], [10, 20, 20, 30]),
        # Resized to a short side of 10, then cropped to 8: 8/10 of the square.
        ((40, 20), CROP.model_copy(update={"short": 10}), [12, 2, 20, 10], [20, 10, 28, 18]),
        # A crop larger than the resized image is padded: cells extend beyond the image.
        ((20, 20), CROP.model_copy(update={"short": 4}), [-10, -10, 10, 10], [10, 10, 30, 30]),
    ],
)
def test_cells_of_a_cropped_image_divide_the_crop(size, preprocessing, first, last):
    cells = location_cells(size, preprocessing, (2, 2))
    assert (cells[0].tolist(), cells[-1].tolist()) == (first, last)


def test_cells_are_what_the_backbone_sees():
    """The cell with a white square in it is the location with white pixels."""
    for preprocessing, grid in ((SQUASH, (4, 4)), (CROP, (4, 4))):
        for index, (left, top, right, bottom) in enumerate(location_cells((64, 32), preprocessing, grid)):
            image = Image.new("RGB", (64, 32))
            image.paste((255, 255, 255), (round(left), round(top), round(right), round(bottom)))
            pixels = preprocess(image, preprocessing)[0, ..., 0].reshape(4, 2, 4, 2).mean((1, 3)).ravel()
            assert pixels.argmax() == index


CELLS = location_cells((20, 20), SQUASH, (2, 2))


def test_union_of_random_boxes_against_counted_pixels():
    random = np.random.default_rng(3)
    cells = location_cells((30, 20), SQUASH, (4, 5))
    boxes = [tuple(int(n) for n in (*random.integers(0, 15, 2), *random.integers(1, 12, 2))) for _ in range(4)]
    mask = np.zeros((200, 300), bool)  # ten pixels a unit
    for left, top, width, height in boxes:
        mask[10 * top : 10 * (top + height), 10 * left : 10 * (left + width)] = True
    counted = [mask[round(10 * t) : round(10 * b), round(10 * x) : round(10 * r)].mean() for x, t, r, b in cells]
    assert cover(cells, boxes).inside == pytest.approx(counted)


def test_pointing_divides_ties():
    weights = np.array([[0.5, 0.25, 0.25, 0], [0.4, 0.4, 0.2, 0], [0.25] * 4, [0, 0, 0, 1.0]])
    inside = np.array([[1, 0, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 0]], bool)
    assert pointing_hits(weights, inside).tolist() == [1, 0.5, 0.25, 0]


def test_the_centre_prior_is_a_gaussian_of_the_grid():
    prior = centre_prior((1, 3), 0.25).tolist()
    assert prior[0] / prior[1] == pytest.approx(np.exp(-((1 / 3) ** 2) / (2 * 0.25**2)))
    assert sum(prior) == pytest.approx(1) and prior[0] == pytest.approx(prior[2])


MOSES = TextSettings()


@pytest.mark.parametrize(
    ("settings", "phrase", "words"),
    [
        (MOSES, Phrase(0, "The dog's T-shirt", "1"), ["the", "dog", "'s", "t-shirt"]),
        (MOSES, Phrase(4, "a ball", "1"), ["a", "ball"]),
        (TextSettings(punctuation=False), Phrase(4, "a ball", "1"), ["a", "ball"]),
        (TextSettings(tokenise="space"), Phrase(0, "The dog's T-shirt", "1"), ["the", "dog's", "t-shirt"]),
        (TextSettings(tokenise="space", level="bpe", max_size=30), Phrase(4, "a ball", "1"), ["a", "ball"]),
    ],
)
def test_phrases_are_found_in_the_words_of_the_model(settings, phrase, words):
    text = "The dog's T-shirt , a ball ."
    tokenizer = Tokenizer.train([text], settings)
    assert [tokenizer.words(text)[position] for position in align_phrase(phrase, text, tokenizer)] == words


class Attending(torch.nn.Module):
    """A captioning model of known attention: that of row t is the t-th of its maps."""

    uses_image = True

    def __init__(self, maps):
        super().__init__()
        self.register_buffer("maps", torch.tensor(maps))

    def forward(self, batch):
        rows, steps = batch.target_out.shape
        return Output(torch.zeros(()), attention=self.maps[None, :steps].expand(rows, -1, -1))


TEXT = "a dog sees balls"
MAPS = [  # 'a', 'dog', 'sees', 'balls' and the end of the sentence
    [0.4, 0.2, 0.2, 0.2],
    [0.8, 0.2, 0.0, 0.0],
    [0.0, 0.0, 1.0, 0.0],
    [0.1, 0.5, 0.2, 0.2],
    [0.0, 0.0, 1.0, 0.0],
]
PHRASES = (
    Phrase(0, "a dog", "1", ("animals",)),
    Phrase(3, "balls", "2", ("other",)),
    Phrase(2, "sees", "0", ("notvisual",)),
)
REGIONS = (
    Region((0, 0, 8, 4), "a dog", "1", ("animals",)),  # the upper half of the first cell, of 8 x 8 pixels
    Region((0, 8, 8, 8), "balls", "2", ("other",)),  # the third cell
    Region((8, 8, 4, 8), "balls", "2", ("other",)),  # half of the fourth cell, its centre on the edge
)


def stored(folder, names, *sentences, regions=REGIONS):
    """A collection of items of one image, with features."""
    Image.new("RGB", (16, 16), "red").save(folder / "dog.png")
    write_items(folder, [Item(name, "test", image="dog.png", sentences=sentences, regions=regions) for name in names])
    extract(Collection.open(folder), GridBackbone())
    return Collection.open(folder)


@pytest.fixture
def dogs(tmp_path):
    return stored(tmp_path, "xy", ItemSentence("en", TEXT, 0, phrases=PHRASES), ItemSentence("de", "ein hund", 1))


def trained_on(module, lang="en"):
    recipe = Recipe.parse(
        {
            "data": {"lang": lang},
            "text": {"tokenise": "space"},
            "features": {"tables": ["quarters"]},
            "model": {"name": "mrnn"},
        }
    )
    tokenizer = Tokenizer.train([TEXT, "ein hund"], recipe.text)
    values = {"recipe": recipe.model_dump(mode="json"), "features": GridBackbone().specs, "vocab_size": len(tokenizer)}
    config = ModelConfig(**values)
    return TrainedModel(module.eval(), tokenizer, config, recipe, None)


FEW = GroundingSettings(trials=50)


def test_hand_computed_mass_and_pointing(dogs):
    result = measure_grounding(trained_on(Attending(MAPS)), dogs, settings=FEW)
    # Coverage of 'a dog': (1/2, 0, 0, 0), of 'balls': (0, 0, 1, 1/2). Attention of 'a dog': the mean of the first
    # two rows, (.6, .2, .1, .1). Mass: .3 and .2 + .1. Maxima: location 1 (its centre on the edge of the box, inside)
    # and location 2 (outside).
    everything, animals, other = result.groups
    assert (everything.type, everything.phrases, everything.images) == ("all", 4, 2)
    assert (animals.type, other.type) == ("animals", "other")
    scores = {score.attention: score for score in everything.scores}
    assert list(scores) == ["model", "uniform", "centre", "mean"]
    assert scores["model"].mass == pytest.approx(30) and scores["model"].pointing == pytest.approx(50)
    assert scores["model"].mass_p is None
    # Uniform and centre (a grid of 2 x 2 has no other centre): .125 and .375; a quarter and half of the locations.
    for name in ("uniform", "centre"):
        assert scores[name].mass == pytest.approx(25)
        assert scores[name].pointing == pytest.approx(37.5)
    # Mean of the two phrases: (.35, .35, .15, .15).
    assert scores["mean"].mass == pytest.approx(100 * (0.175 + 0.225) / 2)
    assert scores["mean"].pointing == pytest.approx(100 * (0.5 + 0) / 2)
    assert [score.mass for score in animals.scores] == pytest.approx([30, 12.5, 12.5, 17.5])
    assert animals.correctness == pytest.approx(40)  # the word 'dog'
    assert result.excluded == {WITHOUT_BOX: 2}
    assert (result.sentences, result.grid, result.lang, result.split) == (2, (2, 2), "en", "test")
    assert [(one.phrase, one.id) for one in result.hits] == [("a dog", "x"), ("a dog", "y")]
    assert [(one.phrase, one.mass) for one in result.misses] == [("balls", pytest.approx(30))] * 2
    assert result.hits[0].attention == pytest.approx([0.6, 0.2, 0.1, 0.1])
    assert "inside the boxes" in result.verdict


def test_significance_exchanges_images(tmp_path):
    """With twelve images of equal differences, p is about 2 / 2^12; the phrases of an image are exchanged together."""
    sentence = ItemSentence("en", TEXT, 0, phrases=PHRASES[:1])
    collection = stored(tmp_path, map(str, range(12)), sentence, regions=REGIONS[:1])
    result = measure_grounding(trained_on(Attending(MAPS)), collection, settings=GroundingSettings(trials=2000))
    _, uniform, _, mean = result.groups[0].scores
    assert uniform.mass_p < 0.01
    assert mean.mass_p == 1.0  # one phrase only: the mean attention is the attention
    assert grounding_verdict(result.groups[0]).startswith("The attention prefers the right parts of images, but")


@pytest.mark.parametrize(
    ("masses", "start"),
    [
        ((40, 20, 30, 30), "The attention follows the phrase: 40.0 %"),
        ((40, 20, 45, 30), "The attention follows the phrase, but is not more often inside the boxes than the centre"),
        ((40, 20, 30, 45), "The attention prefers the right parts of images, but does not follow the phrase"),
        ((20, 20.1, 30, 19), "No significant agreement"),
    ],
)
def test_the_verdict_names_the_strongest_claim_that_holds(masses, start):
    names = ("model", "uniform", "centre", "mean")
    scores = [
        GroundingScore(attention=name, mass=mass, pointing=0, mass_p=None if name == "model" else 0.001)
        for name, mass in zip(names, masses, strict=True)
    ]
    group = GroundingGroup(type="all", images=1, phrases=1, correctness=0, scores=tuple(scores))
    assert grounding_verdict(group).startswith(start)
    weak = [score.model_copy(update={"mass_p": 0.2 if score.mass_p else None}) for score in scores]
    assert grounding_verdict(group.model_copy(update={"scores": weak})).startswith("No significant agreement")


def test_phrases_outside_the_crop_are_counted(dogs, monkeypatch):
    model = trained_on(Attending(MAPS))
    outside = CELLS + 1000
    monkeypatch.setattr("limner.apps.diagnosis.grounding.location_cells", lambda *_: outside)
    with pytest.raises(SettingsError, match="split 'test' has only phrases whose boxes are outside"):
        measure_grounding(model, dogs, settings=FEW)
    half = location_cells((8, 8), SQUASH, (2, 2))  # covers the dog alone
    monkeypatch.setattr("limner.apps.diagnosis.grounding.location_cells", lambda *_: half)
    result = measure_grounding(model, dogs, settings=FEW)
    assert result.excluded[OUTSIDE] == 2 and result.groups[0].phrases == 2


def test_errors_say_what_is_needed(dogs):
    class Blind(Attending):
        uses_image = False

    class Inattentive(Attending):
        def forward(self, batch):
            return Output(torch.zeros(()))

    for module in (Blind(MAPS), Inattentive(MAPS)):
        with pytest.raises(SettingsError, match="does not attend over image locations"):
            measure_grounding(trained_on(module), dogs, settings=FEW)
    with pytest.raises(SettingsError, match=r"no phrase with a box in 'de'.*languages with phrases: en"):
        measure_grounding(trained_on(Attending(MAPS), lang="de"), dogs, settings=FEW)


class Frames:
    """Features of four annotations that are no grid."""

    table_names = ("quarters",)

    def covers(self, item):
        return True

    def take(self, items):
        return [{"grid": np.ones((4, 3), np.float16)} for _ in items]


def test_annotations_that_are_no_grid_are_refused(dogs, monkeypatch):
    model = trained_on(Attending(MAPS))
    spec = model.config.features[0].model_copy(update={"grid_size": None})
    model = model._replace(config=model.config.model_copy(update={"features": (spec,)}))
    monkeypatch.setattr("limner.apps.diagnosis.grounding.open_features", lambda *_: Frames())
    with pytest.raises(SettingsError, match="attends over 4 annotations that are not a grid"):
        measure_grounding(model, dogs, settings=FEW)


def test_phrases_that_cannot_be_aligned_are_counted(dogs):
    target = TargetLanguage("en", Tokenizer.train([TEXT], TextSettings(tokenise="space")))
    phrase = PHRASES[0]._replace(first=9)
    item = Item("x", "test", sentences=(ItemSentence("en", TEXT, phrases=(phrase,)),), regions=REGIONS)
    assert find_phrases([item], target, None) == ([], {NOT_ALIGNED: 1})


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """A translation model with attention over quarters of images, whose targets have phrases."""
    folder = tmp_path_factory.mktemp("grounding")
    collection = image_collection(folder / "c")
    items = []
    for item in collection.items():
        german, english = item.sentences
        position = next(k for k, word in enumerate(english.text.split()) if word in ("club", "flyer"))
        phrase = Phrase(position, english.text.split()[position], "7", ("other",))
        region = Region((0.0, 0.0, 8.0, 16.0), phrase.text, "7", ("other",))
        items.append(replace(item, sentences=(german, english._replace(phrases=(phrase,))), regions=(region,)))
    write_items(folder / "c", items)
    return Collection.open(folder / "c"), learn(collection, folder / "run", image=("attention",), steps=5)


def test_the_command_writes_a_record_and_the_report_shows_it(translator, command_line, tmp_path):
    collection, folder = translator
    command = ["diagnose", "--model", folder, "--collection", collection.path, "--grounding", "--trials", 20]
    status, printed, _ = command_line(*command, "--json")
    record = Grounding.load(folder / "diagnosis" / "grounding" / "train.json")
    assert status == 0 and json.loads(printed)["file"].endswith("grounding/train.json")
    assert json.loads(printed)["groups"][0]["phrases"] == record.groups[0].phrases == 6
    uniform = record.groups[0].scores[1]
    assert (uniform.mass, uniform.pointing) == (pytest.approx(50), pytest.approx(50))  # the left half of the images
    status, printed, _ = command_line(*command, "--out", tmp_path / "own.json")
    assert status == 0 and Grounding.load(tmp_path / "own.json").groups == record.groups
    assert "6 phrases of 6 images of 'train'" in printed and "uniform" in printed


def test_the_report_shows_hits_and_misses(translator, dogs, tmp_path):
    folder = shutil.copytree(translator[1], tmp_path / "run")
    record = measure_grounding(trained_on(Attending(MAPS)), dogs, settings=FEW)
    record.save_in(folder)
    page = write_report(folder, tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'href="#diagnosis"' in page and "Does the attention look at the right place? Split test" in page
    assert page.count("attention over the image for") == len(record.hits) + len(record.misses) == 4
    assert page.count('<img src="data:image/jpeg') == 4
    assert "animals: 30 % inside, uniform 12 %" in page and "Not measured: 2 phrases whose entity has no box" in page


def test_heat_maps_have_the_outlines_of_the_boxes(dogs):
    result = measure_grounding(trained_on(Attending(MAPS)), dogs, settings=FEW)
    picture = heat_map_with_boxes(Image.open(result.misses[0].image), result.misses[0], result.grid)
    assert picture.size == (320, 320)
    assert picture.getpixel((5, 160)) == picture.getpixel((239, 300)) == (255, 201, 20)  # corners of the two boxes
    assert picture.getpixel((300, 20)) != (255, 201, 20)


def test_options_without_a_meaning_are_refused(translator, command_line):
    collection, folder = translator
    command = ["diagnose", "--model", folder, "--collection", collection.path, "--grounding", "--mask", "colours"]
    status, _, message = command_line(*command)
    assert status == 1 and "--mask: has no effect on --grounding" in message
