"""Words that generated sentences must include: from text to the finite-state machine of constrained beam search."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import cast

from limner.decoding.automaton import Automaton, WordBoundaries
from limner.errors import SettingsError
from limner.text.compounds import JOINER
from limner.text.queries import language_name
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS, WORD_START

SEPARATOR = "|"
"""Character between alternatives, such as synonyms."""

MustInclude = Sequence[str] | Sequence[Sequence[str]]
"""Words or phrases that every sentence includes, each with alternatives after `SEPARATOR`; or one such list for each
input."""

logger = logging.getLogger(__name__)


def words_of_inputs(tokenizer: Tokenizer, must_include: MustInclude | None, count: int) -> list[tuple[str, ...]]:
    """Check words, and return the words of each of `count` inputs; alternatives that are left out are logged.

    Raises:
        SettingsError: neither a word nor an alternative is in the vocabulary, an alternative is empty, there are too
            many words, or the number of lists differs from the number of inputs.
    """
    if isinstance(must_include, str):  # a sequence of characters
        raise SettingsError(f"must_include: expected a list of strings, got the string '{must_include}'")
    if not must_include:
        return [()] * count
    if all(isinstance(entry, str) for entry in must_include):
        inputs = [tuple(cast("Sequence[str]", must_include))] * count
    elif any(isinstance(entry, str) for entry in must_include) or len(must_include) != count:
        raise SettingsError(
            f"must_include: expected a list of strings, or one for each of {count} inputs, got {list(must_include)}"
        )
    else:
        inputs = [tuple(entry) for entry in must_include]
    for words in dict.fromkeys(inputs):
        compile_words(tokenizer, words)
    for text in dict.fromkeys(text for words in inputs for text in words):
        if left_out := [phrase for phrase in _split(text) if _unknown_words(tokenizer, phrase)]:
            logger.warning("must_include '%s': not in the vocabulary and left out: %s", text, ", ".join(left_out))
    return inputs


def compile_words(tokenizer: Tokenizer, words: Sequence[str]) -> Automaton:
    """Return the machine of the sentences that include words or phrases.

    Raises:
        SettingsError: as `words_of_inputs`.
    """
    constraints = [[ids for phrase in _known(tokenizer, text) for ids in tokenizer.phrases(phrase)] for text in words]
    return Automaton.build(constraints, _boundaries(tokenizer))


def _known(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return the alternatives of a text whose words are all in the vocabulary."""
    unknown = {phrase: _unknown_words(tokenizer, phrase) for phrase in _split(text)}
    for phrase in unknown:
        if not tokenizer.encode(phrase):
            raise SettingsError(
                f"must_include '{text}': expected words, separated by {SEPARATOR} where one of several is enough, got "
                f"'{phrase}'; give words that a sentence can include"
            )
    if not all(unknown.values()):
        return [phrase for phrase, words in unknown.items() if not words]
    word = next(word for words in unknown.values() for word in words)
    vocabulary = [tokenizer.spellings[token] for token in range(len(tokenizer)) if tokenizer.starts_word(token)]
    similar = get_close_matches(word, vocabulary[SPECIAL_TOKENS.unk + 1 :], 3)
    remedy = f"similar words: {', '.join(similar)}" if similar else "give a word of the training sentences"
    place = f"must_include '{text}'" + (f", word '{word}'" if word != text else "")
    lang = language_name(tokenizer.settings.lang)
    raise SettingsError(f"{place}: not in the vocabulary of the model; {remedy}; its language is {lang}")


def _split(text: str) -> list[str]:
    return [phrase.strip() for phrase in text.split(SEPARATOR)]


def _unknown_words(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return the words of a text that are not in the vocabulary."""
    return tokenizer.unknown_words(text) or [text] * (SPECIAL_TOKENS.unk in tokenizer.encode(text))


@lru_cache(maxsize=16)
def _boundaries(tokenizer: Tokenizer) -> WordBoundaries:
    """Return the tokens of a vocabulary that are parts of words; cached, as this takes milliseconds."""
    joins = frozenset[int]()
    if tokenizer.splitter is not None:
        entries = (entry.removeprefix(WORD_START) for entry in tokenizer.entries)
        joins = frozenset(token for token, entry in enumerate(entries) if entry.startswith(JOINER))
    return WordBoundaries(tokenizer.subwords | joins, joins)
