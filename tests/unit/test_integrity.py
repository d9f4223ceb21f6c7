"""Checksums of weights, features and items; values that are not finite; valid JSON."""

import json
import math
import shutil
from pathlib import Path
from typing import Literal, get_overloads

import lance
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import limner
from limner.data.collection import ITEMS, Collection, write_items
from limner.data.examples import Item, ItemSentence, Region
from limner.data.readers import ReaderOptions
from limner.decoding.torch_models import mean_log_probs
from limner.errors import BackboneError, CollectionError, FeatureError, RunError, SettingsError
from limner.features.encoders.base import encode
from limner.features.encoders.load import load_backbone
from limner.features.extract import extract
from limner.features.maintenance import repair_table
from limner.features.spec import FeatureSpec
from limner.features.store import FeatureTable
from limner.features.tables import DamagedTableError, TableWriter
from limner.generation.captioning import BaseCaptioner
from limner.generation.translation import BaseTranslator
from limner.inference.retriever import Retriever
from limner.inference.scorer import nearest_words
from limner.layers.image_encoder import ImageEncoderSettings
from limner.models import MODELS, ModelInputs, build_model
from limner.models.bag_of_words import BagOfWordsSettings
from limner.models.independent_descriptions import IndependentSettings
from limner.models.log_bilinear import LBLSettings
from limner.models.mrnn import MRNNSettings
from limner.models.phrase_based import PhraseBased
from limner.models.two_tower import TwoTower
from limner.runs.trained_model import load_trained_model
from limner.storage.hashes import IdSet, infinite_rows
from limner.storage.json_text import to_json
from limner.storage.places import damage_raised_as
from limner.storage.tensors import load_tensors, read_tensors, save_tensors

SPEC = FeatureSpec(name="t", kind="pooled", shape=(64,), backbone="b", preprocessing={}, weights_sha256="")
IDS = [f"item{number}" for number in range(60)]


def flip(path, position, bit=3):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


# Tensors


@pytest.fixture
def weights(tmp_path):
    """A file of tensors of several types."""
    path = tmp_path / "model.safetensors"
    values = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2]), "c": torch.ones((), dtype=torch.bfloat16)}
    save_tensors(path, {**values, "empty": torch.zeros(0, 3)}, {"note": "x"})
    return path


def test_tensors_and_facts_round_trip_in_the_same_bytes(weights, tmp_path):
    stored = read_tensors(weights)
    assert stored.facts == {"note": "x"}
    assert stored.tensors["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    save_tensors(tmp_path / "again.safetensors", stored.tensors, stored.facts)
    assert (tmp_path / "again.safetensors").read_bytes() == weights.read_bytes()


def test_any_flipped_bit_of_the_values_is_found(weights):
    size, header = weights.stat().st_size, int.from_bytes(weights.read_bytes()[:8], "little")
    for position in range(8 + header, size):
        flip(weights, position)
        with pytest.raises(RunError, match=r"model\.safetensors: damaged: .*checksum.*restore the file"):
            load_tensors(weights)
        flip(weights, position)
    load_tensors(weights)


def test_a_file_of_another_program_is_read(tmp_path):
    save_file({"a": torch.ones(3)}, tmp_path / "old.safetensors")
    assert load_tensors(tmp_path / "old.safetensors")["a"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, value):
    for save in (save_tensors, lambda path, tensors: save_file(tensors, path)):
        save(tmp_path / "w.safetensors", {"fine": torch.ones(2), "bad": torch.tensor([0.0, value])})
        with pytest.raises(RunError, match=r"w\.safetensors: tensor 'bad' has 1 of 2 values .*not finite"):
            load_tensors(tmp_path / "w.safetensors")


# Features


@pytest.fixture
def table(tmp_path):
    """A feature table of three commits, and its values."""
    values = np.random.default_rng(1).normal(size=(60, 64)).astype(np.float16)
    fill(tmp_path / "t.lance", values)
    return tmp_path / "t.lance", values


def fill(path, values, known=()):
    writer = TableWriter(path, SPEC, known if isinstance(known, IdSet) else IdSet(known))
    for start in range(0, 60, 20):
        writer.add(IDS[start : start + 20], values[start : start + 20])
        writer.flush()


def data_files(path):
    return sorted((path / "data").iterdir())


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def clear(file):
    file.write_bytes(bytes(file.stat().st_size))


def flip_value(file):
    flip(file, 1000)


def remove(file):
    file.unlink()


@pytest.mark.parametrize("damage", [cut, clear, remove, flip_value])
@pytest.mark.parametrize("cache", [0, 2**20])
def test_damaged_data_is_refused_and_repaired(table, damage, cache):
    path, values = table
    damage(data_files(path)[1])
    with pytest.raises(DamagedTableError, match=r"t\.lance: damaged feature table .*run 'limner features' again"):
        FeatureTable(path, cache_bytes=cache).take(IDS)
    intact = repair_table(path, SPEC)
    assert intact.damaged == (1 if damage is flip_value else 20)
    assert len(intact.ids) == 60 - intact.damaged
    fill(path, values, intact.ids)
    assert np.array_equal(FeatureTable(path, cache_bytes=cache).take(IDS), values)


def test_a_table_whose_checksums_have_another_name_is_damaged(table):
    path, _ = table
    lance.dataset(str(path)).alter_columns({"path": "checksum", "name": "checksun"})
    with pytest.raises(DamagedTableError, match=r"expected the columns id, values and checksum, found .*checksun"):
        FeatureTable(path)


@pytest.mark.parametrize("damage", [cut, clear, remove])
def test_a_table_that_cannot_be_opened_is_named(table, damage):
    path, _ = table
    damage(min((path / "_versions").glob("*.manifest")))  # the newest: Lance counts down
    with pytest.raises(DamagedTableError):
        FeatureTable(path)
    with pytest.raises(FeatureError, match=r"t\.lance: damaged feature table .*remove this folder"):
        repair_table(path, SPEC)


def test_data_of_another_table_is_refused(table, tmp_path):
    path, values = table
    other = tmp_path / "other" / "t.lance"
    writer = TableWriter(other, SPEC.model_copy(update={"backbone": "c"}), IdSet())
    writer.add(IDS, values)
    writer.flush()
    for file in data_files(path):
        shutil.copy(data_files(other)[0], file)
    with pytest.raises(DamagedTableError):
        FeatureTable(path).take(IDS)


def test_exchanged_folders_are_refused_by_name(table):
    path, _ = table
    path.rename(path.with_name("u.lance"))
    with pytest.raises(FeatureError, match=r"expected the table 'u', found 't'.*rename the folder to t\.lance"):
        FeatureTable(path.with_name("u.lance"))


def test_stored_features_that_are_not_finite_are_refused_and_repaired(tmp_path):
    path, values = tmp_path / "t.lance", np.ones((60, 64), np.float16)
    values[7, 3] = np.nan
    fill(path, values)
    with pytest.raises(DamagedTableError, match="features of item 'item7' are not finite"):
        FeatureTable(path).take(IDS)
    kept = repair_table(path, SPEC).ids
    assert [item_id for item_id in IDS if item_id not in kept] == ["item7"]


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_found_by_their_bits(value):
    values = np.full((3, 8), -65504, np.float16)
    values[0] = 65504
    assert infinite_rows(values) == []
    values[1, 5] = value
    assert infinite_rows(values) == [1]


class InfiniteBackbone:
    """Features of the second image of a batch are infinite."""

    specs = (SPEC,)

    def __call__(self, inputs):
        values = np.ones((len(inputs), 64), np.float16)
        values[1:] = np.inf
        return {"pooled": values}


def test_computed_features_that_are_not_finite_name_the_file():
    with pytest.raises(BackboneError, match=r"b\.png: the pooled features of backbone 'b' are not finite"):
        encode(InfiniteBackbone(), np.zeros((2, 1)), ["a.png", "b.png"])
    encode(InfiniteBackbone(), np.zeros((2, 1)), ["a.png"])  # the second is padding


def test_features_are_extracted_again_where_they_are_damaged(tmp_path, caplog):
    for number in range(3):
        Image.new("RGB", (20, 20), (number * 80, 0, 0)).save(tmp_path / f"{number}.png")
    folder = tmp_path / "collection"
    items = [Item(str(number), "train", image=f"../{number}.png") for number in range(3)]
    write_items(folder, items)
    backbone = load_backbone("pixels:16")
    path = extract(Collection.open(folder), backbone).tables[0].path
    before = FeatureTable(path).take(["0", "1", "2"])
    flip_value(data_files(path)[0])
    again = extract(Collection.open(folder), backbone)
    assert (again.added, again.present, again.repaired) == (1, 2, 1)
    assert "1 damaged rows, which are computed anew" in caplog.text
    assert np.array_equal(FeatureTable(path).take(["0", "1", "2"]), before)


# Items


@pytest.fixture
def collection(tmp_path):
    """A collection of two splits."""
    items = [
        Item(
            f"i{number}",
            "val" if number % 3 == 2 else "train",
            sentences=(ItemSentence("en", f"a sentence about number {number} and ü"),),
            regions=(Region((0.1, 2, 3, 4), "region"),),
        )
        for number in range(9)
    ]
    write_items(tmp_path / "c", items)
    return tmp_path / "c"


def test_a_changed_letter_of_a_caption_is_found(collection):
    (file,) = (collection / ITEMS / "data").iterdir()
    position = file.read_bytes().index(b"about number 3")
    flip(file, position, bit=0)
    for read in (lambda: Collection.open(collection).items(), lambda: Collection.open(collection).items("train")):
        with pytest.raises(CollectionError, match=r"items\.lance: damaged; .*item 'i3' does not have its checksum"):
            read()
    assert len(Collection.open(collection).items("val")) == 3


def test_an_item_that_left_its_split_is_missed(collection):
    dataset = lance.dataset(str(collection / ITEMS))
    dataset.update({"split": "'test'"}, where="id = 'i0'")
    with pytest.raises(CollectionError, match="5 of 6 items of split 'train' can be read"):
        Collection.open(collection).items("train")


def test_a_missing_newest_version_is_refused(collection):
    write_items(collection, [Item("new", "train", sentences=(ItemSentence("en", "a new one"),))])
    min((collection / ITEMS / "_versions").glob("*.manifest")).unlink()
    with pytest.raises(CollectionError, match="version 2 is missing, the newest that is left is 1"):
        Collection.open(collection)


def test_items_without_checksums_are_refused(collection, tmp_path):
    rows = lance.dataset(str(collection / ITEMS)).to_table().drop_columns(["checksum"])
    lance.write_dataset(rows, str(tmp_path / "other" / ITEMS))
    with pytest.raises(CollectionError, match="no column 'checksum'"):
        Collection.open(tmp_path / "other")


# Images and JSON


def test_json_is_valid_whatever_the_numbers():
    value = {"a": [math.nan, math.inf, -math.inf, np.float32(np.nan), 0.5], 1: np.int64(3), "path": Path("x")}
    text = to_json({**value, "array": np.array([1.5, np.inf])})

    def refuse(constant):
        raise AssertionError(constant)

    assert json.loads(text, parse_constant=refuse) == {
        "a": ["NaN", "Infinity", "-Infinity", "NaN", 0.5],
        "1": 3,
        "path": "x",
        "array": [1.5, "Infinity"],
    }


class PanicException(BaseException):
    """As PyO3 raises for a panic of Rust."""


def test_a_panic_of_lance_is_an_error():
    with pytest.raises(CollectionError, match=r"^out of bounds$"), damage_raised_as(CollectionError):
        raise PanicException("out of bounds\nmore")


def test_stored_rows_are_verified_with_progress(table):
    done = []
    repair_table(table[0], SPEC, lambda *progress: done.append(progress))
    assert done == sorted(done) and done[-1] == (60, 60)


# Results


@pytest.mark.parametrize("values", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]])
def test_probabilities_that_are_not_numbers_are_an_error(values):
    with pytest.raises(RunError, match=r"probabilities that are not numbers \(NaN\).*restore"):
        mean_log_probs([torch.tensor([[0.0, 1.0], values])])
    with pytest.raises(RunError, match="NaN"):
        mean_log_probs([torch.zeros(2, 2), torch.tensor([[0.0, 1.0], values])])


def test_finite_weights_whose_products_overflow_give_an_error_and_no_score(trained_on_colours, tiny):
    model = load_trained_model(trained_on_colours)
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.fill_(1e37)
    retriever = Retriever(model)
    with pytest.raises(RunError, match="log-probabilities that are not numbers"):
        retriever.retrieve_images("red", tiny)
    with pytest.raises(RunError, match="word vectors that are not numbers"):
        nearest_words(model, "red")


@pytest.mark.parametrize(
    "values",
    [{"image": "a\0b"}, {"regions": (Region((0.0, 0.0, math.nan, 1.0), "x"),)}, {"track": ((math.inf,) * 4,)}],
    ids=["image", "region", "track"],
)
def test_items_with_impossible_values_are_refused(tmp_path, values):
    with pytest.raises(CollectionError, match=r"item .a.: expected names of files .* boxes of finite numbers; correct"):
        write_items(tmp_path / "c", [Item("a", "train", **values)])
    assert not (tmp_path / "c").exists()


@pytest.fixture
def registry():
    """The registry, which is restored afterwards."""
    known, field = dict(MODELS), limner.Recipe.model_fields["model"]
    annotation = field.annotation
    yield
    MODELS.clear()
    MODELS.update(known)
    field.annotation = annotation
    limner.Recipe.model_rebuild(force=True)


def own_model(model_name="own", **members):
    class Settings(limner.ConditionalLMSettings):
        name: Literal[model_name] = model_name
        width: int = 3

    methods = dict.fromkeys(("encode", "start", "step", "forward"), len)
    return type("OwnModel", (torch.nn.Module,), methods | {"Settings": Settings} | members)


def test_a_registered_model_is_named_in_recipes_and_defined_again(registry):
    for _ in range(2):
        model = limner.register(own_model())
        recipe = limner.Recipe.parse({"model": {"name": "own", "width": 4}})
        assert MODELS[type(recipe.model)] is model and recipe.model.width == 4
    with pytest.raises(SettingsError, match=r"model\.wdith_: unknown key; did you mean 'width'\?"):
        limner.Recipe.parse({"model": {"name": "own", "wdith_": 4}})


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (own_model("mrnn"), "the name 'mrnn' belongs to MRNN"),
        (own_model(Settings=None), "expected a subclass of ConditionalLMSettings, got None"),
        (
            type("NoSteps", (torch.nn.Module,), {"Settings": own_model().Settings}),
            "found no encode, start, step, forward",
        ),
        (type("NoModule", (), {"Settings": own_model().Settings}), "expected a subclass of torch.nn.Module"),
        (own_model(Settings=limner.ConditionalLMSettings), r"Settings\.name: expected a name .*Literal\['mine'\]"),
    ],
)
def test_a_class_that_is_no_model_is_not_registered(model, reason):
    before = dict(MODELS)
    with pytest.raises(SettingsError, match=reason):
        limner.register(model)
    assert before == MODELS


def test_a_run_of_a_model_that_is_not_registered_says_so(trained, tmp_path):
    text = (trained / "config.json").read_text().replace('"name": "mrnn"', '"name": "own"')
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(RunError, match=r"'own'; .*limner\.register its model"):
        limner.Captioner.load(tmp_path)


def mean_colour(image):
    return torch.from_numpy(np.array(limner.open_image(image))).float().mean((0, 1)) / 255


def test_a_function_takes_the_place_of_a_backbone(own_tiny, recipe_of, tmp_path):
    backbone = limner.FunctionBackbone("mean", mean_colour, (3,))
    assert limner.extract(own_tiny, backbone).added == len(own_tiny)
    run = limner.train(recipe_of("mean", epochs=1), own_tiny, str(tmp_path / "run"))
    changed = [limner.FunctionBackbone("mean", lambda image: np.zeros(3), (3,), version=text) for text in ("", "2")]
    assert limner.extract(own_tiny, changed[0]).added == 0  # stored features are kept, see docs/python.md
    with pytest.raises(FeatureError, match="mean"):
        limner.extract(own_tiny, changed[1])
    image = own_tiny.image_path(own_tiny.items("val")[0])
    batch = limner.Captioner.load(run, backbone=backbone).batch(images=image)
    torch.testing.assert_close(batch.image.pooled[0], mean_colour(image), atol=1e-3, rtol=0)
    with pytest.raises(FeatureError, match="expected mean pooled 3"):
        limner.load(run, backbone=limner.FunctionBackbone("mean", mean_colour, (3,), version="2"))
    with pytest.raises(BackboneError, match=r"'mean' of a limner\.FunctionBackbone"):
        limner.load(run)
    with pytest.raises(BackboneError, match=r"expected mean pooled 4 .*got the shape \(3,\)"):
        limner.extract(own_tiny, limner.FunctionBackbone("mean", mean_colour, (4,)), name="other")


def test_a_data_set_in_memory(tmp_path):
    red = Image.new("RGB", (9, 7), "red")
    red.save(tmp_path / "red.png")
    rows = {
        "train": [{"image": tmp_path / "red.png", "text": ["a red wall", "a wall"]}, {"image": red, "text": "a wall"}],
        "validation": [{"id": "text", "text": "a blue wall"}],
    }
    assert limner.import_collection("datasets", rows, tmp_path / "collection").sentences == 4
    collection = limner.Collection.open(tmp_path / "collection")
    assert collection.splits() == {"train": 2, "val": 1}
    for item in collection.items("train"):
        assert limner.open_image(collection.image_path(item)).getpixel((0, 0)) == (255, 0, 0)
    for kind, source in (("jsonl", [{"text": "a wall"}]), ("datasets", [])):
        with pytest.raises(CollectionError, match=r"a list of dicts is of the kind 'datasets'|no items to import"):
            limner.import_collection(kind, source, tmp_path / "other", ReaderOptions(split="train"))


def test_a_misspelt_column_is_an_error_and_another_one_is_ignored(tmp_path, caplog):
    for wrong, known in (("splt", "split"), ("language", "lang"), ("texts", "text")):
        rows = [{"id": "a", "text": "a wall", "split": "train", "lang": "en"}]
        rows[0][wrong] = rows[0].pop(known)
        with pytest.raises(CollectionError, match=f"row 0: unknown column '{wrong}'; did you mean '{known}'"):
            limner.import_collection("datasets", rows, tmp_path / "wrong")
    limner.import_collection("datasets", [{"text": "a", "split": "val", "taken": "2020"}], tmp_path / "collection")
    assert "ignored columns: taken" in caplog.messages


def test_the_tensors_of_a_batch_give_the_scores(captioner, trained, tiny):
    sentences, image = ["a red wall", "a wall of a green house"], tiny.image_path(tiny.items("val")[0])
    batch = captioner.batch(sentences, images=image)
    with torch.inference_mode():
        log_probs = captioner.models[0].model(batch).logits.log_softmax(-1)
    totals = (log_probs.gather(-1, batch.target_out[..., None])[..., 0] * batch.target_mask).sum(1)
    scores = limner.Scorer.load(trained).score(image, sentences)
    assert totals.tolist() == pytest.approx([score.log_prob for score in scores], abs=1e-4)
    for empty in (captioner.batch([]), captioner.batch(images=[])):
        assert empty.target_in.shape == (0, 1) and empty.ids == ()
    with pytest.raises(SettingsError, match="got 1 image and 2 sentences"):
        captioner.batch(sentences, images=[image])


def test_a_batch_of_a_translator_has_source_sentences(translator):
    batch = translator.batch(sources=["eins zwei", "eins"])
    assert batch.source_mask.sum(1).tolist() == [2, 1]
    assert batch.target_out.tolist() == [[limner.SPECIAL_TOKENS.eos]] * 2
    batch = translator.batch(["one", "two"], sources=["eins", "zwei"])
    assert translator.models[0].model(batch).logits.shape[:2] == (2, 2)
    with pytest.raises(SettingsError, match="expected 2 source sentences, got 1"):
        translator.batch(["one", "two"], sources=["eins"])


@pytest.mark.parametrize(
    "image",
    ["red.png", b"bytes", Image.new("RGB", (9, 7)), np.zeros((7, 9, 3), np.uint8)],
    ids=["path", "bytes", "pillow", "array"],
)
def test_one_image_in_place_of_a_list_is_an_error(captioner, image):
    for method in (captioner.describe, captioner.tags):
        with pytest.raises(SettingsError, match=r"expected a list of images, got one image.*\[image\]"):
            method(image)


def test_type_checkers_know_the_built_in_models():
    for typed, options in zip(get_overloads(limner.load), ({"lang": "de"}, {"to": "de"}), strict=False):
        base = {"BaseCaptioner": BaseCaptioner, "BaseTranslator": BaseTranslator}[typed.__annotations__["return"]]
        assert isinstance(limner.load(**options), base)
    assert len(get_overloads(limner.load)) == 3


def test_all_models_but_two_implement_the_protocol_of_the_search():
    for step in ("encode", "start", "step", "forward"):
        assert {model for model in MODELS.values() if step not in vars(model)} == {PhraseBased, TwoTower}


@pytest.mark.parametrize("settings", [BagOfWordsSettings(), MRNNSettings(), LBLSettings(), IndependentSettings()])
def test_dropout_of_image_features_acts_in_training_only(settings):
    changed = settings.model_copy(update={"image_encoder": ImageEncoderSettings(dropout=0.5)})
    encoder = build_model(changed, ModelInputs(11, {"pooled": (64,)}, 9)).image_encoder
    image = type("Image", (), {"pooled": torch.ones(2, 64), "grid": None, "maps": None, "present": torch.ones(2) > 0})
    dropped = encoder.train()(image)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    torch.testing.assert_close(encoder.eval()(image), torch.ones(2, 64))
