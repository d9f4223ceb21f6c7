"""Names of languages, and words of queries: function words, which say nothing of an image, and unknown ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from limner.errors import SettingsError, did_you_mean
from limner.text import scripts
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS

LANGUAGE_NAMES = {
    "ar": "Arabic", "ca": "Catalan", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English",
    "es": "Spanish", "fi": "Finnish", "fr": "French", "hi": "Hindi", "hu": "Hungarian", "it": "Italian",
    "ja": "Japanese", "ko": "Korean", "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian",
    "ru": "Russian", "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
"""English names of languages."""
FUNCTION_WORDS = {
    "en": "a an the this that these those some another other each both all any one very and or but as while of in on "
    "at to by from for with without into onto over under behind above up down off out near next between through "
    "around across along beside against is are was were be been being has have having had do does it its he his "
    "him she her they their them there who which what where 's",
    "de": "ein eine einen einem einer eines der die das den dem des dieser diese dieses und oder aber als während auf "
    "in im ins an am ans mit ohne von vom vor zu zum zur bei beim aus nach durch über unter hinter neben zwischen "
    "um für gegen entlang ist sind war wird werden hat haben es er sie ihr ihre ihren ihrem ihrer sein seine "
    "seinen seinem seiner sich etwas einige andere anderen welche",
    "zh": "的 地 得 了 着 过 在 一 个 只 条 位 名 些 这 那 其 之 是 有 和 与 及 或 被 把 从 到 向 对 为 "
    "于 上 下 里 中 内 外 边 旁 前 们 他 很 给 而",
}
"""Articles, prepositions, conjunctions, pronouns and auxiliary verbs of the built-in models' languages."""


def language_name(lang: str) -> str:
    """Return the name of a language with its code: 'German (de)'; the code alone where there is no name."""
    return f"{LANGUAGE_NAMES[lang]} ({lang})" if lang in LANGUAGE_NAMES else f"'{lang}'"


def guess_language(texts: Iterable[str], lang: str) -> str:
    """Return the language of texts by their function words: `lang`, or another one that has more than twice as many."""
    counts = Counter(word for text in texts for word in scripts.split(text.lower()))
    hits = {name: sum(counts[word] for word in words.split()) for name, words in FUNCTION_WORDS.items()}
    best = max(hits, key=hits.__getitem__)
    return best if hits[best] > 2 * hits.get(lang, hits[best]) else lang


def require_content(tokenizer: Tokenizer, query: str, unknown: Sequence[str], lang: str) -> None:
    """Check that a query has another word than function words and unknown ones.

    Args:
        tokenizer: tokenizer of the model.
        query: the sentence.
        unknown: words of the query that the search does not know.
        lang: language of the model.

    Raises:
        SettingsError: there is no such word.
    """
    if set(tokenizer.words(query)).difference(unknown, FUNCTION_WORDS.get(lang, "").split()):
        return
    words = f"{quoted(unknown)}, not in the vocabulary" if unknown else "function words only"
    similar = did_you_mean(unknown[0], tokenizer.spellings[SPECIAL_TOKENS.unk + 1 :]) if len(unknown) == 1 else ""
    raise SettingsError(
        f"'{query}': expected words for what an image shows, in {language_name(lang)}, the language of this search; "
        f"got {words}{similar or '; use other words'}"
    )


def quoted(words: Sequence[str]) -> str:
    """Return words in quotation marks, separated by commas."""
    return ", ".join(f"'{word}'" for word in words)
