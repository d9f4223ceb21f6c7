"""Every neural language model against the oracle of its printed equations, in float64."""

import math

import numpy as np
import oracle_mrnn
import pytest
import torch
from parity_models import BOS, CASES, EOS, Case, batch_of, mrnn_weights

from limner.data.examples import Example
from limner.decoding.scoring import sentence_log_probs
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import beam_search
from limner.retrieval.marginal import Marginal
from limner.text.vocab import SPECIAL_TOKENS
from limner.training.losses import word_loss

IMAGES = [pytest.param(case, True, id=case.name) for case in CASES]
IMAGES += [pytest.param(case, False, id=f"{case.name}-no-images") for case in CASES if case.translates]


def each(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def same(actual, expected, tolerance=1e-10):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


@torch.no_grad()
@pytest.mark.parametrize(("case", "with_images"), IMAGES)
def test_every_position_of_a_padded_batch_equals_the_oracle(case: Case, with_images: bool) -> None:
    model, examples = case.build(), case.examples(with_images=with_images)
    batch = batch_of(examples)
    output = model(batch)
    scores = sentence_log_probs(output, batch)
    for row, example in enumerate(examples):
        expected, words = case.expected(model, example), [*example.target, EOS]
        steps = len(words)
        same(output.logits[row, :steps].log_softmax(-1), expected.log_probs)
        assert float(scores[row]) == pytest.approx(sum(expected.log_probs[range(steps), words]), abs=1e-9)
        if expected.alignment is not None:  # visual prefix tokens precede the words
            source, width = example.source, expected.alignment.shape[1]
            end = output.alignment.shape[2] - max(len(other.source) for other in examples) + len(source)
            same(output.alignment[row, :steps, end - width : end], expected.alignment)
            assert not output.alignment[row, :, : end - width].any()
            assert not output.alignment[row, :, end:].any()
        if expected.gate is not None:
            same(output.gate[row, :steps] if output.gate is not None else 0 * expected.gate, expected.gate)
        if output.attention is not None:  # without an image, or on padding, there is none
            shown = np.zeros((steps, output.attention.shape[2]))
            if expected.attention is not None:
                shown[:, : expected.attention.shape[1]] = expected.attention
            same(output.attention[row, :steps], shown)


@each([case for case in CASES if case.name != "independent"])  # no gradient reaches its source-language model
def test_the_gradient_equals_the_numerical_gradient_of_the_oracle(case: Case) -> None:
    """Along a direction of all weights at once, against central differences of the oracle's log-probability."""
    model, examples = case.build(), case.examples()
    batch, parameters = batch_of(examples), list(model.parameters())
    sentence_log_probs(model(batch), batch).sum().backward()

    @torch.no_grad()
    def log_prob_at(offset):
        torch._foreach_add_(parameters, direction, alpha=offset)
        rows = [(case.expected(model, example).log_probs, [*example.target, EOS]) for example in examples]
        torch._foreach_add_(parameters, direction, alpha=-offset)
        return sum(log_probs[range(len(words)), words].sum() for log_probs, words in rows)

    direction, step = [torch.randn_like(parameter) for parameter in parameters], 1e-6
    expected = (log_prob_at(step) - log_prob_at(-step)) / (2 * step)
    gradient = sum(float((p.grad * d).sum()) for p, d in zip(parameters, direction, strict=True) if p.grad is not None)
    assert gradient == pytest.approx(expected, rel=1e-6, abs=1e-7)


@torch.no_grad()
@each(CASES)
def test_greedy_decoding_from_a_prefix_takes_the_most_probable_word(case: Case) -> None:
    model, prefixes, longest = case.build(), ([], [4], [5, 9]), 5
    examples = [Example(one.id, [], one.source, one.image) for one in case.examples()[:3]]
    decoded = beam_search([model], batch_of(examples), DecodingSettings(max_length=longest), prefixes)
    for hypotheses, prefix, example in zip(decoded, prefixes, examples, strict=True):
        words = list(prefix)
        while len(words) < longest:
            row = case.expected(model, Example(example.id, words, example.source, example.image)).log_probs[-1]
            row[[SPECIAL_TOKENS.pad, BOS]] = -math.inf
            if (word := int(row.argmax())) == EOS:
                break
            words.append(word)
        assert hypotheses[0].tokens == tuple(words)


@torch.no_grad()
@each([case for case in CASES if case.name.startswith("mrnn-")])
def test_the_cost_and_the_normalised_probability_of_the_m_rnn(case: Case) -> None:
    """Eqs. 6 and 7; ours are in nats, and we divide by the mean over the sampled images, the paper by their sum."""
    model, examples, l2 = case.build(), case.examples(), 0.01
    theta, settings = mrnn_weights(model)
    batch = batch_of(examples)
    norm = sum(weight.square().sum() for weight in model.parameters())
    pairs = [([BOS, *one.target, EOS], one.image["pooled"].astype(float)) for one in examples]
    cost = float(word_loss(model(batch), batch) + l2 * norm) / math.log(2)
    assert cost == pytest.approx(oracle_mrnn.cost(theta, settings, pairs, l2 / math.log(2)))
    sentence, (image, *samples) = pairs[0][0], [vector for _, vector in pairs]
    repeated = batch_of([Example(one.id, examples[0].target, None, one.image) for one in examples])
    log_probs = sentence_log_probs(model(repeated), repeated)
    marginal = Marginal(1)
    for part in log_probs[1:].split(2):
        marginal.add([0], part[None])
    normalised = float(log_probs[0] - marginal.log_probs()[0]) - math.log(len(samples))
    expected = oracle_mrnn.normalised_log_prob(theta, settings, sentence, image, samples)
    assert normalised == pytest.approx(expected, abs=1e-6)
