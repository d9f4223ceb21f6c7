"""Back-off n-grams against the oracle, which processes one context at a time."""

import numpy as np
import pytest
import torch
from oracle_kiros import katz_counts, katz_discounts, katz_distribution

from limner.data.examples import Example, collate
from limner.models.ngram import NGram, NGramSettings
from limner.models.protocols import ModelInputs
from limner.text.vocab import SPECIAL_TOKENS

CORPORA = [  # seed, vocabulary, sentences
    (0, 6, 2),
    (1, 6, 40),
    (2, 7, 15),
    (3, 9, 80),
    (4, 12, 300),
    (5, 30, 400),
    (6, 300, 150),
    (7, 100, 3000),
]


def corpus(seed: int, vocab: int, count: int) -> list[list[int]]:
    """Sentences with a realistic word distribution; each word has its own frequent successors."""
    random = np.random.default_rng(seed)
    words = np.arange(SPECIAL_TOKENS.unk, vocab)
    share = 1 / np.arange(1, len(words) + 1)
    likes = {word: random.permutation(share / share.sum()) for word in (SPECIAL_TOKENS.bos, *words.tolist())}
    sentences = []
    for length in random.integers(0, 9, count).tolist():
        sentence = [SPECIAL_TOKENS.bos]
        for _ in range(length):
            sentence.append(int(random.choice(words, p=likes[sentence[-1]])))
        sentences.append(sentence[1:])
    return sentences


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(("seed", "vocab", "count"), CORPORA)
def test_every_distribution_equals_the_oracle(seed: int, vocab: int, count: int, order: int) -> None:
    sentences = corpus(seed, vocab, count)
    model = NGram(NGramSettings(order=order, cutoff=5), ModelInputs(vocab)).eval()
    model.fit(sentences)
    counts = katz_counts(sentences, order, start=SPECIAL_TOKENS.bos, end=SPECIAL_TOKENS.eos)
    random = np.random.default_rng(seed)
    known = sorted({ngram[:-1] for ngram in counts[-1]})
    observed = [known[place] for place in random.permutation(len(known))[:60]]
    others = [tuple(row) for row in random.integers(SPECIAL_TOKENS.eos, vocab, (30, order - 1)).tolist()]
    chosen = [(SPECIAL_TOKENS.bos,) * (order - 1), *observed, *others]
    rows = torch.tensor(chosen, dtype=torch.long).view(len(chosen), order - 1)
    ours = model._log_probs(rows).double().exp().numpy()
    theirs = np.stack(
        [katz_distribution(one, counts, vocab, (SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos)) for one in chosen]
    )
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_the_corpora_cover_every_rule() -> None:
    """The corpora cover discounts below and at 1, full contexts and contexts that free no mass."""
    met = set()
    for seed, vocab, count in CORPORA:
        counts = katz_counts(corpus(seed, vocab, count), 3, start=SPECIAL_TOKENS.bos, end=SPECIAL_TOKENS.eos)
        for order, table in enumerate(counts, 1):
            below = [discount < 1 for discount in katz_discounts(table).values()]
            met.add((order, "all five" if all(below) else "some" if any(below) else "none"))
            after: dict[tuple[int, ...], set[int]] = {}
            for *context, word in table:
                after.setdefault(tuple(context), set()).add(word)
            met |= {(order, "full") for words in after.values() if len(words) == vocab - 2}
    expected = {(2, "all five"), (3, "all five"), (1, "none"), (2, "none"), (1, "full"), (2, "full"), (1, "some")}
    assert expected <= met, sorted(met)


@pytest.mark.parametrize("order", [2, 3])
def test_batch_scores_equal_the_oracle_word_by_word(order: int) -> None:
    vocab, sentences = 12, corpus(4, 12, 300)
    model = NGram(NGramSettings(order=order, cutoff=5), ModelInputs(vocab)).eval()
    model.fit(sentences)
    counts = katz_counts(sentences, order, start=SPECIAL_TOKENS.bos, end=SPECIAL_TOKENS.eos)
    unlike = corpus(9, vocab, 6)
    probs = model(collate([Example("", one) for one in unlike])).logits.double().exp().numpy()
    for row, sentence in enumerate(unlike):
        past = [SPECIAL_TOKENS.bos] * (order - 1) + sentence
        for position in range(len(sentence) + 1):
            context = tuple(past[position : position + order - 1])
            theirs = katz_distribution(context, counts, vocab, (SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos))
            np.testing.assert_allclose(probs[row, position], theirs, rtol=0, atol=1e-6)
