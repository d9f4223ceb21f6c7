"""Names of languages, and checks of the words of queries: function words and unknown words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from limner.errors import SettingsError, did_you_mean, shortened
from limner.files import read_bytes
from limner.files.structured import parse_json
from limner.text import scripts
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS

_DATA = parse_json(read_bytes(Path(__file__).with_name("languages.json")))
LANGUAGE_NAMES: dict[str, str] = _DATA["names"]
"""English names of languages."""
FUNCTION_WORDS: dict[str, str] = _DATA["function_words"]
"""Articles, prepositions, conjunctions, pronouns and auxiliary verbs of the built-in models' languages."""
WORDS_SHOWN = 5
"""Maximum number of words in a message."""


def language_name(lang: str) -> str:
    """Return the name of a language with its code: 'German (de)'; the code alone where there is no name."""
    return f"{LANGUAGE_NAMES[lang]} ({lang})" if lang in LANGUAGE_NAMES else f"'{lang}'"


def guess_language(texts: Iterable[str], lang: str) -> str:
    """Return the language of texts by their function words: `lang`, or a language with more than twice as many."""
    counts = Counter(word for text in texts for word in scripts.split(text.lower()))
    hits = {name: sum(counts[word] for word in words.split()) for name, words in FUNCTION_WORDS.items()}
    best = max(hits, key=hits.__getitem__)
    return best if hits[best] > 2 * hits.get(lang, hits[best]) else lang


def require_content(tokenizer: Tokenizer, query: str, unknown: Sequence[str], lang: str) -> None:
    """Check that a query has a content word besides its `unknown` words; SettingsError if it has none."""
    if set(tokenizer.words(query)).difference(unknown, FUNCTION_WORDS.get(lang, "").split()):
        return
    words = f"{quoted(unknown)}, not in the vocabulary" if unknown else "function words only"
    similar = similar_word(tokenizer, unknown)
    if (guessed := guess_language([query], lang)) != lang:
        model = f"a model or an index of this language, as 'limner index FOLDER --lang {guessed} --index DIR' writes it"
        similar = f"; search in {language_name(guessed)} with {model}"
    raise SettingsError(
        f"'{shortened(query)}': expected words for what an image shows, in {language_name(lang)}, the language of this "
        f"search; got {words}{similar or '; use other words'}"
    )


def similar_word(tokenizer: Tokenizer, unknown: Sequence[str]) -> str:
    """Return '; did you mean …?' with the most similar word of the vocabulary for a single unknown word, or ''."""
    return did_you_mean(unknown[0], tokenizer.spellings[SPECIAL_TOKENS.unk + 1 :]) if len(unknown) == 1 else ""


def require_words(tokenizer: Tokenizer, sentences: Sequence[str]) -> None:
    """Check that every sentence has a word; SettingsError for an empty sentence."""
    for sentence in sentences:
        if not tokenizer.words(sentence):
            raise SettingsError(f"expected a sentence of at least one word, got '{sentence}'")


def quoted(words: Sequence[str]) -> str:
    """Return the first words in quotation marks, shortened and separated by commas."""
    shown = [f"'{shortened(word)}'" for word in words[:WORDS_SHOWN]]
    return ", ".join(shown + ["…"] * (len(words) > WORDS_SHOWN))
