"""Generated collections: reproducible bytes, grammar, senses determined by the image, and boxes."""

import hashlib
import json
import math
import re
import threading
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from limner.data.collection import Collection
from limner.errors import CollectionError, SettingsError
from limner.synthetic.scenes import SceneSettings, drawing
from limner.synthetic.scenes.grammar import describe_scene, french_phrase, german_phrase
from limner.synthetic.scenes.objects import draw_object
from limner.synthetic.scenes.scene import INVERSE, SENSES, Scene, SceneObject, make_scene
from limner.synthetic.storage import generate_collection

SMALL = SceneSettings(seed=3, train=5, val=2, test=2, size=64)
BALL, HOUSE, TREE, STAR = (
    SceneObject("ball", "red", big=True),
    SceneObject("house", "blue"),
    SceneObject("tree", "green", big=True),
    SceneObject("star", "white"),
)
SIGN = SceneObject("letter", "black", sense="sign", big=True)
PINK = SceneObject("umbrella", "pink", big=True)


def texts(scene, lang):
    return [sentence.text for sentence in describe_scene(scene) if sentence.lang == lang]


def digests(folder):
    """Digests of all files except Lance tables, whose names contain random ids."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file() and "items.lance" not in file.parts
    }


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return generate_collection(tmp_path_factory.mktemp("scenes") / "one", SMALL)


@pytest.fixture(scope="module")
def scenes():
    return [make_scene(0, "train", index, 0.4) for index in range(2400)]


# Agreement, by hand.


@pytest.mark.parametrize(
    ("obj", "article", "sized", "case", "expected"),
    [
        (BALL, "a", True, "nom", "ein großer roter Ball"),
        (BALL, "a", True, "acc", "einen großen roten Ball"),
        (BALL, "a", True, "dat", "einem großen roten Ball"),
        (BALL, "the", True, "nom", "der große rote Ball"),
        (BALL, "the", False, "acc", "den roten Ball"),
        (BALL, "the", False, "dat", "dem roten Ball"),
        (HOUSE, "a", True, "nom", "ein kleines blaues Haus"),
        (HOUSE, "a", False, "acc", "ein blaues Haus"),
        (HOUSE, "a", False, "dat", "einem blauen Haus"),
        (HOUSE, "the", False, "nom", "das blaue Haus"),
        (HOUSE, "the", False, "acc", "das blaue Haus"),
        (HOUSE, "the", False, "dat", "dem blauen Haus"),
        (replace(HOUSE, word="flower"), "a", False, "nom", "eine blaue Blume"),
        (replace(HOUSE, word="flower"), "a", False, "acc", "eine blaue Blume"),
        (replace(HOUSE, word="flower"), "a", False, "dat", "einer blauen Blume"),
        (replace(HOUSE, word="flower"), "the", False, "nom", "die blaue Blume"),
        (replace(HOUSE, word="flower"), "the", False, "dat", "der blauen Blume"),
        (PINK, "a", True, "acc", "einen großen rosa Regenschirm"),
        (SIGN, "a", False, "nom", "ein schwarzer Buchstabe"),
        (SIGN, "a", False, "acc", "einen schwarzen Buchstaben"),
        (SIGN, "the", False, "dat", "dem schwarzen Buchstaben"),
        (HOUSE, "who", False, "nom", "das"),
    ],
)
def test_german_agrees_in_gender_and_case(obj, article, sized, case, expected):
    assert german_phrase(obj, article, sized, case) == expected


@pytest.mark.parametrize(
    ("obj", "article", "sized", "expected"),
    [
        (BALL, "a", True, "une grande balle rouge"),
        (HOUSE, "the", True, "la petite maison bleue"),
        (TREE, "a", False, "un arbre vert"),
        (TREE, "the", False, "l'arbre vert"),
        (TREE, "the", True, "le grand arbre vert"),
        (STAR, "the", False, "l'étoile blanche"),
        (STAR, "the", True, "la petite étoile blanche"),
        (STAR, "a", True, "une petite étoile blanche"),
        (SceneObject("nut", "purple", sense="screw"), "the", False, "l'écrou violet"),
        (SceneObject("cup", "purple"), "the", False, "la tasse violette"),
        (SceneObject("boat", "black"), "a", False, "un bateau noir"),
    ],
)
def test_french_agrees_and_elides(obj, article, sized, expected):
    assert french_phrase(obj, article, sized) == expected


def test_a_pair_has_five_sentences_in_three_languages():
    scene = Scene("beach", (BALL, replace(TREE, big=False)), "left")
    assert texts(scene, "en") == [
        "There is a red ball to the left of a green tree.",
        "A big red ball and a small green tree on the beach.",
        "The red ball is to the left of the green tree.",
        "On the beach you can see a red ball and a green tree.",
        "To the right of the red ball there is a small green tree.",
    ]
    assert texts(scene, "de") == [
        "Es gibt einen roten Ball links von einem grünen Baum.",
        "Ein großer roter Ball und ein kleiner grüner Baum am Strand.",
        "Der rote Ball ist links vom grünen Baum.",
        "Am Strand sieht man einen roten Ball und einen grünen Baum.",
        "Rechts vom roten Ball ist ein kleiner grüner Baum.",
    ]
    assert texts(scene, "fr") == [
        "Il y a une balle rouge à gauche d'un arbre vert.",
        "Une grande balle rouge et un petit arbre vert sur la plage.",
        "La balle rouge est à gauche de l'arbre vert.",
        "Sur la plage, on voit une balle rouge et un arbre vert.",
        "À droite de la balle rouge, il y a un petit arbre vert.",
    ]


def test_sentences_of_a_clip_name_its_motion():
    scene = Scene("snow", (HOUSE,), "middle", motion="fall")
    assert texts(scene, "en")[4] == "You can see a blue house that falls down."
    assert texts(scene, "de")[4] == "Man sieht ein blaues Haus, das nach unten fällt."
    assert texts(scene, "fr")[4] == "On voit une maison bleue qui tombe vers le bas."


# Sentences of many scenes


def test_training_covers_every_word_of_the_test_scenes(scenes):
    def words(some):
        sentences = [sentence for scene in some for sentence in describe_scene(scene)]
        return {(one.lang, word) for one in sentences for word in re.findall(r"\w+", one.text.lower())}

    known = words(scenes)
    assert words(make_scene(0, "test", index, 0.4) for index in range(200)) <= known
    assert 55 <= sum(lang == "en" for lang, _ in known) <= 150


def test_a_classifier_of_the_english_words_is_at_chance():
    """Naive Bayes on the context words predicts the sense at chance level."""
    described = []
    for index in range(4500):
        scene = make_scene(0, "train", index, 1.0)
        described.append((scene.label, set(" ".join(texts(scene, "en")).lower().split())))
    known = defaultdict(Counter)
    for label, words in described[:3000]:
        known[label].update([*words, None])

    def belief(label, words):
        return sum(math.log((known[label][word] + 1) / (known[label][None] + 2)) for word in words)

    right = 0
    for label, words in described[3000:]:
        word = label.split(":")[0]
        guesses = [f"{word}:{sense}" for sense in SENSES[word]]
        right += max(guesses, key=lambda guess, words=words: belief(guess, words)) == label
    assert abs(right / 1500 - 0.5) < 5 * 0.5 / 1500**0.5  # five standard deviations of a fair coin


def test_the_share_of_ambiguous_scenes_is_a_setting():
    def labels(share):
        return [make_scene(0, "train", index, share).label for index in range(400)]

    assert all(label is None for label in labels(0.0))
    assert all(label is not None for label in labels(1.0))
    assert sum(label is not None for label in labels(0.4)) == pytest.approx(160, abs=50)


def test_relations_hold_in_the_image(scenes):
    for scene in scenes:
        first, *others = scene.objects
        if scene.relation == "between":
            assert others[0].x < first.x < others[1].x
        elif others:
            (second,) = others
            holds = {
                "left": first.x < second.x - 0.3,
                "right": first.x > second.x + 0.3,
                "above": first.y < second.y - second.span / 2,
                "under": first.y - first.span / 2 > second.y,
                "behind": first.y < second.y and first.span > second.span,
            }
            assert holds[scene.relation]
            assert first.big and not second.big
    assert set(INVERSE) == {scene.relation for scene in scenes if len(scene.objects) == 2}


# Drawing


@pytest.mark.parametrize("index", range(12))
def test_boxes_contain_the_objects_tightly(index):
    """Removing an object changes pixels up to every edge of its box and, except for shadows, none outside."""
    scene = make_scene(5, "train", index, 0.5)
    side = 128
    _, boxes = drawing.draw_scene(scene, side)
    objects = [drawing.place_object(obj, draw_object(obj, side), side)._replace(shadow_y=None) for obj in scene.objects]
    ground = drawing.draw_background(scene.background, scene.background_seed, side)
    for obj, box in zip(objects, boxes, strict=True):
        changed = np.any(np.asarray(drawing.compose(ground, [obj])) != np.asarray(ground), axis=2)
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        left, top, width, height = box
        assert left <= columns[0] and columns[-1] < left + width
        assert top <= rows[0] and rows[-1] < top + height
        assert columns[-1] - columns[0] >= width - 5 and rows[-1] - rows[0] >= height - 5
        assert left >= 0 and left + width <= side and top >= 0 and top + height <= side


# The collection.


def test_the_collection_has_the_sizes_of_the_settings(collection):
    assert collection.splits() == {"train": 5, "val": 2, "test": 2}
    for item in collection.items():
        assert Counter(sentence.lang for sentence in item.sentences) == {"en": 5, "de": 5, "fr": 5}
        if item.image:
            with Image.open(collection.image_path(item)) as opened:
                assert (opened.mode, opened.size) == ("RGB", (64, 64))
            assert 1 <= len(item.regions) <= 3
            assert all(re.fullmatch(r"a \w+ \w+", region.text) for region in item.regions)
            described = " ".join(item.texts("en"))
            assert all(region.text.removeprefix("a ") in described for region in item.regions)


def test_same_settings_same_bytes(collection, tmp_path):
    again = generate_collection(tmp_path / "two", SMALL)
    assert digests(again.path) == digests(collection.path)
    assert again.items() == collection.items()
    assert again.fingerprint() == collection.fingerprint()


def test_more_images_do_not_change_the_first_ones(collection, tmp_path):
    more = generate_collection(tmp_path / "more", SceneSettings(seed=3, train=6, val=0, test=0, size=64))
    ours, theirs = digests(more.path), digests(collection.path)
    for index in range(5):
        name = f"images/train-{index:05d}.jpg"
        assert ours[name] == theirs[name]


def test_a_finished_collection_is_returned_unchanged(collection):
    before = {file: file.stat().st_mtime_ns for file in collection.path.rglob("*")}
    assert isinstance(generate_collection(collection.path, SMALL), Collection)
    assert {file: file.stat().st_mtime_ns for file in collection.path.rglob("*")} == before


def test_other_settings_are_refused(collection):
    with pytest.raises(CollectionError, match=r"other settings.*another folder"):
        generate_collection(collection.path, SceneSettings(train=1, val=0, test=0))
    assert json.loads((collection.path / "scenes.json").read_text())["seed"] == 3


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(CollectionError, match="not a collection of generated scenes"):
        generate_collection(tmp_path, SMALL)
    assert [file.name for file in tmp_path.iterdir()] == ["precious.txt"]


def test_nothing_is_written_when_drawing_fails(tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_collection(tmp_path / "new", SMALL, on_progress=stop)
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() < 50


def test_progress_counts_images(tmp_path):
    calls = []
    settings = SceneSettings(train=3, val=1, test=0, size=32)
    (tmp_path / "empty").mkdir()
    generate_collection(tmp_path / "empty", settings, on_progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_settings_without_images_are_an_error(tmp_path):
    with pytest.raises(CollectionError, match="set train, val or test"):
        generate_collection(tmp_path / "none", SceneSettings(train=0, val=0, test=0))


@pytest.mark.parametrize(
    ("values", "named"),
    [({"train": -1}, "train"), ({"ambiguous": 1.5}, "ambiguous"), ({"size": 8}, "size"), ({"sise": 64}, "sise")],
)
def test_wrong_settings_are_named(values, named):
    with pytest.raises(SettingsError, match=rf"^scenes: {named}: "):
        SceneSettings.parse(values, "scenes")
