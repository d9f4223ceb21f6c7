"""Checks of source sentences, their images and words to include, and warnings about generated sentences."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast, get_args

from limner.decoding.automaton import Automaton, WordBoundaries
from limner.decoding.sentence import Sentence
from limner.errors import MediaError, SettingsError, counted
from limner.media.image import is_image, require_list
from limner.text.compounds import JOINER
from limner.text.queries import language_name, quoted
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS, WORD_START

UNKNOWN_SOURCE = "their translation is a guess"
"""Effect of unknown words of a source sentence."""
COPIED_SOURCE = "they are copied into the translation"
"""Effect of unknown words of a source sentence, for a model that translates phrases."""
COPIED_CHARACTERS = "their unknown characters are copied into the translation"
"""Effect of words with unknown characters, for a model that translates phrases of subwords."""
CUT_TRANSLATIONS = "raise max_length, or split the text into sentences"
"""What to do about translations that were cut off."""
MIN_LOG_PROB, MAX_UNKNOWN_SHARE = -1.2, 0.25
"""Limits of the log-probability per token of a translation, chosen on Multi30k's validation split and sentences of news
and mail, and of the share of unknown source tokens; beyond them a sentence is outside the domain of a translator."""
SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’»)]*\s+(?=[\"'“„«(]*[A-ZÀ-ÖØ-Þ])")
"""Place between two sentences on a line."""
MAX_SOURCE_TOKENS = 1000
"""Maximum length of a source sentence."""

logger = logging.getLogger(__name__)

SEPARATOR = "|"
"""Character between alternatives, such as synonyms."""

MustInclude = Sequence[str] | Sequence[Sequence[str]]
"""Words or phrases that every sentence includes, each with alternatives after `SEPARATOR`; or one such list for each
input."""
MissingImage = Literal["refuse", "text"]
"""Treatment of a sentence without an image by a model trained with images: an error, or a translation of the text."""
EMPTY_TRANSLATION = Sentence((), 0.0, 0.0)
"""Translation of an empty sentence, which is not decoded."""


def without_capitals(text: str) -> str:
    """Return a text of several words in capitals as a sentence in small letters: subwords of capitals are letters."""
    return text.capitalize() if text.isupper() and " " in text.strip() else text


def is_outside_domain(source_tokens: Sequence[int], translation: Sentence) -> bool:
    """Whether a translation is a guess, because the sentence is outside the domain of the translator."""
    is_unknown = source_tokens.count(SPECIAL_TOKENS.unk) > MAX_UNKNOWN_SHARE * len(source_tokens)
    return is_unknown or translation.log_prob < MIN_LOG_PROB * (len(translation.tokens) + 1)


def images_of_sentences(sentences: Sequence[str], images: Any, missing: str = "refuse") -> Any:  # noqa: ANN401
    """Return the image of each sentence: one image is the image of all sentences, and None stands for no image.

    Raises:
        SettingsError: a string is given in place of a list, the numbers of sentences and images differ, or `missing` is
            unknown.
    """
    if missing not in get_args(MissingImage):
        raise SettingsError(f"missing: expected one of {', '.join(get_args(MissingImage))}, got '{missing}'")
    require_list(sentences, "sentence")
    images = [images] * len(sentences) if images is None or is_image(images) else [*images]
    if len(images) != len(sentences):
        raise SettingsError(
            f"expected one image for each sentence, got {counted(len(images), 'image')} and "
            f"{counted(len(sentences), 'sentence')}"
        )
    return images


def require_source_length(row: int, count: int, limit: int = MAX_SOURCE_TOKENS) -> None:
    """Check the number of tokens of a source sentence; SettingsError if it is above `limit`."""
    if count > limit:
        raise SettingsError(
            f"sentence {row + 1}: expected at most {limit:,} tokens, got {count:,}; split the text into "
            "sentences, one a line"
        )


def require_image_files(images: Iterable[object]) -> None:
    """Check that the paths among images are files; MediaError if a path is not."""
    for path in dict.fromkeys(Path(image) for image in images if isinstance(image, Path | str)):
        if not path.is_file():
            raise MediaError(f"{path}: no such image file; check the path")


def warn_of_ignored_images(images: Iterable[object]) -> None:
    """Warn that a model without images ignores the images of a call."""
    if any(image is not None for image in images):
        logger.warning("this model was trained without images: they are ignored")


def missing_image_message(row: int) -> str:
    """Error message for a sentence without an image, and a model that uses images."""
    return (
        f"sentence {row + 1} has no image, and the model was trained with images; give one, or translate the text "
        "alone with missing='text' (limner translate --missing text)"
    )


def warn_of_unknown_words(tokenizer: Tokenizer, sentences: Iterable[str], effect: str) -> None:
    """Log the words that a tokenizer encodes as <unk>, followed by the effect on the result."""
    if unknown := sorted({word for text in sentences for word in tokenizer.unknown_words(text)}):
        lang = language_name(tokenizer.settings.lang)
        logger.warning("words not in the %s vocabulary are encoded as <unk>: %s; %s", lang, quoted(unknown), effect)


def all_translations(
    translations: Mapping[int, list[Sentence]], count: int, max_length: int, empty: Sentence = EMPTY_TRANSLATION
) -> list[list[Sentence]]:
    """Return `count` translations, empty where `translations` has none for a position; log how many are cut off."""
    cut = sum(not n_best[0].ended for n_best in translations.values())
    warn_of_cut_off(cut, count, "translation", max_length, CUT_TRANSLATIONS)
    return [translations.get(row, [empty]) for row in range(count)]


def warn_of_cut_off(cut: int, total: int, noun: str, max_length: int, remedy: str) -> None:
    """Log how many generated sentences did not end before the maximum length."""
    if cut:
        were = "was" if cut == 1 else "were"
        logger.warning(f"{cut:,} of {counted(total, noun)} {were} cut off at max_length={max_length}; {remedy}")


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
    """Return the machine of the sentences that include words or phrases; SettingsError as `words_of_inputs`."""
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
