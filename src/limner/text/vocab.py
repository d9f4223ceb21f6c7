"""Special tokens, and the construction of word and subword vocabularies from word counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers


class SpecialTokens(NamedTuple):
    """Token ids of the special tokens at the beginning of every vocabulary."""

    pad: int = 0
    bos: int = 1
    eos: int = 2
    unk: int = 3


SPECIAL_TOKENS = SpecialTokens()

SPECIAL_TOKEN_STRINGS = ("<pad>", "<s>", "</s>", "<unk>")
"""Vocabulary entries of the special tokens, in the order of their ids in `SPECIAL_TOKENS`."""

WORD_START = "▁"
"""Prefix of the first subword of each word in a subword vocabulary."""

_UNK_STRING = SPECIAL_TOKEN_STRINGS[SPECIAL_TOKENS.unk]


def build_word_vocab(
    counts: Mapping[str, int], *, min_count: int = 1, max_size: int | None = None, reserved: Sequence[str] = ()
) -> tokenizers.Tokenizer:
    """Build a word vocabulary sorted by descending frequency; words of equal frequency are sorted alphabetically.

    It has at most `max_size` entries, of words of at least `min_count`. The special tokens come first, then `reserved`
    entries whatever their frequency.
    """
    first = (*SPECIAL_TOKEN_STRINGS, *reserved)
    frequent = [word for word, count in counts.items() if count >= min_count and word not in first]
    frequent.sort(key=lambda word: (-counts[word], word))
    entries = [*first, *frequent][:max_size]
    vocab = {entry: token_id for token_id, entry in enumerate(entries)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=_UNK_STRING))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL_TOKEN_STRINGS))
    return tokenizer


def build_subword_vocab(
    counts: Mapping[str, int], *, max_size: int, min_count: int = 1, alphabet: Sequence[str] = ()
) -> tokenizers.Tokenizer:
    """Learn a byte-pair encoding (Sennrich et al., 2016) within words, from their frequencies.

    `WORD_START` marks the beginning of a word; text of scripts without spaces has no mark. Sennrich et al. mark the end
    of a word instead; training of that variant depends on the order of a hash table in tokenizers 0.23 and is not
    reproducible. Characters of `alphabet` have an entry whatever their frequency; merged pairs have `min_count`.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token=_UNK_STRING, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Metaspace(replacement=WORD_START, prepend_scheme="always")
    trainer = trainers.BpeTrainer(
        vocab_size=max_size,
        limit_alphabet=max_size - len(SPECIAL_TOKEN_STRINGS),
        initial_alphabet=sorted(alphabet),
        min_frequency=min_count,
        special_tokens=list(SPECIAL_TOKEN_STRINGS),
        show_progress=False,
    )
    # The trainer takes running text only, so each word is repeated as often as it was counted.
    tokenizer.train_from_iterator((" ".join([word] * count) for word, count in counts.items()), trainer)
    if all(word.startswith(WORD_START) for word in counts):
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always")
    tokenizer.add_special_tokens(list(SPECIAL_TOKEN_STRINGS))
    return tokenizer
