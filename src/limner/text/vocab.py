"""Vocabularies of words and of subwords, over Hugging Face `tokenizers`; one file `tokenizer.json` holds all.

Text becomes words by rules that are settings (Moses or white space, case, punctuation); words, or the parts of those
that are compounds, become ids by a vocabulary built from the sentences it is given, which should be those of the
training split and no others.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

import tokenizers
from pydantic import PositiveInt, model_validator
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from limner.data.examples import SPECIAL_TOKENS
from limner.errors import RunError, SettingsError
from limner.files import write_whole
from limner.settings import Settings
from limner.text import compounds, moses
from limner.text.compounds import CompoundSettings, CompoundSplitter

SPECIAL_TOKEN_STRINGS = ("<pad>", "<s>", "</s>", "<unk>")
"""The signs every vocabulary begins with, at the ids of `SPECIAL_TOKENS`."""

WORD_START = "▁"
"""Begins the first piece of every word in a subword vocabulary."""

_WORD_CATEGORIES = ("L", "M", "N", "So")  # letters, their marks, numbers, pictographs
_KNOWN_LIMIT = 1 << 18  # words whose ids are remembered; a service that runs for months must not grow
_SETTINGS_KEY = "limner"
_COMPOUNDS_KEY = "limner_compounds"
_SHARED = ("lowercase", "level", "min_count", "max_size")  # what two languages of one vocabulary agree on


class TextSettings(Settings):
    """How sentences become words, and words a vocabulary."""

    lang: str = "en"
    """Language whose Moses rules apply: en, de, fr, cs, …; one Moses does not know needs tokenise 'space'.
    In a recipe it is `data.lang`, and need not be said again."""
    tokenise: Literal["moses", "space"] = "moses"
    """'moses' normalises and cuts by the rules of the language; 'space' takes the text as already cut."""
    lowercase: bool = True
    """Whether case is dropped."""
    punctuation: bool = True
    """Whether tokens without any letter, number or pictograph are kept; "T-shirt" and "'s" always are."""
    split_compounds: bool = False
    """Whether compound words have entries by their parts only (`limner.text.compounds`), as papers on German do;
    for BPE the parts are the words that pieces are made of. Text, and what is measured, keeps whole words."""
    level: Literal["word", "bpe"] = "word"
    """Entries are whole words, or byte-pair-encoded pieces of words (Sennrich et al., 2016)."""
    min_count: PositiveInt = 1
    """Words (for BPE: pairs to merge) seen fewer times get no entry of their own."""
    max_size: PositiveInt | None = None
    """At most this many entries, signs included, the most frequent first; for BPE, where merging stops."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.tokenise == "moses" and self.lang not in moses.LANGUAGES:
            raise ValueError(moses.no_rules(self.lang))
        if self.level == "bpe" and self.max_size is None:
            raise ValueError("level 'bpe' needs max_size, for example 8000")
        if self.max_size is not None and self.max_size <= len(SPECIAL_TOKEN_STRINGS):
            raise ValueError(f"max_size must be above {len(SPECIAL_TOKEN_STRINGS)}, the number of signs")
        return self


def split(text: str, settings: TextSettings) -> list[str]:
    """Cut one sentence into words as the settings say; signs, compounds and vocabulary play no part here."""
    if settings.split_compounds:
        text = compounds.without_joiners(text)
    if settings.tokenise == "moses":
        words = moses.tokenise(moses.normalise(text, settings.lang), settings.lang)
    else:
        words = moses.clean(text).split()
    if settings.lowercase:
        words = [word.lower() for word in words]
    if not settings.punctuation:
        words = [word for word in words if not _is_punctuation(word)]
    return words


def _is_punctuation(word: str) -> bool:
    return not word.isalnum() and not any(unicodedata.category(sign).startswith(_WORD_CATEGORIES) for sign in word)


class Tokenizer:
    """Sentences to ids and back.

    The file it saves is plain `tokenizers` format. Loaded by that library alone it maps text that is
    tokenised already (words, compounds cut, joined by spaces) to the same ids; the rules before that are settings
    of ours and what was learned of compounds, kept in the same file beside the pre-tokenizer.
    """

    def __init__(
        self, inner: tokenizers.Tokenizer, settings: TextSettings, splitter: CompoundSplitter | None = None
    ) -> None:
        vocab = inner.get_vocab()
        self.settings = settings
        self.splitter = splitter
        self.entries = tuple(sorted(vocab, key=vocab.__getitem__))
        self._inner = inner
        # A sign that stands in a text is no sign: nobody ends a sentence by writing "</s>".
        self._known = dict.fromkeys(SPECIAL_TOKEN_STRINGS, (SPECIAL_TOKENS.unk,))

    @classmethod
    def train(cls, sentences: Iterable[str], settings: TextSettings) -> Self:
        """Build the vocabulary; the order of the sentences does not matter.

        Args:
            sentences: those of the training split.
            settings: how they become words, and how many words are kept.
        """
        counts, splitter = _count(sentences, settings)
        return cls(_build(counts, settings, splitter), settings, splitter)

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
        """Build the vocabularies of two languages, or one for both; the order of the sentences does not matter.

        Args:
            source_sentences: those of the training split.
            target_sentences: likewise; they need not be translations of the others, nor as many.
            source_settings: how the sentences become words, and how many words are kept.
            target_settings: likewise.
            joint: whether a word, or a piece of one, has the same id in both languages. Each tokenizer keeps the
                rules and the compounds of its own language.

        Raises:
            SettingsError: the vocabulary is joint, and the settings disagree about what it is to be.
        """
        if not joint:
            return cls.train(source_sentences, source_settings), cls.train(target_sentences, target_settings)
        _refuse_unequal(source_settings, target_settings)
        source_counts, source_splitter = _count(source_sentences, source_settings)
        target_counts, target_splitter = _count(target_sentences, target_settings)
        counts = source_counts + target_counts
        inner = _build(counts, target_settings, target_splitter or source_splitter)
        return cls(inner, source_settings, source_splitter), cls(inner, target_settings, target_splitter)

    def __len__(self) -> int:
        return len(self.entries)

    def words(self, text: str) -> list[str]:
        """Words of a sentence as the metrics see them, and the vocabulary where compounds are not split."""
        return split(text, self.settings)

    def encode(self, text: str) -> list[int]:
        """Ids of a sentence, without start and end signs."""
        return [piece for word in self.words(text) for piece in self._pieces(word)]

    def _pieces(self, word: str) -> tuple[int, ...]:
        pieces = self._known.get(word)
        if pieces is None:
            start = WORD_START if self.settings.level == "bpe" else ""
            parts = self.splitter.split(word) if self.splitter else (word,)
            pieces = tuple(token.id for part in parts for token in self._inner.model.tokenize(start + part))
            if len(self._known) < _KNOWN_LIMIT:
                self._known[word] = pieces
        return pieces

    def decode(self, ids: Iterable[int], detokenise: bool = False) -> str:
        """Text of a sentence: words joined by spaces, or running text when asked.

        Padding, start and end signs are left out; an unknown word, or part of a compound, shows as "<unk>". A
        language that Moses does not know is joined by spaces in any case.
        """
        entries = [
            self.entries[token]
            for token in ids
            if token not in (SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos, SPECIAL_TOKENS.eos)
        ]
        if self.settings.level == "bpe":
            entries = "".join(entries).replace(WORD_START, " ").split()
        if self.splitter:
            entries = compounds.join(entries)
        if detokenise and self.settings.lang in moses.LANGUAGES:
            return moses.detokenise(entries, self.settings.lang)
        return " ".join(entries)

    def save(self, path: Path) -> None:
        """Write `tokenizer.json`, whole or not at all."""
        content = json.loads(self._inner.to_str())
        content["pre_tokenizer"][_SETTINGS_KEY] = self.settings.model_dump()
        if self.splitter:
            content["pre_tokenizer"][_COMPOUNDS_KEY] = self.splitter.model_dump()
        write_whole(path, json.dumps(content, ensure_ascii=False, indent=1))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            RunError: the file is missing, damaged or not from Limner.
            SettingsError: its settings, or what it learned of compounds, are not as this version knows them.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            settings = content["pre_tokenizer"].pop(_SETTINGS_KEY)
            learned = content["pre_tokenizer"].pop(_COMPOUNDS_KEY) if settings.get("split_compounds") else None
            inner = tokenizers.Tokenizer.from_str(json.dumps(content))
        except OSError as error:
            raise RunError(f"{path}: cannot be read: {error.strerror}") from None
        except (KeyError, TypeError, AttributeError):
            raise RunError(f"{path}: not a tokenizer saved by Limner; train the model again") from None
        except Exception as error:  # the library raises nothing more specific on a damaged file
            raise RunError(f"{path}: damaged ({error}); restore it from a copy of the checkpoint") from None
        splitter = None if learned is None else CompoundSplitter.parse(learned, where=str(path))
        return cls(inner, TextSettings.parse(settings, where=str(path)), splitter)


def _count(sentences: Iterable[str], settings: TextSettings) -> tuple[Counter[str], CompoundSplitter | None]:
    """How often each word, or part of a compound, stands in the sentences; and what cut the compounds."""
    words = Counter(word for sentence in sentences for word in split(sentence, settings))
    if not settings.split_compounds:
        return words, None
    splitter = CompoundSplitter.learn(words, CompoundSettings())
    parts: Counter[str] = Counter()
    for word, count in words.items():
        for part in splitter.split(word):
            parts[part] += count
    return parts, splitter


def _refuse_unequal(source: TextSettings, target: TextSettings) -> None:
    for name in _SHARED:
        ours, theirs = getattr(source, name), getattr(target, name)
        if ours != theirs:
            raise SettingsError(
                f"{name} is {ours} for '{source.lang}' and {theirs} for '{target.lang}': a joint vocabulary needs the "
                "same for both; set one to the other, or let each language have a vocabulary of its own"
            )


def _build(
    counts: Mapping[str, int], settings: TextSettings, splitter: CompoundSplitter | None
) -> tokenizers.Tokenizer:
    joiners = splitter.joiners if splitter else ()
    build = _build_words if settings.level == "word" else _build_pieces
    inner = build(counts, settings, joiners)
    inner.add_special_tokens(list(SPECIAL_TOKEN_STRINGS))
    if settings.lowercase:
        inner.normalizer = normalizers.Lowercase()
    return inner


def _build_words(counts: Mapping[str, int], settings: TextSettings, joiners: Sequence[str]) -> tokenizers.Tokenizer:
    """A word vocabulary: the most frequent first, words of one frequency by their letters."""
    always = (*SPECIAL_TOKEN_STRINGS, *joiners)
    frequent = [word for word, count in counts.items() if count >= settings.min_count and word not in always]
    frequent.sort(key=lambda word: (-counts[word], word))
    entries = [*always, *frequent][: settings.max_size]
    vocab = {entry: id_ for id_, entry in enumerate(entries)}
    inner = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=SPECIAL_TOKEN_STRINGS[SPECIAL_TOKENS.unk]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return inner


def _build_pieces(counts: Mapping[str, int], settings: TextSettings, joiners: Sequence[str]) -> tokenizers.Tokenizer:
    """Byte-pair encoding within words.

    A sign marks where a word starts. The library can mark ends instead, as Sennrich et al. (2016) do, but its
    training then depends on the order of a hash table and differs from run to run (tokenizers 0.23).
    """
    assert settings.max_size is not None  # the settings see to it
    inner = tokenizers.Tokenizer(models.BPE(unk_token=SPECIAL_TOKEN_STRINGS[SPECIAL_TOKENS.unk], fuse_unk=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always")
    inner.decoder = decoders.Metaspace(replacement=WORD_START, prepend_scheme="always")
    trainer = trainers.BpeTrainer(
        vocab_size=settings.max_size,
        limit_alphabet=settings.max_size - len(SPECIAL_TOKEN_STRINGS),
        initial_alphabet=sorted(set("".join(joiners))),  # rare or not, they must not become unknown
        min_frequency=settings.min_count,
        special_tokens=list(SPECIAL_TOKEN_STRINGS),
        show_progress=False,
    )
    # The library counts words in running text only; each is said as often as it was counted.
    inner.train_from_iterator((" ".join([word] * count) for word, count in counts.items()), trainer)
    return inner
