"""Tokenizers with word and subword vocabularies, stored as Hugging Face `tokenizer.json` files.

A sentence is split into words (`limner.text.words`). Words, or the parts of compound words, are mapped to token ids by
a vocabulary built from the training sentences. In scripts without spaces between words, such as Chinese, characters
take the place of words.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import tokenizers
from tokenizers import normalizers

from limner.errors import RunError, SettingsError
from limner.files import write_text
from limner.files.structured import read_json_file
from limner.storage.json_text import to_json
from limner.text import compounds, moses, scripts
from limner.text.compounds import CompoundSettings, CompoundSplitter
from limner.text.vocab import SPECIAL_TOKEN_STRINGS, SPECIAL_TOKENS, WORD_START, build_subword_vocab, build_word_vocab
from limner.text.words import TextSettings, split_words

logger = logging.getLogger(__name__)

_MAX_CACHED_WORDS = 1 << 18  # limits the memory of long-running processes
_SETTINGS_KEY = "limner"
_COMPOUNDS_KEY = "limner_compounds"
_JOINT_SETTINGS = ("lowercase", "level", "min_count", "max_size")  # must be equal for a joint vocabulary


class Tokenizer:
    """Mapping between sentences and token ids.

    The saved file is in plain `tokenizers` format. Loaded by that library alone, it maps tokenised text (words
    joined by spaces, compounds split) to the same ids; the settings of the splitting into words and the learned
    compound parts are stored in the same file, next to the pre-tokenizer.
    """

    def __init__(
        self, inner: tokenizers.Tokenizer, settings: TextSettings, splitter: CompoundSplitter | None = None
    ) -> None:
        vocab = inner.get_vocab()
        self.settings = settings
        self.splitter = splitter
        self.entries = tuple(sorted(vocab, key=vocab.__getitem__))
        self._inner = inner
        # The string of a special token in a sentence is an unknown word: text must not end a sentence with "</s>".
        self._cache = dict.fromkeys(SPECIAL_TOKEN_STRINGS, (SPECIAL_TOKENS.unk,))

    @classmethod
    def train(cls, sentences: Iterable[str], settings: TextSettings) -> Self:
        """Build a vocabulary from sentences in any order, which are read several times."""
        if isinstance(sentences, Iterator):
            sentences = list(sentences)
        settings = settings.resolve(sentences)
        counts, splitter = _count_units(sentences, settings)
        return cls(_build_vocab(counts, settings, splitter), settings, splitter)

    @classmethod
    def train_pair(
        cls,
        source_sentences: Iterable[str],
        target_sentences: Iterable[str],
        source_settings: TextSettings,
        target_settings: TextSettings,
        *,
        joint: bool,
    ) -> tuple[Self, Self]:
        """Build the vocabularies of a language pair from sentences in any order, which need not be parallel.

        With `joint`, both languages share one vocabulary. Each tokenizer keeps the splitting rules and the compound
        parts of its own language.

        Returns:
            Source tokenizer and target tokenizer.

        Raises:
            SettingsError: `joint` is true and the settings of the vocabulary differ.
        """
        if not joint:
            return cls.train(source_sentences, source_settings), cls.train(target_sentences, target_settings)
        _require_joint_settings(source_settings, target_settings)
        source_sentences, target_sentences = list(source_sentences), list(target_sentences)
        source_settings, target_settings = (
            source_settings.resolve(source_sentences),
            target_settings.resolve(target_sentences),
        )
        source_counts, source_splitter = _count_units(source_sentences, source_settings)
        target_counts, target_splitter = _count_units(target_sentences, target_settings)
        counts = source_counts + target_counts
        inner = _build_vocab(counts, target_settings, target_splitter or source_splitter)
        return cls(inner, source_settings, source_splitter), cls(inner, target_settings, target_splitter)

    def __len__(self) -> int:
        return len(self.entries)

    def words(self, text: str) -> list[str]:
        """Split a sentence into words, compounds unsplit, as in the metrics.

        With tokenise 'unicode', the words of scripts without spaces are characters, whatever the level.
        """
        return split_words(text, self.settings)

    def encode(self, text: str) -> list[int]:
        """Convert a sentence to token ids, without begin-of-sentence and end-of-sentence tokens."""
        units = _units(self.words(text), self.settings)
        return [token_id for unit in units for token_id in self.encode_word(unit)]

    def phrases(self, text: str) -> list[list[int]]:
        """Return the token ids of a phrase, in each way in which a sentence may contain it."""
        return [self.encode(text)]

    def encode_word(self, word: str) -> tuple[int, ...]:
        """Convert one word to token ids: its entry, or its subwords and compound parts."""
        token_ids = self._cache.get(word)
        if token_ids is None:
            parts = self.splitter.split(word) if self.splitter else (word,)
            marked = (_mark(part, self.settings) for part in parts)
            token_ids = tuple(token.id for part in marked for token in self._inner.model.tokenize(part))
            if len(self._cache) < _MAX_CACHED_WORDS:
                self._cache[word] = token_ids
        return token_ids

    def pieces(self, text: str) -> list[str]:
        """Return the texts of the tokens of a sentence, unknown tokens included; starts of words are marked."""
        pieces: list[str] = []
        for unit in _units(self.words(text), self.settings):
            for part in self.splitter.split(unit) if self.splitter else (unit,):
                if self.settings.level == "word" or part in SPECIAL_TOKEN_STRINGS:
                    pieces.append(WORD_START + part)
                else:
                    marked = _mark(part, self.settings)
                    spans = (token.offsets for token in self._inner.model.tokenize(marked))  # of bytes
                    pieces += [marked.encode()[start:end].decode() for start, end in spans]
        return pieces

    def unknown_pieces(self, text: str) -> tuple[str, ...]:
        """Return the pieces of a text that are encoded as <unk>, in their order and in the case of the text."""
        pairs = zip(self.pieces(text), self.encode(text), strict=True)
        unknown = [piece.removeprefix(WORD_START) for piece, token in pairs if token == SPECIAL_TOKENS.unk]
        typed = (re.search(re.escape(piece), text, re.IGNORECASE) for piece in unknown)
        return tuple(match.group() if match else piece for match, piece in zip(typed, unknown, strict=True))

    def unknown_words(self, text: str) -> list[str]:
        """Return the words of a text that are encoded as <unk>, as a whole or in part, each once."""
        unk = SPECIAL_TOKENS.unk
        if unk not in self.encode(text):
            return []
        return [word for word in dict.fromkeys(self.words(text)) if unk in self.encode(word)]

    def token_id(self, piece: str) -> int:
        """Return the id of a piece of any sentence, see `pieces`, or the id of <unk> if the piece has none."""
        entry = piece if self.settings.level == "bpe" else piece.removeprefix(WORD_START)
        token_id: int | None = None if entry in SPECIAL_TOKEN_STRINGS else self._inner.token_to_id(entry)
        return SPECIAL_TOKENS.unk if token_id is None else token_id

    def decode(self, ids: Iterable[int], detokenise: bool = False, copied: Sequence[str] = ()) -> str:
        """Convert token ids to text.

        Padding, begin-of-sentence and end-of-sentence tokens are omitted; an unknown word, or an unknown part of a
        compound, becomes "<unk>".

        Args:
            ids: token ids.
            detokenise: whether to return running text by the rules of the language and its script, instead of words
                joined by spaces; without effect for other languages with tokenise 'space'.
            copied: `pieces` of a source sentence in place of the unknown tokens, in their order.
        """
        omitted = (SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos, SPECIAL_TOKENS.eos)
        replaced = iter(
            copied if self.settings.level == "bpe" else (piece.removeprefix(WORD_START) for piece in copied)
        )
        words = [
            next(replaced, self.entries[token_id]) if token_id == SPECIAL_TOKENS.unk else self.entries[token_id]
            for token_id in ids
            if token_id not in omitted
        ]
        if self.settings.level == "bpe":
            words = "".join(words).replace(WORD_START, " ").split()
            if self.settings.tokenise == "unicode":
                words = [part for word in words for part in scripts.split_unspaced(word)]
        if self.splitter:
            words = compounds.join(words)
        if detokenise and (self.settings.tokenise == "unicode" or self.settings.lang in scripts.UNSPACED_LANGUAGES):
            return scripts.join(words)
        if detokenise and self.settings.lang in moses.LANGUAGES:
            return moses.detokenise(words, self.settings.lang)
        return " ".join(words)

    def starts_word(self, token_id: int) -> bool:
        """Whether a token is a word, or the first subword of a word; subwords of scripts without spaces are words."""
        if self.settings.level == "word":
            return True
        entry = self.entries[token_id]
        return entry.startswith(WORD_START) or (self.settings.tokenise == "unicode" and scripts.is_unspaced(entry))

    @cached_property
    def subwords(self) -> frozenset[int]:
        """Tokens that continue a word."""
        return frozenset(token for token in range(len(self)) if not self.starts_word(token))

    @cached_property
    def spellings(self) -> tuple[str, ...]:
        """Texts of all tokens in the order of their ids, without the mark of the beginning of a word."""
        mark = WORD_START if self.settings.level == "bpe" else ""
        return tuple(entry.removeprefix(mark) for entry in self.entries)

    @property
    def merges(self) -> list[tuple[str, str]]:
        """Pairs of subwords that byte-pair encoding merges, in the order of learning; empty for a word vocabulary."""
        return [(left, right) for left, right in json.loads(self._inner.to_str())["model"].get("merges", ())]

    def save(self, path: Path) -> None:
        """Write `tokenizer.json` atomically."""
        content = json.loads(self._inner.to_str())
        content["pre_tokenizer"][_SETTINGS_KEY] = self.settings.model_dump()
        if self.splitter:
            content["pre_tokenizer"][_COMPOUNDS_KEY] = self.splitter.model_dump()
        write_text(path, to_json(content, indent=1))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a tokenizer written by `save`; RunError if it is missing, damaged, or invalid in this version."""
        try:
            content = read_json_file(path)
            settings = content["pre_tokenizer"].pop(_SETTINGS_KEY)
            compound_parts = content["pre_tokenizer"].pop(_COMPOUNDS_KEY) if settings.get("split_compounds") else None
            inner = tokenizers.Tokenizer.from_str(json.dumps(content))
        except OSError as error:
            raise RunError(f"{path}: cannot be read: {error.strerror}; restore the file") from None
        except (KeyError, TypeError, AttributeError):
            raise RunError(f"{path}: not a tokenizer saved by Limner; train the model again") from None
        except Exception as error:  # `tokenizers` raises plain Exception for a damaged file
            raise RunError(f"{path}: damaged ({error}); restore it from a copy of the run") from None
        try:
            splitter = None if compound_parts is None else CompoundSplitter.parse(compound_parts)
            tokenizer = cls(inner, TextSettings.parse(settings), splitter)
        except SettingsError as error:
            raise RunError(f"{path}: {error}; restore it from a copy of the run") from None
        is_consecutive = sorted(inner.get_vocab().values()) == list(range(len(tokenizer.entries)))
        special = tokenizer.entries[: len(SPECIAL_TOKEN_STRINGS)] == tuple(SPECIAL_TOKEN_STRINGS)
        if not is_consecutive or not special or inner.model.unk_token != SPECIAL_TOKEN_STRINGS[SPECIAL_TOKENS.unk]:
            raise RunError(
                f"{path}: damaged: expected consecutive token ids that begin with {', '.join(SPECIAL_TOKEN_STRINGS)}; "
                "restore it from a copy of the run"
            )
        return tokenizer


def _units(words: Sequence[str], settings: TextSettings) -> Sequence[str]:
    """Return the units that have vocabulary entries: words, where for subwords characters without spaces are joined."""
    return scripts.join_unspaced(words) if settings.level == "bpe" and settings.tokenise == "unicode" else words


def _mark(unit: str, settings: TextSettings) -> str:
    """Mark the beginning of a word in a subword vocabulary; text of scripts without spaces has no mark."""
    if settings.level == "word" or (settings.tokenise == "unicode" and scripts.is_unspaced(unit)):
        return unit
    return WORD_START + unit


def _count_units(sentences: Iterable[str], settings: TextSettings) -> tuple[Counter[str], CompoundSplitter | None]:
    """Count words, or parts of compounds, in the sentences; return the compound splitter as well."""
    words: Counter[str] = Counter()
    for sentence in sentences:
        words.update(_units(split_words(sentence, settings), settings))
    splitter = CompoundSplitter.learn(words, CompoundSettings()) if settings.split_compounds else None
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for part in splitter.split(word) if splitter else (word,):
            counts[_mark(part, settings)] += count
    return counts, splitter


def _require_joint_settings(source: TextSettings, target: TextSettings) -> None:
    for name in _JOINT_SETTINGS:
        source_value, target_value = getattr(source, name), getattr(target, name)
        if source_value != target_value:
            raise SettingsError(
                f"{name} is {source_value} for '{source.lang}' and {target_value} for '{target.lang}': a joint "
                "vocabulary needs equal values; set one to the other, or use separate vocabularies"
            )


def _build_vocab(
    counts: Mapping[str, int], settings: TextSettings, splitter: CompoundSplitter | None
) -> tokenizers.Tokenizer:
    joiners = splitter.joiners if splitter else ()
    if settings.level == "word":
        inner = build_word_vocab(counts, min_count=settings.min_count, max_size=settings.max_size, reserved=joiners)
    else:
        assert settings.max_size is not None  # ensured by TextSettings
        inner = build_subword_vocab(
            counts, max_size=settings.max_size, min_count=settings.min_count, alphabet=sorted(set("".join(joiners)))
        )
    if settings.lowercase:
        inner.normalizer = normalizers.Lowercase()
    return inner
