"""Moses tokenisation by language, and vocabularies of words and subwords."""

import gzip
import json
import logging
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest
import sacremoses
import tokenizers
from sacremoses.corpus import NonbreakingPrefixes
from tokenizers import Tokenizer as LibraryTokenizer

from limner.errors import MissingExtraError, RunError, SettingsError
from limner.inference.explain import words_of
from limner.metrics import METRICS, default_metrics, metrics_for, score_sentences
from limner.text import moses, scripts
from limner.text.compounds import JOINER, CompoundSettings, CompoundSplitter, join
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKEN_STRINGS, SPECIAL_TOKENS
from limner.text.words import TextSettings, split_words

SENTENCES = [
    "A man's dog, a T-shirt and 3,000 balls.",
    "A man throws a ball to the dog.",
    "The dog isn't there!",
    "A ball lies by the dog.",
]


@pytest.mark.parametrize(
    ("lang", "text", "tokens"),
    [
        ("en", "A man's T-shirt isn't (very) red, is it?", "A man 's T-shirt isn 't ( very ) red , is it ?"),
        ("en", "Mr. Hill has 3,000 balls...", "Mr. Hill has 3,000 balls ..."),
        ("en", "a horse 's lead and they 're on it .", "a horse 's lead and they 're on it ."),
        ("en", "“Stop” – he said", '" Stop " - he said'),
        ("en", "cats & dogs < 5", "cats & dogs < 5"),
        ("de", "Ein Mann, z. B. am See, ruft „Halt!“", 'Ein Mann , z. B. am See , ruft " Halt ! "'),
        ("de", "Vgl. die Straße.", "Vgl. die Straße ."),
        ("fr", "L'homme s'assoit près d'un café.", "L' homme s' assoit près d' un café ."),
        ("cs", "Žena, která běží na hřišti.", "Žena , která běží na hřišti ."),
    ],
)
def test_tokens_by_language(lang, text, tokens):
    assert " ".join(moses.tokenise(moses.normalise(text, lang), lang)) == tokens


@pytest.mark.parametrize(
    ("lang", "text"),
    [
        ("en", "A man's T-shirt (a red one) isn't here, is it? \"Yes,\" he says."),
        ("de", "Ein Mann, der läuft, sieht eine Frau."),
        ("fr", "L'homme s'assoit près d'un café. Où va l'homme ?"),
        ("cs", "Žena, která běží na hřišti."),
    ],
)
def test_detokenise_undoes_tokenise(lang, text):
    assert moses.detokenise(moses.tokenise(moses.normalise(text, lang), lang), lang) == text


def test_a_czech_dash_after_an_apostrophe_does_not_stop_the_detokeniser():
    assert moses.detokenise(["je", "d'", "-", "li", "tak"], "cs") == "je d'-li tak"


TRICKY = [
    "", " ", ".", "a", "a.", "A.", "word.", "No.", "no .", "Dr.", "bzw.", "tj.", "U.S.", "p.m.", "a..",
    "a. b.", "a,b", ",", ",,", "a ,b.", "-", "--", "a- b", "-.", "T-shirt,", "Öl,", "Æ×÷ß", "naïve,", "a\tb",
    "a  b ",
]  # fmt: skip


@pytest.mark.parametrize("lang", ["en", "de", "fr", "cs"])
def test_shortcut_rules_equal_sacremoses(lang):
    normaliser, tokeniser = sacremoses.MosesPunctNormalizer(lang), sacremoses.MosesTokenizer(lang)
    draw = random.Random(0)
    alphabet = [*"abzÄéž", " ", " ", "-", ",", ".", "'", '"', "3", "(", ":", "\u00a0", "„", "–", "…"]
    noise = ["".join(draw.choices(alphabet, k=draw.randrange(12))) for _ in range(1500)]
    letters = {chr(code) for code in range(0xC0, 0x17F)} - {"×", "÷"}
    for text in [*TRICKY, *letters, *noise]:
        assert moses.normalise(text, lang) == normaliser.normalize(text)
        assert moses.tokenise(text, lang) == tokeniser.tokenize(text, escape=False)


@pytest.mark.parametrize("lang", ["en", "de", "fr", "cs", "fi", "ga", "zh"])
def test_plain_tokens_are_detokenised_as_by_sacremoses(lang):
    detokeniser = sacremoses.MosesDetokenizer(lang)
    draw = random.Random(0)
    pool = "a b Öl naïve T-shirt - -- . , ... ., li mail n ssa 3 's d'".split()  # noqa: SIM905
    tokens = [draw.choices(pool, k=draw.randrange(8)) for _ in range(1500)]
    for sentence in [[], [""], ["."], ["a", "", "b"], ["a", " "], *tokens]:
        if lang != "cs" or not moses._CZECH_DASH.search(" ".join(sentence)):
            assert moses.detokenise(sentence, lang) == detokeniser.detokenize(sentence, unescape=False), sentence


def test_the_languages_are_those_of_sacremoses():
    assert set(moses.LANGUAGES) == set(NonbreakingPrefixes().available_langs.values())
    assert list(moses.LANGUAGES) == sorted(moses.LANGUAGES)


def test_an_unknown_language_is_an_error_that_lists_the_supported_ones():
    for use in (moses.normalise, moses.tokenise, moses.detokenise):
        with pytest.raises(SettingsError, match=r"'klingon'.*cs.*de.*en.*fr"):
            use("a", "klingon")
    with pytest.raises(SettingsError, match="klingon"):
        TextSettings.parse({"lang": "klingon", "tokenise": "moses"})


@pytest.mark.parametrize("tokenise", ["moses", "space"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \t\n ", []),
        ("a\0b \ufeffc\x07 d", ["ab", "c", "d"]),
        ("cafe\u0301", ["café"]),
        ("broken \ud83d half", ["broken", "half"]),
        ("a\u200bb soft\u00adly", ["ab", "softly"]),
        ("собака бежит", ["собака", "бежит"]),
        ("a 🐕 runs", ["a", "🐕", "runs"]),
        ("कुत्ता दौड़ता", ["कुत्ता", "दौड़ता"]),
    ],
)
def test_unusual_text_is_tokenised_without_errors(text, words, tokenise):
    settings = TextSettings(tokenise=tokenise)
    assert split_words(text, settings) == words
    tokenizer = Tokenizer.train([text], settings)
    assert tokenizer.decode(tokenizer.encode(text)) == " ".join(words)
    assert split_words(text, TextSettings(tokenise=tokenise, punctuation=False)) == words


def test_punctuation_removal_applies_to_whole_tokens():
    text = 'The man\'s T-shirt: 3,000 "dots" & 1 dog - wow!!! ... 🐕'
    words = split_words(text, TextSettings(punctuation=False, lowercase=False))
    assert words == ["The", "man", "'s", "T-shirt", "3,000", "dots", "1", "dog", "wow", "🐕"]


def test_lowercasing_is_a_setting():
    assert split_words("Der Öltank", TextSettings(lang="de")) == ["der", "öltank"]
    assert split_words("Der Öltank", TextSettings(lang="de", lowercase=False)) == ["Der", "Öltank"]


def test_words_are_sorted_by_frequency_then_alphabetically():
    settings = TextSettings(min_count=2)
    tokenizer = Tokenizer.train(SENTENCES, settings)
    assert tokenizer.entries == (*SPECIAL_TOKEN_STRINGS, "a", "dog", ".", "the", "ball", "man")
    assert len(tokenizer) == 10
    assert Tokenizer.train(SENTENCES[::-1], settings).entries == tokenizer.entries
    assert (SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos, SPECIAL_TOKENS.eos, SPECIAL_TOKENS.unk) == (0, 1, 2, 3)


def test_rare_words_are_unknown():
    tokenizer = Tokenizer.train(SENTENCES, TextSettings(min_count=3))
    ids = tokenizer.encode("The zebra lies by a dog")
    assert tokenizer.decode(ids) == "the <unk> <unk> <unk> a dog"
    assert tokenizer.words("The zebra lies") == ["the", "zebra", "lies"]
    assert len(Tokenizer.train(SENTENCES, TextSettings(max_size=6))) == 6


def test_special_tokens_are_omitted_from_text():
    tokenizer = Tokenizer.train(SENTENCES, TextSettings(lowercase=False))
    pad, bos, eos, unk = SPECIAL_TOKENS
    ids = tokenizer.encode("A man's dog.")
    assert tokenizer.decode([bos, *ids, unk, eos, pad, pad]) == "A man 's dog . <unk>"
    assert tokenizer.decode([bos, *ids], detokenise=True) == "A man's dog."


@pytest.mark.parametrize("level", ["word", "bpe"])
@pytest.mark.parametrize("tokenise", ["moses", "space"])
def test_the_string_of_a_special_token_in_a_sentence_is_unknown(level, tokenise):
    text = "a </s> dog <pad> <s> <unk>"
    settings = TextSettings(tokenise=tokenise, level=level, max_size=60)
    ids = Tokenizer.train([text, text], settings).encode(text)
    assert not {SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos, SPECIAL_TOKENS.eos} & set(ids)


def bpe(**values):
    return TextSettings(**{"level": "bpe", "max_size": 60} | values)


def test_subwords_are_joined_to_words():
    tokenizer = Tokenizer.train(SENTENCES, bpe())
    for text in [*SENTENCES, "a dogball throws there"]:
        ids = tokenizer.encode(text)
        assert SPECIAL_TOKENS.unk not in ids
        assert tokenizer.decode(ids) == " ".join(tokenizer.words(text))
    assert len(tokenizer) == 60
    assert len(tokenizer.encode("dog")) == 1 < len(tokenizer.encode("god"))


def test_subwords_of_a_foreign_script_are_one_unknown():
    tokenizer = Tokenizer.train(SENTENCES, bpe())
    assert tokenizer.decode(tokenizer.encode("a 日本 dog")).split() == ["a", "<unk>", "<unk>", "dog"]
    space = Tokenizer.train(SENTENCES, bpe(tokenise="space"))
    assert space.decode(space.encode("a 日本 dog")).split() == ["a", "<unk>", "dog"]


def test_subwords_are_deterministic_and_independent_of_sentence_order():
    vocabularies = {Tokenizer.train(order, bpe()).entries for order in [SENTENCES, SENTENCES[::-1]] * 5}
    assert len(vocabularies) == 1


@pytest.mark.parametrize(
    "settings",
    [TextSettings(punctuation=False, min_count=2), bpe(lang="de", lowercase=False), bpe(tokenise="space")],
    ids=["word", "bpe", "space"],
)
def test_a_tokenizer_is_saved_in_one_file(tmp_path, settings):
    tokenizer = Tokenizer.train(SENTENCES, settings)
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    assert again.settings == tokenizer.settings == settings.resolve(SENTENCES)
    assert again.entries == tokenizer.entries
    for text in [*SENTENCES, "a dog and a zebra"]:
        ids = tokenizer.encode(text)
        assert again.encode(text) == ids
        assert library.encode(" ".join(tokenizer.words(text))).ids == ids
        if SPECIAL_TOKENS.unk not in ids:
            assert library.decode(ids) == tokenizer.decode(ids)


GERMAN = [
    *["Ein Mann spielt mit dem Ball am Wasser.", "Der Spieler und die Geburt.", "Die Tage am Wasser sind groß."] * 5,
    "Ein Wasserball und ein Ballspieler!",
    "Geburtstage am Großwasser.",
]


def german(**values):
    return TextSettings(**{"lang": "de", "split_compounds": True, "lowercase": False} | values)


@pytest.mark.parametrize("values", [{}, {"lowercase": True}, {"level": "bpe", "max_size": 90}], ids=str)
def test_compounds_are_encoded_by_parts_and_decoded_whole(values):
    tokenizer = Tokenizer.train(GERMAN, german(**values))
    whole = Tokenizer.train(GERMAN, german(**values | {"split_compounds": False}))
    for text in GERMAN:
        assert tokenizer.words(text) == whole.words(text)
        assert tokenizer.decode(tokenizer.encode(text)) == " ".join(tokenizer.words(text))
        decoded = [one.decode(one.encode(text), detokenise=True) for one in (tokenizer, whole)]
        assert decoded[0] == decoded[1]
    unseen = tokenizer.words("Ballwasser")
    assert tokenizer.decode(tokenizer.encode("Ballwasser")) == unseen[0]
    assert tokenizer.encode("Spielertage")[: len(tokenizer.encode("Spieler"))] == tokenizer.encode("Spieler")
    if tokenizer.settings.level == "word":
        compounds = whole.words("Wasserball Ballspieler Geburtstage Großwasser")
        assert set(whole.entries) - set(tokenizer.entries) == set(compounds)
        assert len(tokenizer.encode("Wasserball")) == 3


def test_a_part_counts_as_often_as_its_compounds():
    texts = ["Wasser Ball"] * 5 + ["Wasserball"] * 3
    assert Tokenizer.train(texts, german(min_count=8)).entries[-2:] == ("Ball", "Wasser")
    assert "Ball" not in Tokenizer.train(texts, german(min_count=9)).entries


def test_joiners_are_never_too_rare_or_too_many():
    few_letters = german(level="bpe", max_size=len(SPECIAL_TOKEN_STRINGS) + len(set("WasserBall▁￭")) - 1)
    assert "￭" in Tokenizer.train(["Wasser Ball"] * 5 + ["Wasserball"], few_letters).entries
    for values in ({"min_count": 6}, {"max_size": 8}, {"level": "bpe", "max_size": 40, "min_count": 9}):
        tokenizer = Tokenizer.train(GERMAN, german(**values))
        if tokenizer.settings.level == "word":
            assert tokenizer.entries[:7] == (*SPECIAL_TOKEN_STRINGS, "￭", "￭s", "￭es")
        decoded = tokenizer.decode(tokenizer.encode("Geburtstage"))
        assert " " not in decoded and "￭" not in decoded


@pytest.mark.parametrize("values", [{}, {"level": "bpe", "max_size": 90}], ids=str)
def test_a_joiner_in_the_input_text_has_no_effect(values):
    text = "Ball ￭ Wasser ￭s Tage ￭"
    tokenizer = Tokenizer.train([*GERMAN, text], german(tokenise="space", **values))
    assert tokenizer.decode(tokenizer.encode(text)).split() == ["Ball", "■", "Wasser", "■s", "Tage", "■"]
    assert Tokenizer.train([text], german(split_compounds=False)).words("a ￭") == ["a", "￭"]


@pytest.mark.parametrize("level", ["word", "bpe"])
def test_two_vocabularies_or_one_for_both(level):
    source, target = TextSettings(lowercase=False, level=level, max_size=90), german(level=level, max_size=90)
    assert [one.entries for one in Tokenizer.train_pair(SENTENCES, GERMAN, source, target, joint=False)] == [
        Tokenizer.train(SENTENCES, source).entries,
        Tokenizer.train(GERMAN, target).entries,
    ]
    english, german_ = Tokenizer.train_pair(SENTENCES, GERMAN, source, target, joint=True)
    assert english.entries == german_.entries
    assert Tokenizer.train_pair(SENTENCES[::-1], GERMAN[::-1], source, target, joint=True)[0].entries == english.entries
    assert (english.settings, german_.settings) == (source.resolve(SENTENCES), target.resolve(GERMAN))
    assert english.encode("ball Wasser .") == german_.encode("ball Wasser .")
    assert english.decode(english.encode(SENTENCES[0]), detokenise=True) == SENTENCES[0]
    assert german_.decode(german_.encode("Wasserball")) == "Wasserball"
    assert english.encode("Wasserball") != german_.encode("Wasserball")  # each language's own compounds


def test_a_joint_vocabulary_counts_both_languages():
    settings = TextSettings(tokenise="space", min_count=3)
    source, _ = Tokenizer.train_pair(["a a b", "c"], ["a b b d"], settings, settings, joint=True)
    assert source.entries == (*SPECIAL_TOKEN_STRINGS, "a", "b")
    source, target = Tokenizer.train_pair(["a a b", "c"], ["a b b d"], settings, settings, joint=False)
    assert source.entries == target.entries == SPECIAL_TOKEN_STRINGS


@pytest.mark.parametrize(
    ("name", "values"),
    [("max_size", {"max_size": 99}), ("min_count", {"min_count": 2}), ("lowercase", {"lowercase": False})],
)
def test_a_joint_vocabulary_needs_equal_settings(name, values):
    source, target = TextSettings(), TextSettings(lang="de", **values)
    with pytest.raises(SettingsError, match=rf"{name} is \S+ for 'en' and {values[name]} for 'de'"):
        Tokenizer.train_pair(SENTENCES, GERMAN, source, target, joint=True)
    Tokenizer.train_pair(SENTENCES, GERMAN, source, target, joint=False)
    with pytest.raises(SettingsError, match="level is word for 'en' and bpe for 'de'"):
        Tokenizer.train_pair(SENTENCES, GERMAN, TextSettings(max_size=60), bpe(lang="de"), joint=True)


@pytest.mark.parametrize("values", [{}, {"level": "bpe", "max_size": 90}], ids=str)
def test_the_file_contains_the_compound_statistics(tmp_path, values):
    path = tmp_path / "tokenizer.json"
    tokenizer = Tokenizer.train(GERMAN, german(**values))
    tokenizer.save(path)
    again = Tokenizer.load(path)
    library = tokenizers.Tokenizer.from_file(str(path))
    for name in ("settings", "splitter", "entries"):
        assert getattr(again, name) == getattr(tokenizer, name)
    for text in [*GERMAN, "Ballwasser"]:
        ids = tokenizer.encode(text)
        assert again.encode(text) == ids
        assert again.decode(ids) == tokenizer.decode(ids)
        parts = [part for word in again.words(text) for part in again.splitter.split(word)]
        assert library.encode(" ".join(parts)).ids == ids
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace('"limner_compounds"', '"other"'), encoding="utf-8")
    with pytest.raises(RunError, match="not a tokenizer saved by Limner"):
        Tokenizer.load(path)
    path.write_text(whole.replace('"words"', '"wrods"'), encoding="utf-8")
    with pytest.raises(RunError, match=r"tokenizer\.json: .*wrods.*restore"):
        Tokenizer.load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model["vocab"].update(zebra=1000),
        lambda model: model["vocab"].update(zebra=5),
        lambda model: model["vocab"].update({"<unk>": model["vocab"]["dog"], "dog": model["vocab"]["<unk>"]}),
        lambda model: model.update(unk_token="dog"),
    ],
    ids=["gap", "repeated", "special tokens moved", "another unknown word"],
)
def test_vocabularies_of_impossible_ids_are_refused(tmp_path, change):
    path = tmp_path / "tokenizer.json"
    Tokenizer.train(SENTENCES, TextSettings()).save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content["model"])
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(RunError, match=r"tokenizer\.json: damaged.*restore"):
        Tokenizer.load(path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"level": "bpe"}, "needs max_size"),
        ({"max_size": 4}, "above 4"),
        ({"min_count": 0}, "min_count"),
        ({"lowercased": True}, "lowercased: unknown key"),
        ({"level": "char"}, "level"),
    ],
)
def test_invalid_settings_are_refused(values, message):
    with pytest.raises(SettingsError, match=message):
        TextSettings.parse(values)


def test_segmented_text_of_a_script_without_spaces_is_joined():
    tokenizer = Tokenizer.train(["犬 が 走る"], TextSettings(lang="ja", tokenise="space"))
    assert tokenizer.decode(tokenizer.encode("犬 が 走る"), detokenise=True) == "犬が走る"
    assert tokenizer.words("犬 が 走る") == ["犬", "が", "走る"]


def test_threads_may_share_a_tokenizer():
    tokenizer = Tokenizer.train(SENTENCES, bpe())
    texts = [f"{first} {second}" for first in SENTENCES for second in SENTENCES] * 10
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tokenizer.encode, texts)) == [tokenizer.encode(text) for text in texts]


@pytest.mark.real
@pytest.mark.parametrize("lang", ["en", "de", "fr", "cs"])
def test_real_sentences_are_tokenised_as_by_sacremoses(real_data, lang):
    normaliser, tokeniser = sacremoses.MosesPunctNormalizer(lang), sacremoses.MosesTokenizer(lang)
    with gzip.open(real_data / "multi30k/task1" / f"val.{lang}.gz", "rt", encoding="utf-8") as lines:
        for text in lines:
            expected = tokeniser.tokenize(normaliser.normalize(text), escape=False)
            assert moses.tokenise(moses.normalise(text, lang), lang) == expected


SAMPLES = {
    "en": ["A man's T-shirt costs 3.50, not 1,000!", 'Two "good" dogs (one brown) run...', "It isn't far -- is it?"],
    "de": ["Ein Mädchen läuft über die nasse Straße.", "Der Hund, den sie sucht, schläft."],
    "fr": ["Où va l'homme à la veste bleue, ce matin.", "Un garçon mange une crêpe."],
    "cs": ["Příliš žluťoučký kůň běží přes louku.", "Dívka stojí u řeky, že?"],
    "zh": ["一个穿着T恤的男人，拿着iPhone 14 Pro在New York跑步。", "两只狗在草地上玩“飞盘”！", "她说:3个孩子,都笑了"],
    "ar": ["رجلٌ يركضُ في الحديقةِ، أليس كذلك؟", "كلبان يلعبان بالكرة."],
    "ja": ["彼女はコーヒーを飲んでいる。", "ガラスの前で犬が待つ。"],
    "th": ["ผู้ชายคนหนึ่งกำลังวิ่งกับสุนัข"],
    "ne": ["दुई कुकुर घाँसमा खेल्छन्।"],
    "fa": ["مرد به خانه می‌رود."],
}
CHINESE = ["一个男人在草地上跑步。", "两个女人在草地上踢球。", "一个男人在海边踢球。", "一个穿T恤的女人在海边。"]


@pytest.mark.parametrize(("lang", "text"), [(lang, text) for lang, texts in SAMPLES.items() for text in texts])
def test_text_of_any_script_is_split_and_joined_again(lang, text):
    assert scripts.join(scripts.split(text)) == text
    for level in ("word", "bpe"):
        settings = TextSettings(lang=lang, lowercase=False, level=level, max_size=400)
        tokenizer = Tokenizer.train(SAMPLES[lang], settings)
        ids = tokenizer.encode(text)
        assert SPECIAL_TOKENS.unk not in ids
        assert tokenizer.decode(ids) == " ".join(tokenizer.words(text))
        assert tokenizer.decode(ids, detokenise=True) == text
        assert [word.text for word in words_of(tokenizer, ids)]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("穿T恤的3个人", ["穿", "T", "恤", "的", "3", "个", "人"]),
        ("ガラス", ["ガ", "ラ", "ス"]),
        ("か\u3099く", ["か\u3099", "く"]),  # a combining voiced sound mark
        ("ผู้ชาย", ["ผู้", "ช", "า", "ย"]),
        ("ស្ត្រី", ["ស្ត្រី"]),  # consonants below one another
        ("رجلٌ يركضُ، نعم؟", ["رجلٌ", "يركضُ", "،", "نعم", "؟"]),
        ("e\u0301te\u0301 3,5 l'eau", ["e\u0301te\u0301", "3,5", "l'eau"]),
        ("می‌رود", ["می‌رود"]),  # a zero-width non-joiner inside a word
        ("👩‍👩‍👧 👍🏽!", ["👩‍👩‍👧", "👍🏽", "!"]),
        ("wait... 3.5.", ["wait", "...", "3.5", "."]),
        ("", []),
        (" \u0301 ", ["\u0301"]),
    ],
)
def test_combining_marks_stay_with_their_base(text, tokens):
    assert scripts.split(text) == tokens


@pytest.mark.parametrize(
    ("lang", "text", "chosen"),
    [
        ("en", "A dog runs past a sign with 出口 on it, which means exit in Chinese.", "moses"),
        ("de", "Ein Hund.", "moses"),
        ("en", "一个男人在跑步", "unicode"),
        ("zh", "一个男人在跑步", "unicode"),
        ("zh", "yi ge nan ren", "moses"),
        ("zh", "这是iPhone 14 Pro Max", "unicode"),
        ("ja", "カタカナ", "unicode"),
        ("ar", "رجل يركض", "unicode"),
    ],
)
def test_the_script_of_the_sentences_decides_how_they_are_split(lang, text, chosen):
    assert TextSettings(lang=lang).resolve([text]).tokenise == chosen
    assert Tokenizer.train([text], TextSettings(lang=lang)).settings.tokenise == chosen
    for explicit in ("space", "unicode"):
        assert TextSettings(lang=lang, tokenise=explicit).resolve([text]).tokenise == explicit


def test_characters_of_chinese_are_entries_and_words():
    tokenizer = Tokenizer.train(CHINESE, TextSettings(lang="zh"))
    assert {"一", "个", "t", "。"} < set(tokenizer.entries)
    assert tokenizer.words("一个 Tiger") == ["一", "个", "tiger"]
    assert tokenizer.decode(tokenizer.encode("一个 男人")) == "一 个 男 人"
    assert tokenizer.decode([*tokenizer.encode("一个"), SPECIAL_TOKENS.unk], detokenise=True) == "一个<unk>"


def test_subwords_of_chinese_are_learned_across_characters_and_read_as_characters(tmp_path):
    settings = TextSettings(lang="zh", level="bpe", max_size=60)
    tokenizer = Tokenizer.train(CHINESE, settings)
    assert Tokenizer.train(CHINESE[::-1], settings).entries == tokenizer.entries
    assert any(len(entry) > 1 and scripts.is_unspaced(entry) for entry in tokenizer.entries)
    ids = tokenizer.encode(CHINESE[3])
    assert len(ids) < len(tokenizer.words(CHINESE[3])) == 12
    assert tokenizer.decode(ids) == "一 个 穿 t 恤 的 女 人 在 海 边 。"
    words = words_of(tokenizer, ids)
    assert "".join(word.text for word in words) == CHINESE[3].lower()
    assert [position for word in words for position in word.positions] == list(range(len(ids)))
    assert max(len(word.positions) for word in words) == 1  # a subword is explained by itself, not a whole sentence
    tokenizer.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").encode(CHINESE[3]) == ids
    library = LibraryTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert library.encode("一个男人", add_special_tokens=False).ids == tokenizer.encode("一个男人")


def test_a_joint_vocabulary_of_a_language_with_and_one_without_spaces():
    english = ["a man runs on the grass", "two women play"]
    settings = {"level": "bpe", "max_size": 120}
    source, target = Tokenizer.train_pair(
        english, CHINESE, TextSettings(**settings), TextSettings(lang="zh", **settings), joint=True
    )
    assert source.entries == target.entries
    assert source.decode(source.encode(english[0]), detokenise=True) == english[0]
    assert target.decode(target.encode(CHINESE[0]), detokenise=True) == CHINESE[0]


@pytest.mark.parametrize(
    ("lang", "tokeniser"), [("en", "13a"), ("ar", "13a"), ("zh", "zh"), ("yue", "zh"), ("th", "char")]
)
def test_the_language_chooses_the_tokeniser_of_sacrebleu(lang, tokeniser):
    texts = SAMPLES.get(lang, SAMPLES["zh"])
    tokens = [" ".join(split_words(text, TextSettings(lang=lang))) for text in texts]
    scores = score_sentences(
        tokens, [[one] for one in tokens], ["sacrebleu", "bleu1"], texts=(texts, [[t] for t in texts]), lang=lang
    )
    assert [score.value for score in scores] == pytest.approx([100, 100])
    assert f"|tok:{tokeniser}|" in scores[0].signature
    assert ("|unit:characters" in scores[1].signature) == (lang in scripts.UNSPACED_LANGUAGES)


def test_a_tokeniser_is_chosen_by_the_name_of_the_metric():
    texts = ["两只狗在玩"], [["两只猫在玩"]]
    tokens = ["两 只 狗 在 玩"], [["两 只 猫 在 玩"]]
    names = ["sacrebleu_13a", "sacrebleu_zh", "sacrebleu_char", "ter_text", "ter"]
    whole, zh, char, edits, tokens_edits = score_sentences(*tokens, names, texts=texts, lang="zh")
    assert whole.value == 0 < zh.value == pytest.approx(char.value)
    assert [score.signature.partition("tok:")[2].split("|")[0] for score in (whole, zh, char)] == ["13a", "zh", "char"]
    assert edits.value == tokens_edits.value == pytest.approx(20) and "asian:yes" in edits.signature
    assert not set(names[:3]) & set(default_metrics("zh"))
    assert "sacrebleu" in default_metrics("zh")


def test_tokens_are_joined_for_metrics_that_find_words_in_running_text():
    (score,) = score_sentences(["两 只 狗 。"], [["两 只 狗 。"]], ["ter_text"], lang="zh")
    assert score.value == 0 and score.signature.endswith("|input:tokens")
    assert scripts.are_characters(["两", "只", "dog"])
    assert not scripts.are_characters(["两只", "狗"]) and not scripts.are_characters(["a", "dog"])


@pytest.mark.skipif(find_spec("MeCab") is not None, reason="MeCab is installed")
@pytest.mark.parametrize(("lang", "extra"), [("ja", "ja"), ("ko", "ko")])
def test_a_missing_dictionary_is_named_with_its_extra(lang, extra, caplog):
    metric = metrics_for(lang)["sacrebleu"]
    with pytest.raises(MissingExtraError, match=rf"tokeniser '{lang}-mecab' \(without it, use .*limner\[{extra}\]"):
        metric.score(["犬"], [["犬"]])
    with caplog.at_level(logging.WARNING, "limner"):
        scores = score_sentences(["犬"], [["犬"]], ["sacrebleu", "bleu1"], lang=lang)
    assert [score.name for score in scores] == ["bleu1"]
    assert "(left out: sacrebleu)" in caplog.text
    assert METRICS["sacrebleu_char"].score(["犬が走る"], [["犬が走る"]]).value == pytest.approx(100)


@pytest.mark.skipif(find_spec("MeCab") is None, reason="MeCab is not installed: pip install 'limner[ja]'")
def test_words_of_mecab_in_japanese():
    text = ["犬が公園を走っている。"]
    score = metrics_for("ja")["sacrebleu"].score(text, [text])
    assert score.value == pytest.approx(100) and "tok:ja-mecab" in score.signature


COUNTS = {
    "Wasser": 30, "Ball": 40, "Fußball": 6, "Spieler": 20, "Ballspieler": 5,
    "Geburt": 7, "Tag": 30, "Tage": 9, "Stadt": 12,
    "groß": 8, "Groß": 3, "blaue": 25, "hell": 5, "spielt": 50, "Ende": 9, "Spiel": 9, "Meer": 5, "Luft": 5,
    "rare": 4, "1234": 9,
}  # fmt: skip


def learned(counts=COUNTS, **settings):
    return CompoundSplitter.learn(counts, CompoundSettings(**settings))


@pytest.mark.parametrize(
    ("word", "tokens"),
    [
        ("Wasserball", "Wasser ￭ Ball"),
        ("Fußballspieler", "Fußball ￭ Spieler"),
        ("Geburtstage", "Geburt ￭s Tage"),
        ("Meeresluft", "Meer ￭es Luft"),
        ("Luftwasserball", "Luft ￭ Wasser ￭ Ball"),
        ("Großstadt", "groß ￭ Stadt"),
        ("hellblaue", "hell ￭ blaue"),
    ],
)
def test_a_compound_is_split_into_independent_words(word, tokens):
    assert " ".join(learned().split(word)) == tokens
    assert join(tokens.split()) == [word]


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("Ballspieler", "seen max_count times"),
        ("Geburtstag", "'Tag' is shorter than min_size"),
        ("luftrare", "'rare' is rarer than min_count"),
        ("Wasserbaum", "a part is unknown"),
        ("Wassernball", "'n' links nothing"),
        ("spielende", "no noun ends a word written small"),
        ("Ballspielt", "no verb ends a word with a capital"),
        ("WASSERBALL", "joining writes one capital"),
        ("Wasser-Ball", "not of letters only"),
        ("12341234", "not of letters only"),
        ("sWasser", "nothing before the linking letter"),
        ("Wassers", "nothing after the linking letter"),
        (("Wasser" * 17).capitalize(), "too long to be a word"),
        ("", "nothing to cut"),
    ],
)
def test_words_that_are_not_split(word, why):
    assert learned().split(word) == (word,), why


def test_the_settings_limit_the_splits():
    assert len(learned().split(("Wasser" * 16).capitalize())) == 31
    assert learned(min_size=3).split("Geburtstag") == ("Geburt", "￭s", "Tag")
    assert learned(min_count=4).split("luftrare") == ("Luft", "￭", "rare")
    assert learned(min_count=41, max_count=41).split("Wasserball") == ("Wasserball",)
    assert learned(max_count=6).split("Ballspieler") == ("Ball", "￭", "Spieler")
    assert learned(max_count=7, fillers=("", "n")).split("Wassernball") == ("Wasser", "￭n", "Ball")
    assert CompoundSplitter.learn(COUNTS, CompoundSettings()).settings == CompoundSettings(
        min_size=4, min_count=5, max_count=5, fillers=("", "s", "es")
    )


@pytest.mark.parametrize(
    ("counts", "word", "parts"),
    [
        # (960 · 710)^½ = 825.6 and (5 · 710)^½ = 59.6 and (224 · 1 · 710)^⅓ = 54.2 are all below 852.
        ({"aktionsplan": 852, "aktion": 960, "aktions": 5, "akt": 224, "ion": 1, "plan": 710}, "aktionsplan", 1),
        # With a rarer whole word the first of them would win.
        ({"aktionsplan": 825, "aktion": 960, "aktions": 5, "akt": 224, "ion": 1, "plan": 710}, "aktionsplan", 2),
        # (885 · 1864)^½ = 1284.4 is above 556, right or wrong.
        ({"freitag": 556, "frei": 885, "tag": 1864}, "freitag", 2),
    ],
)
def test_the_examples_of_koehn_and_knight(counts, word, parts):
    tokens = learned(counts, min_size=3, min_count=1, max_count=10_000).split(word)
    assert len([token for token in tokens if JOINER not in token]) == parts


def test_among_equal_means_the_fewest_parts_win():
    counts = {"abcdefgh": 9, "abcd": 3, "efgh": 27}
    assert learned(counts, min_count=1, max_count=99).split("abcdefgh") == ("abcdefgh",)
    assert learned(counts | {"efgh": 28}, min_count=1, max_count=99).split("abcdefgh") == ("abcd", "￭", "efgh")


def test_a_part_has_its_most_frequent_spelling():
    counts = {"Band": 6, "band": 5, "BAND": 1, "Wand": 5, "wand": 5}
    for order in (counts, dict(reversed(counts.items()))):
        splitter = learned(order)
        assert splitter.words == {"band": ("Band", 6), "wand": ("Wand", 5)}
        assert splitter.split("Wandband") == ("Wand", "￭", "Band")


def test_joining_restores_every_word():
    draw = random.Random(1)
    stems = ["haus", "Haus", "tür", "Tür", "straße", "Straße", "öl", "İz", "ǅep", "ﬁsch", "ß", "DJ", "s", "es", "日本"]
    cases = [str.capitalize] * 4 + [str, str.lower, str.upper, str.swapcase]
    cut = 0
    for _ in range(100):
        counts = {draw.choice(cases)(stem): draw.randint(1, 9) for stem in stems * 2}
        splitter = learned(counts, min_size=1, min_count=draw.randint(1, 3), max_count=99)
        words = [draw.choice(cases)("".join(draw.choices(stems, k=draw.randint(1, 5)))) for _ in range(40)]
        for word in words:
            tokens = splitter.split(word)
            cut += len(tokens) > 1
            assert join(tokens) == [word]
            assert all(JOINER not in token for token in tokens[::2])
            assert set(tokens[1::2]) <= set(splitter.joiners)
        assert join(token for word in words for token in splitter.split(word)) == words
    assert cut > 200


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ("", ""),
        ("￭", ""),
        ("￭ Ball", "Ball"),
        ("Ball ￭s", "Ball"),
        ("ein Ball ￭ ￭s Spiel .", "ein Ballsspiel ."),
        ("<unk> ￭ Spieler", "<unk>spieler"),
        ("groß ￭ <unk>", "groß<unk>"),
        ("Ball ￭ blau", "ballblau"),
        ("der ￭x Ball", "Derxball"),
    ],
)
def test_any_token_sequence_is_joined_to_words(tokens, words):
    assert " ".join(join(tokens.split())) == words


@pytest.mark.real
@pytest.mark.parametrize("lowercase", [True, False])
def test_real_german_is_split_and_restored(real_data, lowercase):
    with gzip.open(real_data / "multi30k/task1/train.de.gz", "rt", encoding="utf-8") as lines:
        settings = TextSettings(lang="de", lowercase=lowercase)
        counts = Counter(word for line in lines for word in split_words(line, settings))
    splitter = learned(counts)
    tokens = {word: splitter.split(word) for word in counts}
    assert all(join(cut) == [word] for word, cut in tokens.items())
    assert len({token for cut in tokens.values() for token in cut}) < 0.9 * len(counts)
    word, cut = ("holzzauns", "holz ￭ zauns") if lowercase else ("Holzzauns", "Holz ￭ Zauns")
    assert " ".join(tokens[word]) == cut
