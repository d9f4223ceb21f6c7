"""BPE dropout and source masks: limits, the distribution of subwords against enumeration, and trainings with them."""

import itertools
from collections import Counter
from random import Random

import pytest

from interrupted import assert_equal_weights, resumed
from limner.data.collection import Collection, write_items
from limner.data.dataset import Examples
from limner.data.examples import Item, ItemSentence
from limner.data.languages import SourceLanguage, TargetLanguage
from limner.data.source_masks import LastWordsMask, MaskedTokenizer
from limner.errors import RunError, SettingsError
from limner.inference.load import load
from limner.runs.recipe import Recipe
from limner.runs.trained_model import load_trained_model
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS, WORD_START
from limner.text.words import TextSettings
from limner.training.epoch import BPEDropout, draw_tokens
from limner.training.loop import train

SENTENCES = [
    "Ein Mann läuft am Strand entlang.",
    "Eine Frau läuft mit dem Hund am Strand.",
    "Männer und Frauen laufen, ein Hund entläuft.",
    "Strandhunde laufen am Strand.",
]


def tokenizer_of(sentences=SENTENCES, **settings):
    return Tokenizer.train(sentences, TextSettings(level="bpe", **{"max_size": 70, "lang": "de", **settings}))


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizer_of()


def spelled(tokenizer, token_ids):
    return [tokenizer.entries[token_id] for token_id in token_ids]


@pytest.mark.parametrize(
    ("sentences", "settings"),
    [
        pytest.param(SENTENCES, {}, id="moses"),
        pytest.param(SENTENCES, {"tokenise": "unicode", "lowercase": False}, id="unicode"),
        pytest.param(["狗在海滩上跑，狗在水里。", "A 狗 runs 狗在 fast."], {"lang": "zh", "max_size": 60}, id="han"),
        pytest.param(SENTENCES * 9, {"split_compounds": True, "max_size": 80}, id="compounds"),
    ],
)
def test_without_dropout_the_subwords_are_those_of_the_tokenizer(sentences, settings):
    tokenizer = tokenizer_of(sentences, **settings)
    segment = BPEDropout(tokenizer, 0.0)
    for text in [*sentences, "Ein Ω läuftΩ x", ""]:
        assert segment(tokenizer.encode(text), Random(1)) == tokenizer.encode(text)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_words_stay_the_same(tokenizer, rate):
    segment, random = BPEDropout(tokenizer, rate), Random(2)
    drawn = {tuple(segment(tokenizer.encode(SENTENCES[0]), random)) for _ in range(50)}
    assert len(drawn) > 10
    assert {tokenizer.decode(token_ids) for token_ids in drawn} == {tokenizer.decode(tokenizer.encode(SENTENCES[0]))}


def test_words_with_unknown_characters_keep_their_subwords(tokenizer):
    token_ids = tokenizer.encode("läuftΩ")
    assert SPECIAL_TOKENS.unk in token_ids
    assert BPEDropout(tokenizer, 1.0)(token_ids, Random(1)) == token_ids


def exact(tokens, merges, rate):
    """Probability of every segmentation, from algorithm 1 of the paper: the first possible merge not left out."""
    possible = sorted((merges.index(pair), at) for at, pair in enumerate(itertools.pairwise(tokens)) if pair in merges)
    result = Counter({tokens: rate ** len(possible)})
    for number, (_, at) in enumerate(possible):
        share = (1 - rate) * rate**number
        merged = (*tokens[:at], tokens[at] + tokens[at + 1], *tokens[at + 2 :])
        for other, probability in exact(merged, merges, rate).items():
            result[other] += share * probability
    return result


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("word", ["läuft", "Strand", "Männer"])
def test_the_distribution_is_that_of_enumeration(tokenizer, word, rate):
    number, segment, random = 4000, BPEDropout(tokenizer, rate), Random(3)
    token_ids = tokenizer.encode(word)
    drawn = Counter(tuple(spelled(tokenizer, segment(token_ids, random))) for _ in range(number))
    word = tokenizer.words(word)[0]
    expected = exact(tuple(WORD_START + word), tokenizer.merges, rate)
    assert sum(expected.values()) == pytest.approx(1)
    assert set(drawn) <= set(expected)
    for tokens, probability in expected.items():
        deviation = (probability * (1 - probability) / number) ** 0.5
        assert abs(drawn[tokens] / number - probability) <= 5 * deviation + 1e-9


# Trainings


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    texts = [(text, text.upper()) for text in SENTENCES] * 4
    items = [
        Item(f"{split}{row}", split, sentences=(ItemSentence("de", german), ItemSentence("en", english)))
        for split, chosen in (("train", texts), ("val", texts[:2]))
        for row, (german, english) in enumerate(chosen)
    ]
    write_items(folder, items)
    return Collection.open(folder)


def recipe_of(model=None, data=None, **training):
    sizes = {"embedding_dim": 6, "hidden_dim": 8, "attention_dim": 7, "readout_dim": 6}
    usual = {"epochs": 3, "batch_size": 6, "metrics": [], "precision": "fp32", "bpe_dropout": 0.2}
    return Recipe.parse(
        {
            "data": {"lang": "de", "source_lang": "en", **(data or {})},
            "text": {"lowercase": False, "level": "bpe", "max_size": 60},
            "model": {"name": "nmt", **sizes, **(model or {})},
            "training": {**usual, **training},
        }
    )


@pytest.mark.parametrize("moment", [2, 3, 4])  # 3 steps an epoch
def test_a_resumed_run_equals_an_uninterrupted_one(corpus, tmp_path, moment):
    recipe = recipe_of(ema_decay=0.9, save_every=1)
    whole = train(recipe, corpus, tmp_path / "whole")
    run = resumed(moment, recipe, corpus, tmp_path / "run")
    assert_equal_weights(run, whole)


def test_the_saved_tokenizer_is_that_of_a_training_without_draws(corpus, tmp_path):
    without = train(recipe_of(epochs=1, bpe_dropout=0), corpus, tmp_path / "without")
    for name, drawn in (("dropout", {}), ("masks", {"bpe_dropout": 0, "source_masks": ["last:1"]})):
        run = train(recipe_of(epochs=1, **drawn), corpus, tmp_path / name)
        assert (run / "tokenizer.json").read_bytes() == (without / "tokenizer.json").read_bytes()
        assert (run / "model.safetensors").read_bytes() != (without / "model.safetensors").read_bytes()


def test_draws_depend_on_epoch_and_row_and_not_on_the_order(corpus, tmp_path):
    run = load_trained_model(train(recipe_of(epochs=1), corpus, tmp_path / "run"))
    target, source = TargetLanguage("de", run.tokenizer), SourceLanguage("en", run.source_tokenizer)
    examples = Examples.of_split(corpus, "train", target, None, source=source)
    rows = range(len(examples))
    first, second = (examples.batch(range(8), draw_tokens(examples, 0.3, 1, epoch, rows).get) for epoch in (0, 1))
    reverse = examples.batch(range(7, -1, -1), draw_tokens(examples, 0.3, 1, 0, rows[::-1]).get)
    some = examples.batch(range(8), draw_tokens(examples, 0.3, 1, 0, rows[:8]).get)
    assert first.target_out.tolist() == some.target_out.tolist()
    assert first.target_out.tolist() == reverse.target_out.flip(0).tolist()
    assert first.target_out.tolist() != second.target_out.tolist()
    assert first.source.tolist() != second.source.tolist()
    assert first.source[0].tolist() != first.source[4].tolist(), "equal sentences differ"
    masking = MaskedTokenizer(run.source_tokenizer, LastWordsMask(1))
    drawn = [draw_tokens(examples, 0, 1, epoch, rows[:1], [masking])[0][1] for epoch in range(9)]
    text = examples.pair(0).source
    assert {*map(tuple, drawn)} == {tuple(source.tokenizer.encode(text)), tuple(masking.encode(text))}


@pytest.mark.parametrize(
    "changes",
    [{"text": {"level": "word"}}, {"text": {"level": "bpe", "max_size": 50}, "source_text": {"level": "word"}}],
)
def test_a_vocabulary_of_words_is_refused(changes):
    values = {**recipe_of().model_dump(mode="json"), **changes}
    if "source_text" not in changes:
        values.pop("source_text")
    with pytest.raises(SettingsError, match=r"training\.bpe_dropout=0\.2 .* set text\.level=bpe"):
        Recipe.parse(values)


def test_runs_of_other_seeds_and_rates_form_an_ensemble_and_other_subwords_do_not(corpus, tmp_path):
    runs = [
        train(recipe_of(epochs=1, seed=seed, bpe_dropout=rate), corpus, tmp_path / f"run{seed}")
        for seed, rate in ((1, 0.2), (2, 0.0))
    ]
    assert len(load(*runs).translate(["EIN MANN LÄUFT."], beam_size=2, n_best=2)[0]) == 2
    joint = train(recipe_of(data={"joint_vocabulary": True}, epochs=1), corpus, tmp_path / "joint")
    with pytest.raises(RunError, match=r"must share one vocabulary: .* the same text settings"):
        load(runs[0], joint)
