"""Pre-trained word vectors: read from files as other programs write them, and made the start of a model's own.

Read are the text formats of GloVe (word and numbers, no header) and of word2vec and fastText (header 'N E'), and
word2vec's binary format (the `binary=True` of gensim's `save_word2vec_format`), each as it is or packed by gzip.
What a file holds is told from its content, not from its name. Pickles are never opened.
"""

from __future__ import annotations

import gzip
import io
import logging
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from limner.errors import SettingsError
from limner.text.vocab import SPECIAL_TOKEN_STRINGS

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]

_HEADER = re.compile(rb"\s*(\d+)\s+(\d+)\s*")
_NEVER_IN_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_GZIP = b"\x1f\x8b"
_EXPORT = "in Python, with gensim: vectors.save_word2vec_format('vectors.txt') (for a whole model: model.wv.save_…)"
_REFUSED = (
    (re.compile(rb"\x80[\x02-\x05]"), f"a pickle, as gensim's save() makes; export it {_EXPORT}, and give that file"),
    (re.compile(rb"\xba\x16\x4f\x2f"), "a whole fastText model; give the .vec file that comes with it"),
    (re.compile(rb"PK\x03\x04"), "a zip archive; unpack it, and give one of the files inside"),
)
_BUFFER = 1 << 20  # bytes
_REPORT_EVERY = 5000  # words


class InitialEmbeddings(NamedTuple):
    """What the word vectors of a model begin with."""

    values: Tensor
    """(V, E), in the order of the vocabulary."""
    found: int
    """Words of the vocabulary, signs not counted, whose vector is from the file."""


def initial_embeddings(
    path: Path, entries: Sequence[str], dim: int, seed: int, *, setting: str, progress: Progress | None = None
) -> InitialEmbeddings:
    """Vectors for a whole vocabulary, as Kiros et al. (2014), sections 4.2 and 7.1, start theirs.

    Words that the file holds take their vector from it. The others, and the signs, are drawn from a normal
    distribution with the mean and the standard deviation of those found, dimension by dimension.

    Args:
        path: of the file; see `read_embeddings`.
        entries: the vocabulary, signs first.
        dim: E of the model.
        seed: of the drawing, which touches no other generator.
        setting: where `dim` can be changed, such as 'model.word_dim'.
        progress: as of `read_embeddings`.

    Raises:
        SettingsError: the vectors have another dimension, or the file is not as `read_embeddings` wants it.
    """
    theirs = embedding_dim(path)
    if theirs != dim:
        raise SettingsError(
            f"{path}: vectors of {theirs} dimensions, but the model's word vectors have {dim}; "
            f"set {setting}={theirs}, or take another file"
        )
    words = {entry: row for row, entry in enumerate(entries) if entry not in SPECIAL_TOKEN_STRINGS}
    read = read_embeddings(path, words, progress=progress)
    found = torch.from_numpy(np.stack(list(read.values())))
    spread, mean = torch.std_mean(found, dim=0, correction=0)
    values = mean + spread * torch.randn(len(entries), dim, generator=torch.Generator().manual_seed(seed))
    values[[words[word] for word in read]] = found
    return InitialEmbeddings(values, len(read))


def embedding_dim(path: Path) -> int:
    """The dimension E of the vectors in a file, from its beginning.

    Raises:
        SettingsError: as of `read_embeddings`.
    """
    with _opened(path) as source:
        return source.dim


def read_embeddings(
    path: Path, words: Collection[str], *, progress: Progress | None = None
) -> dict[str, NDArray[np.float32]]:
    """Read the vectors of some words; the others pass by and take no memory.

    A wanted word is looked for as it is written. Where the file does not hold it so, a word that becomes it in
    lower case serves instead ('Paris' for 'paris', never the other way round). Of several candidates the first,
    in most files the most frequent, is taken. Only the numbers of words that are taken are checked.

    Args:
        path: GloVe text, word2vec or fastText text, or word2vec binary; or one of these packed by gzip.
        words: those wanted.
        progress: told, now and then, how many bytes of the file are read, and how many there are.

    Returns:
        A vector (E,) for each word found, in the order of `words`; at least one.

    Raises:
        SettingsError: names the file, the line (in a binary file, the word) and what is wrong there: it is
            missing, empty, cut off or in no known format, a line has another length, something is not a number,
            or no wanted word is in it.
    """
    wanted = set(words)
    exact: dict[str, NDArray[np.float32]] = {}
    lowered: dict[str, NDArray[np.float32]] = {}
    with _opened(path) as source:
        rows = _binary_rows(source) if source.binary else _text_rows(source)
        for row in _reporting(rows, source.raw, path.stat().st_size, progress):
            if row.word in wanted:
                if row.word not in exact:
                    exact[row.word] = _numbers(row, path)
            elif (word := row.word.lower()) in wanted and word not in lowered:
                lowered[word] = _numbers(row, path)
    found = lowered | exact
    if not found:
        raise SettingsError(
            f"{path}: holds none of the {len(wanted):,} words looked for (such as {_some(words)}); "
            "take vectors of the same language, and of words where the vocabulary is of words"
        )
    return {word: found[word] for word in words if word in found}


class _Source(NamedTuple):
    """A file of vectors, opened, its beginning read."""

    path: Path
    raw: BinaryIO  # whose position is the progress, packed or not
    handle: BinaryIO
    dim: int
    words: int | None  # in the header, where there is one
    first: bytes  # the first line, where it is no header
    binary: bool


class _Row(NamedTuple):
    """A word and its vector, not yet read as numbers."""

    place: str
    word: str
    numbers: list[bytes] | bytes


@contextmanager
def _opened(path: Path) -> Iterator[_Source]:
    """Open a file and tell its format; whatever goes wrong while reading it names the file."""
    try:
        with path.open("rb") as raw:
            packed = raw.peek(len(_GZIP)).startswith(_GZIP)
            unpacked: gzip.GzipFile | io.BufferedReader = gzip.GzipFile(fileobj=raw) if packed else raw
            yield _examine(path, raw, io.BufferedReader(unpacked, _BUFFER))
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file of word vectors") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SettingsError(f"{path}: cut off or damaged ({error}); fetch it again") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from None


def _examine(path: Path, raw: BinaryIO, handle: io.BufferedReader[Any]) -> _Source:
    start = handle.peek(4)
    for magic, remedy in _REFUSED:
        if magic.match(start):
            raise SettingsError(f"{path}: {remedy}")
    first = handle.readline(_BUFFER)
    if not first.strip():
        raise SettingsError(f"{path}: empty, or its first line is; expected a word and its numbers")
    header = _HEADER.fullmatch(first)
    if header is None:
        dim = len(first.split()) - 1
        if dim < 2 or _NEVER_IN_TEXT.search(first):
            raise SettingsError(
                f"{path}, line 1: expected 'word number number …' or a header 'words dimensions', "
                f"found {_shown(first)}; give vectors in the text or binary format of GloVe, word2vec or fastText"
            )
        return _Source(path, raw, handle, dim, None, first, False)
    count, dim = int(header[1]), int(header[2])
    if not count or not dim:
        raise SettingsError(f"{path}, line 1: the header says {count} words of {dim} dimensions; nothing to read")
    return _Source(path, raw, handle, dim, count, b"", _NEVER_IN_TEXT.search(handle.peek(1)) is not None)


def _text_rows(source: _Source) -> Iterator[_Row]:
    dim, lines = source.dim, 0
    first_line = 1 if source.first else 2
    for number, line in enumerate(chain([source.first] if source.first else [], source.handle), first_line):
        word, *numbers = line.rsplit(None, dim) or [b""]
        if not word:
            continue  # an empty line
        lines += 1
        # Some files hold words with spaces in them, such as ". . ."; a number before the numbers is one too many.
        if len(numbers) != dim or (b" " in word and _is_number(word.split()[-1])):
            own, *others = line.split()
            raise SettingsError(
                f"{source.path}, line {number}: '{_decoded(own)}' is followed by {len(others)} numbers, not by {dim} "
                "as the file begins; it is cut off or damaged there, fetch it again"
            )
        yield _Row(f"line {number}", _decoded(word), numbers)
    if source.words is not None and lines != source.words:
        logger.warning("%s: the header says %d words, there are %d", source.path, source.words, lines)


def _binary_rows(source: _Source) -> Iterator[_Row]:
    """Each word, a space, E float32 numbers; some programs put a line end before the next word."""
    assert source.words is not None
    size, buffer, position = 4 * source.dim, b"", 0
    for number in range(1, source.words + 1):
        while (space := buffer.find(b" ", position)) < 0 or len(buffer) < space + 1 + size:
            more = source.handle.read(max(_BUFFER, size))
            if not more:
                raise SettingsError(
                    f"{source.path}: cut off in word {number:,} of {source.words:,}; fetch it again, or export it anew"
                )
            buffer, position = buffer[position:] + more, 0
        word = buffer[position:space].lstrip(b"\n")
        position = space + 1 + size
        yield _Row(f"word {number:,}", _decoded(word), buffer[space + 1 : position])


def _reporting(rows: Iterable[_Row], raw: BinaryIO, size: int, progress: Progress | None) -> Iterator[_Row]:
    for number, row in enumerate(rows):
        if progress is not None and number % _REPORT_EVERY == 0:
            progress(raw.tell(), size)
        yield row
    if progress is not None:
        progress(size, size)


def _numbers(row: _Row, path: Path) -> NDArray[np.float32]:
    if isinstance(row.numbers, bytes):
        values = np.frombuffer(row.numbers, "<f4").astype(np.float32)
    else:
        wrong = next((number for number in row.numbers if not _is_number(number)), None)
        if wrong is not None:
            raise SettingsError(f"{path}, {row.place}: '{_decoded(wrong)}' is not a number (of the word '{row.word}')")
        values = np.array([float(number) for number in row.numbers], np.float32)
    if not np.isfinite(values).all():
        raise SettingsError(f"{path}, {row.place}: the vector of '{row.word}' holds a number that is not finite")
    return values


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")  # some files hold words cut in the middle of a letter


def _shown(line: bytes) -> str:
    text = _decoded(line.strip())
    return repr(text if len(text) <= 40 else text[:40] + "…")


def _some(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word, _ in zip(words, range(3), strict=False))
