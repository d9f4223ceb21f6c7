"""Pre-trained word vectors for the initialisation of embeddings.

Supported are the text formats of GloVe (word and numbers, no header) and of word2vec and fastText (header 'N E'), and
the binary format of word2vec (`binary=True` of gensim's `save_word2vec_format`), each optionally compressed by gzip.
The format is detected from the content, not from the file name. Pickles are never opened.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limner.errors import SettingsError, counted, system_reason
from limner.files import open_file
from limner.text.vocab import SPECIAL_TOKEN_STRINGS

_HEADER = re.compile(rb"\s*(\d{1,12})\s+(\d{1,12})\s*")
MAX_DIM = 65_536
"""Maximum number of dimensions of a vector; a vector of a binary file is read as a whole."""
_BINARY_BYTES = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_GZIP = b"\x1f\x8b"
_BUFFER_SIZE = 1 << 20  # bytes


class InitialEmbeddings(NamedTuple):
    """Initial values of the embeddings of a vocabulary."""

    values: Tensor
    """Embeddings (V, E) in the order of the vocabulary."""
    num_pretrained: int
    """Number of vocabulary entries, special tokens excluded, whose vector is from the file."""


def initial_embeddings(path: Path, entries: Sequence[str], dim: int, seed: int, *, setting: str) -> InitialEmbeddings:
    """Initialise the embeddings of a vocabulary (Kiros et al., 2014, sections 4.2 and 7.1).

    Words in the file receive their vector. Other words and special tokens are drawn from a normal distribution with the
    mean and the standard deviation of these vectors in each dimension, by a generator with the seed.

    Raises:
        SettingsError: the vectors have another dimension than the model, in its `setting`, or cannot be read.
    """
    file_dim = embedding_dim(path)
    if file_dim != dim:
        raise SettingsError(
            f"{path}: vectors of {file_dim} dimensions, but the model's word vectors have {dim}; "
            f"set {setting}={file_dim}, or use another file"
        )
    words = {entry: row for row, entry in enumerate(entries) if entry not in SPECIAL_TOKEN_STRINGS}
    vectors = read_embeddings(path, words)
    pretrained = torch.from_numpy(np.stack(list(vectors.values())))
    std, mean = torch.std_mean(pretrained, dim=0, correction=0)
    values = mean + std * torch.randn(len(entries), dim, generator=torch.Generator().manual_seed(seed))
    values[[words[word] for word in vectors]] = pretrained
    return InitialEmbeddings(values, len(vectors))


def embedding_dim(path: Path) -> int:
    """Return the dimension E of the vectors in a file, read from its first line; SettingsError as `read_embeddings`."""
    with _open(path) as source:
        return source.dim


def read_embeddings(path: Path, words: Collection[str]) -> dict[str, NDArray[np.float32]]:
    """Read the vectors (E,) of the given words, in their order, at least one; no other vectors are kept in memory.

    If the file lacks a word, a word that is equal to it in lower case is used ('Paris' for 'paris', not vice versa). Of
    several candidates the first is used, in most files the most frequent. Numbers of other words are not checked.

    Raises:
        SettingsError: the file is missing, empty, truncated or of an unsupported format, a line has another number of
            values, a value is not a number, or the file has none of the words. The message names the line, or in a
            binary file the word.
    """
    requested = set(words)
    exact: dict[str, NDArray[np.float32]] = {}
    lowered: dict[str, NDArray[np.float32]] = {}
    with _open(path) as source:
        for where, name, numbers in _binary_rows(source) if source.binary else _text_rows(source):
            word, chosen = (name, exact) if name in requested else (name.lower(), lowered)
            if word in requested and word not in chosen:
                chosen[word] = _parse_vector(numbers, f"{path}, {where}: the vector of '{name}'")
    vectors = lowered | exact
    if not vectors:
        examples = ", ".join(f"'{word}'" for word in islice(words, 3))
        raise SettingsError(
            f"{path}: has none of the {counted(len(requested), 'word')} of the vocabulary (such as {examples}); use "
            "vectors of the same language, and word vectors only for a vocabulary of words"
        )
    return {word: vectors[word] for word in words if word in vectors}


class _Source(NamedTuple):
    """Open file of word vectors whose header is read."""

    path: Path
    handle: BinaryIO  # the decompressed file
    dim: int
    words: int  # number of words in the header; 0 without a header
    first: bytes  # the first line if it is no header
    binary: bool


_Row = tuple[str, str, list[bytes] | bytes]
"""Location of a word, the word, and the numbers of its vector as they are in the file."""


@contextmanager
def _open(path: Path) -> Iterator[_Source]:
    """Open a file of embeddings and detect its format; errors raised inside the context name the file."""
    try:
        with open_file(path) as raw:
            compressed = raw.peek(len(_GZIP)).startswith(_GZIP)
            content: gzip.GzipFile | io.BufferedReader = gzip.GzipFile(fileobj=raw) if compressed else raw
            yield _detect_format(path, io.BufferedReader(content, _BUFFER_SIZE))
    except (EOFError, zlib.error, OSError) as error:
        raise SettingsError(
            f"{path}: cannot be read as word vectors ({system_reason(error)}); name another file, or download it again"
        ) from None


def _detect_format(path: Path, handle: io.BufferedReader[Any]) -> _Source:
    first = handle.readline(_BUFFER_SIZE)
    if (header := _HEADER.fullmatch(first)) is not None:
        count, dim = int(header[1]), int(header[2])
        if not count or not 1 <= dim <= MAX_DIM:
            raise SettingsError(
                f"{path}, line 1: the header says {count} words of {dim} dimensions; expected at least one word, and "
                f"from 1 to {MAX_DIM:,} dimensions; the file is damaged, download it again"
            )
        return _Source(path, handle, dim, count, b"", _BINARY_BYTES.search(handle.peek(1)) is not None)
    dim = len(first.split()) - 1
    if dim < 2 or _BINARY_BYTES.search(first):
        raise SettingsError(
            f"{path}, line 1: expected 'word number number …' or a header 'words dimensions', found "
            f"{_decode(first.strip())[:40]!r}; use vectors in the text or binary format of GloVe, word2vec or fastText"
        )
    return _Source(path, handle, dim, 0, first, False)


def _text_rows(source: _Source) -> Iterator[_Row]:
    start = [source.first] if source.first else []
    for number, line in enumerate(chain(start, source.handle), 2 - len(start)):
        word, *numbers = line.rsplit(None, source.dim) or [b""]
        if not word:
            continue  # an empty line
        # Words may contain spaces, such as ". . ."; a number at the end of the word is one value too many.
        if len(numbers) != source.dim or (b" " in word and _is_number(word.split()[-1])):
            first, *values = line.split()
            raise SettingsError(
                f"{source.path}, line {number}: '{_decode(first)}' is followed by {len(values)} numbers; expected "
                f"{source.dim} as in the first line; the file is truncated or damaged, download it again"
            )
        yield f"line {number}", _decode(word), numbers


def _binary_rows(source: _Source) -> Iterator[_Row]:
    """Rows of the binary format: word, space, E float32 numbers, and optionally a line feed."""
    size, buffer, position = 4 * source.dim, b"", 0
    for number in range(1, source.words + 1):
        while (space := buffer.find(b" ", position)) < 0 or len(buffer) < space + 1 + size:
            block = source.handle.read(max(_BUFFER_SIZE, size))
            if not block:
                raise SettingsError(
                    f"{source.path}: truncated in word {number:,} of {source.words:,}; download or export it again"
                )
            buffer, position = buffer[position:] + block, 0
        word = buffer[position:space].lstrip(b"\n")
        position = space + 1 + size
        yield f"word {number:,}", _decode(word), buffer[space + 1 : position]


def _parse_vector(numbers: list[bytes] | bytes, location: str) -> NDArray[np.float32]:
    if isinstance(numbers, bytes):
        values = np.frombuffer(numbers, "<f4").astype(np.float32)
    elif (invalid := next((number for number in numbers if not _is_number(number)), None)) is not None:
        raise SettingsError(f"{location} has '{_decode(invalid)}', which is not a number; download the file again")
    else:
        values = np.array(numbers, np.float64).astype(np.float32)
    if not np.isfinite(values).all():
        raise SettingsError(f"{location} has a number that is not finite; download the file again")
    return values


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "replace")  # some files have words truncated within a character
