"""Words that captions and translations must include, in the vocabularies and from the command line."""

import json
import re

import pytest
from PIL import Image

from limner.decoding.automaton import MAX_STATES
from limner.errors import SettingsError
from limner.generation.sentences import EMPTY_TRANSLATION, compile_words, words_of_inputs
from limner.text.tokenizer import Tokenizer
from limner.text.words import TextSettings

SENTENCES = [
    "a yorker in york",
    "the new york city hall is new",
    "a dog , a puppy and a cat in the city",
    "an umbrella , a newer umbrella and an old one",
]


@pytest.fixture(scope="module")
def words():
    return Tokenizer.train(SENTENCES, TextSettings(punctuation=False))


@pytest.fixture(scope="module")
def subwords():
    return Tokenizer.train(SENTENCES, TextSettings(level="bpe", max_size=40))


@pytest.mark.parametrize("vocabulary", ["words", "subwords"])
@pytest.mark.parametrize(
    ("required", "sentence", "included"),
    [
        (["york"], "the city of york", True),
        (["york"], "a yorker", False),  # one of its subwords is that of york
        (["york"], "a yorker in york", True),
        (["york"], "york a yorker", True),
        (["new york"], "the new city york", False),
        (["new york"], "new new york", True),
        (["new york"], "the new yorker", False),
        (["new york", "york"], "a dog in new york", True),  # one occurrence is enough for both
        (["new york|city"], "the new city", True),
        (["dog | puppy", "cat"], "a puppy and a cat", True),
        (["dog|puppy", "cat"], "a dog and a puppy", False),
        ([], "", True),
    ],
)
def test_a_sentence_includes_whole_words_and_phrases(request, vocabulary, required, sentence, included):
    tokenizer = request.getfixturevalue(vocabulary)
    assert compile_words(tokenizer, required).accepts(tokenizer.encode(sentence)) == included


def test_parts_of_compounds_are_not_words():
    sentences = ["Wasser Ball"] * 6 + ["ein Wasserball am Strand"]
    tokenizer = Tokenizer.train(sentences, TextSettings(lang="de", split_compounds=True))
    assert len(tokenizer.encode("Wasserball")) == 3
    for word, sentence, included in (
        ("Ball", "ein Wasserball", False),
        ("Wasser", "ein Wasserball", False),
        ("Wasserball", "ein Wasserball", True),
        ("Ball", "ein Wasserball Ball", True),
    ):
        assert compile_words(tokenizer, [word]).accepts(tokenizer.encode(sentence)) == included


def test_characters_of_scripts_without_spaces_are_words():
    tokenizer = Tokenizer.train(["一只小狗在草地上", "小猫"], TextSettings(lang="zh"))
    assert compile_words(tokenizer, ["小狗|猫"]).accepts(tokenizer.encode("草地上一只小狗"))
    assert not compile_words(tokenizer, ["小狗|猫"]).accepts(tokenizer.encode("小草狗"))


@pytest.mark.parametrize(
    ("must_include", "message"),
    [
        ("dog", r"expected a list of strings, got the string 'dog'"),
        (["umbrela"], r"must_include 'umbrela': not in the vocabulary of the model; similar words: umbrella"),
        (["xylophone|new xqzw"], r"'xylophone\|new xqzw', word 'xylophone': not in the vocabulary.*training sentences"),
        (["dog|"], r"'dog\|': expected words, separated by \|.*got ''"),
        (["!"], r"got '!'"),
        (["dog", ["cat"]], r"one for each of 2 inputs"),
        ([["dog"]], r"one for each of 2 inputs"),
        (["a", "dog", "city", "new", "york", "the", "umbrella"], rf"7 constraints.*more than {MAX_STATES} states"),
    ],
)
def test_words_that_cannot_be_included_are_errors(words, must_include, message):
    with pytest.raises(SettingsError, match=message):
        words_of_inputs(words, must_include, 2)


def test_alternatives_that_are_not_in_the_vocabulary_are_left_out(words, caplog):
    assert words_of_inputs(words, ["dog|poodle"], 2) == [("dog|poodle",)] * 2
    assert caplog.text.count("'dog|poodle': not in the vocabulary and left out: poodle") == 1
    assert compile_words(words, ["dog|poodle"]) == compile_words(words, ["dog"])


def test_inputs_may_have_words_of_their_own(words):
    assert words_of_inputs(words, [["dog"], [], ("cat", "new york")], 3) == [("dog",), (), ("cat", "new york")]
    assert words_of_inputs(words, None, 2) == words_of_inputs(words, [], 2) == [(), ()]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for name, colour in {"red": (250, 20, 20), "blue": (20, 20, 250)}.items():
        Image.new("RGB", (20, 20), colour).save(folder / f"{name}.png")
    return [folder / "red.png", folder / "blue.png"]


def test_captions_include_words_and_their_images_words_of_their_own(captioner, photos):
    plain = captioner.describe(photos, beam_size=3, n_best=2)
    for one, colours in zip(captioner.describe(photos, must_include=["green|white"]), plain, strict=True):
        assert re.search("green|white", one[0].text) and one[0].log_prob < colours[0].log_prob
    own = captioner.describe(photos, must_include=[["green"], []], beam_size=3, n_best=2)
    assert [one.tokens for one in own[1]] == [one.tokens for one in plain[1]]
    assert all("green" in caption.text for caption in own[0])
    streamed = dict(captioner.describe_each(photos, must_include=[["green"], []], batch_size=1, beam_size=3, n_best=2))
    assert [[one.tokens for one in streamed[path]] for path in photos] == [[one.tokens for one in n] for n in own]


def test_the_beam_of_constrained_search_is_explained(captioner, photos):
    explained = captioner.explain_beam(photos[0], must_include=["green"], beam_size=2)
    (caption,) = captioner.describe(photos[:1], must_include=["green"], beam_size=2)[0]
    assert explained.sentence(explained.ranking[0].node) == caption.text and "green" in caption.text


def test_translations_include_words(translator):
    sentences = ["zwei eins", "", "drei"]
    plain = translator.translate(sentences, beam_size=2)
    word = plain[2][0].text
    included, empty, same = translator.translate(sentences, must_include=[word], beam_size=2)
    assert word in included[0].text.split() and word not in plain[0][0].text
    assert empty == [EMPTY_TRANSLATION] and same[0].text == word
    explained = translator.explain_beam("zwei eins", must_include=[word], beam_size=2)
    assert explained.sentence(explained.ranking[0].node) == included[0].text


def test_the_option_is_repeatable_and_its_errors_name_it(trained, photos, tmp_path, command_line):
    def run(*arguments):
        return command_line("describe", photos[0], "--model", trained, *arguments)

    given = ["--must-include", "look", "--must-include", "green|white"]
    status, printed, _ = run(*given, "--json")
    (record,) = json.loads(printed)
    assert status == 0 and re.search("look", str(record)) and re.search("green|white", str(record))
    for others, message in (
        (["--sample"], "--must-include: needs beam search; leave out --sample"),
        (["--max-length", "1"], "at least 2 tokens, got --max-length 1; raise --max-length"),
        (["--must-include", "gren"], "--must-include 'gren': not in the vocabulary of the model; similar words: green"),
    ):
        status, printed, errors = run(*given, *others)
        assert (status, printed) == (1, "") and message in " ".join(errors.split())
