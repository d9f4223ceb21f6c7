"""Beam search against enumeration of all sentences of small second-order Markov chains."""

import itertools
import math
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from limner.data.examples import Batch, ImageFeatures
from limner.decoding.next_tokens import first_best
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings, SampleSettings
from limner.decoding.torch_models import beam_search
from limner.errors import RunError, SettingsError

VOCAB, PAD, BOS, EOS, UNK = 7, 0, 1, 2, 3
WORDS = range(UNK, VOCAB)


class Memory(NamedTuple):
    table: Tensor  # (B, V, V, V): logits after the two words before
    unused: None = None


class State(NamedTuple):
    before: tuple[Tensor, None]  # nested, as models may have it


class Chain:
    """The next token depends on the two before and on the image, whose vector holds a seed."""

    vocab_size = VOCAB

    def __init__(self, seed=0, scale=2.0, log=None):
        self.seed, self.scale, self.log = seed, scale, [] if log is None else log

    def table(self, image_seed):
        generator = torch.Generator().manual_seed(1000 * self.seed + int(image_seed))
        return self.scale * torch.randn(VOCAB, VOCAB, VOCAB, generator=generator, dtype=torch.float64)

    def encode(self, batch):
        return Memory(torch.stack([self.table(image_seed) for image_seed in batch.image.pooled[:, 0]]))

    def start(self, memory):
        return State((torch.full((len(memory.table),), PAD), None))

    def step(self, tokens, memory, state):
        assert len(tokens) == len(state.before[0])
        self.log.append((len(memory.table), len(tokens)))
        hypotheses, left = divmod(len(tokens), len(memory.table))
        assert not left, "every example has as many hypotheses"
        example = torch.arange(len(tokens)) // hypotheses  # a memory is never repeated for its hypotheses
        return memory.table[example, state.before[0], tokens], State((tokens, None))


class Fixed(Chain):
    """The same logits after every word."""

    def __init__(self, logits):
        super().__init__()
        self.logits = torch.as_tensor(logits)
        self.vocab_size = len(logits)

    def table(self, image):
        return self.logits.expand(self.vocab_size, self.vocab_size, -1)


def images(*seeds):
    count = len(seeds)
    vector = torch.tensor(seeds, dtype=torch.float64).view(count, 1)
    nothing = torch.zeros((count, 1), dtype=torch.long)
    ids = tuple(f"picture {seed}" for seed in seeds)
    return Batch(ids, ImageFeatures(torch.ones(count, dtype=torch.bool), vector), nothing, nothing, nothing.bool())


def log_prob(model, image, tokens, ended):
    return summed(model.table(image).log_softmax(dim=-1).tolist(), tokens, ended)


def summed(table, tokens, ended):
    words = [PAD, BOS, *tokens, *([EOS] if ended else [])]
    return sum(table[a][b][c] for a, b, c in zip(words, words[1:], words[2:], strict=False))


def every_sentence(model, image, settings, prefix=()):
    """All hypotheses by enumeration, best first."""
    hypotheses, table = [], model.table(image).log_softmax(dim=-1).tolist()
    for length in range(settings.max_length + 1):
        ended = length < settings.max_length
        for rest in itertools.product(WORDS, repeat=max(0, length - len(prefix))):
            tokens = (*prefix, *rest)
            too_short = ended and length < settings.min_length
            if len(tokens) != length or too_short or (settings.ban_unknown and UNK in rest):
                continue
            total = summed(table, tokens, ended)
            score = total / (length + ended) ** settings.length_penalty
            hypotheses.append(Sentence(tokens, total, score, ended))
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


def assert_same(hypotheses, expected):
    assert [(h.tokens, h.ended) for h in hypotheses] == [(h.tokens, h.ended) for h in expected]
    for ours, theirs in zip(hypotheses, expected, strict=True):
        assert ours.log_prob == pytest.approx(theirs.log_prob, abs=1e-9)
        assert ours.score == pytest.approx(theirs.score, abs=1e-9)


def repeats(tokens, size):
    """Whether the last n-gram of `size` tokens occurs before; never for size 0."""
    ngrams = [tokens[begin : begin + size] for begin in range(len(tokens) - size + 1)]
    return size > 0 and ngrams[-1:] and ngrams[-1] in ngrams[:-1]


def plain_beam(table, settings, prefix=()):
    """Beam search of one example with plain lists.

    Returns:
        The sentences, best first; and of each hypothesis that was in the beam, by its tokens, the total log-probability
        and the outcome.
    """
    live, done, found = [(0.0, ())], [], {}

    def score(hypothesis):
        return hypothesis[0] / max(1, len(hypothesis[1])) ** settings.length_penalty

    for length in range(settings.max_length):
        words = [*range(UNK + settings.ban_unknown, VOCAB), *([EOS] if length >= settings.min_length else [])]
        words = [prefix[length]] if length < len(prefix) else words
        after = [
            (total + table[(PAD, BOS, *tokens)[-2]][(BOS, *tokens)[-1]][word], (*tokens, word))
            for total, tokens in live
            for word in words
            if length < len(prefix) or not repeats((*tokens, word), settings.no_repeat_ngram_size)
        ]
        after = sorted(after, reverse=True)[: 2 * settings.beam_size if settings.beam_size > 1 else 1]
        ends = [one for one in after[: settings.beam_size] if one[1][-1] == EOS]
        found |= {tokens: (total, "dropped") for total, tokens in live}
        live = [one for one in after if one[1][-1] != EOS][: settings.beam_size]
        found |= {tokens[:-1]: (found[tokens[:-1]][0], "continued") for _, tokens in (*ends, *live)}
        found |= {tokens: (total, "complete") for total, tokens in ends}
        found |= {tokens: (total, "open") for total, tokens in live}
        done = sorted([*done, *ends], key=score, reverse=True)
        bound = live[0][0] / settings.max_length**settings.length_penalty if live else -math.inf
        enough = len(done) >= settings.n_best and bound <= score(done[settings.n_best - 1])
        if len(done) >= settings.beam_size or enough:
            break
    else:
        found |= {tokens: (total, "cut off") for total, tokens in live}
        done = sorted([*done, *live], key=score, reverse=True)
    sentences = [
        Sentence(tokens[:-1] if tokens[-1] == EOS else tokens, total, score((total, tokens)), tokens[-1] == EOS)
        for total, tokens in done
    ]
    return sentences, found


@pytest.mark.parametrize("prefixes", [[(), (), ()], [(), (4,), (5, 6)], [(4,), (5,), (6, 3)]], ids=str)
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"length_penalty": 1.0},
        {"min_length": 2, "ban_unknown": True},
        {"max_length": 2},
        {"n_best": 1},
        {"no_repeat_ngram_size": 1, "min_length": 3},
        {"no_repeat_ngram_size": 2, "min_length": 6},
    ],
    ids=str,
)
@pytest.mark.parametrize("beam_size", [2, 3, 5])  # two of 7 words come twice at the first step, and five do not
def test_a_narrow_beam_equals_a_plain_implementation(beam_size, rules, prefixes):
    settings = DecodingSettings(**{"beam_size": beam_size, "n_best": beam_size, "max_length": 6} | rules)
    result = beam_search([Chain()], images(1, 2, 3), settings, prefixes)
    for image, hypotheses, prefix in zip((1, 2, 3), result, prefixes, strict=True):
        sentences, _ = plain_beam(Chain().table(image).log_softmax(-1).tolist(), settings, prefix)
        assert_same(hypotheses, sentences[: settings.n_best])


def gen_sample(next_p, settings, allowed):
    """The beam of dl4mt-tutorial and arctic-captions, their `gen_sample`: k - dead_k candidates after every step.

    Args:
        next_p: function from the words so far to the probabilities of the next one.
        settings: beam size, maximum length, length penalty (0 and 1 are the programs') and n_best.
        allowed: function from the words so far to those that may follow.
    """
    k, dead_k, sample, score = settings.beam_size, 0, [], []
    hypotheses, costs = [()], np.zeros(1)
    for _ in range(settings.max_length):
        cand_scores = np.full((len(hypotheses), VOCAB), np.inf)
        for row, words in enumerate(hypotheses):
            after = allowed(words)
            cand_scores[row, after] = costs[row] - np.log(next_p(words)[after])
        flat = cand_scores.flatten()
        ranks = [rank for rank in flat.argsort(kind="stable")[: k - dead_k] if flat[rank] < np.inf]
        live, live_costs = [], []
        for rank in ranks:
            words = (*hypotheses[rank // VOCAB], rank % VOCAB)
            if words[-1] == EOS:
                sample.append(words)
                score.append(flat[rank])
                dead_k += 1
            else:
                live.append(words)
                live_costs.append(flat[rank])
        hypotheses, costs = live, np.array(live_costs)
        if not hypotheses or dead_k >= k:
            break
    if dead_k < k:
        sample, score = [*sample, *hypotheses], [*score, *costs]
    result = []
    for words, cost in zip(sample, score, strict=True):
        ended = words[-1] == EOS
        tokens = tuple(int(word) for word in (words[:-1] if ended else words))
        result.append(Sentence(tokens, -cost, -cost / len(words) ** settings.length_penalty, ended))
    return sorted(result, key=lambda hypothesis: -hypothesis.score)[: settings.n_best]


@pytest.mark.parametrize("prefixes", [[(), (), ()], [(), (4,), (5, 6)]], ids=str)
@pytest.mark.parametrize(
    "rules", [{}, {"length_penalty": 1.0}, {"min_length": 2, "ban_unknown": True}, {"max_length": 2}, {"n_best": 1}]
)
@pytest.mark.parametrize("seeds", [(0,), (1, 2, 3)], ids=["model", "ensemble"])
@pytest.mark.parametrize("beam_size", [1, 2, 3, 5])
def test_a_shrinking_beam_equals_the_published_programs(beam_size, seeds, rules, prefixes):
    values = {"beam_size": beam_size, "n_best": beam_size, "max_length": 6, "stop": "shrink"}
    settings = DecodingSettings(**values | rules)
    models = [Chain(seed) for seed in seeds]
    result = beam_search(models, images(1, 2, 3), settings, prefixes)
    for image, hypotheses, prefix in zip((1, 2, 3), result, prefixes, strict=True):
        table = np.mean([model.table(image).softmax(-1).numpy() for model in models], axis=0)

        def allowed(words, prefix=prefix):
            if len(words) < len(prefix):
                return [prefix[len(words)]]
            return [*range(UNK + settings.ban_unknown, VOCAB), *([EOS] if len(words) >= settings.min_length else [])]

        def next_p(words, table=table):
            return table[(PAD, BOS, *words)[-2], (BOS, *words)[-1]]

        assert_same(hypotheses, gen_sample(next_p, settings, allowed))


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"beam_size": 4, "n_best": 3},
        {"beam_size": 3, "n_best": 2, "length_penalty": 1.0},
        {"beam_size": 3, "n_best": 3, "sample": SampleSettings(top_p=0.9)},
        {"sample": SampleSettings(seed=4)},
    ],
    ids=str,
)
def test_the_batch_changes_no_hypothesis(chosen):
    settings = DecodingSettings(max_length=8, **chosen)
    seeds, prefixes = [3, 1, 4, 15, 9, 2], [(), (4,), (5, 6, 3), (), (6,), (4, 4)]
    together = beam_search([Chain()], images(*seeds), settings, prefixes)
    pairs = zip(seeds, prefixes, strict=True)
    alone = [beam_search([Chain()], images(seed), settings, [prefix])[0] for seed, prefix in pairs]
    backwards = beam_search([Chain()], images(*seeds[::-1]), settings, prefixes[::-1])[::-1]
    assert together == alone == backwards


def test_an_ensemble_is_the_mean_of_its_models_probabilities():
    models = [Chain(seed) for seed in (1, 2, 3)]
    mean = Chain()
    mean.table = lambda image: sum(m.table(image).softmax(dim=-1) for m in models).div(3).log()
    for settings in (DecodingSettings(max_length=6), DecodingSettings(beam_size=5, n_best=5, max_length=6)):
        together = beam_search(models, images(1, 2), settings)
        for hypotheses, expected in zip(together, beam_search([mean], images(1, 2), settings), strict=True):
            assert_same(hypotheses, expected)


def test_models_with_different_vocabularies_cannot_form_an_ensemble():
    with pytest.raises(RunError, match=r"\[5, 7\]"):
        beam_search([Chain(), Fixed([0.0] * 5)], images(1), DecodingSettings())


def test_sampled_sentences_are_as_frequent_as_they_are_probable():
    draws = 10_000  # the most hypotheses of a beam
    settings = DecodingSettings(beam_size=draws, n_best=draws, max_length=2, sample=SampleSettings())
    model = Chain(scale=1.0)
    hypotheses = Counter(h.tokens for h in beam_search([model], images(5), settings)[0])
    table = model.table(5)
    table[..., [PAD, BOS]] = -math.inf
    model.table = lambda image: table
    for expected in every_sentence(model, 5, settings):
        p = math.exp(expected.log_prob)
        assert abs(hypotheses[expected.tokens] - draws * p) < 5 * math.sqrt(draws * p * (1 - p)) + 1
    assert sum(hypotheses.values()) == draws


def test_samples_have_the_log_probability_of_the_model_without_temperature_and_top_p():
    probs = torch.tensor([1e-30, 1e-30, 0.1, 0.2, 0.3, 0.4])
    sample = SampleSettings(temperature=0.5, top_p=0.75)  # 9 and 16 of 30 are more than 0.75
    settings = DecodingSettings(beam_size=100, n_best=100, max_length=1, sample=sample)
    hypotheses = beam_search([Fixed(probs.log())], images(0), settings)[0]
    assert {h.tokens for h in hypotheses} == {(4,), (5,)}
    assert [h.log_prob for h in hypotheses] == pytest.approx([float(probs[h.tokens[0]].log()) for h in hypotheses])


def test_the_seed_determines_the_samples():
    def drawn(seed):
        settings = DecodingSettings(beam_size=8, n_best=8, max_length=6, sample=SampleSettings(seed=seed))
        return beam_search([Chain()], images(1, 2), settings)

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)


@pytest.mark.parametrize("chosen", [{}, {"beam_size": 3, "n_best": 3}, {"sample": SampleSettings()}], ids=str)
def test_without_possible_tokens_the_sentence_is_cut_off(chosen):
    possible = Fixed([-math.inf, -math.inf, 0.0, -math.inf, 0.0, -math.inf])
    hypotheses = beam_search([possible], images(0, 1), DecodingSettings(max_length=4, **chosen), [(4, 5), ()])
    (cut, *_), (other, *_) = hypotheses
    assert (cut.tokens, cut.ended) == ((4,), False) and cut.log_prob == pytest.approx(math.log(0.5))
    assert math.isfinite(other.log_prob) and set(other.tokens) <= {4}


def test_an_empty_batch_gives_no_hypotheses():
    nothing = torch.zeros((0, 1), dtype=torch.long)
    empty = Batch((), ImageFeatures(torch.zeros(0, dtype=torch.bool)), nothing, nothing, nothing.bool())
    assert beam_search([Chain()], empty, DecodingSettings()) == []


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        ([(4,)], "expected one for each of 2 examples, got 1"),
        ([(4,), (4,) * 6], "'picture 2'.*at most 5"),
        ([(4, EOS), ()], "'picture 1'.*token ids from 3 to 6"),
        ([(4,), (VOCAB,)], "'picture 2'.*token ids from 3 to 6"),
    ],
)
def test_prefixes_that_do_not_fit_are_errors(prefixes, message):
    with pytest.raises(SettingsError, match=message):
        beam_search([Chain()], images(1, 2), DecodingSettings(max_length=5), prefixes)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_best": 3}, "raise beam_size"),
        ({"min_length": 9, "max_length": 5}, "min_length 9 is above max_length 5"),
        ({"beam": 3}, "beam: unknown key"),
        ({"sample": {"top_p": 1.5}}, "sample.top_p"),
        ({"length_penalty": -1}, "length_penalty"),
    ],
)
def test_contradicting_settings_are_errors(values, message):
    with pytest.raises(SettingsError, match=message):
        DecodingSettings.parse(values)


def test_the_signature_names_all_settings_that_differ_from_defaults():
    assert DecodingSettings().signature == "beam1,penalty0"
    usual = {"n_best": 1, "min_length": 0, "max_length": 50, "ban_unknown": False, "sample": None}
    assert DecodingSettings(beam_size=3, length_penalty=0.7, **usual).signature == "beam3,penalty0.7"
    changed = DecodingSettings(beam_size=2, n_best=2, min_length=3, max_length=9, ban_unknown=True, stop="shrink")
    assert changed.signature == "beam2,penalty0,n_best2,stopshrink,min_length3,max_length9,ban_unknown"
    sampled = DecodingSettings(beam_size=2, sample=SampleSettings(top_k=5, top_p=0.9, seed=3))
    assert sampled.signature == "beam2,penalty0,sample,temperature1,top_k5,top_p0.9,seed3"


def test_the_greatest_values_are_those_of_a_stable_sort():
    random = np.random.default_rng(0)
    for groups, hypotheses, tokens in itertools.product((1, 3), (1, 4), (1, 2, 9, 43)):
        values = random.choice([-math.inf, -2.0, -1.0, 0.0], (groups, hypotheses, tokens)).astype(np.float32)  # ties
        order = np.argsort(-values.reshape(groups, -1), axis=1, kind="stable")
        for count in range(1, hypotheses * tokens + 1):
            assert (first_best(values, count) == order[:, :count]).all()
