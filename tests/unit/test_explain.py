"""Explanations: weights over words and image locations, the image gate, and their drawings."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from toy_translation import GridBackbone, learn, text_collection

from limner.apps.report.attention import AttendedSentence, ModelAttention, save_attention
from limner.data.collection import Collection
from limner.data.dataset import GenerationInput
from limner.data.examples import Item
from limner.decoding.sentence import Sentence
from limner.evaluation import gates
from limner.evaluation.gates import gate_statistics, measure_gates
from limner.features.spec import FeatureSpec, RegionRows, attended_area
from limner.generation.sentences import EMPTY_TRANSLATION
from limner.inference.explain import END_OF_SENTENCE, IMAGE_TOKEN, Explanation, explain, words_of
from limner.inference.features import open_features
from limner.inference.generate import generate
from limner.inference.translator import Translator
from limner.models.protocols import Output
from limner.runs.trained_model import TrainedModel, load_trained_model
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS
from limner.text.words import TextSettings


def hypothesis_of(*ids):
    return Sentence(tuple(ids), -1.0, -1.0, True)


class FixedWeights(torch.nn.Module):
    """A model with given attention weights."""

    def __init__(self, **weights):
        super().__init__()
        self.register_buffer("somewhere", torch.zeros(1))
        self.weights = {name: torch.tensor(values) for name, values in weights.items()}

    def forward(self, batch):
        return Output(torch.zeros(()), **self.weights)


class Shown:
    """Given features by item."""

    def __init__(self, **features):
        self.features = features

    def take(self, items):
        return [self.features.get(item.id) for item in items]


PIECES = TextSettings(tokenise="space", level="bpe", max_size=14)


@pytest.fixture(scope="module")
def pieces():
    """Knows 'ab' as one piece, and the letters a, b, c, d."""
    tokenizer = Tokenizer.train(["ab ab ab ab c d"], PIECES)
    assert [len(tokenizer.encode(word)) for word in ("ab", "abc", "abcd")] == [1, 2, 3]
    return tokenizer


@pytest.fixture(scope="module")
def compounds():
    """A tokenizer that splits compounds of 'Ball' and 'Wasser'."""
    texts = ["Ball Wasser"] * 6 + ["Wasserball"]
    return Tokenizer.train(texts, TextSettings(lang="de", lowercase=False, split_compounds=True))


def checkpoint(model, source, target, features=()):
    """A model with the attributes that `explain` reads."""
    return TrainedModel(model, target, SimpleNamespace(features=features), None, source)


def test_weights_of_subwords_are_merged_into_words(pieces):
    # SourceLanguage 'abc d' is read as ab|c, d; 'ab dc' is generated as ab, d|c and the end-of-sentence token.
    alignment = [[[0.5, 0.25, 0.25], [0.125, 0.125, 0.75], [0.25, 0.0, 0.75], [0.0, 0.0, 1.0]]]
    model = checkpoint(FixedWeights(alignment=alignment, gate=[[0.1, 0.2, 0.4, 0.9]]), pieces, pieces)
    query = GenerationInput(Item("x", "new"), "abc d", ())
    one = explain(
        model, [query], [hypothesis_of(*pieces.encode("ab dc"))], Shown(x={"pooled": np.ones(2, np.float16)})
    )[0]
    assert (one.source, one.target) == (("abc", "d"), ("ab", "dc", END_OF_SENTENCE))
    assert one.alignment.tolist() == [[0.75, 0.25], [0.25, 0.75], [0.0, 1.0]]
    assert one.gate == pytest.approx([0.1, 0.3, 0.9])
    assert one.attention is None


def test_hard_attention_is_explained_by_its_distribution_and_plotted_by_the_selected_locations(pieces):
    alpha, selected = [[[0.6, 0.4], [0.45, 0.55]]], [[[1.0, 0.0], [0.0, 1.0]]]
    query, image = [GenerationInput(Item("x", "new"), None, ())], Shown(x={"grid": np.ones((2, 2), np.float16)})
    hypotheses = [hypothesis_of(*pieces.encode("ab"))]
    hard = explain(
        checkpoint(FixedWeights(attention=alpha, selected=selected), None, pieces), query, hypotheses, image
    )[0]
    assert hard.attention == pytest.approx(np.array(alpha[0]))
    assert hard.image_weights.tolist() == selected[0]
    soft = explain(checkpoint(FixedWeights(attention=alpha), None, pieces), query, hypotheses, image)[0]
    assert soft.image_weights == pytest.approx(np.array(alpha[0]))


@pytest.mark.parametrize("text", ["ab", "abc d", "dcba abab", "c 猫 ab", "猫", ""])
def test_words_of_subwords(pieces, text):
    ids = pieces.encode(text)
    words = words_of(pieces, ids)
    assert [position for word in words for position in word.positions] == list(range(len(ids)))
    assert " ".join(word.text for word in words) == pieces.decode(ids)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ("Wasser ￭ Ball", [("Wasserball", [0, 1, 2])]),
        ("Ball Wasser ￭s Ball .", [("Ball", [0]), ("Wassersball", [1, 2, 3]), (".", [4])]),
        ("￭ Ball", [("Ball", [0, 1])]),
        ("Ball ￭", [("Ball", [0, 1])]),
    ],
)
def test_parts_of_compounds_are_one_word(compounds, ids, words):
    numbers = [
        compounds.entries.index(entry) if entry in compounds.entries else SPECIAL_TOKENS.unk for entry in ids.split()
    ]
    hypotheses = words_of(compounds, numbers)
    shown = [(text if text != "<unk>" else ".", places) for text, places in hypotheses]
    assert shown == words


def test_an_unknown_source_word_keeps_its_spelling(pieces):
    source = "ab 猫"
    width = len(pieces.encode(source))
    model = checkpoint(FixedWeights(alignment=[[[1 / width] * width]]), pieces, pieces)
    (explained,) = explain(model, [GenerationInput(Item("x", "new"), source, ())], [hypothesis_of()], None)
    assert explained.source == ("ab", "猫")


def spec(kind, shape, **more):
    return FeatureSpec(name="f", kind=kind, shape=shape, backbone="b", preprocessing={}, weights_sha256="1", **more)


def test_visual_prefix_tokens_are_named(pieces):
    queries = [GenerationInput(Item(name, "new"), "ab d", ()) for name in ("with_image", "without_image")]
    alignment = [[[0.5, 0.25, 0.25]], [[0.0, 0.5, 0.5]]]
    model = checkpoint(FixedWeights(alignment=alignment), pieces, pieces, (spec("pooled", (2,)),))
    features = Shown(with_image={"pooled": np.ones(2, np.float16)})
    with_image, without_image = explain(model, queries, [hypothesis_of(), hypothesis_of()], features)
    assert (with_image.source, with_image.alignment.tolist()) == ((IMAGE_TOKEN, "ab", "d"), [[0.5, 0.25, 0.25]])
    assert (without_image.source, without_image.alignment.tolist()) == (("ab", "d"), [[0.5, 0.5]])


def test_padded_regions_are_left_out(pieces):
    regions = spec("grid", (3, 2), regions=RegionRows(count=2, boxes_sha256="1"))
    rows = np.array([[1, 1], [0, 0], [1, 1]], np.float16)  # one region, padding, the whole image
    model = checkpoint(FixedWeights(alignment=[[[0.5, 0.0, 0.25, 0.25]]]), pieces, pieces, (regions,))
    one = explain(model, [GenerationInput(Item("x", "new"), "ab", ())], [hypothesis_of()], Shown(x={"grid": rows}))[0]
    assert (one.source, one.alignment.tolist()) == (("«region 1»", IMAGE_TOKEN, "ab"), [[0.5, 0.25, 0.25]])


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """A model of subwords."""
    folder = tmp_path_factory.mktemp("pieces")
    return load_trained_model(learn(text_collection(folder / "collection"), folder / "run", level="bpe", steps=40))


@pytest.fixture(scope="module")
def multimodal(toy_image_run):
    """A model that needs the image for one word, and its collection."""
    return load_trained_model(toy_image_run), Collection.open(toy_image_run.parent / "collection")


def test_explanations_do_not_depend_on_the_batch(reader):
    queries = [
        GenerationInput(Item(f"{k}", "new"), text, ()) for k, text in enumerate(("eins zwei", "drei", "zwei drei"))
    ]
    result = [hypotheses[0] for hypotheses in generate([reader], queries, None, reader.recipe.decoding)]
    together, alone = (explain(reader, queries, result, None, batch_size=size) for size in (3, 1))
    for one, other, query, hypothesis in zip(together, alone, queries, result, strict=True):
        assert one.source == tuple(query.source.split())
        assert " ".join(one.target) == f"{reader.tokenizer.decode(hypothesis.tokens)} {END_OF_SENTENCE}".strip()
        assert one.alignment.shape == (len(one.target), len(one.source))
        assert one.alignment.sum(1) == pytest.approx(1, abs=1e-5)
        assert one.alignment == pytest.approx(other.alignment, abs=1e-5)
        assert one.gate is None and one.attention is None


def test_without_an_image_there_is_no_attention_and_no_gate(multimodal):
    model, collection = multimodal
    items = collection.items()
    queries = [GenerationInput(items[0], "bat", ()), GenerationInput(Item("blind", "new"), "bat", ())]
    features = open_features(model, collection)
    result = [hypotheses[0] for hypotheses in generate([model], queries, features, model.recipe.decoding)]
    with_image, text_only = explain(model, queries, result, features)
    assert with_image.attention.shape == (len(with_image.target), 4) and with_image.gate.shape == (
        len(with_image.target),
    )
    assert with_image.attention.sum(1) == pytest.approx(1, abs=1e-5)
    assert ((with_image.gate > 0) & (with_image.gate < 1)).all()
    assert text_only.attention is None and text_only.gate is None
    assert text_only.alignment.sum(1) == pytest.approx(1, abs=1e-5)


def explanation(words, values):
    gate = None if values is None else np.array([*values, 1.0])
    return Explanation((), (*words.split(), END_OF_SENTENCE), None, None, gate)


def test_gate_statistics_by_hand():
    # 'a' is generated four times, '.' twice, 'b' and '7' once: thirds of eight words begin at 0, 8/3 and 16/3.
    explanations = [
        explanation("a a . b", [0.1, 0.3, 0.6, 0.9]),
        explanation("a a . 7", [0.1, 0.3, 0.4, 0.85]),
        explanation("a b", None),
    ]
    hypotheses = gate_statistics(explanations)
    assert hypotheses.thresholds == (0.5, 0.8)
    shares = {part.part: (part.words, part.mean, part.above) for part in hypotheses.parts}
    assert shares["all words"] == (8, pytest.approx(3.55 / 8), (3 / 8, 2 / 8))
    assert shares["frequent words"] == (4, pytest.approx(0.2), (0, 0))
    assert shares["medium-frequency words"] == (2, pytest.approx(0.5), (0.5, 0))
    assert shares["rare words"] == (2, pytest.approx(0.875), (1, 1))
    assert [(word, round(mean, 6), count) for word, mean, count in hypotheses.words] == [
        ("b", 0.9, 1),
        ("7", 0.85, 1),
        (".", 0.5, 2),
        ("a", 0.2, 4),
    ]


def test_gates_are_measured_batch_by_batch(multimodal, monkeypatch):
    model, collection = multimodal
    monkeypatch.setattr(gates, "EXPLANATION_BATCH_SIZE", 2)
    text_only = GenerationInput(Item("blind", "new"), "bat", ())
    queries = [text_only, *(GenerationInput(item, f"eins {item.texts('de')[0]}", ()) for item in collection.items())]
    features = open_features(model, collection)
    result = [hypotheses[0] for hypotheses in generate([model], queries, features, model.recipe.decoding)]
    whole = gate_statistics(explain(model, queries, result, features))
    explanations = []
    some = measure_gates(model, queries, result, features, on_progress=lambda *news: explanations.append(news))
    assert [(part.part, part.words) for part in some.parts] == [(part.part, part.words) for part in whole.parts]
    assert some.parts[0].mean == pytest.approx(whole.parts[0].mean, abs=1e-5)
    assert explanations == [(2, 6), (4, 6), (6, 6)]


def test_a_model_without_a_gate_or_images_has_no_gate_statistics(reader, multimodal):
    for model, item in ((reader, Item("x", "new", image="x.png")), (multimodal[0], Item("blind", "new"))):
        assert measure_gates(model, [GenerationInput(item, "eins", ())], [hypothesis_of(4)], None) is None


def test_plots_and_their_page(multimodal, tmp_path):
    model, collection = multimodal
    translator = Translator([model], GridBackbone())
    sentences, images = ["eins bat", "", "bat <zwei>"], [collection.path / "red.png", None, None]
    hypotheses = [best[0] for best in translator.translate(sentences, images=images, missing="text")]
    explained = translator.explain(sentences, hypotheses, images=images, missing="text")
    assert hypotheses[1] is EMPTY_TRANSLATION and explained[1] is None
    attended = [
        AttendedSentence(source, image, [ModelAttention(explanation, model.config.features)] if explanation else [])
        for source, image, explanation in zip(sentences, images, explained, strict=True)
    ]
    page = save_attention(attended, tmp_path / "out", "translations")
    names = ["1-alignment.png", "1-image.png", "3-alignment.png"]
    assert sorted(path.name for path in page.parent.iterdir()) == [*names, "index.html"]
    text = page.read_text(encoding="utf-8")
    assert re.findall(r'<img src="(.+?)"', text) == names
    assert "bat &lt;zwei&gt;" in text and "<zwei>" not in text
    assert 'title="image gate' in text
    with Image.open(tmp_path / "out" / "1-image.png") as drawing:
        assert drawing.size[0] > 100


@pytest.mark.parametrize(
    ("preprocessing", "size", "box"),
    [
        ({"resize": "squash", "size": 4, "short": 4}, (300, 200), (0, 0, 300, 200)),
        ({"resize": "crop", "size": 224, "short": 224}, (300, 200), (50, 0, 250, 200)),
        ({"resize": "crop", "size": 224, "short": 256}, (256, 512), (16, 144, 240, 368)),
    ],
)
def test_the_part_of_the_image_that_was_encoded(preprocessing, size, box):
    explanations = spec("grid", (4, 3), grid_size=(2, 2)).model_copy(update={"preprocessing": preprocessing})
    assert attended_area([explanations], 4, size).box == pytest.approx(box)
