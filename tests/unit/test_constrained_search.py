"""Constrained beam search against enumeration of all sentences that satisfy the constraints."""

import math

import pytest
import torch
from test_beam_search import EOS, UNK, VOCAB, Chain, Fixed, assert_same, every_sentence, images

from limner.decoding.automaton import MAX_STATES, Automaton, WordBoundaries
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings, SampleSettings
from limner.decoding.torch_models import beam_search
from limner.errors import SettingsError
from limner.inference.explain_beam import BeamRecorder

SUBWORDS = WordBoundaries(frozenset({6}))
"""Token 6 continues the word before it."""
COMPOUNDS = WordBoundaries(frozenset({6}), frozenset({6}))
"""Token 6 joins the words before and after it."""

CONSTRAINTS: dict[str, list[list[tuple[int, ...]]]] = {
    "none": [],
    "word": [[(4,)]],
    "synonyms": [[(4,), (6,)]],
    "two words": [[(4,)], [(5,)]],
    "phrase": [[(4, 5)]],
    "phrase that begins twice": [[(4, 4, 5)]],
    "word within a phrase": [[(4, 5)], [(5,)]],
    "phrase or its last word": [[(4, 5), (5,)]],
    "overlapping phrases": [[(4, 5)], [(5, 6)]],
    "one word for two": [[(4,), (5,)], [(5,), (6,)]],
}


def includes(tokens, constraints, boundaries=None):
    """Whether a sentence satisfies constraints, by comparison of its words."""
    boundaries = boundaries or WordBoundaries()

    def occurs(one, start):
        end = start + len(one)
        before, after = tokens[:start], tokens[end : end + 1]
        while before and before[-1] in boundaries.continues - boundaries.joins:
            before = before[:-1]
        joined = bool(before) and before[-1] in boundaries.joins
        return tuple(tokens[start:end]) == tuple(one) and not joined and not set(after) & boundaries.continues

    return all(any(occurs(one, start) for one in c for start in range(len(tokens))) for c in constraints)


def test_too_many_constraints_are_an_error():
    assert Automaton.build([[(token,)] for token in range(4, 10)]).size == MAX_STATES
    with pytest.raises(SettingsError, match=f"7 constraints.*more than {MAX_STATES} states.*give fewer"):
        Automaton.build([[(token,)] for token in range(4, 11)])


@pytest.mark.parametrize("boundaries", [None, SUBWORDS], ids=["words", "subwords"])
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"length_penalty": 0.6, "n_best": 30},
        {"length_penalty": 1.5, "min_length": 3},
        {"ban_unknown": True, "n_best": 200, "beam_size": 200},
    ],
    ids=str,
)
@pytest.mark.parametrize("constraints", CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_a_full_width_beam_equals_enumeration(constraints, rules, boundaries):
    settings = DecodingSettings(**{"beam_size": 200, "n_best": 4, "max_length": 3} | rules)
    machine = Automaton.build(constraints, boundaries)
    if machine.distances[0] > settings.max_length:
        pytest.skip("no sentence is short enough")
    result = beam_search([Chain()], images(1, 2), settings, constraints=[machine] * 2)
    for image, hypotheses in zip((1, 2), result, strict=True):
        expected = [
            one for one in every_sentence(Chain(), image, settings) if includes(one.tokens, constraints, boundaries)
        ]
        assert_same(hypotheses, expected[: settings.n_best])


@pytest.mark.parametrize("prefix", [(4,), (UNK,), (5, 5), (4, 5, 6)], ids=str)
def test_a_prefix_may_satisfy_constraints_or_begin_to(prefix):
    settings = DecodingSettings(beam_size=200, n_best=10, max_length=4)
    constraints = [[(4, 5), (UNK, 6)], [(5,)]]
    machine = Automaton.build(constraints)
    result = beam_search([Chain()], images(1, 2), settings, [prefix, (5,)], constraints=[machine] * 2)
    for image, start, hypotheses in zip((1, 2), [prefix, (5,)], result, strict=True):
        expected = [one for one in every_sentence(Chain(), image, settings, start) if includes(one.tokens, constraints)]
        assert_same(hypotheses, expected[:10])


@pytest.mark.parametrize("boundaries", [None, SUBWORDS, COMPOUNDS], ids=["words", "subwords", "compounds"])
@pytest.mark.parametrize(("beam_size", "length_penalty"), [(1, 1.0), (2, 0.0), (3, 1.0)])
def test_every_sentence_of_a_narrow_beam_satisfies_its_constraints(beam_size, length_penalty, boundaries):
    settings = DecodingSettings(beam_size=beam_size, n_best=beam_size, max_length=7, length_penalty=length_penalty)
    for constraints in CONSTRAINTS.values():
        result = beam_search(
            [Chain(1), Chain(2)],
            images(*range(9)),
            settings,
            constraints=[Automaton.build(constraints, boundaries)] * 9,
        )
        for hypotheses in result:
            assert len(hypotheses) == beam_size
            assert all(includes(one.tokens, constraints, boundaries) for one in hypotheses)
            assert [one.score for one in hypotheses] == sorted((one.score for one in hypotheses), reverse=True)
            assert len({(one.tokens, one.ended) for one in hypotheses}) == beam_size


def shrinking_beams(table, machine, settings, prefix):
    """Sentences of one example by a beam of each state, which every complete hypothesis reduces by one."""
    beams, done = {0: [(0.0, ())]}, []
    for length in range(settings.max_length):
        after: dict[int, list[tuple[float, tuple[int, ...]]]] = {}
        for total, tokens in (hypothesis for beam in beams.values() for hypothesis in beam):
            state = machine.after(tokens)
            may_end = machine.distances[state] == 0 and length >= settings.min_length
            words = [prefix[length]] if length < len(prefix) else [*range(UNK, VOCAB), *([EOS] if may_end else [])]
            for word in words:
                target = state if word == EOS else machine.after((*tokens, word))
                if word == EOS or machine.distances[target] < settings.max_length - length:
                    cost = total + table[(0, 1, *tokens)[-2]][(1, *tokens)[-1]][word]
                    after.setdefault(target, []).append((cost, (*tokens, word)))
        left = settings.beam_size - len(done)
        chosen = {state: sorted(found, reverse=True)[:left] for state, found in after.items()}
        done += [one for found in chosen.values() for one in found if one[1][-1] == EOS]
        beams = {state: [one for one in found if one[1][-1] != EOS] for state, found in chosen.items()}
        if len(done) >= settings.beam_size or not any(beams.values()):
            break
    else:
        done += [hypothesis for beam in beams.values() for hypothesis in beam]
    ranked = sorted(((total / len(tokens) ** settings.length_penalty, total, tokens) for total, tokens in done))[::-1]
    return [
        Sentence(tokens[:-1] if tokens[-1] == EOS else tokens, total, score, tokens[-1] == EOS)
        for score, total, tokens in ranked[: settings.n_best]
    ]


@pytest.mark.parametrize("boundaries", [None, SUBWORDS], ids=["words", "subwords"])
@pytest.mark.parametrize("beam_size", [1, 2, 4])
@pytest.mark.parametrize("constraints", list(CONSTRAINTS.values())[1:], ids=list(CONSTRAINTS)[1:])
def test_shrinking_beams_of_all_states_equal_a_plain_implementation(constraints, beam_size, boundaries):
    values = {"beam_size": beam_size, "n_best": beam_size, "max_length": 5, "stop": "shrink"}
    machine, prefixes = Automaton.build(constraints, boundaries), [(), (5,), (4, 4)]
    for rules in ({}, {"length_penalty": 1.0, "min_length": 3}):
        settings = DecodingSettings(**values | rules)
        result = beam_search([Chain()], images(1, 2, 3), settings, prefixes, constraints=[machine] * 3)
        for image, hypotheses, prefix in zip((1, 2, 3), result, prefixes, strict=True):
            table = Chain().table(image).log_softmax(-1).tolist()
            assert_same(hypotheses, shrinking_beams(table, machine, settings, prefix))
            assert all(includes(one.tokens, constraints, boundaries) for one in hypotheses)


@pytest.mark.parametrize("beam_size", [1, 2, 5])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_neighbours_and_their_constraints_change_no_hypothesis(beam_size, length_penalty):
    settings = DecodingSettings(beam_size=beam_size, n_best=beam_size, max_length=8, length_penalty=length_penalty)
    machines = [Automaton.build(one) for one in CONSTRAINTS.values()]
    seeds, prefixes = range(len(machines)), [(), (5,), (4, 4), (), (6,), (4,), (), (UNK,), (), (5, 6)]
    together = beam_search([Chain()], images(*seeds), settings, prefixes, constraints=machines)
    for seed, prefix, machine, hypotheses in zip(seeds, prefixes, machines, together, strict=True):
        assert hypotheses == beam_search([Chain()], images(seed), settings, [prefix], constraints=[machine])[0]
        if machine.size == 1:
            assert hypotheses == beam_search([Chain()], images(seed), settings, [prefix])[0]


def test_a_word_that_the_model_finds_improbable_is_included_in_the_best_place():
    """After 4 the word 6 costs 4 nats, elsewhere 12; without it the sentence is '4 5'."""
    logits = torch.full((VOCAB, VOCAB, VOCAB), -30.0)
    logits[:, 1, 4] = logits[:, 4, 5] = logits[:, 5, EOS] = logits[:, 6, 5] = 0.0
    logits[:, :, 6] = -12.0
    logits[:, 4, 6] = -4.0
    model = Chain()
    model.table = lambda image: logits
    settings = DecodingSettings(beam_size=2, max_length=9)
    assert beam_search([model], images(0), settings)[0][0].tokens == (4, 5)
    best = beam_search([model], images(0), settings, constraints=[Automaton.build([[(6,)]])])[0][0]
    assert (best.tokens, best.ended) == ((4, 6, 5), True) and best.log_prob == pytest.approx(-4, abs=0.1)


def test_the_recorded_tree_holds_the_hypotheses_of_all_states():
    settings = DecodingSettings(beam_size=2, n_best=2, max_length=5, length_penalty=0.7)
    recorder, machine = BeamRecorder(2), Automaton.build([[(4, 5), (6,)]])
    result = beam_search([Chain()], images(1, 2), settings, trace=recorder, constraints=[machine] * 2)
    for tree, hypotheses in zip(recorder.trees, result, strict=True):
        ranking = [tree.tokens(one.node) for one in tree.ranking(settings)]
        assert [tuple(t for t in tokens if t != EOS) for tokens in ranking[:2]] == [one.tokens for one in hypotheses]
        assert {machine.after([t for t in tree.tokens(n) if t != EOS]) for n in range(len(tree.nodes))} == {0, 1, 2}


def test_a_sentence_that_would_be_too_long_is_an_error():
    machine = Automaton.build([[(4, 5, 6)], [(5,)]])
    ((best, *_),) = beam_search([Chain()], images(1), DecodingSettings(max_length=3), constraints=[machine])
    assert best.tokens == (4, 5, 6)
    with pytest.raises(SettingsError, match="'picture 1': expected a sentence of at least 3 tokens, got max_length 2"):
        beam_search([Chain()], images(1), DecodingSettings(max_length=2), constraints=[machine])
    with pytest.raises(SettingsError, match="at least 5 tokens"):
        beam_search([Chain()], images(1), DecodingSettings(max_length=4), [(4, 6)], constraints=[machine])


def test_words_of_probability_zero_are_an_error():
    impossible = Fixed([-math.inf, -math.inf, 0.0, 0.0, 0.0, -math.inf])
    with pytest.raises(SettingsError, match="'picture 1': every sentence with these words has probability zero"):
        beam_search(
            [impossible], images(0, 1), DecodingSettings(), constraints=[Automaton.build([]), Automaton.build([[(5,)]])]
        )


def test_sampling_and_other_numbers_of_constraints_are_errors():
    machine = Automaton.build([[(4,)]])
    with pytest.raises(SettingsError, match="must_include needs beam search"):
        beam_search([Chain()], images(1), DecodingSettings(sample=SampleSettings()), constraints=[machine])
    with pytest.raises(SettingsError, match="constraints of each of 2 examples, got 1"):
        beam_search([Chain()], images(1, 2), DecodingSettings(), constraints=[machine])
