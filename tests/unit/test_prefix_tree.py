"""The tree of the prefixes of sentences."""

from __future__ import annotations

from limner.retrieval.prefix_tree import prefix_tree

END = 2


def test_common_prefixes_occur_once():
    tree = prefix_tree([[5, 6, END], [5, 7, END], [5, END]])
    assert [level.tokens.tolist() for level in tree] == [[5], [6, 7, END], [END, END]]
    assert [level.parents.tolist() for level in tree] == [[0], [0, 0, 0], [0, 1]]


def test_every_sentence_ends_once_at_its_own_length():
    sentences = [[5, 6, END], [END], [5, 6, END], [6, END], [5, END]]
    ends = [
        (one, length + 1) for length, level in enumerate(prefix_tree(sentences)) for one in level.sentences.tolist()
    ]
    assert sorted(ends) == [(one, len(sentence)) for one, sentence in enumerate(sentences)]


def test_equal_sentences_share_their_end():
    first, second = prefix_tree([[5, END], [5, END]])
    assert first.continued.tolist() == [0]
    assert second.ends.tolist() == [0, 0]
    assert second.continued.tolist() == []


def test_no_sentences_have_no_levels():
    assert prefix_tree([]) == []
