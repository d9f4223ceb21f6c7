"""Languages with and without spaces between words: splitting, joining, vocabularies, warnings, metrics."""

import logging
from importlib.util import find_spec

import pytest
from tokenizers import Tokenizer as LibraryTokenizer

from limner.errors import MissingExtraError
from limner.inference.explain import words_of
from limner.metrics import METRICS, default_metrics, metrics_for, score_sentences
from limner.text import scripts
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS
from limner.text.words import TextSettings, split_words

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
