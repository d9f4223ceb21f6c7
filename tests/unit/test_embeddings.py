"""Files of word vectors in the formats of other programs, and initial embeddings."""

import gzip
import pickle
import struct

import numpy as np
import pytest
import torch

from limner.errors import SettingsError
from limner.text.embeddings import embedding_dim, initial_embeddings, read_embeddings
from limner.text.vocab import SPECIAL_TOKEN_STRINGS

VECTORS = {"a": [1.0, -0.5, 0.25], "dog": [2.0, 0.5, 1e-3], "schön": [0.0, 4.0, -8.0]}


def glove(vectors):
    return "".join(f"{word} {' '.join(map(repr, row))}\n" for word, row in vectors.items()).encode()


def word2vec_text(vectors):
    """The C program ends each line with a space; so does fastText."""
    rows = "".join(f"{word} {' '.join(map(str, row))} \n" for word, row in vectors.items())
    return f"{len(vectors)} 3\n{rows}".encode()


def word2vec_binary(vectors, line_end=b""):
    """What gensim writes; the C program adds line ends."""
    rows = b"".join(word.encode() + b" " + struct.pack("<3f", *row) + line_end for word, row in vectors.items())
    return f"{len(vectors)} 3\n".encode() + rows


FORMATS = {
    "glove": glove,
    "word2vec text": word2vec_text,
    "word2vec binary": word2vec_binary,
    "word2vec binary of the C program": lambda vectors: word2vec_binary(vectors, b"\n"),
}


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "vectors"
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("write", FORMATS.values(), ids=FORMATS)
def test_every_format_returns_the_requested_words_only(file, write, pack):
    path = file(pack(write(VECTORS)))
    read = read_embeddings(path, ["schön", "cat", "a"])
    assert list(read) == ["schön", "a"]
    for word, row in read.items():
        assert row.dtype == np.float32
        np.testing.assert_array_equal(row, np.float32(VECTORS[word]))
    assert embedding_dim(path) == 3


@pytest.mark.parametrize("write", [glove, word2vec_text, word2vec_binary])
def test_exact_case_takes_priority(file, write):
    rows = {"Dog": [1.0, 1, 1], "dog": [2.0, 2, 2], "DOG": [3.0, 3, 3], "Paris": [4.0, 4, 4], "PARIS": [5.0, 5, 5]}
    read = read_embeddings(file(write({**rows, "hund": [6.0, 6, 6]})), ["dog", "paris", "Hund"])
    assert {word: row[0] for word, row in read.items()} == {"dog": 2, "paris": 4}


def test_the_first_of_two_rows_of_one_word_counts(file):
    assert read_embeddings(file(b"dog 1 2\ndog 3 4\n"), ["dog"])["dog"].tolist() == [1, 2]


def test_words_with_spaces_empty_lines_and_invalid_bytes_are_skipped(file):
    path = file(b"dog 1 2\n. . . 5 6\n\nat a@b.c 7 8\n\xff\xfe 3 4\n12 3 4\ncat\t3\t4\r\n")
    read = read_embeddings(path, ["dog", "cat", "12"])
    assert {word: row.tolist() for word, row in read.items()} == {"dog": [1, 2], "cat": [3, 4], "12": [3, 4]}


def test_binary_rows_may_span_read_blocks(file, monkeypatch):
    monkeypatch.setattr("limner.text.embeddings._BUFFER_SIZE", 7)
    read = read_embeddings(file(word2vec_binary(VECTORS)), VECTORS)
    expected = {word: np.float32(row).tolist() for word, row in VECTORS.items()}
    assert {word: row.tolist() for word, row in read.items()} == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: expected"),
        (b"\n\n", "line 1: expected"),
        (b"dog 1 2\ncat 3\n", "line 2: 'cat' is followed by 1 numbers; expected 2"),
        (b"dog 1 2\ncat 3 4 5\n", "line 2: 'cat' is followed by 3 numbers; expected 2"),
        (b"3 2\ndog 1 2\nlonely\n", "line 3: 'lonely' is followed by 0 numbers"),
        (b"cat 1 2\ndog 1 x7\n", "line 2: the vector of 'dog' has 'x7', which is not a number"),
        (b"2 2\ncat 1 2\ndog 1 nan\n", "line 3: .*'dog'.*not finite"),
        (word2vec_binary({**VECTORS, "dog": [1.0, float("inf"), 0]}), "word 2: .*'dog'.*not finite"),
        (word2vec_binary(VECTORS)[:-1], "truncated in word 3 of 3"),
        (word2vec_binary(VECTORS)[:12], "truncated in word 1 of 3"),
        (gzip.compress(glove(VECTORS), mtime=0)[:-12], "cannot be read"),
        (gzip.compress(b"", mtime=0)[:7] + b"nonsense", "cannot be read"),
        (b"0 3\n", "line 1: the header says 0 words"),
        (b"hello\n", "line 1: expected 'word number number"),
        (bytes(range(1, 200)), "line 1: expected 'word number number"),
        (b"cat 1 2\nbird 1 2\n", "none of the 1 word of the vocabulary \\(such as 'dog'\\)"),
        (pickle.dumps({"dog": [1, 2]}, protocol=2), "line 1: expected"),
        (pickle.dumps({"dog": [1, 2]}, protocol=5), "line 1: expected"),
        (struct.pack("<ii", 793712314, 12), "line 1: expected"),
        (b"PK\x03\x04 and so on", "line 1: expected"),
    ],
)
def test_an_invalid_file_is_refused_with_its_location(file, content, message):
    path = file(content)
    with pytest.raises(SettingsError, match=message) as caught:
        read_embeddings(path, ["dog"])
    assert str(caught.value).startswith(str(path))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"absent\.txt: cannot be read"):
        read_embeddings(tmp_path / "absent.txt", ["dog"])
    with pytest.raises(SettingsError, match="cannot be read"):
        read_embeddings(tmp_path, ["dog"])


def test_other_words_are_drawn_with_the_distribution_of_the_pretrained_vectors(file):
    random = np.random.default_rng(1)
    mean, spread = np.array([3.0, -1.0, 0.0]), np.array([0.1, 1.0, 5.0])
    known = {f"known{k}": (mean + spread * random.standard_normal(3)).tolist() for k in range(500)}
    # Special tokens in the file are ignored: every word2vec file contains "</s>".
    path = file(glove({"</s>": [1e6, 1e6, 1e6], **known}))
    entries = [*SPECIAL_TOKEN_STRINGS, *(f"new{k}" for k in range(2000)), *known]
    start = initial_embeddings(path, entries, 3, seed=4, setting="model.word_dim")
    assert start.num_pretrained == 500
    assert start.values.shape == (2504, 3)
    assert start.values.dtype == torch.float32
    torch.testing.assert_close(start.values[2004:], torch.tensor(list(known.values())))
    drawn, result = start.values[:2004], start.values[2004:]
    torch.testing.assert_close(drawn.mean(0), result.mean(0), rtol=0, atol=0.5)
    torch.testing.assert_close(drawn.std(0), result.std(0), rtol=0.1, atol=0)
    assert len(drawn.unique(dim=0)) == 2004


def test_random_vectors_depend_on_the_seed_only(file):
    path, entries = file(glove(VECTORS)), [*SPECIAL_TOKEN_STRINGS, "a", "dog", "cat"]
    before = torch.get_rng_state()
    first, again, other = (initial_embeddings(path, entries, 3, seed, setting="x").values for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first[-1], other[-1])
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unequal_dimension_is_refused_with_the_setting(file):
    with pytest.raises(SettingsError, match=r"vectors of 3 dimensions, but .* have 100; set model\.word_dim=3, or"):
        initial_embeddings(file(glove(VECTORS)), [*SPECIAL_TOKEN_STRINGS, "a"], 100, 0, setting="model.word_dim")


@pytest.mark.real
def test_a_real_glove_file(real_data):
    path = real_data / "embeddings" / "glove.6B.50d.first2446.txt"
    lines = dict(line.split(" ", 1) for line in path.read_text(encoding="utf-8").splitlines())
    assert embedding_dim(path) == 50
    read = read_embeddings(path, [*lines, "unheard-of"])
    assert list(read) == list(lines)
    for word in ("the", "man", ",", "'s"):
        np.testing.assert_array_equal(read[word], np.float32(lines[word].split()))

    def cosine(one, other):
        return read[one] @ read[other] / np.linalg.norm(read[one]) / np.linalg.norm(read[other])

    assert cosine("man", "woman") > cosine("man", "percent")
