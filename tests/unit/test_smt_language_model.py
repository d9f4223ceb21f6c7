"""The language model: modified Kneser-Ney by hand and from the equations, and queries as KenLM answers them."""

import gzip
import math
from collections import Counter

import kenlm
import numpy as np
import pytest

from limner.errors import RunError
from limner.smt.arpa import read_arpa, write_arpa
from limner.smt.language_model import _discounts, estimate, next_word

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "a", "b", "c", "d", "e"]
PAD, BOS, EOS, UNK, A, B, C, D, E = range(9)


@pytest.fixture
def sentences():
    rng = np.random.default_rng(1)
    return [rng.choice(np.arange(4, 9), rng.integers(1, 9), p=[0.4, 0.25, 0.2, 0.1, 0.05]).tolist() for _ in range(80)]


def score(model, sentence):
    """Natural log-probabilities of the words of a sentence and of its end."""
    tables = model.table(), model.log_probs, model.log_backoffs, model.vocab_size
    context, known, result = np.full(max(1, model.order - 1), BOS), min(1, model.order - 1), []
    for word in [*sentence, EOS]:
        log_prob, known = next_word(*tables, context, known, word)
        result.append(log_prob)
    return np.array(result)


def following(model, context):
    """Probabilities of all words and of the end of the sentence after a context."""
    words = [np.exp(score(model, [*context, word])[len(context)]) for word in range(UNK, model.vocab_size)]
    return [*words, np.exp(score(model, context)[-1])]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([1] * 10 + [2] * 4 + [3] * 2, [1 - 2 * 10 / 18 * 0.4, 2 - 3 * 10 / 18 * 0.5, 3]),  # no count of 4 is needed
        ([1] * 10 + [2] * 4 + [4] * 2, [0.5, 1, 1.5]),  # but one of 3
        ([1, 1, 2, 3, 4], [0.5, 0.5, 1]),
        ([1, 2, 3, 3, 4], [0.5, 1, 1.5]),  # D2 = 2 - 3 · 1/3 · 2/1 = 0
        ([1, 2, 3, 3, 3], [0.5, 1, 1.5]),  # D2 = 2 - 3 · 1/3 · 3/1 < 0
    ],
)
def test_discounts_by_hand(counts, expected):
    assert _discounts(np.array(counts)).tolist() == pytest.approx([0, *expected])


class Interpolated:
    """Modified Kneser-Ney from the equations of Chen and Goodman (1998), with dictionaries of n-grams."""

    def __init__(self, sentences, order, num_predicted):
        raw = [Counter() for _ in range(order + 1)]
        for sentence in ([BOS, *one, EOS] for one in sentences):
            for n in range(1, order + 1):
                raw[n].update(tuple(sentence[i : i + n]) for i in range(len(sentence) - n + 1))
        self.order, self.uniform, self.counts, self.discounts = order, 1 / num_predicted, [Counter()], [()]
        for n in range(1, order + 1):
            before = Counter(longer[1:] for longer in raw[n + 1]) if n < order else raw[n]
            counts = {one: raw[n][one] if one[0] == BOS else before[one] for one in raw[n] if one != (BOS,)}
            of_counts = Counter(counts.values())
            y = of_counts[1] / (of_counts[1] + 2 * of_counts[2])
            self.discounts.append([0, *(k - (k + 1) * y * of_counts[k + 1] / of_counts[k] for k in (1, 2, 3))])
            self.counts.append(counts)

    def prob(self, word, history):
        history = history[len(history) - min(len(history), self.order - 1) :]
        n = len(history) + 1
        after = {one[-1]: count for one, count in self.counts[n].items() if one[:-1] == history}
        lower = self.prob(word, history[1:]) if history else self.uniform
        if not after:
            return lower
        discount = {one: self.discounts[n][min(count, 3)] for one, count in after.items()}
        own = after.get(word, 0) - discount.get(word, 0)
        return (own + sum(discount.values()) * lower) / sum(after.values())


@pytest.mark.parametrize("order", [1, 2, 3])
def test_estimates_are_those_of_the_equations(order):
    rng = np.random.default_rng(3)
    frequencies = 1 / np.arange(1, 121)
    words = np.arange(4, 124)
    sentences = [rng.choice(words, rng.integers(1, 9), p=frequencies / frequencies.sum()).tolist() for _ in range(200)]
    model, oracle = estimate(sentences, order, 124), Interpolated(sentences, order, 122)
    assert all(0 < own < k for one in oracle.discounts[1:] for k, own in enumerate(one[1:], 1))  # none is replaced
    for sentence in [*sentences[:3], rng.choice(words, 5).tolist()]:
        full = (BOS, *sentence, EOS)
        expected = [oracle.prob(full[i], full[:i]) for i in range(1, len(full))]
        assert np.exp(score(model, sentence)) == pytest.approx(expected)


@pytest.mark.parametrize("order", [2, 3, 5])
def test_queries_equal_those_of_kenlm(sentences, order, tmp_path):
    model = estimate(sentences, order, 9)
    write_arpa(model, WORDS, tmp_path / "lm.arpa")
    other = kenlm.Model(str(tmp_path / "lm.arpa"))
    rng = np.random.default_rng(2)
    for sentence in [*sentences[:10], *(rng.integers(3, 9, 7).tolist() for _ in range(20))]:
        text = " ".join(WORDS[word] for word in sentence)
        expected = [score for score, _, _ in other.full_scores(text, bos=True, eos=True)]
        assert score(model, sentence) / math.log(10) == pytest.approx(expected, abs=1e-5)


def test_a_written_model_is_read_again(sentences, tmp_path):
    model = estimate(sentences, 3, 9)
    write_arpa(model, WORDS, tmp_path / "lm.arpa")
    again = read_arpa(tmp_path / "lm.arpa", WORDS)
    for sentence in sentences[:5]:
        assert score(again, sentence) == pytest.approx(score(model, sentence), abs=1e-4)


def test_the_order_of_a_file_is_the_stated_one(tmp_path):
    """Sentences of one word have no n-grams of more than three words, the beginning and the end included."""
    model = estimate([[A], [B], [A]], 5, 9)
    write_arpa(model, WORDS, tmp_path / "lm.arpa")
    assert "ngram 4=0\nngram 5=0\n" in (tmp_path / "lm.arpa").read_text()
    again = read_arpa(tmp_path / "lm.arpa", WORDS)
    assert again.order == 5
    assert score(again, [A, B]) == pytest.approx(score(model, [A, B]), abs=1e-4)


def blanks_around_equals(text):
    """Pad counts as SRILM does, and with tabs."""
    return text.replace("ngram ", "ngram \t ").replace("=", "\t=   ")


def comments_before_the_data(text):
    """Add lines that look like the file itself before it begins."""
    return f"ngram 1=7\n\\1-grams:\n-1\tx\n\n{text}"


def infinite(text):
    """Write impossible words as OpenGrm does, in place of -99."""
    assert "\n-99\t<s>" in text
    return text.replace("\n-99\t<s>", "\n-inf\t<s>")


def without_zero_backoffs(text):
    """Omit back-off weights of 0, as IRSTLM does."""
    assert "\t0\n" in text
    return text.replace("\t0\n", "\n")


@pytest.mark.parametrize(
    "change",
    [
        blanks_around_equals,
        comments_before_the_data,
        infinite,
        without_zero_backoffs,
        lambda text: text.replace("\n", " \t\r\n"),
        lambda text: text.replace("\t", "  "),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: f"\ufeff{text}",
        lambda text: gzip.compress(text.encode()),
    ],
)
def test_files_of_other_programs_are_the_same_model(sentences, tmp_path, change):
    model = estimate(sentences, 3, 9)
    write_arpa(model, WORDS, tmp_path / "lm.arpa")
    changed = change((tmp_path / "lm.arpa").read_text())
    (tmp_path / "other.arpa").write_bytes(changed if isinstance(changed, bytes) else changed.encode())
    same, other = (read_arpa(tmp_path / name, WORDS) for name in ("lm.arpa", "other.arpa"))
    assert other.order == 3 and len(other.firsts) == len(same.firsts)
    assert np.array_equal(other.log_probs, same.log_probs) and np.array_equal(other.log_backoffs, same.log_backoffs)


def test_no_context_is_left_without_probability_for_other_words():
    """Bigrams with the counts 1, 1, 2, 2 and four times 3: D2 would be 2 - 3 · 1/3 · 4/2 = 0; 'D C' occurs twice."""
    model = estimate([[A, B, D, C, 9]] * 2 + [[A, B, E, C, 9]], 2, 10)
    for context in ([], [A], [B], [C], [D], [E], [9]):
        assert sum(following(model, context)) == pytest.approx(1)


def test_probabilities_after_all_observed_contexts_of_small_corpora_sum_to_one():
    rng = np.random.default_rng(5)
    for _ in range(40):
        sentences = [rng.integers(4, 7, rng.integers(1, 5)).tolist() for _ in range(rng.integers(1, 12))]
        model = estimate(sentences, 3, 8)
        contexts = {
            tuple(one[start:end]) for one in sentences for end in range(len(one) + 1) for start in range(end + 1)
        }
        for context in contexts:
            assert sum(following(model, list(context))) == pytest.approx(1), (sentences, context)


def test_words_out_of_the_vocabulary_are_cut_and_change_no_other_probability(sentences):
    whole = estimate(sentences, 3, 9)
    cut = whole.cut(8)
    for sentence in ([A, B, C], [D, A], [C, C, C]):
        assert score(cut, sentence) == pytest.approx(score(whole, sentence))
    assert (cut.firsts < 8).all()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("\\end\\", "", "not complete"),
        ("ngram 3=", "ngram 3=1", "not complete"),
        ("\\2-grams:", "\\3-grams:", r"arpa:\d+: expected the 2-grams"),
        ("\\2-grams:\n", "\\2-grams:\nx\ta b\n", r"arpa:\d+: expected a log-probability, 2 words"),
        ("\\2-grams:\n", "\\2-grams:\n0.5\ta b\n", r"arpa:\d+: expected a log-probability, 2 words"),
        ("\\2-grams:\n", "\\2-grams:\n-1\ta\n", r"arpa:\d+: expected a log-probability, 2 words"),
        ("\\3-grams:\n", "\\3-grams:\n-1\ta e <s>\n", r"arpa: expected an n-gram 'e <s>' as well as 'a e <s>'"),
    ],
)
def test_a_damaged_file_is_refused(sentences, tmp_path, before, after, message):
    file = tmp_path / "lm.arpa"
    write_arpa(estimate(sentences, 3, 9), WORDS, file)
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    with pytest.raises(RunError, match=message):
        read_arpa(file, WORDS)
