"""The search against all derivations, the n best of them, and the tuning against a grid."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest

from limner.smt import FEATURES, NUM_FEATURES, NUM_SCORES, decoder, tuning
from limner.smt.extraction import extract_all
from limner.smt.features import BOS, EOS, NUM_TUNED, UNK, Limits, PhraseOptions, build_tables, copy_id
from limner.smt.language_model import LanguageModel, estimate
from limner.smt.phrases import PhraseTable, score
from limner.smt.system import ScoredTranslation, best_paths, path_features
from limner.smt.tuning import Reference, TuningOptions, TuningSet, bleu, tune

WIDE = Limits(5000, 40, 3)


def search(tables, source, weights, limits, copies=None):
    """Search with words that are unknown to the target vocabulary where they are copied, unless `copies` are given."""
    copies = np.full(len(source), UNK) if copies is None else np.array(copies)
    return decoder.search(tables, source, copies, weights, limits)


@pytest.fixture(scope="module")
def tables():
    """Tables of random sentence pairs: four source words (and one unknown), five target words."""
    rng = np.random.default_rng(4)
    sources = [rng.integers(4, 8, rng.integers(1, 6)).tolist() for _ in range(40)]
    targets = [rng.permutation([word + rng.integers(2) for word in source]).tolist() for source in sources]
    alignments = [rng.random((len(s), len(t))) < 0.3 for s, t in zip(sources, targets, strict=True)]
    for one in alignments:
        one[0, 0] = True
    instances = extract_all(sources, targets, alignments, (9, 9), 3)
    phrases = score(instances, np.concatenate(sources), np.concatenate(targets), (9, 9), 3)
    return build_tables(estimate(targets, 3, 9), phrases)


@pytest.fixture(scope="module")
def weights():
    rng = np.random.default_rng(5)
    values = rng.uniform(0.1, 1, NUM_FEATURES)
    values[-1] = -10
    return values


def derivations(options: PhraseOptions, size: int, limit: int):
    """All orders of options that translate every word once, with phrases that end in the window of the limit."""

    def extend(path, covered):
        if len(covered) == size:
            yield path
            return
        gap = next(position for position in range(size) if position not in covered)
        for option in range(len(options.starts)):
            span = set(range(options.starts[option], options.ends[option] + 1))
            if span & covered or (options.starts[option] != gap and options.ends[option] + 1 - gap > limit):
                continue
            yield from extend([*path, option], covered | span)

    return extend([], frozenset())


def words_of(tables, options, path):
    """Target words of a derivation."""
    found = []
    for pair in options.pairs[np.array(path)]:
        start, end = (0, 0) if pair < 0 else tables.word_starts[pair : pair + 2]
        found += [copy_id(pair)] if pair < 0 else tables.words[start:end].tolist()
    return tuple(found)


@pytest.mark.parametrize("limit", [0, 2, 40])
@pytest.mark.parametrize("source", [[4], [5, 4, 6], [7, 8, 4], [6, 6, 5, 4]])
def test_wide_stacks_find_the_best_of_all_derivations(tables, weights, source, limit):
    limits = WIDE._replace(distortion_limit=limit)
    options, lattice, final = search(tables, np.array(source), weights, limits)
    paths = list(derivations(options, len(source), limit))
    scores = [path_features(tables, options, np.array(path), len(source)) @ weights for path in paths]
    assert lattice.scores[final] == pytest.approx(max(scores))
    best = {}
    for path, value in sorted(zip(paths, scores, strict=True), key=lambda one: -one[1]):
        best.setdefault(words_of(tables, options, path), value)
    expected = list(best.values())[:10]  # of derivations with equal words the best
    found = best_paths(tables, options, lattice, final, 10, 10_000)
    assert [path_features(tables, options, path, len(source)) @ weights for path in found] == pytest.approx(expected)
    assert len({words_of(tables, options, path) for path in found}) == len(found)
    assert len(best_paths(tables, options, lattice, final, 10, 3)) <= min(3, len(found))


def test_unknown_words_have_one_option_that_copies(tables, weights):
    options, *_ = search(tables, np.array([8]), weights, WIDE)
    assert [copy_id(pair) for pair in options.pairs] == [UNK]


def test_the_language_model_scores_copied_words_by_their_own_probability(small_tables):
    """Source word 5 has no pair: as target word 7 it has the log-probability -0.25, as another one that of <unk>."""
    scores, weights = {}, np.zeros(NUM_FEATURES)
    weights[FEATURES.index("language_model")] = 1
    for copied in (7, UNK, 8, 1000):
        options, lattice, final = search(small_tables, np.array([5]), weights, WIDE, [copied])
        assert words_of(small_tables, options, best_paths(small_tables, options, lattice, final, 1, 1)[0]) == (copied,)
        scores[copied] = lattice.scores[final]
    back_off, end = -0.125, -2
    assert scores[7] == pytest.approx(back_off - 0.25 + end)
    assert scores[UNK] == scores[8] == scores[1000] == pytest.approx(back_off - 3 - 0.75 + end)


@pytest.fixture(scope="module")
def small_tables():
    """Bigrams "<s> 4" (not observed), "4 5" (log-probability -0.5); pairs 4 → 4 5, 7 → 7 and 5 6 → 6."""
    log_probs = np.array([-99, -99, -2, -3, -1, -1.5, -2.5, -0.25, -0.5])
    log_probs[[EOS, UNK]] = -2, -3
    log_backoffs = np.zeros(9)
    log_backoffs[[BOS, UNK, 4]] = -0.125, -0.75, -0.0625
    lm = LanguageModel(2, 8, np.array([-1] * 8 + [5]), np.array([*range(8), 4]), log_probs, log_backoffs)
    # Numbers in the order of the scores; 0.0625 is added for the second pair, and 0.03125 for the third.
    scores = -np.arange(1.0, NUM_SCORES + 1) - np.array([[0], [0.0625], [0.03125]])
    edges, first = np.array([4, 5, 7, 2 * 8 + 6]), np.array([0, 0, 1, 1, 2, 3])
    phrases = PhraseTable(
        8, edges, first, np.array([0, 2, 3, 4]), np.array([4, 5, 7, 6]), scores.astype(np.float32), np.ones(3, int)
    )
    return build_tables(lm, phrases)


def features_of(tables, source, spans):
    """Features of the derivation that translates the spans of first and last words in the given order."""
    options, *_ = search(tables, np.array(source), np.ones(NUM_FEATURES), WIDE)
    found = list(zip(options.starts.tolist(), options.ends.tolist(), strict=True))
    path = np.array([found.index(span) for span in spans])
    return dict(zip(FEATURES, path_features(tables, options, path, len(source)).tolist(), strict=True))


def test_the_features_of_a_derivation_are_those_worked_by_hand(small_tables):
    """f0 → 4 5, then f3 → 7 (discontinuous), then f1 f2 → 6 (swap), then the end (discontinuous)."""
    log_probs = (-1 - 0.125) + -0.5 + -0.25 + -2.5 + -2  # <s> 4 backs off; "4 5" was observed; 7, 6 and </s>
    expected = {
        "distortion": -(0 + 2 + 3),
        "language_model": log_probs,
        "words": 4,
        "phrases": 3,
        "source_given_target": -(1 + 1.0625 + 1.03125),
        "lexical_source_given_target": -(2 + 2.0625 + 2.03125),
        "target_given_source": -(3 + 3.0625 + 3.03125),
        "lexical_target_given_source": -(4 + 4.0625 + 4.03125),
        "previous_monotone": -5,  # of f0, after the beginning
        "previous_swap": -6.03125,  # of f1 f2
        "previous_discontinuous": -7.0625,  # of f3
        "next_monotone": 0,
        "next_swap": -9.0625,  # of f3
        "next_discontinuous": -10 - 10.03125,  # of f0, and of f1 f2 before the end
        "unknown_words": 0,
    }
    assert features_of(small_tables, [4, 5, 6, 7], [(0, 0), (3, 3), (1, 2)]) == pytest.approx(expected)


def test_a_stack_of_one_finds_the_best_translation_by_the_estimates_of_what_remains(small_tables):
    """By scores alone f1 and f2 would be first, because f0 costs more; the jumps would then cost 2 + 3."""
    weights = np.zeros(NUM_FEATURES)
    weights[[FEATURES.index("distortion"), FEATURES.index("language_model")]] = 0.125, 1
    _, lattice, final = search(small_tables, np.array([4, 7, 7]), weights, Limits(1, 6, 3))
    in_order = (-1 - 0.125) + -0.5 + -0.25 + -0.25 + -2
    assert lattice.scores[final] == pytest.approx(in_order)


@pytest.fixture(scope="module")
def candidates():
    rng = np.random.default_rng(6)
    features = rng.normal(size=(60, NUM_FEATURES))
    references = [Reference([rng.integers(0, 4, 9).tolist()]) for _ in range(12)]
    statistics = np.array([references[row // 5].statistics(rng.integers(0, 4, 8).tolist()) for row in range(60)])
    statistics[:, :4] += 1  # no order without a match
    statistics[:, 4:8] += 1
    return tuning.Candidates(features, statistics, np.arange(0, 61, 5))


def test_bleu_statistics_equal_those_of_sacrebleu():
    from sacrebleu import corpus_bleu

    rng = np.random.default_rng(7)
    texts, references = (rng.integers(0, 3, (6, 12)).tolist() for _ in range(2))
    total = sum(Reference([one]).statistics(text) for text, one in zip(texts, references, strict=True))
    joined = [[" ".join(map(str, one)) for one in part] for part in (texts, references)]
    expected = corpus_bleu(joined[0], [joined[1]], tokenize="none", smooth_method="none").score
    assert 100 * bleu(total) == pytest.approx(expected)


def test_the_line_search_is_as_good_as_a_fine_grid(candidates):
    rng = np.random.default_rng(8)
    for _ in range(5):
        weights, direction = rng.normal(size=(2, NUM_FEATURES))
        grid = [tuning.corpus_bleu(candidates, weights + step * direction) for step in np.linspace(-20, 20, 8001)]
        step, reached = tuning.line_search(candidates, weights, direction)
        assert reached >= max(grid) - 1e-12
        assert tuning.corpus_bleu(candidates, weights + step * direction) == pytest.approx(reached)


def test_tuning_raises_bleu_and_keeps_the_fixed_weight(candidates):
    start, rng = np.ones(NUM_FEATURES), np.random.default_rng(9)
    weights, value = tuning.optimise(candidates, [start], NUM_TUNED, rng, 5)
    assert value == pytest.approx(tuning.corpus_bleu(candidates, weights))
    assert value > tuning.corpus_bleu(candidates, start)
    assert weights[NUM_TUNED:].tolist() == [1.0] * (NUM_FEATURES - NUM_TUNED)


class Scripted(NamedTuple):
    """In place of a system: its translations of iteration k are those of a list."""

    weights: np.ndarray
    translations: list
    seen: list

    def translate_all(self, sources, copies, n_best):
        self.seen.append(self.weights)
        return self.translations[len(self.seen) - 1]


def test_tuning_keeps_the_best_weights_and_all_translations(monkeypatch):
    """BLEU of the iterations rises and falls; the weights of the second are the best ones."""
    reference = [4, 5, 6, 7, 8]
    first = [[4, 5, 6, 7, 9], reference, [4, 5, 6, 7, 10, 11], [4, 5, 6, 7, 12, 13, 14]]
    translations = [
        [[ScoredTranslation(tuple(words), 0.0, np.full(NUM_FEATURES, float(k)), (), ()) for words in (best, [4, k])]]
        * 2
        for k, best in enumerate(first)
    ]
    translations[2] = [[*row, *translations[0][0]] for row in translations[2]]  # two that are known
    sizes, drawn = [], iter(np.random.default_rng(1).uniform(0, 1, (9, NUM_FEATURES)))

    def optimise(candidates, starts, tuned, rng, directions):
        sizes.append(np.diff(candidates.first).tolist())
        return next(drawn), 0.0

    monkeypatch.setattr(tuning, "optimise", optimise)
    system = Scripted(np.ones(NUM_FEATURES), translations, [])
    data = TuningSet([[4], [5]], [[4], [5]], [[reference]] * 2)
    steps = []
    weights, history = tune(system, data, TuningOptions(4, 2, 1), lambda number, value: steps.append((number, value)))
    assert np.argmax(history) == 1 and history[1] == pytest.approx(1) and len(history) == 4
    assert history[1] > history[0] > history[2] > history[3]
    assert steps == list(enumerate(history, 1))
    assert len(system.seen) == 4 and weights is system.seen[1]
    assert sizes == [[2, 2], [4, 4], [6, 6]]  # of both sentences, without those that are known


def test_references_of_different_lengths_count_by_the_closest():
    statistics = Reference([[1, 2, 3], [1, 2, 3, 4, 5, 6]]).statistics([1, 2, 3, 4])
    assert statistics[-2:].tolist() == [4, 3]
    assert statistics[:4].tolist() == [4, 3, 2, 1]
    assert list(itertools.chain(statistics[4:8])) == [4, 3, 2, 1]
